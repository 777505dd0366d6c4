//! The part of a file in memory, so that files larger than memory can be read.

use std::io::{self, BufRead, Read};

/// Initial size: many packets per read.
const BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct PeekReader<R> {
    input: R,
    buffer: Vec<u8>,
    /// The unread part of the buffer.
    start: usize,
    end: usize,
    offset: u64,
}

impl<R: Read> PeekReader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, buffer: vec![0; BYTES], start: 0, end: 0, offset: 0 }
    }

    /// The same bytes, read on from what `wrap` makes of the input.
    pub(super) fn map_input<S>(self, wrap: impl FnOnce(R) -> S) -> PeekReader<S> {
        let Self { input, buffer, start, end, offset } = self;
        PeekReader { input: wrap(input), buffer, start, end, offset }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next `bytes` bytes, or fewer at the end of the file. Memory grows with the bytes read, not with
    /// the request.
    pub(super) fn peek(&mut self, bytes: usize) -> io::Result<&[u8]> {
        while self.end - self.start < bytes && self.read_more(bytes)? > 0 {}
        let end = self.end.min(self.start + bytes);
        Ok(&self.buffer[self.start..end])
    }

    /// A part of the bytes of the last `peek`.
    pub(super) fn peeked_part(&self, from: usize, bytes: usize) -> &[u8] {
        &self.buffer[self.start + from..][..bytes]
    }

    /// The next bytes that are in memory.
    pub(super) fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Advances past the next `bytes` bytes, which were looked at.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
    }

    fn read_more(&mut self, wanted: usize) -> io::Result<usize> {
        if self.start + wanted > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(count) => {
                    self.end += count;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn restart(&mut self) {
        (self.start, self.end, self.offset) = (0, 0, 0);
    }

    pub(super) fn input(&self) -> &R {
        &self.input
    }

    pub(super) fn input_mut(&mut self) -> &mut R {
        &mut self.input
    }
}

impl<R: Read> Read for PeekReader<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(target)?;
        self.skip(count);
        Ok(count)
    }
}

impl<R: Read> BufRead for PeekReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            self.read_more(1)?; // 0 at the end
        }
        Ok(self.buffered())
    }

    fn consume(&mut self, bytes: usize) {
        self.skip(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a few bytes per call, as a pipe may.
    struct TrickleReader(Vec<u8>);

    impl Read for TrickleReader {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.0.len().min(buffer.len()).min(7000);
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0.drain(..count);
            Ok(count)
        }
    }

    #[test]
    fn every_byte_is_read_in_order_whatever_is_peeked() {
        let file: Vec<u8> =
            (0..3_000_000_u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut window = PeekReader::new(TrickleReader(file.clone()));
        let mut offset = 0;
        for bytes in [1, 100_000, BYTES - 3, 7, 900_000, 0, 1_000_000].into_iter().chain([65_000; 20]) {
            let expected = &file[offset..file.len().min(offset + bytes)];
            assert_eq!(window.peek(bytes).unwrap(), expected);
            assert_eq!((window.peeked_part(0, expected.len()), window.offset()), (expected, offset as u64));
            window.skip(expected.len());
            offset += expected.len();
        }
        assert_eq!(offset, file.len());
    }

    #[test]
    fn memory_grows_with_the_bytes_read() {
        let mut window = PeekReader::new(&[1, 2, 3][..]);
        assert_eq!(window.peek(usize::MAX / 4).unwrap(), [1, 2, 3]);
        assert_eq!(window.buffer.len(), BYTES);
    }
}
