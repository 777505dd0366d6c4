//! The memory of packets that are sent, as peers share it (docs/protocol.md §8.4).

/// How many packets there are for messages, and for a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentShares {
    /// The most unacknowledged packets to a peer. Units, which may fill the rest of the window, have their
    /// own memory.
    pub(super) packets_max: usize,
    /// All whole packets.
    packets: usize,
    /// All whole packets or fragments, whichever are fewer.
    either: usize,
    /// While so many packets are free, each peer is looked at alone.
    pub(super) plenty: usize,
}

/// How much of some memory is left, and how much there is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    pub(super) left: usize,
    pub(super) all: usize,
}

impl SentShares {
    pub(super) fn new(packets_max: usize, packets: usize, either: usize) -> Self {
        Self { packets_max, packets, either, plenty: packets / 2 + 1 }
    }

    /// Whole packets, of which so many are left.
    pub(super) fn packets(&self, left: usize) -> Free {
        Free { left, all: self.packets }
    }

    /// Whole packets or fragments, of which so many are left.
    pub(super) fn either(&self, left: usize) -> Free {
        Free { left, all: self.either }
    }
}
