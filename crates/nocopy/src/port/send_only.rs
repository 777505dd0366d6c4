//! Ports that only send: no frames to receive into (`frame_count(0, n)`).
//!
//! Their socket is not in the XDP map, so every arriving packet stays with the host. In zero-copy mode that
//! needs frames nevertheless: a card's receive queue then has only the buffers of the fill ring, for all
//! packets. The kernel's documentation says to leave that ring empty; how drivers handle an empty one is in
//! the table ([`super::drivers`]).

use super::{Mode, PortBuilder};
use crate::sys::interface::{self, Interface};
use crate::sys::netdev::XdpFeatures;

/// For a card whose driver does not report the size of its receive ring: a common default.
const CARD_RING_FRAMES: u32 = 512;

impl PortBuilder {
    pub(super) fn only_sends(&self) -> bool {
        self.rx_frames == 0
    }

    /// Extra frames of a send-only port to be lent: as many as the card's receive ring holds, if zero-copy is
    /// possible.
    pub(super) fn frames_to_lend(&self, interface: &Interface) -> u32 {
        let may_be = self.only_sends()
            && self.mode.is_none_or(|mode| mode == Mode::XdpZeroCopy)
            && XdpFeatures::of(interface.index).map_or(true, XdpFeatures::has_zero_copy);
        if !may_be {
            return 0;
        }
        let card_ring =
            interface::receive_ring_entries(&interface.name).map_or(CARD_RING_FRAMES, |(now, _)| now);
        card_ring.min(self.rings.fill)
    }
}
