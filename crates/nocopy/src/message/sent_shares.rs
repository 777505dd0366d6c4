//! The memory of packets that are sent, as peers share it.

use super::carrier::Room;

/// How the packets for messages are shared by peers (docs/protocol.md §8.4).
#[derive(Debug, Clone, Copy)]
pub(super) struct SentShares {
    /// The most unacknowledged packets to a peer. Units, which may fill the rest of the window, have their own memory.
    pub(super) packets_max: usize,
    /// Those that there are.
    pub(super) all: Room,
    /// While so many are free, each peer is looked at alone.
    pub(super) plenty: usize,
}

impl SentShares {
    pub(super) fn new(packets_max: usize, all: Room) -> Self {
        Self { packets_max, all, plenty: all.packets / 2 + 1 }
    }
}

/// How many packets are left, of how many.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    pub(super) packets: usize,
    pub(super) all: usize,
}
