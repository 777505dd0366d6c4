//! Classifies the values of a received counter: next, late, repeated, or too old.

/// How a received value relates to earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceClass {
    /// The next value, or a later one: then `left_out` values before it have not arrived yet.
    Ahead { left_out: u64, went_round: bool },
    /// It arrived after later ones.
    Late,
    /// It arrived before.
    Again,
    /// Too old to know whether it arrived before.
    Stale,
}

/// Follows a counter that increases by one, over a window of its last values.
#[derive(Debug)]
pub struct SequenceWindow {
    mask: u64,
    next: u64,
    /// Which of the last values arrived, by value modulo the window.
    seen: Box<[bool]>,
}

impl SequenceWindow {
    /// For a counter of 1 to 64 bits that begins at `next`; the last `window` values are remembered, at most
    /// half of all values.
    ///
    /// Values before the first count as received, because it is not known whether they were sent.
    pub fn new(bits: u32, window: u64, next: u64) -> Self {
        let window = window.min(1 << (bits - 1).min(62));
        Self { mask: u64::MAX >> (64 - bits), next, seen: vec![true; window as usize].into() }
    }

    pub fn restart(&mut self, next: u64) {
        self.seen.fill(true);
        self.next = next & self.mask;
    }

    /// The next value: one more than the largest received.
    pub fn next_expected(&self) -> u64 {
        self.next
    }

    pub fn classify_and_record(&mut self, value: u64) -> SequenceClass {
        let ahead = value.wrapping_sub(self.next) & self.mask;
        let behind = self.next.wrapping_sub(value) & self.mask;
        if ahead <= self.mask / 2 {
            return self.advance_past(value, ahead);
        }
        if behind > self.seen.len() as u64 {
            return SequenceClass::Stale;
        }
        let seen = &mut self.seen[(value % self.seen.len() as u64) as usize];
        if std::mem::replace(seen, true) { SequenceClass::Again } else { SequenceClass::Late }
    }

    /// Marks `count` values, fewer than the window, as not arrived. At most two runs of memory: a stranger
    /// decides how many they are.
    fn mark_missing(&mut self, from: usize, count: usize) {
        let to_end = count.min(self.seen.len() - from);
        self.seen[from..from + to_end].fill(false);
        self.seen[..count - to_end].fill(false);
    }

    #[inline]
    fn advance_past(&mut self, value: u64, left_out: u64) -> SequenceClass {
        let window = self.seen.len() as u64;
        if left_out >= window {
            self.seen.fill(false);
        } else if left_out > 0 {
            self.mark_missing((value.wrapping_sub(left_out) % window) as usize, left_out as usize);
        }
        self.seen[(value % window) as usize] = true;
        let next = value.wrapping_add(1) & self.mask;
        // The next value is 0, or the missing values include 0.
        let went_round = value < self.next || next == 0;
        self.next = next;
        SequenceClass::Ahead { left_out, went_round }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn skipped_values_are_late_and_earlier_ones_repeated() {
        for ahead in [0, 1, 5, 63, 64, 65, 200, 1 << 40] {
            let mut arrivals = SequenceWindow::new(64, 64, 0);
            for value in 0..100 {
                arrivals.classify_and_record(value);
            }
            let left_out = SequenceClass::Ahead { left_out: ahead, went_round: false };
            assert_eq!(arrivals.classify_and_record(100 + ahead), left_out, "{ahead}");
            for back in 1..64 {
                let expected = if back <= ahead { SequenceClass::Late } else { SequenceClass::Again };
                assert_eq!(arrivals.classify_and_record(100 + ahead - back), expected, "{back} of {ahead}");
            }
        }
    }

    proptest! {
        /// Within the window, each value is new exactly once, and the number left out is right.
        #[test]
        fn each_value_is_new_once_and_missing_ones_are_counted(
            steps in proptest::collection::vec(0..60_u64, 1..300),
        ) {
            let mut arrivals = SequenceWindow::new(64, 64, 0);
            let (mut came, mut missing) = (HashSet::new(), 0_i64);
            for step in steps {
                let value = (arrivals.next_expected() + step).saturating_sub(50);
                let is_new = came.insert(value);
                match arrivals.classify_and_record(value) {
                    SequenceClass::Ahead { left_out, .. } => {
                        prop_assert!(is_new);
                        missing += left_out as i64;
                    }
                    SequenceClass::Late => {
                        prop_assert!(is_new);
                        missing -= 1;
                    }
                    SequenceClass::Again => prop_assert!(!is_new),
                    SequenceClass::Stale => prop_assert!(false, "nothing is so far back"),
                }
                prop_assert_eq!(missing, arrivals.next_expected() as i64 - came.len() as i64);
            }
        }
    }
}
