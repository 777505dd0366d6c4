//! A lock that can be held during a fork: taken before it, and released in both processes.
//!
//! It is held during a copy into a frame, or one system call. Contention comes only from the flusher, or a
//! program that sends on two threads, so a thread that finds the lock taken yields and tries again.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::timed_wait::poll_within;

pub(super) struct ForkSafeLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time, through a guard or `&mut`.
unsafe impl<T: Send> Sync for ForkSafeLock<T> {}

impl<T> ForkSafeLock<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[cfg(test)]
    pub(super) fn lock(&self) -> LockGuard<'_, T> {
        self.wait_for_lock(Duration::MAX).expect("waits for ever")
    }

    #[inline]
    pub(super) fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        // Acquire: pairs with the release of the previous holder.
        (!self.held.swap(true, Ordering::Acquire)).then(|| LockGuard(self))
    }

    /// Takes the lock, for callers that can continue without it.
    pub(super) fn lock_within(&self, timeout: Duration) -> Option<LockGuard<'_, T>> {
        self.try_lock().or_else(|| self.wait_for_lock(timeout))
    }

    #[cold]
    fn wait_for_lock(&self, timeout: Duration) -> Option<LockGuard<'_, T>> {
        poll_within(timeout, || self.try_lock())
    }

    /// Takes the lock until [`ForkSafeLock::release`], if it becomes free in time.
    pub(super) fn acquire_within(&self, timeout: Duration) -> bool {
        self.lock_within(timeout).map(std::mem::forget).is_some()
    }

    /// Ends [`ForkSafeLock::acquire_within`].
    ///
    /// # Safety
    /// This thread, or the thread that it was before a fork, holds it, and has no guard of it.
    pub(super) unsafe fn release(&self) {
        // Release: pairs with the acquire of the next holder.
        self.held.store(false, Ordering::Release);
    }

    /// The value, held by [`ForkSafeLock::acquire_within`].
    ///
    /// # Safety
    /// As [`ForkSafeLock::release`]; and the returned reference is not used after that call.
    #[expect(clippy::mut_from_ref, reason = "what a guard does, for those who cannot keep one")]
    pub(super) unsafe fn held_value(&self) -> &mut T {
        // SAFETY: held by the caller alone.
        unsafe { &mut *self.value.get() }
    }

    pub(super) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

pub(super) struct LockGuard<'a, T>(&'a ForkSafeLock<T>);

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the acquire in `try_lock`.
        self.0.held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_thread_at_a_time_has_the_lock() {
        const ROUNDS: u64 = 20_000;
        let lock = ForkSafeLock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..ROUNDS).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 3 * ROUNDS);
        assert!(lock.acquire_within(Duration::ZERO) && !lock.acquire_within(Duration::ZERO));
        // SAFETY: held above.
        unsafe { lock.release() };
        assert!(lock.lock_within(Duration::ZERO).is_some());
    }
}
