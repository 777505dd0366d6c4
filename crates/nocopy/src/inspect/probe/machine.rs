//! The kernel, and memory.

use std::fs;

use nocopy_proto::errno::ErrorCause;
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use super::{Gate, GateState};
use crate::facts::features;
use crate::facts::kernel::KernelVersion;
use crate::port::Port;
use crate::sys::capability;
use crate::sys::xsk::XskSocket;

pub(super) fn kernel_gate() -> Gate {
    let needed = features::PORT.kernel;
    match KernelVersion::running() {
        Some(running) => {
            Gate::from_condition("kernel", running >= needed, format!("Linux {running}; {needed} is needed"))
        }
        None => Gate::new("kernel", GateState::Unknown, "its release is not a version number"),
    }
    .with_fix_unless_open("install a newer kernel")
}

pub(super) fn af_xdp_gate() -> Gate {
    match XskSocket::new() {
        Ok(_) => Gate::new("AF_XDP", GateState::Open, "sockets can be made"),
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            Gate::new("AF_XDP", GateState::Closed, "this kernel has no such sockets")
                .with_fix_unless_open("use a kernel built with CONFIG_XDP_SOCKETS")
        }
        Err(error) => {
            Gate::new("AF_XDP", GateState::Unknown, format!("cannot be tried{}", ErrorCause(&error)))
        }
    }
}

pub(super) fn locked_memory_gate() -> Gate {
    const NAME: &str = "locked memory";
    let limit = getrlimit(Resource::Memlock).current;
    let needed = Port::builder("").default_frame_memory_bytes();
    match limit {
        _ if capability::holds_capability(CapabilitySet::IPC_LOCK) => {
            Gate::new(NAME, GateState::Open, "no limit for this process (CAP_IPC_LOCK)")
        }
        None => Gate::new(NAME, GateState::Open, "no limit"),
        Some(limit) => {
            let found = format!("{} KiB; a port of default size pins {} KiB", limit / 1024, needed / 1024);
            Gate::from_condition(NAME, limit >= needed, found)
                .with_command_unless_open("ulimit -l unlimited", ", or fewer frames")
        }
    }
}

pub(super) fn huge_page_gate() -> Gate {
    const NAME: &str = "huge pages";
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let pool: u64 = read("/proc/sys/vm/nr_hugepages").trim().parse().unwrap_or(0);
    let transparent = read("/sys/kernel/mm/transparent_hugepage/enabled");
    if pool > 0 {
        Gate::new(NAME, GateState::Open, format!("a pool of {pool}"))
    } else if transparent.contains("[always]") || transparent.contains("[madvise]") {
        Gate::new(NAME, GateState::Open, "transparent ones, where the kernel provides them")
    } else {
        Gate::new(NAME, GateState::Closed, "none: ports work on base pages")
            .with_command_unless_open("sysctl vm.nr_hugepages=64", "")
    }
}
