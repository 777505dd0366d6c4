//! The messages as bytes: 64 each, all numbers big-endian.
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | `nocp` |
//! | 4, 5 | version, kind |
//! | 6..8 | flags |
//! | 8..16 | the run: drawn by the sender, the same in all that belongs together |
//! | 16..20 | number of the stream; in an answer: why the run is refused |
//! | 20..24 | streams in all |
//! | 24..32 | where the stream's bytes are in the whole; in a question: bytes of the whole |
//! | 32..40 | bytes of the stream; in a question and an answer: bytes sent, received |
//! | 40..44 | CRC32C of these |
//! | 44..60 | zeros |
//! | 60..64 | CRC32C of the message up to here |

use serde::{Serialize, Serializer};

const MAGIC: [u8; 4] = *b"nocp";
const VERSION: u8 = 1;

/// Of every message.
pub(crate) const MESSAGE_BYTES: usize = 64;
const CHECKSUM_AT: usize = 60;

/// The most connections for data.
pub(super) const STREAMS_MAX: u32 = 64;

/// Numbers of bytes and places are below this: no sum of two of them is too large.
pub(super) const NUMBER_MAX: u64 = 1 << 62;

/// Instead of a number of bytes.
const UNKNOWN: u64 = u64::MAX;

// Those below are kinds of datagrams.
const KIND_ASK: u8 = 16;
const KIND_ANSWER: u8 = 17;
const KIND_HEAD: u8 = 18;

/// In a question: all data were sent. In an answer: nothing more is counted.
const LAST: u16 = 2;
/// In a question: the last answer has come.
const THANKS: u16 = 4;
/// All data are to have a checksum.
const VERIFY: u16 = 8;

/// What one end has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Count {
    pub bytes: u64,
    /// Of all bytes, in the order of the streams; absent without checksums.
    #[serde(serialize_with = "hex", skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<u32>,
}

#[allow(clippy::ref_option, reason = "as serde calls it")]
fn hex<S: Serializer>(value: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(&format_args!("{value:08x}")),
        None => serializer.serialize_none(),
    }
}

impl Count {
    /// With what comes behind it.
    #[must_use]
    pub(crate) fn then(self, behind: Self) -> Self {
        let crc32c = self.crc32c.zip(behind.crc32c);
        Self {
            bytes: self.bytes.saturating_add(behind.bytes),
            crc32c: crc32c.map(|(first, second)| {
                crc32c::crc32c_combine(first, second, behind.bytes as usize) // 64-bit only, as the whole
            }),
        }
    }

    /// Nothing yet; with a checksum or without.
    pub(crate) fn nothing(has_checksum: bool) -> Self {
        Self { bytes: 0, crc32c: has_checksum.then_some(0) }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.crc32c = self.crc32c.map(|crc32c| crc32c::crc32c_append(crc32c, bytes));
    }
}

/// What a connection for data begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub run: u64,
    /// Below `streams`.
    pub number: u32,
    pub streams: u32,
    pub offset: u64,
    pub length: Option<u64>,
}

/// What the sender says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    pub run: u64,
    /// How many connections there are for data: from 1 to [`STREAMS_MAX`].
    pub streams: u32,
    /// How many bytes there are in all, where that is known from the beginning.
    pub total: Option<u64>,
    pub sent: Count,
    pub last: bool,
    pub thanks: bool,
    pub verify: bool,
}

/// Why a receiver does not want a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It has one already.
    Busy,
    /// It is to write what comes on several connections, and nobody knows where each belongs.
    NoPlaces,
}

/// What the receiver says to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    pub run: u64,
    pub refusal: Option<Refusal>,
    pub received: Count,
    pub last: bool,
    pub verify: bool,
}

/// The receiver's word to who asked, and is not wanted.
pub(crate) fn refuse(ask: &Ask, why: Refusal) -> [u8; MESSAGE_BYTES] {
    let received = Count::default();
    Answer { run: ask.run, refusal: Some(why), received, last: true, verify: false }.emit()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    Head(Head),
    Ask(Ask),
    Answer(Answer),
}

/// Bytes are no message: of another program or version, or damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonsense;

impl Message {
    pub(crate) fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Result<Self, Nonsense> {
        let is_ours = bytes[..4] == MAGIC && bytes[4] == VERSION;
        if !is_ours || u32_at(bytes, CHECKSUM_AT) != crc32c::crc32c(&bytes[..CHECKSUM_AT]) {
            return Err(Nonsense);
        }
        let flags = u16::from_be_bytes([bytes[6], bytes[7]]);
        let [last, thanks, verify] = [LAST, THANKS, VERIFY].map(|flag| flags & flag != 0);
        let run = u64_at(bytes, 8);
        let [number, streams] = [16, 20].map(|at| u32_at(bytes, at));
        let count = || {
            let crc32c = verify.then(|| u32_at(bytes, 40));
            Ok(Count { bytes: size(u64_at(bytes, 32))?, crc32c })
        };
        let has_streams = (1..=STREAMS_MAX).contains(&streams);
        match bytes[5] {
            KIND_HEAD if has_streams && number < streams => {
                let (offset, length) = (size(u64_at(bytes, 24))?, known(u64_at(bytes, 32))?);
                Ok(Self::Head(Head { run, number, streams, offset, length }))
            }
            KIND_ASK if has_streams => {
                let total = known(u64_at(bytes, 24))?;
                Ok(Self::Ask(Ask { run, streams, total, sent: count()?, last, thanks, verify }))
            }
            KIND_ANSWER => {
                let refusal = match number {
                    0 => None,
                    1 => Some(Refusal::Busy),
                    2 => Some(Refusal::NoPlaces),
                    _ => return Err(Nonsense),
                };
                Ok(Self::Answer(Answer { run, refusal, received: count()?, last, verify }))
            }
            _ => Err(Nonsense),
        }
    }
}

fn size(number: u64) -> Result<u64, Nonsense> {
    if number < NUMBER_MAX { Ok(number) } else { Err(Nonsense) }
}

fn known(number: u64) -> Result<Option<u64>, Nonsense> {
    if number == UNKNOWN { Ok(None) } else { size(number).map(Some) }
}

impl Head {
    pub(crate) fn emit(&self) -> [u8; MESSAGE_BYTES] {
        let Self { run, number, streams, offset, length } = *self;
        emit(KIND_HEAD, &[], run, [number, streams], [offset, length.unwrap_or(UNKNOWN)], None)
    }
}

impl Ask {
    pub(crate) fn emit(&self) -> [u8; MESSAGE_BYTES] {
        let Self { run, streams, total, sent, last, thanks, verify } = *self;
        let flags = [(last, LAST), (thanks, THANKS), (verify, VERIFY)];
        emit(KIND_ASK, &flags, run, [0, streams], [total.unwrap_or(UNKNOWN), sent.bytes], sent.crc32c)
    }
}

impl Answer {
    pub(crate) fn emit(&self) -> [u8; MESSAGE_BYTES] {
        let Self { run, refusal, received, last, verify } = *self;
        let why = match refusal {
            None => 0,
            Some(Refusal::Busy) => 1,
            Some(Refusal::NoPlaces) => 2,
        };
        let flags = [(last, LAST), (verify, VERIFY)];
        emit(KIND_ANSWER, &flags, run, [why, 0], [0, received.bytes], received.crc32c)
    }
}

fn emit(
    kind: u8,
    flags: &[(bool, u16)],
    run: u64,
    [number, streams]: [u32; 2],
    [first, second]: [u64; 2],
    crc32c: Option<u32>,
) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    let flags = flags.iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit);
    message[..4].copy_from_slice(&MAGIC);
    [message[4], message[5]] = [VERSION, kind];
    message[6..8].copy_from_slice(&flags.to_be_bytes());
    message[8..16].copy_from_slice(&run.to_be_bytes());
    message[16..20].copy_from_slice(&number.to_be_bytes());
    message[20..24].copy_from_slice(&streams.to_be_bytes());
    message[24..32].copy_from_slice(&first.to_be_bytes());
    message[32..40].copy_from_slice(&second.to_be_bytes());
    message[40..44].copy_from_slice(&crc32c.unwrap_or(0).to_be_bytes());
    let checksum = crc32c::crc32c(&message[..CHECKSUM_AT]);
    message[CHECKSUM_AT..].copy_from_slice(&checksum.to_be_bytes());
    message
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// Puts messages together of the pieces in which they come.
#[derive(Debug, Clone)]
pub(crate) struct Inbox {
    message: [u8; MESSAGE_BYTES],
    filled: usize,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { message: [0; MESSAGE_BYTES], filled: 0 }
    }

    /// Where the next bytes of the message belong; so many are to come at most.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.message[self.filled..]
    }

    /// So many bytes were written to the [room](Self::room). Returns the message, if it is whole now.
    pub(crate) fn filled(&mut self, bytes: usize) -> Option<Result<Message, Nonsense>> {
        self.filled = (self.filled + bytes).min(MESSAGE_BYTES);
        (self.filled == MESSAGE_BYTES).then(|| {
            self.filled = 0;
            Message::parse(&self.message)
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What these bytes say, which must be as many as a message has.
    pub(in crate::transfer::stream) fn read(bytes: &[u8]) -> Result<Message, Nonsense> {
        Message::parse(bytes.try_into().unwrap())
    }

    /// Proves that the bytes are those of the documentation.
    #[test]
    fn a_header_is_the_bytes_it_is_documented_to_be() {
        let head = Head { run: 0x0102_0304_0506_0708, number: 3, streams: 4, offset: 9, length: Some(10) };
        let bytes = head.emit();
        let expected = [
            &b"nocp\x01\x12\x00\x00"[..],
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[0, 0, 0, 3, 0, 0, 0, 4],
            &[0, 0, 0, 0, 0, 0, 0, 9],
            &[0, 0, 0, 0, 0, 0, 0, 10],
            &[0; 20],
        ];
        assert_eq!(bytes[..CHECKSUM_AT], expected.concat());
        let unknown = Head { length: None, ..head }.emit();
        assert_eq!(unknown[32..40], [0xff; 8]);
    }

    #[test]
    fn what_cannot_be_is_nonsense() {
        let head = Head { run: 1, number: 0, streams: 1, offset: 0, length: None };
        for wrong in [
            Head { number: 1, ..head },
            Head { streams: 0, ..head },
            Head { streams: STREAMS_MAX + 1, ..head },
            Head { offset: NUMBER_MAX, ..head },
            Head { length: Some(NUMBER_MAX), ..head },
        ] {
            assert_eq!(read(&wrong.emit()), Err(Nonsense), "{wrong:?}");
        }
    }

    #[test]
    fn the_checksum_of_all_is_that_of_its_parts() {
        let bytes = b"123456789";
        for place in 0..=bytes.len() {
            let [first, second] = [&bytes[..place], &bytes[place..]].map(|part| {
                let mut count = Count::nothing(true);
                count.add(part);
                count
            });
            let whole = first.then(second);
            assert_eq!(
                (whole.bytes, whole.crc32c),
                (9, Some(0xe306_9283)),
                "RFC 3720's polynomial, at {place}"
            );
            assert_eq!(first.then(Count::nothing(false)).crc32c, None);
        }
        let json = serde_json::to_string(&Count { bytes: 1, crc32c: Some(10) }).unwrap();
        assert_eq!(json, r#"{"bytes":1,"crc32c":"0000000a"}"#);
    }

    proptest! {
        /// Proves that any bytes are read without a panic, in any pieces, also with a right beginning and checksum.
        #[test]
        fn any_bytes_are_taken(mut bytes: [u8; 32], more: [u8; 32], ours: bool, pieces in 1..70_usize) {
            if ours {
                bytes[..5].copy_from_slice(b"nocp\x01");
                bytes[5] = 16 + bytes[5] % 4;
            }
            let mut message = [bytes, more].concat();
            if ours {
                let checksum = crc32c::crc32c(&message[..CHECKSUM_AT]);
                message[CHECKSUM_AT..].copy_from_slice(&checksum.to_be_bytes());
            }
            let mut inbox = Inbox::new();
            let mut read_once = None;
            for piece in message.chunks(pieces) {
                inbox.room()[..piece.len()].copy_from_slice(piece);
                prop_assert!(read_once.is_none());
                read_once = inbox.filled(piece.len());
            }
            prop_assert_eq!(read_once, Some(read(&message)));
        }

        #[test]
        fn what_is_written_is_read(
            run: u64, number in 0..STREAMS_MAX, offset in 0..NUMBER_MAX, total in proptest::option::of(0..NUMBER_MAX),
            bytes in 0..NUMBER_MAX, crc in proptest::option::of(any::<u32>()), last: bool, thanks: bool,
        ) {
            let head = Head { run, number, streams: STREAMS_MAX, offset, length: total };
            prop_assert_eq!(read(&head.emit()), Ok(Message::Head(head)));
            let (count, verify) = (Count { bytes, crc32c: crc }, crc.is_some());
            let ask = Ask { run, streams: number + 1, total, sent: count, last, thanks, verify };
            prop_assert_eq!(read(&ask.emit()), Ok(Message::Ask(ask)));
            for refusal in [None, Some(Refusal::Busy), Some(Refusal::NoPlaces)] {
                let answer = Answer { run, refusal, received: count, last, verify };
                prop_assert_eq!(read(&answer.emit()), Ok(Message::Answer(answer)));
            }
        }

        /// Proves that no changed bit goes unnoticed, wherever it is.
        #[test]
        fn a_changed_bit_is_noticed(run: u64, place in 0..MESSAGE_BYTES, bit in 0..8_u8) {
            let mut message = Head { run, number: 0, streams: 2, offset: 7, length: None }.emit();
            message[place] ^= 1 << bit;
            prop_assert_eq!(read(&message), Err(Nonsense));
        }
    }
}
