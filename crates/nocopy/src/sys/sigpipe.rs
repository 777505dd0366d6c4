//! Calls that raise `SIGPIPE`, made without raising it.
//!
//! splice(2) and sendfile(2) to a closed stream raise the signal as write(2) does, and unlike send(2) they
//! have no flag against that. Rust and Python programs ignore the signal. A C program does not, and a library
//! must neither end it nor change how its process handles signals.

use std::mem::MaybeUninit;
use std::ptr;

use super::signals::{SignalBlockGuard, empty_signal_set};

/// Makes a call that may raise `SIGPIPE` for this thread.
///
/// If the process does not ignore the signal, this thread blocks it during the call and removes what the call
/// raised (also after a call that moved something, because a later part of it may have failed). A `SIGPIPE`
/// that another process sends in that very moment may be removed, too.
pub(super) fn without_sigpipe<R>(call: impl FnOnce() -> R) -> R {
    if is_sigpipe_ignored() {
        return call();
    }
    // A signal pending before was blocked by the caller, who will handle it; a second one could not be
    // distinguished from it.
    let was_pending = is_sigpipe_pending();
    let _mask = SignalBlockGuard::block_also(&sigpipe_set());
    let result = call();
    if !was_pending {
        take_pending_sigpipe();
    }
    result
}

fn is_sigpipe_ignored() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is set; the kernel writes to `action`, which outlives the call and for which all zeroes
    // are a value.
    let action = unsafe {
        let asked = libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr());
        assert!(asked == 0, "SIGPIPE is a signal");
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

fn is_sigpipe_pending() -> bool {
    let mut pending = empty_signal_set();
    // SAFETY: the kernel writes to `pending`, which outlives the call, and is then read.
    unsafe {
        libc::sigpending(&raw mut pending) == 0 && libc::sigismember(&raw const pending, libc::SIGPIPE) == 1
    }
}

fn take_pending_sigpipe() {
    let (only, now) = (sigpipe_set(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: set and time outlive the call. If no signal is pending, that does not matter.
    unsafe { libc::sigtimedwait(&raw const only, ptr::null_mut(), &raw const now) };
}

fn sigpipe_set() -> libc::sigset_t {
    let mut set = empty_signal_set();
    // SAFETY: `set` is initialised and outlives the call.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGPIPE) };
    set
}
