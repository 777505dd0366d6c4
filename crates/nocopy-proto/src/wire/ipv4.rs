//! IPv4 (RFC 791).

use std::net::Ipv4Addr;

use thiserror::Error;

use super::checksum::OnesComplementSum;
use super::emit::{EmitError, header_buffer, length_with_header};
use super::field::Field;
use super::{IpAddresses, IpProtocol};

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;

type VersionAndHeaderWords = Field<0, 1>;
type TypeOfService = Field<1, 1>;
type TotalBytes = Field<2, 2>;
type Identification = Field<4, 2>;
type FragmentField = Field<6, 2>;
type TimeToLive = Field<8, 1>;
type Protocol = Field<9, 1>;
type HeaderChecksum = Field<10, 2>;
type Source = Field<12, 4>;
type Destination = Field<16, 4>;

const OPTION_END: u8 = 0;
const OPTION_NOTHING: u8 = 1;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;

/// Flags and fragment offset, which share 16 bits. Every value is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragmentation(pub u16);

impl Fragmentation {
    /// The whole packet, which routers may fragment.
    pub const ALLOWED: Self = Self(0);
    /// The whole packet, which routers may not fragment.
    pub const FORBIDDEN: Self = Self(0x4000);

    const MORE_FRAGMENTS: u16 = 0x2000;
    const OFFSET_MASK: u16 = 0x1fff;

    /// Whether routers may not fragment the packet (DF).
    pub const fn dont_fragment(self) -> bool {
        self.0 & Self::FORBIDDEN.0 != 0
    }

    /// Whether this is a fragment and not the last (MF).
    pub const fn more_fragments(self) -> bool {
        self.0 & Self::MORE_FRAGMENTS != 0
    }

    /// Offset of the payload in the payload of the whole packet. At most 65,528, a multiple of 8.
    pub const fn offset_bytes(self) -> u16 {
        (self.0 & Self::OFFSET_MASK) * 8
    }

    /// Whether this is a part of a packet and not the whole.
    pub const fn is_fragment(self) -> bool {
        self.more_fragments() || self.offset_bytes() != 0
    }
}

/// View of an IPv4 packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a [u8; HEADER_BYTES],
    options: &'a [u8],
    payload: &'a [u8],
}

/// Why bytes are not an IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The bytes end inside the fixed header.
    #[error("the IPv4 header has at least 20 bytes, the packet has {packet_bytes}")]
    TooShort {
        /// The length of the packet.
        packet_bytes: usize,
    },
    /// The version is not 4.
    #[error("the IP version is {version}, not 4")]
    WrongVersion {
        /// The version in the header.
        version: u8,
    },
    /// The header length is less than the fixed header.
    #[error("IPv4 header says {header_bytes} bytes, it has at least 20")]
    HeaderTooShort {
        /// Header bytes declared.
        header_bytes: usize,
    },
    /// The bytes end inside the options.
    #[error("IPv4 header says {header_bytes} bytes, packet has {packet_bytes}")]
    HeaderBeyondPacket {
        /// Header bytes declared.
        header_bytes: usize,
        /// The length of the packet.
        packet_bytes: usize,
    },
    /// The total length is less than the header, and not 0.
    #[error("IPv4 total length says {total_bytes} bytes, the header alone has {header_bytes}")]
    TotalBelowHeader {
        /// Total bytes declared.
        total_bytes: usize,
        /// Header bytes declared.
        header_bytes: usize,
    },
    /// The bytes end before the total length.
    #[error("IPv4 total length says {total_bytes} bytes, packet has {packet_bytes}")]
    TotalBeyondPacket {
        /// Total bytes declared.
        total_bytes: usize,
        /// The length of the packet.
        packet_bytes: usize,
    },
}

impl<'a> Packet<'a> {
    /// Checks that `bytes` contain the declared header and payload. Further bytes are padding.
    ///
    /// The header checksum is not looked at: see [`checksum_is_valid`](Self::checksum_is_valid).
    ///
    /// A total length of 0 is what hosts write in packets that a device is still to cut into segments, and in
    /// those over 64 KiB (BIG TCP), whose length the field cannot hold: such a packet has all of `bytes`.
    ///
    /// # Errors
    /// The packet is cut, its lengths contradict each other, or it is not version 4.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let packet = Self::parse_cut(bytes)?;
        match packet.total_bytes().map(usize::from) {
            Some(total_bytes) if packet.header_bytes() + packet.payload.len() < total_bytes => {
                Err(ParseError::TotalBeyondPacket { total_bytes, packet_bytes: bytes.len() })
            }
            _ => Ok(packet),
        }
    }

    /// Checks the header of a packet that may be cut after it; its payload is then shorter than declared.
    /// [`total_bytes`](Self::total_bytes) tells what there was.
    ///
    /// # Errors
    /// The bytes end inside the header, its lengths contradict each other, or it is not version 4.
    pub fn parse_cut(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let packet_bytes = bytes.len();
        let (header, rest) =
            bytes.split_first_chunk::<HEADER_BYTES>().ok_or(ParseError::TooShort { packet_bytes })?;
        let [version_and_words] = VersionAndHeaderWords::get(header);
        let version = version_and_words >> 4;
        if version != 4 {
            return Err(ParseError::WrongVersion { version });
        }
        let header_bytes = usize::from(version_and_words & 0xf) * 4;
        let options_bytes =
            header_bytes.checked_sub(HEADER_BYTES).ok_or(ParseError::HeaderTooShort { header_bytes })?;
        let (options, rest) = rest
            .split_at_checked(options_bytes)
            .ok_or(ParseError::HeaderBeyondPacket { header_bytes, packet_bytes })?;
        let payload_bytes = match usize::from(TotalBytes::number(header)) {
            0 => rest.len(),
            total_bytes => total_bytes
                .checked_sub(header_bytes)
                .ok_or(ParseError::TotalBelowHeader { total_bytes, header_bytes })?,
        };
        Ok(Self { header, options, payload: rest.get(..payload_bytes).unwrap_or(rest) })
    }

    /// Bytes of the header with its options: 20 to 60.
    #[inline]
    pub fn header_bytes(&self) -> usize {
        HEADER_BYTES + self.options.len()
    }

    /// Differentiated services (6 bits) and congestion notification (2 bits).
    #[inline]
    pub fn type_of_service(&self) -> u8 {
        let [value] = TypeOfService::get(self.header);
        value
    }

    /// Bytes of header and payload, as declared; `None` if the field is 0, because the packet was to be cut
    /// into segments ([`parse`](Self::parse)).
    #[inline]
    pub fn total_bytes(&self) -> Option<u16> {
        Some(TotalBytes::number(self.header)).filter(|bytes| *bytes != 0)
    }

    /// Equal in all fragments of one packet.
    #[inline]
    pub fn identification(&self) -> u16 {
        Identification::number(self.header)
    }

    /// Flags and fragment offset.
    #[inline]
    pub fn fragmentation(&self) -> Fragmentation {
        Fragmentation(FragmentField::number(self.header))
    }

    /// The remaining hops.
    #[inline]
    pub fn time_to_live(&self) -> u8 {
        let [hops] = TimeToLive::get(self.header);
        hops
    }

    /// The protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> IpProtocol {
        let [protocol] = Protocol::get(self.header);
        IpProtocol(protocol)
    }

    /// The header checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        HeaderChecksum::number(self.header)
    }

    /// Whether the checksum matches the header, options included.
    #[inline]
    pub fn checksum_is_valid(&self) -> bool {
        OnesComplementSum::new().with(self.header).with(self.options).is_valid()
    }

    /// The sender's address.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(Source::get(self.header))
    }

    /// The destination.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from(Destination::get(self.header))
    }

    /// Source and destination, as transport checksums need them.
    #[inline]
    pub fn addresses(&self) -> IpAddresses {
        IpAddresses::V4 { source: self.source(), destination: self.destination() }
    }

    /// The options, unparsed: 0 to 40 bytes, a multiple of 4.
    #[inline]
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// Where the packet ends its way: the address that transport checksums cover. While a source route has
    /// stops left, that is the last one of the route, and the header has only the next one (RFC 791 section
    /// 3.1). `None` if the options make no sense.
    pub fn final_destination(&self) -> Option<Ipv4Addr> {
        let mut options = self.options;
        loop {
            let length = match *options {
                [] | [OPTION_END, ..] => return Some(self.destination()),
                [OPTION_NOTHING, ..] => 1,
                [LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE, length, ..] => {
                    let route = options.get(2..usize::from(length))?;
                    let (&pointer, addresses) = route.split_first()?;
                    let is_whole =
                        addresses.len().is_multiple_of(4) && pointer >= 4 && pointer.is_multiple_of(4);
                    return match is_whole {
                        true if pointer > length => Some(self.destination()), // no stops are left
                        true => addresses.last_chunk().map(|address: &[u8; 4]| Ipv4Addr::from(*address)),
                        false => None,
                    };
                }
                [_, length @ (2..), ..] => usize::from(length),
                _ => return None,
            };
            options = options.get(length..)?;
        }
    }

    /// The bytes after the header, up to the total length. Of a fragment, a part of the packet's payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// An IPv4 header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// Differentiated services (6 bits) and congestion notification (2 bits).
    pub type_of_service: u8,
    /// Equal in all fragments of one packet. Ignored when fragmentation is forbidden (RFC 6864).
    pub identification: u16,
    /// Flags and fragment offset.
    pub fragmentation: Fragmentation,
    /// The most hops of the packet.
    pub time_to_live: u8,
    /// The protocol of the payload.
    pub protocol: IpProtocol,
    /// The sender's address.
    pub source: Ipv4Addr,
    /// The destination.
    pub destination: Ipv4Addr,
    /// Bytes that follow the header, at most 65,515.
    pub payload_bytes: u16,
}

impl Repr {
    /// Copies the header of a view, without its options.
    pub fn parse(packet: &Packet<'_>) -> Self {
        Self {
            type_of_service: packet.type_of_service(),
            identification: packet.identification(),
            fragmentation: packet.fragmentation(),
            time_to_live: packet.time_to_live(),
            protocol: packet.protocol(),
            source: packet.source(),
            destination: packet.destination(),
            payload_bytes: match packet.total_bytes() {
                // Cannot underflow: `Packet::parse` has refused total lengths below the header's.
                Some(total_bytes) => total_bytes - packet.header_bytes() as u16,
                // More than the field can hold, `emit` refuses.
                None => u16::try_from(packet.payload().len()).unwrap_or(u16::MAX),
            },
        }
    }

    /// Writes the header with its checksum into the first [`HEADER_BYTES`] of `buffer`.
    ///
    /// # Errors
    /// When `buffer` is shorter than that or the payload too long to declare; `buffer` is then unchanged.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<(), EmitError> {
        let total_bytes = length_with_header(HEADER_BYTES as u16, usize::from(self.payload_bytes))?;
        let header: &mut [u8; HEADER_BYTES] = header_buffer(buffer)?;
        VersionAndHeaderWords::put(header, [0x45]);
        TypeOfService::put(header, [self.type_of_service]);
        TotalBytes::put_number(header, total_bytes);
        Identification::put_number(header, self.identification);
        FragmentField::put_number(header, self.fragmentation.0);
        TimeToLive::put(header, [self.time_to_live]);
        Protocol::put(header, [self.protocol.0]);
        HeaderChecksum::put_number(header, 0);
        Source::put(header, self.source.octets());
        Destination::put(header, self.destination.octets());
        let checksum = OnesComplementSum::new().with(header).checksum();
        HeaderChecksum::put_number(header, checksum);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::captured;
    use crate::wire::emit::{BufferTooSmall, PayloadTooLong};
    use proptest::prelude::*;

    const CAPTURED: &[u8] = captured::UDP_V4.split_at(14).1;

    fn captured_packet_with_byte(at: usize, byte: u8) -> Vec<u8> {
        let mut bytes = CAPTURED.to_vec();
        bytes[at] = byte;
        bytes
    }

    #[test]
    fn a_captured_ipv4_packet_is_parsed() {
        let mut padded = CAPTURED.to_vec();
        padded.extend([0; 11]);
        let packet = Packet::parse(&padded).unwrap();
        assert_eq!((packet.header_bytes(), packet.total_bytes()), (20, Some(35)));
        assert_eq!((packet.type_of_service(), packet.time_to_live()), (0, 64));
        assert_eq!(packet.identification(), 0x9824);
        assert_eq!(packet.fragmentation(), Fragmentation::FORBIDDEN);
        assert!(!packet.fragmentation().is_fragment());
        assert_eq!(packet.protocol(), IpProtocol::UDP);
        assert_eq!(packet.checksum(), 0x8ea3);
        assert!(packet.checksum_is_valid());
        assert_eq!(packet.source(), Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(packet.destination(), Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!((packet.options(), packet.payload()), (&[][..], &CAPTURED[20..]));
        let mut emitted = [0xaa; HEADER_BYTES];
        Repr::parse(&packet).emit(&mut emitted).unwrap();
        assert_eq!(emitted, CAPTURED[..20]);
    }

    #[test]
    fn any_changed_byte_breaks_the_checksum() {
        for (at, byte) in CAPTURED[..HEADER_BYTES].iter().enumerate() {
            let bytes = captured_packet_with_byte(at, byte ^ 1);
            assert!(Packet::parse(&bytes).map_or(true, |packet| !packet.checksum_is_valid()));
        }
    }

    #[test]
    fn options_belong_to_header_and_checksum() {
        // Router alert (RFC 2113) in a header of 24 bytes; the checksum worked out by hand from the captured
        // one: 0x8ea3 - 0x0100 (header words) - 0x0004 (total length) - 0x9404 (the option), with borrow.
        let mut bytes = captured_packet_with_byte(0, 0x46);
        bytes.splice(20..20, [0x94, 0x04, 0x00, 0x00]);
        bytes[3] += 4;
        let checksum: i32 = 0x8ea3 - 0x0100 - 0x0004 - 0x9404;
        bytes[10..12].copy_from_slice(&(u16::try_from(checksum + 0xffff).unwrap()).to_be_bytes());
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!((packet.header_bytes(), packet.options()), (24, &[0x94, 0x04, 0x00, 0x00][..]));
        assert_eq!(packet.payload(), &CAPTURED[20..]);
        assert!(packet.checksum_is_valid());
        assert_eq!(Repr::parse(&packet), Repr::parse(&Packet::parse(CAPTURED).unwrap()));
        assert_eq!(
            Packet::parse(&bytes[..20]).unwrap_err(),
            ParseError::HeaderBeyondPacket { header_bytes: 24, packet_bytes: 20 }
        );
    }

    #[test]
    fn a_source_route_has_its_final_destination() {
        let header = Some(Ipv4Addr::new(10, 0, 0, 2));
        let last = Some(Ipv4Addr::new(192, 0, 2, 9));
        let cases: [(&[u8], Option<Ipv4Addr>); 15] = [
            (&[], header),
            (&[1; 4], header),
            (&[0x94, 4, 0, 0], header),
            (&[131, 7, 4, 192, 0, 2, 9, 0], last),
            (&[137, 7, 4, 192, 0, 2, 9, 1], last),
            (&[1, 137, 11, 4, 7, 7, 7, 7, 192, 0, 2, 9], last),
            (&[131, 11, 8, 7, 7, 7, 7, 192, 0, 2, 9, 0], last),
            (&[0x94, 4, 0, 0, 131, 7, 4, 192, 0, 2, 9, 0], last),
            (&[131, 7, 8, 192, 0, 2, 9, 0], header),
            (&[131, 3, 4, 0], header),
            (&[0, 131, 7, 4, 192, 0, 2, 9], header),
            (&[131, 8, 4, 192, 0, 2, 9, 0], None),
            (&[131, 7, 3, 192, 0, 2, 9, 0], None),
            (&[131, 15, 4, 192, 0, 2, 9, 0], None),
            (&[7, 1, 0, 0], None),
        ];
        for (options, expected) in cases {
            let mut bytes = captured_packet_with_byte(0, 0x45 + options.len() as u8 / 4);
            bytes.splice(20..20, options.iter().copied());
            bytes[3] += options.len() as u8;
            assert_eq!(Packet::parse(&bytes).unwrap().final_destination(), expected, "{options:?}");
        }
    }

    #[test]
    fn contradicting_header_fields_are_refused() {
        let error = |bytes: &[u8]| Packet::parse(bytes).unwrap_err();
        assert_eq!(error(&captured_packet_with_byte(0, 0x65)), ParseError::WrongVersion { version: 6 });
        assert_eq!(
            error(&captured_packet_with_byte(0, 0x44)),
            ParseError::HeaderTooShort { header_bytes: 16 }
        );
        let (total_bytes, header_bytes) = (19, 20);
        assert_eq!(
            error(&captured_packet_with_byte(3, 19)),
            ParseError::TotalBelowHeader { total_bytes, header_bytes }
        );
        let (total_bytes, packet_bytes) = (36, 35);
        assert_eq!(
            error(&captured_packet_with_byte(3, 36)),
            ParseError::TotalBeyondPacket { total_bytes, packet_bytes }
        );
        let text = ParseError::HeaderBeyondPacket { header_bytes: 24, packet_bytes: 20 }.to_string();
        assert_eq!(text, "IPv4 header says 24 bytes, packet has 20");
    }

    #[test]
    fn a_total_length_of_zero_means_the_length_of_the_frame() {
        let bytes = captured_packet_with_byte(3, 0);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!((packet.total_bytes(), packet.payload()), (None, &CAPTURED[20..]));
        assert_eq!(Repr::parse(&packet), Repr::parse(&Packet::parse(CAPTURED).unwrap()));
        let mut long = bytes;
        long.resize(100_000, 7);
        let packet = Packet::parse(&long).unwrap();
        assert_eq!(packet.payload().len(), 99_980);
        assert!(Repr::parse(&packet).emit(&mut [0; HEADER_BYTES]).is_err(), "no header can say that");
        assert!(Packet::parse(&long[..19]).is_err());
    }

    #[test]
    fn every_truncated_packet_is_refused() {
        for packet_bytes in 0..CAPTURED.len() {
            assert!(Packet::parse(&CAPTURED[..packet_bytes]).is_err());
        }
    }

    #[test]
    fn fragment_fields_have_offset_and_flags() {
        let last = Fragmentation(185);
        assert_eq!((last.offset_bytes(), last.more_fragments(), last.is_fragment()), (1480, false, true));
        let first = Fragmentation(0x2000);
        assert_eq!((first.offset_bytes(), first.more_fragments(), first.is_fragment()), (0, true, true));
        assert_eq!(Fragmentation(0xffff).offset_bytes(), 65_528);
    }

    #[test]
    fn invalid_headers_are_not_emitted() {
        let repr = Repr { payload_bytes: 65_515, ..Repr::parse(&Packet::parse(CAPTURED).unwrap()) };
        let mut buffer = [0xaa; HEADER_BYTES];
        let too_small = BufferTooSmall { needed_bytes: 20, buffer_bytes: 19 };
        assert_eq!(repr.emit(&mut buffer[1..]), Err(too_small.into()));
        let too_long = PayloadTooLong { payload_bytes: 65_516, limit_bytes: 65_515 };
        assert_eq!(Repr { payload_bytes: 65_516, ..repr }.emit(&mut buffer), Err(too_long.into()));
        assert_eq!(buffer, [0xaa; HEADER_BYTES]);
        repr.emit(&mut buffer).unwrap();
        assert_eq!(buffer[2..4], [0xff, 0xff]);
    }

    proptest! {
        #[test]
        fn emit_then_parse(
            bytes: [u8; 3], words: [u16; 2], source: [u8; 4], destination: [u8; 4], payload_bytes in 0..2000_u16,
        ) {
            let repr = Repr {
                type_of_service: bytes[0],
                identification: words[0],
                fragmentation: Fragmentation(words[1]),
                time_to_live: bytes[1],
                protocol: IpProtocol(bytes[2]),
                source: source.into(),
                destination: destination.into(),
                payload_bytes,
            };
            let mut packet = vec![0; HEADER_BYTES + usize::from(payload_bytes)];
            repr.emit(&mut packet).unwrap();
            let packet = Packet::parse(&packet).unwrap();
            prop_assert!(packet.checksum_is_valid());
            prop_assert_eq!(packet.payload().len(), usize::from(payload_bytes));
            prop_assert_eq!(Repr::parse(&packet), repr);
        }
    }
}
