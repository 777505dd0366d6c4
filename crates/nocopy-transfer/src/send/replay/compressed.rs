//! Bytes that a decoder reads.

use std::io::{self, ErrorKind, Read};

/// How much is read in search of a byte that was packed before the caller may do other work: packed data may
/// hold nothing without end.
const COMPRESSED_BYTES_MAX: usize = 1 << 20;

/// Packed bytes: reading stops with [`ErrorKind::WouldBlock`] if nothing comes out of many of them.
#[derive(Debug)]
pub(super) struct CompressedInput<R> {
    input: R,
    /// Until it stops. It stays stopped until the next search, as the decoder of gzip keeps one such error
    /// for itself.
    remaining_bytes: usize,
}

impl<R> CompressedInput<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, remaining_bytes: COMPRESSED_BYTES_MAX }
    }

    pub(super) fn input(&mut self) -> &mut R {
        &mut self.input
    }

    pub(super) fn reset_read_budget(&mut self) {
        self.remaining_bytes = COMPRESSED_BYTES_MAX;
    }
}

impl<R: Read> Read for CompressedInput<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if self.remaining_bytes == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = self.input.read(target)?;
        self.remaining_bytes = self.remaining_bytes.saturating_sub(count);
        Ok(count)
    }
}
