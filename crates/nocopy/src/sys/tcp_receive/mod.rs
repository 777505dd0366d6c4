//! Receiving from a TCP connection, by copy or by mapping (`TCP_ZEROCOPY_RECEIVE`), and the kernel's state of
//! it.

#[cfg(test)]
pub(crate) mod local_sender;
mod mapped_bytes;
mod window;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::net::{RecvFlags, recv};

pub use mapped_bytes::MappedBytes;
pub(crate) use window::{MappedPages, MappingWindow, PAGE_BYTES, ReceivedPages};

use super::option;
use window::ZeroCopyReceive;

/// Copies received bytes, up to the buffer's length; waits for the first byte if `wait`, as long as
/// [`set_receive_timeout`](super::option::set_receive_timeout) allows. 0: the stream is at its end, or was
/// shut, or lost ([`end_cause`]).
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], wait: bool) -> io::Result<usize> {
    let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    Ok(recv(socket, buffer, flags)?.0)
}

/// As [`receive`], into the unfilled part of a buffer of tokio's, without waiting.
#[cfg(feature = "tokio")]
pub(crate) fn receive_unfilled(socket: &impl AsFd, buffer: &mut tokio::io::ReadBuf<'_>) -> io::Result<usize> {
    // SAFETY: only the kernel writes to it, and it writes bytes, so what is initialised stays so.
    let unfilled = unsafe { buffer.unfilled_mut() };
    let (received, _) = recv(socket, unfilled, RecvFlags::DONTWAIT)?.0;
    let bytes = received.len();
    // SAFETY: `recv` returned as initialised the first bytes of the unfilled part, which the kernel has
    // written.
    unsafe { buffer.assume_init(bytes) };
    buffer.advance(bytes);
    Ok(bytes)
}

/// Whether a byte can be received, which stays queued; false at the end, as for [`receive`].
///
/// It waits in the receiving call and not by poll: completions of the sending half would wake a poll again
/// and again.
pub(crate) fn has_data(socket: BorrowedFd<'_>, wait: bool) -> io::Result<bool> {
    let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    Ok(recv(socket, &mut [0], flags | RecvFlags::PEEK)?.0 > 0)
}

/// Bytes that can be received (`SIOCINQ`, tcp(7)).
pub(crate) fn queued_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::io::ioctl_fionread(socket)?)
}

/// Waits until that many bytes have arrived, or the stream is at its end, as long as
/// [`set_receive_timeout`](super::option::set_receive_timeout) allows.
pub(crate) fn wait_for_bytes(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    option::set_receive_low_water(&socket, bytes)?;
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC;
    // SAFETY: with MSG_TRUNC a TCP socket writes nothing (tcp(7)); and what it wrote to no address would be
    // an error.
    let waited = unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), bytes, flags) };
    let waited = if waited < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // With fewer bytes the wait would not end otherwise.
    option::set_receive_low_water(&socket, 1)?;
    match waited {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(())
        }
        waited => waited,
    }
}

/// Why a receiving call returned no byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// The peer has sent everything, and all of it was received.
    Finished,
    /// This side has stopped receiving (`shutdown`).
    Shut,
    /// The connection broke, and another call returned the reason.
    Lost,
}

/// Distinguishes an end from a loss, after a receiving call has returned no byte.
///
/// The error of a reset is returned once, to the first call, which may be the sending half's; after that the
/// kernel returns no byte as at a proper end. It knows the difference (`SOCK_DONE` is set by a FIN,
/// `tcp_fin`), and shows it in one place: `TCP_ZEROCOPY_RECEIVE` returns `EIO`. A kernel without that option
/// cannot tell.
pub(crate) fn end_cause(socket: BorrowedFd<'_>) -> EndCause {
    /// `TCP_CLOSE` of `net/tcp_states.h`.
    const CLOSED: u8 = 7;
    match ZeroCopyReceive::default().query(socket) {
        Err(_) => EndCause::Finished,
        Ok(()) if tcp_info(&socket).is_ok_and(|info| info.tcpi_state == CLOSED) => EndCause::Lost,
        Ok(()) => EndCause::Shut,
    }
}

pub(crate) fn tcp_info(socket: &impl AsFd) -> io::Result<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut bytes = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: pointer and length describe `info`, which outlives the call.
    let result = unsafe {
        let (socket, info) = (socket.as_fd().as_raw_fd(), info.as_mut_ptr().cast());
        libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, info, &raw mut bytes)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeros, partly overwritten by the kernel; all members are integers.
    Ok(unsafe { info.assume_init() })
}
