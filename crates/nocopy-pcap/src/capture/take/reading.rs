//! Claimed packets in place, together with the queues that they return to.

use std::io;

use nocopy::Packet;
use nocopy::port::Queues;

/// The most packets claimed at a time.
pub(super) const CLAIMED_MAX: u32 = 64;

/// How many frames ahead of the one being delivered are prefetched into this processor's cache. More would
/// evict each other: the distances between frames are powers of two, so frames share few sets of a cache.
const AHEAD: usize = 12;

/// The queues of an interface, and the claimed packets.
#[derive(Debug)]
pub(super) struct Reading {
    /// Packets of `queues`. The field is declared before `queues`, so that packets are dropped first. Only
    /// [`Self::queues`] gives mutable access to `queues`, and it puts the packets back before.
    held: Vec<Packet<'static>>,
    /// The first packet that was not handed out.
    next: usize,
    queues: Queues,
}

impl Reading {
    pub(super) fn new(queues: Queues) -> Self {
        Self { held: Vec::with_capacity(CLAIMED_MAX as usize), next: 0, queues }
    }

    /// Returns all packets to the queues, and then the queues.
    pub(super) fn queues(&mut self) -> &mut Queues {
        self.put_back();
        &mut self.queues
    }

    fn put_back(&mut self) {
        self.held.clear();
        self.next = 0;
    }

    /// Returns packets to the queues and claims matching ones that have arrived; returns how many.
    pub(super) fn claim(&mut self) -> io::Result<usize> {
        self.put_back();
        let mut batch = self.queues.try_receive()?;
        while let Some(packet) = batch.claim() {
            if self.held.len() < AHEAD {
                packet.prefetch_arrival();
            }
            // SAFETY: what a packet borrows is its half's pool, which lies on the heap behind `queues` and
            // stays there until that is dropped or used mutably; both only after `held` was emptied.
            self.held.push(unsafe { std::mem::transmute::<Packet<'_>, Packet<'static>>(packet) });
        }
        Ok(self.held.len())
    }

    /// How many claimed packets are left.
    #[inline]
    pub(super) fn left(&self) -> usize {
        // No underflow: `next` only goes past packets that are there.
        self.held.len() - self.next
    }

    /// The next claimed packet, which stays in place until others are claimed.
    #[inline]
    pub(super) fn next(&mut self) -> Option<&Packet<'_>> {
        if let Some(ahead) = self.held.get(self.next + AHEAD) {
            ahead.prefetch_arrival();
        }
        let packet = self.held.get(self.next)?;
        self.next += 1;
        Some(packet)
    }

    /// Gives everything up in the child of a fork.
    pub(super) fn leave(mut self) {
        self.put_back();
        self.queues.leave();
    }
}
