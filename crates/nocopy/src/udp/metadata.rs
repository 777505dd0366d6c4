//! What is known about a received datagram besides its bytes and its sender.

use std::net::IpAddr;

use nocopy_proto::wire::Ecn;

use crate::facts::metadata::Timestamp;

/// What is known about a received datagram besides its bytes and its sender. `None`: not known; a kernel
/// socket reports only what was [requested](super::Builder::receive_metadata).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// Whether routers may mark it, and whether one did.
    pub ecn: Option<Ecn>,
    /// The address to which it was sent: of this host, or a multicast group or broadcast address.
    pub destination: Option<IpAddr>,
    /// The address of this host from which an answer has to come: the destination, or, of a broadcast and of
    /// an IPv4 group, the address of the interface.
    pub reply_from: Option<IpAddr>,
    /// Index of the interface on which it arrived.
    pub interface: Option<u32>,
    /// Bytes of each datagram of the burst in which it arrived (`UDP_GRO`), except the last one, which may be
    /// shorter; its own length if it arrived alone.
    pub segment_bytes: usize,
    /// When it arrived: at a kernel socket by `CLOCK_REALTIME`, on [request](super::Builder::receive_times);
    /// over a port by the port's clock, if it has [one](crate::metadata).
    pub time: Option<Timestamp>,
}
