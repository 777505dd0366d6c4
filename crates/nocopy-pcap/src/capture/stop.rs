//! Ending a loop from anywhere: `pcap_breakloop`.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to end a loop (`pcap_breakloop`). A signal handler may make it.
#[derive(Debug)]
pub(crate) struct StopRequest {
    requested: AtomicBool,
    /// An eventfd that ends a wait; `None` if there was no descriptor left, as in libpcap.
    wakeup: Option<OwnedFd>,
}

impl StopRequest {
    pub(crate) fn new() -> Self {
        // SAFETY: takes numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        // SAFETY: opened above, and owned by nobody else.
        let wakeup = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
        Self { requested: AtomicBool::new(false), wakeup }
    }

    pub(crate) fn request(&self) {
        // Release: pairs with the acquire in `take_request`, for what the program wrote before it broke the
        // loop.
        self.requested.store(true, Ordering::Release);
        if let Some(wakeup) = &self.wakeup {
            // What fails here only leaves a wait that goes on. Not write(3), which is a cancellation point.
            let _ = rustix::io::write(wakeup, &1_u64.to_ne_bytes());
        }
    }

    #[inline]
    pub(crate) fn is_requested(&self) -> bool {
        // Relaxed: who acts on it calls `take_request`, which acquires.
        self.requested.load(Ordering::Relaxed)
    }

    /// Whether a stop was requested; clears the request.
    pub(crate) fn take_request(&self) -> bool {
        self.is_requested() && self.requested.swap(false, Ordering::AcqRel)
    }

    /// Readable while a stop is requested.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.wakeup.as_ref().map(OwnedFd::as_fd)
    }

    /// Makes the descriptor unreadable again.
    pub(crate) fn clear_wakeups(&self) {
        if let Some(wakeup) = &self.wakeup {
            let _ = rustix::io::read(wakeup, &mut [0_u8; 8]);
        }
    }
}
