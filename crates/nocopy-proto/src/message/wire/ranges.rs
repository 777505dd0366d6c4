//! The ranges of an Ack: sequence numbers beyond `expected` that have arrived (docs/protocol.md §5.2).

use std::ops::Range;

use super::Malformed;
use crate::wire::field::Field;

/// Ranges that an Ack may have.
pub const RANGES_MAX: usize = 64;

pub(super) const RANGE_BYTES: usize = 4;

type Gap = Field<0, 2>;
type Length = Field<2, 2>;

/// View of an Ack's ranges: ascending, apart from each other and from `expected`, none empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranges<'a>(&'a [[u8; RANGE_BYTES]]);

impl<'a> Ranges<'a> {
    /// Checks the bytes after the header of an Ack.
    ///
    /// # Errors
    /// When these are not whole ranges, more than [`RANGES_MAX`], or when one is empty or adjoins the one
    /// before.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (ranges, []) = bytes.as_chunks::<RANGE_BYTES>() else {
            return Err(Malformed::RangesLength { bytes: bytes.len() });
        };
        if ranges.len() > RANGES_MAX {
            return Err(Malformed::RangesLength { bytes: bytes.len() });
        }
        match ranges.iter().position(|range| Gap::number(range) == 0 || Length::number(range) == 0) {
            None => Ok(Self(ranges)),
            Some(index) => Err(Malformed::EmptyRange { index }),
        }
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The sequence numbers of each range, ascending, of an Ack with this `expected`. The last ends less than
    /// 2^23 above it.
    #[inline]
    pub fn iter(&self, expected: u64) -> impl ExactSizeIterator<Item = Range<u64>> + Clone + use<'a> {
        let mut end = expected;
        self.0.iter().map(move |range| {
            let start = end.saturating_add(u64::from(Gap::number(range)));
            end = start.saturating_add(u64::from(Length::number(range)));
            start..end
        })
    }

    /// Appends ranges, which must be ascending and apart, to an Ack with this `expected`; returns their
    /// number.
    ///
    /// The first [`RANGES_MAX`] are written. It ends earlier with one that 16 bits do not reach, which may
    /// have been shortened, and with one that is empty or adjoins the one before.
    pub fn emit(
        expected: u64,
        ranges: impl IntoIterator<Item = Range<u64>>,
        datagram: &mut Vec<u8>,
    ) -> usize {
        let mut end = expected;
        let mut count = 0;
        for range in ranges.into_iter().take(RANGES_MAX) {
            let gap = range.start.checked_sub(end).and_then(|gap| u16::try_from(gap).ok()).unwrap_or(0);
            let length_all = range.end.saturating_sub(range.start);
            if gap == 0 || length_all == 0 {
                break;
            }
            let length = u16::try_from(length_all).unwrap_or(u16::MAX);
            let mut bytes = [0; RANGE_BYTES];
            Gap::put_number(&mut bytes, gap);
            Length::put_number(&mut bytes, length);
            datagram.extend_from_slice(&bytes);
            count += 1;
            if u64::from(length) < length_all {
                break;
            }
            end = range.end;
        }
        count
    }
}
