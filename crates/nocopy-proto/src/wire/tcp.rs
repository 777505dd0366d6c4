//! TCP (RFC 9293), over IPv4 and IPv6: the header and its options, not the connection.

use thiserror::Error;

use super::checksum::OnesComplementSum;
use super::emit::{BufferTooSmall, header_buffer};
use super::field::Field;
use super::{IpAddresses, IpProtocol};

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;

/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: u16 = 16;

type SourcePort = Field<0, 2>;
type DestinationPort = Field<2, 2>;
type SequenceNumber = Field<4, 4>;
type AcknowledgementNumber = Field<8, 4>;
type OffsetAndFlags = Field<12, 2>;
type Window = Field<14, 2>;
type Checksum = Field<{ CHECKSUM_OFFSET as usize }, 2>;
type UrgentPointer = Field<18, 2>;

/// The control bits, which share 12 bits with 3 reserved ones. Every value is valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(u16);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(1);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(1 << 1);
    /// Reset the connection.
    pub const RST: Self = Self(1 << 2);
    /// Push to the application.
    pub const PSH: Self = Self(1 << 3);
    /// The acknowledgement number counts.
    pub const ACK: Self = Self(1 << 4);
    /// The urgent pointer counts.
    pub const URG: Self = Self(1 << 5);
    /// Congestion was signalled to the sender (RFC 3168).
    pub const ECE: Self = Self(1 << 6);
    /// The congestion window was reduced (RFC 3168).
    pub const CWR: Self = Self(1 << 7);
    /// Accurate ECN (RFC 9768), once the nonce sum.
    pub const AE: Self = Self(1 << 8);

    const MASK: u16 = 0xfff;

    /// The bits of a header, or `None` if there are more than 12.
    pub const fn new(bits: u16) -> Option<Self> {
        if bits & !Self::MASK == 0 { Some(Self(bits)) } else { None }
    }

    /// The bits of a header.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Whether all of `others` are set.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// The flags of both.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

/// View of a TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    header: &'a [u8; HEADER_BYTES],
    options: &'a [u8],
    payload: &'a [u8],
}

/// Why bytes are not a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The bytes end inside the fixed header.
    #[error("the TCP header has at least 20 bytes, the segment has {segment_bytes}")]
    TooShort {
        /// The length of the segment.
        segment_bytes: usize,
    },
    /// The header length is less than the fixed header.
    #[error("the TCP header says {header_bytes} bytes, it has at least 20")]
    HeaderTooShort {
        /// Header bytes declared.
        header_bytes: usize,
    },
    /// The bytes end inside the options.
    #[error("the TCP header says {header_bytes} bytes, the segment has {segment_bytes}")]
    HeaderBeyondSegment {
        /// Header bytes declared.
        header_bytes: usize,
        /// The length of the segment.
        segment_bytes: usize,
    },
}

impl<'a> Segment<'a> {
    /// Checks that `bytes`, the payload of an IP packet, contain the declared header.
    ///
    /// The checksum is not looked at: see [`checksum_is_valid`](Self::checksum_is_valid). Options may be
    /// malformed: see [`Options`].
    ///
    /// # Errors
    /// The header is cut, or its length contradicts it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let segment = Self::parse_cut(bytes)?;
        let (header_bytes, segment_bytes) = (segment.header_bytes(), bytes.len());
        if segment_bytes < header_bytes {
            return Err(ParseError::HeaderBeyondSegment { header_bytes, segment_bytes });
        }
        Ok(segment)
    }

    /// Checks the fixed header of a segment that may be cut after it; options and payload are then
    /// incomplete. [`header_bytes`](Self::header_bytes) tells what there was.
    ///
    /// # Errors
    /// When the fixed header is cut or declares less than itself.
    pub fn parse_cut(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let segment_bytes = bytes.len();
        let (header, rest) =
            bytes.split_first_chunk::<HEADER_BYTES>().ok_or(ParseError::TooShort { segment_bytes })?;
        let header_bytes = declared_header_bytes(header);
        let options_bytes =
            header_bytes.checked_sub(HEADER_BYTES).ok_or(ParseError::HeaderTooShort { header_bytes })?;
        let (options, payload) = rest.split_at_checked(options_bytes).unwrap_or((rest, &[]));
        Ok(Self { header, options, payload })
    }

    /// The sender's port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        SourcePort::number(self.header)
    }

    /// The port the segment is for.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        DestinationPort::number(self.header)
    }

    /// The position of the first payload byte (or of the SYN) in the stream.
    #[inline]
    pub fn sequence_number(&self) -> u32 {
        u32::from_be_bytes(SequenceNumber::get(self.header))
    }

    /// The next place expected of the other side; without meaning unless [`TcpFlags::ACK`] is set.
    #[inline]
    pub fn acknowledgement_number(&self) -> u32 {
        u32::from_be_bytes(AcknowledgementNumber::get(self.header))
    }

    /// Bytes of the header with its options, as declared: 20 to 60.
    #[inline]
    pub fn header_bytes(&self) -> usize {
        declared_header_bytes(self.header)
    }

    /// The control bits.
    #[inline]
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(OffsetAndFlags::number(self.header) & TcpFlags::MASK)
    }

    /// Bytes the sender takes, to be shifted by the scale agreed on at the start (RFC 7323), except with
    /// [`TcpFlags::SYN`].
    #[inline]
    pub fn window(&self) -> u16 {
        Window::number(self.header)
    }

    /// The checksum in the header.
    #[inline]
    pub fn checksum(&self) -> u16 {
        Checksum::number(self.header)
    }

    /// Whether ports, numbers, addresses and payload are what was sent. Also false where the sender left the
    /// sum to its device and the packet never passed one, as on veth.
    #[inline]
    pub fn checksum_is_valid(&self, addresses: &IpAddresses) -> bool {
        segment_sum(self.header, self.options, addresses, self.payload).is_valid()
    }

    /// The end of urgent data; without meaning unless [`TcpFlags::URG`] is set.
    #[inline]
    pub fn urgent_pointer(&self) -> u16 {
        UrgentPointer::number(self.header)
    }

    /// The options, one by one.
    #[inline]
    pub fn options(&self) -> Options<'a> {
        Options { bytes: self.options }
    }

    /// The options, unparsed: 0 to 40 bytes.
    #[inline]
    pub fn option_bytes(&self) -> &'a [u8] {
        self.options
    }

    /// The bytes after the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

fn declared_header_bytes(header: &[u8; HEADER_BYTES]) -> usize {
    usize::from(OffsetAndFlags::number(header) >> 12) * 4
}

fn segment_sum(
    header: &[u8; HEADER_BYTES],
    options: &[u8],
    addresses: &IpAddresses,
    payload: &[u8],
) -> OnesComplementSum {
    let segment_bytes = (header.len() + options.len() + payload.len()) as u32;
    addresses.pseudo_header_sum(IpProtocol::TCP, segment_bytes).with(header).with(options).with(payload)
}

/// An option of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TcpOption<'a> {
    /// The options end here.
    End,
    /// Padding, to align the next option.
    NoOperation,
    /// The largest segment that the sender accepts, in bytes of payload.
    MaximumSegmentSize(u16),
    /// How far windows are shifted (RFC 7323).
    WindowScale(u8),
    /// The sender accepts selective acknowledgements (RFC 2018).
    SackPermitted,
    /// Bytes received beyond the acknowledgement (RFC 2018): the first, and the one after the last.
    Sack(SackBlocks<'a>),
    /// The sender's clock, and an echo of the receiver's (RFC 7323).
    Timestamps {
        /// The sender's clock.
        value: u32,
        /// The latest value of the other side.
        echo: u32,
    },
    /// Any other.
    Other {
        /// Its number at IANA.
        kind: u8,
        /// The bytes after kind and length.
        data: &'a [u8],
    },
}

/// The blocks of a selective acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SackBlocks<'a>(&'a [[u8; 8]]);

impl SackBlocks<'_> {
    /// Iterates over the blocks: the first sequence number of each, and the one after its last.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, u32)> {
        self.0.iter().map(|[a, b, c, d, e, f, g, h]| {
            (u32::from_be_bytes([*a, *b, *c, *d]), u32::from_be_bytes([*e, *f, *g, *h]))
        })
    }
}

/// The bytes of an option contradict its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OptionError {
    /// The options end inside it.
    #[error("TCP option {kind} is cut")]
    Cut {
        /// Its number.
        kind: u8,
    },
    /// Its length is not valid for its kind.
    #[error("TCP option {kind}: its length of {length_bytes} bytes is not valid for that option")]
    Length {
        /// Its number.
        kind: u8,
        /// Bytes declared, kind and length included.
        length_bytes: u8,
    },
}

/// The options of a segment, in order, up to [`TcpOption::End`] or the first that cannot be read.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    bytes: &'a [u8],
}

impl<'a> Options<'a> {
    fn parse_option(&mut self, kind: u8) -> Result<TcpOption<'a>, OptionError> {
        let &[_, length_bytes, ..] = self.bytes else { return Err(OptionError::Cut { kind }) };
        let wrong = OptionError::Length { kind, length_bytes };
        if length_bytes < 2 {
            return Err(wrong);
        }
        let (option, rest) =
            self.bytes.split_at_checked(length_bytes.into()).ok_or(OptionError::Cut { kind })?;
        self.bytes = rest;
        let data = &option[2..];
        Ok(match (kind, data) {
            (2, &[a, b]) => TcpOption::MaximumSegmentSize(u16::from_be_bytes([a, b])),
            (3, &[shift]) => TcpOption::WindowScale(shift),
            (4, []) => TcpOption::SackPermitted,
            (5, data) if data.len() % 8 == 0 => TcpOption::Sack(SackBlocks(data.as_chunks().0)),
            (8, &[a, b, c, d, e, f, g, h]) => TcpOption::Timestamps {
                value: u32::from_be_bytes([a, b, c, d]),
                echo: u32::from_be_bytes([e, f, g, h]),
            },
            (2..=5 | 8, _) => return Err(wrong),
            _ => TcpOption::Other { kind, data },
        })
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<TcpOption<'a>, OptionError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, rest) = self.bytes.split_first()?;
        let read = match kind {
            0 => Ok(TcpOption::End),
            1 => {
                self.bytes = rest;
                return Some(Ok(TcpOption::NoOperation));
            }
            _ => self.parse_option(kind),
        };
        if matches!(read, Ok(TcpOption::End) | Err(_)) {
            self.bytes = &[];
        }
        Some(read)
    }
}

/// A TCP header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// The sender's port.
    pub source_port: u16,
    /// The port the segment is for.
    pub destination_port: u16,
    /// The place of the first byte of payload in the stream.
    pub sequence_number: u32,
    /// The next place expected of the other side.
    pub acknowledgement_number: u32,
    /// The control bits.
    pub flags: TcpFlags,
    /// The receive window in bytes, not scaled.
    pub window: u16,
    /// The checksum.
    pub checksum: u16,
    /// The end of urgent data.
    pub urgent_pointer: u16,
}

impl Repr {
    /// Copies the header of a view, without its options.
    pub fn parse(segment: &Segment<'_>) -> Self {
        Self {
            source_port: segment.source_port(),
            destination_port: segment.destination_port(),
            sequence_number: segment.sequence_number(),
            acknowledgement_number: segment.acknowledgement_number(),
            flags: segment.flags(),
            window: segment.window(),
            checksum: segment.checksum(),
            urgent_pointer: segment.urgent_pointer(),
        }
    }

    /// The header with the right checksum for `payload`.
    #[must_use]
    pub fn with_checksum(self, addresses: &IpAddresses, payload: &[u8]) -> Self {
        let mut header = [0; HEADER_BYTES];
        Self { checksum: 0, ..self }.put(&mut header);
        Self { checksum: segment_sum(&header, &[], addresses, payload).checksum(), ..self }
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
        SourcePort::put_number(header, self.source_port);
        DestinationPort::put_number(header, self.destination_port);
        SequenceNumber::put(header, self.sequence_number.to_be_bytes());
        AcknowledgementNumber::put(header, self.acknowledgement_number.to_be_bytes());
        OffsetAndFlags::put_number(header, 5 << 12 | self.flags.bits());
        Window::put_number(header, self.window);
        Checksum::put_number(header, self.checksum);
        UrgentPointer::put_number(header, self.urgent_pointer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{captured, ipv4};
    use proptest::collection::vec;
    use proptest::prelude::*;

    const ADDRESSES: IpAddresses = IpAddresses::V4 {
        source: std::net::Ipv4Addr::new(10, 0, 0, 1),
        destination: std::net::Ipv4Addr::new(10, 0, 0, 2),
    };

    #[test]
    fn a_captured_syn_is_parsed() {
        let packet = ipv4::Packet::parse(&captured::TCP_SYN[14..]).unwrap();
        let segment = Segment::parse(packet.payload()).unwrap();
        assert_eq!((segment.source_port(), segment.destination_port()), (40000, 7777));
        assert_eq!((segment.flags(), segment.window()), (TcpFlags::SYN, 64240));
        assert_eq!((segment.header_bytes(), segment.payload()), (40, &[][..]));
        assert!(segment.checksum_is_valid(&packet.addresses()));
        let options: Vec<_> = segment.options().map(Result::unwrap).collect();
        assert_eq!(options[..2], [TcpOption::MaximumSegmentSize(1460), TcpOption::SackPermitted]);
        assert!(matches!(options[2], TcpOption::Timestamps { echo: 0, .. }), "{options:?}");
        assert_eq!(options[3..], [TcpOption::NoOperation, TcpOption::WindowScale(10)]);
    }

    #[test]
    fn invalid_lengths_are_refused() {
        let segment = &captured::TCP_SYN[34..];
        assert_eq!(Segment::parse(&segment[..19]).unwrap_err(), ParseError::TooShort { segment_bytes: 19 });
        let cut = ParseError::HeaderBeyondSegment { header_bytes: 40, segment_bytes: 39 };
        assert_eq!(Segment::parse(&segment[..39]).unwrap_err(), cut);
        assert_eq!(Segment::parse_cut(&segment[..39]).unwrap().option_bytes().len(), 19);
        let mut short = segment.to_vec();
        short[12] = 0x40;
        assert_eq!(Segment::parse(&short).unwrap_err(), ParseError::HeaderTooShort { header_bytes: 16 });
    }

    #[test]
    fn options_end_at_the_first_invalid_one() {
        let read = |bytes| Options { bytes }.collect::<Vec<_>>();
        assert_eq!(read(&[1, 0, 2, 4]), [Ok(TcpOption::NoOperation), Ok(TcpOption::End)]);
        assert_eq!(read(&[2, 4, 5]), [Err(OptionError::Cut { kind: 2 })]);
        assert_eq!(read(&[7]), [Err(OptionError::Cut { kind: 7 })]);
        assert_eq!(read(&[7, 1, 1]), [Err(OptionError::Length { kind: 7, length_bytes: 1 })]);
        assert_eq!(read(&[2, 3, 5]), [Err(OptionError::Length { kind: 2, length_bytes: 3 })]);
        assert_eq!(read(&[30, 3, 5]), [Ok(TcpOption::Other { kind: 30, data: &[5] })]);
        let sack = read(&[5, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        let [Ok(TcpOption::Sack(blocks))] = sack[..] else { panic!("{sack:?}") };
        assert!(blocks.iter().eq([(1, 2)]));
    }

    proptest! {
        #[test]
        fn emit_then_parse(
            ports: (u16, u16),
            numbers: (u32, u32),
            flags in 0_u16..0x1000,
            window: u16,
            urgent_pointer: u16,
            payload in vec(any::<u8>(), 0..100),
        ) {
            let repr = Repr {
                source_port: ports.0,
                destination_port: ports.1,
                sequence_number: numbers.0,
                acknowledgement_number: numbers.1,
                flags: TcpFlags::new(flags).unwrap(),
                window,
                checksum: 0,
                urgent_pointer,
            }
            .with_checksum(&ADDRESSES, &payload);
            let mut bytes = vec![0; HEADER_BYTES];
            repr.emit(&mut bytes).unwrap();
            bytes.extend(&payload);
            let segment = Segment::parse(&bytes).unwrap();
            prop_assert_eq!(Repr::parse(&segment), repr);
            prop_assert!(segment.checksum_is_valid(&ADDRESSES));
            prop_assert_eq!(segment.payload(), payload);
        }
    }
}
