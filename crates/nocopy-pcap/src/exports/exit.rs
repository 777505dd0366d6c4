//! The end of the program by `exit` or from `main`: handles that it has not closed are reported, as many
//! programs leave that to the kernel.

use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::guard;
use crate::handle::StackMark;
use crate::table;

/// Whether a child of this process may go on with its handles: then their counters, which reading resets, are
/// left for it.
static HAS_CHILD: AtomicBool = AtomicBool::new(false);

/// Once there is a handle.
pub(super) fn install_exit_handlers() {
    static INSTALL: Once = Once::new();
    // SAFETY: the handlers are functions of this library, which stays loaded (`build.rs`).
    INSTALL.call_once(|| unsafe {
        libc::pthread_atfork(None, Some(after_fork_in_parent), Some(after_fork_in_child));
        libc::atexit(report_handles_at_exit);
    });
}

unsafe extern "C" fn after_fork_in_parent() {
    HAS_CHILD.store(true, Ordering::Relaxed);
}

unsafe extern "C" fn after_fork_in_child() {
    HAS_CHILD.store(false, Ordering::Relaxed);
}

extern "C" fn report_handles_at_exit() {
    if HAS_CHILD.load(Ordering::Relaxed) {
        return;
    }
    let mark = StackMark::new();
    let run = || table::for_each_handle(mark.position(), |key, handle| handle.report_closed(key));
    // SAFETY: the handle is null.
    unsafe { guard::run_entry_point(null_mut(), (), run) };
}
