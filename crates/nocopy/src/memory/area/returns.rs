//! The return list, in which frames dropped outside their pool's half wait until the half fetches them.
//!
//! Any thread pushes (one compare-and-swap for a whole chain); one thread takes everything with one swap.
//! Because no thread pops single elements, the ABA problem of linked stacks cannot arise. The links are in a
//! side array indexed by frame number, so frames themselves are not touched.
//!
//! A frame that is recycled on the half that received it, or a borrowed packet that is dropped, does not use
//! the list: both are a push onto the half's own stack, without an atomic operation. A plain `drop` on that
//! half's thread cannot do the same: a destructor would need a lock or a thread-local cache, and frames in
//! such a cache would be missing from the balance.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Low half of an empty list's head.
const END: u32 = u32::MAX;
/// Low half of a closed list's head: the pool is closed, so frames return to the area.
const CLOSED: u32 = u32::MAX - 1;

/// The largest number of frames an area can hold, so that no frame number looks like a marker.
pub(crate) const FRAME_COUNT_MAX: u32 = CLOSED;

/// Frame numbers chained through a side array; the head packs (count, first).
#[derive(Debug)]
pub(crate) struct ReturnList {
    head: AtomicU64,
}

fn pack_head(count: u32, first: u32) -> u64 {
    // In one word, so that one exchange keeps the count and the chain consistent.
    (u64::from(count) << 32) | u64::from(first)
}

fn unpack_head(head: u64) -> (u32, u32) {
    ((head >> 32) as u32, head as u32)
}

/// The list was closed; the frame stays with the caller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListClosed;

impl ReturnList {
    /// A list without an owner: closed.
    pub(crate) fn new() -> Self {
        Self { head: AtomicU64::new(pack_head(0, CLOSED)) }
    }

    pub(crate) fn open(&self) {
        // No push comes in between: a pool's number is reused only when no frame has that pool as its owner.
        self.head.store(pack_head(0, END), Ordering::Release);
    }

    pub(crate) fn count(&self) -> u32 {
        unpack_head(self.head.load(Ordering::Relaxed)).0
    }

    pub(crate) fn push(&self, links: &[AtomicU32], frame: u32) -> Result<(), ListClosed> {
        self.push_chain(links, frame, frame, 1)
    }

    /// Adds `count` frames already linked from `first` to `last`.
    ///
    /// Release: pairs with the acquire of `take`, so the owner sees the links, and everything done to the
    /// frames.
    pub(crate) fn push_chain(
        &self,
        links: &[AtomicU32],
        first: u32,
        last: u32,
        count: u32,
    ) -> Result<(), ListClosed> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let (waiting, next) = unpack_head(head);
            // Relaxed suffices also for this: the caller then takes the area's lock, under which the list was
            // closed.
            if next == CLOSED {
                return Err(ListClosed);
            }
            // Relaxed: the exchange below releases it. Until then the frames are the caller's, so nothing
            // else reads the link.
            links[last as usize].store(next, Ordering::Relaxed);
            match self.head.compare_exchange_weak(
                head,
                // No overflow: a frame is on one list at most, so `count` and `waiting` are frames of one
                // area.
                pack_head(waiting + count, first),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => head = now,
            }
        }
    }

    /// Takes every waiting frame of an open list. Acquire: pairs with the pushes' release.
    pub(crate) fn take<'a>(&self, links: &'a [AtomicU32]) -> ReturnedFrames<'a> {
        ReturnedFrames { links, next: unpack_head(self.head.swap(pack_head(0, END), Ordering::Acquire)).1 }
    }

    pub(crate) fn close<'a>(&self, links: &'a [AtomicU32]) -> ReturnedFrames<'a> {
        ReturnedFrames { links, next: unpack_head(self.head.swap(pack_head(0, CLOSED), Ordering::Acquire)).1 }
    }
}

pub(crate) struct ReturnedFrames<'a> {
    links: &'a [AtomicU32],
    next: u32,
}

impl Iterator for ReturnedFrames<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.next == END || self.next == CLOSED {
            return None;
        }
        let frame = self.next;
        // Before the frame is given out: its next owner may push it again, and change the link.
        self.next = self.links[frame as usize].load(Ordering::Relaxed);
        Some(frame)
    }
}

#[cfg(all(test, nocopy_loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    fn open_list(frames: usize) -> Arc<(ReturnList, Vec<AtomicU32>)> {
        let list = ReturnList::new();
        list.open();
        Arc::new((list, (0..frames).map(|_| AtomicU32::new(0)).collect()))
    }

    #[test]
    fn each_returned_frame_is_taken_exactly_once() {
        loom::model(|| {
            let shared = open_list(3);
            let droppers: Vec<_> = [vec![0], vec![1, 2]]
                .into_iter()
                .map(|frames| {
                    let shared = Arc::clone(&shared);
                    loom::thread::spawn(move || {
                        for frame in frames {
                            shared.0.push(&shared.1, frame).unwrap();
                        }
                    })
                })
                .collect();
            let mut taken: Vec<u32> = shared.0.take(&shared.1).collect();
            for dropper in droppers {
                dropper.join().unwrap();
            }
            taken.extend(shared.0.take(&shared.1));
            taken.sort_unstable();
            assert_eq!(taken, [0, 1, 2]);
        });
    }

    #[test]
    fn a_push_during_closing_loses_no_frame() {
        loom::model(|| {
            let shared = open_list(1);
            let dropper = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || shared.0.push(&shared.1, 0).is_err())
            };
            let taken = shared.0.close(&shared.1).count();
            let refused = dropper.join().unwrap();
            assert_eq!(taken + usize::from(refused), 1);
        });
    }
}
