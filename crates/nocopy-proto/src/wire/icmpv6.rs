//! ICMP for IPv6 (RFC 4443) with neighbour discovery (RFC 4861) and multicast listeners (RFC 2710, RFC 3810).

use std::net::Ipv6Addr;

use thiserror::Error;

use super::checksum::OnesComplementSum;
use super::emit::{BufferTooSmall, header_buffer};
use super::field::Field;
use super::{IpAddresses, IpProtocol};

/// Bytes of the header: type, code and checksum.
pub const HEADER_BYTES: usize = 4;

type Type = Field<0, 1>;
type Code = Field<1, 1>;
type Checksum = Field<2, 2>;

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageType(pub u8);

impl MessageType {
    /// A packet could not be delivered.
    pub const UNREACHABLE: Self = Self(1);
    /// A packet was longer than the next link allows.
    pub const PACKET_TOO_BIG: Self = Self(2);
    /// A packet, or a fragment, took too long.
    pub const TIME_EXCEEDED: Self = Self(3);
    /// A packet's header is wrong.
    pub const PARAMETER_PROBLEM: Self = Self(4);
    /// An echo request (ping).
    pub const ECHO_REQUEST: Self = Self(128);
    /// The answer to an echo request.
    pub const ECHO_REPLY: Self = Self(129);
    /// A query for the listeners of a group.
    pub const LISTENER_QUERY: Self = Self(130);
    /// I listen to a group.
    pub const LISTENER_REPORT: Self = Self(131);
    /// I listen no longer.
    pub const LISTENER_DONE: Self = Self(132);
    /// A request for routers.
    pub const ROUTER_SOLICITATION: Self = Self(133);
    /// I am a router.
    pub const ROUTER_ADVERTISEMENT: Self = Self(134);
    /// A request for the owner of an address.
    pub const NEIGHBOR_SOLICITATION: Self = Self(135);
    /// I have an address.
    pub const NEIGHBOR_ADVERTISEMENT: Self = Self(136);
    /// A report of a better route.
    pub const REDIRECT: Self = Self(137);
    /// The groups I listen to (version 2).
    pub const LISTENER_REPORT_V2: Self = Self(143);
}

/// The content of a message, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body<'a> {
    /// An echo request or reply (ping).
    Echo {
        /// Equal in all requests of one sender.
        identifier: u16,
        /// The message's number.
        sequence: u16,
    },
    /// A report about a packet: unreachable, too big, time exceeded, parameter problem.
    Error {
        /// The MTU of the next link in bytes, or where in the packet the problem is.
        parameter: u32,
        /// The start of the packet.
        packet: &'a [u8],
    },
    /// A request for the owner of an address, or its answer.
    Neighbor {
        /// The address.
        target: Ipv6Addr,
    },
    /// A report of a better route.
    Redirect {
        /// The router or host to send to.
        target: Ipv6Addr,
        /// The destination to which the route leads.
        destination: Ipv6Addr,
    },
    /// A query or report about one multicast group.
    Listener {
        /// Which; unspecified in a general query.
        group: Ipv6Addr,
    },
    /// A report about several multicast groups.
    ListenerReportV2 {
        /// How many records follow.
        records: u16,
    },
    /// Anything else.
    Other,
}

/// View of an ICMPv6 message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    header: &'a [u8; HEADER_BYTES],
    payload: &'a [u8],
}

/// The bytes end inside the header, or inside the part that the type requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the ICMPv6 message has {message_bytes} bytes, its type needs more")]
pub struct TooShort {
    /// The length of the message.
    pub message_bytes: usize,
}

impl<'a> Message<'a> {
    /// Checks that `bytes`, the upper layer of an IPv6 packet, contain the header. The checksum is not
    /// checked.
    ///
    /// # Errors
    /// The message is shorter than its header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, TooShort> {
        let (header, payload) = bytes.split_first_chunk().ok_or(TooShort { message_bytes: bytes.len() })?;
        Ok(Self { header, payload })
    }

    /// The type of the message.
    #[inline]
    pub fn message_type(&self) -> MessageType {
        let [number] = Type::get(self.header);
        MessageType(number)
    }

    /// The code: a subtype.
    #[inline]
    pub fn code(&self) -> u8 {
        let [code] = Code::get(self.header);
        code
    }

    /// The checksum in the header.
    #[inline]
    pub fn checksum(&self) -> u16 {
        Checksum::number(self.header)
    }

    /// Whether the checksum matches addresses, header and payload.
    #[inline]
    pub fn checksum_is_valid(&self, addresses: &IpAddresses) -> bool {
        message_sum(self.header, addresses, self.payload).is_valid()
    }

    /// The content of the message.
    ///
    /// # Errors
    /// The message is shorter than its type requires.
    pub fn body(&self) -> Result<Body<'a>, TooShort> {
        let body = match self.message_type() {
            MessageType::ECHO_REQUEST | MessageType::ECHO_REPLY => self.echo_body(),
            MessageType::UNREACHABLE
            | MessageType::PACKET_TOO_BIG
            | MessageType::TIME_EXCEEDED
            | MessageType::PARAMETER_PROBLEM => self.error_body(),
            MessageType::NEIGHBOR_SOLICITATION | MessageType::NEIGHBOR_ADVERTISEMENT => {
                self.address_at::<4>().map(|target| Body::Neighbor { target })
            }
            MessageType::REDIRECT => self
                .address_at::<4>()
                .and_then(|target| Some(Body::Redirect { target, destination: self.address_at::<20>()? })),
            MessageType::LISTENER_QUERY | MessageType::LISTENER_REPORT | MessageType::LISTENER_DONE => {
                self.address_at::<4>().map(|group| Body::Listener { group })
            }
            MessageType::LISTENER_REPORT_V2 => self
                .payload
                .first_chunk()
                .map(|&[_, _, a, b]| Body::ListenerReportV2 { records: u16::from_be_bytes([a, b]) }),
            _ => Some(Body::Other),
        };
        body.ok_or(TooShort { message_bytes: HEADER_BYTES + self.payload.len() })
    }

    fn echo_body(&self) -> Option<Body<'a>> {
        let &[a, b, c, d] = self.payload.first_chunk()?;
        let (identifier, sequence) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Some(Body::Echo { identifier, sequence })
    }

    fn error_body(&self) -> Option<Body<'a>> {
        let (parameter, packet) = self.payload.split_first_chunk()?;
        Some(Body::Error { parameter: u32::from_be_bytes(*parameter), packet })
    }

    fn address_at<const AT: usize>(&self) -> Option<Ipv6Addr> {
        self.payload.get(AT..)?.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets))
    }

    /// The bytes after the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

fn message_sum(header: &[u8; HEADER_BYTES], addresses: &IpAddresses, payload: &[u8]) -> OnesComplementSum {
    let message_bytes = (HEADER_BYTES + payload.len()) as u32;
    addresses.pseudo_header_sum(IpProtocol::ICMPV6, message_bytes).with(header).with(payload)
}

/// An ICMPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// The type of the message.
    pub message_type: MessageType,
    /// The code: a subtype.
    pub code: u8,
    /// The checksum.
    pub checksum: u16,
}

impl Repr {
    /// Copies the header out of a view.
    pub fn parse(message: &Message<'_>) -> Self {
        Self { message_type: message.message_type(), code: message.code(), checksum: message.checksum() }
    }

    /// The header with the right checksum for `payload`.
    #[must_use]
    pub fn with_checksum(self, addresses: &IpAddresses, payload: &[u8]) -> Self {
        let mut header = [0; HEADER_BYTES];
        Self { checksum: 0, ..self }.put(&mut header);
        Self { checksum: message_sum(&header, addresses, payload).checksum(), ..self }
    }

    /// Writes the header into the first [`HEADER_BYTES`] of `buffer`.
    ///
    /// # Errors
    /// When `buffer` is shorter than that; it is then unchanged.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<(), BufferTooSmall> {
        self.put(header_buffer(buffer)?);
        Ok(())
    }

    fn put(&self, header: &mut [u8; HEADER_BYTES]) {
        Type::put(header, [self.message_type.0]);
        Code::put(header, [self.code]);
        Checksum::put_number(header, self.checksum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{captured, ipv6};
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_captured_mld_report_is_parsed() {
        let packet = ipv6::Packet::parse(&captured::MLD_REPORT[14..]).unwrap();
        let upper = packet.upper_layer().unwrap();
        let message = Message::parse(upper.payload()).unwrap();
        assert_eq!((message.message_type(), message.code()), (MessageType::LISTENER_REPORT_V2, 0));
        assert_eq!(message.body(), Ok(Body::ListenerReportV2 { records: 1 }));
        assert!(message.checksum_is_valid(&packet.addresses()));
        assert_eq!(Message::parse(&[0; 3]).unwrap_err(), TooShort { message_bytes: 3 });
    }

    #[test]
    fn bodies_are_parsed_by_message_type() {
        let body = |number: u8, payload: &[u8]| {
            let bytes = [&[number, 0, 0, 0][..], payload].concat();
            let body = Message::parse(&bytes).unwrap().body();
            body.map(|body| format!("{body:?}")).map_err(|error| error.message_bytes)
        };
        assert_eq!(body(128, &[0, 1, 0, 2]), Ok("Echo { identifier: 1, sequence: 2 }".into()));
        assert_eq!(body(129, &[0, 1, 0]), Err(7));
        assert_eq!(body(2, &[0, 0, 5, 0, 9]), Ok("Error { parameter: 1280, packet: [9] }".into()));
        let mut addresses = [0; 36];
        (addresses[19], addresses[35]) = (1, 2);
        assert_eq!(body(135, &addresses), Ok("Neighbor { target: ::1 }".into()));
        assert_eq!(body(136, &addresses[..19]), Err(23));
        assert_eq!(body(137, &addresses), Ok("Redirect { target: ::1, destination: ::2 }".into()));
        assert_eq!(body(137, &addresses[..35]), Err(39));
        assert_eq!(body(131, &addresses), Ok("Listener { group: ::1 }".into()));
        assert_eq!(body(200, &[]), Ok("Other".into()));
    }

    proptest! {
        #[test]
        fn emit_then_parse(
            number: u8,
            code: u8,
            addresses: (u128, u128),
            payload in vec(any::<u8>(), 0..100),
        ) {
            let addresses = IpAddresses::V6 { source: addresses.0.into(), destination: addresses.1.into() };
            let repr = Repr { message_type: MessageType(number), code, checksum: 0 };
            let repr = repr.with_checksum(&addresses, &payload);
            let mut bytes = vec![0; HEADER_BYTES];
            repr.emit(&mut bytes).unwrap();
            bytes.extend(&payload);
            let message = Message::parse(&bytes).unwrap();
            prop_assert_eq!(Repr::parse(&message), repr);
            prop_assert!(message.checksum_is_valid(&addresses));
        }
    }
}
