//! A value of the program that keeps memory.
#![allow(unsafe_code)]

use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// A value of the program, which is dropped with this.
///
/// A pointer to a leaked box, because moving a box would claim exclusive access to the bytes in it.
#[derive(Debug)]
pub(super) struct Owner(NonNull<Kept<dyn Any + Send>>);

struct Kept<T: ?Sized> {
    /// Of memory that is not Rust's, in bytes.
    capacity: usize,
    value: T,
}

// SAFETY: the value is `Send`.
unsafe impl Send for Owner {}
// SAFETY: a shared owner gives access only to values that are `Sync` (`downcast_ref`).
unsafe impl Sync for Owner {}

impl Owner {
    /// The pointer to the value is valid as long as the owner.
    pub(super) fn new<T: Send + 'static>(value: T) -> (Self, NonNull<T>) {
        let kept = NonNull::from(Box::leak(Box::new(Kept { capacity: 0, value })));
        // SAFETY: the box exists, and nothing else uses it yet; no reference is made.
        let value = unsafe { NonNull::new_unchecked(&raw mut (*kept.as_ptr()).value) };
        (Self(kept), value)
    }

    /// The owner of memory that is not Rust's, of `capacity` bytes.
    pub(super) fn of_raw(value: impl Send + 'static, capacity: usize) -> Self {
        Self(NonNull::from(Box::leak(Box::new(Kept { capacity, value }))))
    }

    /// The bytes that [`of_raw`](Self::of_raw) was given.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        // SAFETY: the box exists as long as this, and the number never changes.
        unsafe { (*self.0.as_ptr()).capacity }
    }

    /// Whether the value is of that type.
    pub(super) fn is<T: 'static>(&self) -> bool {
        // SAFETY: the value exists as long as this; only its type is read, which any thread may do.
        unsafe { self.0.as_ref() }.value.is::<T>()
    }

    pub(super) fn downcast_ref<T: Sync + 'static>(&self) -> Option<&T> {
        // SAFETY: the value exists as long as this, is a `T` if this returns one, and any thread may read it.
        unsafe { self.0.as_ref() }.value.downcast_ref()
    }

    /// Returns the value. Panics if it is of another type.
    pub(super) fn into_value<T: 'static>(self) -> T {
        assert!(self.is::<T>(), "a value of another type");
        let owner = ManuallyDrop::new(self);
        // SAFETY: the pointer came from a box (`new`) of a `T`, and `owner` is not dropped.
        unsafe { Box::from_raw(owner.0.as_ptr().cast::<Kept<T>>()) }.value
    }
}

impl Drop for Owner {
    /// Catches a panic of the value's `Drop`: buffers are dropped in loops over completions, and an unwound
    /// loop would lose other buffers of the same completion, or drop memory that the kernel still reads.
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box (`new`), and there is no other owner.
        let value = unsafe { Box::from_raw(self.0.as_ptr()) };
        // Dropping the panic's own value may panic, too.
        catch_unwind(AssertUnwindSafe(|| drop(value))).unwrap_or_else(std::mem::forget);
    }
}
