//! Telling the child of a fork from the process that opened a capture.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often this process's line of ancestors forked. Written by the child alone, before it goes on; nothing else depends on it.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A generation of processes: whatever was made in an earlier one is shared with the parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(u32);

/// This process's.
pub(crate) fn generation() -> Generation {
    static WATCH: Once = Once::new();
    // SAFETY: the handler is a function of this library, which is never unloaded once it has handles; it stores a number.
    WATCH.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
    Generation(GENERATION.load(Ordering::Relaxed))
}

unsafe extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
