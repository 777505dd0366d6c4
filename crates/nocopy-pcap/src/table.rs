//! The table from a program's `pcap_t` pointers to the state that this library keeps for each of them.
//!
//! A lookup takes no lock, because signal handlers look handles up (`pcap_breakloop`). The table grows by
//! segments, which are never freed: a reading call that has waited, or called the program, finds its handle
//! again in its slot, or finds out that it was closed.

use std::ops::Deref;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::Pcap;
use crate::handle::{Claim, Handle, StackPosition};

/// Slots of a segment: one for each handle.
const SLOTS: usize = 256;

/// The key of a slot whose handle was removed. A lookup continues past it, an insertion may reuse it.
fn closed_key() -> *mut Pcap {
    without_provenance_mut(1)
}

/// The key of a slot that is not used again, because a step of a call still has its claim.
fn retired_key() -> *mut Pcap {
    without_provenance_mut(2)
}

/// Whether a slot's key is that of a handle.
fn is_handle_key(key: *mut Pcap) -> bool {
    !key.is_null() && key != closed_key() && key != retired_key()
}

#[derive(Debug)]
struct Slot {
    key: AtomicPtr<Pcap>,
    /// Changed only by the holder of the claim, or without a claim by the one call that opens the handle.
    handle: AtomicPtr<Handle>,
    claim: Claim,
}

impl Slot {
    const fn new() -> Self {
        let (key, handle) = (AtomicPtr::new(null_mut()), AtomicPtr::new(null_mut()));
        Self { key, handle, claim: Claim::new() }
    }
}

struct Segment {
    slots: [Slot; SLOTS],
    next: AtomicPtr<Segment>,
}

static FIRST: Segment = Segment::new();

impl Segment {
    const fn new() -> Self {
        let slots = [const { Slot::new() }; SLOTS];
        Self { slots, next: AtomicPtr::new(null_mut()) }
    }

    /// All slots of the segment, in the order in which they are searched for a key.
    fn probe_sequence(&self, key: *mut Pcap) -> impl Iterator<Item = &Slot> {
        // malloc returns multiples of 16.
        let first = (key.addr() >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        (0..SLOTS).map(move |step| &self.slots[(first + step) % SLOTS])
    }

    fn find_slot(&self, key: *mut Pcap) -> Option<&Slot> {
        // Acquire: pairs with the exchange in `allocate_slot`: a handle that is then read from the slot is at
        // least as new as the key.
        let keys = self.probe_sequence(key).map(|slot| (slot, slot.key.load(Ordering::Acquire)));
        // Nothing lies behind an empty slot: a key takes the first free one, and no slot becomes empty again.
        keys.take_while(|(_, found)| !found.is_null()).find(|(_, found)| *found == key).map(|(slot, _)| slot)
    }

    fn allocate_slot(&self, key: *mut Pcap) -> Option<&Slot> {
        self.probe_sequence(key).find(|slot| {
            let found = slot.key.load(Ordering::Relaxed);
            let is_free = found.is_null() || found == closed_key();
            // Release: pairs with the acquire in `find_slot`.
            is_free && slot.key.compare_exchange(found, key, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    fn next_segment(&self) -> Option<&'static Self> {
        // Acquire: pairs with the exchange in `append_segment`.
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: null, or a segment that is never freed.
        unsafe { next.as_ref() }
    }

    /// The next segment; allocates it if there is none.
    fn append_segment(&self) -> &'static Self {
        let added = Box::into_raw(Box::new(Self::new()));
        // Release: pairs with the acquire in `next_segment`; acquire: pairs with the release of another
        // thread that added a segment first.
        match self.next.compare_exchange(null_mut(), added, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: allocated above, and now never freed.
            Ok(_) => unsafe { &*added },
            Err(theirs) => {
                // SAFETY: allocated above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(added) });
                // SAFETY: a segment that is never freed.
                unsafe { &*theirs }
            }
        }
    }
}

fn segments() -> impl Iterator<Item = &'static Segment> {
    std::iter::successors(Some(&FIRST), |segment| segment.next_segment())
}

/// The handle that belongs to a pointer; `None` for pointers that only the system's libpcap knows.
#[inline]
pub(crate) fn find_handle(key: *mut Pcap) -> Option<&'static Handle> {
    let slot = find_slot(key)?;
    // SAFETY: null, or a handle, which lives until it is closed. Closing one while another call uses it is an
    // error of the program with any libpcap. Acquire: pairs with the release in `insert_handle`.
    unsafe { slot.handle.load(Ordering::Acquire).as_ref() }
}

#[inline]
fn find_slot(key: *mut Pcap) -> Option<&'static Slot> {
    if !is_handle_key(key) {
        return None;
    }
    segments().find_map(|segment| segment.find_slot(key))
}

/// Where a reading call finds its handle, again and again. Plain data: a thread may leave the call with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandleSlot {
    slot: &'static Slot,
    number: u64,
}

/// Why a reading call does not get its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimError {
    /// It was closed, while the call waited or called the program.
    Closed,
    /// Another step has it, and does not end.
    Busy,
}

/// A handle during a step of a reading call: it is not closed, and nothing else reads it.
#[derive(Debug)]
pub(crate) struct HandleGuard {
    slot: &'static Slot,
    handle: NonNull<Handle>,
}

/// As [`find_handle`], for calls during which the handle may be closed: only handles for which this library
/// captures.
#[inline]
pub(crate) fn find_for_reading(key: *mut Pcap) -> Option<HandleSlot> {
    let slot = find_slot(key)?;
    // SAFETY: as in `find_handle`.
    let handle = unsafe { slot.handle.load(Ordering::Acquire).as_ref() }?;
    handle.live_capture().is_some().then_some(HandleSlot { slot, number: handle.number })
}

impl HandleSlot {
    /// Begins a step; waits for that of another thread.
    pub(crate) fn begin_step(self, position: StackPosition) -> Result<HandleGuard, ClaimError> {
        if self.slot.claim.acquire(position) { self.guard_if_open() } else { Err(ClaimError::Busy) }
    }

    /// Begins a step without waiting.
    #[inline]
    pub(crate) fn try_begin_step(self, position: StackPosition) -> Result<HandleGuard, ClaimError> {
        if self.slot.claim.try_acquire(position) { self.guard_if_open() } else { Err(ClaimError::Busy) }
    }

    #[inline]
    fn guard_if_open(self) -> Result<HandleGuard, ClaimError> {
        let handle = NonNull::new(self.slot.handle.load(Ordering::Acquire));
        // SAFETY: it is freed only after it was removed by a holder of the claim.
        match handle.filter(|handle| unsafe { handle.as_ref() }.number == self.number) {
            Some(handle) => Ok(HandleGuard { slot: self.slot, handle }),
            None => {
                self.slot.claim.release();
                Err(ClaimError::Closed)
            }
        }
    }
}

impl Deref for HandleGuard {
    type Target = Handle;

    #[inline]
    fn deref(&self) -> &Handle {
        // SAFETY: as in `guard_if_open`.
        unsafe { self.handle.as_ref() }
    }
}

impl Drop for HandleGuard {
    #[inline]
    fn drop(&mut self) {
        self.slot.claim.release();
    }
}

pub(crate) fn insert_handle(key: *mut Pcap, handle: Box<Handle>) {
    let handle = Box::into_raw(handle);
    let mut segment = &FIRST;
    let slot = loop {
        match segment.allocate_slot(key) {
            Some(slot) => break slot,
            None => segment = segment.next_segment().unwrap_or_else(|| segment.append_segment()),
        }
    };
    // Release: pairs with the acquire in `find_handle`.
    slot.handle.store(handle, Ordering::Release);
}

/// Calls this for each handle, after the step that another thread is in. Handles of steps that do not end, or
/// that the caller interrupted, are left out.
pub(crate) fn for_each_handle(position: StackPosition, mut call: impl FnMut(*mut Pcap, &Handle)) {
    for slot in segments().flat_map(|segment| &segment.slots) {
        // Relaxed: only to pass over empty slots; it is loaded again with the claim.
        if slot.handle.load(Ordering::Relaxed).is_null() || !slot.claim.acquire(position) {
            continue;
        }
        // SAFETY: null, or a handle: it is freed only after it was removed by a holder of the claim.
        let handle = unsafe { slot.handle.load(Ordering::Acquire).as_ref() };
        // After the handle, which was stored after its key.
        let key = slot.key.load(Ordering::Acquire);
        if let Some(handle) = handle.filter(|_| is_handle_key(key)) {
            call(key, handle);
        }
        slot.claim.release();
    }
}

/// A handle that was removed.
#[derive(Debug)]
pub(crate) enum RemovedHandle {
    /// Nothing uses it: to be freed by `Box::from_raw`.
    Free(NonNull<Handle>),
    /// A step of a call still uses it, which the calling signal handler interrupted: it is never freed.
    InUse(&'static Handle),
}

/// Removes the handle of a `pcap_t` pointer. Calls that wait or call the program find it no more.
pub(crate) fn remove_handle(key: *mut Pcap, position: StackPosition) -> Option<RemovedHandle> {
    let slot = find_slot(key)?;
    let is_free = slot.claim.acquire(position);
    let handle = NonNull::new(slot.handle.swap(null_mut(), Ordering::AcqRel));
    // Release: pairs with the exchange in `allocate_slot`: the next key in this slot starts without a handle.
    slot.key.store(if is_free { closed_key() } else { retired_key() }, Ordering::Release);
    if is_free {
        slot.claim.release();
    }
    handle.map(|handle| match is_free {
        true => RemovedHandle::Free(handle),
        // SAFETY: never freed, as nothing finds it any more.
        false => RemovedHandle::InUse(unsafe { handle.as_ref() }),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use super::*;
    use crate::handle::StackMark;
    use crate::timed_wait::TIMED_OUT;

    /// All threads of the process share the table.
    static TABLE_LOCK: Mutex<()> = Mutex::new(());

    fn test_key(number: usize) -> *mut Pcap {
        without_provenance_mut(number * 16 + 4096)
    }

    fn insert_numbered(number: usize) -> u64 {
        insert_handle(test_key(number), Box::new(Handle::new(None)));
        find_handle(test_key(number)).unwrap().number
    }

    fn remove_with_key(key: *mut Pcap) -> Option<RemovedHandle> {
        remove_handle(key, StackMark::new().position())
    }

    fn remove_numbered(number: usize) -> Option<u64> {
        match remove_with_key(test_key(number))? {
            // SAFETY: made from a box in `insert_numbered`, and removed once.
            RemovedHandle::Free(handle) => Some(unsafe { Box::from_raw(handle.as_ptr()) }.number),
            RemovedHandle::InUse(handle) => panic!("{} is in use", handle.number),
        }
    }

    /// Another thread is in a step that ends when its handle was closed, and a handle with another key opened
    /// in its slot.
    #[test]
    fn a_busy_slot_is_enumerated_after_its_step_with_its_new_key() {
        let _table_lock = TABLE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        insert_numbered(1);
        let (mark, slot) = (StackMark::new(), find_slot(test_key(1)).unwrap());
        let reopen = |number: usize| {
            let new = Box::new(Handle::new(None));
            let number_of_new = new.number;
            let old = slot.handle.swap(null_mut(), Ordering::AcqRel);
            slot.key.store(test_key(number), Ordering::Release);
            slot.handle.store(Box::into_raw(new), Ordering::Release);
            // SAFETY: made from a box, and only this thread has it.
            drop(unsafe { Box::from_raw(old) });
            (test_key(number).addr(), number_of_new)
        };
        let enumerate = || {
            let mut all = Vec::new();
            for_each_handle(StackMark::new().position(), |key, handle| all.push((key.addr(), handle.number)));
            (all, TIMED_OUT.get() > 0)
        };
        for number in 2.. {
            assert!(slot.claim.acquire(mark.position()));
            let (all, timed_out, new) = std::thread::scope(|scope| {
                let other = scope.spawn(enumerate);
                std::thread::sleep(Duration::from_millis(20)); // mostly enough for it to come to the slot
                let new = reopen(number);
                slot.claim.release();
                let (all, timed_out) = other.join().unwrap();
                (all, timed_out, new)
            });
            if !timed_out {
                assert_eq!(all, [new]);
                break;
            }
        }
        reopen(1);
        assert!(remove_numbered(1).is_some());
    }

    #[test]
    fn any_number_of_handles_is_found_until_removed() {
        let _table_lock = TABLE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(
            find_handle(null_mut()).is_none()
                && find_handle(closed_key()).is_none()
                && remove_with_key(null_mut()).is_none()
        );
        let numbers: Vec<u64> = (0..1000).map(insert_numbered).collect();
        let is_found = |number: usize| {
            find_handle(test_key(number)).map(|handle| handle.number) == Some(numbers[number])
        };
        assert!((0..1000).all(is_found));
        let mut all = Vec::new();
        for_each_handle(StackMark::new().position(), |_, handle| all.push(handle.number));
        all.sort_unstable();
        assert_eq!(all, numbers);
        for number in (0..1000).step_by(2) {
            assert_eq!(remove_numbered(number), Some(numbers[number]));
            assert!(find_handle(test_key(number)).is_none() && remove_numbered(number).is_none());
        }
        assert!((1..1000).step_by(2).all(is_found));
        // Slots are reused: inserting and removing many handles does not make the table grow.
        let segments_before = segments().count();
        for number in 2000..12_000 {
            insert_numbered(number);
            assert!(remove_numbered(number).is_some());
        }
        assert_eq!(segments().count(), segments_before);
        let from_threads = |thread: usize| {
            for number in (0..500).map(|step| 20_000 + step * 4 + thread) {
                let inserted = insert_numbered(number);
                assert_eq!(find_handle(test_key(number)).unwrap().number, inserted);
                assert_eq!(remove_numbered(number), Some(inserted));
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || from_threads(thread)))));
        assert!((1..1000).step_by(2).all(is_found));
        (1..1000).step_by(2).for_each(|number| assert!(remove_numbered(number).is_some()));
    }
}
