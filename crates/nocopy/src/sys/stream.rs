//! Sending on streams, gathered from where the bytes lie.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// Sends as many bytes as the socket takes, and returns how many; where it takes none it waits, or says `WouldBlock`. Raises no signal.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// The bytes of a zero-copy call stay where they are, unchanged, until the error queue tells of it.
pub(crate) unsafe fn send(
    socket: BorrowedFd<'_>,
    pieces: &[io::IoSlice<'_>],
    waits: bool,
    zero_copy: bool,
) -> io::Result<usize> {
    let mut flags = flags(waits);
    flags.set(SendFlags::from_bits_retain(libc::MSG_ZEROCOPY.cast_unsigned()), zero_copy);
    Ok(sendmsg(socket, pieces, &mut SendAncillaryBuffer::default(), flags)?)
}

/// The same of bytes in one piece, which the kernel copies.
///
/// # Errors
/// The kernel's.
pub(crate) fn send_copied(socket: BorrowedFd<'_>, bytes: &[u8], waits: bool) -> io::Result<usize> {
    Ok(rustix::net::send(socket, bytes, flags(waits))?)
}

fn flags(waits: bool) -> SendFlags {
    if waits { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT }
}
