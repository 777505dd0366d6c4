//! The descriptor that a program waits on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nocopy::integration::Waker;
use nocopy::port::Queues;

/// Readable when packets are in the rings, when the interface went down or was removed, and, once the program
/// has asked for it, while claimed packets are left.
#[derive(Debug)]
pub(super) struct ReadinessDescriptor {
    epoll: OwnedFd,
    /// Makes it readable while claimed packets are left, of which the kernel does not know.
    waker: Waker,
    /// Whether the program has asked for it, and may wait on it.
    is_watched: AtomicBool,
    has_pending: AtomicBool,
    /// Whether the waker has made it readable.
    is_woken: AtomicBool,
}

impl ReadinessDescriptor {
    pub(super) fn open(queues: &mut Queues) -> io::Result<Self> {
        Ok(Self {
            epoll: queues.as_fd().try_clone_to_owned()?,
            waker: queues.waker()?,
            is_watched: AtomicBool::new(false),
            has_pending: AtomicBool::new(false),
            is_woken: AtomicBool::new(false),
        })
    }

    pub(super) fn begin_watching(&self) -> BorrowedFd<'_> {
        // Here and below `SeqCst`: one of two threads, one of which asks while the other reads, sees the
        // other's flag.
        let is_first = !self.is_watched.swap(true, Ordering::SeqCst);
        if is_first && self.has_pending.load(Ordering::SeqCst) {
            self.wake();
        }
        self.as_fd()
    }

    /// Notes whether claimed packets are left. When none are, the descriptor is no longer readable because of
    /// them.
    pub(super) fn set_pending(&self, has_pending: bool) {
        self.has_pending.store(has_pending, Ordering::SeqCst);
        if has_pending && self.is_watched.load(Ordering::SeqCst) {
            self.wake();
        } else if !has_pending && self.is_woken.swap(false, Ordering::SeqCst) {
            self.waker.take_pending_wake();
        }
    }

    fn wake(&self) {
        if !self.is_woken.load(Ordering::SeqCst) {
            self.waker.wake();
            // Afterwards: if the wake-up is heard too early, the next read hears it again.
            self.is_woken.store(true, Ordering::SeqCst);
        }
    }
}

impl AsFd for ReadinessDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
