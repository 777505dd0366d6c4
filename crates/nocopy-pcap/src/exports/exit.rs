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
pub(super) fn install_handlers() {
    static INSTALL: Once = Once::new();
    // SAFETY: the handlers are functions of this library, which stays loaded (`build.rs`).
    INSTALL.call_once(|| unsafe {
        libc::pthread_atfork(None, Some(in_parent), Some(in_child));
        libc::atexit(at_exit);
    });
}

unsafe extern "C" fn in_parent() {
    HAS_CHILD.store(true, Ordering::Relaxed);
}

unsafe extern "C" fn in_child() {
    HAS_CHILD.store(false, Ordering::Relaxed);
}

extern "C" fn at_exit() {
    if HAS_CHILD.load(Ordering::Relaxed) {
        return;
    }
    let mark = StackMark::new();
    let run = || table::for_each(mark.site(), |key, handle| handle.report_closed(key));
    // SAFETY: the handle is null.
    unsafe { guard::entry(null_mut(), (), run) };
}
