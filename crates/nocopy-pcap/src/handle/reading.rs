//! Calls that read: one at a time, and a handle that is closed meanwhile ends with the one that reads.
//!
//! A program may leave such a call by longjmp(3): from its callback, or from a signal handler while the call waits. Such a call never
//! says that it is over, so the next one finds out by its own place on the stack ([`Place`]). Where the place proves nothing, because the
//! thread has several stacks (coroutines, `sigaltstack`), the call before is taken to go on.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ops::{ControlFlow, Range};
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::live::Reader;
use super::{Handle, Live};

/// No call reads, and the handle is open.
const FREE: usize = 0;

/// The handle was closed: added to the address of the call that reads, if there is one. Of that call and the one that closes, the one
/// that comes second ends the handle.
const ABANDONED: usize = 1;

/// In place of a thread: none has noted itself.
const NONE: usize = 0;

/// Where a call is: its thread, and the lower end of its footing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    thread: usize,
    address: usize,
}

impl Place {
    /// Whether this place proves that a call of the same thread is over; `footing` is the lower end of that call's footing.
    fn shows_end_of(self, footing: usize) -> bool {
        if self.address + Footing::BYTES <= footing {
            return false; // deeper in the same stack, or anywhere in another one
        }
        // On any stack: where two footings overlap, the earlier call is over. On the thread's own stack, which grows downward on all
        // processors that Linux has XDP for: code above a call runs only after that call is over.
        self.address < footing + Footing::BYTES
            || own_stack().is_some_and(|stack| stack.contains(&footing) && stack.contains(&self.address))
    }
}

/// The stack that this thread was started with. `None` if a signal handler runs on another one, or if it is not known: the C library
/// finds that of a program's first thread in /proc.
#[cold]
fn own_stack() -> Option<Range<usize>> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut start, mut bytes) = (null_mut(), 0);
    // SAFETY: all-zero is a valid `stack_t`.
    let mut signal_stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are to values of these types; the attributes are read where they were written, and given back once.
    unsafe {
        // The signal stack may be a variable of a function, and so lie within the thread's own stack.
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

/// What a call that reads or closes keeps on its stack. All that it calls lies below, if it is on the same one. A call that is made after
/// the program left it, from where the program had called it, lies above its lower end, whatever that takes of the stack before it notes
/// its [`Place`].
#[derive(Debug)]
#[repr(align(16))]
pub(crate) struct Footing(MaybeUninit<[u8; Self::BYTES]>);

impl Footing {
    /// More than lies between the program and the place of any call.
    const BYTES: usize = 2048;

    /// To be left where it is, on the stack.
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

/// What one call at a time has.
#[derive(Debug)]
pub(super) struct Exclusive<T> {
    /// [`FREE`], or the lower end of the reading call's footing; and [`ABANDONED`].
    state: AtomicUsize,
    /// The thread of that call, noted after it began and before it ends: read by another thread it is never that one's own.
    thread: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one claim at a time.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { state: AtomicUsize::new(FREE), thread: AtomicUsize::new(NONE), value: UnsafeCell::new(value) }
    }

    /// Takes it, until it is given back. Also from a call that the program has left: what that was doing is over.
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
        // SAFETY: there is one claim at a time, and nothing else reaches the value.
        Some(unsafe { &mut *self.value.get() })
    }

    /// Whether the call that set the state `found` was left, as far as the place of another call proves it.
    fn was_left(&self, found: usize, from: Place) -> bool {
        self.thread.load(Ordering::Relaxed) == from.thread && from.shows_end_of(found & !ABANDONED)
    }

    /// Whether a call reads and was not left, as far as the place of another call proves it.
    pub(super) fn is_in_use(&self, from: Place) -> bool {
        let found = self.state.load(Ordering::Relaxed);
        found & !ABANDONED != FREE && !self.was_left(found, from)
    }

    /// Gives it back. Breaks if it was abandoned meanwhile, and with it what it is part of is left to the caller.
    ///
    /// # Safety
    /// The caller has claimed it, and uses it no more.
    pub(super) unsafe fn give_back(&self) -> ControlFlow<()> {
        self.thread.store(NONE, Ordering::Relaxed);
        // Release: pairs with the acquire in `claim` and `abandon`; acquire: with the release in `abandon`.
        match self.state.fetch_and(ABANDONED, Ordering::AcqRel) & ABANDONED {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }

    /// Says that it is to end. Breaks if a call has it, which then is told by [`Self::give_back`].
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

/// The right to read, given back when dropped: also by a panic.
struct Reading(NonNull<Handle>);

impl Drop for Reading {
    fn drop(&mut self) {
        // SAFETY: while a call reads its handle stays; what that call had is gone, because it is over.
        let ended = unsafe { self.0.as_ref().live().map(|live| live.end_reading()) };
        if ended.is_some_and(|ended| ended.is_break()) {
            // SAFETY: it was closed, and left to this call; nothing else has it any more.
            unsafe { Handle::end(self.0) };
        }
    }
}

impl Handle {
    /// Reads with a handle that is live, or fails, with a text, if another call reads.
    ///
    /// # Safety
    /// The handle is open. It may be closed meanwhile: afterwards nothing of it may be touched.
    pub(crate) unsafe fn read<R>(
        handle: NonNull<Self>,
        read: impl FnOnce(&Live, &mut Reader) -> R,
    ) -> Option<R> {
        // SAFETY: by contract.
        let live = unsafe { handle.as_ref() }.live()?;
        let footing = Footing::new();
        let reader = live.begin_reading(&footing)?;
        let _reading = Reading(handle);
        Some(read(live, reader))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is called by a call that reads.
    #[inline(never)]
    fn below<R>(run: impl FnOnce(&Footing) -> R) -> R {
        run(black_box(&Footing::new()))
    }

    #[test]
    fn what_is_abandoned_is_left_to_one() {
        let footing = Footing::new();
        let claim = |value: &Exclusive<i32>| value.claim(&footing).copied();
        let claim_below = |value: &Exclusive<i32>| below(|footing| value.claim(footing).copied());
        let abandon_below = |value: &Exclusive<i32>| below(|footing| value.abandon(footing.place()));
        let free = Exclusive::new(7);
        assert!(abandon_below(&free).is_continue() && claim(&free).is_none());
        let claimed = Exclusive::new(7);
        assert!(claim(&claimed).is_some() && claim_below(&claimed).is_none());
        assert!(abandon_below(&claimed).is_break());
        // SAFETY: claimed above, and not in use.
        assert!(unsafe { claimed.give_back() }.is_break());
        let returned = Exclusive::new(7);
        assert_eq!(claim(&returned), Some(7));
        // SAFETY: claimed above, and not in use.
        assert!(unsafe { returned.give_back() }.is_continue());
        assert!(claim(&returned).is_some());
    }

    #[test]
    fn what_a_call_had_that_was_left_is_the_next_ones() {
        let claim_and_leave = |value: &Exclusive<i32>| {
            assert!(below(|footing| value.claim(footing).is_some()));
        };
        let read_again = Exclusive::new(7);
        claim_and_leave(&read_again);
        assert!(!read_again.is_in_use(Footing::new().place()));
        assert!(below(|footing| read_again.claim(footing).is_some()), "from where it was called before");
        assert!(read_again.claim(&Footing::new()).is_some(), "from above");
        let closed = Exclusive::new(7);
        claim_and_leave(&closed);
        assert!(closed.abandon(Footing::new().place()).is_continue());
        // It is not known where another thread's call is.
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
