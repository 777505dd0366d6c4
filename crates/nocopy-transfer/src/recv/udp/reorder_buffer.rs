//! Puts a stream back into order, for a pipe.

use std::collections::BTreeMap;
use std::io::{self, Write};

/// The most bytes held back while an earlier piece is missing.
const PENDING_BYTES_MAX: usize = 1 << 20;

/// Passes on pieces of a stream in order. Pieces that do not arrive in time are skipped.
#[derive(Debug)]
pub(super) struct ReorderBuffer<W> {
    output: W,
    next: u64,
    pending: BTreeMap<u64, Vec<u8>>,
    pending_bytes: usize,
    left_out: u64,
    too_late: u64,
}

impl<W: Write> ReorderBuffer<W> {
    pub(super) fn new(output: W) -> Self {
        Self { output, next: 0, pending: BTreeMap::new(), pending_bytes: 0, left_out: 0, too_late: 0 }
    }

    pub(super) fn output(&self) -> &W {
        &self.output
    }

    /// Takes a piece, each byte of the stream once.
    pub(super) fn push(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset < self.next {
            self.too_late += bytes.len() as u64;
            return Ok(());
        }
        if offset > self.next {
            self.pending_bytes += piece_memory_bytes(bytes);
            if let Some(replaced) = self.pending.insert(offset, bytes.to_vec()) {
                // Only from a sender that sends a place twice.
                self.pending_bytes -= piece_memory_bytes(&replaced);
            }
            while self.pending_bytes > PENDING_BYTES_MAX {
                self.skip_gap()?;
            }
            return Ok(());
        }
        self.output.write_all(bytes)?;
        self.next += bytes.len() as u64;
        self.write_contiguous()
    }

    /// Passes on held-back pieces, because the missing ones will not arrive.
    pub(super) fn flush_pending(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            self.skip_gap()?;
        }
        self.output.flush()
    }

    /// Skips the gap before the first held-back piece.
    fn skip_gap(&mut self) -> io::Result<()> {
        if let Some(first) = self.pending.keys().next() {
            self.left_out += first.saturating_sub(self.next);
            self.next = *first;
        }
        self.write_contiguous()
    }

    fn write_contiguous(&mut self) -> io::Result<()> {
        while let Some(first) = self.pending.first_entry().filter(|first| *first.key() <= self.next) {
            let (offset, bytes) = first.remove_entry();
            self.pending_bytes -= piece_memory_bytes(&bytes);
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
    pub(super) fn skipped_and_late_bytes(&self) -> (u64, u64) {
        (self.left_out, self.too_late)
    }
}

/// The memory of a piece: for small ones mostly overhead.
fn piece_memory_bytes(bytes: &[u8]) -> usize {
    bytes.len() + 64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn missing_pieces_are_awaited_then_skipped() {
        let mut buffer = ReorderBuffer::new(Vec::new());
        buffer.push(0, b"ab").unwrap();
        buffer.push(4, b"ef").unwrap();
        assert_eq!(buffer.output, b"ab");
        buffer.push(2, b"cd").unwrap();
        assert_eq!(buffer.output, b"abcdef");
        buffer.push(8, b"ij").unwrap();
        buffer.flush_pending().unwrap();
        buffer.push(6, b"gh").unwrap();
        assert_eq!((&buffer.output[..], buffer.skipped_and_late_bytes()), (&b"abcdefij"[..], (2, 2)));
    }

    #[test]
    fn pending_bytes_are_bounded() {
        let mut buffer = ReorderBuffer::new(Vec::new());
        let piece = vec![7; 1000];
        for number in 1..3000 {
            buffer.push(1000 * number, &piece).unwrap();
            assert!(
                buffer.pending_bytes <= PENDING_BYTES_MAX && buffer.pending.len() <= PENDING_BYTES_MAX / 1000
            );
        }
        buffer.flush_pending().unwrap();
        assert_eq!((buffer.output.len(), buffer.skipped_and_late_bytes()), (2_999_000, (1000, 0)));
    }

    proptest! {
        #[test]
        fn a_shuffled_stream_is_reassembled(
            cuts in proptest::collection::vec(1..50_usize, 1..60), swaps in proptest::collection::vec(any::<prop::sample::Index>(), 0..60),
        ) {
            let stream: Vec<u8> = (0..cuts.iter().sum()).map(|place: usize| (place * 7) as u8).collect();
            let mut offset = 0;
            let mut pieces: Vec<_> = cuts.iter().map(|length| { offset += length; (offset - length, *length) }).collect();
            for (place, swap) in swaps.iter().enumerate() {
                let (one, other) = (place % pieces.len(), swap.index(pieces.len()));
                pieces.swap(one, other);
            }
            let mut buffer = ReorderBuffer::new(Vec::new());
            for (offset, length) in pieces {
                buffer.push(offset as u64, &stream[offset..offset + length]).unwrap();
            }
            let found = (&buffer.output, buffer.skipped_and_late_bytes(), buffer.pending_bytes);
            prop_assert_eq!(found, (&stream, (0, 0), 0));
        }
    }
}
