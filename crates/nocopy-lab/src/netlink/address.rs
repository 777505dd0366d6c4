//! Addresses and the neighbours that make ARP unnecessary.

use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::link::send_change;
use crate::{Error, Namespace};

pub(crate) fn add_address(
    namespace: &Namespace,
    name: &str,
    index: u32,
    ipv4: Ipv4Addr,
    prefix_bits: u8,
) -> Result<(), Error> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = prefix_bits;
    message.header.index = index;
    message.attributes =
        vec![AddressAttribute::Local(IpAddr::V4(ipv4)), AddressAttribute::Address(IpAddr::V4(ipv4))];
    let operation = format!("give {name} the address {ipv4}/{prefix_bits}");
    send_change(namespace, RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL, operation)
}

pub(crate) fn add_neighbour(
    namespace: &Namespace,
    name: &str,
    index: u32,
    ipv4: Ipv4Addr,
    mac: [u8; 6],
) -> Result<(), Error> {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.attributes = vec![
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ipv4)),
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
    ];
    let operation = format!("tell {name} the neighbour {ipv4}");
    send_change(
        namespace,
        RouteNetlinkMessage::NewNeighbour(message),
        NLM_F_CREATE | NLM_F_REPLACE,
        operation,
    )
}
