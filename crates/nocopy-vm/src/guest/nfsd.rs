//! The kernel's own NFS server at the left end, as a control: a failure of both is not this project's.
//!
//! It needs no package: this program writes to the kernel what rpc.mountd would write (who may mount which
//! directory), and a thread answers calls for rpc.mountd and rpcbind.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

use nocopy_lab::{End, Lab, Namespace};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::cards::modprobe;
use super::nfs::{NOBODY, NfsFixture, ServedExport};
use crate::failure::Failure;

const PORT: u16 = 2050;
const MOUNT_PORT: u16 = 2051;
const BIND_PORT: u16 = 111;

/// Programs and procedures of ONC RPC (RFC 1813, appendix I).
const MOUNT_PROGRAM: u32 = 100_005;
const MOUNT_PROCEDURE: u32 = 1;

/// Of an export (`include/uapi/linux/nfsd/export.h`): from any port, everybody is the user without
/// privileges, paths are not checked, and it has a number.
const FLAGS: u32 = 0x0002 | 0x0008 | 0x0400 | 0x2000;
const NUMBER: u32 = 1;
/// When entries of the kernel's tables expire, in seconds since 1970: in 2038, later than any test.
const NEVER: u32 = 0x7fff_ffff;
const THREADS: &str = "4";

/// The end of a MNT call: the path `/`, the only export. Other calls are refused.
const ROOT: &[u8] = b"\0\0\0\x01/\0\0\0";
const NO_ENTRY: u32 = 2;

const CALL_BYTES_MAX: u32 = 64 << 10;

/// The running server; it ends when this is dropped.
pub(crate) struct KernelNfsServer {
    namespace: Namespace,
    control: PathBuf,
    pub(crate) export: ServedExport,
}

impl KernelNfsServer {
    /// Serves the directory of the fixture to the left end itself and to the right one.
    pub(crate) fn start(lab: &Lab, fixture: &NfsFixture) -> Result<Self, Failure> {
        modprobe(&["nfsd"])?;
        let address = lab.left().ipv4();
        let server = Self {
            namespace: lab.left().namespace().clone(),
            control: fixture.new_sibling_directory("nfsd")?,
            export: ServedExport { address, port: PORT, mount_port: MOUNT_PORT },
        };
        let clients = [lab.left(), lab.right()].map(End::ipv4);
        server.namespace.run(|| server.serve(&fixture.export_path(), clients))?;
        Ok(server)
    }

    /// The whole kernel server belongs to the network namespace of this thread.
    fn serve(&self, directory: &Path, clients: [Ipv4Addr; 2]) -> Result<(), Failure> {
        let listen = |address, port| {
            TcpListener::bind((address, port)).map_err(|error| Failure(format!("port {port}: {error}")))
        };
        let (bind, mounts) =
            (listen(Ipv4Addr::LOCALHOST, BIND_PORT)?, listen(self.export.address, MOUNT_PORT)?);
        mount("nfsd", &self.control, "nfsd", MountFlags::empty(), None)?;
        export_directory(directory, clients)?;
        thread::spawn(move || answer_calls(&bind, &[]));
        let root = self.write_control_file("filehandle", &format!("lab {} 64\n", directory.display()))?;
        let root = parse_hex(root.trim()).ok_or_else(|| Failure(format!("not a handle: '{root}'")))?;
        thread::spawn(move || answer_calls(&mounts, &root));
        self.start_threads()
    }

    fn start_threads(&self) -> Result<(), Failure> {
        self.write_control_file("portlist", &format!("tcp {PORT}\n"))?;
        self.write_control_file("threads", &format!("{THREADS}\n"))?;
        Ok(())
    }

    pub(crate) fn stop(&self) -> Result<(), Failure> {
        self.write_control_file("threads", "0\n").map(drop)
    }

    /// Starts the server again.
    ///
    /// The kernel emptied its tables of exports with the last thread. Without them it would wait for an
    /// rpc.mountd, which is not there.
    pub(crate) fn start_again(&self, lab: &Lab, fixture: &NfsFixture) -> Result<(), Failure> {
        let clients = [lab.left(), lab.right()].map(End::ipv4);
        self.namespace.run(|| {
            export_directory(&fixture.export_path(), clients)?;
            self.start_threads()
        })
    }

    /// Writes to a file of nfsd's, and returns the reply.
    fn write_control_file(&self, name: &str, words: &str) -> Result<String, Failure> {
        let ask = || {
            let mut file = OpenOptions::new().read(true).write(true).open(self.control.join(name))?;
            file.write_all(words.as_bytes())?;
            let mut answer = vec![0; 4096];
            let count = file.read(&mut answer)?;
            answer.truncate(count);
            Ok::<_, io::Error>(String::from_utf8_lossy(&answer).into_owned())
        };
        ask().map_err(|error| Failure(format!("nfsd, {name}, '{}': {error}", words.trim())))
    }
}

impl Drop for KernelNfsServer {
    fn drop(&mut self) {
        let _ = fs::write(self.control.join("threads"), "0\n");
        let _ = unmount(&self.control, UnmountFlags::DETACH);
    }
}

/// Fills the kernel's tables of exports: the directory, for these clients.
fn export_directory(directory: &Path, clients: [Ipv4Addr; 2]) -> Result<(), Failure> {
    let directory = directory.display();
    for client in clients {
        write_entry("auth.unix.ip", &format!("nfsd {client} {NEVER} lab\n"))?;
    }
    let export = format!("lab {directory} {NEVER} {FLAGS} {NOBODY} {NOBODY} {NUMBER}\n");
    write_entry("nfsd.export", &export)?;
    let number: String = NUMBER.to_ne_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    write_entry("nfsd.fh", &format!("lab 1 \\x{number} {NEVER} {directory}\n"))
}

/// Fills one of the kernel's tables, as rpc.mountd does.
fn write_entry(table: &str, line: &str) -> Result<(), Failure> {
    // Not below /proc/net: that is of the process, not of the thread.
    let path = format!("/proc/thread-self/net/rpc/{table}/channel");
    File::options()
        .write(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .map_err(|error| Failure(format!("{path}, '{}': {error}", line.trim())))
}

/// The bytes that the kernel writes as `\x0123…`.
fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("\\x")?;
    let pairs = (0..digits.len()).step_by(2).map(|at| digits.get(at..at + 2));
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

/// Answers every call: a mount of the root with the handle, others with "yes", as rpcbind answers all that
/// register.
fn answer_calls(listener: &TcpListener, handle: &[u8]) {
    for stream in listener.incoming() {
        let (Ok(stream), handle) = (stream, handle.to_vec()) else { return };
        thread::spawn(move || answer_connection(stream, &handle));
    }
}

fn answer_connection(mut stream: TcpStream, handle: &[u8]) -> io::Result<()> {
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let bytes = u32::from_be_bytes(mark) & 0x7fff_ffff;
        if bytes > CALL_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut call = vec![0; bytes as usize];
        stream.read_exact(&mut call)?;
        let word = |index: usize| {
            let bytes = call.get(4 * index..4 * index + 4).map(|bytes| bytes.try_into().expect("four bytes"));
            bytes.map_or(0, u32::from_be_bytes)
        };
        // A reply, accepted, without a verifier, and a success.
        let mut reply = encode_words(&[word(0), 1, 0, 0, 0, 0]);
        let is_mount = (word(3), word(5)) == (MOUNT_PROGRAM, MOUNT_PROCEDURE);
        if is_mount && !call.ends_with(ROOT) {
            reply.extend(encode_words(&[NO_ENTRY]));
        } else if is_mount {
            reply.extend(encode_words(&[0, handle.len() as u32]));
            reply.extend(handle);
            reply.resize(reply.len().next_multiple_of(4), 0);
            // One kind of credentials: AUTH_SYS.
            reply.extend(encode_words(&[1, 1]));
        } else {
            reply.extend(encode_words(&[1]));
        }
        let mut record = encode_words(&[0x8000_0000 | reply.len() as u32]);
        record.extend(reply);
        stream.write_all(&record)?;
    }
}

fn encode_words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}
