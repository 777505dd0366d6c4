//! Where a port's filter runs, and what becomes of packets that do not match where it runs in user space.
//!
//! Where the kernel refuses a filter because it is too long, the receiver runs it, in the cold part that counts the descriptors of a
//! batch. A batch is then a run of packets that match, so the hot path knows nothing of filters. Packets that do not match are
//! returned to the host (`to_host`). Where a filter asks for what XDP cannot know (the packet's type, a hash), that mode is refused
//! and the ladder goes on to the packet ring.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use smallvec::SmallVec;

use super::ToHost;
use crate::memory::area::{Chain, Claims};
use crate::sys::xsk::{Descriptor, PACKET_CONTINUES};
use nocopy_proto::filter::{Ancillary, Program};

/// Packets that filters in user space turned away. The receiver alone writes it; a meter reads it from other threads.
#[derive(Debug, Default)]
pub(super) struct TurnedAway {
    to_host: AtomicU64,
    lost: AtomicU64,
}

impl TurnedAway {
    /// Counts some more.
    pub(super) fn add(&self, to_host: u64, lost: u64) {
        for (counter, more) in [(&self.to_host, to_host), (&self.lost, lost)] {
            counter.store(counter.load(Relaxed) + more, Relaxed); // nothing else stores
        }
    }

    /// The host has them: it has all of them (packet ring), or was handed these.
    pub(super) fn to_host(&self) -> u64 {
        self.to_host.load(Relaxed)
    }

    /// They are lost: there is no host (memory), or they could not be handed over, for the reasons of [`ToHost::hand_over`].
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

/// Who gets what does not match.
#[derive(Debug)]
pub(super) enum Rest {
    /// The host has it anyway.
    HostHas,
    HandOver(Box<ToHost>),
    Nobody,
}

/// A filter run by the receiver.
#[derive(Debug)]
pub(super) struct UserFilter {
    program: Program,
    /// What is known of each packet besides.
    ancillary: Ancillary,
    rest: Rest,
}

impl UserFilter {
    /// For packets of a queue of an interface.
    pub(super) fn new(program: Program, interface_index: u32, queue: u32, rest: Rest) -> Self {
        // One more, as the kernel counts queues.
        let queue = u16::try_from(queue + 1).unwrap_or(0);
        let ancillary = Ancillary { interface_index: Some(interface_index), queue, ..Ancillary::default() };
        Self { program, ancillary, rest }
    }

    /// How many words from the front are of whole packets that match, or that do not: at most `room`, and of packets of several no
    /// more than it takes to have `enough`.
    pub(super) fn run_of(
        &self,
        matching: bool,
        claims: Claims<'_>,
        word: impl Fn(u32) -> Option<Descriptor>,
        (room, enough): (u32, u32),
    ) -> u32 {
        let (mut whole, mut next) = (0, 0);
        let mut pieces = SmallVec::<[&[u8]; 4]>::new();
        let mut readable = true;
        while let Some(descriptor) = word(next).filter(|_| next < room && whole < enough) {
            next += 1;
            match claims.look(descriptor) {
                Some(bytes) => pieces.push(bytes),
                None => readable = false,
            }
            if descriptor.options & PACKET_CONTINUES != 0 {
                continue;
            }
            // What cannot be read counts as matching: whoever claims it counts the fault.
            if (!readable || self.program.run(&pieces, &self.ancillary) != 0) != matching {
                break;
            }
            pieces.clear();
            (whole, readable) = (next, true);
        }
        whole
    }

    /// Turns a packet away that does not match, and returns whether the host has it.
    pub(super) fn turn_away<B: Deref<Target = [u8]>>(&mut self, packet: &Chain<B>) -> bool {
        match &mut self.rest {
            Rest::HostHas => true,
            Rest::HandOver(host) => host.hand_over_chain(packet).is_ok(),
            Rest::Nobody => false,
        }
    }
}
