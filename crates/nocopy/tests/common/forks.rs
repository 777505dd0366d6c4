//! Forked children that do a part of a test.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The exit codes of a child whose work was done, and of a failed one.
const DONE: i32 = 7;
const FAILED: i32 = 8;

#[must_use = "it is waited for by `join`"]
pub(crate) struct ForkedChild(libc::pid_t);

impl ForkedChild {
    /// Starts a copy of this process, with this thread only, which does the work and ends.
    #[allow(unsafe_code)]
    pub(crate) fn start(work: impl FnOnce()) -> Self {
        // SAFETY: the child works with what this thread has made, and ends. (Other threads may hold the
        // allocator's locks, which the C library makes good.)
        match unsafe { libc::fork() } {
            0 => {
                let done = catch_unwind(AssertUnwindSafe(work));
                // SAFETY: nothing of this process is to be run in its place.
                unsafe { libc::_exit(if done.is_ok() { DONE } else { FAILED }) }
            }
            child => Self(child),
        }
    }

    #[allow(unsafe_code)]
    pub(crate) fn join(self) {
        let mut status = 0;
        loop {
            // SAFETY: `status` is a place for one.
            let ended = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
            let error = std::io::Error::last_os_error();
            if ended == self.0 {
                break;
            }
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{error}");
        }
        assert_eq!((status & 0x7f, status >> 8), (0, DONE), "the child's signal and its exit code");
    }
}
