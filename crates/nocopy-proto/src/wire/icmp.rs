//! ICMP for IPv4 (RFC 792): echo requests, and reports about packets that were not delivered.

use std::net::Ipv4Addr;

use thiserror::Error;

use super::checksum::OnesComplementSum;
use super::emit::{BufferTooSmall, header_buffer};
use super::field::Field;

/// Bytes of the header: type, code, checksum, and four that depend on the type.
pub const HEADER_BYTES: usize = 8;

type Type = Field<0, 1>;
type Code = Field<1, 1>;
type Checksum = Field<2, 2>;
type Rest = Field<4, 4>;

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageType(pub u8);

impl MessageType {
    /// The answer to an echo request.
    pub const ECHO_REPLY: Self = Self(0);
    /// A packet could not be delivered.
    pub const UNREACHABLE: Self = Self(3);
    /// A report of a better route.
    pub const REDIRECT: Self = Self(5);
    /// An echo request (ping).
    pub const ECHO_REQUEST: Self = Self(8);
    /// A packet, or a fragment, took too long.
    pub const TIME_EXCEEDED: Self = Self(11);
    /// A packet's header is wrong.
    pub const PARAMETER_PROBLEM: Self = Self(12);

    /// Whether the payload is the start of the packet that the message is about.
    pub const fn is_error(self) -> bool {
        matches!(self, Self::UNREACHABLE | Self::REDIRECT | Self::TIME_EXCEEDED | Self::PARAMETER_PROBLEM)
    }
}

/// The four bytes after the checksum, by the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Body {
    /// An echo request (ping).
    EchoRequest {
        /// Equal in all requests of one sender.
        identifier: u16,
        /// The request's number.
        sequence: u16,
    },
    /// The answer.
    EchoReply {
        /// As in the request.
        identifier: u16,
        /// As in the request.
        sequence: u16,
    },
    /// A packet could not be delivered; the code is the reason.
    Unreachable {
        /// With code 4, the largest packet that would have passed (RFC 1191); 0 from hosts that do not report
        /// it.
        next_hop_mtu_bytes: u16,
    },
    /// A report of a better route.
    Redirect {
        /// The router to use.
        gateway: Ipv4Addr,
    },
    /// A packet, or a fragment, took too long.
    TimeExceeded,
    /// Anything else.
    Other,
}

/// View of an ICMP message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    header: &'a [u8; HEADER_BYTES],
    payload: &'a [u8],
}

/// The bytes end inside the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the ICMP header has 8 bytes, the message has {message_bytes}")]
pub struct TooShort {
    /// The length of the message.
    pub message_bytes: usize,
}

impl<'a> Message<'a> {
    /// Checks that `bytes`, the payload of an IPv4 packet, contain the header. The checksum is not checked.
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

    /// Whether the checksum matches header and payload.
    #[inline]
    pub fn checksum_is_valid(&self) -> bool {
        OnesComplementSum::new().with(self.header).with(self.payload).is_valid()
    }

    /// The four bytes after the checksum, unparsed.
    #[inline]
    pub fn rest_of_header(&self) -> [u8; 4] {
        Rest::get(self.header)
    }

    /// The four bytes after the checksum, by the type.
    pub fn body(&self) -> Body {
        let [a, b, c, d] = self.rest_of_header();
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        match self.message_type() {
            MessageType::ECHO_REQUEST => Body::EchoRequest { identifier: first, sequence: second },
            MessageType::ECHO_REPLY => Body::EchoReply { identifier: first, sequence: second },
            MessageType::UNREACHABLE => Body::Unreachable { next_hop_mtu_bytes: second },
            MessageType::REDIRECT => Body::Redirect { gateway: [a, b, c, d].into() },
            MessageType::TIME_EXCEEDED => Body::TimeExceeded,
            _ => Body::Other,
        }
    }

    /// The bytes after the header: of an error ([`MessageType::is_error`]), the start of the packet it is
    /// about.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// An ICMP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// The type of the message.
    pub message_type: MessageType,
    /// The code: a subtype.
    pub code: u8,
    /// The checksum.
    pub checksum: u16,
    /// The four bytes after the checksum.
    pub rest: [u8; 4],
}

impl Repr {
    /// Copies the header out of a view.
    pub fn parse(message: &Message<'_>) -> Self {
        let (message_type, code) = (message.message_type(), message.code());
        Self { message_type, code, checksum: message.checksum(), rest: message.rest_of_header() }
    }

    /// The header with the right checksum for `payload`.
    #[must_use]
    pub fn with_checksum(self, payload: &[u8]) -> Self {
        let mut header = [0; HEADER_BYTES];
        Self { checksum: 0, ..self }.put(&mut header);
        Self { checksum: OnesComplementSum::new().with(&header).with(payload).checksum(), ..self }
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
        Rest::put(header, self.rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{captured, ipv4};
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_captured_unreachable_message_is_parsed() {
        let packet = ipv4::Packet::parse(&captured::PORT_UNREACHABLE[14..]).unwrap();
        let message = Message::parse(packet.payload()).unwrap();
        assert_eq!((message.message_type(), message.code()), (MessageType::UNREACHABLE, 3));
        assert!(message.checksum_is_valid() && message.message_type().is_error());
        assert_eq!(message.body(), Body::Unreachable { next_hop_mtu_bytes: 0 });
        let about = ipv4::Packet::parse(message.payload()).unwrap();
        assert_eq!((about.source(), about.destination()), (packet.destination(), packet.source()));
        assert_eq!(Repr::parse(&message).with_checksum(message.payload()), Repr::parse(&message));
        assert_eq!(Message::parse(&packet.payload()[..7]).unwrap_err(), TooShort { message_bytes: 7 });
    }

    #[test]
    fn bodies_are_parsed_by_message_type() {
        let body = |number, rest: [u8; 4]| {
            let bytes = [&[number, 0, 0, 0][..], &rest].concat();
            Message::parse(&bytes).unwrap().body()
        };
        assert_eq!(body(8, [0, 1, 0, 2]), Body::EchoRequest { identifier: 1, sequence: 2 });
        assert_eq!(body(0, [0, 1, 0, 2]), Body::EchoReply { identifier: 1, sequence: 2 });
        assert_eq!(body(3, [0, 0, 5, 0]), Body::Unreachable { next_hop_mtu_bytes: 1280 });
        assert_eq!(body(5, [10, 0, 0, 9]), Body::Redirect { gateway: [10, 0, 0, 9].into() });
        assert_eq!((body(11, [0; 4]), body(13, [0; 4])), (Body::TimeExceeded, Body::Other));
    }

    proptest! {
        #[test]
        fn emit_then_parse(number: u8, code: u8, rest: [u8; 4], payload in vec(any::<u8>(), 0..100)) {
            let repr = Repr { message_type: MessageType(number), code, checksum: 0, rest };
            let repr = repr.with_checksum(&payload);
            let mut bytes = vec![0; HEADER_BYTES];
            repr.emit(&mut bytes).unwrap();
            bytes.extend(&payload);
            let message = Message::parse(&bytes).unwrap();
            prop_assert_eq!(Repr::parse(&message), repr);
            prop_assert!(message.checksum_is_valid());
        }
    }
}
