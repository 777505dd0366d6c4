//! What a port could do on this machine and an interface, found without changing anything.
//!
//! Each condition of a mode is a [`Gate`]: *open*, *closed* with the reason and what would open it, or
//! *unknown* if only an attempt can show it.
//!
//! ```
//! for gate in nocopy::integration::probe::machine() {
//!     println!("{gate}");
//! }
//! ```

mod capabilities;
mod interface;
mod machine;
mod metadata;
mod modes;
mod offloads;
mod queues;
mod sockets;

use std::borrow::Cow;
use std::fmt;

use crate::port::{LADDER, OpenError, Port};
use crate::sys::ethtool;
use crate::sys::interface::firmware;
use crate::sys::netdev::XdpFeatures;

/// The state of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateState {
    /// The condition is met.
    Open,
    /// The condition is not met.
    Closed,
    /// Only an attempt can show it.
    Unknown,
}

impl fmt::Display for GateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Unknown => "unknown",
        })
    }
}

/// A condition that a port, or one of its modes, depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// Its name, such as `carrier` or `CAP_NET_RAW`.
    pub name: &'static str,
    /// The gate's state.
    pub state: GateState,
    /// What was found.
    pub found: String,
    /// What would open it, or improve it: a command, or a setting.
    pub fix: Option<String>,
    /// A shell command that alone is enough to open it; only for closed gates.
    pub command: Option<String>,
    /// Whether no port with default settings opens while it is closed, in any mode.
    pub needed: bool,
}

impl Gate {
    fn new(name: &'static str, state: GateState, found: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), fix: None, command: None, needed: false }
    }

    fn from_condition(name: &'static str, open: bool, found: impl Into<String>) -> Self {
        Self::new(name, if open { GateState::Open } else { GateState::Closed }, found)
    }

    /// The gate with a different name, and a different text if it is open.
    fn with_name(self, name: &'static str, open: &str) -> Self {
        let found = if self.state == GateState::Open { open.to_owned() } else { self.found };
        Self { name, found, ..self }
    }

    fn mark_needed(mut self) -> Self {
        self.needed = true;
        self
    }

    /// Adds a remedy, unless the gate is open.
    fn with_fix_unless_open(mut self, fix: impl Into<String>) -> Self {
        if self.state != GateState::Open {
            self.fix = Some(fix.into());
        }
        self
    }

    /// Adds the shell command that opens it, and a remark, unless the gate is open.
    fn with_command_unless_open(mut self, command: impl Into<String>, remark: &str) -> Self {
        let command = command.into();
        self = self.with_fix_unless_open(format!("'{command}'{remark}"));
        if self.state == GateState::Closed {
            self.command = Some(command);
        }
        self
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.name, self.state, self.found)?;
        self.fix.as_ref().map_or(Ok(()), |fix| write!(f, "; {fix}"))
    }
}

/// A name quoted as one word of a shell; the kernel allows almost any name for an interface.
fn shell_quoted(name: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    match name.chars().all(is_plain) {
        true => name.into(),
        false => format!("'{}'", name.replace('\'', r"'\''")).into(),
    }
}

/// Gates for every interface: the kernel, the rights of this process, memory.
pub fn machine() -> Vec<Gate> {
    let mut gates = vec![machine::kernel_gate(), machine::af_xdp_gate()];
    gates.extend(capabilities::capability_gates());
    // The last mode that a port tries, without AF_XDP.
    gates.extend([
        capabilities::packet_socket_gate().mark_needed(),
        machine::locked_memory_gate(),
        machine::huge_page_gate(),
    ]);
    gates.extend([sockets::option_memory_gate(), sockets::io_uring_gate(), sockets::uring_receive_gate()]);
    gates
}

/// An interface as a port would find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// `None` if the interface does not report it.
    pub driver: Option<String>,
    /// The version of the card's firmware; `None` if the driver does not report it.
    pub firmware: Option<String>,
    /// The speed of the link in Mbit/s; `None` if the driver does not report it.
    pub speed_mbit: Option<u32>,
    /// Receive queues in use.
    pub receive_queues: u32,
    /// The interface's own gates, then the modes that a port would try, the fastest first.
    pub gates: Vec<Gate>,
}

impl Interface {
    /// The gates of the modes, the fastest first.
    pub fn mode_gates(&self) -> impl Iterator<Item = &Gate> {
        self.gates.iter().filter(|gate| LADDER.iter().any(|mode| mode.name() == gate.name))
    }

    /// The first mode that may work.
    pub fn first_possible_mode(&self) -> Option<&'static str> {
        self.mode_gates().find(|gate| gate.state != GateState::Closed).map(|gate| gate.name)
    }
}

/// Inspects an interface.
///
/// # Errors
/// No such interface.
pub fn interface(name: &str) -> Result<Interface, OpenError> {
    let interface = Port::builder(name).look_up_interface()?;
    let mut gates = interface::receive_condition_gates(&interface).map(Gate::mark_needed).to_vec();
    gates.push(interface::driver_gate(&interface));
    gates.extend([queues::queue_gate(&interface), queues::receive_ring_gate(&interface)]);
    gates.extend([queues::interrupt_gate(&interface), queues::numa_node_gate(&interface)]);
    let (splits, features) = (ethtool::header_split(name), XdpFeatures::of(interface.index));
    let split = splits.as_ref().ok().and_then(|split| split.on);
    gates.extend([offloads::lro_gate(&interface), offloads::gro_gate(&interface)]);
    gates.push(offloads::header_split_gate(&interface, split));
    gates.extend(metadata::metadata_gates(&features));
    gates.extend([
        sockets::zero_copy_send_gate(&interface),
        sockets::zero_copy_receive_gate(&interface, split),
    ]);
    gates.push(sockets::interface_uring_receive_gate(&interface, splits));
    gates.extend(modes::mode_gates(&interface, &features));
    Ok(Interface {
        driver: interface.driver,
        firmware: firmware(name),
        speed_mbit: ethtool::speed_mbit(name),
        receive_queues: interface.rx_queues,
        gates,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_command_is_given_only_for_closed_gates() {
        let gate =
            |state| Gate::new("up", state, "").with_command_unless_open("ip link set dev a up", ", or wait");
        let closed = gate(GateState::Closed);
        assert_eq!(closed.fix.as_deref(), Some("'ip link set dev a up', or wait"));
        assert_eq!(closed.command.as_deref(), Some("ip link set dev a up"));
        assert_eq!((gate(GateState::Open).fix, gate(GateState::Open).command), (None, None));
        assert_eq!(gate(GateState::Unknown).command, None);
    }

    #[test]
    fn interface_names_are_quoted_in_commands() {
        assert_eq!(shell_quoted("eth0.100@if7"), "eth0.100@if7");
        assert_eq!(shell_quoted("a;reboot"), "'a;reboot'");
        assert_eq!(shell_quoted("a'$(b)"), r"'a'\''$(b)'");
    }
}
