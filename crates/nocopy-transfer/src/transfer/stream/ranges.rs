//! The ranges of bytes of each stream.

use std::ops::Range;

use super::message::StreamHead;

/// Divides the bytes into a range for each stream, as equal as whole pieces allow. Each range has at least a
/// piece, so there may be fewer ranges. Without bytes there is one empty range.
pub(crate) fn split_into_ranges(total: u64, piece_bytes: u64, streams: u32) -> Vec<Range<u64>> {
    let piece_bytes = piece_bytes.max(1);
    let pieces = total.div_ceil(piece_bytes);
    let streams = u64::from(streams).min(pieces).max(1);
    let (each, more) = (pieces / streams, pieces % streams);
    // The first few streams have one piece more.
    let start = |number: u64| (number * each + number.min(more)).saturating_mul(piece_bytes).min(total);
    (0..streams).map(|number| start(number)..start(number + 1)).collect()
}

/// The ranges of streams at the receiver; the streams' claims are checked against each other.
#[derive(Debug)]
pub(crate) struct StreamRanges {
    run: u64,
    total: Option<u64>,
    claimed: Vec<Option<Range<u64>>>,
}

impl StreamRanges {
    /// For this number of streams, at most [`STREAMS_MAX`](super::STREAMS_MAX).
    pub(crate) fn new(run: u64, streams: u32, total: Option<u64>) -> Self {
        Self { run, total, claimed: vec![None; streams as usize] }
    }

    /// Whether a connection is a stream of this run, with a new number, and without overlap.
    pub(crate) fn claim_range(&mut self, head: &StreamHead) -> bool {
        let Self { run, total, claimed } = self;
        let end = match (*total, head.length) {
            (Some(total), Some(length)) => Some(head.offset + length).filter(|end| *end <= total), // both below 2^62
            // Without a beginning and an end they have no offsets.
            (None, None) if head.offset == 0 => Some(0),
            _ => None,
        };
        let number = head.number as usize;
        let fits = |end: u64| {
            let before = claimed[..number].iter().flatten().all(|other| other.end <= head.offset);
            let after = claimed[number + 1..].iter().flatten().all(|other| end <= other.start);
            before && after
        };
        if head.run != *run || head.streams as usize != claimed.len() || claimed[number].is_some() {
            return false;
        }
        match end.filter(|end| fits(*end)) {
            Some(end) => {
                claimed[number] = Some(head.offset..end);
                true
            }
            None => false,
        }
    }

    pub(crate) fn claimed_count(&self) -> usize {
        self.claimed.iter().flatten().count()
    }

    pub(crate) fn are_all_claimed(&self) -> bool {
        self.claimed_count() == self.claimed.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_whole_pieces_except_the_last() {
        assert_eq!(split_into_ranges(0, 10, 4), vec![0..0; 1]);
        assert_eq!(split_into_ranges(25, 10, 2), [0..20, 20..25]);
        assert_eq!(split_into_ranges(5, 10, 64), vec![0..5; 1]);
        assert_eq!(split_into_ranges(40, 10, 3), [0..20, 20..30, 30..40]);
    }

    #[test]
    fn overlapping_ranges_are_refused() {
        let mut claims = StreamRanges::new(7, 3, Some(100));
        let head = StreamHead { run: 7, number: 1, streams: 3, offset: 40, length: Some(20) };
        for wrong in [
            StreamHead { run: 8, ..head },
            StreamHead { streams: 2, ..head },
            StreamHead { offset: 90, ..head },
            StreamHead { length: None, ..head },
        ] {
            assert!(!claims.claim_range(&wrong), "{wrong:?}");
        }
        assert!(claims.claim_range(&head) && !claims.claim_range(&head), "once");
        assert!(!claims.claim_range(&StreamHead { number: 0, offset: 30, ..head }), "into the next");
        assert!(!claims.claim_range(&StreamHead { number: 2, offset: 50, ..head }), "into the one before");
        assert!(claims.claim_range(&StreamHead { number: 0, offset: 0, length: Some(40), ..head }));
        assert!(!claims.are_all_claimed());
        assert!(claims.claim_range(&StreamHead { number: 2, offset: 60, length: Some(40), ..head }));
        assert!(claims.are_all_claimed());
        let mut without_offsets = StreamRanges::new(7, 1, None);
        let open = StreamHead { run: 7, number: 0, streams: 1, offset: 0, length: None };
        assert!(
            !without_offsets.claim_range(&StreamHead { offset: 1, ..open })
                && without_offsets.claim_range(&open)
        );
    }

    proptest! {
        /// Ranges are contiguous from the first byte to the last, and the receiver accepts them.
        #[test]
        fn ranges_cover_every_byte_once(
            total in 0..1_u64 << 50, piece in 1..1_u64 << 30, streams in 1..=64_u32,
        ) {
            let ranges = split_into_ranges(total, piece, streams);
            prop_assert!((1..=streams as usize).contains(&ranges.len()));
            prop_assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, total));
            let mut claims = StreamRanges::new(1, ranges.len() as u32, Some(total));
            for (number, range) in ranges.iter().enumerate() {
                let next = ranges.get(number + 1).map_or(total, |next| next.start);
                prop_assert!(range.end == next && range.start % piece == 0);
                let (number, length) = (number as u32, Some(range.end - range.start));
                let (streams, offset) = (ranges.len() as u32, range.start);
                let head = StreamHead { run: 1, number, streams, offset, length };
                prop_assert!(claims.claim_range(&head));
            }
            prop_assert!(claims.are_all_claimed());
        }
    }
}
