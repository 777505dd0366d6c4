//! All workloads.

use crate::founding;

use super::{
    Workload, asynchronous, capture, latency, libpcap, messages, nfs, packet_send, python, record, run_udp,
    tcp, udp_send,
};

/// All workloads, in the order in which they are measured.
pub(crate) const ALL: [&Workload; 18] = [
    &packet_send::PACKET_SEND,
    &capture::CAPTURE,
    &record::RECORD,
    &udp_send::UDP_SEND,
    &udp_send::UDP_RECEIVE,
    &tcp::send::TCP_SEND,
    &tcp::receive::TCP_RECEIVE,
    &tcp::proxy::TCP_PROXY,
    &asynchronous::ASYNC,
    &nfs::NFS,
    &nfs::NFS_READ,
    &libpcap::LIBPCAP,
    &run_udp::RUN_UDP,
    &python::PYTHON,
    &latency::ROUND_TRIP,
    &messages::latency::MESSAGE_LATENCY,
    &messages::stream::MESSAGE_STREAM,
    &messages::beside::MESSAGE_BESIDE,
];

pub(crate) fn method_names() -> Vec<&'static str> {
    let mut names = Vec::new();
    for (name, _) in ALL.iter().flat_map(|workload| workload.methods) {
        if !names.contains(name) {
            names.push(*name);
        }
    }
    names
}

pub(crate) fn has_method(workload: &str, method: &str) -> bool {
    let named = ALL.into_iter().chain(founding::ALL).find(|known| known.name == workload);
    named.is_some_and(|workload| workload.methods.iter().any(|(name, _)| *name == method))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn workload_and_method_names_are_unique() {
        let names: HashSet<_> = ALL.iter().map(|workload| workload.name).collect();
        assert_eq!(names.len(), ALL.len());
        for Workload { name, about, methods, .. } in ALL.into_iter().chain(founding::ALL) {
            assert!(!name.is_empty() && !about.is_empty() && !methods.is_empty(), "{name}");
        }
        for workload in ALL {
            let methods: HashSet<_> = workload.methods.iter().map(|(name, _)| name).collect();
            assert_eq!(methods.len(), workload.methods.len(), "{}", workload.name);
        }
    }
}
