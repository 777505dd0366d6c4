//! Signals that a thread does not take.

use std::mem::MaybeUninit;
use std::ptr;

/// Signals are blocked for this thread, and for threads that it starts; dropping puts back what was blocked
/// before, also while unwinding.
pub(crate) struct SignalBlockGuard {
    before: libc::sigset_t,
}

impl SignalBlockGuard {
    /// Blocks the signals of `set` in addition to those already blocked.
    pub(super) fn block_also(set: &libc::sigset_t) -> Self {
        let mut before = empty_signal_set();
        // SAFETY: both sets outlive the call, which fails for no valid first argument.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, &raw mut before) };
        Self { before }
    }
}

impl Drop for SignalBlockGuard {
    fn drop(&mut self) {
        // SAFETY: the set is what the kernel gave, and outlives the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

pub(super) fn empty_signal_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `set` outlives the call; all zeroes are a value of it, whatever the call does.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}
