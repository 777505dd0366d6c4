//! UDP (RFC 768), over IPv4 and IPv6.

use std::num::NonZeroU16;

use thiserror::Error;

use super::emit::{EmitError, PayloadTooLong, header_buffer, length_with_header};
use super::field::Field;
use super::{IpAddresses, IpProtocol};

/// Bytes of the header: two ports, length and checksum.
pub const HEADER_BYTES: usize = 8;

/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: u16 = 6;

type SourcePort = Field<0, 2>;
type DestinationPort = Field<2, 2>;
type LengthBytes = Field<4, 2>;
type Checksum = Field<{ CHECKSUM_OFFSET as usize }, 2>;

/// View of a UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    header: &'a [u8; HEADER_BYTES],
    payload: &'a [u8],
}

/// Why bytes are not a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The bytes end inside the header.
    #[error("the UDP header has 8 bytes, the datagram has {datagram_bytes}")]
    TooShort {
        /// The length of the bytes.
        datagram_bytes: usize,
    },
    /// The length is 0, which refers to the IPv6 jumbo option (RFC 2675 section 4).
    #[error("the UDP length is 0: this is part of an IPv6 jumbogram, which is not supported")]
    Jumbogram,
    /// The length is less than the header.
    #[error("the UDP length says {length_bytes} bytes, the header alone has 8")]
    LengthBelowHeader {
        /// Header and payload bytes declared.
        length_bytes: usize,
    },
    /// The bytes end before the length.
    #[error("the UDP length says {length_bytes} bytes, the datagram has {datagram_bytes}")]
    LengthBeyondDatagram {
        /// Header and payload bytes declared.
        length_bytes: usize,
        /// The length of the bytes.
        datagram_bytes: usize,
    },
}

/// The result of checking a datagram that is not damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumStatus {
    /// The checksum is right.
    Verified,
    /// The sender computed no checksum, as IPv4 permits.
    Unprotected,
}

/// Why a datagram's checksum is not acceptable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChecksumError {
    /// Ports, length, addresses or payload are not what was sent. Also seen where the sender left the sum to
    /// its device and the packet never passed one, as on veth.
    #[error("the UDP checksum is 0x{found:04x}, the datagram sums to 0x{computed:04x}")]
    Wrong {
        /// The checksum in the header.
        found: u16,
        /// The checksum the header should have.
        computed: u16,
    },
    /// IPv6 has no header checksum and so demands UDP's (RFC 8200 section 8.1). Tunnels may be exempted
    /// (RFC 6936): their receivers can ignore this error.
    #[error("the datagram has no UDP checksum, which IPv6 demands")]
    MissingOnIpv6,
}

impl<'a> Datagram<'a> {
    /// Checks that `bytes`, the payload of an IP packet, contain the declared datagram.
    ///
    /// The checksum is not looked at: see [`verify_checksum`](Self::verify_checksum). The first fragment of a
    /// datagram is refused, because its length is the whole datagram's.
    ///
    /// # Errors
    /// The datagram is cut, or its length contradicts the header or is 0.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let datagram = Self::parse_cut(bytes)?;
        let (length_bytes, datagram_bytes) = (usize::from(datagram.length_bytes()), bytes.len());
        if HEADER_BYTES + datagram.payload.len() < length_bytes {
            return Err(ParseError::LengthBeyondDatagram { length_bytes, datagram_bytes });
        }
        Ok(datagram)
    }

    /// Checks the header of a datagram that may be cut after it, or is a first fragment; its payload is then
    /// shorter than declared. [`length_bytes`](Self::length_bytes) tells what there was.
    ///
    /// # Errors
    /// When the bytes end inside the header, or the length contradicts it or is 0.
    pub fn parse_cut(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let datagram_bytes = bytes.len();
        let (header, rest) =
            bytes.split_first_chunk::<HEADER_BYTES>().ok_or(ParseError::TooShort { datagram_bytes })?;
        let length_bytes = usize::from(LengthBytes::number(header));
        if length_bytes == 0 {
            return Err(ParseError::Jumbogram);
        }
        let payload_bytes =
            length_bytes.checked_sub(HEADER_BYTES).ok_or(ParseError::LengthBelowHeader { length_bytes })?;
        Ok(Self { header, payload: rest.get(..payload_bytes).unwrap_or(rest) })
    }

    /// The sender's port; 0 if it expects no answer.
    #[inline]
    pub fn source_port(&self) -> u16 {
        SourcePort::number(self.header)
    }

    /// The port the datagram is for.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        DestinationPort::number(self.header)
    }

    /// Bytes of header and payload, as declared.
    #[inline]
    pub fn length_bytes(&self) -> u16 {
        LengthBytes::number(self.header)
    }

    /// The checksum in the header; `None` if the sender computed none.
    #[inline]
    pub fn checksum(&self) -> Option<NonZeroU16> {
        NonZeroU16::new(Checksum::number(self.header))
    }

    /// Compares the checksum with the bytes.
    ///
    /// # Errors
    /// When it is wrong, or absent on IPv6.
    pub fn verify_checksum(&self, addresses: &IpAddresses) -> Result<ChecksumStatus, ChecksumError> {
        let Some(found) = self.checksum() else {
            return match addresses {
                IpAddresses::V4 { .. } => Ok(ChecksumStatus::Unprotected),
                IpAddresses::V6 { .. } => Err(ChecksumError::MissingOnIpv6),
            };
        };
        let computed = checksum_to_send(self.header, addresses, self.payload);
        if found == computed {
            return Ok(ChecksumStatus::Verified);
        }
        Err(ChecksumError::Wrong { found: found.get(), computed: computed.get() })
    }

    /// Whether the checksum was left to a device that has not done it: the field holds the sum of the
    /// pseudo-header alone ([`Repr::with_partial_checksum`]). So it is on interfaces such as veth, which have
    /// no wire; one datagram in 65,536 looks so by chance.
    pub fn checksum_is_unfinished(&self, addresses: &IpAddresses) -> bool {
        let sum = addresses.pseudo_header_sum(IpProtocol::UDP, u32::from(self.length_bytes()));
        Checksum::number(self.header) == !sum.checksum()
    }

    /// The bytes after the header, up to the length.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// The checksum to send. Whatever is in the header's checksum field does not count.
///
/// A sum of 0 is sent as 0xffff, its other representation, because 0 means "no checksum" (RFC 768). On
/// receipt the two need not be told apart: with 0 taken, 0xffff is the only one left.
fn checksum_to_send(header: &[u8; HEADER_BYTES], addresses: &IpAddresses, payload: &[u8]) -> NonZeroU16 {
    let sum = addresses
        .pseudo_header_sum(IpProtocol::UDP, u32::from(LengthBytes::number(header)))
        .with(&SourcePort::get(header))
        .with(&DestinationPort::get(header))
        .with(&LengthBytes::get(header))
        .with(payload);
    NonZeroU16::new(sum.checksum()).unwrap_or(NonZeroU16::MAX)
}

/// A UDP header.
///
/// [`with_checksum`](Self::with_checksum) and [`without_checksum`](Self::without_checksum) make one that fits
/// a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// The sender's port; 0 if it expects no answer.
    pub source_port: u16,
    /// The port the datagram is for.
    pub destination_port: u16,
    /// Bytes that follow the header, at most 65,527.
    pub payload_bytes: u16,
    /// The checksum, or `None` for none, which IPv6 does not permit.
    pub checksum: Option<NonZeroU16>,
}

impl Repr {
    /// Copies the header out of a view.
    pub fn parse(datagram: &Datagram<'_>) -> Self {
        Self {
            source_port: datagram.source_port(),
            destination_port: datagram.destination_port(),
            // Cannot underflow: `Datagram::parse` has refused lengths below the header's.
            payload_bytes: datagram.length_bytes() - HEADER_BYTES as u16,
            checksum: datagram.checksum(),
        }
    }

    /// The header for `payload`, with its checksum.
    ///
    /// # Errors
    /// When the payload has more than 65,527 bytes.
    #[inline]
    pub fn with_checksum(
        source_port: u16,
        destination_port: u16,
        addresses: &IpAddresses,
        payload: &[u8],
    ) -> Result<Self, PayloadTooLong> {
        let repr = Self::without_checksum(source_port, destination_port, payload.len())?;
        let mut header = [0; HEADER_BYTES];
        repr.put(&mut header, HEADER_BYTES as u16 + repr.payload_bytes);
        Ok(Self { checksum: Some(checksum_to_send(&header, addresses, payload)), ..repr })
    }

    /// The header for a payload of `payload_bytes`, without checksum.
    ///
    /// # Errors
    /// When that is more than 65,527.
    #[inline]
    pub fn without_checksum(
        source_port: u16,
        destination_port: u16,
        payload_bytes: usize,
    ) -> Result<Self, PayloadTooLong> {
        let length = length_with_header(HEADER_BYTES as u16, payload_bytes)?;
        let payload_bytes = length - HEADER_BYTES as u16;
        Ok(Self { source_port, destination_port, payload_bytes, checksum: None })
    }

    /// The header for a payload of `payload_bytes` whose checksum is left to a device: its field holds the
    /// sum of the pseudo-header, to be completed at [`CHECKSUM_OFFSET`] bytes from the header's start.
    ///
    /// # Errors
    /// When that is more than 65,527.
    pub fn with_partial_checksum(
        source_port: u16,
        destination_port: u16,
        addresses: &IpAddresses,
        payload_bytes: usize,
    ) -> Result<Self, PayloadTooLong> {
        let repr = Self::without_checksum(source_port, destination_port, payload_bytes)?;
        let length = u32::from(HEADER_BYTES as u16 + repr.payload_bytes);
        // The sum itself, not its complement. It is never 0, because the protocol's number is not.
        let sum = !addresses.pseudo_header_sum(IpProtocol::UDP, length).checksum();
        Ok(Self { checksum: NonZeroU16::new(sum), ..repr })
    }

    /// Writes the header into the first [`HEADER_BYTES`] of `buffer`.
    ///
    /// # Errors
    /// When `buffer` is shorter than that or the payload too long to declare; `buffer` is then unchanged.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<(), EmitError> {
        let length_bytes = length_with_header(HEADER_BYTES as u16, usize::from(self.payload_bytes))?;
        self.put(header_buffer(buffer)?, length_bytes);
        Ok(())
    }

    fn put(&self, header: &mut [u8; HEADER_BYTES], length_bytes: u16) {
        SourcePort::put_number(header, self.source_port);
        DestinationPort::put_number(header, self.destination_port);
        LengthBytes::put_number(header, length_bytes);
        Checksum::put_number(header, self.checksum.map_or(0, NonZeroU16::get));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::emit::BufferTooSmall;
    use crate::wire::{captured, ipv4, ipv6};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const V4: IpAddresses =
        IpAddresses::V4 { source: Ipv4Addr::new(10, 0, 0, 1), destination: Ipv4Addr::new(10, 0, 0, 2) };
    const V6: IpAddresses = IpAddresses::V6 {
        source: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
        destination: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
    };

    #[test]
    fn a_captured_ipv4_datagram_is_parsed() {
        let packet = ipv4::Packet::parse(&captured::UDP_V4[14..]).unwrap();
        let datagram = Datagram::parse(packet.payload()).unwrap();
        assert_eq!((datagram.source_port(), datagram.destination_port()), (4660, 7));
        assert_eq!((datagram.length_bytes(), datagram.payload()), (15, &b"nocopy!"[..]));
        assert_eq!(datagram.checksum(), NonZeroU16::new(0x763a));
        assert_eq!(datagram.verify_checksum(&packet.addresses()), Ok(ChecksumStatus::Verified));
        assert_eq!(Repr::with_checksum(4660, 7, &V4, b"nocopy!"), Ok(Repr::parse(&datagram)));
    }

    #[test]
    fn a_captured_ipv6_datagram_is_parsed() {
        let packet = ipv6::Packet::parse(&captured::UDP_V6[14..]).unwrap();
        let datagram = Datagram::parse(packet.payload()).unwrap();
        assert_eq!(datagram.verify_checksum(&packet.addresses()), Ok(ChecksumStatus::Verified));
        let repr = Repr::with_checksum(4660, 7, &V6, b"nocopy!").unwrap();
        assert_eq!(repr.checksum, NonZeroU16::new(0x9038));
        assert_eq!(repr, Repr::parse(&datagram));
    }

    #[test]
    fn a_missing_checksum_is_valid_only_over_ipv4() {
        let datagram = Datagram::parse(&captured::UDP_V4_NO_CHECKSUM[34..]).unwrap();
        assert_eq!(datagram.checksum(), None);
        assert_eq!(datagram.verify_checksum(&V4), Ok(ChecksumStatus::Unprotected));
        assert_eq!(datagram.verify_checksum(&V6), Err(ChecksumError::MissingOnIpv6));
        assert_eq!(Repr::without_checksum(4660, 7, 6), Ok(Repr::parse(&datagram)));
    }

    #[test]
    fn a_zero_sum_is_sent_as_all_ones() {
        // The payload that makes up the difference: all other words of the captured datagram and it add to
        // ffff.
        let without = Repr::with_checksum(4660, 7, &V4, &[0, 0]).unwrap().checksum.unwrap();
        let payload = without.get().to_be_bytes();
        let repr = Repr::with_checksum(4660, 7, &V4, &payload).unwrap();
        assert_eq!(repr.checksum, Some(NonZeroU16::MAX));
        let mut bytes = [0; HEADER_BYTES + 2];
        repr.emit(&mut bytes).unwrap();
        bytes[HEADER_BYTES..].copy_from_slice(&payload);
        assert_eq!(Datagram::parse(&bytes).unwrap().verify_checksum(&V4), Ok(ChecksumStatus::Verified));
    }

    #[test]
    fn damage_and_wrong_addresses_are_detected() {
        let mut bytes: [u8; 15] = *captured::UDP_V4.last_chunk().unwrap();
        let elsewhere =
            IpAddresses::V4 { source: Ipv4Addr::new(10, 0, 0, 3), destination: [10, 0, 0, 2].into() };
        assert_eq!(
            Datagram::parse(&bytes).unwrap().verify_checksum(&elsewhere),
            Err(ChecksumError::Wrong { found: 0x763a, computed: 0x7638 })
        );
        bytes[8] ^= 1;
        assert_eq!(
            Datagram::parse(&bytes).unwrap().verify_checksum(&V4),
            Err(ChecksumError::Wrong { found: 0x763a, computed: 0x753a })
        );
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let mut bytes: [u8; 17] = *b"\x12\x34\x00\x07\x00\x0f\x76\x3anocopy!pp";
        assert_eq!(Datagram::parse(&bytes).unwrap().payload(), b"nocopy!");
        for datagram_bytes in 0..15 {
            let error = match datagram_bytes {
                ..8 => ParseError::TooShort { datagram_bytes },
                _ => ParseError::LengthBeyondDatagram { length_bytes: 15, datagram_bytes },
            };
            assert_eq!(Datagram::parse(&bytes[..datagram_bytes]).unwrap_err(), error);
        }
        bytes[5] = 7;
        assert_eq!(Datagram::parse(&bytes).unwrap_err(), ParseError::LengthBelowHeader { length_bytes: 7 });
        bytes[5] = 0;
        assert_eq!(Datagram::parse(&bytes).unwrap_err(), ParseError::Jumbogram);
    }

    #[test]
    fn invalid_headers_are_not_emitted() {
        let too_long = PayloadTooLong { payload_bytes: 65_528, limit_bytes: 65_527 };
        assert_eq!(Repr::without_checksum(1, 2, 65_528), Err(too_long));
        let repr = Repr::without_checksum(1, 2, 65_527).unwrap();
        let too_small = BufferTooSmall { needed_bytes: 8, buffer_bytes: 7 };
        assert_eq!(repr.emit(&mut [0; 7]), Err(too_small.into()));
        let mut buffer = [0; HEADER_BYTES];
        assert_eq!(Repr { payload_bytes: 65_528, ..repr }.emit(&mut buffer), Err(too_long.into()));
        assert_eq!(buffer, [0; HEADER_BYTES]);
    }

    proptest! {
        #[test]
        fn emit_then_parse(ports: [u16; 2], v6: bool, payload in vec(any::<u8>(), 0..1500)) {
            let addresses = if v6 { V6 } else { V4 };
            let repr = Repr::with_checksum(ports[0], ports[1], &addresses, &payload).unwrap();
            let mut bytes = vec![0; HEADER_BYTES];
            repr.emit(&mut bytes).unwrap();
            bytes.extend(&payload);
            let datagram = Datagram::parse(&bytes).unwrap();
            prop_assert_eq!(Repr::parse(&datagram), repr);
            prop_assert_eq!(datagram.payload(), payload);
            prop_assert_eq!(datagram.verify_checksum(&addresses), Ok(ChecksumStatus::Verified));
        }
    }
}
