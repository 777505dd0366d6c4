//! What is measured: the trait, the list, and a file each.

pub(crate) mod capture;
pub(crate) mod latency;
pub(crate) mod libpcap;
pub(crate) mod messages;
pub(crate) mod packet_send;
pub(crate) mod record;
pub(crate) mod tcp;
pub(crate) mod udp_send;

use std::fmt::Debug;

use nocopy_report::capability;
use rustix::thread::CapabilitySet;

use crate::Failure;
use crate::bench::Bench;
use crate::plan::Plan;

/// Frame lengths of the packet workloads, in bytes: the shortest Ethernet allows, and one that nearly fills the MTU.
pub(crate) const FRAME_BYTES: [usize; 2] = [64, 1400];

/// Why sockets of the two ends are not measured between two interfaces of one namespace.
const LOOPBACK: &str = "between two interfaces of one namespace the kernel delivers by loopback";

/// Work that can be done by several methods, which are measured against each other.
pub(crate) trait Workload: Debug + Sync {
    /// As on the command line and in results.
    fn name(&self) -> &'static str;

    /// What is measured, in one line.
    fn about(&self) -> &'static str;

    /// Every method there is, in the order of the tables.
    fn methods(&self) -> &'static [Method];

    /// Why it is measured in a private lab only, if it is.
    fn lab_only(&self) -> Option<&'static str> {
        None
    }

    /// What the programs it starts need besides what the network needs.
    fn capabilities(&self) -> CapabilitySet {
        capability::NONE
    }

    /// What it takes to understand its tables, a paragraph each.
    fn notes(&self) -> &'static [&'static str] {
        &[]
    }

    /// What of it cannot be measured here, and why.
    fn skips(&self, _plan: &Plan<'_>) -> Vec<String> {
        Vec::new()
    }

    /// Sets each stage, and has its series played there.
    fn measure(&self, bench: &mut Bench<'_>) -> Result<(), Failure>;
}

/// A method's name, as on the command line and in results, and what it does.
pub(crate) type Method = (&'static str, &'static str);

/// All of them, in the order in which they are measured.
pub(crate) const ALL: [&dyn Workload; 12] = [
    &packet_send::PacketSend,
    &capture::Capture,
    &record::Record,
    &udp_send::UdpSend,
    &udp_send::UdpReceive,
    &tcp::send::TcpSend,
    &tcp::receive::TcpReceive,
    &tcp::proxy::TcpProxy,
    &libpcap::Libpcap,
    &latency::RoundTrip,
    &messages::latency::MessageLatency,
    &messages::stream::MessageStream,
];

/// The names of the methods of all workloads, each once.
pub(crate) fn method_names() -> Vec<&'static str> {
    let mut names = Vec::new();
    for (name, _) in ALL.iter().flat_map(|workload| workload.methods()) {
        if !names.contains(name) {
            names.push(*name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_documentation_has_every_workload_and_method() {
        let page = include_str!("../../../../docs/bench.md");
        for workload in ALL {
            let names = workload.methods().iter().map(|(name, _)| *name).chain([workload.name()]);
            let missing: Vec<_> = names.filter(|name| !page.contains(&format!("`{name}`"))).collect();
            assert!(missing.is_empty(), "docs/bench.md lacks {missing:?} of {}", workload.name());
        }
    }

    #[test]
    fn names_are_unique() {
        let names: HashSet<_> = ALL.iter().map(|workload| workload.name()).collect();
        assert_eq!(names.len(), ALL.len());
        for workload in ALL {
            let methods: HashSet<_> = workload.methods().iter().map(|(name, _)| name).collect();
            assert_eq!(methods.len(), workload.methods().len(), "{}", workload.name());
        }
    }
}
