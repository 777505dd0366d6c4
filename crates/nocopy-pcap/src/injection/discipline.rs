//! Traffic control on sent frames: AF_XDP bypasses it, so if it does more than queue, AF_XDP is not used.
//!
//! rtnetlink(7) lists the disciplines (`RTM_GETQDISC`), but not programs attached without one (tcx,
//! netfilter's egress).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nocopy_proto::discipline::{Entry, entries, request};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

const BUFFER_BYTES: usize = 64 << 10;

/// The kind of a queueing discipline of the interface, in the thread's network namespace, that does more than
/// queue.
pub(super) fn find(index: u32) -> io::Result<Option<String>> {
    // Its protocol is 0: NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let request = request();
    // SAFETY: the pointer and length are the request's.
    check(unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) })?;
    let (mut buffer, mut found) = (vec![0; BUFFER_BYTES], None);
    // Ends: the kernel ends the list by `Done`, or refuses.
    loop {
        for entry in entries(receive(&socket, &mut buffer)?) {
            match entry {
                Entry::Done => return Ok(found),
                Entry::Refused => return Err(io::ErrorKind::Unsupported.into()),
                Entry::Meddles { index: of, kind } if of == index => {
                    found = found.or_else(|| Some(String::from_utf8_lossy(kind).into_owned()));
                }
                Entry::Meddles { .. } | Entry::Harmless => {}
            }
        }
    }
}

fn receive<'a>(socket: &OwnedFd, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    // SAFETY: the pointer and length are the buffer's.
    let bytes = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    match check(bytes)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        bytes => Ok(&buffer[..bytes]),
    }
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_for_an_unknown_interface() {
        assert_eq!(find(u32::MAX).expect("an answer"), None);
    }
}
