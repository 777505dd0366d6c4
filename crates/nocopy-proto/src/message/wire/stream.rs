//! The bytes of a stream beside the datagrams of a connection (docs/protocol.md §16): a first message of each
//! end, then units.

use std::num::NonZeroU64;

use super::{Flags, HEADER_BYTES, Header, Malformed, VERSION, begin, exactly, finish, without_crc};
use crate::message::crc::CRC_BYTES;
use crate::wire::field::Field;

const UNIT: u8 = 11;
const ATTACH: u8 = 12;
const ATTACHED: u8 = 13;

const ATTACH_BODY: usize = 28;
const ATTACHED_BODY: usize = 12;

/// Bytes of an [`Attach`].
pub const ATTACH_BYTES: usize = ATTACH_BODY + CRC_BYTES;
/// Bytes of an [`Attached`].
pub const ATTACHED_BYTES: usize = ATTACHED_BODY + CRC_BYTES;

type UnitBytes = Field<4, 4>;
type UnitSpan = Field<8, 4>;
type Version = Field<2, 1>;
type Reserved = Field<3, 1>;
type To = Field<4, 8>;
type From = Field<12, 8>;
type Key = Field<20, 8>;

/// What precedes the messages of a unit: the header of a packet, with two other fields in place of the
/// connection, which is the stream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// As a packet's; `to` is 0.
    pub header: Header,
    /// Bytes of the messages after it, with their headers (§4.2).
    pub bytes: u32,
    /// Sequence numbers that it takes.
    pub span: u32,
}

impl Unit {
    /// Reads what precedes a unit.
    ///
    /// # Errors
    /// It is no such header, or takes no number.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Malformed> {
        let [kind, flags, ..] = *bytes;
        if kind != UNIT {
            return Err(Malformed::Kind { kind });
        }
        if flags & !Flags::ANSWER.with(Flags::ECHO).bits() != 0 {
            return Err(Malformed::Flags { kind, flags });
        }
        let unit = Self {
            header: Header { to: 0, ..Header::of_packet(bytes) },
            bytes: UnitBytes::number(bytes),
            span: UnitSpan::number(bytes),
        };
        if unit.span == 0 { Err(Malformed::Reserved { kind }) } else { Ok(unit) }
    }

    /// Writes what precedes a unit.
    pub fn emit(&self, bytes: &mut [u8; HEADER_BYTES]) {
        self.header.emit(bytes);
        bytes[0] = UNIT;
        UnitBytes::put_number(bytes, self.bytes);
        UnitSpan::put_number(bytes, self.span);
    }
}

/// The sequence numbers that received bytes take, if they are a unit.
#[inline]
pub(in crate::message) fn span_of_unit(received: &[u8]) -> Option<u64> {
    let header = received.first_chunk::<HEADER_BYTES>()?;
    (header[0] == UNIT).then(|| UnitSpan::number(header).into())
}

/// The first message on a stream, from the end that opened it: which connection it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attach {
    /// The id of the end that listens.
    pub to: u64,
    /// The id of the end that opened the stream.
    pub from: u64,
    /// The key that the other end gave for this connection.
    pub key: NonZeroU64,
}

impl Attach {
    /// Parses it.
    ///
    /// # Errors
    /// It has another form, or was changed on its way.
    pub fn parse(bytes: &[u8; ATTACH_BYTES]) -> Result<Self, Malformed> {
        let body = of_kind::<ATTACH_BODY>(bytes, ATTACH)?;
        let key = NonZeroU64::new(Key::number(body)).ok_or(Malformed::Reserved { kind: ATTACH })?;
        Ok(Self { to: To::number(body), from: From::number(body), key })
    }

    /// Writes it in place of what `words` holds.
    pub fn emit(&self, words: &mut Vec<u8>) {
        let mut body = begin::<ATTACH_BODY>(ATTACH);
        Version::put(&mut body, [VERSION]);
        To::put_number(&mut body, self.to);
        From::put_number(&mut body, self.from);
        Key::put_number(&mut body, self.key.get());
        finish(&body, 0, words);
    }
}

/// The answer to it, the first message in the other direction: units may follow in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attached {
    /// The id of the end that opened the stream.
    pub to: u64,
}

impl Attached {
    /// Parses it.
    ///
    /// # Errors
    /// As [`Attach::parse`].
    pub fn parse(bytes: &[u8; ATTACHED_BYTES]) -> Result<Self, Malformed> {
        Ok(Self { to: To::number(of_kind::<ATTACHED_BODY>(bytes, ATTACHED)?) })
    }

    /// Writes it in place of what `words` holds.
    pub fn emit(&self, words: &mut Vec<u8>) {
        let mut body = begin::<ATTACHED_BODY>(ATTACHED);
        Version::put(&mut body, [VERSION]);
        To::put_number(&mut body, self.to);
        finish(&body, 0, words);
    }
}

/// The fields after checking kind, flags, version and checksum.
fn of_kind<const BODY: usize>(bytes: &[u8], expected: u8) -> Result<&[u8; BODY], Malformed> {
    let body = exactly::<BODY>(without_crc(bytes)?)?;
    let (kind, flags) = (body[0], body[1]);
    if kind != expected {
        return Err(Malformed::Kind { kind });
    }
    if flags != Flags::CRC.bits() {
        return Err(Malformed::Flags { kind, flags });
    }
    match (Version::get(body), Reserved::get(body)) {
        ([VERSION], [0]) => Ok(body),
        ([VERSION], _) => Err(Malformed::Reserved { kind }),
        ([version], _) => Err(Malformed::Version { kind, version }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::HeaderKind;
    use super::*;

    #[test]
    fn a_unit_is_where_the_document_says() {
        let header = Header {
            kind: HeaderKind::Data,
            flags: Flags::ANSWER,
            marked: 0x0203,
            to: 0,
            sequence: 0x0c0d_0e0f,
            expected: 0x1011_1213,
            credit: 0x1415_1617,
            sent: 0x1819_1a1b,
            echo: 0x1c1d_1e1f,
        };
        let unit = Unit { header, bytes: 0x0405_0607, span: 0x0809_0a0b };
        let mut bytes = [0; HEADER_BYTES];
        unit.emit(&mut bytes);
        let mut expected: [u8; HEADER_BYTES] = std::array::from_fn(|index| index as u8);
        expected[..2].copy_from_slice(&[11, 1]);
        assert_eq!(bytes, expected);
        assert_eq!(Unit::parse(&bytes), Ok(unit));
        let spans = [&bytes[..], &[1; HEADER_BYTES], &[11]].map(span_of_unit);
        assert_eq!(spans, [Some(0x0809_0a0b), None, None]);
    }

    #[test]
    fn first_words_come_back_and_changed_ones_do_not() {
        let attach = Attach { to: 1, from: u64::MAX, key: NonZeroU64::MIN };
        let attached = Attached { to: u64::MAX };
        let mut words = Vec::new();
        attach.emit(&mut words);
        let mut first: [u8; ATTACH_BYTES] = words[..].try_into().unwrap();
        attached.emit(&mut words);
        let mut second: [u8; ATTACHED_BYTES] = words[..].try_into().unwrap();
        assert_eq!((Attach::parse(&first), Attached::parse(&second)), (Ok(attach), Ok(attached)));
        for at in 0..ATTACH_BYTES {
            first[at] ^= 1;
            assert!(Attach::parse(&first).is_err(), "byte {at}");
            first[at] ^= 1;
        }
        for at in 0..ATTACHED_BYTES {
            second[at] ^= 1;
            assert!(Attached::parse(&second).is_err(), "byte {at}");
            second[at] ^= 1;
        }
    }

    proptest! {
        #[test]
        fn any_bytes_of_a_unit_are_refused_or_come_back(mut bytes: [u8; HEADER_BYTES], kind in 9u8..14, flags in 0u8..32) {
            bytes[..2].copy_from_slice(&[kind, flags]);
            if let Ok(unit) = Unit::parse(&bytes) {
                let mut written = [0; HEADER_BYTES];
                unit.emit(&mut written);
                prop_assert_eq!(written, bytes);
            }
        }
    }
}
