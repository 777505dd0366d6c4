//! Requests to the kernel's netlink families, one at a time, over a socket opened inside a namespace.

pub(crate) mod address;
pub(crate) mod ethtool;
pub(crate) mod link;
pub(crate) mod nftables;
pub(crate) mod route;

use std::fmt::Debug;
use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

use crate::{Error, Namespace};

/// A netlink socket that belongs to one namespace, whichever thread uses it.
struct NetlinkSocket {
    socket: Socket,
}

impl NetlinkSocket {
    fn open_in_namespace(namespace: &Namespace, protocol: isize) -> io::Result<Self> {
        namespace.run(|| Self::open(protocol))
    }

    /// Opens a socket in the calling thread's namespace.
    fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket })
    }

    /// Sends one request and returns the answers up to the kernel's acknowledgement or end of dump.
    fn request<M>(&self, message: M, flags: u16) -> io::Result<Vec<M>>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
        NetlinkPayload<M>: From<M>,
    {
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            if collect_answers(&datagram, &mut answers)? {
                return Ok(answers);
            }
        }
    }
}

/// Adds the messages of one datagram to `answers`; returns true after the kernel's last message.
fn collect_answers<M: NetlinkDeserializable + Debug>(
    datagram: &[u8],
    answers: &mut Vec<M>,
) -> io::Result<bool> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkMessage::<M>::deserialize(rest)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        // Messages start at multiples of four; the last one may go without its padding. Never zero: a message
        // is at least its header.
        let length = (message.header.length as usize).next_multiple_of(4).clamp(4, rest.len());
        rest = &rest[length..];
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
            NetlinkPayload::Error(_) => return Ok(true),
            NetlinkPayload::InnerMessage(answer) => answers.push(answer),
            _ => {}
        }
    }
    Ok(false)
}

pub(crate) fn netlink_error(operation: String) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Netlink { operation, source }
}
