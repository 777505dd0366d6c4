//! Waits for other threads that end in any case: a thread may have left what it held, by siglongjmp(3), or
//! not exist in the child of a fork.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Attempts without sleeping: most holders are done within a system call.
const YIELDS_MAX: u32 = 64;
const SLEEP: Duration = Duration::from_micros(50);

/// Repeats `poll` until it returns a value or the timeout is over.
pub(crate) fn poll_within<R>(timeout: Duration, mut poll: impl FnMut() -> Option<R>) -> Option<R> {
    let started = Instant::now();
    for polls in 0_u64.. {
        if let Some(found) = poll() {
            return Some(found);
        }
        if started.elapsed() >= timeout {
            #[cfg(test)]
            TIMED_OUT.set(TIMED_OUT.get() + 1);
            return None;
        }
        // A holder of lower priority would never run if all we did was to yield.
        if polls < YIELDS_MAX.into() { std::thread::yield_now() } else { std::thread::sleep(SLEEP) }
    }
    None
}

#[cfg(test)]
thread_local! {
    /// How often a wait of this thread ended by its timeout.
    pub(crate) static TIMED_OUT: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Takes the lock, if it is released in time.
pub(crate) fn lock_within<T>(mutex: &Mutex<T>, timeout: Duration) -> Option<MutexGuard<'_, T>> {
    poll_within(timeout, || try_lock(mutex))
}

/// Takes the lock, if it is free.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
