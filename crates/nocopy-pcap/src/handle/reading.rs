//! Calls that read: one at a time, and a handle that is closed meanwhile ends with the one that reads.

use std::cell::UnsafeCell;
use std::ops::ControlFlow;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use super::live::Reader;
use super::{Handle, Live};

/// A call reads.
///
/// A program that leaves such a call by longjmp(3) never gives this back: it can set filters, send and close, but not read again.
const CLAIMED: u8 = 1;

/// The handle was closed: whoever sets the second of the two does not end it, whoever finds both does.
const ABANDONED: u8 = 2;

/// What one call at a time has.
#[derive(Debug)]
pub(super) struct Exclusive<T> {
    state: AtomicU8,
    value: UnsafeCell<T>,
}

impl<T> Exclusive<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { state: AtomicU8::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes it, until it is given back.
    #[expect(clippy::mut_from_ref, reason = "there is one claim at a time")]
    pub(super) fn claim(&self) -> Option<&mut T> {
        // Acquire: pairs with the release in `give_back`.
        let is_free = self.state.fetch_or(CLAIMED, Ordering::Acquire) == 0;
        // SAFETY: there is one claim at a time, and nothing else reaches the value.
        is_free.then(|| unsafe { &mut *self.value.get() })
    }

    /// Gives it back. Breaks if it was abandoned meanwhile, and with it what it is part of is left to the caller.
    ///
    /// # Safety
    /// The caller has claimed it, and uses it no more.
    pub(super) unsafe fn give_back(&self) -> ControlFlow<()> {
        // Release: pairs with the acquire in `claim` and `abandon`; acquire: with the release in `abandon`.
        match self.state.fetch_and(!CLAIMED, Ordering::AcqRel) & ABANDONED {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }

    /// Says that it is to end. Breaks if somebody has it, who then is told by [`Self::give_back`].
    pub(super) fn abandon(&self) -> ControlFlow<()> {
        // As in `give_back`.
        match self.state.fetch_or(ABANDONED, Ordering::AcqRel) & CLAIMED {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
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
        let abandoned = unsafe {
            let handle = self.0.as_ref();
            let ended = handle.live().map(|live| live.end_reading());
            // Another thread may end the handle from here on, unless it was left to this one.
            ended.filter(ControlFlow::is_break).map(|_| handle.abandoned.load(Ordering::Relaxed))
        };
        if let Some(handle) = abandoned {
            // SAFETY: made of a box by `close`, which left it to this call, and read by nobody else.
            unsafe { Box::from_raw(handle) }.end();
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
        let reader = live.begin_reading()?;
        let _reading = Reading(handle);
        Some(read(live, reader))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_abandoned_is_left_to_one() {
        let free = Exclusive::new(7);
        assert!(free.abandon().is_continue() && free.claim().is_none());
        let claimed = Exclusive::new(7);
        assert!(claimed.claim().is_some() && claimed.claim().is_none());
        assert!(claimed.abandon().is_break());
        // SAFETY: claimed above, and not in use.
        assert!(unsafe { claimed.give_back() }.is_break());
        let returned = Exclusive::new(7);
        assert_eq!(returned.claim(), Some(&mut 7));
        // SAFETY: claimed above, and not in use.
        assert!(unsafe { returned.give_back() }.is_continue());
        assert!(returned.claim().is_some());
    }
}
