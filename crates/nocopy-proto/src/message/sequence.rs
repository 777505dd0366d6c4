//! Sequence numbers: 32 bits on the wire, 64 bits everywhere else (docs/protocol.md §4.1).
//!
//! The 32 bits stand for the number nearest to the one that the reader expects, as in RFC 9000 appendix A.3.
//! This is right because windows are far shorter than 2^31. Numbers of 64 bits never wrap.

/// The first sequence of a direction, from the number that set-up agreed on.
///
/// One whole turn of the wire's numbers lies below it, so that a number from before the first is below it
/// here too.
#[inline]
pub fn first(wire: u32) -> u64 {
    (1 << 32) | u64::from(wire)
}

/// The sequence nearest to `expected` that `wire` may mean; halfway, the lower one.
///
/// Any `wire` has an answer, also one that no honest peer would send: it may be up to 2^31 below or above
/// `expected`.
#[inline]
pub fn widen(wire: u32, expected: u64) -> u64 {
    expected.wrapping_add_signed(i64::from(wire.wrapping_sub(narrow(expected)).cast_signed()))
}

/// The sequence number as sent on the wire.
#[inline]
pub fn narrow(sequence: u64) -> u32 {
    sequence as u32 // the low half is what the wire has
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_from_before_the_first_is_below_it() {
        for wire in [0, 1, 7, u32::MAX] {
            let first = first(wire);
            assert_eq!(widen(wire, first), first);
            assert_eq!(widen(wire.wrapping_sub(5), first), first - 5);
            assert_eq!(widen(wire.wrapping_add(5), first), first + 5);
        }
    }

    proptest! {
        #[test]
        fn comes_back_when_near(expected in 1u64 << 32.., away in -(1i64 << 31)..(1 << 31)) {
            prop_assume!(expected.checked_add_signed(away).is_some());
            let sequence = expected.wrapping_add_signed(away);
            prop_assert_eq!(widen(narrow(sequence), expected), sequence);
        }

        #[test]
        fn anything_has_an_answer_that_reads_the_same(wire: u32, expected: u64) {
            prop_assert_eq!(narrow(widen(wire, expected)), wire);
        }
    }
}
