//! Claimed packets in place, together with the queues that they return to.

use std::io;

use nocopy::Packet;
use nocopy::port::Queues;

/// The most packets claimed at a time.
pub(super) const CLAIMED_MAX: u32 = 64;

/// How many frames ahead of the one being delivered are prefetched into this processor's cache. More would
/// evict each other: the distances between frames are powers of two, so frames share few sets of a cache.
const PREFETCH_DISTANCE: usize = 12;

/// The queues of an interface, and the claimed packets.
#[derive(Debug)]
pub(super) struct ClaimedPackets {
    /// Packets of `queues`. The field is declared before `queues`, so that packets are dropped first. Only
    /// [`Self::queues_after_release`] gives mutable access to `queues`, and it puts the packets back before.
    packets: Vec<Packet<'static>>,
    /// The first packet that was not handed out.
    next: usize,
    queues: Queues,
}

impl ClaimedPackets {
    pub(super) fn new(queues: Queues) -> Self {
        Self { packets: Vec::with_capacity(CLAIMED_MAX as usize), next: 0, queues }
    }

    /// Returns all packets to the queues, and then the queues.
    pub(super) fn queues_after_release(&mut self) -> &mut Queues {
        self.return_packets();
        &mut self.queues
    }

    fn return_packets(&mut self) {
        self.packets.clear();
        self.next = 0;
    }

    /// Returns packets to the queues and claims matching ones that have arrived; returns how many.
    pub(super) fn claim_batch(&mut self) -> io::Result<usize> {
        self.return_packets();
        let mut batch = self.queues.try_receive()?;
        while let Some(packet) = batch.claim() {
            if self.packets.len() < PREFETCH_DISTANCE {
                packet.prefetch_arrival();
            }
            // SAFETY: what a packet borrows is its half's pool, which lies on the heap behind `queues` and
            // stays there until that is dropped or used mutably; both only after `packets` was emptied.
            self.packets.push(unsafe { std::mem::transmute::<Packet<'_>, Packet<'static>>(packet) });
        }
        Ok(self.packets.len())
    }

    /// How many claimed packets are left.
    #[inline]
    pub(super) fn unread_count(&self) -> usize {
        // No underflow: `next` only goes past packets that are there.
        self.packets.len() - self.next
    }

    /// The next claimed packet, which stays in place until others are claimed.
    #[inline]
    pub(super) fn next_packet(&mut self) -> Option<&Packet<'_>> {
        if let Some(ahead) = self.packets.get(self.next + PREFETCH_DISTANCE) {
            ahead.prefetch_arrival();
        }
        let packet = self.packets.get(self.next)?;
        self.next += 1;
        Some(packet)
    }

    /// Gives everything up in the child of a fork.
    pub(super) fn close_in_forked_child(mut self) {
        self.return_packets();
        self.queues.disown();
    }
}
