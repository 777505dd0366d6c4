//! A pool: the frames of one half of a port. Only here frames change between free, lent and owned by the
//! program.

mod kept;
mod metadata;

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::metadata::PoolMetadata;
use super::view::AreaView;
use super::{
    AreaError, AreaState, Frame, PoolId, RETIRED, SharedArea, borrower_in_state, is_kept, owner_in_state,
    packed_state, return_frame_to_pool,
};
use crate::ring::{Consumer, Producer};
use crate::sys::memory::Mapping;
use crate::sys::packet::IN_BLOCKS;
use crate::sys::xsk::Descriptor;
use kept::KeptPacketPositions;

/// Number of the empty pool that [`FramePool::take`] leaves behind.
const HOLLOW: PoolId = 0;

/// Whether a pool's frames are lent to receive or to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolDirection {
    Receive,
    Send,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LentFramesOnClose {
    /// The kernel no longer uses them: they are free again.
    Reclaim,
    /// A device may still write to them: they are never used again.
    Retire,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DescriptorFault {
    OutOfRange,
    Misaligned,
    NotLent,
}

/// Descriptors from the kernel's rings that were refused, by reason; each would have caused a corrupt frame,
/// or a frame with two owners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Addresses outside the area.
    pub(crate) out_of_range: u64,
    /// Packets that are not within one frame.
    pub(crate) misaligned: u64,
    /// Frames that were not lent to the kernel by this half: mostly duplicates.
    pub(crate) not_lent: u64,
    /// All refused descriptors.
    pub(crate) total: u64,
}

impl Faults {
    pub(crate) fn count(&mut self, fault: DescriptorFault) {
        self.total += 1;
        match fault {
            DescriptorFault::OutOfRange => self.out_of_range += 1,
            DescriptorFault::Misaligned => self.misaligned += 1,
            DescriptorFault::NotLent => self.not_lent += 1,
        }
    }
}

/// The frames of one half, with a last-in-first-out cache so that the warmest frame goes out next.
///
/// `Send` but not `Sync`: only the owner of the half uses the cells.
pub(crate) struct FramePool {
    pub(super) shared: Arc<SharedArea>,
    /// The part of `shared` that every packet needs.
    pub(super) view: AreaView,
    pub(super) id: PoolId,
    half: PoolDirection,
    /// The free frames: the first `free_count` cells hold their numbers.
    pub(super) free: Box<[Cell<u32>]>,
    pub(super) free_count: Cell<u32>,
    /// `free_count` when last settled: the difference is the frames that the program took or returned since.
    settled: Cell<u32>,
    /// The terms of [`FrameCounts`](super::FrameCounts), kept here and published once per batch.
    in_use: Cell<i64>,
    lent: Cell<u64>,
    on_close: Cell<LentFramesOnClose>,
    /// The blocks of a packet ring, if it receives from one.
    blocks: Option<Arc<Mapping>>,
    /// Packets copied out of blocks.
    pub(super) copied: Cell<u64>,
    pub(super) short_bytes: Cell<u64>,
    pub(super) metadata: PoolMetadata,
    notes: KeptPacketPositions,
}

// SAFETY: `view` points into what `shared` keeps alive; all else is `Send` by itself.
unsafe impl Send for FramePool {}

impl FramePool {
    pub(super) fn take_from_area(
        shared: Arc<SharedArea>,
        half: PoolDirection,
        frames: u32,
    ) -> Result<Self, AreaError> {
        let mut area_state = shared.lock_state();
        // Not a number with frames in use: they would return to a pool that has no cells for them.
        let slot = (0..area_state.open.len())
            .find(|slot| !area_state.open[*slot] && area_state.frames_in_use[*slot] == 0)
            .ok_or(AreaError::PoolsExhausted)?;
        let free = u32::try_from(area_state.unassigned.len()).expect("no more than the frames of an area");
        let Some(rest) = free.checked_sub(frames) else {
            return Err(AreaError::FramesExhausted { wanted: frames, free, total: shared.frame_count });
        };
        let id = PoolId::try_from(slot + 1).expect("fewer than 2^16 pools");
        // As many cells as frames have this pool as their owner: no frame is added to it later.
        let cells: Box<[Cell<u32>]> = area_state.unassigned.drain(rest as usize..).map(Cell::new).collect();
        cells.iter().for_each(|frame| shared.set_state(frame.get(), packed_state(id, 0)));
        area_state.open[slot] = true;
        shared.pool_record(id).returns.open();
        shared.pool_record(id).ledger.sends.store(u32::from(half == PoolDirection::Send), Relaxed);
        drop(area_state);
        let pool = Self::new(shared, id, half, cells);
        pool.publish_counts();
        Ok(pool)
    }

    fn new(shared: Arc<SharedArea>, id: PoolId, half: PoolDirection, free: Box<[Cell<u32>]>) -> Self {
        let count = free.len() as u32;
        Self {
            view: AreaView::new(&shared, id),
            id,
            half,
            free,
            free_count: Cell::new(count),
            settled: Cell::new(count),
            in_use: Cell::new(0),
            lent: Cell::new(0),
            on_close: Cell::new(LentFramesOnClose::Retire),
            blocks: None,
            copied: Cell::new(0),
            short_bytes: Cell::new(0),
            metadata: PoolMetadata::NONE,
            notes: KeptPacketPositions::default(),
            shared,
        }
    }

    /// The pointer that frames keep. It comes from the `Arc` itself, because a frame may release the
    /// reference that its closed pool left to it.
    #[inline]
    pub(super) fn area_pointer(&self) -> NonNull<SharedArea> {
        // SAFETY: what an `Arc` points at is never at address zero.
        unsafe { NonNull::new_unchecked(Arc::as_ptr(&self.shared).cast_mut()) }
    }

    /// Frames the kernel has from this half.
    #[inline]
    pub(crate) fn lent_count(&self) -> u64 {
        self.lent.get()
    }

    /// Frames in the cache.
    #[inline]
    pub(crate) fn free_count(&self) -> u32 {
        self.free_count.get()
    }

    pub(crate) fn balance(&self) -> super::Balance {
        self.count_in_use();
        self.publish_counts();
        self.shared.balance()
    }

    pub(crate) fn is_receiving(&self) -> bool {
        self.half == PoolDirection::Receive
    }

    /// The longest packet that fits a frame after the headroom.
    pub(crate) fn packet_bytes_max(&self) -> u32 {
        self.shared.packet_bytes_max()
    }

    pub(crate) fn frame_bytes(&self) -> u32 {
        self.shared.frame_bytes
    }

    #[inline]
    pub(super) fn push_free(&self, frame: u32) {
        let count = self.free_count.get();
        push_checked(&self.free, count, frame);
        self.free_count.set(count + 1);
    }

    #[inline]
    fn pop_free(&self) -> Option<u32> {
        let count = self.free_count.get().checked_sub(1)?;
        self.free_count.set(count);
        Some(self.free[count as usize].get())
    }

    /// Counts frames moved between cache and program since the last call, all at once.
    #[inline]
    fn count_in_use(&self) {
        let (now, then) = (self.free_count.get(), self.settled.replace(self.free_count.get()));
        self.in_use.set(self.in_use.get() + i64::from(then) - i64::from(now));
    }

    /// Publishes this half's account for the sum over the area: plain stores, once per batch.
    #[inline]
    pub(crate) fn publish_counts(&self) {
        let ledger = &self.shared.pool_record(self.id).ledger;
        ledger.free.store(self.free_count.get().into(), Relaxed);
        ledger.lent.store(self.lent.get(), Relaxed);
        ledger.in_use.store(self.in_use.get(), Relaxed);
    }

    /// Fetches frames that were dropped by other threads; a plain load if there are none.
    #[inline]
    pub(crate) fn fetch_returned(&self) {
        let returns = &self.shared.pool_record(self.id).returns;
        // A push that this misses is found by the next call.
        if returns.count() > 0 {
            self.push_returned(returns.take(&self.shared.links));
        }
    }

    #[cold]
    fn push_returned(&self, chain: super::returns::ReturnedFrames<'_>) {
        chain.for_each(|frame| self.push_free(frame));
    }

    /// Lends as many free frames as fit to the kernel, to receive into; returns how many. Not inlined:
    /// otherwise dropping a batch would be too large to inline itself, and a batch whose drop is a call is
    /// kept in memory.
    #[inline(never)]
    pub(crate) fn refill(&self, fill: &mut Producer<u64>) -> u32 {
        if self.metadata.has_marked_packets() {
            self.refill_erased(fill)
        } else {
            self.lend_free::<false>(fill)
        }
    }

    /// As `refill`, and erases the bytes in front of packets.
    #[cold]
    #[inline(never)]
    fn refill_erased(&self, fill: &mut Producer<u64>) -> u32 {
        self.lend_free::<true>(fill)
    }

    #[inline(always)] // twice, so that neither costs the other a register
    fn lend_free<const ERASE: bool>(&self, fill: &mut Producer<u64>) -> u32 {
        self.fetch_returned();
        // Before `settled` is set below, which would hide what the program took or returned since the last
        // time.
        self.count_in_use();
        let free = self.free_count.get();
        if free == 0 {
            self.publish_counts();
            return 0;
        }
        let mut slots = fill.reserve(free);
        let count = slots.remaining();
        let view = self.view;
        // No underflow: at most `free` slots were reserved.
        let lent = &self.free[(free - count) as usize..free as usize];
        if ERASE {
            lent.iter().for_each(|frame| self.erase_hints(frame));
        }
        let entries = lent.iter().rev().map(|frame| {
            // The warmest first.
            // SAFETY: `shared` keeps the area alive; free frames are its frames.
            unsafe { view.mark_lent(frame.get()) };
            view.address(frame.get(), 0)
        });
        // SAFETY: an iterator over a slice tells its true length.
        unsafe { slots.push_all(entries) };
        self.free_count.set(free - count);
        drop(slots);
        self.lent.set(self.lent.get() + u64::from(count));
        self.settled.set(self.free_count.get());
        self.publish_counts();
        count
    }

    #[inline]
    pub(crate) fn count_claimed(&self, count: u64) {
        // No underflow: a claimed frame was lent by this half, says its state word, and was counted then.
        self.lent.set(self.lent.get() - count);
        self.in_use.set(self.in_use.get() + count.cast_signed());
    }

    /// Makes this half receive from blocks: announced packets belong to it until it asks for more.
    pub(crate) fn receive_from_blocks(&mut self, blocks: &Arc<Mapping>) {
        self.blocks = Some(Arc::clone(blocks));
        self.set_in_blocks();
    }

    #[inline]
    pub(crate) fn has_blocks(&self) -> bool {
        self.blocks.is_some()
    }

    /// The address of a packet announced in the blocks, and a free frame to copy it into; `None` if the
    /// address is outside, or no frame is free.
    #[inline]
    pub(super) fn reserve_frame_for_packet(&self, address: u64, len: u32) -> Option<(NonNull<u8>, u32)> {
        // First: for a wrong address no frame is taken.
        let data = self.packet_in_blocks(address, len)?;
        let frame = self.pop_free()?;
        self.count_lent(1); // as if the frame had been lent: it will be booked as claimed
        Some((data, frame))
    }

    /// The address of a packet announced in the blocks.
    #[inline]
    pub(super) fn packet_in_blocks(&self, address: u64, len: u32) -> Option<NonNull<u8>> {
        let blocks = self.blocks.as_ref()?;
        // An address without that bit becomes an offset far beyond the blocks.
        let (offset, bytes) = (address ^ IN_BLOCKS, blocks.bytes() as u64);
        if offset >= bytes || u64::from(len) > bytes - offset {
            return None;
        }
        // SAFETY: inside the blocks, just checked.
        Some(unsafe { blocks.base().add(offset as usize) })
    }

    /// Packets copied out of the blocks of a packet ring.
    pub(crate) fn copied_count(&self) -> u64 {
        self.copied.get()
    }

    pub(crate) fn short_bytes(&self) -> u64 {
        self.short_bytes.get()
    }

    /// A free frame to fill and send, empty, with the area's headroom in front.
    #[inline]
    pub(crate) fn take_frame(&self) -> Option<Frame> {
        let frame = self.pop_free().or_else(|| self.fetch_returned_frame())?;
        // SAFETY: popped from the cache, so it is ours and now the caller's.
        Some(unsafe { self.empty_frame(frame) })
    }

    /// A frame, given to the caller.
    ///
    /// # Safety
    /// The frame is this pool's, and has no other owner.
    #[inline]
    pub(super) unsafe fn empty_frame(&self, frame: u32) -> Frame {
        let offset = self.shared.data_offset;
        let data = self.view.pointer_at(self.view.address(frame, offset));
        // SAFETY: the caller owned it; the offset lies in every frame.
        unsafe { Frame::new(self.area_pointer(), data, frame, offset, 0) }
    }

    #[cold]
    fn fetch_returned_frame(&self) -> Option<u32> {
        self.fetch_returned();
        self.pop_free()
    }

    /// Takes a frame back, without an atomic operation if it belongs to this pool.
    #[inline]
    pub(crate) fn recycle(&self, frame: Frame) {
        if self.owns(&frame) {
            let (index, ..) = frame.into_parts();
            if owner_in_state(self.shared.state(index)) == self.id {
                return self.push_free(index);
            }
            // SAFETY: ours, given up, of this area.
            unsafe { return_frame_to_pool(self.area_pointer(), index) };
        }
    }

    #[inline]
    pub(crate) fn owns(&self, frame: &Frame) -> bool {
        frame.shared == self.area_pointer()
    }

    /// Lends a frame of this area to the kernel to send, and returns its descriptor. The error is the frame,
    /// if it belongs to another area.
    #[inline]
    pub(crate) fn lend(&self, frame: Frame) -> Result<Descriptor, Frame> {
        if !self.owns(&frame) {
            return Err(frame);
        }
        let (index, data, len) = frame.into_parts();
        let word = self.shared.state_word(index);
        word.store(word.load(Relaxed) | u32::from(self.id), Relaxed); // it was lent to nobody: the low half was 0
        Ok(Descriptor { address: self.view.address_of_pointer(data), len: len.into(), options: 0 })
    }

    /// Books `count` frames as lent to send.
    #[inline]
    pub(crate) fn count_lent(&self, count: u32) {
        self.lent.set(self.lent.get() + u64::from(count));
        self.in_use.set(self.in_use.get() - i64::from(count));
    }

    /// Takes back sent frames, for at most `count` completions: this pool's go into its cache, those of other
    /// pools return to them as linked lists, and those marked by [`FramePool::keep`] are pushed to `kept`. Of
    /// an address only the frame matters, because this side chose where the packet starts.
    pub(crate) fn reap(
        &self,
        completion: &mut Consumer<u64>,
        count: u32,
        faults: &mut Faults,
        kept: &mut Vec<Frame>,
    ) -> u32 {
        self.count_in_use();
        let mut strays = ReturnBatch::new(self, kept);
        let (view, free, before) = (self.view, &self.free[..], self.free_count.get());
        let (mut free_count, mut stray_count) = (before, 0);
        for address in completion.ready_entries(count) {
            // SAFETY: `shared` keeps the area alive.
            match unsafe { view.reclaim(address) } {
                Some(frame) => {
                    push_checked(free, free_count, frame);
                    free_count += 1;
                }
                None => stray_count += u32::from(strays.reclaim(address, faults)),
            }
        }
        self.free_count.set(free_count);
        let reaped = free_count - before + stray_count;
        strays.return_frames();
        // No underflow with a kernel that returns only what it was given: the caller has booked all frames
        // that it published.
        self.lent.set(self.lent.get() - u64::from(reaped));
        self.settled.set(self.free_count.get());
        self.publish_counts();
        reaped
    }

    /// Closes the pool; frames that the program still holds return later.
    pub(crate) fn close(self, lent: LentFramesOnClose) {
        self.on_close.set(lent);
    }

    /// Moves the pool out of a half that is being dropped, leaving an empty one behind: the kernel may use
    /// the lent frames until the other half is dropped too.
    pub(crate) fn take(&mut self) -> Self {
        let hollow = Self::new(Arc::clone(&self.shared), HOLLOW, self.half, Box::default());
        std::mem::replace(self, hollow)
    }

    /// Takes back or retires the lent frames; returns strays, to be returned once the lock is released.
    fn reclaim_or_retire_lent(&self, area_state: &mut AreaState) -> Vec<u32> {
        let mut strays = Vec::new();
        for frame in 0..self.shared.frame_count {
            let now = self.shared.state(frame);
            if borrower_in_state(now) != self.id {
                continue;
            }
            let owner = owner_in_state(now);
            match self.lent.get().checked_sub(1) {
                Some(lent) => self.lent.set(lent),
                None => self.in_use.set(self.in_use.get() - 1), // queued in a batch of drafts that was forgotten
            }
            if self.on_close.get() == LentFramesOnClose::Retire {
                self.shared.set_state(frame, packed_state(0, RETIRED));
                area_state.retired += 1;
                if owner != self.id && !area_state.open[usize::from(owner) - 1] {
                    area_state.frames_in_use[usize::from(owner) - 1] -= 1;
                    // SAFETY: the frame held this count of the area since its pool closed, and never returns
                    // to give it back itself; the pool holds another one.
                    unsafe { Arc::decrement_strong_count(Arc::as_ptr(&self.shared)) };
                }
            } else {
                self.shared.set_state(frame, packed_state(owner, 0));
                if owner == self.id {
                    self.push_free(frame);
                } else {
                    self.in_use.set(self.in_use.get() + 1);
                    strays.push(frame);
                }
            }
        }
        strays
    }
}

impl Drop for FramePool {
    fn drop(&mut self) {
        if self.id == HOLLOW {
            return;
        }
        let area = Arc::clone(&self.shared);
        let mut area_state = area.lock_state();
        area.pool_record(self.id).returns.close(&area.links).for_each(|frame| self.push_free(frame));
        // Before frames are taken back from the kernel: `count_in_use` would count them as returned by the
        // program.
        self.count_in_use();
        let strays = self.reclaim_or_retire_lent(&mut area_state);
        // Packets of forgotten batches, which the kernel returned without being counted.
        self.count_claimed(self.lent.get());
        while let Some(frame) = self.pop_free() {
            area.set_state(frame, packed_state(0, 0));
            area_state.unassigned.push(frame);
        }
        let in_use =
            (0..area.frame_count).filter(|frame| owner_in_state(area.state(*frame)) == self.id).count();
        let slot = usize::from(self.id) - 1;
        area_state.open[slot] = false;
        area_state.frames_in_use[slot] = u32::try_from(in_use).expect("no more than the frames of an area");
        area_state.in_use += self.in_use.get();
        // From now on every frame in use keeps the area alive itself (module documentation of `area`). A
        // frame that is being dropped right now waits for the lock in `return_frame_to_pool` and then finds
        // its count.
        for _ in 0..in_use {
            // SAFETY: `area` holds a count, so the pointer is a live `Arc`.
            unsafe { Arc::increment_strong_count(Arc::as_ptr(&area)) };
        }
        // `return_frame_to_pool` takes this lock.
        drop(area_state);
        for frame in strays {
            // SAFETY: reclaimed from the kernel above and given up here.
            unsafe { return_frame_to_pool(self.area_pointer(), frame) };
        }
    }
}

impl fmt::Debug for FramePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, half, .. } = self;
        f.debug_struct("Pool").field("id", id).field("half", half).finish_non_exhaustive()
    }
}

/// Completed frames that do not go into the pool's cache: kept ones, and those of other pools, linked so that
/// each pool's list is touched once per run of frames.
struct ReturnBatch<'pool> {
    pool: &'pool FramePool,
    kept: &'pool mut Vec<Frame>,
    owner: PoolId,
    first: u32,
    last: u32,
    count: u32,
}

impl<'pool> ReturnBatch<'pool> {
    const fn new(pool: &'pool FramePool, kept: &'pool mut Vec<Frame>) -> Self {
        Self { pool, kept, owner: 0, first: 0, last: 0, count: 0 }
    }

    /// Takes back a frame of another pool, or a kept one; counts a fault and returns false if this half lent
    /// no frame with that address.
    #[cold]
    fn reclaim(&mut self, address: u64, faults: &mut Faults) -> bool {
        // SAFETY: the pool keeps the area alive.
        let Some((frame, word)) = (unsafe { self.pool.view.frame_at(address) }) else {
            faults.count(DescriptorFault::OutOfRange);
            return false;
        };
        let now = word.load(Relaxed);
        if borrower_in_state(now) != self.pool.id {
            faults.count(DescriptorFault::NotLent);
            return false;
        }
        // This also clears the mark of a kept frame, which is for one sending only.
        word.store(packed_state(owner_in_state(now), 0), Relaxed);
        if is_kept(now) {
            // SAFETY: the word said that it was kept and lent by this half, which has just got it back.
            self.kept.push(unsafe { self.pool.kept_frame(frame) });
            self.pool.in_use.set(self.pool.in_use.get() + 1);
        } else {
            self.add_frame(frame, owner_in_state(now));
        }
        true
    }

    fn add_frame(&mut self, frame: u32, owner: PoolId) {
        if self.count > 0 && self.owner != owner {
            self.return_frames();
        }
        if self.count == 0 {
            (self.owner, self.last) = (owner, frame);
        } else {
            self.pool.shared.links[frame as usize].store(self.first, crate::sync::Ordering::Relaxed);
        }
        self.first = frame;
        self.count += 1;
    }

    fn return_frames(&mut self) {
        if self.count == 0 {
            return;
        }
        let Self { pool, owner, first, last, count, .. } = *self;
        pool.in_use.set(pool.in_use.get() + i64::from(count)); // until their pools fetch them
        let shared = &pool.shared;
        self.count = 0;
        if shared.pool_record(owner).returns.push_chain(&shared.links, first, last, count).is_ok() {
            return;
        }
        // The pool was closed meanwhile: each frame is returned singly, and releases its reference to the
        // area.
        let mut frame = first;
        for _ in 0..count {
            // Before the frame is given up: its next owner may change the link. That of the last one is read,
            // but not followed.
            let next = shared.links[frame as usize].load(crate::sync::Ordering::Relaxed);
            // SAFETY: reclaimed from the kernel by `reap` and given up here; the pool keeps the area alive.
            unsafe { return_frame_to_pool(pool.area_pointer(), frame) };
            frame = next;
        }
    }
}

/// Puts a frame into a pool's cache, which has a cell for each of the pool's frames.
///
/// An overflowing cache means that a frame has two owners, which ends the process: continuing would hand out
/// memory twice, and unwinding would cost every loop over packets the registers for its state.
#[inline]
fn push_checked(cache: &[Cell<u32>], count: u32, frame: u32) {
    match cache.get(count as usize) {
        Some(cell) => cell.set(frame),
        None => std::process::abort(),
    }
}
