//! Memory for units that come over streams (docs/protocol.md §16.3).

use std::io;
use std::sync::Arc;

use nocopy_proto::message::framing::CHUNK_HEADER_BYTES_MAX;

use crate::memory::pool::{Buffer, Pool};
use crate::message::HEADER_BYTES;
use crate::message::arrivals::Lone;
use crate::message::carrier::Received;
use crate::message::placing::{Posted, Registered};

/// Bytes of a buffer for short units, one or many.
pub(super) const CHUNK_BYTES: usize = 256 << 10;
/// A unit that arrived alone and is no longer than this is copied into a buffer of this length.
pub(super) const SMALL_BYTES: usize = 2 << 10;
const SMALL_BUFFERS: u32 = 1024;
/// Bytes of all buffers of either kind, at least; memory that was never used costs nothing.
const POOL_BYTES_MIN: usize = 16 << 20;
/// Buffers of either kind, at least.
const BUFFERS_MIN: usize = 4;
/// The longest unit of several messages, without its header.
pub(super) const UNIT_BYTES_MAX: usize = CHUNK_BYTES - HEADER_BYTES;

/// Buffers into which units are received.
#[derive(Debug)]
pub(super) struct Memory {
    /// For short units that arrived alone.
    small: Buffers,
    chunks: Buffers,
    /// Each holds the longest unit. The last one is kept for the unit that everything waits for.
    long: Buffers,
    /// The longest unit, with its header.
    unit_bytes_max: usize,
    /// Buffers for long messages, if there ever were some.
    posted: Option<Arc<Posted>>,
    /// Memory that peers write to, if there ever was some.
    registered: Option<Arc<Registered>>,
    in_place: InPlace,
}

/// A unit that is read where it lies.
#[derive(Debug, Default)]
struct InPlace {
    /// The next one may be.
    may_read: bool,
    lone: Option<Lone>,
    unit: Option<Received>,
}

/// Buffers of one length. `lent` keeps those to which parts refer, so that they are reused when the parts are dropped, without an allocation.
#[derive(Debug)]
struct Buffers {
    pool: Pool,
    lent: Vec<Arc<Buffer>>,
}

impl Buffers {
    fn new(pool: Pool) -> Self {
        Self { pool, lent: Vec::new() }
    }

    /// Takes an unused buffer in its whole length, if more than `spared` are free.
    fn take(&mut self, spared: usize) -> Option<Arc<Buffer>> {
        // The most recently used buffer is likely to be in a cache.
        let is_free = |buffer: &Arc<Buffer>| Arc::strong_count(buffer) == 1;
        if spared == 0 || self.pool.at_home() > spared {
            if let Some(place) = self.lent.iter().rposition(is_free) {
                let mut buffer = self.lent.swap_remove(place);
                // Nothing else refers to it, so nothing can from here on.
                Arc::get_mut(&mut buffer)?.resize(self.pool.buffer_bytes());
                return Some(buffer);
            }
            let mut buffer = self.pool.take()?;
            buffer.resize(buffer.capacity());
            return Some(Arc::new(buffer));
        }
        let free = self.lent.iter().filter(|buffer| is_free(buffer)).count();
        if self.pool.at_home() + free > spared { self.take(0) } else { None }
    }
}

impl Memory {
    /// For messages of up to `message_bytes_max`.
    pub(super) fn new(message_bytes_max: usize) -> io::Result<Self> {
        let count = |bytes: usize| (POOL_BYTES_MIN / bytes).max(BUFFERS_MIN) as u32;
        Self::of_buffers(message_bytes_max, SMALL_BUFFERS, count)
    }

    /// With so few buffers that units wait for them.
    #[cfg(any(feature = "fuzzing", test))]
    pub(super) fn scarce(message_bytes_max: usize) -> io::Result<Self> {
        Self::of_buffers(message_bytes_max, 2, |_| 1)
    }

    fn of_buffers(message_bytes_max: usize, small: u32, count: impl Fn(usize) -> u32) -> io::Result<Self> {
        let unit_bytes_max = HEADER_BYTES + (message_bytes_max + CHUNK_HEADER_BYTES_MAX).max(UNIT_BYTES_MAX);
        Ok(Self {
            small: Buffers::new(Pool::packed(small, SMALL_BYTES)?),
            chunks: Buffers::new(Pool::new(count(CHUNK_BYTES), CHUNK_BYTES)?),
            long: Buffers::new(Pool::new(1 + count(unit_bytes_max), unit_bytes_max)?),
            unit_bytes_max,
            posted: None,
            registered: None,
            in_place: InPlace::default(),
        })
    }

    #[inline]
    pub(super) fn read_in_place(&mut self, may_read: bool) {
        self.in_place.unit = None;
        self.in_place.may_read = may_read;
    }

    #[inline]
    pub(super) fn take_lone(&mut self) -> Option<Lone> {
        self.in_place.lone.take()
    }

    #[inline]
    pub(super) fn held(&mut self) -> &mut Option<Received> {
        &mut self.in_place.unit
    }

    /// Whether a unit is taken to be read in place; `read` finds its message.
    #[inline]
    pub(super) fn takes_in_place(
        &mut self,
        unit: &Arc<Buffer>,
        read: impl FnOnce(&[u8]) -> Option<Lone>,
    ) -> bool {
        let InPlace { may_read, lone, unit: held } = &mut self.in_place;
        if *may_read {
            *lone = read(unit);
            *may_read = lone.is_none();
            if lone.is_some() {
                *held = Some(Received::Unit(Part::new(unit, 0, unit.len())));
                return true;
            }
        }
        false
    }

    /// From here on messages are read into posted buffers, too.
    pub(super) fn post_to(&mut self, posted: &Arc<Posted>) {
        self.posted.get_or_insert_with(|| Arc::clone(posted));
    }

    /// From here on puts are read into registered memory, too.
    pub(super) fn put_to(&mut self, registered: &Arc<Registered>) {
        self.registered.get_or_insert_with(|| Arc::clone(registered));
    }

    #[inline]
    pub(super) fn registered(&self) -> Option<&Arc<Registered>> {
        self.registered.as_ref()
    }

    /// Posted buffers, if there are any now.
    #[inline]
    pub(super) fn posted(&self) -> Option<&Arc<Posted>> {
        self.posted.as_ref().filter(|posted| posted.has_any())
    }

    /// Whether a unit may have so many bytes, with its header.
    pub(super) fn allows(&self, bytes: usize) -> bool {
        bytes <= self.unit_bytes_max
    }

    /// A buffer for so many bytes; one that everything waits for (`is_next`) may have the last.
    pub(super) fn take(&mut self, bytes: usize, is_next: bool) -> Option<Arc<Buffer>> {
        let chunk = if bytes <= CHUNK_BYTES { self.chunks.take(0) } else { None };
        chunk.or_else(|| self.long.take(usize::from(!is_next)))
    }

    /// Copies a few bytes into a short buffer, if one is free.
    pub(super) fn small_copy(&mut self, bytes: &[u8]) -> Option<Arc<Buffer>> {
        let mut small = self.small.take(0)?;
        own(&mut small).fill(bytes).expect("they are few");
        Some(small)
    }

    /// Takes back a buffer that is not used.
    pub(super) fn give_back(&mut self, buffer: Arc<Buffer>) {
        self.of(&buffer).lent.push(buffer);
    }

    /// Lends a buffer to parts.
    pub(super) fn lend(&mut self, buffer: &Arc<Buffer>) {
        self.of(buffer).lent.push(Arc::clone(buffer));
    }

    fn of(&mut self, buffer: &Buffer) -> &mut Buffers {
        let Self { small, chunks, long, .. } = self;
        match buffer {
            _ if chunks.pool.owns(buffer) => chunks,
            _ if long.pool.owns(buffer) => long,
            _ => small,
        }
    }
}

/// A buffer that nothing else refers to.
pub(super) fn own(buffer: &mut Arc<Buffer>) -> &mut Buffer {
    Arc::get_mut(buffer).expect("no part refers to it")
}

/// A piece of bytes received over a stream. Its memory is free when the last piece is dropped.
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
