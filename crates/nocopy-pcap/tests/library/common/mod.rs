//! What the tests of the library share: where it is, programs in C, and traffic for them.
#![allow(dead_code, unsafe_code)] // no test file uses all of it; packet sockets have no safe calls here

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nocopy_lab::patience::{PATIENCE, uninterrupted};
use nocopy_lab::{End, Lab};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

/// Our library: the test binary is built beside it.
pub(crate) fn our_library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let library = tests.parent().unwrap().join("libnocopy_pcap.so");
    assert!(library.exists(), "{}: not built", library.display());
    library
}

/// The value of `LD_PRELOAD` that loads `library`; the sanitizer suite names the C compiler's run-time
/// library, which an instrumented library needs before it.
pub(crate) fn preload_value(library: &Path) -> OsString {
    let runtime = std::env::var_os("NOCOPY_TEST_SANITIZER");
    let objects: Vec<_> =
        runtime.into_iter().chain([nocopy_lab::preloadable_path(library).unwrap().into()]).collect();
    objects.join(OsStr::new(":"))
}

pub(crate) fn system_library() -> PathBuf {
    let directories =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib"];
    let paths = directories.map(|directory| Path::new(directory).join("libpcap.so.0.8"));
    let found = paths.into_iter().find(|path| path.exists());
    found.expect("the system's libpcap: 'apt install libpcap0.8'")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LibraryKind {
    System,
    Ours,
    /// This library, which takes packets from the host.
    Take,
}

/// A directory of this test's own; it is deleted when dropped.
#[derive(Debug)]
pub(crate) struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nocopy-pcap-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles a program of `tests/programs`, in C or C++, linked with the system's libpcap as any other.
pub(crate) fn compile_program(name: &str, scratch: &ScratchDirectory) -> PathBuf {
    compile_linked_with(name, scratch, &system_library())
}

/// As [`compile_program`], linked with another library, which the program finds in this directory of the
/// test.
pub(crate) fn compile_linked_with(name: &str, scratch: &ScratchDirectory, library: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let program = scratch.path().join(name);
    let (compiler, source) = match source.with_extension("cc") {
        cc if cc.exists() => ("c++", cc),
        _ => ("cc", source.with_extension("c")),
    };
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
    command.arg(source).arg(library).arg(format!("-Wl,-rpath,{}", scratch.path().display()));
    let output = command.output().expect(compiler);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunOutput {
    pub(crate) lines: Vec<String>,
    pub(crate) status: std::process::ExitStatus,
}

/// Runs a program on the right end of its own lab, and executes the requests in its output lines that begin
/// with `?` (`program.h`).
pub(crate) fn run_program(program: &Path, library: LibraryKind, lab: &Lab) -> RunOutput {
    let right = lab.right();
    let wire = PeerPacketSocket::open(lab.left());
    let mut command = Command::new(program);
    command.arg(right.interface()).stdin(Stdio::piped()).stdout(Stdio::piped());
    if library != LibraryKind::System {
        command.env("LD_PRELOAD", preload_value(&our_library()));
    }
    if library == LibraryKind::Take {
        command.env("NOCOPY_TAKE", "1");
    }
    let mut child = right.namespace().run(|| command.spawn()).expect("started");
    let (answers, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let lines = on_one_processor(|| serve_requests(answers, stdout, lab, &wire));
    RunOutput { lines, status: wait_for_exit(&mut child) }
}

/// Fulfils what the program asks for, and returns what else it says.
fn serve_requests(
    mut answers: ChildStdin,
    stdout: ChildStdout,
    lab: &Lab,
    wire: &PeerPacketSocket,
) -> Vec<String> {
    let mut lines = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.unwrap();
        match line.strip_prefix("? ") {
            Some(request) => {
                let answer = execute_request(request, lab, wire);
                writeln!(answers, "{answer}").expect("the program reads the answer");
            }
            None => lines.push(line),
        }
    }
    lines
}

/// Runs on one processor, on which the sent frames also arrive: in one order for all captures.
pub(crate) fn on_one_processor<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut one = CpuSet::new();
            one.set(sched_getcpu());
            sched_setaffinity(None, &one).unwrap();
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn wait_for_exit(child: &mut Child) -> std::process::ExitStatus {
    child.wait().unwrap()
}

/// Executes a request of the program, and returns the answer.
fn execute_request(request: &str, lab: &Lab, wire: &PeerPacketSocket) -> String {
    let words: Vec<&str> = request.split_whitespace().collect();
    let number = |at: usize| -> u32 { words[at].parse().unwrap() };
    match words[0] {
        "send" => (0..number(1))
            .for_each(|i| wire.send(&numbered_frame(lab.right(), i, 60 + (i as usize * 101) % 1400))),
        "udp" => (0..number(1)).for_each(|i| wire.send(&udp_frame(lab.right(), number(2) as u16, i))),
        "vlan" => (0..number(1)).for_each(|i| {
            let mut tagged = udp_frame(lab.right(), number(2) as u16, i);
            tagged.splice(12..12, [0x81, 0x00, 0x01, 0x23]);
            wire.send(&tagged);
        }),
        "receive" => return wire.receive_summary(number(1) as usize),
        "down" => lab.right().set_down().unwrap(),
        "up" => {
            lab.right().bring_interface_up().unwrap();
            lab.wait_for_carrier().unwrap();
        }
        "delete" => lab.delete_pair().unwrap(),
        other => panic!("a program asks for '{other}'"),
    }
    "done".into()
}

pub(crate) fn numbered_frame(to: &End, number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; bytes];
    frame[..6].copy_from_slice(&to.mac());
    frame[6] = 2;
    frame[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes());
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    for (at, byte) in frame[18..].iter_mut().enumerate() {
        *byte = (number as usize + at) as u8;
    }
    frame
}

/// A UDP datagram over IPv4 for another host, without checksums.
fn udp_frame(to: &End, port: u16, number: u32) -> Vec<u8> {
    let mut frame = numbered_frame(to, number, 90);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 76, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 99]);
    frame[34..42].copy_from_slice(&[0x12, 0x34, (port >> 8) as u8, port as u8, 0, 56, 0, 0]);
    frame
}

/// The other end of the wire: a packet socket.
#[derive(Debug)]
pub(crate) struct PeerPacketSocket(OwnedFd);

impl PeerPacketSocket {
    pub(crate) fn open(end: &End) -> Self {
        let index = end.index();
        end.namespace().run(|| {
            let everything = (libc::ETH_P_ALL as u16).to_be();
            // SAFETY: takes numbers.
            let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            // SAFETY: opened above.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            set_socket_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1_i32);
            set_socket_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &(4_i32 << 20));
            let patience = libc::timeval { tv_sec: PATIENCE.as_secs() as i64, tv_usec: 0 };
            set_socket_option(&socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &patience);
            // SAFETY: numbers.
            let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            (address.sll_family, address.sll_protocol) = (libc::AF_PACKET as u16, everything);
            address.sll_ifindex = index as i32;
            // SAFETY: the pointer and length describe `address`.
            let bound = unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) };
            assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
            Self(socket)
        })
    }

    pub(crate) fn send(&self, frame: &[u8]) {
        // SAFETY: the pointer and length are the frame's.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    pub(crate) fn receive_frame(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0_u8; 1 << 16];
        let received = uninterrupted(|| {
            // SAFETY: the buffer is as long as said.
            let bytes =
                unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            usize::try_from(bytes).map_err(|_| std::io::Error::last_os_error())
        });
        buffer.truncate(received.ok()?);
        Some(buffer)
    }

    /// Lengths and a sum of the next `count` frames.
    fn receive_summary(&self, count: usize) -> String {
        let (mut total, mut sum) = (0, 0_u32);
        for got in 0..count {
            let Some(frame) = self.receive_frame() else { return format!("only {got} frames") };
            total += frame.len();
            for byte in frame {
                sum = sum.wrapping_mul(31).wrapping_add(byte.into());
            }
        }
        format!("{count} frames, {total} bytes, sum {sum:08x}")
    }
}

fn set_socket_option<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) {
    // SAFETY: the options take the types they are given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as u32,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Compares two runs of a program: with the system's libpcap and with this library, each in its own lab.
pub(crate) fn compare_with_system(name: &str) {
    compare_system_with(name, LibraryKind::Ours);
}

/// As [`compare_with_system`], with this library in the given mode.
pub(crate) fn compare_system_with(name: &str, library: LibraryKind) {
    let scratch = ScratchDirectory::new(name);
    let program = compile_program(name, &scratch);
    let mut runs = Vec::new();
    for library in [LibraryKind::System, library] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        runs.push(run_program(&program, library, &lab));
    }
    let (system, ours) = (&runs[0], &runs[1]);
    assert!(system.status.success() && system.lines.len() > 5, "with the system's libpcap: {system:#?}");
    let differing: Vec<_> =
        system.lines.iter().zip(&ours.lines).filter(|(one, other)| one != other).collect();
    assert!(
        differing.is_empty() && system.lines.len() == ours.lines.len() && system.status == ours.status,
        "{name}: the system's libpcap says (left), ours says (right): {differing:#?}\n{ours:#?}"
    );
}

pub(crate) fn command_with_our_library(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", preload_value(&our_library()));
    command
}
