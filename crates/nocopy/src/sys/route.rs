//! Requests by netlink, above all to its route family, which knows links.

use std::io;

use netlink_packet_core::{
    NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Whether an interface has carrier, in the sense that the kernel sends on it from now on.
///
/// Neither of the two other words will do: ethtool's comes from the driver, and some (igb) look at the cable before the
/// kernel has been told; `IFF_RUNNING` lags by up to a second.
pub(crate) fn carrier(interface_index: u32) -> io::Result<bool> {
    let mut message = LinkMessage::default();
    message.header.index = interface_index;
    match exchange(&socket()?, RouteNetlinkMessage::GetLink(message), NLM_F_REQUEST)? {
        Some(RouteNetlinkMessage::NewLink(link)) => Ok(link.header.flags.contains(LinkFlags::LowerUp)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A socket to the links and addresses of the calling thread's network namespace.
pub(crate) fn socket() -> io::Result<Socket> {
    socket_of(NETLINK_ROUTE)
}

/// A socket to a netlink protocol.
pub(crate) fn socket_of(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Sends one request and returns its answer: a message, or `None` for a bare acknowledgement.
pub(crate) fn exchange<M: NetlinkSerializable + NetlinkDeserializable>(
    socket: &Socket,
    request: M,
    flags: u16,
) -> io::Result<Option<M>> {
    let mut packet = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::InnerMessage(request));
    packet.header.flags = flags;
    packet.header.sequence_number = 1;
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let (reply, _) = socket.recv_from_full()?;
    let reply = NetlinkMessage::<M>::deserialize(&reply).map_err(io::Error::other)?;
    match reply.payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        NetlinkPayload::InnerMessage(message) => Ok(Some(message)),
        _ => Ok(None),
    }
}
