//! Waiting for descriptors with poll(2).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// A descriptor is ready.
    Ready,
    /// The timeout has passed.
    TimedOut,
    /// A signal arrived.
    Interrupted,
}

pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<Wakeup> {
    Ok(wait_readable_or_broken(fd, timeout)?.0)
}

/// Waits until a descriptor is readable, or a socket has an error; the second value says whether it has.
pub(crate) fn wait_readable_or_broken(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<(Wakeup, bool)> {
    let mut waited = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let wakeup = poll(&mut waited, Some(timeout))?;
    Ok((wakeup, wakeup == Wakeup::Ready && waited[0].revents().contains(PollFlags::ERR)))
}

/// Waits until a socket has something in its error queue, or a ring beside it is readable.
pub(crate) fn wait_for_completions(
    socket: BorrowedFd<'_>,
    ring: Option<BorrowedFd<'_>>,
    timeout: Duration,
) -> io::Result<Wakeup> {
    let mut waited = [
        PollFd::from_borrowed_fd(socket, PollFlags::empty()),
        PollFd::from_borrowed_fd(ring.unwrap_or(socket), PollFlags::IN),
    ];
    let count = if ring.is_some() { 2 } else { 1 };
    poll(&mut waited[..count], Some(timeout))
}

pub(crate) fn wait_writable(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<Wakeup> {
    poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::OUT)], Some(timeout))
}

pub(crate) fn ready_events(fd: BorrowedFd<'_>, events: PollFlags) -> io::Result<PollFlags> {
    let mut polled = [PollFd::from_borrowed_fd(fd, events)];
    poll(&mut polled, Some(Duration::ZERO))?;
    Ok(polled[0].revents())
}

/// Waits for any of several descriptors, without a limit if `timeout` is `None`.
///
/// # Errors
/// The kernel's; a signal is not an error.
pub fn poll(waited: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<Wakeup> {
    let longest = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
    let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or(longest));
    match rustix::event::poll(waited, timeout.as_ref()) {
        Ok(0) => Ok(Wakeup::TimedOut),
        Ok(_) => Ok(Wakeup::Ready),
        Err(rustix::io::Errno::INTR) => Ok(Wakeup::Interrupted),
        Err(errno) => Err(errno.into()),
    }
}
