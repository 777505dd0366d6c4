//! Netlink requests, mostly to its route family.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, Stats64};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage};
use netlink_packet_route::route::{RouteAttribute, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Whether an interface has carrier, meaning that the kernel sends on it from now on.
///
/// Two other sources do not suffice: ethtool's comes from the driver, and some drivers (igb) check the cable
/// before the kernel knows; `IFF_RUNNING` lags by up to a second.
pub(crate) fn has_carrier(interface_index: u32) -> io::Result<bool> {
    Ok(link_message(interface_index)?.header.flags.contains(LinkFlags::LowerUp))
}

pub(crate) fn link_counters(interface_index: u32) -> io::Result<Stats64> {
    let found = link_message(interface_index)?.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::Stats64(counters) => Some(counters),
        _ => None,
    });
    found.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn link_message(interface_index: u32) -> io::Result<LinkMessage> {
    link_by_index(&route_socket()?, interface_index)
}

pub(crate) fn link_by_index(socket: &Socket, interface_index: u32) -> io::Result<LinkMessage> {
    let mut message = LinkMessage::default();
    message.header.index = interface_index;
    match request_reply(socket, RouteNetlinkMessage::GetLink(message), NLM_F_REQUEST)? {
        Some(RouteNetlinkMessage::NewLink(link)) => Ok(link),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The host's current route to an address; if given, from an address and by an interface. Errors: there is
/// none (`ENETUNREACH`, `EHOSTUNREACH`), or one that forbids sending (`EINVAL` for a black hole, `EACCES`).
pub(crate) fn route_to(
    socket: &Socket,
    to: IpAddr,
    from: Option<IpAddr>,
    interface_index: Option<u32>,
) -> io::Result<RouteMessage> {
    let mut message = RouteMessage::default();
    let address_bits = if to.is_ipv4() { 32 } else { 128 };
    message.header.address_family = address_family(to);
    message.header.destination_prefix_length = address_bits;
    message.attributes.push(RouteAttribute::Destination(to.into()));
    if let Some(from) = from {
        message.header.source_prefix_length = address_bits;
        message.attributes.push(RouteAttribute::Source(from.into()));
    }
    message.attributes.extend(interface_index.map(RouteAttribute::Oif));
    match request_reply(socket, RouteNetlinkMessage::GetRoute(message), NLM_F_REQUEST)? {
        Some(RouteNetlinkMessage::NewRoute(route)) => Ok(route),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The host's entry of a neighbour; `None` if it has not resolved it yet.
pub(crate) fn neighbour_entry(
    socket: &Socket,
    interface_index: u32,
    address: IpAddr,
) -> io::Result<Option<NeighbourMessage>> {
    let request = RouteNetlinkMessage::GetNeighbour(neighbour_message(interface_index, address));
    match request_reply(socket, request, NLM_F_REQUEST) {
        Ok(Some(RouteNetlinkMessage::NewNeighbour(neighbour))) => Ok(Some(neighbour)),
        Ok(_) => Err(io::ErrorKind::InvalidData.into()),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Tells the host that a neighbour is in use (`NTF_USE`), as its own traffic would: it then checks a stale
/// one. Not for permanent neighbours, which would stop being permanent. Needs `CAP_NET_ADMIN`.
pub(crate) fn use_neighbour(socket: &Socket, interface_index: u32, address: IpAddr) -> io::Result<()> {
    let mut message = neighbour_message(interface_index, address);
    message.header.flags = NeighbourFlags::Use;
    let request = RouteNetlinkMessage::NewNeighbour(message);
    request_reply(socket, request, NLM_F_REQUEST | NLM_F_ACK).map(drop)
}

fn neighbour_message(interface_index: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = address_family(address);
    message.header.ifindex = interface_index;
    message.attributes = vec![NeighbourAttribute::Destination(address.into())];
    message
}

fn address_family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Groups of linux/rtnetlink.h, `enum rtnetlink_groups`: links, neighbours, and of both families addresses,
/// routes, rules.
const GROUPS: [u32; 8] = [1, 3, 5, 7, 8, 9, 11, 19];

/// A socket that receives every change to links, neighbours, addresses, routes and rules.
pub(crate) fn subscribe_changes() -> io::Result<Socket> {
    let socket = route_socket()?;
    GROUPS.iter().try_for_each(|group| socket.add_membership(*group))?;
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
    socket: &Socket,
    buffer: &mut [u8],
    mut each: impl FnMut(RouteNetlinkMessage),
) -> io::Result<ReceivedChanges> {
    use rustix::net::{RecvFlags, recv};
    let present = match recv(socket, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
        Ok((_, bytes)) => bytes,
        Err(rustix::io::Errno::AGAIN) => return Ok(ReceivedChanges::None),
        Err(rustix::io::Errno::NOBUFS) => return Ok(ReceivedChanges::Lost),
        Err(errno) => return Err(errno.into()),
    };
    let Some(mut rest) = buffer.get(..present) else { return Ok(ReceivedChanges::Lost) };
    while !rest.is_empty() {
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) else {
            return Ok(ReceivedChanges::Lost);
        };
        // At least four bytes further, so the loop ends.
        let length = (message.header.length as usize).next_multiple_of(4).clamp(4, rest.len());
        rest = &rest[length..];
        if let NetlinkPayload::InnerMessage(change) = message.payload {
            each(change);
        }
    }
    Ok(ReceivedChanges::Some)
}

/// A socket to the links and addresses of the calling thread's network namespace.
pub(crate) fn route_socket() -> io::Result<Socket> {
    netlink_socket(NETLINK_ROUTE)
}

pub(crate) fn netlink_socket(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Sends one request and returns its answer: a message, or `None` for a bare acknowledgement.
pub(crate) fn request_reply<M: NetlinkSerializable + NetlinkDeserializable>(
    socket: &Socket,
    request: M,
    flags: u16,
) -> io::Result<Option<M>> {
    let number = send_request(socket, request, flags)?;
    loop {
        let (reply, _) = socket.recv_from_full()?;
        let reply = NetlinkMessage::<M>::deserialize(&reply).map_err(io::Error::other)?;
        if reply.header.sequence_number != number {
            continue; // the answer to a question that was given up
        }
        return match reply.payload {
            NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
            NetlinkPayload::InnerMessage(message) => Ok(Some(message)),
            _ => Ok(None),
        };
    }
}

/// Sends one request, and returns the sequence number of its answers.
fn send_request<M: NetlinkSerializable>(socket: &Socket, request: M, flags: u16) -> io::Result<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed); // alone: nothing else is ordered by it
    let mut packet = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::InnerMessage(request));
    packet.header.flags = flags;
    packet.header.sequence_number = number;
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    socket.send(&bytes, 0).map(|_| number)
}

/// Sends one request for everything there is and returns the answers.
pub(crate) fn request_dump<M: NetlinkSerializable + NetlinkDeserializable>(
    socket: &Socket,
    request: M,
) -> io::Result<Vec<M>> {
    let number = send_request(socket, request, NLM_F_REQUEST | NLM_F_DUMP)?;
    let mut answers = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<M>::deserialize(rest).map_err(io::Error::other)?;
            // Messages begin at multiples of four; each is at least a header long, so the loop ends.
            let length = (message.header.length as usize).next_multiple_of(4).clamp(4, rest.len());
            rest = &rest[length..];
            if message.header.sequence_number != number {
                continue;
            }
            match message.payload {
                NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Done(done) if done.code < 0 => {
                    return Err(io::Error::from_raw_os_error(-done.code));
                }
                NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => return Ok(answers),
                _ => {}
            }
        }
    }
}

/// A message in the kernel's own layout, for families that no crate knows.
#[derive(Debug)]
pub(crate) struct RawNetlinkMessage {
    /// The type in the netlink header.
    pub(crate) kind: u16,
    pub(crate) bytes: Vec<u8>,
}

impl NetlinkSerializable for RawNetlinkMessage {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for RawNetlinkMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { kind: header.message_type, bytes: payload.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_netlink_reply_is_ignored() {
        let socket = route_socket().unwrap();
        let mut given_up = LinkMessage::default();
        given_up.header.index = 12_345; // no such link: an error
        send_request(&socket, RouteNetlinkMessage::GetLink(given_up.clone()), NLM_F_REQUEST).unwrap();
        let loopback = link_by_index(&socket, 1).unwrap();
        assert!(loopback.header.flags.contains(LinkFlags::Loopback));
        send_request(&socket, RouteNetlinkMessage::GetLink(given_up), NLM_F_REQUEST).unwrap();
        let links = request_dump(&socket, RouteNetlinkMessage::GetLink(LinkMessage::default())).unwrap();
        assert!(
            links
                .iter()
                .any(|link| matches!(link, RouteNetlinkMessage::NewLink(link) if link.header.index == 1))
        );
    }
}
