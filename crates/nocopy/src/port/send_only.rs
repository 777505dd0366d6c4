//! Ports that only send: no frames to receive into (`frame_count(0, n)`).
//!
//! Their socket is not in the XDP map, so every packet that arrives stays with the host. In zero-copy that takes frames all
//! the same: a card's receive queue then has no other buffers than those of the fill ring, whoever the packets are for. The
//! kernel's document says to leave that ring empty; what drivers make of it is in the table ([`super::drivers`]).

use super::{Mode, PortBuilder};
use crate::sys::interface::{self, Interface};
use crate::sys::netdev::XdpFeatures;

/// For a card whose driver does not tell the size of its receive ring: a common default.
const CARD_RING_FRAMES: u32 = 512;

impl PortBuilder {
    pub(super) fn only_sends(&self) -> bool {
        self.rx_frames == 0
    }

    /// Frames that a port which only sends must have to lend: as many as the card's receive ring holds, if zero-copy may be.
    pub(super) fn frames_to_lend(&self, interface: &Interface) -> u32 {
        let may_be = self.only_sends()
            && self.mode.is_none_or(|mode| mode == Mode::XdpZeroCopy)
            && XdpFeatures::of(interface.index).map_or(true, XdpFeatures::zero_copy);
        if !may_be {
            return 0;
        }
        let card_ring = interface::receive_ring(&interface.name).map_or(CARD_RING_FRAMES, |(now, _)| now);
        card_ring.min(self.rings.fill)
    }
}
