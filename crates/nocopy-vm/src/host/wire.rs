//! Connects the two interfaces of a machine on the host's side.

use std::process::Command;

use nocopy_lab::Namespace;

use super::ending::MachineFailure;
use super::packages::run_command;
use crate::topology::Topology;

/// The taps, in the order of the machine's interfaces.
const TAPS: [&str; 2] = ["left", "right"];
const BRIDGE: &str = "wire";

/// Runs `machine` in the network namespace of its wire, with all of its processes.
///
/// Taps are interfaces of the host, so they have their own network namespace: it has no name, and is removed
/// with the machine and this thread, however they end. The host's own interfaces are not touched.
pub(crate) fn run_in_wired_namespace(
    topology: Topology,
    machine: impl FnOnce() -> Result<(), MachineFailure> + Send,
) -> Result<(), MachineFailure> {
    if topology != Topology::VirtioTaps {
        return machine();
    }
    let namespace = Namespace::new().map_err(|error| MachineFailure::NeverUp(error.to_string()))?;
    // One thread for both: a machine is killed when the thread that started it ends.
    namespace.run(|| make_bridge().map_err(MachineFailure::NeverUp).and_then(|()| machine()))
}

/// Makes two taps and a bridge between them; the interfaces send nothing by themselves.
fn make_bridge() -> Result<(), String> {
    run_ip(&["link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0"])?;
    for tap in TAPS {
        run_ip(&["tuntap", "add", "dev", tap, "mode", "tap"])?;
        run_ip(&["link", "set", tap, "master", BRIDGE])?;
    }
    for interface in [BRIDGE].into_iter().chain(TAPS) {
        run_ip(&["link", "set", interface, "addrgenmode", "none", "up"])?;
    }
    Ok(())
}

fn run_ip(arguments: &[&str]) -> Result<(), String> {
    run_command("wiring a machine", Command::new("ip").args(arguments))
        .map(drop)
        .map_err(|error| error.to_string())
}

/// QEMU's options for its ends of the wire, `h0` and `h1`.
pub(super) fn netdev_options(topology: Topology) -> String {
    let end = |n: usize| match topology {
        Topology::Igb | Topology::Virtio => format!("-netdev hubport,id=h{n},hubid=0"),
        Topology::VirtioTaps => format!("-netdev tap,id=h{n},ifname={},script=no,downscript=no", TAPS[n]),
        Topology::Veth => String::new(),
    };
    format!("{} {}", end(0), end(1))
}
