//! Settings that `nocopy run` passes in environment variables; a process with more rights than its starter
//! ignores them.

use std::ffi::OsString;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::fs::{FileType, fstat};
use rustix::net::{AddressFamily, SocketType, sockopt};

/// The path of the system's libpcap, if the loader does not find it.
pub(crate) const SYSTEM_LIBPCAP: &str = "NOCOPY_SYSTEM_LIBPCAP";

/// The socket to `nocopy run` that the command inherited, the address of another, and the key:
/// `NUMBER:INODE:NAME:KEY`.
const RUN_SOCKET: &str = "NOCOPY_RUN_SOCKET";

/// `1`: take packets from the host.
const TAKE: &str = "NOCOPY_TAKE";

/// A variable; `None` in a process that was started setuid, or from a file with capabilities.
pub(crate) fn secure_getenv(name: &str) -> Option<OsString> {
    // SAFETY: takes a number.
    let is_elevated = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_elevated { None } else { std::env::var_os(name) }
}

/// Whether to take packets from the host if possible.
pub(crate) fn is_take_requested() -> bool {
    secure_getenv(TAKE).is_some_and(|value| value == "1")
}

/// How to reach `nocopy run`.
#[derive(Debug)]
pub(crate) struct RunnerAddress {
    /// The socket that this process inherited. The program may have closed it, and opened something else with
    /// the same descriptor: so the inode and the kind of the file were checked.
    pub(crate) inherited: Option<BorrowedFd<'static>>,
    /// The abstract name of another socket, in the network namespace of `nocopy run`.
    pub(crate) name: String,
    pub(crate) key: u64,
}

/// The `nocopy run` that has started this program, if it has.
pub(crate) fn runner_address() -> Option<RunnerAddress> {
    let value = secure_getenv(RUN_SOCKET)?;
    let mut parts = value.to_str()?.split(':');
    let number: RawFd = parts.next()?.parse().ok().filter(|number| *number >= 0)?;
    let inode: u64 = parts.next()?.parse().ok()?;
    let (name, key) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?);
    // SAFETY: nothing is done to it before it is known to be the socket that `nocopy run` made for this, and
    // only the program could close it between this and the message: then the message is not sent.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    let is_ours = fstat(socket).is_ok_and(|status| {
        status.st_ino == inode
            && FileType::from_raw_mode(status.st_mode).is_socket()
            && sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET)
    });
    Some(RunnerAddress { inherited: is_ours.then_some(socket), name, key })
}
