//! Telling a forked child from its parent.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often this process's line of ancestors forked. Written by the child alone, before it goes on; nothing else depends on it.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A generation of processes. What was made in an earlier one is the parent's: its sockets are the same ones, its memory is a copy, or
/// is not there (`MADV_DONTFORK`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(u32);

impl Generation {
    /// This process's.
    pub(crate) fn current() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler only stores a number; the C library forgets it when it unloads what it lies in.
            let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            assert_eq!(result, 0, "no memory to remember forks");
        });
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this process is of a later one.
    #[inline]
    pub(crate) fn is_past(self) -> bool {
        self.0 != GENERATION.load(Ordering::Relaxed)
    }
}

unsafe extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
