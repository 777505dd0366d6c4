//! The modes of a port.

use std::io;

use nocopy_proto::errno::ErrorCause;

use super::{Gate, GateState, capabilities, machine};
use crate::port::{LADDER, Mode, drivers};
use crate::sys::capability;
use crate::sys::interface::Interface;
use crate::sys::netdev::XdpFeatures;

/// The modes that a port tries, with their states from the driver's report.
pub(super) fn mode_gates(interface: &Interface, features: &io::Result<XdpFeatures>) -> Vec<Gate> {
    LADDER.into_iter().filter_map(|mode| mode_gate(interface, features, mode)).collect()
}

fn mode_gate(interface: &Interface, features: &io::Result<XdpFeatures>, mode: Mode) -> Option<Gate> {
    let name = mode.name();
    let xdp = |gate: &dyn Fn() -> Gate| no_af_xdp_gate(name).unwrap_or_else(gate);
    match mode {
        Mode::XdpZeroCopy => Some(xdp(&|| match features {
            Ok(features) if features.has_zero_copy() => driver_mode_gate(interface, mode, "says it has it"),
            Ok(_) => Gate::new(
                name,
                GateState::Closed,
                format!("{} has none in this kernel", interface.driver_phrase()),
            )
            .with_fix_unless_open("a newer kernel or another card may"),
            Err(error) => unknown_mode_gate(name, error),
        })),
        Mode::XdpCopyNative => Some(xdp(&|| match features {
            Ok(features) if features.has_native_xdp() => {
                driver_mode_gate(interface, mode, "runs XDP programs")
            }
            Ok(_) => Gate::new(
                name,
                GateState::Closed,
                format!("{} runs no XDP programs", interface.driver_phrase()),
            )
            .with_fix_unless_open("an interface whose driver does"),
            Err(error) => unknown_mode_gate(name, error),
        })),
        Mode::XdpCopyGeneric => Some(xdp(&|| Gate::new(name, GateState::Open, "works on every interface"))),
        Mode::PacketRing => {
            let found = "works on every interface; the host also gets the packets";
            Some(capabilities::packet_socket_gate().with_name(name, found))
        }
        Mode::Memory => None,
    }
}

/// The mode's state as the driver reports it, unless a known fact overrides that.
fn driver_mode_gate(interface: &Interface, mode: Mode, says: &str) -> Gate {
    let (name, driver) = (mode.name(), interface.driver_phrase());
    if drivers::receives_in_mode(interface.driver.as_deref(), mode) {
        return Gate::new(name, GateState::Open, format!("{driver} {says}"));
    }
    Gate::new(name, GateState::Closed, format!("{driver} accepts a socket, but delivers nothing to it"))
        .with_fix_unless_open(format!("a port on each member of {}", interface.name))
}

/// The features are unknown: the netlink family that reports them exists since Linux 6.3.
fn unknown_mode_gate(name: &'static str, error: &io::Error) -> Gate {
    Gate::new(name, GateState::Unknown, format!("the kernel does not report it{}", ErrorCause(error)))
}

/// Why this process can use no AF_XDP mode on any interface.
fn no_af_xdp_gate(name: &'static str) -> Option<Gate> {
    if let Some(capability) = capability::missing_capability(capability::PORT) {
        return Some(
            Gate::new(name, GateState::Closed, format!("this process lacks {capability}"))
                .with_fix_unless_open(format!("run as root, or {}", capability::GRANT)),
        );
    }
    let sockets = machine::af_xdp_gate();
    (sockets.state == GateState::Closed).then_some(Gate { name, needed: false, ..sockets })
}
