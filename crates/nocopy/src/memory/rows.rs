//! Rows of equal length in one buffer, with a flag for each: whether it was written.

// Reads the flags as `bool`s, which only this module writes while it has the buffer.
#![allow(unsafe_code)]

use super::pool::{Buffer, BufferMut};

/// Rows that are being written. The flags lie behind the rows, in the same buffer, so that nothing else has
/// to be allocated, and whoever keeps the buffer keeps both.
#[derive(Debug)]
pub(crate) struct RowBuffer {
    buffer: BufferMut,
    row_bytes: usize,
    rows: usize,
    filled: usize,
}

impl RowBuffer {
    /// Bytes of a buffer for that many rows and their flags; `None` if no memory has as many.
    pub(crate) fn buffer_bytes(rows: usize, row_bytes: usize) -> Option<usize> {
        rows.checked_mul(row_bytes.checked_add(1)?).filter(|bytes| isize::try_from(*bytes).is_ok())
    }

    /// All rows are absent at first. Panics if the buffer is shorter than
    /// [`buffer_bytes`](Self::buffer_bytes).
    pub(crate) fn new(mut buffer: BufferMut, rows: usize, row_bytes: usize) -> Self {
        buffer.resize(rows * (row_bytes + 1));
        buffer[rows * row_bytes..].fill(0);
        Self { buffer, row_bytes, rows, filled: 0 }
    }

    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.filled == self.rows
    }

    /// Writes an absent row; returns false, and changes nothing, if it is present. Panics if there is no such
    /// row, or if the bytes are not as many as a row has.
    #[inline]
    pub(crate) fn write_row(&mut self, row: usize, bytes: &[u8]) -> bool {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let (all, flags) = self.buffer.split_at_mut(self.rows * self.row_bytes);
        if flags[row] != 0 {
            return false;
        }
        all[row * self.row_bytes..][..self.row_bytes].copy_from_slice(bytes);
        flags[row] = 1;
        self.filled += 1;
        true
    }

    /// How many rows from this one on are absent, up to `most`. Panics if there is no such row.
    pub(crate) fn absent_rows(&self, row: usize, most: usize) -> usize {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let flags = &self.buffer[self.rows * self.row_bytes + row..];
        flags.iter().take(most).take_while(|flag| **flag == 0).count()
    }

    /// Rows to be written in place, and [marked](Self::mark_row) then. Panics if there are not as many, or
    /// one is present.
    pub(crate) fn absent_rows_mut(&mut self, row: usize, count: usize) -> &mut [u8] {
        assert_eq!(self.absent_rows(row, count), count, "rows from {row} on are present");
        &mut self.buffer[row * self.row_bytes..][..count * self.row_bytes]
    }

    /// The bytes of a row, whether it is present or not. Panics if there is no such row.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> &[u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.buffer[row * self.row_bytes..][..self.row_bytes]
    }

    /// Makes a row present, which was absent, as it is. Panics if there is no such row.
    #[inline]
    pub(crate) fn mark_row(&mut self, row: usize) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let flag = &mut self.buffer[self.rows * self.row_bytes + row];
        self.filled += usize::from(*flag == 0);
        *flag = 1;
    }

    /// Ends writing: absent rows are zeroed, because they have the contents of an earlier use.
    pub(crate) fn freeze(mut self) -> Rows {
        if !self.is_complete() {
            let (all, flags) = self.buffer.split_at_mut(self.rows * self.row_bytes);
            let rows = all.chunks_exact_mut(self.row_bytes).zip(flags);
            rows.filter(|(_, flag)| **flag == 0).for_each(|(row, _)| row.fill(0));
        }
        let Self { buffer, row_bytes, rows, filled } = self;
        Rows { buffer: buffer.freeze(), row_bytes, rows, filled }
    }
}

/// Rows that are only read.
#[derive(Debug)]
pub(crate) struct Rows {
    buffer: Buffer,
    row_bytes: usize,
    rows: usize,
    filled: usize,
}

impl Rows {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.rows * self.row_bytes]
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// For each row, whether it was written.
    #[inline]
    pub(crate) fn present(&self) -> &[bool] {
        let flags = &self.buffer[self.rows * self.row_bytes..];
        // SAFETY: as many bytes as the slice has, borrowed like it; all are 0 or 1: `RowBuffer` cleared them
        // and wrote nothing but 1 since, and nothing writes to a frozen buffer.
        unsafe { std::slice::from_raw_parts(flags.as_ptr().cast::<bool>(), flags.len()) }
    }

    /// Without the flags.
    pub(crate) fn into_buffer(self) -> Buffer {
        let bytes = self.rows * self.row_bytes;
        match self.buffer.try_into_mut() {
            Ok(mut buffer) => {
                buffer.resize(bytes);
                buffer.freeze()
            }
            Err(_) => unreachable!("made of a buffer that could be written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pool::Pool;

    #[test]
    fn absent_rows_are_zeroed_and_the_first_write_stays() {
        let pool = Pool::new(1, RowBuffer::buffer_bytes(3, 4).unwrap()).unwrap();
        let mut old = pool.take().unwrap();
        old.fill(&[9; 15]).unwrap();
        drop(old);
        let mut rows = RowBuffer::new(pool.take().unwrap(), 3, 4);
        assert!(rows.write_row(1, &[1; 4]));
        assert!(!rows.write_row(1, &[2; 4]), "it is present");
        let rows = rows.freeze();
        assert_eq!(
            (rows.bytes(), rows.present()),
            (&[0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0][..], &[false, true, false][..])
        );
        let buffer = rows.into_buffer();
        assert_eq!((buffer.len(), pool.available()), (12, 0));
        drop(buffer);
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn lengths_beyond_all_memory_are_refused() {
        assert_eq!(RowBuffer::buffer_bytes(usize::MAX / 2, 2), None);
        assert_eq!(RowBuffer::buffer_bytes(1, usize::MAX), None);
        assert_eq!(RowBuffer::buffer_bytes(4096, 1384), Some(4096 * 1385));
    }
}
