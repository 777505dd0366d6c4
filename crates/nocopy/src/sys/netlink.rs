//! Netlink: requests to the kernel and its answers, as messages with attributes (`linux/netlink.h`, the
//! kernel's Documentation/userspace-api/netlink/intro.rst).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send,
    socket_with,
};

use super::option;

// Flags of a request; numbers of messages that are no family's own.
pub(crate) const NLM_F_REQUEST: u16 = libc::NLM_F_REQUEST as u16;
#[cfg(feature = "port")]
const NLM_F_DUMP: u16 = libc::NLM_F_DUMP as u16;
const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
/// Numbers below are not of the family.
const NLMSG_MIN_TYPE: u16 = libc::NLMSG_MIN_TYPE as u16;

/// Bytes of `struct nlmsghdr` and `struct nlattr`.
const HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;

/// Messages, attributes and their values begin at multiples of this.
const ALIGNMENT: usize = 4;

/// A message of a family: its number, and its bytes behind the netlink header. These are a header of the
/// family, then attributes.
#[derive(Debug)]
pub(crate) struct NetlinkMessage {
    pub(crate) kind: u16,
    pub(crate) bytes: Vec<u8>,
}

/// A received message, with its place among all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceivedMessage<'a> {
    pub(crate) kind: u16,
    sequence_number: u32,
    pub(crate) bytes: &'a [u8],
}

/// A socket in the network namespace of the calling thread; without a protocol one to links, addresses and
/// routes.
pub(crate) fn netlink_socket(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, protocol)?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?; // any address
    connect(&socket, &SocketAddrNetlink::new(0, 0))?; // the kernel's
    Ok(socket)
}

/// Makes the socket receive what the kernel tells a group.
pub(crate) fn join_group(socket: &OwnedFd, group: u32) -> io::Result<()> {
    // SAFETY: the option takes an `unsigned int`.
    unsafe { option::set_option(socket, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, &group) }
}

/// Sends one request and returns its answer: a message, or `None` for a bare acknowledgement.
pub(crate) fn request_reply(
    socket: &impl AsFd,
    request: &NetlinkMessage,
    flags: u16,
) -> io::Result<Option<NetlinkMessage>> {
    let number = send_request(socket.as_fd(), request, flags | NLM_F_REQUEST)?;
    loop {
        let datagram = receive_datagram(socket.as_fd())?;
        let message = messages_in(&datagram).next().ok_or(io::ErrorKind::InvalidData)??;
        if message.sequence_number != number {
            continue; // the answer to a question that was given up
        }
        return match message.error() {
            Some(error) => Err(error),
            None if message.kind < NLMSG_MIN_TYPE => Ok(None),
            None => Ok(Some(NetlinkMessage { kind: message.kind, bytes: message.bytes.to_vec() })),
        };
    }
}

/// Sends one request for everything there is and returns the answers.
#[cfg(feature = "port")]
pub(crate) fn request_dump(socket: &impl AsFd, request: &NetlinkMessage) -> io::Result<Vec<NetlinkMessage>> {
    let number = send_request(socket.as_fd(), request, NLM_F_REQUEST | NLM_F_DUMP)?;
    let mut answers = Vec::new();
    loop {
        let datagram = receive_datagram(socket.as_fd())?;
        for message in messages_in(&datagram) {
            let message = message?;
            if message.sequence_number != number {
                continue;
            }
            match message.error() {
                Some(error) => return Err(error),
                None if matches!(message.kind, NLMSG_DONE | NLMSG_ERROR) => return Ok(answers),
                None if message.kind < NLMSG_MIN_TYPE => {}
                None => answers.push(NetlinkMessage { kind: message.kind, bytes: message.bytes.to_vec() }),
            }
        }
    }
}

/// Sends one request, and returns the sequence number of its answers.
pub(crate) fn send_request(socket: BorrowedFd<'_>, request: &NetlinkMessage, flags: u16) -> io::Result<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed); // alone: nothing else is ordered by it
    let length = u32::try_from(HEADER_BYTES + request.bytes.len()).expect("short requests");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(request.kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    bytes.extend([0; 4]); // the sender, which the kernel knows
    bytes.extend(&request.bytes);
    send(socket, &bytes, SendFlags::empty())?;
    Ok(number)
}

fn receive_datagram(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let (_, bytes) = recv(socket, &mut [0; 0], RecvFlags::PEEK | RecvFlags::TRUNC)?;
    let mut datagram = vec![0; bytes];
    let (_, bytes) = recv(socket, &mut *datagram, RecvFlags::empty())?;
    datagram.truncate(bytes);
    Ok(datagram)
}

impl ReceivedMessage<'_> {
    /// The kernel's refusal, if it is one: of a request, or of the rest of a dump.
    fn error(&self) -> Option<io::Error> {
        if !matches!(self.kind, NLMSG_ERROR | NLMSG_DONE) {
            return None;
        }
        let code = self.bytes.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
        (code < 0).then(|| io::Error::from_raw_os_error(code.saturating_neg()))
    }

    /// Whether it is one of the family's own.
    pub(crate) fn is_of_family(&self) -> bool {
        self.kind >= NLMSG_MIN_TYPE
    }
}

/// The messages of a datagram. Errors: `InvalidData`, after which there is none.
pub(crate) fn messages_in(datagram: &[u8]) -> impl Iterator<Item = io::Result<ReceivedMessage<'_>>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let all = std::mem::take(&mut rest);
        let Some((message, length)) = parse_message(all) else {
            return Some(Err(io::ErrorKind::InvalidData.into()));
        };
        rest = all.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(Ok(message))
    })
}

/// The first message, and its length.
fn parse_message(bytes: &[u8]) -> Option<(ReceivedMessage<'_>, usize)> {
    let length = u32_at(bytes, 0)? as usize;
    let (kind, sequence_number) = (u16_at(bytes, 4)?, u32_at(bytes, 8)?);
    let message = ReceivedMessage { kind, sequence_number, bytes: bytes.get(HEADER_BYTES..length)? };
    Some((message, length))
}

/// Attributes, one behind the other: the number and the value of each, up to one that is cut off.
pub(crate) fn attributes_in(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        // Without the flags that it has attributes inside, and that it is in network byte order.
        let kind = u16_at(rest, 2)? & libc::NLA_TYPE_MASK as u16;
        let value = rest.get(ATTRIBUTE_HEADER_BYTES..length)?;
        rest = rest.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Adds an attribute to those of a request.
pub(crate) fn push_attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(ATTRIBUTE_HEADER_BYTES + value.len()).expect("short values");
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_bytes(length: u32, kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn messages_and_attributes_end_where_their_lengths_say() {
        let mut attributes = Vec::new();
        push_attribute(&mut attributes, 7, b"abcde");
        push_attribute(&mut attributes, 8 | libc::NLA_F_NESTED as u16, &[1, 2]);
        assert_eq!(attributes.len(), 12 + 8);
        let found: Vec<_> = attributes_in(&attributes).collect();
        assert_eq!(found, [(7, &b"abcde"[..]), (8, &[1, 2])]);
        assert_eq!(attributes_in(&attributes[..18]).count(), 2, "padding may be missing");
        assert_eq!(attributes_in(&attributes[..17]).count(), 1, "cut off");

        let both = [message_bytes(21, 30, &[1, 2, 3, 4, 5, 0, 0, 0]), message_bytes(16, 31, &[])].concat();
        let found: Vec<_> = messages_in(&both).map(|message| message.unwrap()).collect();
        assert_eq!(
            found.iter().map(|one| (one.kind, one.bytes.len())).collect::<Vec<_>>(),
            [(30, 5), (31, 0)]
        );
    }

    #[test]
    fn damaged_lengths_end_the_walk() {
        for length in [0, 3, 15, 25, u32::MAX] {
            let mut found = messages_in(&message_bytes(length, 30, &[0; 8]))
                .map(|message| message.is_ok())
                .collect::<Vec<_>>();
            assert_eq!((found.pop(), found.pop()), (Some(false), None), "{length}");
        }
        for length in [0_u16, 3, 9, u16::MAX] {
            let bytes = [&length.to_ne_bytes()[..], &[1, 0, 0, 0, 0, 0]].concat();
            assert_eq!(attributes_in(&bytes).count(), 0, "{length}");
        }
    }
}
