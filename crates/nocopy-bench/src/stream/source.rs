//! The data that streams send.
//!
//! Every sender of a series sends the same data again and again, in chunks, filled beforehand. 4 MiB are more
//! than a processor's own cache, so a method that copies reads memory, like a program that sends data made
//! some time ago; and less than an ordinary user may lock (8 MiB). 1 MiB stays in the cache, as data do that
//! are sent to one peer after the other. The data never change, so they may be sent again while the kernel
//! still refers to them.

/// Bytes a call, or a queued piece, of every method.
pub(crate) const CHUNK_BYTES: usize = 128 << 10;
pub(crate) const SOURCE_BYTES: usize = 32 * CHUNK_BYTES;
pub(crate) const SOURCE_BYTES_WARM: usize = 8 * CHUNK_BYTES;

const PAGE_BYTES: usize = 4096;

/// Memory to send from, beginning with a page.
pub(super) struct StreamSource {
    memory: Vec<u8>,
    start: usize,
    pub(super) bytes: usize,
}

impl StreamSource {
    pub(super) fn new(bytes: usize) -> Self {
        let mut memory = vec![0; bytes + PAGE_BYTES];
        fill_pattern(&mut memory);
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        Self { memory, start, bytes }
    }

    pub(super) fn memory(&self) -> &[u8] {
        &self.memory[self.start..][..self.bytes]
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.memory().chunks_exact(CHUNK_BYTES)
    }
}

pub(super) fn fill_pattern(bytes: &mut [u8]) {
    bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = index as u8);
}
