//! The program's exit, and its forks.
//!
//! Before a fork all batches are flushed, and their locks are held over it, so that the child finds them whole. It leaves them to
//! its parent, and sends singly until it has a socket of its own. A program that ends by `exit` or by returning from `main` is flushed at its
//! exit; one that ends by `_exit`, `exec` or a signal may take the frames of its last millisecond with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use super::lock::Lock;
use super::{Injector, SENDING};

/// A thread that holds a lock while the program exits may never run again.
pub(super) const EXIT_PATIENCE: Duration = Duration::from_secs(1);

static INJECTORS: Lock<Vec<Weak<Injector>>> = Lock::new(Vec::new());

/// Whether the exit's flush is over. Batches that would begin now would not be flushed.
static EXITING: AtomicBool = AtomicBool::new(false);

pub(super) fn register(injector: &Arc<Injector>) {
    static WATCH: Once = Once::new();
    // SAFETY: the handlers are functions of this library, which stays loaded (`build.rs`).
    WATCH.call_once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child));
        libc::atexit(at_exit);
    });
    let mut injectors = INJECTORS.lock();
    injectors.retain(|injector| injector.strong_count() > 0);
    injectors.push(Arc::downgrade(injector));
}

pub(super) fn is_exiting() -> bool {
    // Relaxed: who does not see it yet is flushed after it was set, under the lock.
    EXITING.load(Ordering::Relaxed)
}

extern "C" fn at_exit() {
    EXITING.store(true, Ordering::Relaxed);
    let Some(injectors) = INJECTORS.lock_within(EXIT_PATIENCE) else { return };
    for injector in injectors.iter().filter_map(Weak::upgrade) {
        if let Some(mut state) = injector.state.lock_within(EXIT_PATIENCE) {
            let sender = state.give_up(Duration::MAX);
            drop(state);
            std::mem::forget(sender); // the kernel has the frames, and the process ends
        }
        // Whoever exits inside of pcap_close must not close it here, too.
        std::mem::forget(injector);
    }
}

unsafe extern "C" fn before_fork() {
    // A signal handler that forks while this very thread sends: the locks are taken, and stay so.
    if SENDING.get() {
        return;
    }
    INJECTORS.hold();
    // SAFETY: held above.
    for injector in unsafe { INJECTORS.held() }.iter().filter_map(Weak::upgrade) {
        injector.state.hold();
        // SAFETY: held above.
        let given_up = unsafe { injector.state.held() }.flush();
        std::mem::forget(given_up); // after an error; dropping it could wait
        std::mem::forget(injector); // until after the fork
    }
}

unsafe extern "C" fn after_fork() {
    if SENDING.get() {
        return;
    }
    // SAFETY: `before_fork` holds all of these locks for this thread.
    unsafe {
        for injector in INJECTORS.held().iter() {
            let_go(injector);
        }
        INJECTORS.let_go();
    }
}

unsafe extern "C" fn in_child() {
    if SENDING.get() {
        return;
    }
    // SAFETY: as in `after_fork`.
    unsafe {
        for injector in INJECTORS.held().iter() {
            if let Some(injector) = injector.upgrade() {
                injector.state.held().leave();
            }
            let_go(injector);
        }
        INJECTORS.let_go();
    }
}

/// Lets go of an injector that `before_fork` holds, and of its share in it.
///
/// # Safety
/// It does, in this process.
unsafe fn let_go(injector: &Weak<Injector>) {
    let Some(injector) = injector.upgrade() else { return };
    // SAFETY: by contract: the lock is held, and a share was kept by `before_fork`.
    unsafe {
        injector.state.let_go();
        Arc::decrement_strong_count(Arc::as_ptr(&injector));
    }
}
