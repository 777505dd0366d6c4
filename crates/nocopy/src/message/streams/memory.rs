//! Memory for units that come over streams (docs/protocol.md §16.3).

use std::io;
use std::sync::Arc;

use nocopy_proto::message::framing::CHUNK_HEADER_BYTES_MAX;

use crate::memory::pool::{Buffer, Pool};
use crate::message::HEADER_BYTES;

/// Bytes of a buffer for short units, one or many.
pub(super) const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of all buffers of either kind, at least; memory that was never used costs nothing.
const POOL_BYTES_MIN: usize = 16 << 20;
/// Buffers of either kind, at least.
const BUFFERS_MIN: usize = 4;
/// The longest unit of several messages, without its header.
pub(super) const UNIT_BYTES_MAX: usize = CHUNK_BYTES - HEADER_BYTES;

/// Buffers that units are received into.
#[derive(Debug)]
pub(super) struct Memory {
    chunks: Pool,
    /// Each holds the longest unit. The last one is kept for the unit that everything waits for.
    long: Pool,
    /// The longest unit, with its header.
    unit_bytes_max: usize,
}

impl Memory {
    /// For messages up to so many bytes.
    ///
    /// # Errors
    /// There is not enough.
    pub(super) fn new(message_bytes_max: usize) -> io::Result<Self> {
        let unit_bytes_max = HEADER_BYTES + (message_bytes_max + CHUNK_HEADER_BYTES_MAX).max(UNIT_BYTES_MAX);
        let count = |bytes: usize| (POOL_BYTES_MIN / bytes).max(BUFFERS_MIN) as u32;
        Ok(Self {
            chunks: Pool::new(count(CHUNK_BYTES), CHUNK_BYTES)?,
            long: Pool::new(1 + count(unit_bytes_max), unit_bytes_max)?,
            unit_bytes_max,
        })
    }

    /// Whether a unit may have so many bytes, with its header.
    pub(super) fn allows(&self, bytes: usize) -> bool {
        bytes <= self.unit_bytes_max
    }

    /// A buffer for so many bytes; one that everything waits for (`is_next`) may have the last.
    pub(super) fn take(&self, bytes: usize, is_next: bool) -> Option<Buffer> {
        let chunk = if bytes <= CHUNK_BYTES { self.chunks.take() } else { None };
        let may_take = || is_next || self.long.at_home() > 1;
        let mut buffer = chunk.or_else(|| if may_take() { self.long.take() } else { None })?;
        buffer.resize(buffer.capacity());
        Some(buffer)
    }
}

/// A piece of what came over a stream. Its memory is free when the last piece is dropped.
#[derive(Debug, Clone)]
pub(in crate::message) struct Part {
    buffer: Arc<Buffer>,
    start: u32,
    end: u32,
}

impl Part {
    pub(super) fn new(buffer: &Arc<Buffer>, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= buffer.len(), "a part of the buffer");
        Self { buffer: Arc::clone(buffer), start: start as u32, end: end as u32 }
    }
}

impl AsRef<[u8]> for Part {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.buffer[self.start as usize..self.end as usize]
    }
}
