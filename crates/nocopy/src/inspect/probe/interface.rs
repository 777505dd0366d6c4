//! The interface itself: link state, attached programs, driver.

use super::{Gate, GateState, shell_quoted};
use crate::port::xdp;
use crate::port::{Port, PortBuilder, drivers};
use crate::sys::interface::Interface;

/// The conditions for packets to arrive.
pub(super) fn receive_condition_gates(interface: &Interface) -> [Gate; 5] {
    [
        link_up_gate(interface),
        carrier_gate(interface),
        ethernet_gate(interface),
        mtu_gate(interface),
        xdp_program_gate(interface),
    ]
}

fn link_up_gate(interface: &Interface) -> Gate {
    Gate::from_condition("up", interface.up, if interface.up { "yes" } else { "no" })
        .with_command_unless_open(format!("ip link set dev {} up", shell_quoted(&interface.name)), "")
}

fn carrier_gate(interface: &Interface) -> Gate {
    Gate::from_condition("carrier", interface.carrier, if interface.carrier { "yes" } else { "no" })
        .with_fix_unless_open("check the cable, or that the other end is up")
}

/// Whether packets have an Ethernet header. Filters and descriptions begin with it, so ports refuse
/// interfaces without one.
fn ethernet_gate(interface: &Interface) -> Gate {
    let found = match interface.is_ethernet() {
        true => "in front of every packet".to_owned(),
        false => format!("none (hardware type {})", interface.hardware),
    };
    Gate::from_condition("Ethernet header", interface.is_ethernet(), found)
        .with_fix_unless_open("use an interface of type 1 (ether), for a tunnel the one that it goes over")
}

/// The driver, and known facts that it does not report.
pub(super) fn driver_gate(interface: &Interface) -> Gate {
    let Some(driver) = &interface.driver else {
        return Gate::new("driver", GateState::Unknown, "it does not say its name");
    };
    let known =
        drivers::known_quirks(Some(driver)).map(|entry| format!(". It {}: {}", entry.does, entry.port));
    Gate::new("driver", GateState::Open, std::iter::once(driver.clone()).chain(known).collect::<String>())
}

fn mtu_gate(interface: &Interface) -> Gate {
    let (port, mtu_bytes) = (Port::builder(&interface.name), interface.mtu_bytes);
    let frame_bytes = port.frame_bytes_for(interface);
    let fits = PortBuilder::mtu_fits_frame(interface, frame_bytes, 0);
    let found = match fits {
        true => format!("{mtu_bytes}: frames of {frame_bytes} B"),
        false => format!("{mtu_bytes}: more than a frame holds"),
    };
    Gate::from_condition("MTU", fits, found)
        .with_command_unless_open(format!("ip link set dev {} mtu 1500", shell_quoted(&interface.name)), "")
}

fn xdp_program_gate(interface: &Interface) -> Gate {
    match xdp::attached_program(interface.index) {
        Ok(None) => Gate::new("XDP program", GateState::Open, "none is attached"),
        Ok(Some((id, _))) => Gate::new("XDP program", GateState::Closed, format!("program {id} is attached"))
            .with_command_unless_open(
                format!("ip link set dev {} xdp off", shell_quoted(&interface.name)),
                "",
            ),
        Err(error) => Gate::new("XDP program", GateState::Unknown, error.to_string()),
    }
}
