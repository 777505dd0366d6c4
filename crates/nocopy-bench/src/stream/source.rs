//! What a stream is sent from.
//!
//! Every sender of a series has the same source, in chunks that go round, filled beforehand. 4 MiB are more than a processor's own
//! cache, so whoever copies reads memory, as a program does that sends what it made a while ago; and less than may be locked by anybody
//! (8 MiB). 1 MiB stays in the cache, as what is sent to one peer after the other does. Nothing is written into it meanwhile, so what the
//! kernel still refers to may be sent again.

/// Bytes a call, or a queued piece, of every method.
pub const CHUNK_BYTES: usize = 128 << 10;
pub const SOURCE_BYTES: usize = 32 * CHUNK_BYTES;
pub const SOURCE_BYTES_WARM: usize = 8 * CHUNK_BYTES;

const PAGE_BYTES: usize = 4096;

/// Memory to send from, beginning with a page.
pub(super) struct Source {
    memory: Vec<u8>,
    start: usize,
    pub(super) bytes: usize,
}

impl Source {
    pub(super) fn new(bytes: usize) -> Self {
        let mut memory = vec![0; bytes + PAGE_BYTES];
        fill(&mut memory);
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        Self { memory, start, bytes }
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.memory[self.start..][..self.bytes].chunks_exact(CHUNK_BYTES)
    }
}

pub(super) fn fill(bytes: &mut [u8]) {
    bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = index as u8);
}
