//! Settings that `nocopy run` passes in environment variables; a process with more rights than its starter ignores them.

use std::ffi::OsString;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::fs::{FileType, fstat};
use rustix::net::{AddressFamily, SocketType, sockopt};

/// The path of the system's libpcap, if the loader does not find it.
pub(crate) const SYSTEM_LIBPCAP: &str = "NOCOPY_SYSTEM_LIBPCAP";

/// The socket to `nocopy run`, as `NUMBER:INODE`.
const RUN_SOCKET: &str = "NOCOPY_RUN_SOCKET";

/// `1`: take packets from the host.
const TAKE: &str = "NOCOPY_TAKE";

/// A variable; `None` in a process that was started setuid, or from a file with capabilities.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    // SAFETY: takes a number.
    let is_elevated = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_elevated { None } else { std::env::var_os(name) }
}

/// Whether to take packets from the host if possible.
pub(crate) fn takes() -> bool {
    variable(TAKE).is_some_and(|value| value == "1")
}

/// The socket that this process inherited from `nocopy run`. The program may have closed it, and opened something else with the same
/// descriptor, so this checks the inode and the kind of the file.
pub(crate) fn run_socket() -> Option<BorrowedFd<'static>> {
    let value = variable(RUN_SOCKET)?;
    let (number, inode) = value.to_str()?.split_once(':')?;
    let (number, inode): (RawFd, u64) =
        (number.parse().ok().filter(|number| *number >= 0)?, inode.parse().ok()?);
    // SAFETY: nothing is done to it before it is known to be the socket that `nocopy run` made for this, and only the program could close
    // it between this and the message: then the message is not sent.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    let status = fstat(socket).ok().filter(|status| status.st_ino == inode)?;
    let is_ours = FileType::from_raw_mode(status.st_mode).is_socket()
        && sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET);
    is_ours.then_some(socket)
}
