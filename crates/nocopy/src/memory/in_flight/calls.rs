//! Zero-copy calls by number, until the kernel completes them.
//!
//! The kernel may number a `MSG_ZEROCOPY` call that fails. For example, with UDP segmentation after the MTU was lowered, the packet is
//! made, found too long, and its completion reported, although `sendmsg` returns `EINVAL`. So after any failure the error queue is read
//! before the next call, and the data of the failed call is held until it is known whether it has a number. Calls of io_uring carry their
//! number; one that returns an error is repeated as an ordinary call.

use std::collections::VecDeque;
use std::ops::Range;

/// Calls by number, as both sides count them. Completions may come in any order, and for several calls at once.
#[derive(Debug)]
pub(super) struct Calls<C> {
    first: u64,
    calls: VecDeque<Option<C>>,
    open: usize,
}

impl<C> Default for Calls<C> {
    fn default() -> Self {
        Self { first: 0, calls: VecDeque::new(), open: 0 }
    }
}

impl<C> Calls<C> {
    /// No calls; the first gets the number `first`.
    pub(super) fn starting_at(first: u64) -> Self {
        Self { first, ..Self::default() }
    }

    pub(super) fn push(&mut self, call: C) -> u64 {
        self.calls.push_back(Some(call));
        self.open += 1;
        self.first + self.calls.len() as u64 - 1
    }

    /// Takes call `number`; `None` if there is none, or it is finished already, because the kernel's number is not trusted.
    pub(super) fn take(&mut self, number: u64) -> Option<C> {
        let place = number.checked_sub(self.first)?;
        let call = self.calls.get_mut(usize::try_from(place).ok()?)?.take()?;
        self.open -= 1;
        self.forget_front();
        Some(call)
    }

    /// Skips a number that the kernel gave to a finished call.
    pub(super) fn skip(&mut self) {
        self.calls.push_back(None);
        self.forget_front();
    }

    fn forget_front(&mut self) {
        while let Some(None) = self.calls.front() {
            self.calls.pop_front();
            self.first += 1;
        }
    }

    /// The full number for the kernel's 32-bit `low`: the one nearest to the open calls, possibly below them.
    pub(super) fn number(&self, low: u32) -> i64 {
        let away = low.wrapping_sub(self.first as u32).cast_signed();
        self.first.cast_signed() + i64::from(away)
    }

    /// The part of a range that may be open.
    pub(super) fn among(&self, range: &Range<i64>) -> Range<u64> {
        let within = |number: i64| u64::try_from(number).unwrap_or(0).clamp(self.first, self.end());
        within(range.start)..within(range.end)
    }

    /// How many are not finished.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// The number after the last call.
    pub(super) fn end(&self) -> u64 {
        self.first + self.calls.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_come_in_any_order_and_only_once() {
        let mut calls = Calls::default();
        (0..3).for_each(|number| assert_eq!(calls.push(number), number));
        assert_eq!(calls.take(2).unwrap(), 2);
        assert!(calls.take(2).is_none() && calls.take(3).is_none() && calls.take(u64::MAX).is_none());
        assert_eq!((calls.open(), calls.end()), (2, 3));
        assert_eq!((calls.take(0).unwrap(), calls.take(1).unwrap()), (0, 1));
        assert!(calls.take(0).is_none());
        assert_eq!((calls.open(), calls.push(9)), (0, 3));
    }

    #[test]
    fn a_failed_call_may_have_a_number() {
        let mut calls = Calls::default();
        calls.skip();
        assert_eq!((calls.push(5), calls.end()), (1, 2));
        calls.skip();
        assert_eq!((calls.push(6), calls.open()), (3, 2));
        assert!(calls.take(0).is_none() && calls.take(2).is_none());
        assert_eq!((calls.take(1).unwrap(), calls.take(3).unwrap(), calls.end()), (5, 6, 4));
    }

    #[test]
    fn the_kernels_counter_goes_round() {
        let mut calls = Calls::starting_at(u64::from(u32::MAX));
        for number in 0..3 {
            calls.push(number);
        }
        assert_eq!(calls.number(u32::MAX), i64::from(u32::MAX));
        assert_eq!(calls.number(1), i64::from(u32::MAX) + 2);
        let last = u64::from(u32::MAX);
        assert_eq!(calls.among(&(calls.number(1)..calls.number(7))), last + 2..last + 3);
        assert!(calls.among(&(calls.number(7)..calls.number(9))).is_empty());
    }

    #[test]
    fn a_range_may_begin_in_front_of_what_is_open() {
        let mut calls = Calls::default();
        (0..3).for_each(|number| _ = calls.push(number));
        let _ = (calls.take(0), calls.take(1));
        assert_eq!(calls.among(&(calls.number(0)..calls.number(3))), 2..3);
        assert!(calls.among(&(calls.number(0)..calls.number(2))).is_empty());
        assert_eq!(Calls::<u64>::default().number(u32::MAX), -1);
        assert!(Calls::<u64>::default().among(&(-1..0)).is_empty());
    }
}
