//! What a driver can do with XDP, by the kernel's generic netlink family `netdev` (Linux 6.3; the kernel's
//! Documentation/netlink/specs/netdev.yaml).

use std::borrow::Cow;
use std::io;

use netlink_packet_core::{NLA_HEADER_SIZE, NLM_F_REQUEST, NlasIterator};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_GENERIC;

use super::route::{self, Raw, dump, exchange};
use crate::counter::Counter;

/// The family that knows the others (`linux/genetlink.h`).
const CONTROL_FAMILY: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
// linux/netdev.h
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_CMD_QSTATS_GET: u8 = 12;
const NETDEV_A_QSTATS_IFINDEX: u16 = 1;
const NETDEV_A_QSTATS_QUEUE_TYPE: u16 = 2;
const NETDEV_A_QSTATS_QUEUE_ID: u16 = 3;
const NETDEV_A_QSTATS_SCOPE: u16 = 4;
const NETDEV_QSTATS_SCOPE_QUEUE: u64 = 1;
const NETDEV_QUEUE_TYPE_RX: u64 = 0;
const NETDEV_XDP_ACT_BASIC: u64 = 1 << 0;
const NETDEV_XDP_ACT_REDIRECT: u64 = 1 << 1;
const NETDEV_XDP_ACT_XSK_ZEROCOPY: u64 = 1 << 3;

/// Command, version and two bytes of nothing.
const HEADER_BYTES: usize = 4;

/// A socket to the family in the calling thread's network namespace, and the family's number.
fn netdev() -> io::Result<(Socket, u16)> {
    let socket = route::socket_of(NETLINK_GENERIC)?;
    let name: (u16, &[u8]) = (CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let family = ask(&socket, request(CONTROL_FAMILY, CTRL_CMD_GETFAMILY, &[name]))?;
    let family = number(&attribute(&family, CTRL_ATTR_FAMILY_ID)?)?;
    Ok((socket, u16::try_from(family).map_err(|_| invalid())?))
}

fn ask(socket: &Socket, request: Raw) -> io::Result<Raw> {
    exchange(socket, request, NLM_F_REQUEST)?.ok_or_else(invalid)
}

/// What a driver says it can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct XdpFeatures(u64);

impl XdpFeatures {
    /// Of an interface of the calling thread's network namespace.
    pub(crate) fn of(interface_index: u32) -> io::Result<Self> {
        let (socket, family) = netdev()?;
        let index = interface_index.to_ne_bytes();
        let device = ask(&socket, request(family, NETDEV_CMD_DEV_GET, &[(NETDEV_A_DEV_IFINDEX, &index)]))?;
        Ok(Self(number(&attribute(&device, NETDEV_A_DEV_XDP_FEATURES)?)?))
    }

    /// Programs run in the driver, and may redirect.
    pub(crate) const fn native(self) -> bool {
        let needed = NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT;
        self.0 & needed == needed
    }

    /// AF_XDP without copies.
    pub(crate) const fn zero_copy(self) -> bool {
        self.0 & NETDEV_XDP_ACT_XSK_ZEROCOPY != 0
    }
}

/// What one queue of a device counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueCounters {
    /// It receives; otherwise it sends.
    pub(crate) receives: bool,
    pub(crate) queue: u32,
    /// Those the driver keeps.
    pub(crate) counters: Vec<Counter>,
}

/// What the queues of an interface counted; nothing where the driver or the kernel does not say (Linux 6.9).
pub(crate) fn queue_counters(interface_index: u32) -> io::Result<Vec<QueueCounters>> {
    let (socket, family) = match netdev() {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(Vec::new()),
        found => found?,
    };
    let index = interface_index.to_ne_bytes();
    // Attributes of the kernel's type `uint` come in four bytes or eight.
    let scope = u32::try_from(NETDEV_QSTATS_SCOPE_QUEUE).expect("one").to_ne_bytes();
    let wanted: [(u16, &[u8]); 2] = [(NETDEV_A_QSTATS_IFINDEX, &index), (NETDEV_A_QSTATS_SCOPE, &scope)];
    match dump(&socket, request(family, NETDEV_CMD_QSTATS_GET, &wanted)) {
        Ok(answers) => answers.iter().map(parse_queue).collect(),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn parse_queue(message: &Raw) -> io::Result<QueueCounters> {
    let receives = number(&attribute(message, NETDEV_A_QSTATS_QUEUE_TYPE)?)? == NETDEV_QUEUE_TYPE_RX;
    let queue = number(&attribute(message, NETDEV_A_QSTATS_QUEUE_ID)?)?;
    let counters = attributes(message).filter_map(|(kind, value)| {
        let (_, name, meaning) = QUEUE_COUNTERS.iter().find(|(number, ..)| *number == kind)?;
        Some(number(&value).map(|value| Counter { name: Cow::Borrowed(name), meaning, value }))
    });
    Ok(QueueCounters {
        receives,
        queue: u32::try_from(queue).map_err(|_| invalid())?,
        counters: counters.collect::<io::Result<_>>()?,
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

/// A generic netlink message: a command with attributes (`struct genlmsghdr` and what follows).
fn request(family: u16, command: u8, attributes: &[(u16, &[u8])]) -> Raw {
    let mut bytes = vec![command, 1, 0, 0]; // version 1, and two bytes of nothing
    for (kind, value) in attributes {
        let length = u16::try_from(NLA_HEADER_SIZE + value.len()).expect("short values");
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(*value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    Raw { kind: family, bytes }
}

/// Its attributes: kind and value.
fn attributes(message: &Raw) -> impl Iterator<Item = (u16, Vec<u8>)> {
    let bytes = message.bytes.get(HEADER_BYTES..).unwrap_or_default();
    NlasIterator::new(bytes).flatten().map(|attribute| (attribute.kind(), attribute.value().to_vec()))
}

fn attribute(message: &Raw, wanted: u16) -> io::Result<Vec<u8>> {
    let found = attributes(message).find(|(kind, _)| *kind == wanted);
    found.map(|(_, value)| value).ok_or_else(invalid)
}

/// A number of whatever width the kernel chose.
fn number(value: &[u8]) -> io::Result<u64> {
    match *value {
        [a, b] => Ok(u16::from_ne_bytes([a, b]).into()),
        [a, b, c, d] => Ok(u32::from_ne_bytes([a, b, c, d]).into()),
        _ => Ok(u64::from_ne_bytes(value.try_into().map_err(|_| invalid())?)),
    }
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

#[cfg(all(test, not(nocopy_loom)))]
mod tests {
    use super::*;

    #[test]
    fn veth_has_native_xdp_without_zero_copy_and_loopback_has_none() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        lab.left().namespace().run(|| {
            let veth = XdpFeatures::of(lab.left().index()).unwrap();
            assert!(veth.native() && !veth.zero_copy(), "{veth:?}");
            let loopback = XdpFeatures::of(1).unwrap();
            assert!(!loopback.native() && !loopback.zero_copy(), "{loopback:?}");
        });
        assert_eq!(
            lab.left().namespace().run(|| queue_counters(lab.left().index())).unwrap(),
            [],
            "veth has none"
        );
        assert_eq!(XdpFeatures::of(u32::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn a_queue_is_read_in_either_width_with_what_its_driver_keeps() {
        let eight = 70_000_000_000_u64.to_ne_bytes();
        let four = 7_u32.to_ne_bytes();
        let message = request(
            30,
            NETDEV_CMD_QSTATS_GET,
            &[
                (NETDEV_A_QSTATS_IFINDEX, &2_u32.to_ne_bytes()),
                (NETDEV_A_QSTATS_QUEUE_TYPE, &1_u32.to_ne_bytes()),
                (NETDEV_A_QSTATS_QUEUE_ID, &3_u32.to_ne_bytes()),
                (11, &eight),
                (24, &four),
                (999, &four),
            ],
        );
        let queue = parse_queue(&message).unwrap();
        assert_eq!((queue.receives, queue.queue), (false, 3));
        let found: Vec<_> = queue.counters.iter().map(|counter| (&*counter.name, counter.value)).collect();
        assert_eq!(found, [("tx_bytes", 70_000_000_000), ("tx_hw_drops", 7)]);
        let nameless = request(30, NETDEV_CMD_QSTATS_GET, &[(11, &eight)]);
        assert_eq!(parse_queue(&nameless).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
