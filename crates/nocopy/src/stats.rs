//! All counters of one half, in one value.

use std::fmt;
use std::iter::Sum;
use std::ops::AddAssign;

use crate::counter::Counter;

/// All counters of a half since it was opened, in one value.
///
/// Five sums have the same meaning for every half. Iterating yields the counters that they are made of and
/// all others of the half, each under its own name, or the kernel's name if the kernel counts it.
///
/// ```
/// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
/// port.sender().send_copy(b"hello")?;
/// port.sender().flush()?;
/// let stats = port.sender().stats();
/// assert_eq!((stats.moved, stats.bytes, stats.dropped), (1, 5, 0));
/// assert_eq!(stats.get("tx_dropped"), Some(0)); // one counter, by its name
/// assert_eq!(stats.get("no_such_counter"), None);
/// let lost = stats.into_iter().filter(|counter| counter.value > 0 && counter.name.ends_with("_dropped"));
/// assert_eq!(lost.count(), 0); // all counters, each with its meaning in words
/// println!("{stats}"); // the counters that are not 0
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Packets, datagrams, buffers of a stream, blocks or messages that were received, or that the kernel
    /// accepted for sending (not: delivered).
    pub moved: u64,
    /// Bytes of the moved units.
    pub bytes: u64,
    /// Units lost in this half or the kernel, for any cause.
    pub dropped: u64,
    /// Events that a correct kernel and a correct peer never cause.
    pub faults: u64,
    /// Calls that handed over queued data. Always 0 for a half that only receives.
    pub flushes: u64,
    counters: Vec<Counter>,
}

impl Stats {
    pub(crate) fn with_moved(moved: u64, bytes: u64) -> Self {
        Self { moved, bytes, ..Self::default() }
    }

    /// Adds counters of losses, each of which adds to `dropped`.
    pub(crate) fn with_dropped(mut self, counters: impl IntoIterator<Item = Counter>) -> Self {
        let before = self.counters.len();
        self.counters.extend(counters);
        self.dropped += self.counters[before..].iter().map(|counter| counter.value).sum::<u64>();
        self
    }

    pub(crate) fn with_faults(mut self, counters: impl IntoIterator<Item = Counter>) -> Self {
        let before = self.counters.len();
        self.counters.extend(counters);
        self.faults += self.counters[before..].iter().map(|counter| counter.value).sum::<u64>();
        self
    }

    /// Adds counters that are part of no sum.
    pub(crate) fn with_counters(mut self, counters: impl IntoIterator<Item = Counter>) -> Self {
        self.counters.extend(counters);
        self
    }

    /// Adds counters of a sender, each to its sum.
    pub(crate) fn with_sender_counters(self, counters: impl IntoIterator<Item = Counter>) -> Self {
        counters.into_iter().fold(self, |stats, counter| match &*counter.name {
            "refused" | "given_up" => stats.with_dropped([counter]),
            "unknown_completions" => stats.with_faults([counter]),
            _ => stats.with_counters([counter]),
        })
    }

    #[cfg(feature = "port")]
    pub(crate) fn counters_named(&self, names: &[&str]) -> impl Iterator<Item = Counter> {
        self.counters.iter().filter(|counter| names.contains(&&*counter.name)).cloned()
    }

    /// The counter of that name; `None` if this half has none, or the kernel refuses to report it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|counter| counter.name == name).map(|counter| counter.value)
    }
}

impl<'a> IntoIterator for &'a Stats {
    type Item = &'a Counter;
    type IntoIter = std::slice::Iter<'a, Counter>;

    /// All counters of the half.
    fn into_iter(self) -> Self::IntoIter {
        self.counters.iter()
    }
}

impl Extend<Counter> for Stats {
    /// Adds counters that belong to none of the sums. For kinds of I/O that are built on this crate.
    fn extend<I: IntoIterator<Item = Counter>>(&mut self, counters: I) {
        self.counters.extend(counters);
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.moved += other.moved;
        self.bytes += other.bytes;
        self.dropped += other.dropped;
        self.faults += other.faults;
        self.flushes += other.flushes;
        for theirs in other.counters {
            match self.counters.iter_mut().find(|mine| mine.name == theirs.name) {
                Some(mine) => mine.value += theirs.value,
                None => self.counters.push(theirs),
            }
        }
    }
}

impl Sum for Stats {
    fn sum<I: Iterator<Item = Self>>(stats: I) -> Self {
        stats.fold(Self::default(), |mut all, one| {
            all += one;
            all
        })
    }
}

impl fmt::Display for Stats {
    /// The sums, then the counters that are not 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { moved, bytes, dropped, faults, flushes, counters } = self;
        write!(f, "{moved} moved, {bytes} bytes, {dropped} dropped, {faults} faults, {flushes} flushes")?;
        let seen = counters.iter().filter(|counter| counter.value > 0);
        seen.enumerate().try_for_each(|(place, Counter { name, value, .. })| {
            write!(f, "{}{name} {value}", if place == 0 { ": " } else { ", " })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(name: &'static str, value: u64) -> Counter {
        Counter { name: name.into(), meaning: "", value }
    }

    #[test]
    fn losses_and_faults_are_summed_and_listed_by_name() {
        let earlier = Stats::with_moved(3, 30).with_dropped([counter("full", 1)]);
        let stats = Stats::with_moved(10, 100)
            .with_dropped([counter("full", 2), counter("long", 3)])
            .with_faults([counter("index", 4)])
            .with_counters([counter("seen", 0)]);
        assert_eq!(
            (stats.dropped, stats.faults, stats.get("long"), stats.get("none")),
            (5, 4, Some(3), None)
        );
        assert_eq!(
            stats.to_string(),
            "10 moved, 100 bytes, 5 dropped, 4 faults, 0 flushes: full 2, long 3, index 4"
        );
        let both: Stats = [earlier, stats].into_iter().sum();
        assert_eq!((both.moved, both.get("full"), both.get("index")), (13, Some(3), Some(4)));
    }
}
