//! Counters of the queues of a device, by the kernel's generic netlink family `netdev` (Linux 6.9; the
//! kernel's Documentation/netlink/specs/netdev.yaml).

use std::borrow::Cow;
use std::io;

use super::generic::{GenericFamily, GenericReply, u32_attribute};
use crate::counter::Counter;

// linux/netdev.h
const NETDEV_CMD_QSTATS_GET: u8 = 12;
const NETDEV_A_QSTATS_IFINDEX: u16 = 1;
const NETDEV_A_QSTATS_QUEUE_TYPE: u16 = 2;
const NETDEV_A_QSTATS_QUEUE_ID: u16 = 3;
const NETDEV_A_QSTATS_SCOPE: u16 = 4;
const NETDEV_QSTATS_SCOPE_QUEUE: u32 = 1;
const NETDEV_QUEUE_TYPE_RX: u64 = 0;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueCounters {
    /// Whether it receives; otherwise it sends.
    pub(crate) receives: bool,
    pub(crate) queue: u32,
    pub(crate) counters: Vec<Counter>,
}

pub(crate) fn queue_counters(interface_index: u32) -> io::Result<Vec<QueueCounters>> {
    let family = match GenericFamily::look_up("netdev") {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(Vec::new()),
        found => found?,
    };
    let wanted = [
        u32_attribute(NETDEV_A_QSTATS_IFINDEX, interface_index),
        u32_attribute(NETDEV_A_QSTATS_SCOPE, NETDEV_QSTATS_SCOPE_QUEUE),
    ];
    match family.dump(NETDEV_CMD_QSTATS_GET, &wanted) {
        Ok(answers) => answers.iter().map(parse_queue_counters).collect(),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn parse_queue_counters(answer: &GenericReply) -> io::Result<QueueCounters> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let receives =
        answer.number_value(NETDEV_A_QSTATS_QUEUE_TYPE).ok_or_else(invalid)? == NETDEV_QUEUE_TYPE_RX;
    let queue = answer.number_value(NETDEV_A_QSTATS_QUEUE_ID).ok_or_else(invalid)?;
    let counters = QUEUE_COUNTERS.iter().filter_map(|(kind, name, meaning)| {
        let value = answer.number_value(*kind)?;
        Some(Counter { name: Cow::Borrowed(*name), meaning, value })
    });
    Ok(QueueCounters {
        receives,
        queue: u32::try_from(queue).map_err(|_| invalid())?,
        counters: counters.collect(),
    })
}

/// The counters of a queue, by their attributes in `linux/netdev.h` and their names in netdev.yaml.
const QUEUE_COUNTERS: &[(u16, &str, &str)] = &[
    (8, "rx_packets", "Packets the queue received and passed on."),
    (9, "rx_bytes", "Bytes in them."),
    (10, "tx_packets", "Packets the queue sent."),
    (11, "tx_bytes", "Bytes in them."),
    (12, "rx_alloc_fail", "Times there was no memory to receive into."),
    (13, "rx_hw_drops", "Packets that reached the device and were dropped there, for whatever reason."),
    (14, "rx_hw_drop_overruns", "Those dropped for want of buffers: the host did not keep up."),
    (15, "rx_csum_complete", "Packets whose checksum the device summed up."),
    (16, "rx_csum_unnecessary", "Packets whose checksum the device found right."),
    (17, "rx_csum_none", "Packets whose checksum the device did not look at."),
    (18, "rx_csum_bad", "Packets with a wrong checksum."),
    (19, "rx_hw_gro_packets", "Packets the device joined from several."),
    (20, "rx_hw_gro_bytes", "Bytes in them."),
    (21, "rx_hw_gro_wire_packets", "Packets they were joined from."),
    (22, "rx_hw_gro_wire_bytes", "Bytes in those."),
    (23, "rx_hw_drop_ratelimits", "Packets dropped because of a rate limit of the device."),
    (24, "tx_hw_drops", "Packets that reached the device to be sent and were dropped there."),
    (25, "tx_hw_drop_errors", "Those dropped as malformed or for an error of the device."),
    (26, "tx_csum_none", "Packets sent without the device computing a checksum."),
    (27, "tx_needs_csum", "Packets sent with the device computing the checksum."),
    (28, "tx_hw_gso_packets", "Packets the device cut into several."),
    (29, "tx_hw_gso_bytes", "Bytes in them."),
    (30, "tx_hw_gso_wire_packets", "Packets they were cut into."),
    (31, "tx_hw_gso_wire_bytes", "Bytes in those."),
    (32, "tx_hw_drop_ratelimits", "Packets not sent because of a rate limit of the device."),
    (33, "tx_stop", "Times the queue was full and the stack had to stop."),
    (34, "tx_wake", "Times it went on."),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::generic::u64_attribute;

    #[test]
    fn a_veth_has_no_queue_counters() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        assert_eq!(lab.left().namespace().run(|| queue_counters(lab.left().index())).unwrap(), []);
    }

    #[test]
    fn queue_counters_of_both_widths_are_read() {
        let answer = GenericReply::from_attributes(&[
            u32_attribute(NETDEV_A_QSTATS_IFINDEX, 2),
            u32_attribute(NETDEV_A_QSTATS_QUEUE_TYPE, 1),
            u32_attribute(NETDEV_A_QSTATS_QUEUE_ID, 3),
            u64_attribute(11, 70_000_000_000),
            u32_attribute(24, 7),
            u32_attribute(999, 7),
        ]);
        let queue = parse_queue_counters(&answer).unwrap();
        assert_eq!((queue.receives, queue.queue), (false, 3));
        let found: Vec<_> = queue.counters.iter().map(|counter| (&*counter.name, counter.value)).collect();
        assert_eq!(found, [("tx_bytes", 70_000_000_000), ("tx_hw_drops", 7)]);
        let nameless = GenericReply::from_attributes(&[u64_attribute(11, 1)]);
        assert_eq!(parse_queue_counters(&nameless).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
