//! The sum of the evidence for the bytes of a half.

use std::fmt;
use std::iter::Sum;
use std::ops::AddAssign;

use super::{Cause, Evidence};

/// How many bytes were copied and why, how many were not copied, and for how many this is unknown.
///
/// The three numbers are never merged; [`bytes_of`](Self::bytes_of) for all evidence adds up to
/// [`bytes`](Self::bytes).
///
/// ```
/// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
/// use nocopy::{Cause, Evidence, Ledger};
/// port.sender().send_copy(b"hello")?;
/// let ledger = port.sender().ledger();
/// assert_eq!((ledger.datagrams(), ledger.bytes_of(Evidence::Copied(Cause::Slice))), (1, 5));
/// assert_eq!(ledger.into_iter().map(|(_, bytes)| bytes).sum::<u64>(), ledger.bytes());
/// let both: Ledger = [ledger, port.receiver().ledger()].into_iter().sum(); // of several halves
/// assert_eq!(both.bytes(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ledger {
    datagrams: u64,
    zero_copy: u64,
    copied: [u64; Cause::ALL.len()],
    unknown: u64,
}

impl Ledger {
    #[inline]
    pub(crate) fn add(&mut self, evidence: Evidence, datagrams: u64, bytes: u64) {
        self.datagrams += datagrams;
        match evidence {
            Evidence::ZeroCopy => self.zero_copy += bytes,
            Evidence::Copied(cause) => self.copied[cause as usize] += bytes,
            Evidence::Unknown => self.unknown += bytes,
        }
    }

    /// Number of datagrams.
    pub fn datagrams(&self) -> u64 {
        self.datagrams
    }

    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.zero_copy + self.unknown + self.copied.iter().sum::<u64>()
    }

    /// Bytes with this evidence; with [`Evidence::Copied`], those copied for that cause.
    pub fn bytes_of(&self, evidence: Evidence) -> u64 {
        match evidence {
            Evidence::ZeroCopy => self.zero_copy,
            Evidence::Copied(cause) => self.copied[cause as usize],
            Evidence::Unknown => self.unknown,
        }
    }
}

#[cfg(feature = "tcp")]
impl Ledger {
    /// Removes bytes that are counted elsewhere as copied, first from those counted as not copied, so that
    /// this number is never too high.
    pub(crate) fn subtract_bytes(&mut self, mut bytes: u64) {
        let Self { zero_copy, unknown, copied, .. } = self;
        for part in [zero_copy, unknown].into_iter().chain(copied) {
            let less = bytes.min(*part);
            *part -= less;
            bytes -= less;
        }
    }

    /// Counts bytes as joined by a copy that were counted before as they arrived.
    pub(crate) fn count_as_gathered(&mut self, bytes: u64) {
        self.subtract_bytes(bytes);
        self.add(Evidence::Copied(Cause::Gathered), 0, bytes);
    }
}

/// Kinds of evidence: not copied, each cause of a copy, and unknown.
const KINDS: usize = Cause::ALL.len() + 2;

impl IntoIterator for Ledger {
    type Item = (Evidence, u64);
    type IntoIter = std::iter::FilterMap<
        std::array::IntoIter<(Evidence, u64), KINDS>,
        fn((Evidence, u64)) -> Option<(Evidence, u64)>,
    >;

    /// Each evidence that occurred, with its bytes.
    fn into_iter(self) -> Self::IntoIter {
        let all: [_; KINDS] = std::array::from_fn(|at| match at {
            0 => (Evidence::ZeroCopy, self.zero_copy),
            _ => match Cause::ALL.get(at - 1) {
                Some(cause) => (Evidence::Copied(*cause), self.copied[at - 1]),
                None => (Evidence::Unknown, self.unknown),
            },
        });
        all.into_iter().filter_map(|(evidence, bytes)| (bytes > 0).then_some((evidence, bytes)))
    }
}

impl Extend<(Evidence, u64)> for Ledger {
    /// Adds bytes by their evidence, in the form in which a ledger returns them; each entry counts as one
    /// datagram. For kinds of I/O that are built on this crate.
    fn extend<I: IntoIterator<Item = (Evidence, u64)>>(&mut self, entries: I) {
        let entries = entries.into_iter().filter(|(_, bytes)| *bytes > 0);
        entries.for_each(|(evidence, bytes)| self.add(evidence, 1, bytes));
    }
}

impl AddAssign for Ledger {
    fn add_assign(&mut self, other: Self) {
        self.datagrams += other.datagrams;
        self.zero_copy += other.zero_copy;
        self.unknown += other.unknown;
        self.copied.iter_mut().zip(other.copied).for_each(|(mine, theirs)| *mine += theirs);
    }
}

impl Sum for Ledger {
    fn sum<I: Iterator<Item = Self>>(ledgers: I) -> Self {
        ledgers.fold(Self::default(), |mut all, one| {
            all += one;
            all
        })
    }
}

impl fmt::Display for Ledger {
    /// `zero-copy 1400 B, copied (socket call) 2800 B`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut entries = self.into_iter().peekable();
        if entries.peek().is_none() {
            return f.write_str("no bytes");
        }
        while let Some((evidence, bytes)) = entries.next() {
            let comma = if entries.peek().is_some() { ", " } else { "" };
            write!(f, "{evidence} {bytes} B{comma}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_causes_is_in_declared_order() {
        assert!(Cause::ALL.iter().enumerate().all(|(place, cause)| *cause as usize == place));
    }

    #[test]
    fn zero_copy_copied_and_unknown_bytes_are_summed_separately() {
        let mut tally = Ledger::default();
        assert_eq!(tally.to_string(), "no bytes");
        tally.add(Evidence::ZeroCopy, 2, 20);
        tally.add(Evidence::Copied(Cause::Slice), 1, 7);
        tally.add(Evidence::Unknown, 1, 3);
        assert_eq!((tally.datagrams(), tally.bytes()), (4, 30));
        let evidence = [Evidence::ZeroCopy, Evidence::Copied(Cause::Slice), Evidence::Unknown];
        assert_eq!(evidence.map(|evidence| tally.bytes_of(evidence)), [20, 7, 3]);
        assert_eq!(tally.to_string(), "zero-copy 20 B, copied (given as a slice) 7 B, unknown 3 B");
        assert_eq!([tally, tally].into_iter().sum::<Ledger>().bytes(), 60);
    }
}
