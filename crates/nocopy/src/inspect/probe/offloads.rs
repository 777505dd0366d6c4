//! Offloads that change packets between the card and the receiver.

use super::{Gate, GateState, shell_quoted};
use crate::sys::interface::{self, Interface};

/// Packets that the card joins are too long for a frame, and drivers refuse XDP while joining is on.
pub(super) fn lro_gate(interface: &Interface) -> Gate {
    const NAME: &str = "large receive offload";
    match interface::is_lro_on(&interface.name) {
        Some(joins) => Gate::from_condition(NAME, !joins, if joins { "on" } else { "off" })
            .with_command_unless_open(format!("ethtool -K {} lro off", shell_quoted(&interface.name)), ""),
        None => Gate::new(NAME, GateState::Unknown, "the driver does not say"),
    }
}

/// GRO joins packets before sockets get them, and often before a packet ring does; AF_XDP gets them one by
/// one. A veth end drops redirected frames unless it has GRO or an XDP program.
pub(super) fn gro_gate(interface: &Interface) -> Gate {
    const NAME: &str = "generic receive offload";
    let off = match interface.driver.as_deref() {
        Some("veth") => {
            "off: frames that XDP redirects to this end are lost, except while it has a program (as ports do)"
        }
        _ => "off: sockets get every packet alone, as AF_XDP always does",
    };
    match interface::is_gro_on(&interface.name) {
        Some(true) => Gate::new(
            NAME,
            GateState::Open,
            "on: sockets and packet rings get packets joined, AF_XDP one by one",
        ),
        Some(false) => Gate::new(NAME, GateState::Closed, off)
            .with_command_unless_open(format!("ethtool -K {} gro on", shell_quoted(&interface.name)), ""),
        None => Gate::new(NAME, GateState::Unknown, "the kernel does not say"),
    }
}

/// Headers and data in separate buffers: needed by TCP to map received data, and by io_uring to receive
/// without copies.
pub(super) fn header_split_gate(interface: &Interface, split: Option<bool>) -> Gate {
    const NAME: &str = "header split";
    match split {
        Some(true) => Gate::new(NAME, GateState::Open, "headers and data of TCP lie in separate buffers"),
        Some(false) => Gate::new(NAME, GateState::Closed, "off").with_command_unless_open(
            format!("ethtool -G {} tcp-data-split on", shell_quoted(&interface.name)),
            "",
        ),
        None => Gate::new(NAME, GateState::Unknown, "the driver does not say"),
    }
}
