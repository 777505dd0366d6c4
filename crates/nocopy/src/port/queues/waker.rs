//! Ending a wait from elsewhere.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::event::EventfdFlags;

/// Ends a wait for packets from another thread or from a signal handler: made by [`Queues::waker`](super::Queues::waker).
#[derive(Debug, Clone)]
pub struct Waker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Readable from a wake until it was heard.
    event: OwnedFd,
    /// The same for whoever spins.
    flag: AtomicBool,
}

impl Waker {
    pub(super) fn new() -> io::Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Shared { event, flag: AtomicBool::new(false) })))
    }

    /// Ends the wait that is going on, or else the next: it returns an empty batch. Several wakes that nobody has heard yet are as one.
    pub fn wake(&self) {
        self.0.flag.store(true, Relaxed);
        // Refused only while it is readable already.
        let _ = rustix::io::write(&self.0.event, &1_u64.to_ne_bytes());
    }

    /// Whether there was a wake since this was last asked; looks at memory only.
    pub(super) fn is_flagged(&self) -> bool {
        self.0.flag.load(Relaxed)
    }

    /// Takes a wake that has ended no wait yet, and returns whether there was one: for waits by other means than ours.
    pub fn hear(&self) -> bool {
        // Before the event: a wake in between is heard twice rather than never.
        let flagged = self.0.flag.swap(false, Relaxed);
        rustix::io::read(&self.0.event, &mut [0_u8; 8]).is_ok() || flagged
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
