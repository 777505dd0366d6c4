//! The table from a program's `pcap_t` pointers to the state that this library keeps for each of them.
//!
//! A lookup takes no lock, because signal handlers look handles up (`pcap_breakloop`). The table grows by
//! segments, which are never freed: a reading call that has waited, or called the program, finds its handle
//! again in its slot, or finds out that it was closed.

use std::ops::Deref;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::Pcap;
use crate::handle::{CallSite, Claim, Handle};

/// Slots of a segment: one for each handle.
const SLOTS: usize = 256;

/// The key of a slot whose handle was removed. A lookup continues past it, an insertion may reuse it.
fn closed() -> *mut Pcap {
    without_provenance_mut(1)
}

/// The key of a slot that is not used again, because a step of a call still has its claim.
fn retired() -> *mut Pcap {
    without_provenance_mut(2)
}

/// Whether a slot's key is that of a handle.
fn is_key(key: *mut Pcap) -> bool {
    !key.is_null() && key != closed() && key != retired()
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
    fn slots_for(&self, key: *mut Pcap) -> impl Iterator<Item = &Slot> {
        // malloc returns multiples of 16.
        let first = (key.addr() >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        (0..SLOTS).map(move |step| &self.slots[(first + step) % SLOTS])
    }

    fn find(&self, key: *mut Pcap) -> Option<&Slot> {
        // Acquire: pairs with the exchange in `allocate`: a handle that is then read from the slot is at
        // least as new as the key.
        let keys = self.slots_for(key).map(|slot| (slot, slot.key.load(Ordering::Acquire)));
        // Nothing lies behind an empty slot: a key takes the first free one, and no slot becomes empty again.
        keys.take_while(|(_, found)| !found.is_null()).find(|(_, found)| *found == key).map(|(slot, _)| slot)
    }

    fn allocate(&self, key: *mut Pcap) -> Option<&Slot> {
        self.slots_for(key).find(|slot| {
            let found = slot.key.load(Ordering::Relaxed);
            let is_free = found.is_null() || found == closed();
            // Release: pairs with the acquire in `find`.
            is_free && slot.key.compare_exchange(found, key, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    fn next(&self) -> Option<&'static Self> {
        // Acquire: pairs with the exchange in `grow`.
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: null, or a segment that is never freed.
        unsafe { next.as_ref() }
    }

    /// The next segment; allocates it if there is none.
    fn grow(&self) -> &'static Self {
        let added = Box::into_raw(Box::new(Self::new()));
        // Release: pairs with the acquire in `next`; acquire: pairs with the release of another thread that
        // added a segment first.
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
    std::iter::successors(Some(&FIRST), |segment| segment.next())
}

/// The handle that belongs to a pointer; `None` for pointers that only the system's libpcap knows.
#[inline]
pub(crate) fn find(key: *mut Pcap) -> Option<&'static Handle> {
    let slot = find_slot(key)?;
    // SAFETY: null, or a handle, which lives until it is closed. Closing one while another call uses it is an
    // error of the program with any libpcap. Acquire: pairs with the release in `insert`.
    unsafe { slot.handle.load(Ordering::Acquire).as_ref() }
}

#[inline]
fn find_slot(key: *mut Pcap) -> Option<&'static Slot> {
    if !is_key(key) {
        return None;
    }
    segments().find_map(|segment| segment.find(key))
}

/// Where a reading call finds its handle, again and again. Plain data: a thread may leave the call with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandleSlot {
    slot: &'static Slot,
    number: u64,
}

/// Why a reading call does not get its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EnterError {
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

/// As [`find`], for calls during which the handle may be closed: only handles for which this library
/// captures.
#[inline]
pub(crate) fn find_for_reading(key: *mut Pcap) -> Option<HandleSlot> {
    let slot = find_slot(key)?;
    // SAFETY: as in `find`.
    let handle = unsafe { slot.handle.load(Ordering::Acquire).as_ref() }?;
    handle.live().is_some().then_some(HandleSlot { slot, number: handle.number })
}

impl HandleSlot {
    /// Begins a step; waits for that of another thread.
    pub(crate) fn enter(self, site: CallSite) -> Result<HandleGuard, EnterError> {
        if self.slot.claim.acquire(site) { self.guard() } else { Err(EnterError::Busy) }
    }

    /// Begins a step without waiting.
    #[inline]
    pub(crate) fn try_enter(self, site: CallSite) -> Result<HandleGuard, EnterError> {
        if self.slot.claim.try_acquire(site) { self.guard() } else { Err(EnterError::Busy) }
    }

    #[inline]
    fn guard(self) -> Result<HandleGuard, EnterError> {
        let handle = NonNull::new(self.slot.handle.load(Ordering::Acquire));
        // SAFETY: it is freed only after it was removed by a holder of the claim.
        match handle.filter(|handle| unsafe { handle.as_ref() }.number == self.number) {
            Some(handle) => Ok(HandleGuard { slot: self.slot, handle }),
            None => {
                self.slot.claim.release();
                Err(EnterError::Closed)
            }
        }
    }
}

impl Deref for HandleGuard {
    type Target = Handle;

    #[inline]
    fn deref(&self) -> &Handle {
        // SAFETY: as in `guard`.
        unsafe { self.handle.as_ref() }
    }
}

impl Drop for HandleGuard {
    #[inline]
    fn drop(&mut self) {
        self.slot.claim.release();
    }
}

pub(crate) fn insert(key: *mut Pcap, handle: Box<Handle>) {
    let handle = Box::into_raw(handle);
    let mut segment = &FIRST;
    let slot = loop {
        match segment.allocate(key) {
            Some(slot) => break slot,
            None => segment = segment.next().unwrap_or_else(|| segment.grow()),
        }
    };
    // Release: pairs with the acquire in `find_pointer`.
    slot.handle.store(handle, Ordering::Release);
}

/// Calls this for each handle, after the step that another thread is in. Handles of steps that do not end, or
/// that the caller interrupted, are left out.
pub(crate) fn for_each(site: CallSite, mut call: impl FnMut(*mut Pcap, &Handle)) {
    for slot in segments().flat_map(|segment| &segment.slots) {
        // Relaxed: only to pass over empty slots; it is loaded again with the claim.
        if slot.handle.load(Ordering::Relaxed).is_null() || !slot.claim.acquire(site) {
            continue;
        }
        // SAFETY: null, or a handle: it is freed only after it was removed by a holder of the claim.
        let handle = unsafe { slot.handle.load(Ordering::Acquire).as_ref() };
        // After the handle, which was stored after its key.
        let key = slot.key.load(Ordering::Acquire);
        if let Some(handle) = handle.filter(|_| is_key(key)) {
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
pub(crate) fn remove(key: *mut Pcap, site: CallSite) -> Option<RemovedHandle> {
    let slot = find_slot(key)?;
    let is_free = slot.claim.acquire(site);
    let handle = NonNull::new(slot.handle.swap(null_mut(), Ordering::AcqRel));
    // Release: pairs with the exchange in `allocate`: the next key in this slot starts without a handle.
    slot.key.store(if is_free { closed() } else { retired() }, Ordering::Release);
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

    fn key(number: usize) -> *mut Pcap {
        without_provenance_mut(number * 16 + 4096)
    }

    fn insert_numbered(number: usize) -> u64 {
        insert(key(number), Box::new(Handle::new(None)));
        find(key(number)).unwrap().number
    }

    fn remove_at(key: *mut Pcap) -> Option<RemovedHandle> {
        remove(key, StackMark::new().site())
    }

    fn remove_numbered(number: usize) -> Option<u64> {
        match remove_at(key(number))? {
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
        let (mark, slot) = (StackMark::new(), find_slot(key(1)).unwrap());
        let reopen = |number: usize| {
            let new = Box::new(Handle::new(None));
            let number_of_new = new.number;
            let old = slot.handle.swap(null_mut(), Ordering::AcqRel);
            slot.key.store(key(number), Ordering::Release);
            slot.handle.store(Box::into_raw(new), Ordering::Release);
            // SAFETY: made from a box, and only this thread has it.
            drop(unsafe { Box::from_raw(old) });
            (key(number).addr(), number_of_new)
        };
        let enumerate = || {
            let mut all = Vec::new();
            for_each(StackMark::new().site(), |key, handle| all.push((key.addr(), handle.number)));
            (all, TIMED_OUT.get() > 0)
        };
        for number in 2.. {
            assert!(slot.claim.acquire(mark.site()));
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
        assert!(find(null_mut()).is_none() && find(closed()).is_none() && remove_at(null_mut()).is_none());
        let numbers: Vec<u64> = (0..1000).map(insert_numbered).collect();
        let is_found = |number: usize| find(key(number)).map(|handle| handle.number) == Some(numbers[number]);
        assert!((0..1000).all(is_found));
        let mut all = Vec::new();
        for_each(StackMark::new().site(), |_, handle| all.push(handle.number));
        all.sort_unstable();
        assert_eq!(all, numbers);
        for number in (0..1000).step_by(2) {
            assert_eq!(remove_numbered(number), Some(numbers[number]));
            assert!(find(key(number)).is_none() && remove_numbered(number).is_none());
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
                assert_eq!(find(key(number)).unwrap().number, inserted);
                assert_eq!(remove_numbered(number), Some(inserted));
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || from_threads(thread)))));
        assert!((1..1000).step_by(2).all(is_found));
        (1..1000).step_by(2).for_each(|number| assert!(remove_numbered(number).is_some()));
    }
}
