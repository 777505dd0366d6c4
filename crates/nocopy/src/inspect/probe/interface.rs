//! The interface itself: link state, attached programs, driver.

use super::{Gate, GateState, quoted};
use crate::port::xdp;
use crate::port::{Port, PortBuilder, drivers};
use crate::sys::interface::Interface;

/// The conditions for packets to arrive.
pub(super) fn flow(interface: &Interface) -> [Gate; 5] {
    [link_up(interface), carrier(interface), ethernet(interface), mtu(interface), program(interface)]
}

fn link_up(interface: &Interface) -> Gate {
    Gate::of("up", interface.up, if interface.up { "yes" } else { "no" })
        .or_command(format!("ip link set dev {} up", quoted(&interface.name)), "")
}

fn carrier(interface: &Interface) -> Gate {
    Gate::of("carrier", interface.carrier, if interface.carrier { "yes" } else { "no" })
        .or_fix("check the cable, or that the other end is up")
}

/// Whether packets have an Ethernet header. Filters and descriptions begin with it, so ports refuse
/// interfaces without one.
fn ethernet(interface: &Interface) -> Gate {
    let found = match interface.is_ethernet() {
        true => "in front of every packet".to_owned(),
        false => format!("none (hardware type {})", interface.hardware),
    };
    Gate::of("Ethernet header", interface.is_ethernet(), found)
        .or_fix("use an interface of type 1 (ether), for a tunnel the one that it goes over")
}

/// The driver, and known facts that it does not report.
pub(super) fn driver(interface: &Interface) -> Gate {
    let Some(driver) = &interface.driver else {
        return Gate::new("driver", GateState::Unknown, "it does not say its name");
    };
    let known = drivers::known(Some(driver)).map(|entry| format!(". It {}: {}", entry.does, entry.port));
    Gate::new("driver", GateState::Open, std::iter::once(driver.clone()).chain(known).collect::<String>())
}

fn mtu(interface: &Interface) -> Gate {
    let (port, mtu_bytes) = (Port::builder(&interface.name), interface.mtu_bytes);
    let frame_bytes = port.frame_bytes_for(interface);
    let fits = PortBuilder::fits(interface, frame_bytes, 0);
    let found = match fits {
        true => format!("{mtu_bytes}: frames of {frame_bytes} B"),
        false => format!("{mtu_bytes}: more than a frame holds"),
    };
    Gate::of("MTU", fits, found)
        .or_command(format!("ip link set dev {} mtu 1500", quoted(&interface.name)), "")
}

fn program(interface: &Interface) -> Gate {
    match xdp::attached(interface.index) {
        Ok(None) => Gate::new("XDP program", GateState::Open, "none is attached"),
        Ok(Some((id, _))) => Gate::new("XDP program", GateState::Closed, format!("program {id} is attached"))
            .or_command(format!("ip link set dev {} xdp off", quoted(&interface.name)), ""),
        Err(error) => Gate::new("XDP program", GateState::Unknown, error.to_string()),
    }
}
