//! Sending on streams, gathered from several places; and how much room a stream has.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// The flag of a call that copies nothing (`MSG_ZEROCOPY`).
pub(crate) const ZERO_COPY: SendFlags = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY.cast_unsigned());

/// Sends as many bytes as the socket accepts, and returns how many; if it accepts none, waits or returns
/// `WouldBlock`. Raises no signal. Errors are the kernel's.
///
/// # Safety
/// The bytes of a zero-copy call stay in place, unchanged, until the error queue reports its completion.
pub(crate) unsafe fn send_pieces(
    socket: BorrowedFd<'_>,
    pieces: &[io::IoSlice<'_>],
    waits: bool,
    more_flags: SendFlags,
) -> io::Result<usize> {
    let mut control = SendAncillaryBuffer::default();
    Ok(sendmsg(socket, pieces, &mut control, send_flags(waits) | more_flags)?)
}

/// As [`send_pieces`], for bytes in one piece, which the kernel copies; it waits only if the socket is set
/// to.
pub(crate) fn send_copied(socket: BorrowedFd<'_>, bytes: &[u8], waits: bool) -> io::Result<usize> {
    Ok(rustix::net::send(socket, bytes, send_flags(waits))?)
}

/// As [`send_copied`], for bytes in several pieces, at most [`PIECES_MAX`](super::udp_send::PIECES_MAX).
#[cfg(feature = "tokio")]
pub(crate) fn send_copied_pieces(
    socket: BorrowedFd<'_>,
    pieces: &[io::IoSlice<'_>],
    waits: bool,
) -> io::Result<usize> {
    match pieces {
        [piece] => send_copied(socket, piece, waits),
        // SAFETY: without `MSG_ZEROCOPY` the kernel has copied the bytes when the call returns.
        _ => unsafe { send_pieces(socket, pieces, waits, SendFlags::empty()) },
    }
}

fn send_flags(waits: bool) -> SendFlags {
    if waits { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT }
}

/// How much a TCP socket accepts without waiting, or `None` while it is not writable for poll(2) either.
///
/// `None` has told the kernel that the caller waits, as a failed call would have: it grows the buffer only
/// for waiting callers, and wakes only them (`SOCK_NOSPACE`).
pub(crate) fn send_room(socket: BorrowedFd<'_>) -> io::Result<Option<SendRoom>> {
    let SendMemory { limit, queued } = SendMemory::of(socket)?;
    let left = limit.saturating_sub(queued);
    // The kernel's own rule (sk_stream_is_writeable), so that waiting by poll(2) ends when there is room.
    let is_writable = (left > 0 && left >= queued / 2) || is_writable(socket)?;
    Ok(is_writable.then_some(SendRoom { left, limit }))
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SendRoom {
    left: usize,
    limit: usize,
}

impl SendRoom {
    /// Bytes that probably fit: the kernel counts its own structures too. At least 1.
    pub(crate) fn bytes(self) -> usize {
        (self.left - self.left / 8).max(1)
    }

    /// Whether the socket is still writable after that many more bytes.
    ///
    /// Only then may they be held back for following bytes (`MSG_MORE`). Otherwise nothing could follow,
    /// because held-back bytes fill the buffer, until the kernel sends them after 200 ms.
    pub(crate) fn is_ample_for(self, bytes: usize) -> bool {
        self.left.saturating_sub(bytes) >= self.limit / 2
    }
}

/// The parts of the socket's memory that concern sending, in bytes.
struct SendMemory {
    limit: usize,
    queued: usize,
}

impl SendMemory {
    fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        // linux/sock_diag.h
        const SK_MEMINFO_SNDBUF: usize = 3;
        const SK_MEMINFO_WMEM_QUEUED: usize = 5;
        const SK_MEMINFO_VARS: usize = 9;
        let mut words = [0_u32; SK_MEMINFO_VARS];
        let mut bytes = size_of_val(&words) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes to `words`, which outlive the call.
        let result = unsafe {
            let (socket, option) = (socket.as_raw_fd(), libc::SO_MEMINFO);
            libc::getsockopt(socket, libc::SOL_SOCKET, option, words.as_mut_ptr().cast(), &raw mut bytes)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { limit: words[SK_MEMINFO_SNDBUF] as usize, queued: words[SK_MEMINFO_WMEM_QUEUED] as usize })
    }
}

/// Whether a call would find room, or an error.
fn is_writable(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    poll_now(&mut polled)?;
    Ok(polled[0].revents().intersects(PollFlags::OUT | PollFlags::HUP))
}

/// Whether a sending call would find room, or a closed connection.
pub(crate) fn is_sendable(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    poll_now(&mut polled)?;
    Ok(polled[0].revents().intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP))
}

/// Polls without waiting. A signal interrupts even that.
fn poll_now(polled: &mut [PollFd<'_>]) -> io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    retry_on_intr(|| rustix::event::poll(polled, Some(&now)))?;
    Ok(())
}

/// Limits how long sending calls on a blocking socket wait to a tick of the kernel's clock (1 to 10 ms); then
/// they return `WouldBlock` (`SO_SNDTIMEO`).
///
/// splice(2) and sendfile(2) use the mode of the open file, which is shared with the receiving half, which
/// may want to block.
pub(crate) fn limit_blocking_time(socket: BorrowedFd<'_>) -> io::Result<()> {
    // Rounded up to a tick. Less than a microsecond would mean for ever.
    socket2::SockRef::from(&socket).set_write_timeout(Some(Duration::from_micros(1)))
}
