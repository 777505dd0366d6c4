//! Traffic control on sent frames: AF_XDP bypasses it, so if it does more than queue, AF_XDP is not used.
//!
//! rtnetlink(7) lists the disciplines (`RTM_GETQDISC`), but not programs attached without one (tcx,
//! netfilter's egress).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nocopy_proto::discipline::{DumpEntry, dump_entries, dump_request};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

const BUFFER_BYTES: usize = 64 << 10;

/// The kind of a queueing discipline of the interface, in the thread's network namespace, that does more than
/// queue.
pub(super) fn find_bypassed_discipline(index: u32) -> io::Result<Option<String>> {
    // Its protocol is 0: NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let request = dump_request();
    // SAFETY: the pointer and length are the request's.
    check_syscall(unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) })?;
    let (mut buffer, mut found) = (vec![0; BUFFER_BYTES], None);
    // Ends: the kernel ends the list by `Done`, or refuses.
    loop {
        for entry in dump_entries(receive_message(&socket, &mut buffer)?) {
            match entry {
                DumpEntry::Done => return Ok(found),
                DumpEntry::Refused => return Err(io::ErrorKind::Unsupported.into()),
                DumpEntry::Meddles { index: of, kind } if of == index => {
                    found = found.or_else(|| Some(String::from_utf8_lossy(kind).into_owned()));
                }
                DumpEntry::Meddles { .. } | DumpEntry::Harmless => {}
            }
        }
    }
}

fn receive_message<'a>(socket: &OwnedFd, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    // SAFETY: the pointer and length are the buffer's.
    let bytes = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    match check_syscall(bytes)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        bytes => Ok(&buffer[..bytes]),
    }
}

fn check_syscall(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_interface_has_no_bypassed_discipline() {
        assert_eq!(find_bypassed_discipline(u32::MAX).expect("an answer"), None);
    }
}
