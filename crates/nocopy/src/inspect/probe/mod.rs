//! Probe: what this machine and an interface would let a port do. It looks, and changes nothing.
//!
//! What stands between a program and a mode is a [`Gate`]: *open*, *closed* with the reason and what would open it, or
//! *unknown* where nobody can say without trying.
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

use std::fmt;

use crate::port::{LADDER, OpenError, Port};
use crate::sys::ethtool;
use crate::sys::netdev::XdpFeatures;

/// Whether a gate lets a port through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It does.
    Open,
    /// It does not.
    Closed,
    /// It cannot be told without trying.
    Unknown,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Unknown => "unknown",
        })
    }
}

/// One thing that a port, or a mode of it, depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// What it is, such as `carrier` or `CAP_NET_RAW`.
    pub name: &'static str,
    /// Whether it lets a port through.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What would open it, or make it wider: a command, or a setting.
    pub fix: Option<String>,
    /// Whether no port of default settings opens while it is closed, whatever its mode.
    pub needed: bool,
}

impl Gate {
    fn new(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), fix: None, needed: false }
    }

    /// Open or closed, by what was found.
    fn of(name: &'static str, open: bool, found: impl Into<String>) -> Self {
        Self::new(name, if open { State::Open } else { State::Closed }, found)
    }

    /// The same gate under another name, which says something else of it when it is open.
    fn named(self, name: &'static str, open: &str) -> Self {
        let found = if self.state == State::Open { open.to_owned() } else { self.found };
        Self { name, found, ..self }
    }

    fn needed(mut self) -> Self {
        self.needed = true;
        self
    }

    /// With what would open it, said only when it is not open.
    fn or_fix(mut self, fix: impl Into<String>) -> Self {
        if self.state != State::Open {
            self.fix = Some(fix.into());
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

/// What holds for every interface: the kernel, what this process may do, memory.
pub fn machine() -> Vec<Gate> {
    let mut gates = vec![machine::kernel(), machine::af_xdp()];
    gates.extend(capabilities::capabilities());
    // The last rung of the ladder: without AF_XDP there is still this.
    gates.extend([capabilities::packet_sockets().needed(), machine::locked_memory(), machine::huge_pages()]);
    gates.extend([sockets::option_memory(), sockets::io_uring(), sockets::uring_receive()]);
    gates
}

/// The mode that a port would try first with a chance, by the gates of its interface.
pub fn first_mode(gates: &[Gate]) -> Option<&'static str> {
    let is_mode = |gate: &Gate| LADDER.iter().any(|mode| mode.name() == gate.name);
    let open = |gate: &&Gate| is_mode(gate) && gate.state != State::Closed;
    gates.iter().find(open).map(|gate| gate.name)
}

/// What an interface has, and then the modes a port on it would try, from the fastest down.
///
/// # Errors
/// No such interface.
pub fn interface(name: &str) -> Result<Vec<Gate>, OpenError> {
    let interface = Port::builder(name).look_up()?;
    let mut gates = interface::flow(&interface).map(Gate::needed).to_vec();
    gates.push(interface::driver(&interface));
    gates.extend([queues::queues(&interface), queues::card_ring(&interface)]);
    gates.extend([queues::interrupts(&interface), queues::node(&interface)]);
    let (splits, features) = (ethtool::header_split(name), XdpFeatures::of(interface.index));
    let split = splits.as_ref().ok().and_then(|split| split.on);
    gates.extend([offloads::joining(&interface), offloads::joining_for_sockets(&interface)]);
    gates.push(offloads::header_split(&interface, split));
    gates.extend(metadata::metadata(&features));
    gates.extend([sockets::zero_copy_send(&interface), sockets::zero_copy_receive(&interface, split)]);
    gates.push(sockets::uring_receive_on(&interface, splits));
    gates.extend(modes::modes(&interface, &features));
    Ok(gates)
}
