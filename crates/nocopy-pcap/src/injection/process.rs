//! The program's exit, and its forks.
//!
//! Before a fork all batches are flushed, and their locks are held during it, so that the child gets a
//! consistent state. The child leaves the batches to its parent, and sends frames one by one until it has its
//! own socket. If a program ends by `exit` or by returning from `main`, its batches are flushed; if it ends
//! by `_exit`, `exec` or a signal, it may lose the frames of its last millisecond.

use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use super::lock::ForkSafeLock;
use super::{Injector, InjectorState, SENDING};
use crate::timed_wait::poll_within;

/// How long to wait for a lock. The thread that holds it may never run again, because the program exits, or
/// left the call by siglongjmp(3).
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

static INJECTORS: ForkSafeLock<Vec<RegisteredInjector>> = ForkSafeLock::new(Vec::new());

struct RegisteredInjector {
    injector: Weak<Injector>,
    /// The injector whose lock is held during a fork.
    held: Option<Arc<Injector>>,
}

impl RegisteredInjector {
    /// Takes its lock for the fork and sends the queued frames, if not done yet. Returns false while another
    /// thread has the lock.
    fn try_hold_for_fork(&mut self) -> bool {
        if self.held.is_some() {
            return true;
        }
        let Some(injector) = self.injector.upgrade() else { return true };
        let Some(mut state) = injector.state.try_lock() else { return false };
        std::mem::forget(state.flush_batch()); // a socket after an error: dropping it could wait
        std::mem::forget(state); // until `release_after_fork`
        self.held = Some(injector);
        true
    }
}

/// Whether the exit's flush is over. Batches that would begin now would not be flushed.
static EXITING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is forking and holds [`INJECTORS`].
    static FORKING: Cell<bool> = const { Cell::new(false) };
}

/// Errors: another thread does not release the list in time.
pub(super) fn register_injector(injector: &Arc<Injector>) -> io::Result<()> {
    static WATCH: Once = Once::new();
    // SAFETY: the handlers are functions of this library, which stays loaded (`build.rs`).
    WATCH.call_once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child));
        libc::atexit(flush_at_exit);
    });
    let mut injectors = INJECTORS.lock_within(lock_timeout()).ok_or(io::ErrorKind::ResourceBusy)?;
    injectors.retain(|registered| registered.injector.strong_count() > 0);
    injectors.push(RegisteredInjector { injector: Arc::downgrade(injector), held: None });
    Ok(())
}

pub(super) fn is_exiting() -> bool {
    // Relaxed: a thread that does not see it yet is flushed after it was set, under the lock.
    EXITING.load(Ordering::Relaxed)
}

extern "C" fn flush_at_exit() {
    EXITING.store(true, Ordering::Relaxed);
    let started = Instant::now();
    let Some(injectors) = INJECTORS.lock_within(lock_timeout()) else { return };
    // Never dropped: a program that exits inside of pcap_close must not close it here, too.
    let upgrade = |registered: &RegisteredInjector| registered.injector.upgrade().map(ManuallyDrop::new);
    let mut waiting: Vec<_> = injectors.iter().filter_map(upgrade).collect();
    poll_within(lock_timeout().saturating_sub(started.elapsed()), || {
        waiting.retain(|injector| {
            let Some(mut state) = injector.state.try_lock() else { return true };
            let sender = state.end_batches(Duration::MAX);
            drop(state);
            std::mem::forget(sender); // the kernel has the frames, and the process ends
            false
        });
        waiting.is_empty().then_some(())
    });
}

/// How long to wait for locks: not at all in a signal handler that interrupts a call of this thread, which
/// may hold it.
fn lock_timeout() -> Duration {
    if SENDING.get() { Duration::ZERO } else { LOCK_TIMEOUT }
}

/// Locks that do not become free in time stay as they are, in both processes.
unsafe extern "C" fn before_fork() {
    let started = Instant::now();
    if !INJECTORS.acquire_within(lock_timeout()) {
        return;
    }
    FORKING.set(true);
    // SAFETY: held above.
    let injectors = unsafe { INJECTORS.held_value() };
    // One time limit for all of them, however many of these locks are never released.
    poll_within(lock_timeout().saturating_sub(started.elapsed()), || {
        let missing = injectors
            .iter_mut()
            .map(RegisteredInjector::try_hold_for_fork)
            .filter(|is_held| !is_held)
            .count();
        (missing == 0).then_some(())
    });
}

unsafe extern "C" fn after_fork_in_parent() {
    release_after_fork(|_| {});
}

unsafe extern "C" fn after_fork_in_child() {
    release_after_fork(|state| state.end_batches_in_forked_child());
}

/// Releases what `before_fork` holds, after a last look at each state.
fn release_after_fork(visit: impl Fn(&mut InjectorState)) {
    if !FORKING.replace(false) {
        return;
    }
    // SAFETY: `before_fork` holds all of these locks for this thread.
    unsafe {
        for registered in INJECTORS.held_value() {
            if let Some(injector) = registered.held.take() {
                visit(injector.state.held_value());
                injector.state.release();
            }
        }
        // Last: a fork of another thread would take locks in `held` for its own.
        INJECTORS.release();
    }
}
