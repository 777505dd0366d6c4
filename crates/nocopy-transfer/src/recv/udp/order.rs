//! Puts a stream back into order, for a pipe.

use std::collections::BTreeMap;
use std::io::{self, Write};

/// The most bytes held back while an earlier piece is missing.
const HELD_BYTES_MAX: usize = 1 << 20;

/// Passes on pieces of a stream in order. Pieces that do not arrive in time are skipped.
#[derive(Debug)]
pub(super) struct Order<W> {
    output: W,
    next: u64,
    held: BTreeMap<u64, Vec<u8>>,
    held_bytes: usize,
    left_out: u64,
    too_late: u64,
}

impl<W: Write> Order<W> {
    pub(super) fn new(output: W) -> Self {
        Self { output, next: 0, held: BTreeMap::new(), held_bytes: 0, left_out: 0, too_late: 0 }
    }

    pub(super) fn output(&self) -> &W {
        &self.output
    }

    /// Takes a piece, each byte of the stream once.
    pub(super) fn take(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset < self.next {
            self.too_late += bytes.len() as u64;
            return Ok(());
        }
        if offset > self.next {
            self.held_bytes += cost(bytes);
            if let Some(replaced) = self.held.insert(offset, bytes.to_vec()) {
                self.held_bytes -= cost(&replaced); // only from a sender that sends a place twice
            }
            while self.held_bytes > HELD_BYTES_MAX {
                self.skip()?;
            }
            return Ok(());
        }
        self.output.write_all(bytes)?;
        self.next += bytes.len() as u64;
        self.follow()
    }

    /// Passes on held-back pieces, because the missing ones will not arrive.
    pub(super) fn give_up(&mut self) -> io::Result<()> {
        while !self.held.is_empty() {
            self.skip()?;
        }
        self.output.flush()
    }

    /// Skips the gap before the first held-back piece.
    fn skip(&mut self) -> io::Result<()> {
        if let Some(first) = self.held.keys().next() {
            self.left_out += first.saturating_sub(self.next);
            self.next = *first;
        }
        self.follow()
    }

    fn follow(&mut self) -> io::Result<()> {
        while let Some(first) = self.held.first_entry().filter(|first| *first.key() <= self.next) {
            let (offset, bytes) = first.remove_entry();
            self.held_bytes -= cost(&bytes);
            if offset < self.next {
                self.too_late += bytes.len() as u64; // only from a sender that sends a place twice
                continue;
            }
            self.output.write_all(&bytes)?;
            self.next += bytes.len() as u64;
        }
        Ok(())
    }

    /// Bytes that are known to have been skipped, and bytes that arrived too late.
    pub(super) fn gaps(&self) -> (u64, u64) {
        (self.left_out, self.too_late)
    }
}

/// The memory of a piece: for small ones mostly overhead.
fn cost(bytes: &[u8]) -> usize {
    bytes.len() + 64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_missing_is_waited_for_and_then_left_out() {
        let mut order = Order::new(Vec::new());
        order.take(0, b"ab").unwrap();
        order.take(4, b"ef").unwrap();
        assert_eq!(order.output, b"ab");
        order.take(2, b"cd").unwrap();
        assert_eq!(order.output, b"abcdef");
        order.take(8, b"ij").unwrap();
        order.give_up().unwrap();
        order.take(6, b"gh").unwrap();
        assert_eq!((&order.output[..], order.gaps()), (&b"abcdefij"[..], (2, 2)));
    }

    #[test]
    fn what_is_kept_back_is_bounded() {
        let mut order = Order::new(Vec::new());
        let piece = vec![7; 1000];
        for number in 1..3000 {
            order.take(1000 * number, &piece).unwrap();
            assert!(order.held_bytes <= HELD_BYTES_MAX && order.held.len() <= HELD_BYTES_MAX / 1000);
        }
        order.give_up().unwrap();
        assert_eq!((order.output.len(), order.gaps()), (2_999_000, (1000, 0)));
    }

    proptest! {
        #[test]
        fn a_shuffled_stream_comes_out_whole(
            cuts in proptest::collection::vec(1..50_usize, 1..60), swaps in proptest::collection::vec(any::<prop::sample::Index>(), 0..60),
        ) {
            let stream: Vec<u8> = (0..cuts.iter().sum()).map(|place: usize| (place * 7) as u8).collect();
            let mut offset = 0;
            let mut pieces: Vec<_> = cuts.iter().map(|length| { offset += length; (offset - length, *length) }).collect();
            for (place, swap) in swaps.iter().enumerate() {
                let (one, other) = (place % pieces.len(), swap.index(pieces.len()));
                pieces.swap(one, other);
            }
            let mut order = Order::new(Vec::new());
            for (offset, length) in pieces {
                order.take(offset as u64, &stream[offset..offset + length]).unwrap();
            }
            prop_assert_eq!((&order.output, order.gaps(), order.held_bytes), (&stream, (0, 0), 0));
        }
    }
}
