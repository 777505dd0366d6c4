//! Ends a wait from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::event::EventfdFlags;

/// Ends a wait for packets from another thread or from a signal handler: made by
/// [`Queues::waker`](super::NonblockingQueues::waker).
#[derive(Debug, Clone)]
pub struct Waker(Arc<WakeSignal>);

#[derive(Debug)]
struct WakeSignal {
    /// Readable from a wake until a wait or `take_pending_wake` has consumed it.
    event: OwnedFd,
    /// Wakes a spinning wait.
    flag: AtomicBool,
}

impl Waker {
    pub(super) fn new() -> io::Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(WakeSignal { event, flag: AtomicBool::new(false) })))
    }

    /// Ends the current wait or, if there is none, the next one, which then returns an empty batch. Several
    /// wakes before a wait count as one.
    pub fn wake(&self) {
        self.0.flag.store(true, Relaxed);
        // Fails only while it is readable already.
        let _ = rustix::io::write(&self.0.event, &1_u64.to_ne_bytes());
    }

    /// Whether there was a wake since the last call; reads memory only.
    pub(super) fn has_pending_wake(&self) -> bool {
        self.0.flag.load(Relaxed)
    }

    /// Consumes a wake that has not ended a wait, and returns whether there was one: for programs that wait
    /// on the descriptor themselves.
    pub fn take_pending_wake(&self) -> bool {
        // Before the event: a wake in between is reported twice rather than never.
        let flagged = self.0.flag.swap(false, Relaxed);
        rustix::io::read(&self.0.event, &mut [0_u8; 8]).is_ok() || flagged
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
