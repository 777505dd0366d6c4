//! The right to read a handle, which one call at a time has. A handle that is closed during such a call is freed when the call returns.
//!
//! A program may leave a reading call by longjmp(3), from its callback or from a signal handler that interrupts the wait. Nothing reports
//! that, so the next call has to find out whether the previous one is over. It compares their positions on the stack ([`Place`]): a call at
//! the same position as an earlier one, or above it, shows that the earlier one is over. If the positions prove nothing, because the thread
//! has several stacks (coroutines, `sigaltstack`), the earlier call counts as still running.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ops::{ControlFlow, Range};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

/// State: no call reads, and the handle is open.
const FREE: usize = 0;

/// State bit: the handle was closed. Combined with the address of the reading call, if there is one. The closing call and the reading
/// call both check for the other one; whichever finishes second frees the handle.
const ABANDONED: usize = 1;

/// Instead of a thread: no thread is recorded.
const NONE: usize = 0;

/// Where a call runs: its thread, and the lowest address of its [`Footing`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    thread: usize,
    address: usize,
}

impl Place {
    /// Whether this place proves that an earlier call of the same thread is over; `footing` is the lowest address of that call's footing.
    fn shows_end_of(self, footing: usize) -> bool {
        if self.address + Footing::BYTES <= footing {
            return false; // further down the same stack, or on another one
        }
        // Two footings that overlap, on any stack: the earlier call is over. On the thread's own stack a call further up is enough, because
        // that stack grows downward (on all processors that Linux supports XDP on): code above a call runs only after that call is over.
        self.address < footing + Footing::BYTES
            || own_stack().is_some_and(|stack| stack.contains(&footing) && stack.contains(&self.address))
    }
}

/// The stack that this thread was started with. `None` if the caller is a signal handler on a separate stack, or if the C library cannot
/// find it out (for the main thread it reads /proc).
#[cold]
fn own_stack() -> Option<Range<usize>> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut start, mut bytes) = (null_mut(), 0);
    // SAFETY: all-zero is a valid `stack_t`.
    let mut signal_stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are to values of these types; the attributes are read where they were written, and given back once.
    unsafe {
        // The memory of a signal stack may be a local variable, and so lie inside the thread's own stack.
        let is_known = libc::sigaltstack(null(), &raw mut signal_stack) == 0;
        if !is_known || signal_stack.ss_flags & libc::SS_ONSTACK != 0 {
            return None;
        }
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let result = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut start, &raw mut bytes);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (result == 0).then(|| start.addr()..start.addr() + bytes)
    }
}

/// A block of stack memory that marks the position of a call that reads or closes. Functions that the call itself calls lie below the
/// block if they run on the same stack. If the program left the call by longjmp and then calls again from the same function, the block
/// of the new call overlaps this one or lies above it: the block is larger than the stack frames between the program and any such call.
#[derive(Debug)]
#[repr(align(16))]
pub(crate) struct Footing(MaybeUninit<[u8; Self::BYTES]>);

impl Footing {
    /// More than the stack frames between the program and any footing.
    const BYTES: usize = 2048;

    /// Must stay in the local variable in which it is created, because its address is compared.
    pub(crate) const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    #[inline]
    fn lower_end(&self) -> usize {
        black_box(&raw const self.0).addr()
    }

    #[inline]
    pub(crate) fn place(&self) -> Place {
        // SAFETY: takes nothing, and always succeeds.
        Place { thread: unsafe { libc::pthread_self() } as usize, address: self.lower_end() }
    }
}

/// A value that one call at a time may use.
#[derive(Debug)]
pub(super) struct Exclusive<T> {
    /// [`FREE`], or the lowest address of the reading call's footing; combined with [`ABANDONED`].
    state: AtomicUsize,
    /// The thread of that call, stored after it claimed the value and cleared before it returns it. So if a thread reads its own number
    /// here, one of its own calls claimed the value and did not return it.
    thread: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: only the call with the claim uses the value, and one call has it at a time.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { state: AtomicUsize::new(FREE), thread: AtomicUsize::new(NONE), value: UnsafeCell::new(value) }
    }

    /// Claims the value until [`Self::give_back`]. Returns `None` if another call has it, unless the program has provably left that call.
    #[expect(clippy::mut_from_ref, reason = "there is one claim at a time")]
    pub(super) fn claim(&self, footing: &Footing) -> Option<&mut T> {
        // Acquire: pairs with the release in `give_back`.
        let take = |from| {
            self.state.compare_exchange(from, footing.lower_end(), Ordering::Acquire, Ordering::Relaxed)
        };
        let place = footing.place();
        match take(FREE) {
            Ok(_) => self.thread.store(place.thread, Ordering::Relaxed),
            Err(found) if found & ABANDONED == 0 && self.was_left(found, place) => _ = take(found).ok()?,
            Err(_) => return None,
        }
        // SAFETY: one call has the claim at a time, and nothing else uses the value.
        Some(unsafe { &mut *self.value.get() })
    }

    /// Whether the place of the calling function proves that the call which set the state `found` was left.
    fn was_left(&self, found: usize, from: Place) -> bool {
        self.thread.load(Ordering::Relaxed) == from.thread && from.shows_end_of(found & !ABANDONED)
    }

    /// Whether a call reads. A call counts as reading unless the place `from` proves that it was left.
    pub(super) fn is_in_use(&self, from: Place) -> bool {
        let found = self.state.load(Ordering::Relaxed);
        found & !ABANDONED != FREE && !self.was_left(found, from)
    }

    /// Returns the claim. `Break` if the handle was closed during the claim: then the caller has to free it.
    ///
    /// # Safety
    /// The caller has the claim and no longer uses the value.
    pub(super) unsafe fn give_back(&self) -> ControlFlow<()> {
        self.thread.store(NONE, Ordering::Relaxed);
        // Release: pairs with the acquire in `claim` and `abandon`; acquire: with the release in `abandon`.
        match self.state.fetch_and(ABANDONED, Ordering::AcqRel) & ABANDONED {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }

    /// Marks the handle as closed. `Continue` if the caller may free it; `Break` if a call still reads, and frees it after
    /// [`Self::give_back`].
    pub(super) fn abandon(&self, from: Place) -> ControlFlow<()> {
        // As in `give_back`.
        let found = self.state.fetch_or(ABANDONED, Ordering::AcqRel);
        if found == FREE || self.was_left(found, from) {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    pub(super) fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs something further down the stack, as a function that a reading call calls.
    #[inline(never)]
    fn below<R>(run: impl FnOnce(&Footing) -> R) -> R {
        run(black_box(&Footing::new()))
    }

    #[test]
    fn closing_and_reading_calls_free_a_handle_once() {
        let footing = Footing::new();
        let claim = |value: &Exclusive<i32>| value.claim(&footing).copied();
        let claim_below = |value: &Exclusive<i32>| below(|footing| value.claim(footing).copied());
        let abandon_below = |value: &Exclusive<i32>| below(|footing| value.abandon(footing.place()));
        let free = Exclusive::new(7);
        assert!(abandon_below(&free).is_continue() && claim(&free).is_none());
        let claimed = Exclusive::new(7);
        assert!(claim(&claimed).is_some() && claim_below(&claimed).is_none());
        assert!(abandon_below(&claimed).is_break());
        // SAFETY: claimed above, and the value is not in use.
        assert!(unsafe { claimed.give_back() }.is_break());
        let returned = Exclusive::new(7);
        assert_eq!(claim(&returned), Some(7));
        // SAFETY: claimed above, and the value is not in use.
        assert!(unsafe { returned.give_back() }.is_continue());
        assert!(claim(&returned).is_some());
    }

    #[test]
    fn a_call_left_by_longjmp_does_not_block_the_next() {
        let claim_and_leave = |value: &Exclusive<i32>| {
            assert!(below(|footing| value.claim(footing).is_some()));
        };
        let read_again = Exclusive::new(7);
        claim_and_leave(&read_again);
        assert!(!read_again.is_in_use(Footing::new().place()));
        assert!(below(|footing| read_again.claim(footing).is_some()), "called from the same function again");
        assert!(read_again.claim(&Footing::new()).is_some(), "called from further up the stack");
        let closed = Exclusive::new(7);
        claim_and_leave(&closed);
        assert!(closed.abandon(Footing::new().place()).is_continue());
        // The position of another thread's call proves nothing.
        let elsewhere = Exclusive::new(7);
        claim_and_leave(&elsewhere);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(
                    elsewhere.is_in_use(Footing::new().place()) && elsewhere.claim(&Footing::new()).is_none()
                );
                assert!(elsewhere.abandon(Footing::new().place()).is_break());
            });
        });
    }
}
