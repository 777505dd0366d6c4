//! The atomics and cells that rings and return lists are built from: the machine's, or loom's under `--cfg
//! nocopy_loom`. (Not `cfg(loom)`, which would apply to every dependency.)
#![allow(unsafe_code)]

#[cfg(all(not(nocopy_loom), feature = "port"))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(nocopy_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// One slot of a ring, written by one end and read by the other, never by both at once.
#[repr(transparent)]
#[cfg(feature = "port")]
pub(crate) struct Slot<T>(
    #[cfg(not(nocopy_loom))] std::cell::UnsafeCell<T>,
    #[cfg(nocopy_loom)] loom::cell::UnsafeCell<T>,
);

#[cfg(all(not(nocopy_loom), feature = "port"))]
impl<T: Copy> Slot<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Copies the entry out once; volatile, because a misbehaving kernel may still write it, and the copy
    /// that was checked must be the copy that is used.
    ///
    /// # Safety
    /// The slot must be the reader's.
    #[inline]
    pub(crate) unsafe fn read(&self) -> T {
        // SAFETY: the caller owns the slot; the pointer comes from a reference.
        unsafe { self.0.get().read_volatile() }
    }

    /// # Safety
    /// The slot must be the writer's.
    #[inline]
    pub(crate) unsafe fn write(&self, value: T) {
        // SAFETY: the caller owns the slot; the pointer comes from a reference.
        unsafe { self.0.get().write(value) }
    }
}

#[cfg(nocopy_loom)]
impl<T: Copy> Slot<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }

    pub(crate) unsafe fn read(&self) -> T {
        // SAFETY: the caller owns the slot, and loom checks that it does.
        self.0.with(|slot| unsafe { *slot })
    }

    pub(crate) unsafe fn write(&self, value: T) {
        // SAFETY: as above.
        self.0.with_mut(|slot| unsafe { *slot = value });
    }
}
