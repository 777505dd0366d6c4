//! Packets being written in place, before they are sent.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::FramePool;
use super::metadata::write_request;
use super::view::AreaView;
use crate::facts::metadata::{ChecksumField, ChecksumFieldOutside, Request};
use crate::ring::Reservation;
use crate::sys::xsk::{Descriptor, REQUESTED};

/// A batch of [`Draft`]s: free frames to be written, and the same number of slots of the tx ring.
///
/// Queued drafts are published to the kernel together when the batch is dropped; unused frames are free
/// again.
pub struct Drafts<'half> {
    slots: Reservation<'half, Descriptor>,
    pool: &'half FramePool,
    // Copies of the pool's fields, so that a loop over drafts keeps them in registers.
    view: AreaView,
    frames: &'half [Cell<u32>],
    free_count: u32,
    /// Where packets start inside a frame.
    start: u16,
    bytes: u32,
    /// Drafts not yet handed out.
    left: u32,
    /// By how many bytes the queued packets are shorter than `bytes`, in total.
    short_bytes: u64,
}

impl FramePool {
    /// Reserves free frames for packets of up to `bytes` bytes, one for each slot, or as many as there are.
    /// Panics if a packet of that length does not fit a frame.
    #[inline]
    pub(crate) fn drafts<'half>(
        &'half mut self,
        slots: Reservation<'half, Descriptor>,
        bytes: u32,
    ) -> Drafts<'half> {
        assert!(bytes <= self.packet_bytes_max(), "packet longer than a frame");
        let free_count = self.free_count.get();
        // So each draft has a slot and a frame, without further checks.
        let left = slots.remaining().min(free_count);
        // Removed from the cache until drop puts unused ones back. So a forgotten batch loses its frames, as
        // a forgotten `Frame` does; if frames were removed one by one, queued ones would stay in the cache.
        self.free_count.set(free_count - left);
        let (view, frames, start) = (self.view, &self.free[..free_count as usize], self.shared.data_offset);
        Drafts { slots, pool: self, view, frames, free_count, start, bytes, left, short_bytes: 0 }
    }
}

impl<'half> Drafts<'half> {
    /// How many drafts are left; if 0, flush and ask the sender for another batch.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.left as usize
    }

    /// The next packet to write, with the batch's length; its contents are undefined.
    #[inline]
    pub fn next_draft(&mut self) -> Option<Draft<'_, 'half>> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: only queued drafts use frames up, and there are no more of them than were handed out; so
        // the frames reserved in `FramePool::drafts` suffice.
        let frame = unsafe { self.frames.get_unchecked(self.free_count as usize - 1).get() };
        let address = self.view.address(frame, self.start);
        let (data, bytes) = (self.view.pointer_at(address), self.bytes);
        Some(Draft { batch: self, data, frame, address, bytes })
    }
}

impl Drop for Drafts<'_> {
    #[inline(always)] // a call would keep the batch in memory, and every draft would write to it
    fn drop(&mut self) {
        self.pool.free_count.set(self.free_count);
        self.pool.short_bytes.set(self.pool.short_bytes.get() + self.short_bytes);
    }
}

/// A packet being written in place: bytes of a free frame. [`queue`](Draft::queue) sends it, dropping
/// discards it.
///
/// ```
/// # let (mut left, mut right) = nocopy::Port::memory_pair()?;
/// let mut drafts = left.sender().drafts(2, 100)?;
/// let mut draft = drafts.next_draft().expect("a fresh port has free frames");
/// draft[..5].copy_from_slice(b"hello");
/// draft.truncate(5);
/// draft.queue();
/// drop(drafts.next_draft()); // not queued: not sent
/// drop(drafts);
/// left.sender().flush()?;
/// let sent: Vec<_> = right.receiver().receive()?.map(|packet| packet.to_vec()).collect();
/// assert_eq!(sent, [b"hello"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a draft that is not queued is not sent"]
pub struct Draft<'batch, 'half> {
    batch: &'batch mut Drafts<'half>,
    data: NonNull<u8>,
    frame: u32,
    address: u64,
    bytes: u32,
}

impl Draft<'_, '_> {
    /// Cuts the packet to `bytes` bytes; does nothing if it is shorter.
    #[inline]
    pub fn truncate(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    /// Queues the packet to be sent with the next flush. An empty one is discarded: no interface accepts it.
    #[inline]
    pub fn queue(self) {
        self.queue_with_options(0);
    }

    /// Like [`Draft::queue`], for a packet whose checksum is to be completed at `place`: by the card or
    /// kernel if the port was opened for it ([`Explanation::checksum`](crate::Explanation::checksum)),
    /// otherwise in software.
    ///
    /// ```
    /// # let (mut left, mut right) = nocopy::Port::memory_pair()?;
    /// use nocopy_proto::wire::checksum::ChecksumField;
    /// let mut drafts = left.sender().drafts(1, 4)?;
    /// let mut draft = drafts.next_draft().expect("a fresh port has free frames");
    /// draft.copy_from_slice(&[0x12, 0x34, 0, 0]); // the checksum field is behind the two bytes that are summed
    /// draft.queue_checksummed(ChecksumField { start: 0, offset: 2 })?;
    /// drop(drafts);
    /// left.sender().flush()?;
    /// let packet = right.receiver().receive()?.next().expect("one packet");
    /// assert_eq!(packet[2..], (!0x1234_u16).to_be_bytes()); // the one's complement
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The checksum would lie outside the packet, which is not queued.
    pub fn queue_checksummed(mut self, place: ChecksumField) -> Result<(), ChecksumFieldOutside> {
        place.check(self.len())?;
        if self.batch.pool.offers().checksum.is_err() {
            place.complete(&mut self)?;
            self.queue();
            return Ok(());
        }
        // SAFETY: drafts start at least `PACKET_HEADROOM_BYTES` into their frame, which is free.
        unsafe { write_request(self.data, &Request::default().checksum(place)) };
        self.queue_with_options(REQUESTED);
        Ok(())
    }

    #[inline]
    fn queue_with_options(self, options: u32) {
        if self.bytes == 0 {
            return;
        }
        let descriptor = Descriptor { address: self.address, len: self.bytes, options };
        // SAFETY: the pool keeps the area alive, and its free frames are frames of the area. There are no
        // more drafts than slots (`FramePool::drafts`).
        unsafe {
            self.batch.view.mark_lent(self.frame);
            self.batch.slots.push_unchecked(descriptor);
        }
        // No underflow: no more drafts are queued than frames were reserved.
        self.batch.free_count -= 1;
        // No underflow: a draft can only become shorter.
        self.batch.short_bytes += u64::from(self.batch.bytes - self.bytes);
    }
}

impl Deref for Draft<'_, '_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie in one frame (`FramePool::drafts`), which is free: it has no other owner, and
        // the batch is borrowed for this draft alone.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.bytes as usize) }
    }
}

impl DerefMut for Draft<'_, '_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.bytes as usize) }
    }
}

impl fmt::Debug for Drafts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drafts").field("left", &self.left).finish_non_exhaustive()
    }
}

impl fmt::Debug for Draft<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft")
            .field("frame", &self.frame)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
