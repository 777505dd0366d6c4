//! Datagrams of the message protocol (docs/protocol.md §2): read in place, written in place.
//!
//! [`Datagram::parse`] checks all of a datagram, and its checksum, so its result can be read without further
//! checks. Only the connection can tell whether it makes sense there.
//!
//! ```
//! use nocopy_proto::message::wire::{Datagram, Flags, HEADER_BYTES, Header, HeaderKind};
//!
//! let header = Header {
//!     kind: HeaderKind::Data,
//!     flags: Flags::ANSWER,
//!     marked: 0,
//!     to: 7,
//!     sequence: 1,
//!     expected: 1,
//!     credit: 100,
//!     sent: 0,
//!     echo: 0,
//! };
//! let mut datagram = *b"00000000000000000000000000000000payload";
//! header.emit(datagram.first_chunk_mut::<HEADER_BYTES>().unwrap());
//! assert_eq!(Datagram::parse(&datagram), Ok(Datagram::Data(header, b"payload")));
//! ```

mod ending;
mod header;
#[doc(hidden)]
pub mod oracle;
mod parameters;
mod ranges;
mod set_up;
mod stream;
#[cfg(test)]
mod tests;

use thiserror::Error;

use super::crc::{self, CRC_BYTES};

pub use ending::{Abort, AbortReason, ENDING_BYTES, Unknown};
pub use header::{Flags, HEADER_BYTES, Header, HeaderKind, Headers};
pub(super) use header::{follows, plain, plain_ack, renumber};
pub use parameters::{DATAGRAM_BYTES_MIN, Parameters, Placement};
pub use ranges::{RANGES_MAX, Ranges};
pub use set_up::{Accept, COOKIE_BYTES, Connect, Cookie, HELLO_BYTES_MIN, Hello, Refused, VERSION, Versions};
pub(super) use stream::span_of_unit;
pub use stream::{ATTACH_BYTES, ATTACHED_BYTES, Attach, Attached, Unit};

const DATA: u8 = 1;
const ACK: u8 = 2;
const HELLO: u8 = 3;
const COOKIE: u8 = 4;
const REFUSED: u8 = 5;
const CONNECT: u8 = 6;
const ACCEPT: u8 = 7;
const ABORT: u8 = 8;
const UNKNOWN: u8 = 9;

/// Whether a datagram is of the kinds that answer any address, also a forged one: it proves nothing of the
/// address that it is for.
pub fn answers_anybody(datagram: &[u8]) -> bool {
    matches!(datagram.first(), Some(&(COOKIE | REFUSED | ABORT | UNKNOWN)))
}

/// A datagram, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram<'a> {
    /// A packet, and its payload (§4).
    Data(Header, &'a [u8]),
    /// An acknowledgement alone, and the ranges that arrived beyond its `expected` (§5).
    Ack(Header, Ranges<'a>),
    /// §3.1.
    Hello(Hello),
    /// §3.2.
    Cookie(Cookie),
    /// §3.5.
    Refused(Refused),
    /// §3.3.
    Connect(Connect),
    /// §3.4.
    Accept(Accept),
    /// §11.3.
    Abort(Abort),
    /// §3.6.
    Unknown(Unknown),
}

/// Why bytes are not a datagram of the protocol. The receiver drops it, counts it, and does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// It ends before its kind does.
    #[error("the datagram has {datagram_bytes} bytes, its kind has at least {needed_bytes}")]
    TooShort {
        /// Bytes there are.
        datagram_bytes: usize,
        /// Bytes it needs.
        needed_bytes: usize,
    },
    /// There is more than its kind has.
    #[error("{bytes} bytes follow the datagram's last field")]
    TooLong {
        /// Bytes too many.
        bytes: usize,
    },
    /// The first byte is not a kind of datagram.
    #[error("{kind} is not a kind of datagram")]
    Kind {
        /// The first byte.
        kind: u8,
    },
    /// Flags that this kind does not have, or lacks.
    #[error("a datagram of kind {kind} does not have the flags 0x{flags:02x}")]
    Flags {
        /// The first byte.
        kind: u8,
        /// The second.
        flags: u8,
    },
    /// A field that must be 0 is not.
    #[error("a reserved field of a datagram of kind {kind} is not 0")]
    Reserved {
        /// The first byte.
        kind: u8,
    },
    /// It was changed on the path.
    #[error("the checksum is 0x{found:08x}, the datagram sums to 0x{computed:08x}")]
    Checksum {
        /// At the datagram's end.
        found: u32,
        /// Of the bytes before.
        computed: u32,
    },
    /// The bytes after an Ack's header are not up to 64 whole ranges.
    #[error("{bytes} bytes follow the header of an Ack, which are not up to 64 ranges of 4 bytes")]
    RangesLength {
        /// Bytes there are.
        bytes: usize,
    },
    /// A range is empty, or adjoins the one before.
    #[error("range {index} of the Ack is empty or adjoins the one before")]
    EmptyRange {
        /// Which, from 0.
        index: usize,
    },
    /// A range of versions ends before it begins.
    #[error("a datagram of kind {kind}: version range {first} to {last} ends before it begins")]
    Versions {
        /// The first byte.
        kind: u8,
        /// The oldest.
        first: u8,
        /// The newest.
        last: u8,
    },
    /// The version is not spoken here.
    #[error("a datagram of kind {kind} has version {version}, only version 1 is supported")]
    Version {
        /// The first byte.
        kind: u8,
        /// The third.
        version: u8,
    },
    /// A Connect or Accept that is not as long as the datagrams it states, or states too short ones.
    #[error(
        "the datagram has {datagram_bytes} bytes and states {stated_bytes}; these have to be the same, and 512 or more"
    )]
    Unproven {
        /// `datagram_bytes` of its parameters.
        stated_bytes: u16,
        /// Bytes there are.
        datagram_bytes: usize,
    },
}

impl<'a> Datagram<'a> {
    /// Checks a datagram, the payload of a UDP datagram.
    ///
    /// # Errors
    /// When it is of no kind, does not have the form of its kind, or its checksum is wrong.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, Malformed> {
        let Some((first, rest)) = datagram.split_first_chunk::<HEADER_BYTES>() else {
            return Self::parse_rare(datagram);
        };
        let kind = match first[0] {
            DATA => HeaderKind::Data,
            ACK => HeaderKind::Ack,
            _ => return Self::parse_rare(datagram),
        };
        let header = Header::parse(kind, first)?;
        let rest = if header.flags.contains(Flags::CRC) {
            let body = without_crc(datagram)?;
            body.get(HEADER_BYTES..).ok_or(Malformed::TooShort {
                datagram_bytes: datagram.len(),
                needed_bytes: HEADER_BYTES + CRC_BYTES,
            })?
        } else {
            rest
        };
        match kind {
            HeaderKind::Data => Ok(Self::Data(header, rest)),
            HeaderKind::Ack => Ok(Self::Ack(header, Ranges::parse(rest)?)),
        }
    }

    /// Parses the kinds that need no fast way; all of them end with a checksum.
    #[cold]
    fn parse_rare(datagram: &'a [u8]) -> Result<Self, Malformed> {
        let datagram_bytes = datagram.len();
        let &[kind, flags, ..] = datagram else {
            return Err(Malformed::TooShort { datagram_bytes, needed_bytes: ENDING_BYTES });
        };
        match kind {
            DATA | ACK => return Err(Malformed::TooShort { datagram_bytes, needed_bytes: HEADER_BYTES }),
            HELLO..=UNKNOWN => {}
            _ => return Err(Malformed::Kind { kind }),
        }
        if flags != Flags::CRC.bits() {
            return Err(Malformed::Flags { kind, flags });
        }
        let body = without_crc(datagram)?;
        match kind {
            HELLO => Hello::parse(body, datagram_bytes).map(Self::Hello),
            COOKIE => Cookie::parse(body).map(Self::Cookie),
            REFUSED => Refused::parse(body).map(Self::Refused),
            CONNECT => Connect::parse(body, datagram_bytes).map(Self::Connect),
            ACCEPT => Accept::parse(body, datagram_bytes).map(Self::Accept),
            ABORT => Abort::parse(body).map(Self::Abort),
            _ => Unknown::parse(body).map(Self::Unknown),
        }
    }
}

/// Writes an Ack in place of what `datagram` holds: the header, ranges, which are ascending and lie apart
/// beyond `expected`, and the checksum if the header has its flag. Gives the number of ranges written:
/// [`Ranges::emit`].
pub fn emit_ack(
    header: &Header,
    expected: u64,
    ranges: impl IntoIterator<Item = std::ops::Range<u64>>,
    datagram: &mut Vec<u8>,
) -> usize {
    let mut bytes = [0; HEADER_BYTES];
    header.emit(&mut bytes);
    datagram.clear();
    datagram.extend_from_slice(&bytes);
    let count = Ranges::emit(expected, ranges, datagram);
    if header.flags.contains(Flags::CRC) {
        crc::seal(datagram);
    }
    count
}

/// The bytes before the checksum, if that is correct.
fn without_crc(datagram: &[u8]) -> Result<&[u8], Malformed> {
    let Some((body, found)) = datagram.split_last_chunk::<CRC_BYTES>() else {
        return Err(Malformed::TooShort { datagram_bytes: datagram.len(), needed_bytes: ENDING_BYTES });
    };
    let (found, computed) = (u32::from_be_bytes(*found), crc::of_pieces([body]));
    if found != computed {
        return Err(Malformed::Checksum { found, computed });
    }
    Ok(body)
}

/// The fields of a kind that may be followed by padding.
fn front<const BODY: usize>(body: &[u8]) -> Result<&[u8; BODY], Malformed> {
    body.first_chunk()
        .ok_or(Malformed::TooShort { datagram_bytes: body.len() + CRC_BYTES, needed_bytes: BODY + CRC_BYTES })
}

/// The fields of a kind that nothing may follow.
fn exactly<const BODY: usize>(body: &[u8]) -> Result<&[u8; BODY], Malformed> {
    let fields = front(body)?;
    match body.len() - BODY {
        0 => Ok(fields),
        bytes => Err(Malformed::TooLong { bytes }),
    }
}

/// The fields of a kind that ends with a checksum, with the first two filled in.
fn begin<const BODY: usize>(kind: u8) -> [u8; BODY] {
    let mut body = [0; BODY];
    body[0] = kind;
    body[1] = Flags::CRC.bits();
    body
}

/// Writes the fields, zeros up to `bytes` in total, and the checksum to `datagram`.
fn finish(body: &[u8], bytes: usize, datagram: &mut Vec<u8>) {
    datagram.clear();
    datagram.extend_from_slice(body);
    datagram.resize(body.len().max(bytes.saturating_sub(CRC_BYTES)), 0);
    crc::seal(datagram);
}
