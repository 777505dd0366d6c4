//! The datagrams as bytes: all numbers big-endian.
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | `nocp` |
//! | 4, 5 | version, kind |
//! | 6..8 | flags |
//! | 8..16 | the run: drawn by the sender, the same in all that belongs together |
//! | 16..24 | number of the datagram, from 0; in an answer: how many were to come |
//! | 24..32 | where its bytes are in the stream |
//! | 32..36 | CRC32C of header, with zeros here, and rest; 0 without |
//! | 36..40 | bytes behind the header |

use serde::Serialize;

const MAGIC: [u8; 4] = *b"nocp";
const VERSION: u8 = 1;

pub(crate) const DATA_HEADER_BYTES: usize = 40;
const CHECKSUM_AT: usize = 32;

/// What a question and an answer consist of besides the header. The same, so that an answer is never longer than what asked for it.
const COUNTS: usize = 8;

pub(crate) const CONTROL_BYTES: usize = DATA_HEADER_BYTES + 8 * COUNTS;

/// Numbers and places are below this: no sum of two of them is too large.
const NUMBER_MAX: u64 = 1 << 62;

const KIND_DATA: u8 = 0;
const KIND_ASK: u8 = 1;
const KIND_ANSWER: u8 = 2;

/// The checksum is there.
const CHECKED: u16 = 1;
/// In a question: all data were sent. In an answer: nothing more is counted.
const LAST: u16 = 2;
/// In a question: the last answer has come.
const THANKS: u16 = 4;
/// All data are to have a checksum.
const VERIFY: u16 = 8;

/// What the sender has sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Sent {
    pub datagrams: u64,
    /// Of the stream, without headers.
    pub bytes: u64,
    /// Sum of the checksums of the datagrams, which cover their numbers: so it is one over the whole stream. 0 without checksums.
    pub checksum: u64,
}

/// What the receiver has received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Received {
    /// Each once, and undamaged.
    pub datagrams: u64,
    pub bytes: u64,
    pub checksum: u64,
    /// After later ones.
    pub reordered: u64,
    /// Once more.
    pub duplicate: u64,
    /// With another content than they were sent with: not counted as received. Data, and questions.
    pub corrupt: u64,
    /// So late that it was not known whether they had come before: not counted as received.
    pub stale: u64,
    /// By the receiver's kernel, whose buffer was full (SO_RXQ_OVFL).
    pub kernel_dropped: u64,
}

/// A datagram of data, around its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Data<'a> {
    pub run: u64,
    pub number: u64,
    pub offset: u64,
    /// If it has one; it is right.
    pub checksum: Option<u32>,
    pub bytes: &'a [u8],
}

/// What the sender says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    pub run: u64,
    pub sent: Sent,
    pub last: bool,
    pub thanks: bool,
    pub verify: bool,
}

/// What the receiver says to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub run: u64,
    /// How many datagrams were to come, as far as it knows: up to the last that came, or all that were sent.
    pub expected: u64,
    pub received: Received,
    pub last: bool,
    pub verify: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Datagram<'a> {
    Data(Data<'a>),
    Ask(Ask),
    Answer(Answer),
}

/// Why bytes are none of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Of another program, or version.
    Foreign,
    /// Of the run that it says, but not as it was sent.
    Corrupt { run: u64 },
}

impl<'a> Datagram<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let (header, rest) = bytes.split_first_chunk::<DATA_HEADER_BYTES>().ok_or(Refusal::Foreign)?;
        let [m0, m1, m2, m3, version, kind, flags @ ..] = header;
        if [*m0, *m1, *m2, *m3] != MAGIC || *version != VERSION {
            return Err(Refusal::Foreign);
        }
        let flags = u16::from_be_bytes([flags[0], flags[1]]);
        let [run, number, offset] = [8, 16, 24].map(|at| u64_at(header, at));
        let checksum = u32_at(header, CHECKSUM_AT);
        let is_whole = u32_at(header, 36) as usize == rest.len() && number.max(offset) < NUMBER_MAX;
        let is_checked = flags & CHECKED != 0;
        if !is_whole || is_checked && checksum != sum(header, rest) {
            return Err(Refusal::Corrupt { run });
        }
        if *kind == KIND_DATA {
            let checksum = is_checked.then_some(checksum);
            return Ok(Self::Data(Data { run, number, offset, checksum, bytes: rest }));
        }
        let Some(rest) = rest.first_chunk::<{ 8 * COUNTS }>().filter(|_| is_checked) else {
            return Err(Refusal::Corrupt { run });
        };
        let counts = std::array::from_fn(|index| u64_at(rest, 8 * index));
        let (last, verify) = (flags & LAST != 0, flags & VERIFY != 0);
        match *kind {
            KIND_ASK => {
                Ok(Self::Ask(Ask { run, sent: Sent::of(counts), last, thanks: flags & THANKS != 0, verify }))
            }
            KIND_ANSWER => {
                let received = Received::of(counts);
                Ok(Self::Answer(Answer { run, expected: number, received, last, verify }))
            }
            _ => Err(Refusal::Foreign),
        }
    }
}

impl Sent {
    fn of(counts: [u64; COUNTS]) -> Self {
        let [datagrams, bytes, checksum, ..] = counts;
        Self { datagrams, bytes, checksum }
    }

    fn counts(self) -> [u64; COUNTS] {
        [self.datagrams, self.bytes, self.checksum, 0, 0, 0, 0, 0]
    }
}

impl Received {
    fn of(counts: [u64; COUNTS]) -> Self {
        let [datagrams, bytes, checksum, reordered, duplicate, corrupt, stale, kernel_dropped] = counts;
        Self { datagrams, bytes, checksum, reordered, duplicate, corrupt, stale, kernel_dropped }
    }

    fn counts(self) -> [u64; COUNTS] {
        let Self { datagrams, bytes, checksum, reordered, duplicate, corrupt, stale, kernel_dropped } = self;
        [datagrams, bytes, checksum, reordered, duplicate, corrupt, stale, kernel_dropped]
    }
}

/// Writes the header of data in front of them: `buffer` is the datagram, which has its bytes already. Returns the checksum, if there is
/// to be one.
///
/// # Panics
///
/// If `buffer` has no room for the header.
pub(super) fn emit_data(buffer: &mut [u8], run: u64, number: u64, offset: u64, checked: bool) -> Option<u32> {
    let flags = if checked { CHECKED } else { 0 };
    emit_header(buffer, KIND_DATA, flags, [run, number, offset]);
    checked.then(|| seal(buffer))
}

impl Ask {
    pub(super) fn emit(&self) -> [u8; CONTROL_BYTES] {
        let flags = [(self.last, LAST), (self.thanks, THANKS), (self.verify, VERIFY)];
        emit_control(KIND_ASK, &flags, [self.run, 0], self.sent.counts())
    }
}

impl Answer {
    pub(super) fn emit(&self) -> [u8; CONTROL_BYTES] {
        let flags = [(self.last, LAST), (self.verify, VERIFY)];
        let numbers = [self.run, self.expected.min(NUMBER_MAX - 1)];
        emit_control(KIND_ANSWER, &flags, numbers, self.received.counts())
    }
}

fn emit_control(
    kind: u8,
    flags: &[(bool, u16)],
    [run, number]: [u64; 2],
    counts: [u64; COUNTS],
) -> [u8; CONTROL_BYTES] {
    let mut datagram = [0; CONTROL_BYTES];
    for (place, count) in datagram[DATA_HEADER_BYTES..].chunks_exact_mut(8).zip(counts) {
        place.copy_from_slice(&count.to_be_bytes());
    }
    let flags = flags.iter().filter(|(set, _)| *set).fold(CHECKED, |flags, (_, bit)| flags | bit);
    emit_header(&mut datagram, kind, flags, [run, number, 0]);
    seal(&mut datagram);
    datagram
}

fn emit_header(buffer: &mut [u8], kind: u8, flags: u16, numbers: [u64; 3]) {
    let bytes = (buffer.len() - DATA_HEADER_BYTES) as u32; // a datagram's length has 16 bits
    buffer[..4].copy_from_slice(&MAGIC);
    [buffer[4], buffer[5]] = [VERSION, kind];
    buffer[6..8].copy_from_slice(&flags.to_be_bytes());
    for (place, number) in buffer[8..CHECKSUM_AT].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    buffer[CHECKSUM_AT..36].fill(0);
    buffer[36..DATA_HEADER_BYTES].copy_from_slice(&bytes.to_be_bytes());
}

fn seal(datagram: &mut [u8]) -> u32 {
    let checksum = crc32c::crc32c(datagram);
    datagram[CHECKSUM_AT..36].copy_from_slice(&checksum.to_be_bytes());
    checksum
}

/// What [`seal`] computed over these.
fn sum(header: &[u8; DATA_HEADER_BYTES], rest: &[u8]) -> u32 {
    let mut header = *header;
    header[CHECKSUM_AT..36].fill(0);
    crc32c::crc32c_append(crc32c::crc32c(&header), rest)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn data(run: u64, number: u64, offset: u64, bytes: &[u8], checked: bool) -> Vec<u8> {
        let mut datagram = [&[0xee; DATA_HEADER_BYTES], bytes].concat();
        emit_data(&mut datagram, run, number, offset, checked);
        datagram
    }

    /// Proves that the bytes are those of the documentation, and the checksum that of RFC 3720.
    #[test]
    fn a_datagram_is_the_bytes_it_is_documented_to_be() {
        let datagram = data(0x0102_0304_0506_0708, 9, 10, b"abc", false);
        let header = [
            &b"nocp\x01\x00\x00\x00"[..],
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[0, 0, 0, 0, 0, 0, 0, 9],
            &[0, 0, 0, 0, 0, 0, 0, 10],
            &[0, 0, 0, 0],
            &[0, 0, 0, 3],
        ];
        assert_eq!(datagram, [&header.concat(), &b"abc"[..]].concat());
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa, "RFC 3720, B.4");
    }

    #[test]
    fn other_versions_kinds_and_programs_are_foreign() {
        let sound = data(1, 2, 3, b"abc", false);
        for (place, value) in [(0, b'x'), (4, 2)] {
            let mut other = sound.clone();
            other[place] = value;
            assert_eq!(Datagram::parse(&other), Err(Refusal::Foreign));
        }
        for bytes in [&b""[..], b"nocp", &sound[..DATA_HEADER_BYTES - 1]] {
            assert_eq!(Datagram::parse(bytes), Err(Refusal::Foreign));
        }
        for bytes in [&sound[..42], &[&sound[..], b"d"].concat()] {
            assert_eq!(Datagram::parse(bytes), Err(Refusal::Corrupt { run: 1 }), "as long as it says");
        }
        let far = data(1, NUMBER_MAX, 0, b"", true);
        assert_eq!(Datagram::parse(&far), Err(Refusal::Corrupt { run: 1 }));
    }

    proptest! {
        /// Proves that any bytes are read without a panic, also with a right beginning.
        #[test]
        fn any_bytes_are_taken(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), ours: bool) {
            if ours && bytes.len() > 5 {
                bytes[..5].copy_from_slice(b"nocp\x01");
                bytes[5] %= 4;
            }
            let _ = Datagram::parse(&bytes);
        }

        #[test]
        fn what_is_written_is_read(
            run: u64, number in 0..NUMBER_MAX, offset in 0..NUMBER_MAX, counts: [u64; COUNTS],
            bytes in proptest::collection::vec(any::<u8>(), 0..100), checked: bool, last: bool, thanks: bool,
        ) {
            let datagram = data(run, number, offset, &bytes, checked);
            match Datagram::parse(&datagram) {
                Ok(Datagram::Data(read)) => {
                    prop_assert_eq!((read.run, read.number, read.offset, read.bytes), (run, number, offset, &bytes[..]));
                    prop_assert_eq!(read.checksum.is_some(), checked);
                }
                other => prop_assert!(false, "{:?}", other),
            }
            let ask = Ask { run, sent: Sent::of(counts), last, thanks, verify: checked };
            let bytes = ask.emit();
            prop_assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Ask(ask)));
            let answer = Answer { run, expected: number, received: Received::of(counts), last, verify: checked };
            let bytes = answer.emit();
            prop_assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Answer(answer)));
        }

        /// Proves that with a checksum no changed bit goes unnoticed, wherever it is.
        #[test]
        fn a_changed_bit_is_noticed(
            bytes in proptest::collection::vec(any::<u8>(), 0..60), place: prop::sample::Index, bit in 0..8_u8,
        ) {
            let mut datagram = data(7, 8, 9, &bytes, true);
            let sound = Datagram::parse(&datagram).is_ok();
            let index = place.index(datagram.len());
            datagram[index] ^= 1 << bit;
            match Datagram::parse(&datagram) {
                // Without its flag it has no checksum, as those know who have asked for one.
                Ok(Datagram::Data(Data { checksum: None, .. })) => prop_assert_eq!((index, bit), (7, 0)),
                other => prop_assert!(sound && other.is_err()),
            }
        }
    }
}
