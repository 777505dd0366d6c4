//! Filters in user space, and what happens to packets that do not match.
//!
//! If the kernel refuses a filter because it is too long, the receiver runs it, in the cold code that counts
//! the descriptors of a batch. A batch is then a run of matching packets, so the hot path has no filter code.
//! Packets that do not match are returned to the host (`to_host`). If a filter needs data that XDP does not
//! have (the packet's type, a hash), the mode is refused and the ladder continues to the packet ring.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use smallvec::SmallVec;

use super::ToHost;
use crate::memory::area::{Chain, PacketClaimer};
use crate::sys::xsk::{Descriptor, PACKET_CONTINUES};
use nocopy_proto::filter::{AncillaryData, Program};

/// Counts of packets that filters in user space rejected. Only the receiver writes them; a meter reads them
/// from other threads.
#[derive(Debug, Default)]
pub(super) struct UserFilterCounters {
    to_host: AtomicU64,
    lost: AtomicU64,
}

impl UserFilterCounters {
    pub(super) fn add_counts(&self, to_host: u64, lost: u64) {
        for (counter, more) in [(&self.to_host, to_host), (&self.lost, lost)] {
            counter.store(counter.load(Relaxed) + more, Relaxed); // nothing else stores
        }
    }

    /// Rejected packets that the host has: it had them already (packet ring), or they were returned to it.
    pub(super) fn to_host_count(&self) -> u64 {
        self.to_host.load(Relaxed)
    }

    /// Rejected packets that were lost: there is no host (memory mode), or they could not be returned, for
    /// the reasons of [`ToHost::hand_over`].
    pub(super) fn lost_count(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

/// Where packets that do not match go.
#[derive(Debug)]
pub(super) enum UnmatchedDestination {
    /// The kernel has also delivered them to the host.
    HostHas,
    HandOver(Box<ToHost>),
    Lost,
}

#[derive(Debug)]
pub(super) struct UserFilter {
    program: Program,
    /// Data about each packet other than its bytes.
    ancillary: AncillaryData,
    unmatched: UnmatchedDestination,
}

impl UserFilter {
    pub(super) fn new(
        program: Program,
        interface_index: u32,
        queue: u32,
        unmatched: UnmatchedDestination,
    ) -> Self {
        // One more, as the kernel numbers queues in this field.
        let queue = u16::try_from(queue + 1).unwrap_or(0);
        let ancillary =
            AncillaryData { interface_index: Some(interface_index), queue, ..AncillaryData::default() };
        Self { program, ancillary, unmatched }
    }

    /// How many descriptors at the front belong to whole packets that all match, or that all do not match: at
    /// most `room`; for packets with several descriptors, no more than needed for `enough` packets.
    pub(super) fn run_length(
        &self,
        matching: bool,
        claims: PacketClaimer<'_>,
        word: impl Fn(u32) -> Option<Descriptor>,
        (room, enough): (u32, u32),
    ) -> u32 {
        let (mut whole, mut next) = (0, 0);
        let mut pieces = SmallVec::<[&[u8]; 4]>::new();
        let mut readable = true;
        while let Some(descriptor) = word(next).filter(|_| next < room && whole < enough) {
            next += 1;
            match claims.peek_bytes(descriptor) {
                Some(bytes) => pieces.push(bytes),
                None => readable = false,
            }
            if descriptor.options & PACKET_CONTINUES != 0 {
                continue;
            }
            // An unreadable packet counts as matching: claiming it then counts the fault.
            if (!readable || self.program.run(&pieces, &self.ancillary) != 0) != matching {
                break;
            }
            pieces.clear();
            (whole, readable) = (next, true);
        }
        whole
    }

    /// Gives a packet that does not match to the host; returns whether the host got it.
    pub(super) fn pass_to_host<B: Deref<Target = [u8]>>(&mut self, packet: &Chain<B>) -> bool {
        match &mut self.unmatched {
            UnmatchedDestination::HostHas => true,
            UnmatchedDestination::HandOver(host) => host.hand_over_chain(packet).is_ok(),
            UnmatchedDestination::Lost => false,
        }
    }
}
