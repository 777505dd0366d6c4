//! Keeps packets that arrived after a missing one, until the missing one arrives.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Runs of packets that neither overlap nor adjoin, by the sequence number of their first.
///
/// Memory and time follow from the packets that came, not from where in the window they lie: one packet at
/// the far end of the credit takes the place of one packet, and whether a packet is here is found among the
/// runs, without a look at the packets.
#[derive(Debug)]
pub(super) struct Ahead<R> {
    /// Slots as in the window, so that a whole run can be moved there. Only the further slots of a unit are
    /// empty.
    runs: BTreeMap<u64, VecDeque<Option<R>>>,
}

impl<R> Ahead<R> {
    pub(super) fn new() -> Self {
        Self { runs: BTreeMap::new() }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The sequence number after the last packet.
    #[inline]
    pub(super) fn end(&self) -> Option<u64> {
        self.runs.last_key_value().map(|(start, run)| start + run.len() as u64)
    }

    pub(super) fn contains(&self, sequence: u64) -> bool {
        let before = self.runs.range(..=sequence).next_back();
        before.is_some_and(|(start, run)| sequence - start < run.len() as u64)
    }

    /// Whether any of these packets is stored.
    pub(super) fn overlaps(&self, numbers: Range<u64>) -> bool {
        let before = self.runs.range(..numbers.end).next_back();
        before.is_some_and(|(start, run)| start + run.len() as u64 > numbers.start)
    }

    /// Stores a packet that is not stored yet.
    pub(super) fn insert(&mut self, sequence: u64, packet: R) {
        self.insert_run(sequence, packet, 1);
    }

    /// Stores a unit of `span` numbers, none of which is stored yet, in the slot of the first.
    pub(super) fn insert_run(&mut self, sequence: u64, packet: R, span: u64) {
        let behind = self.runs.remove(&(sequence + span));
        let rest = (1..span).map(|_| None);
        let before = self.runs.range_mut(..sequence).next_back();
        match before.filter(|(start, run)| *start + run.len() as u64 == sequence) {
            Some((_, run)) => {
                run.push_back(Some(packet));
                run.extend(rest);
                if let Some(behind) = behind {
                    *run = joined(std::mem::take(run), behind);
                }
            }
            None => {
                let mut run = behind.unwrap_or_else(|| VecDeque::with_capacity(1));
                rest.for_each(|place| run.push_front(place));
                run.push_front(Some(packet));
                self.runs.insert(sequence, run);
            }
        }
    }

    /// Removes and returns the run that begins with this sequence number.
    pub(super) fn take_run(&mut self, start: u64) -> Option<VecDeque<Option<R>>> {
        self.runs.remove(&start)
    }

    /// Which packets are here, lowest first.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter().map(|(start, run)| *start..start + run.len() as u64)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = R> + use<R> {
        std::mem::take(&mut self.runs).into_values().flatten().flatten()
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn capacity(&self) -> usize {
        self.runs.values().map(VecDeque::capacity).sum()
    }
}

/// Joins two runs. The shorter one is moved, so that closing many gaps is cheap in any order of arrival.
fn joined<R>(mut before: VecDeque<R>, mut behind: VecDeque<R>) -> VecDeque<R> {
    if before.len() >= behind.len() {
        before.append(&mut behind);
        return before;
    }
    while let Some(last) = before.pop_back() {
        behind.push_front(last);
    }
    behind
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_hold_what_came(sequences in prop::collection::vec(0u64..60, 0..80), start in 0u64..60) {
            let (mut ahead, mut model) = (Ahead::new(), BTreeSet::new());
            for sequence in sequences {
                prop_assert_eq!(ahead.contains(sequence), model.contains(&sequence));
                if model.insert(sequence) {
                    ahead.insert(sequence, sequence);
                }
                prop_assert_eq!(ahead.end(), model.last().map(|last| last + 1));
                let ranges: Vec<_> = ahead.ranges().collect();
                prop_assert!(ranges.is_sorted_by(|one, next| one.end < next.start), "{:?}", ranges);
                prop_assert!(ranges.into_iter().flatten().eq(model.iter().copied()));
            }
            let overlaps = model.range(start..start + 3).next().is_some();
            prop_assert_eq!(ahead.overlaps(start..start + 3), overlaps);
            let run = ahead.take_run(start).into_iter().flatten().flatten();
            let is_start = start == 0 || !model.contains(&(start - 1));
            let expected: Vec<_> =
                (start..).take_while(|sequence| is_start && model.contains(sequence)).collect();
            prop_assert!(run.eq(expected.iter().copied()));
            model.retain(|sequence| !expected.contains(sequence));
            prop_assert!(ahead.drain().eq(model));
            prop_assert!(ahead.is_empty());
        }

        #[test]
        fn runs_hold_units(units in prop::collection::vec((0u64..60, 1u64..5), 0..40)) {
            let (mut ahead, mut model) = (Ahead::new(), BTreeSet::new());
            for (sequence, span) in units {
                let numbers = sequence..sequence + span;
                let is_here = numbers.clone().any(|number| model.contains(&number));
                prop_assert_eq!(ahead.overlaps(numbers.clone()), is_here);
                if !is_here {
                    model.extend(numbers);
                    ahead.insert_run(sequence, sequence, span);
                }
                prop_assert!(ahead.ranges().flatten().eq(model.iter().copied()));
            }
        }
    }
}
