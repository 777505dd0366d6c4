//! Requests by netlink, above all to its route family, which knows links.

use std::io;

use netlink_packet_core::{
    DecodeError, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, Stats64};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Whether an interface has carrier, in the sense that the kernel sends on it from now on.
///
/// Neither of the two other words will do: ethtool's comes from the driver, and some (igb) look at the cable before the
/// kernel has been told; `IFF_RUNNING` lags by up to a second.
pub(crate) fn carrier(interface_index: u32) -> io::Result<bool> {
    Ok(link(interface_index)?.header.flags.contains(LinkFlags::LowerUp))
}

/// What the kernel counted for an interface.
pub(crate) fn counters(interface_index: u32) -> io::Result<Stats64> {
    let found = link(interface_index)?.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::Stats64(counters) => Some(counters),
        _ => None,
    });
    found.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn link(interface_index: u32) -> io::Result<LinkMessage> {
    let mut message = LinkMessage::default();
    message.header.index = interface_index;
    match exchange(&socket()?, RouteNetlinkMessage::GetLink(message), NLM_F_REQUEST)? {
        Some(RouteNetlinkMessage::NewLink(link)) => Ok(link),
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
    ask(socket, request, flags)?;
    let (reply, _) = socket.recv_from_full()?;
    let reply = NetlinkMessage::<M>::deserialize(&reply).map_err(io::Error::other)?;
    match reply.payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        NetlinkPayload::InnerMessage(message) => Ok(Some(message)),
        _ => Ok(None),
    }
}

fn ask<M: NetlinkSerializable>(socket: &Socket, request: M, flags: u16) -> io::Result<()> {
    let mut packet = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::InnerMessage(request));
    packet.header.flags = flags;
    packet.header.sequence_number = 1;
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    socket.send(&bytes, 0).map(drop)
}

/// Sends one request for everything there is and returns the answers.
pub(crate) fn dump<M: NetlinkSerializable + NetlinkDeserializable>(
    socket: &Socket,
    request: M,
) -> io::Result<Vec<M>> {
    ask(socket, request, NLM_F_REQUEST | NLM_F_DUMP)?;
    let mut answers = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<M>::deserialize(rest).map_err(io::Error::other)?;
            // Messages begin at multiples of four; one is at least its header, so this comes to an end.
            let length = (message.header.length as usize).next_multiple_of(4).clamp(4, rest.len());
            rest = &rest[length..];
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
pub(crate) struct Raw {
    /// The type in the netlink header.
    pub(crate) kind: u16,
    pub(crate) bytes: Vec<u8>,
}

impl NetlinkSerializable for Raw {
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

impl NetlinkDeserializable for Raw {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { kind: header.message_type, bytes: payload.to_vec() })
    }
}
