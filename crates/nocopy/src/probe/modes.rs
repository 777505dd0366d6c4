//! The modes of a port.

use super::{Gate, State};
use crate::port::{LADDER, Mode};
use crate::sys::interface::Interface;
use crate::sys::netdev::XdpFeatures;

/// The modes that a port tries, by what the driver says of itself.
pub(super) fn modes(interface: &Interface) -> Vec<Gate> {
    let features = XdpFeatures::of(interface.index);
    let driver = interface.driver_words();
    let of_driver = |mode: Mode, has: fn(XdpFeatures) -> bool, yes: &str, no: &str, fix: &str| match &features
    {
        Ok(features) if has(*features) => Gate::new(mode.name(), State::Open, format!("{driver} {yes}")),
        Ok(_) => Gate::new(mode.name(), State::Closed, format!("{driver} {no}")).or_fix(fix),
        // No such family before Linux 6.3.
        Err(error) => Gate::new(mode.name(), State::Unknown, format!("the kernel does not say: {error}")),
    };
    let gate = |mode| match mode {
        Mode::XdpZeroCopy => Some(of_driver(
            mode,
            XdpFeatures::zero_copy,
            "says it has it",
            "has none in this kernel",
            "a newer kernel or another card may",
        )),
        Mode::XdpCopyNative => Some(of_driver(
            mode,
            XdpFeatures::native,
            "runs XDP programs",
            "runs no XDP programs",
            "an interface whose driver does",
        )),
        Mode::XdpCopyGeneric => Some(Gate::new(mode.name(), State::Open, "works on every interface")),
        Mode::PacketRing => {
            let found = "works on every interface; the host has the packets too";
            Some(Gate::new(mode.name(), State::Open, found))
        }
        Mode::Memory => None,
    };
    LADDER.into_iter().filter_map(gate).collect()
}
