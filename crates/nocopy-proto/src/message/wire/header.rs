//! The header of Data and Ack (docs/protocol.md §2.1): the hot path.

use super::{ACK, DATA, Malformed};
use crate::wire::field::Field;

/// Bytes of the header of Data and Ack.
pub const HEADER_BYTES: usize = 32;

type Kind = Field<0, 1>;
type FlagBits = Field<1, 1>;
type Marked = Field<2, 2>;
type To = Field<4, 8>;
type Sequence = Field<12, 4>;
type Expected = Field<16, 4>;
type Credit = Field<20, 4>;
type Sent = Field<24, 4>;
type Echo = Field<28, 4>;

/// Which of the two datagrams that have this header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HeaderKind {
    /// A packet: it has a sequence number, and is sent again until it is acknowledged.
    Data = DATA,
    /// An acknowledgement alone: it is never acknowledged, and not sent again.
    Ack = ACK,
}

/// The second byte of every datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// The receiver acknowledges at once (§5).
    pub const ANSWER: Self = Self(1);
    /// The last packet of its direction (§11). Only with Data.
    pub const FIN: Self = Self(2);
    /// The datagram ends with its CRC32C (§12).
    pub const CRC: Self = Self(4);
    /// The server asks the client to open a stream (§16.1).
    pub const STREAM: Self = Self(8);
    /// The field `echo` holds something (§6).
    pub const ECHO: Self = Self(16);

    const OF_DATA: Self = Self(Self::OF_ACK.0 | Self::FIN.0);
    const OF_ACK: Self = Self(Self::ANSWER.0 | Self::CRC.0 | Self::STREAM.0 | Self::ECHO.0);

    /// Whether all of `others` are set.
    #[inline]
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// These and `others`.
    #[inline]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// These, and `others` if `condition` holds.
    #[inline]
    pub const fn with_if(self, condition: bool, others: Self) -> Self {
        Self(self.0 | (others.0 * condition as u8))
    }

    /// As on the wire.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// The header of Data and Ack.
///
/// Sequences are the low 32 bits of what they mean: see [`sequence`](crate::message::sequence).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Data or Ack.
    pub kind: HeaderKind,
    /// What else holds.
    pub flags: Flags,
    /// Packets that arrived with ECN's "congestion experienced" (RFC 3168), modulo 2^16 (§9.3).
    pub marked: u16,
    /// The receiver's connection id.
    pub to: u64,
    /// Data: its own sequence. Ack: the one that the sender uses next.
    pub sequence: u32,
    /// All packets below it came (§5).
    pub expected: u32,
    /// Sequences below it may be sent (§8).
    pub credit: u32,
    /// The sender's clock, in ticks of 64 ns (§6).
    pub sent: u32,
    /// The `sent` of the newest packet that arrived, plus the time it was held. Valid only with
    /// [`Flags::ECHO`] (§6).
    pub echo: u32,
}

impl Header {
    #[inline]
    pub(super) fn parse(kind: HeaderKind, header: &[u8; HEADER_BYTES]) -> Result<Self, Malformed> {
        let [flags] = FlagBits::get(header);
        let allowed = match kind {
            HeaderKind::Data => Flags::OF_DATA,
            HeaderKind::Ack => Flags::OF_ACK,
        };
        if flags & !allowed.0 != 0 {
            return Err(Malformed::Flags { kind: kind as u8, flags });
        }
        Ok(Self::read(kind, header))
    }

    /// Reads the header of a packet whose kind and flags were checked.
    #[inline]
    pub(in crate::message) fn of_packet(header: &[u8; HEADER_BYTES]) -> Self {
        Self::read(HeaderKind::Data, header)
    }

    #[inline]
    fn read(kind: HeaderKind, header: &[u8; HEADER_BYTES]) -> Self {
        let [flags] = FlagBits::get(header);
        Self {
            kind,
            flags: Flags(flags),
            marked: Marked::number(header),
            to: To::number(header),
            sequence: Sequence::number(header),
            expected: Expected::number(header),
            credit: Credit::number(header),
            sent: Sent::number(header),
            echo: Echo::number(header),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, header: &mut [u8; HEADER_BYTES]) {
        Kind::put(header, [self.kind as u8]);
        FlagBits::put(header, [self.flags.0]);
        Marked::put_number(header, self.marked);
        To::put_number(header, self.to);
        Sequence::put_number(header, self.sequence);
        Expected::put_number(header, self.expected);
        Credit::put_number(header, self.credit);
        Sent::put_number(header, self.sent);
        Echo::put_number(header, self.echo);
    }
}

/// The header of a packet that has no flags, or none but ECHO.
#[inline]
pub(in crate::message) fn plain(datagram: &[u8]) -> Option<&[u8; HEADER_BYTES]> {
    let header = datagram.first_chunk()?;
    let is_plain = header[0] == DATA && header[1] & !Flags::ECHO.0 == 0;
    is_plain.then_some(header)
}

/// The header of an Ack that has no flags, or none but ECHO, and no ranges.
#[inline]
pub(in crate::message) fn plain_ack(datagram: &[u8]) -> Option<Header> {
    let header: &[u8; HEADER_BYTES] = datagram.try_into().ok()?;
    let is_plain = header[0] == ACK && header[1] & !Flags::ECHO.0 == 0;
    is_plain.then(|| Header::read(HeaderKind::Ack, header))
}

/// The `sent` field of the packet with that sequence number, if its header otherwise equals that of the
/// packet before.
#[inline]
pub(in crate::message) fn follows(
    datagram: &[u8],
    before: &[u8; HEADER_BYTES],
    sequence: u32,
) -> Option<u32> {
    let header: &[u8; HEADER_BYTES] = datagram.first_chunk()?;
    let same = header[..12] == before[..12]
        && Expected::get(header) == Expected::get(before)
        && Credit::get(header) == Credit::get(before);
    (same && Sequence::number(header) == sequence).then(|| Sent::number(header))
}

/// The headers of consecutive packets that are sent at the same time, one after another.
#[derive(Debug, Clone, Copy)]
pub struct Headers([u8; HEADER_BYTES]);

impl Headers {
    /// Those from this one on.
    #[inline]
    pub(in crate::message) fn after(first: [u8; HEADER_BYTES]) -> Self {
        Self(first)
    }
}

impl Iterator for Headers {
    type Item = [u8; HEADER_BYTES];

    #[inline]
    fn next(&mut self) -> Option<[u8; HEADER_BYTES]> {
        let header = self.0;
        renumber(&mut self.0, Sequence::number(&header).wrapping_add(1));
        Some(header)
    }
}

/// Changes a header to that of another packet sent at the same time.
#[inline]
pub(in crate::message) fn renumber(header: &mut [u8; HEADER_BYTES], sequence: u32) {
    Sequence::put_number(header, sequence);
}
