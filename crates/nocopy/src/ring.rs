//! Rings: single-producer, single-consumer queues of small entries, shared with the kernel or built in plain
//! memory.
//!
//! Layout and ordering follow the kernel's `net/xdp/xsk_queue.h`: two free-running 32-bit indices, a
//! power-of-two array of entries, and a flags word. The producer owns the producer index and publishes it
//! with *release*; the consumer reads it with *acquire*, and the same holds the other way round for the
//! consumer index. No other ordering is used anywhere.
//!
//! Both ends keep a private copy of the index they own and a cached copy of the other's, so a batch touches
//! each shared cache line at most once. The other end is never trusted: an index that claims more than the
//! ring holds is counted ([`Producer::bad_indices`]) and read as "full" or "empty"; the slot number is
//! masked, so no index leaves the array.
//!
//! Fill and completion rings have twice the entries that are ever in use, so the producer need not read the
//! kernel's index for every batch.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::sync::{AtomicU32, Ordering, Slot};

/// `XDP_RING_NEED_WAKEUP` of `linux/if_xdp.h`: the kernel sleeps and needs a system call to continue.
const NEED_WAKEUP: u32 = 1;

struct SharedRing<T> {
    /// Entries ever produced, modulo 2^32. Written only by the producer.
    producer: NonNull<AtomicU32>,
    /// Entries ever consumed, modulo 2^32. Written only by the consumer.
    consumer: NonNull<AtomicU32>,
    /// Written by the consumer of a producer ring (the kernel), read by its producer.
    flags: NonNull<AtomicU32>,
    /// `mask + 1` slots; a slot belongs to the producer from consumption to publication, otherwise to the
    /// consumer.
    entries: NonNull<Slot<T>>,
    mask: u32,
    /// Keeps the mapping that the pointers above point into.
    memory: Arc<dyn Any + Send + Sync>,
}

impl<T> Clone for SharedRing<T> {
    fn clone(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), ..*self }
    }
}

// SAFETY: the pointers stay valid wherever `memory` goes, and slots hold plain `Copy` data handed over by the
// indices.
unsafe impl<T: Send> Send for SharedRing<T> {}

impl<T: Copy> SharedRing<T> {
    fn producer_index(&self) -> &AtomicU32 {
        // SAFETY: valid as long as `memory` exists (constructors).
        unsafe { self.producer.as_ref() }
    }

    fn consumer_index(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn flags_word(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.flags.as_ref() }
    }

    #[inline]
    fn slot(&self, index: u32) -> &Slot<T> {
        // SAFETY: masked, so inside the `mask + 1` slots the constructors vouch for.
        unsafe { self.entries.add((index & self.mask) as usize).as_ref() }
    }

    const fn capacity(&self) -> u32 {
        self.mask + 1
    }
}

/// The place of one ring in a mapping made by the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingLayout {
    pub(crate) producer_bytes: usize,
    pub(crate) consumer_bytes: usize,
    pub(crate) flags_bytes: usize,
    pub(crate) entries_bytes: usize,
    pub(crate) capacity: u32,
}

fn shared_from_mapping<T: Copy>(
    base: NonNull<u8>,
    layout: RingLayout,
    memory: Arc<dyn Any + Send + Sync>,
) -> SharedRing<T> {
    // `slot` masks its index, which reaches every slot only if this holds. 0 is refused, too, so `- 1` below
    // is safe.
    assert!(layout.capacity.is_power_of_two(), "the kernel only makes power-of-two rings");
    // SAFETY: the caller of `map_producer`/`map_consumer` vouches that these offsets lie inside the mapping.
    unsafe {
        SharedRing {
            producer: base.add(layout.producer_bytes).cast(),
            consumer: base.add(layout.consumer_bytes).cast(),
            flags: base.add(layout.flags_bytes).cast(),
            entries: base.add(layout.entries_bytes).cast(),
            mask: layout.capacity - 1,
            memory,
        }
    }
}

/// The producing end over memory shared with the kernel (fill and tx rings).
///
/// # Safety
/// `layout` must describe a ring inside the mapping that `memory` keeps alive at `base`, aligned for its
/// types, with no other producer; any bit pattern must be a valid `T`.
pub(crate) unsafe fn map_producer<T: Copy>(
    base: NonNull<u8>,
    layout: RingLayout,
    memory: Arc<dyn Any + Send + Sync>,
) -> Producer<T> {
    Producer::new(shared_from_mapping(base, layout, memory))
}

/// The consuming end over memory shared with the kernel (rx and completion rings).
///
/// # Safety
/// As for [`map_producer`], with no other consumer.
pub(crate) unsafe fn map_consumer<T: Copy>(
    base: NonNull<u8>,
    layout: RingLayout,
    memory: Arc<dyn Any + Send + Sync>,
) -> Consumer<T> {
    Consumer::new(shared_from_mapping(base, layout, memory))
}

/// A ring in plain memory; the two indices are on separate cache lines, as in the kernel.
#[repr(C, align(128))]
struct PaddedIndex(AtomicU32);

struct PlainMemoryRing<T> {
    producer: PaddedIndex,
    consumer: PaddedIndex,
    flags: PaddedIndex,
    entries: Box<[Slot<T>]>,
}

// SAFETY: a slot is touched by one end at a time, decided by the indices (module documentation).
unsafe impl<T: Send> Sync for PlainMemoryRing<T> {}

/// Makes a ring of `capacity` entries in plain memory and returns its two ends.
/// Panics if `capacity` is not a power of two.
pub(crate) fn pair<T: Copy + Default + Send + 'static>(capacity: u32) -> (Producer<T>, Consumer<T>) {
    assert!(capacity.is_power_of_two(), "ring capacity {capacity} is not a power of two");
    let memory = Arc::new(PlainMemoryRing {
        producer: PaddedIndex(AtomicU32::new(0)),
        consumer: PaddedIndex(AtomicU32::new(0)),
        flags: PaddedIndex(AtomicU32::new(0)),
        entries: (0..capacity).map(|_| Slot::new(T::default())).collect(),
    });
    let shared = SharedRing {
        // The pointers stay valid although `memory` moves below: moving an `Arc` does not move its value.
        producer: NonNull::from(&memory.producer.0),
        consumer: NonNull::from(&memory.consumer.0),
        flags: NonNull::from(&memory.flags.0),
        entries: NonNull::from(&memory.entries[..]).cast(),
        mask: capacity - 1,
        memory,
    };
    (Producer::new(shared.clone()), Consumer::new(shared))
}

/// The producer of a ring that never has room and always wants a wake-up: for ports that lack this ring.
pub(crate) fn closed_producer<T: Copy + Default + Send + 'static>() -> Producer<T> {
    let (mut producer, _) = pair(1);
    let _ = producer.push(T::default()); // there is room for one
    producer.publish();
    producer.shared.flags_word().store(NEED_WAKEUP, Ordering::Relaxed);
    producer
}

/// The end that writes entries: of the fill and tx rings towards the kernel.
pub(crate) struct Producer<T> {
    shared: SharedRing<T>,
    /// Next slot to write; runs ahead of `published` while entries are staged.
    head: u32,
    published: u32,
    /// The consumer index as last read; never ahead of the true one.
    consumed: u32,
    bad_indices: u64,
}

impl<T: Copy> Producer<T> {
    fn new(shared: SharedRing<T>) -> Self {
        // Relaxed: this end alone writes this index.
        let head = shared.producer_index().load(Ordering::Relaxed);
        Self { head, published: head, consumed: head, bad_indices: 0, shared }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.shared.capacity()
    }

    /// Entries written but not yet consumed, including staged ones; reads the other end's index.
    pub(crate) fn in_flight(&mut self) -> u32 {
        self.refresh_consumer_index();
        self.head.wrapping_sub(self.consumed)
    }

    /// Entries written but not yet published.
    #[inline]
    pub(crate) fn staged_count(&self) -> u32 {
        self.head.wrapping_sub(self.published)
    }

    /// Entries ever written, including staged ones, modulo 2^32.
    #[inline]
    pub(crate) fn written_total(&self) -> u32 {
        self.head
    }

    /// Entries that the consumer has not taken yet, including staged ones, oldest first.
    pub(crate) fn pending_entries(&self) -> impl Iterator<Item = T> + '_ {
        let consumed = self.shared.consumer_index().load(Ordering::Acquire);
        let is_honest = self.published.wrapping_sub(consumed) <= self.published.wrapping_sub(self.consumed);
        // Otherwise the last honest index: slots before it may hold newer entries.
        let first = if is_honest { consumed } else { self.consumed };
        let count = self.head.wrapping_sub(first);
        // SAFETY: written by this end, which alone writes and does not while it is borrowed; the other end
        // only reads.
        (0..count).map(move |place| unsafe { self.shared.slot(first.wrapping_add(place)).read() })
    }

    /// How often the other end's index was impossible.
    pub(crate) fn bad_indices(&self) -> u64 {
        self.bad_indices
    }

    /// Whether the consumer asked to be woken by a system call (`XDP_RING_NEED_WAKEUP`).
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.shared.flags_word().load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// Free slots, at least `wanted` if there are that many; reads the shared index only if the cached one
    /// does not suffice.
    #[inline]
    pub(crate) fn free_slots(&mut self, wanted: u32) -> u32 {
        // No underflow here and below: `head` advances only over free slots, and `refresh_consumer_index`
        // moves `consumed` only forward.
        let known = self.capacity() - self.head.wrapping_sub(self.consumed);
        if known >= wanted {
            return known;
        }
        self.refresh_consumer_index();
        self.capacity() - self.head.wrapping_sub(self.consumed)
    }

    /// Re-reads the consumer index (acquire: pairs with the consumer's release, so its slots are ours again).
    #[cold]
    fn refresh_consumer_index(&mut self) {
        let consumed = self.shared.consumer_index().load(Ordering::Acquire);
        // An honest consumer moves forward, and never past what was published.
        if self.published.wrapping_sub(consumed) > self.published.wrapping_sub(self.consumed) {
            self.bad_indices += 1;
        } else {
            self.consumed = consumed;
        }
    }

    /// Stages one entry; [`publish`](Self::publish) shows all staged entries to the consumer. Returns the
    /// entry if the ring is full.
    #[inline]
    pub(crate) fn push(&mut self, entry: T) -> Result<(), T> {
        match self.vacant_slot() {
            Some(slot) => {
                slot.write(entry);
                Ok(())
            }
            None => Err(entry),
        }
    }

    /// The next slot, if the ring is not full: for entries that must be made only if they can be staged.
    #[inline]
    pub(crate) fn vacant_slot(&mut self) -> Option<VacantSlot<'_, T>> {
        if self.head.wrapping_sub(self.consumed) > self.shared.mask {
            self.refresh_consumer_index();
            if self.head.wrapping_sub(self.consumed) > self.shared.mask {
                return None;
            }
        }
        Some(VacantSlot { ring: self })
    }

    #[inline]
    fn write(&mut self, entry: T) {
        // SAFETY: `free_slots` said this slot is ours: consumed (acquire in `refresh_consumer_index`) and not
        // yet published.
        unsafe { self.shared.slot(self.head).write(entry) };
        self.head = self.head.wrapping_add(1);
    }

    /// Shows every staged entry to the consumer with one store (release: pairs with the consumer's acquire).
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.published = self.head;
        self.shared.producer_index().store(self.head, Ordering::Release);
    }

    /// Reserves up to `count` slots, fewer if the ring has fewer free; pushed entries are published on drop.
    #[inline]
    pub(crate) fn reserve(&mut self, count: u32) -> Reservation<'_, T> {
        let left = self.free_slots(count).min(count);
        let (entries, mask, next) = (self.shared.entries, self.shared.mask as usize, u64::from(self.head));
        Reservation { entries, mask, next, end: next + u64::from(left), ring: self }
    }

    /// Lets a test play a consumer that asks for wake-ups.
    #[cfg(all(test, not(nocopy_loom)))]
    fn set_needs_wakeup(&self, on: bool) {
        self.shared.flags_word().store(u32::from(on), Ordering::Relaxed);
    }
}

/// One free slot of a ring; see [`Producer::vacant_slot`].
#[derive(Debug)]
pub(crate) struct VacantSlot<'ring, T> {
    ring: &'ring mut Producer<T>,
}

impl<T: Copy> VacantSlot<'_, T> {
    #[inline]
    pub(crate) fn write(self, entry: T) {
        self.ring.write(entry);
    }
}

/// Slots reserved in a ring. Pushed entries are published on drop, also while unwinding: an entry may carry
/// ownership of a frame, and an entry written but never published would be a frame lost.
#[derive(Debug)]
pub(crate) struct Reservation<'ring, T: Copy> {
    ring: &'ring mut Producer<T>,
    // Copies of the ring's fields, so that a loop over slots keeps them in registers. Each has a register's
    // size, or the compiler packs two into one.
    entries: NonNull<Slot<T>>,
    mask: usize,
    /// Like the ring's indices, but without wrapping: `end` is at most a ring's size beyond 2^32.
    next: u64,
    end: u64,
}

// SAFETY: `entries` points into the ring that `ring` borrows exclusively.
unsafe impl<T: Copy + Send> Send for Reservation<'_, T> {}

impl<T: Copy> Reservation<'_, T> {
    /// Slots still free in this reservation.
    #[inline]
    pub(crate) fn remaining(&self) -> u32 {
        (self.end - self.next) as u32
    }

    /// Writes several entries.
    /// Panics if there are more entries than slots left.
    ///
    /// # Safety
    /// The iterator's length must be exact.
    #[inline]
    pub(crate) unsafe fn push_all(&mut self, entries: impl ExactSizeIterator<Item = T>) {
        assert!(entries.len() <= self.remaining() as usize, "more entries than slots");
        for entry in entries {
            // SAFETY: a slot is left for each: asserted, and the iterator's length is right.
            unsafe { self.push_unchecked(entry) };
        }
    }

    /// Writes one entry. Returns the entry if the reservation is used up.
    #[inline]
    #[allow(dead_code)] // for tests and models: the library knows that there is room
    pub(crate) fn push(&mut self, entry: T) -> Result<(), T> {
        if self.next == self.end {
            return Err(entry);
        }
        // SAFETY: a slot is left.
        unsafe { self.push_unchecked(entry) };
        Ok(())
    }

    /// Writes one entry.
    ///
    /// # Safety
    /// A slot is left ([`remaining`](Self::remaining)).
    #[inline]
    pub(crate) unsafe fn push_unchecked(&mut self, entry: T) {
        debug_assert!(self.next < self.end);
        // SAFETY: masked, so inside the ring; `reserve` said that the slots from `next` to `end` are ours.
        unsafe { self.entries.add(self.next as usize & self.mask).as_ref().write(entry) };
        self.next += 1;
    }
}

impl<T: Copy> Drop for Reservation<'_, T> {
    #[inline(always)] // a call would keep the reservation in memory
    fn drop(&mut self) {
        // The low 32 bits are the index modulo 2^32, as the kernel counts.
        self.ring.head = self.next as u32;
        self.ring.publish();
    }
}

/// The end that reads entries: of the rx and completion rings from the kernel.
pub(crate) struct Consumer<T> {
    shared: SharedRing<T>,
    /// Next slot to read.
    tail: u32,
    /// The producer index as last read; never ahead of the true one.
    produced: u32,
    bad_indices: u64,
}

impl<T: Copy> Consumer<T> {
    fn new(shared: SharedRing<T>) -> Self {
        let tail = shared.consumer_index().load(Ordering::Relaxed);
        Self { tail, produced: tail, bad_indices: 0, shared }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.shared.capacity()
    }

    /// How often the other end's index was impossible.
    pub(crate) fn bad_indices(&self) -> u64 {
        self.bad_indices
    }

    /// Entries ever read, modulo 2^32.
    #[inline]
    pub(crate) fn read_total(&self) -> u32 {
        self.tail
    }

    /// Entries ready to be read; reads the shared index if fewer than `wanted` are known.
    #[inline]
    pub(crate) fn available(&mut self, wanted: u32) -> u32 {
        let known = self.produced.wrapping_sub(self.tail);
        if known >= wanted {
            return known;
        }
        // Acquire: pairs with the producer's release, so the entries behind the index are visible.
        let produced = self.shared.producer_index().load(Ordering::Acquire);
        let ready = produced.wrapping_sub(self.tail);
        // An honest index is at most a ring beyond `tail` and never behind the last one; any other fails one
        // of these.
        if ready > self.capacity() || ready < known {
            self.bad_indices += 1;
            return known;
        }
        self.produced = produced;
        ready
    }

    /// Entries ready to be read, by the shared index as it is now.
    pub(crate) fn ready_count(&self) -> u32 {
        let known = self.produced.wrapping_sub(self.tail);
        // Relaxed: no entry is read by this.
        let ready = self.shared.producer_index().load(Ordering::Relaxed).wrapping_sub(self.tail);
        // As in `available`: any other index is impossible.
        if ready > self.capacity() || ready < known { known } else { ready }
    }

    /// Takes up to `count` entries; read entries are released to the producer on drop.
    #[inline]
    pub(crate) fn ready_entries(&mut self, count: u32) -> ReadyEntries<'_, T> {
        let next = self.tail;
        let end = next.wrapping_add(self.available(count).min(count));
        // Everything offered counts as read until drop puts back what was not. So a forgotten iterator loses
        // entries; if the index moved with the iterator, they would be read again.
        self.tail = end;
        ReadyEntries { entries: self.shared.entries, mask: self.shared.mask, next, end, ring: self }
    }

    /// Gives every slot read so far back to the producer (release: pairs with the producer's acquire).
    #[inline]
    fn release_slots(&mut self) {
        self.shared.consumer_index().store(self.tail, Ordering::Release);
    }
}

/// Entries ready in a ring: an iterator that copies each entry out once, and releases the slots it read on
/// drop.
#[derive(Debug)]
pub(crate) struct ReadyEntries<'ring, T: Copy> {
    ring: &'ring mut Consumer<T>,
    // Copies of the ring's fields, so that a loop over entries keeps them in registers.
    entries: NonNull<Slot<T>>,
    mask: u32,
    next: u32,
    end: u32,
}

// SAFETY: `entries` points into the ring that `ring` borrows exclusively.
unsafe impl<T: Copy + Send> Send for ReadyEntries<'_, T> {}

impl<T: Copy> ReadyEntries<'_, T> {
    /// Like [`entry_at`](Self::entry_at), but only a hint: the other end may change the entry during the
    /// read.
    #[inline]
    pub(crate) fn entry_hint(&self, ahead: u32) -> Option<T> {
        if ahead >= self.end.wrapping_sub(self.next) {
            return None;
        }
        // A plain read suffices: callers only prefetch by the result, so a torn or changed entry does no
        // harm.
        let index = self.next.wrapping_add(ahead) & self.mask;
        // SAFETY: masked and published, as in `entry`.
        Some(unsafe { self.entries.add(index as usize).cast::<T>().read() })
    }

    /// The position of the next entry, modulo 2^32, counted from the ring's start.
    #[inline]
    pub(crate) fn position(&self) -> u32 {
        self.next
    }

    /// The entry `ahead` places after the next one, without taking it.
    #[inline]
    pub(crate) fn entry_at(&self, ahead: u32) -> Option<T> {
        if ahead >= self.end.wrapping_sub(self.next) {
            return None;
        }
        Some(self.entry(self.next.wrapping_add(ahead)))
    }

    /// An entry between `next` and `end`.
    #[inline]
    fn entry(&self, index: u32) -> T {
        debug_assert!(index.wrapping_sub(self.next) < self.end.wrapping_sub(self.next));
        // SAFETY: masked, so inside the ring; the entries from `next` to `end` were published (acquire in
        // `available`) and are not yet released.
        unsafe { self.entries.add((index & self.mask) as usize).as_ref().read() }
    }
}

impl<T: Copy> Iterator for ReadyEntries<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.next == self.end {
            return None;
        }
        let entry = self.entry(self.next);
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end.wrapping_sub(self.next) as usize;
        (left, Some(left))
    }
}

impl<T: Copy> ExactSizeIterator for ReadyEntries<'_, T> {}

impl<T: Copy> Drop for ReadyEntries<'_, T> {
    #[inline(always)] // a call would keep the iterator in memory
    fn drop(&mut self) {
        self.ring.tail = self.next;
        self.ring.release_slots();
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("head", &self.head)
            .field("published", &self.published)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("tail", &self.tail)
            .field("produced", &self.produced)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(nocopy_loom)))]
#[path = "ring/tests.rs"] // nocopy-loom, which borrows this file, looks for it beside this one
mod tests;

#[cfg(all(test, nocopy_loom))]
mod loom_tests {
    use super::*;

    /// Every entry arrives once, in order, in every interleaving; the ring is smaller than the load, so slots
    /// are reused and a wrong ordering on the consumer index shows as a race on the slot.
    #[test]
    fn entries_cross_threads_in_order() {
        // Three forced switches reach every reordering of two indices; without a limit this runs for minutes.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let (mut producer, mut consumer) = pair::<u64>(2);
            let writer = loom::thread::spawn(move || {
                for value in 0..3u64 {
                    while producer.push(value).is_err() {
                        loom::thread::yield_now();
                    }
                    producer.publish();
                }
            });
            let mut expected = 0;
            while expected < 3 {
                let before = expected;
                for value in consumer.ready_entries(2) {
                    assert_eq!(value, expected);
                    expected += 1;
                }
                if expected == before {
                    loom::thread::yield_now();
                }
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn a_batch_is_published_at_once() {
        loom::model(|| {
            let (mut producer, mut consumer) = pair::<u64>(4);
            let writer = loom::thread::spawn(move || {
                let mut slots = producer.reserve(2);
                slots.push(1).unwrap();
                slots.push(2).unwrap();
            });
            assert!(matches!(consumer.available(2), 0 | 2));
            writer.join().unwrap();
            assert_eq!(consumer.ready_entries(4).collect::<Vec<_>>(), [1, 2]);
        });
    }
}
