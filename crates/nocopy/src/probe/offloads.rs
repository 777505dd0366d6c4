//! What the card does to packets on its own.

use super::{Gate, State};
use crate::sys::interface::{self, Interface};

/// Packets that the card joins are too long for a frame, and drivers refuse XDP meanwhile.
pub(super) fn joining(interface: &Interface) -> Gate {
    match interface::joins_received(&interface.name) {
        Some(joins) => Gate::of("large receive offload", !joins, if joins { "on" } else { "off" })
            .or_fix(format!("'ethtool -K {} lro off'", interface.name)),
        None => Gate::new("large receive offload", State::Unknown, "the driver does not say"),
    }
}
