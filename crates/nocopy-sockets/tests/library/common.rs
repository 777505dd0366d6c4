//! What the tests share: where the library is, programs in C, and receivers for what these send.

use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nocopy_lab::patience::PATIENCE;
use nocopy_proto::run::sockets::{FILE_BYTES, MAGIC, SharedSockets};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

/// Room for all datagrams of any program here: none is lost because the receiver is late.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;

/// The library: the test binary is built beside it.
pub(crate) fn our_library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let library = tests.parent().unwrap().join("libnocopy_sockets.so");
    assert!(library.exists(), "{}: not built", library.display());
    library
}

/// A program of `tests/programs`, compiled for this test. It is deleted when dropped.
#[derive(Debug)]
pub(crate) struct CompiledProgram {
    directory: PathBuf,
    path: PathBuf,
}

impl CompiledProgram {
    pub(crate) fn compile(name: &str) -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let directory =
            std::env::temp_dir().join(format!("nocopy-sockets-{}-{number}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(name);
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-D_GNU_SOURCE", "-o"]).arg(&path);
        let output = cc.arg(sources.join(format!("{name}.c"))).output().expect("cc, a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { directory, path }
    }

    pub(crate) fn command(&self) -> Command {
        Command::new(&self.path)
    }
}

impl Drop for CompiledProgram {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum RunMode<'a> {
    /// Without the library.
    Plain,
    /// With the library, tuned by this value of `NOCOPY_BATCH_TUNING`.
    Preloaded(&'a str),
}

/// Runs a command to its end; returns its output and the library's counts.
pub(crate) fn run_command(command: Command, run_mode: RunMode<'_>) -> (Output, SharedSockets) {
    run_with_report_file(command, run_mode, SealFlags::SHRINK)
}

/// As [`run_command`]; the file for the counts has these seals.
pub(crate) fn run_with_report_file(
    mut command: Command,
    run_mode: RunMode<'_>,
    seals: SealFlags,
) -> (Output, SharedSockets) {
    let file = create_report_file(seals);
    if let RunMode::Preloaded(tuning) = run_mode {
        let library = nocopy_lab::preloadable_path(&our_library()).unwrap();
        command.env("LD_PRELOAD", library).env("NOCOPY_BATCH_TUNING", tuning);
        let inode = fstat(&file).unwrap().st_ino;
        command.env("NOCOPY_BATCH_REPORT", format!("{}:{inode}", file.as_raw_fd()));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let mut bytes = vec![0; FILE_BYTES];
    file.read_exact_at(&mut bytes, 0).unwrap();
    (output, SharedSockets::parse(&bytes).expect("a file of this layout"))
}

/// A file that the command inherits.
fn create_report_file(seals: SealFlags) -> File {
    let file = memfd_create("report", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, FILE_BYTES as u64).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    let file = File::from(file);
    file.write_all_at(&MAGIC.to_ne_bytes(), 0).unwrap();
    file
}

/// A socket on the loopback interface that receives the datagrams of a program.
pub(crate) fn loopback_receiver() -> (UdpSocket, SocketAddr) {
    receiver_bound_to("127.0.0.1:0")
}

pub(crate) fn receiver_bound_to(address: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(address).unwrap();
    set_socket_recv_buffer_size_force(socket.as_fd(), RECEIVE_BUFFER_BYTES).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// All datagrams that have arrived: the sender has ended, and loopback delivers at once.
pub(crate) fn receive_arrived(socket: &UdpSocket) -> Vec<Vec<u8>> {
    socket.set_nonblocking(true).unwrap();
    let mut buffer = vec![0; 1 << 16];
    let mut all = Vec::new();
    while let Ok(bytes) = socket.recv(&mut buffer) {
        all.push(buffer[..bytes].to_vec());
    }
    all
}

pub(crate) fn utf8_text(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    bytes.read_to_string(&mut text).unwrap();
    text
}
