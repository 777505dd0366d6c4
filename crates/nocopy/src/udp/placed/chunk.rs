//! A chunk of rows, filled from datagrams.

use std::ops::Deref;

use crate::memory::pool::Buffer;
use crate::memory::rows::Rows;

/// Rows filled from datagrams, owned. It derefs to the bytes of all rows, contiguous from a page's start;
/// missing rows are zeros. Dropping it, on any thread, returns its memory to the ring.
///
/// It converts into a [`Buffer`] of its rows, without a copy, to be sent or kept.
#[derive(Debug)]
#[must_use = "what was received and dropped is gone"]
pub struct PlacedChunk {
    first: u64,
    rows: Rows,
}

impl PlacedChunk {
    pub(super) fn new(first: u64, rows: Rows) -> Self {
        Self { first, rows }
    }

    /// The number of its first row, a multiple of the number of rows. It counts on when the field wraps: of
    /// a field of 16 bits, 65,536 comes after 65,535.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// For each row, whether a datagram filled it. The flags lie in the memory of the chunk, behind its rows.
    pub fn present(&self) -> &[bool] {
        self.rows.present()
    }

    /// How many rows a datagram filled.
    pub fn filled(&self) -> usize {
        self.rows.filled()
    }

    /// Each row in order; `None` if it is missing.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>> {
        let rows = self.rows.bytes().chunks_exact(self.rows.row_bytes());
        rows.zip(self.present()).map(|(row, present)| present.then_some(row))
    }
}

impl Deref for PlacedChunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.rows.bytes()
    }
}

impl AsRef<[u8]> for PlacedChunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The rows, without a copy.
impl From<PlacedChunk> for Buffer {
    fn from(chunk: PlacedChunk) -> Self {
        chunk.rows.into_buffer()
    }
}
