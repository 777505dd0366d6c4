//! Requests to the kernel's tables of links, routes and neighbours (rtnetlink(7)).

#[cfg(feature = "port")]
mod for_ports;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

#[cfg(feature = "port")]
pub(crate) use for_ports::{attached_programs, has_carrier, link_counters, use_neighbour};

use super::netlink::{
    NetlinkMessage, attributes_in, join_group, messages_in, netlink_socket, push_attribute, request_reply,
    u16_at, u32_at,
};

/// Bytes of `struct ifinfomsg`, `struct rtmsg` and `struct ndmsg`, which come before the attributes.
const LINK_HEADER_BYTES: usize = 16;
const ROUTE_HEADER_BYTES: usize = 12;
const NEIGHBOUR_HEADER_BYTES: usize = 12;

/// Of `linux/rtnetlink.h`: the path MTU among a route's metrics.
const RTAX_MTU: u16 = 2;

/// Of the same header: attributes of routes, which not every C library has.
const RTA_VIA: u16 = 18;
const RTA_ENCAP_TYPE: u16 = 21;
const RTA_ENCAP: u16 = 22;

/// A link (`RTM_NEWLINK`).
#[derive(Debug, Default)]
pub(crate) struct LinkMessage {
    /// `IFF_*`.
    pub(crate) flags: u32,
    pub(crate) name: Option<String>,
    /// The hardware address, of any length.
    pub(crate) address: Option<Vec<u8>>,
    pub(crate) mtu_bytes: Option<u32>,
    /// What made it, as `ip -details link` says it: `veth`.
    pub(crate) kind: Option<String>,
    /// Whether it is a device on a bus.
    pub(crate) is_on_bus: bool,
}

/// A route (`RTM_NEWROUTE`).
#[derive(Debug, Default)]
pub(crate) struct RouteMessage {
    /// `RTN_*`.
    pub(crate) kind: u8,
    pub(crate) interface_index: Option<u32>,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) source: Option<IpAddr>,
    pub(crate) mtu_bytes: Option<u32>,
    /// Whether it puts other headers in front.
    pub(crate) is_encapsulated: bool,
}

/// A neighbour (`RTM_NEWNEIGH`, `RTM_DELNEIGH`).
#[derive(Debug)]
pub(crate) struct NeighbourMessage {
    pub(crate) interface_index: u32,
    /// `NUD_*`.
    pub(crate) state: u16,
    /// `None` for those of bridges, which have no IP address.
    pub(crate) destination: Option<IpAddr>,
    /// The hardware address, of any length.
    pub(crate) address: Option<Vec<u8>>,
}

/// What has changed.
#[derive(Debug)]
pub(crate) enum TableChange {
    Link,
    Neighbour(NeighbourMessage),
    /// An address, a route, or a rule.
    Other,
}

impl LinkMessage {
    fn parse(message: &[u8]) -> Option<Self> {
        let mut link = Self { flags: u32_at(message, 8)?, ..Self::default() };
        for (kind, value) in attributes_in(message.get(LINK_HEADER_BYTES..)?) {
            match kind {
                libc::IFLA_IFNAME => link.name = Some(parse_text(value)),
                libc::IFLA_ADDRESS => link.address = Some(value.to_vec()),
                libc::IFLA_MTU => link.mtu_bytes = u32_at(value, 0),
                libc::IFLA_LINKINFO => {
                    link.kind = attribute_in(value, libc::IFLA_INFO_KIND).map(parse_text);
                }
                libc::IFLA_PARENT_DEV_BUS_NAME => link.is_on_bus = true,
                _ => {}
            }
        }
        Some(link)
    }
}

impl RouteMessage {
    fn parse(message: &[u8]) -> Option<Self> {
        let mut route = Self { kind: *message.get(7)?, ..Self::default() };
        for (kind, value) in attributes_in(message.get(ROUTE_HEADER_BYTES..)?) {
            match kind {
                libc::RTA_OIF => route.interface_index = u32_at(value, 0),
                libc::RTA_GATEWAY => route.gateway = parse_address(value),
                // Behind two bytes of its family.
                RTA_VIA => route.gateway = value.get(2..).and_then(parse_address),
                libc::RTA_PREFSRC => route.source = parse_address(value),
                libc::RTA_METRICS => {
                    route.mtu_bytes = attribute_in(value, RTAX_MTU).and_then(|value| u32_at(value, 0));
                }
                RTA_ENCAP | RTA_ENCAP_TYPE => route.is_encapsulated = true,
                _ => {}
            }
        }
        Some(route)
    }
}

impl NeighbourMessage {
    fn parse(message: &[u8]) -> Option<Self> {
        let (interface_index, state) = (u32_at(message, 4)?, u16_at(message, 8)?);
        let mut neighbour = Self { interface_index, state, destination: None, address: None };
        for (kind, value) in attributes_in(message.get(NEIGHBOUR_HEADER_BYTES..)?) {
            match kind {
                libc::NDA_DST => neighbour.destination = parse_address(value),
                libc::NDA_LLADDR => neighbour.address = Some(value.to_vec()),
                _ => {}
            }
        }
        Some(neighbour)
    }
}

impl TableChange {
    fn parse(kind: u16, message: &[u8]) -> Option<Self> {
        Some(match kind {
            libc::RTM_NEWLINK | libc::RTM_DELLINK => Self::Link,
            libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => Self::Neighbour(NeighbourMessage::parse(message)?),
            _ => Self::Other,
        })
    }
}

fn attribute_in(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes_in(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A text, which a byte of 0 ends.
fn parse_text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn parse_address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(Ipv4Addr::from(*value.first_chunk::<4>()?).into()),
        16 => Some(Ipv6Addr::from(*value.first_chunk::<16>()?).into()),
        _ => None,
    }
}

fn push_address(bytes: &mut Vec<u8>, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => push_attribute(bytes, kind, &address.octets()),
        IpAddr::V6(address) => push_attribute(bytes, kind, &address.octets()),
    }
}

fn address_family(address: IpAddr) -> u8 {
    u8::try_from(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }).expect("small constants")
}

/// The bytes of the answer to a request, which is of that kind.
fn answer_of_kind(answer: Option<NetlinkMessage>, kind: u16) -> io::Result<Vec<u8>> {
    let answer = answer.filter(|answer| answer.kind == kind).ok_or(io::ErrorKind::InvalidData)?;
    Ok(answer.bytes)
}

fn read_link(socket: &OwnedFd, interface_index: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LINK_HEADER_BYTES];
    bytes[4..8].copy_from_slice(&interface_index.to_ne_bytes());
    let request = NetlinkMessage { kind: libc::RTM_GETLINK, bytes };
    answer_of_kind(request_reply(socket, &request, 0)?, libc::RTM_NEWLINK)
}

pub(crate) fn link_by_index(socket: &OwnedFd, interface_index: u32) -> io::Result<LinkMessage> {
    let answer = read_link(socket, interface_index)?;
    LinkMessage::parse(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The host's current route to an address; if given, from an address and by an interface. Errors: there is
/// none (`ENETUNREACH`, `EHOSTUNREACH`), or one that forbids sending (`EINVAL` for a black hole, `EACCES`).
pub(crate) fn route_to(
    socket: &OwnedFd,
    to: IpAddr,
    from: Option<IpAddr>,
    interface_index: Option<u32>,
) -> io::Result<RouteMessage> {
    let address_bits = if to.is_ipv4() { 32 } else { 128 };
    let mut bytes = vec![0; ROUTE_HEADER_BYTES];
    bytes[..2].copy_from_slice(&[address_family(to), address_bits]);
    push_address(&mut bytes, libc::RTA_DST, to);
    if let Some(from) = from {
        bytes[2] = address_bits;
        push_address(&mut bytes, libc::RTA_SRC, from);
    }
    if let Some(index) = interface_index {
        push_attribute(&mut bytes, libc::RTA_OIF, &index.to_ne_bytes());
    }
    let request = NetlinkMessage { kind: libc::RTM_GETROUTE, bytes };
    let answer = answer_of_kind(request_reply(socket, &request, 0)?, libc::RTM_NEWROUTE)?;
    RouteMessage::parse(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The host's entry of a neighbour; `None` if it has not resolved it yet.
pub(crate) fn neighbour_entry(
    socket: &OwnedFd,
    interface_index: u32,
    address: IpAddr,
) -> io::Result<Option<NeighbourMessage>> {
    let bytes = neighbour_request(interface_index, address, 0);
    let answer = match request_reply(socket, &NetlinkMessage { kind: libc::RTM_GETNEIGH, bytes }, 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        answer => answer_of_kind(answer?, libc::RTM_NEWNEIGH)?,
    };
    NeighbourMessage::parse(&answer).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn neighbour_request(interface_index: u32, address: IpAddr, flags: u8) -> Vec<u8> {
    let mut bytes = vec![0; NEIGHBOUR_HEADER_BYTES];
    bytes[0] = address_family(address);
    bytes[4..8].copy_from_slice(&interface_index.to_ne_bytes());
    bytes[10] = flags;
    push_address(&mut bytes, libc::NDA_DST, address);
    bytes
}

/// Groups of linux/rtnetlink.h, `enum rtnetlink_groups`: links, neighbours, and of both families addresses,
/// routes, rules.
const GROUPS: [u32; 8] = [1, 3, 5, 7, 8, 9, 11, 19];

/// A socket that receives every change to links, neighbours, addresses, routes and rules.
pub(crate) fn subscribe_changes() -> io::Result<OwnedFd> {
    let socket = route_socket()?;
    GROUPS.iter().try_for_each(|group| join_group(&socket, *group))?;
    Ok(socket)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceivedChanges {
    None,
    /// One datagram of changes; there may be more.
    Some,
    /// Changes were lost or cannot be read: anything may have changed.
    Lost,
}

/// Reads one datagram from a socket of [`subscribe_changes`] into `buffer`, without waiting; calls `each` for
/// each message.
pub(crate) fn read_changes(
    socket: &OwnedFd,
    buffer: &mut [u8],
    mut each: impl FnMut(&TableChange),
) -> io::Result<ReceivedChanges> {
    use rustix::net::{RecvFlags, recv};
    let present = match recv(socket, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
        Ok((_, bytes)) => bytes,
        Err(rustix::io::Errno::AGAIN) => return Ok(ReceivedChanges::None),
        Err(rustix::io::Errno::NOBUFS) => return Ok(ReceivedChanges::Lost),
        Err(errno) => return Err(errno.into()),
    };
    let Some(datagram) = buffer.get(..present) else { return Ok(ReceivedChanges::Lost) };
    for message in messages_in(datagram) {
        let Ok(message) = message else { return Ok(ReceivedChanges::Lost) };
        if !message.is_of_family() {
            continue;
        }
        match TableChange::parse(message.kind, message.bytes) {
            Some(change) => each(&change),
            None => return Ok(ReceivedChanges::Lost),
        }
    }
    Ok(ReceivedChanges::Some)
}

/// A socket to the links and addresses of the calling thread's network namespace.
pub(crate) fn route_socket() -> io::Result<OwnedFd> {
    netlink_socket(None)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::netlink::{NLM_F_REQUEST, request_dump, send_request};
    use super::*;

    #[test]
    fn a_stale_netlink_reply_is_ignored() {
        let socket = route_socket().unwrap();
        let mut bytes = vec![0; LINK_HEADER_BYTES];
        bytes[4..8].copy_from_slice(&12_345_u32.to_ne_bytes()); // no such link: an error
        let given_up = NetlinkMessage { kind: libc::RTM_GETLINK, bytes };
        send_request(socket.as_fd(), &given_up, NLM_F_REQUEST).unwrap();
        let loopback = link_by_index(&socket, 1).unwrap();
        assert!(loopback.flags & libc::IFF_LOOPBACK as u32 != 0);
        assert_eq!(loopback.name.as_deref(), Some("lo"));
        send_request(socket.as_fd(), &given_up, NLM_F_REQUEST).unwrap();
        let all = NetlinkMessage { kind: libc::RTM_GETLINK, bytes: vec![0; LINK_HEADER_BYTES] };
        let links = request_dump(&socket, &all).unwrap();
        assert!(links.iter().all(|link| link.kind == libc::RTM_NEWLINK));
        assert!(links.iter().any(|link| u32_at(&link.bytes, 4) == Some(1)));
    }
}
