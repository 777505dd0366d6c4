//! Zero-copy features other than ports: sockets, and io_uring.

use std::fs;
use std::io;

use nocopy_proto::errno::ErrorCause;
use rustix::thread::CapabilitySet;

use super::{Gate, GateState, shell_quoted};
use crate::facts::features;
use crate::sys::ethtool::HeaderSplit;
use crate::sys::interface::{self, Interface};
use crate::sys::{capability, io_uring as uring, sockets};

/// The kernel's default since Linux 6.7 (`net/core/sock.c`: `sysctl_optmem_max`); before, 20 KiB were enough
/// for some 30 sends.
const OPTMEM_BYTES: u64 = 128 * 1024;

/// A page, and the headers of TCP over IPv4 with timestamps: 20 + 20 + 12.
const PAGE_BYTES: u32 = 4096;
const TCP_HEADERS_BYTES: u32 = 52;

pub(super) fn io_uring_gate() -> Gate {
    const NAME: &str = "io_uring";
    let switch = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let switch = switch.as_deref().map(str::trim).ok();
    let enable = "sysctl kernel.io_uring_disabled=0";
    match (uring::check_available(), switch) {
        (Ok(()), Some("1")) if capability::holds_capability(CapabilitySet::SYS_ADMIN) => {
            Gate::new(NAME, GateState::Open, "for privileged processes")
        }
        (Ok(()), _) => Gate::new(NAME, GateState::Open, "works"),
        (Err(_), Some("1" | "2")) => {
            Gate::new(NAME, GateState::Closed, "turned off").with_command_unless_open(enable, "")
        }
        (Err(error), _) if error.raw_os_error() == Some(libc::ENOSYS) => {
            Gate::new(NAME, GateState::Closed, "this kernel has none")
                .with_fix_unless_open("use a kernel built with CONFIG_IO_URING")
        }
        (Err(error), _) => Gate::new(NAME, GateState::Closed, format!("refused{}", ErrorCause(&error)))
            .with_fix_unless_open("allow it in the sandbox (seccomp) or container that this process runs in"),
    }
}

/// The kernel's support for zero-copy receive by io_uring.
pub(super) fn uring_receive_gate() -> Gate {
    const NAME: &str = "io_uring zero-copy receive";
    match uring::has_zero_copy_receive() {
        Ok(true) => Gate::new(NAME, GateState::Open, "the kernel has it"),
        Ok(false) => Gate::new(NAME, GateState::Closed, "the kernel does not have it").with_fix_unless_open(
            format!("Linux {} or newer, built with CONFIG_IO_URING_ZCRX", features::URING_RECEIVE.kernel),
        ),
        Err(error) => Gate::new(
            NAME,
            GateState::Unknown,
            format!("the kernel does not report it{}", ErrorCause(&error)),
        ),
    }
}

/// Memory that the kernel may use to report the completion of zero-copy sends.
pub(super) fn option_memory_gate() -> Gate {
    const NAME: &str = "socket option memory";
    let limit = fs::read_to_string("/proc/sys/net/core/optmem_max");
    match limit.ok().and_then(|limit| limit.trim().parse::<u64>().ok()) {
        Some(bytes) => {
            let found = format!("{} KiB a socket: beyond it zero-copy sends fail with ENOBUFS", bytes / 1024);
            Gate::from_condition(NAME, bytes >= OPTMEM_BYTES, found)
                .with_command_unless_open(format!("sysctl net.core.optmem_max={OPTMEM_BYTES}"), "")
        }
        // On older kernels, network namespaces other than the first have no such file.
        None => Gate::new(NAME, GateState::Unknown, "not reported in this network namespace"),
    }
}

/// Whether sockets send from the program's memory through this interface.
pub(super) fn zero_copy_send_gate(interface: &Interface) -> Gate {
    const NAME: &str = "zero-copy send";
    if let Err(error) = sockets::check_zero_copy_send() {
        return Gate::new(
            NAME,
            GateState::Closed,
            format!("this kernel has no MSG_ZEROCOPY{}", ErrorCause(&error)),
        )
        .with_fix_unless_open(format!("Linux {} or newer", features::TCP_ZERO_COPY.kernel));
    }
    let gathers = interface::is_scatter_gather_on(&interface.name);
    // These deliver packets to sockets of this machine, and `skb_orphan_frags_rx` copies what such a socket
    // keeps.
    let late = ["veth", "tun", "bridge"].iter().any(|driver| interface.driver.as_deref() == Some(driver));
    if late || interface.loopback {
        let at_once = if gathers == Some(false) { ", and at once: scatter-gather is off" } else { "" };
        let found = format!("copied late: its packets are delivered to a socket of this machine{at_once}");
        return Gate::new(NAME, GateState::Closed, found)
            .with_fix_unless_open("an interface to another machine; here an ordinary send is faster");
    }
    match gathers {
        Some(false) => Gate::new(NAME, GateState::Closed, "copied: scatter-gather is off")
            .with_command_unless_open(format!("ethtool -K {} sg on", shell_quoted(&interface.name)), ""),
        Some(true) if interface::bus_address(&interface.name).is_some() => Gate::new(
            NAME,
            GateState::Open,
            "scatter-gather is on; every completion reports whether data were copied",
        ),
        _ => Gate::new(NAME, GateState::Unknown, "it is not a card, so the devices behind it may copy"),
    }
}

/// Whether TCP maps data received through this interface into the program's memory.
pub(super) fn zero_copy_receive_gate(interface: &Interface, split: Option<bool>) -> Gate {
    const NAME: &str = "zero-copy receive";
    if let Err(error) = sockets::check_zero_copy_receive() {
        return Gate::new(
            NAME,
            GateState::Closed,
            format!("this kernel has no TCP_ZEROCOPY_RECEIVE{}", ErrorCause(&error)),
        )
        .with_fix_unless_open(format!("Linux {} or newer", features::TCP_MAPPED.kernel));
    }
    let Interface { name, mtu_bytes, loopback, .. } = interface;
    if *loopback {
        return Gate::new(
            NAME,
            GateState::Unknown,
            "only data sent with MSG_ZEROCOPY lie on pages that can be mapped",
        );
    }
    let data_bytes = mtu_bytes.saturating_sub(TCP_HEADERS_BYTES);
    if data_bytes == 0 || data_bytes % PAGE_BYTES != 0 {
        let (one, two) = (PAGE_BYTES + TCP_HEADERS_BYTES, 2 * PAGE_BYTES + TCP_HEADERS_BYTES);
        return Gate::new(NAME, GateState::Closed, format!("MTU {mtu_bytes}: data do not fill whole pages"))
            .with_fix_unless_open(format!("'ip link set dev {name} mtu {one}', or {two}, at both ends"));
    }
    let found = format!("MTU {mtu_bytes}: data fill whole pages");
    match split {
        Some(true) => Gate::new(NAME, GateState::Open, found),
        Some(false) => {
            Gate::new(NAME, GateState::Closed, format!("{found}, but headers lie in front of them"))
                .with_command_unless_open(format!("ethtool -G {} tcp-data-split on", shell_quoted(name)), "")
        }
        None => Gate::new(
            NAME,
            GateState::Unknown,
            format!("{found}; the driver does not say whether it splits headers off"),
        ),
    }
}

/// Whether io_uring can receive into the program's memory through this interface: the visible conditions of
/// `net_mp_open_rxq`, by which the kernel lends a queue's buffers to a program.
pub(super) fn interface_uring_receive_gate(interface: &Interface, split: io::Result<HeaderSplit>) -> Gate {
    const NAME: &str = "zero-copy receive by io_uring";
    let name = &interface.name;
    let closed = |found: &str| Gate::new(NAME, GateState::Closed, found);
    match split {
        Ok(HeaderSplit { on: Some(false), .. }) => closed("it needs headers to be split off")
            .with_command_unless_open(format!("ethtool -G {} tcp-data-split on", shell_quoted(name)), ""),
        Ok(HeaderSplit { on: Some(true), threshold_bytes: Some(bytes @ 1..) }) => closed(&format!(
            "it needs headers to be split off of every packet, not only of those over {bytes} bytes"
        ))
        .with_command_unless_open(format!("ethtool -G {} hds-thresh 0", shell_quoted(name)), ""),
        Ok(HeaderSplit { on: Some(true), .. }) => Gate::new(
            NAME,
            GateState::Unknown,
            "headers are split off; only an attempt shows whether the driver lends queues",
        ),
        Ok(HeaderSplit { on: None, .. }) => {
            Gate::new(NAME, GateState::Unknown, "the driver does not say whether it splits headers off")
        }
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            closed("it needs headers to be split off, which this driver cannot do")
                .with_fix_unless_open("a card whose driver splits headers")
        }
        Err(error) => Gate::new(
            NAME,
            GateState::Unknown,
            format!("the kernel does not report it{}", ErrorCause(&error)),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uring_receive_is_closed_unless_all_headers_are_split() {
        let lab = nocopy_lab::lab_or_skip();
        let Some(lab) = lab else { return };
        let interface =
            lab.left().namespace().run(|| crate::port::Port::builder("nc0").look_up_interface().unwrap());
        let gate = |on, threshold_bytes| {
            interface_uring_receive_gate(&interface, Ok(HeaderSplit { on, threshold_bytes }))
        };
        let cases = [
            (gate(Some(false), Some(0)), GateState::Closed, Some("'ethtool -G nc0 tcp-data-split on'")),
            (gate(Some(true), Some(256)), GateState::Closed, Some("'ethtool -G nc0 hds-thresh 0'")),
            (gate(Some(true), Some(0)), GateState::Unknown, None),
            (gate(Some(true), None), GateState::Unknown, None),
            (gate(None, None), GateState::Unknown, None),
        ];
        for (gate, state, fix) in cases {
            assert_eq!((gate.state, gate.fix.as_deref()), (state, fix), "{gate}");
        }
    }
}
