//! Probe: what this machine and an interface would let a port do. It looks, and changes nothing.
//!
//! What stands between a program and a mode is a [`Gate`]: *open*, *closed* with the reason and what would open it, or
//! *unknown* where nobody can say without trying.
//!
//! ```
//! for gate in nocopy::probe::machine() {
//!     println!("{gate}");
//! }
//! ```

use std::fmt;
use std::fs;

use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use crate::port::{LADDER, Mode, OpenError, Port, PortBuilder};
use crate::sys::interface::{self, Interface};
use crate::sys::netdev::XdpFeatures;
use crate::sys::xsk::XskSocket;
use crate::sys::{capability, kernel};
use crate::xdp;

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
    let mut gates = vec![kernel().needed(), af_xdp().needed()];
    gates.extend(capabilities().map(Gate::needed));
    gates.extend([locked_memory(), huge_pages(), io_uring()]);
    gates
}

fn kernel() -> Gate {
    let needed = xdp::KERNEL_MIN;
    match kernel::running() {
        Some(running) => {
            Gate::of("kernel", running >= needed, format!("Linux {running}; {needed} is needed"))
        }
        None => Gate::new("kernel", State::Unknown, "its release is not a version number"),
    }
    .or_fix("install a newer kernel")
}

fn af_xdp() -> Gate {
    match XskSocket::new() {
        Ok(_) => Gate::new("AF_XDP", State::Open, "sockets can be made"),
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            Gate::new("AF_XDP", State::Closed, "this kernel has no such sockets")
                .or_fix("use a kernel built with CONFIG_XDP_SOCKETS")
        }
        Err(error) => Gate::new("AF_XDP", State::Unknown, format!("this process may not look: {error}")),
    }
}

fn capabilities() -> impl Iterator<Item = Gate> {
    capability::PORT.iter().map(|(wanted, name)| {
        let held = capability::holds(*wanted);
        Gate::of(name, held, if held { "held" } else { "this process lacks it" })
            .or_fix(format!("run as root, or {}", capability::GRANT))
    })
}

fn locked_memory() -> Gate {
    const NAME: &str = "locked memory";
    let limit = getrlimit(Resource::Memlock).current;
    let needed = Port::builder("").memory_bytes();
    match limit {
        _ if capability::holds(CapabilitySet::IPC_LOCK) => {
            Gate::new(NAME, State::Open, "no limit for this process (CAP_IPC_LOCK)")
        }
        None => Gate::new(NAME, State::Open, "no limit"),
        Some(limit) => {
            let found = format!("{} KiB; a port of default size pins {} KiB", limit / 1024, needed / 1024);
            Gate::of(NAME, limit >= needed, found).or_fix("'ulimit -l unlimited', or fewer frames")
        }
    }
}

fn huge_pages() -> Gate {
    const NAME: &str = "huge pages";
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let pool: u64 = read("/proc/sys/vm/nr_hugepages").trim().parse().unwrap_or(0);
    let transparent = read("/sys/kernel/mm/transparent_hugepage/enabled");
    if pool > 0 {
        Gate::new(NAME, State::Open, format!("a pool of {pool}"))
    } else if transparent.contains("[always]") || transparent.contains("[madvise]") {
        Gate::new(NAME, State::Open, "transparent ones, as the kernel sees fit")
    } else {
        Gate::new(NAME, State::Closed, "none: ports work on base pages").or_fix("'sysctl vm.nr_hugepages=64'")
    }
}

fn io_uring() -> Gate {
    const NAME: &str = "io_uring";
    match fs::read_to_string("/proc/sys/kernel/io_uring_disabled").as_deref().map(str::trim) {
        Ok("0") => Gate::new(NAME, State::Open, "for every process"),
        Ok("1") if capability::holds(CapabilitySet::SYS_ADMIN) => {
            Gate::new(NAME, State::Open, "for privileged processes")
        }
        Ok(_) => Gate::new(NAME, State::Closed, "turned off").or_fix("'sysctl kernel.io_uring_disabled=0'"),
        Err(_) => Gate::new(NAME, State::Unknown, "the kernel has no switch to look at (before Linux 6.6)"),
    }
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
    let mut gates = vec![up(&interface).needed(), carrier(&interface).needed(), mtu(&interface).needed()];
    gates.extend([program(&interface).needed(), driver(&interface), queues(&interface)]);
    gates.extend([card_ring(&interface), joining(&interface)]);
    gates.extend(modes(&interface));
    Ok(gates)
}

fn up(interface: &Interface) -> Gate {
    Gate::of("up", interface.up, if interface.up { "yes" } else { "no" })
        .or_fix(format!("'ip link set dev {} up'", interface.name))
}

fn carrier(interface: &Interface) -> Gate {
    Gate::of("carrier", interface.carrier, if interface.carrier { "yes" } else { "no" })
        .or_fix("check the cable, or that the other end is up")
}

/// What is known of drivers beyond what they say of themselves.
const QUIRKS: [(&str, &str); 4] = [
    (
        "igb",
        "resets its link when a program comes or goes (2.5 s); frames of 4096 B, since it counts buffers in KiB",
    ),
    ("veth", "copies always; packets that sockets sent are copied once more before XDP sees them"),
    ("virtio_net", "zero-copy only where the device has VIRTIO_F_ACCESS_PLATFORM and guest offloads are off"),
    ("bonding", "may take a zero-copy socket and deliver nothing"),
];

fn driver(interface: &Interface) -> Gate {
    let Some(driver) = &interface.driver else {
        return Gate::new("driver", State::Unknown, "it does not say its name");
    };
    let quirk = QUIRKS.iter().find(|(name, _)| name == driver).map(|(_, quirk)| format!(": {quirk}"));
    Gate::new("driver", State::Open, format!("{driver}{}", quirk.unwrap_or_default()))
}

fn queues(interface: &Interface) -> Gate {
    let found = match interface.rx_queues {
        1 => "1: a port takes everything".to_owned(),
        count => format!("{count}: a port takes one, the others stay with the host"),
    };
    let mut gate = Gate::new("receive queues", State::Open, found);
    if interface.rx_queues > 1 {
        gate.fix =
            Some(format!("'ethtool -L {} combined 1' brings every packet to one port", interface.name));
    }
    gate
}

fn card_ring(interface: &Interface) -> Gate {
    match interface::receive_ring(&interface.name) {
        Some((now, max)) => {
            let mut gate = Gate::new("card's receive ring", State::Open, format!("{now} of at most {max}"));
            gate.fix =
                (now < max).then(|| format!("'ethtool -G {} rx {max}' takes longer bursts", interface.name));
            gate
        }
        None => Gate::new("card's receive ring", State::Unknown, "the driver does not say"),
    }
}

/// Packets that the card joins are too long for a frame, and drivers refuse XDP meanwhile.
fn joining(interface: &Interface) -> Gate {
    match interface::joins_received(&interface.name) {
        Some(joins) => Gate::of("large receive offload", !joins, if joins { "on" } else { "off" })
            .or_fix(format!("'ethtool -K {} lro off'", interface.name)),
        None => Gate::new("large receive offload", State::Unknown, "the driver does not say"),
    }
}

fn mtu(interface: &Interface) -> Gate {
    let (port, mtu_bytes) = (Port::builder(&interface.name), interface.mtu_bytes);
    let frame_bytes = port.frame_bytes_for(interface);
    let fits = PortBuilder::fits(interface, frame_bytes, 0);
    let found = match fits {
        true => format!("{mtu_bytes}: frames of {frame_bytes} B"),
        false => format!("{mtu_bytes}: more than a frame holds"),
    };
    Gate::of("MTU", fits, found).or_fix(format!("'ip link set dev {} mtu 1500'", interface.name))
}

fn program(interface: &Interface) -> Gate {
    match xdp::attached(interface.index) {
        Ok(None) => Gate::new("XDP program", State::Open, "none is attached"),
        Ok(Some((id, _))) => Gate::new("XDP program", State::Closed, format!("program {id} is attached"))
            .or_fix(format!(
                "'ip link set dev {} xdp off', or open the port with 'displace'",
                interface.name
            )),
        Err(error) => Gate::new("XDP program", State::Unknown, error.to_string()),
    }
}

/// The modes, by what the driver says of itself.
fn modes(interface: &Interface) -> [Gate; 4] {
    let [zero_copy, native, generic, ring] = LADDER.map(Mode::name);
    let generic = Gate::new(generic, State::Open, "works on every interface");
    let ring = Gate::new(ring, State::Open, "works on every interface; the host has the packets too");
    let features = match XdpFeatures::of(interface.index) {
        Ok(features) => features,
        Err(error) => {
            // No such family before Linux 6.3.
            let unknown = |name| Gate::new(name, State::Unknown, format!("the kernel does not say: {error}"));
            return [unknown(zero_copy), unknown(native), generic, ring];
        }
    };
    let driver = interface.driver_words();
    let zero_copy = match features.zero_copy() {
        true => Gate::new(zero_copy, State::Open, format!("{driver} says it has it")),
        false => Gate::new(zero_copy, State::Closed, format!("{driver} has none in this kernel"))
            .or_fix("a newer kernel or another card may"),
    };
    let native = match features.native() {
        true => Gate::new(native, State::Open, format!("{driver} runs XDP programs")),
        false => Gate::new(native, State::Closed, format!("{driver} runs no XDP programs"))
            .or_fix("an interface whose driver does"),
    };
    [zero_copy, native, generic, ring]
}
