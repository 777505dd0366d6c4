//! The messages between the two ends of a transfer: data, probes, reports, and the heads of streams. All
//! numbers are big-endian.
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | `nocp` |
//! | 4, 5 | version, kind |
//! | 6..8 | flags |
//! | 8..16 | the run: a random number of the sender, the same in all its messages |
//! | 16..24 | number |
//! | 24..32 | offset |
//! | 32..36 | CRC32C of header (with zeros here) and rest; 0 without checksum |
//! | 36..40 | bytes after the header |
//!
//! In *data*, the bytes of the stream follow the header; in all other kinds, a record of eight counts.
//! `datagram.rs` (for datagrams) and `stream/message.rs` (for streams) define the meaning of number, offset
//! and counts, and which must be 0.

const MAGIC: [u8; 4] = *b"nocp";
const VERSION: u8 = 2;

pub(crate) const HEADER_BYTES: usize = 40;
const CHECKSUM_AT: usize = 32;
const LENGTH_AT: usize = 36;

pub(super) const COUNTS: usize = 8;

/// A header and a record. All messages without data have this length, so that a report is never longer than
/// its probe.
pub(crate) const CONTROL_BYTES: usize = HEADER_BYTES + 8 * COUNTS;

/// The index of a checksum in a record, which may be any number.
pub(super) const CHECKSUM_COUNT: usize = 2;

/// All other numbers are below this, so that the sum of two does not overflow.
pub(super) const NUMBER_MAX: u64 = 1 << 62;

/// The header has a checksum.
const CHECKED: u16 = 1;
/// In a probe: all data was sent. In a report: the counts are final.
const LAST: u16 = 2;
/// In a probe: the last report has arrived.
const ACKNOWLEDGEMENT: u16 = 4;
/// All data are to have a checksum.
const VERIFY: u16 = 8;
/// In a probe and a header: the length of all data, or of the stream, is known.
const LENGTH: u16 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketKind {
    Data = 0,
    Probe = 1,
    Report = 2,
    /// The beginning of a connection for data.
    Head = 3,
}

impl PacketKind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Data, Self::Probe, Self::Report, Self::Head].into_iter().find(|kind| *kind as u8 == byte)
    }

    /// The flags that a datagram of this kind may have.
    fn allowed_flags(self) -> u16 {
        match self {
            Self::Data => CHECKED,
            Self::Probe => CHECKED | LAST | ACKNOWLEDGEMENT | VERIFY | LENGTH,
            Self::Report => CHECKED | LAST | VERIFY,
            Self::Head => CHECKED | LENGTH,
        }
    }
}

/// A *data* datagram, with its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DataPacket<'a> {
    pub run: u64,
    pub number: u64,
    pub offset: u64,
    /// The checksum, if any, was verified.
    pub checksum: Option<u32>,
    pub bytes: &'a [u8],
}

/// A header with a record: a probe, a report, or the head of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ControlPacket {
    pub kind: PacketKind,
    pub run: u64,
    pub number: u64,
    pub offset: u64,
    pub last: bool,
    pub acknowledgement: bool,
    pub verify: bool,
    pub has_length: bool,
    pub counts: [u64; COUNTS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    Data(DataPacket<'a>),
    Control(ControlPacket),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParseError {
    Foreign,
    Corrupt { run: u64 },
}

impl<'a> Packet<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(ParseError::Foreign)?;
        if header[..4] != MAGIC || header[4] != VERSION {
            return Err(ParseError::Foreign);
        }
        Self::from_header(header, rest).ok_or(ParseError::Corrupt { run: u64_at(header, 8) })
    }

    fn from_header(header: &[u8; HEADER_BYTES], rest: &'a [u8]) -> Option<Self> {
        let kind = PacketKind::from_byte(header[5])?;
        let flags = u16::from_be_bytes([header[6], header[7]]);
        let [run, number, offset] = [8, 16, 24].map(|at| u64_at(header, at));
        let checksum = u32_at(header, CHECKSUM_AT);
        let expected = if flags & CHECKED != 0 { checksum_of_packet(header, rest) } else { 0 };
        let is_sound = flags & !kind.allowed_flags() == 0
            && number.max(offset) < NUMBER_MAX
            && u32_at(header, LENGTH_AT) as usize == rest.len()
            && checksum == expected;
        if !is_sound {
            return None;
        }
        if kind == PacketKind::Data {
            let checksum = (flags & CHECKED != 0).then_some(checksum);
            return Some(Self::Data(DataPacket { run, number, offset, checksum, bytes: rest }));
        }
        let record: &[u8; 8 * COUNTS] = rest.try_into().ok().filter(|_| flags & CHECKED != 0)?;
        let counts = std::array::from_fn(|index| u64_at(record, 8 * index));
        let [last, acknowledgement, verify, has_length] =
            [LAST, ACKNOWLEDGEMENT, VERIFY, LENGTH].map(|flag| flags & flag != 0);
        let control =
            ControlPacket { kind, run, number, offset, last, acknowledgement, verify, has_length, counts };
        control.has_bounded_counts().then_some(Self::Control(control))
    }
}

impl ControlPacket {
    /// A message without flags and counts.
    pub(super) fn new(kind: PacketKind, run: u64) -> Self {
        let [last, acknowledgement, verify, has_length] = [false; 4];
        Self {
            kind,
            run,
            number: 0,
            offset: 0,
            last,
            acknowledgement,
            verify,
            has_length,
            counts: [0; COUNTS],
        }
    }

    fn has_bounded_counts(&self) -> bool {
        self.counts.iter().enumerate().all(|(index, count)| index == CHECKSUM_COUNT || *count < NUMBER_MAX)
    }

    pub(super) fn has_zero_counts_from(&self, index: usize) -> bool {
        self.counts[index..].iter().all(|count| *count == 0)
    }

    pub(super) fn emit(&self) -> [u8; CONTROL_BYTES] {
        let mut bytes = [0; CONTROL_BYTES];
        for (place, count) in bytes[HEADER_BYTES..].chunks_exact_mut(8).zip(self.counts) {
            place.copy_from_slice(&count.to_be_bytes());
        }
        let flags = [
            (self.last, LAST),
            (self.acknowledgement, ACKNOWLEDGEMENT),
            (self.verify, VERIFY),
            (self.has_length, LENGTH),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).fold(CHECKED, |flags, (_, bit)| flags | bit);
        emit_header(&mut bytes, self.kind, flags, [self.run, self.number, self.offset]);
        write_checksum(&mut bytes);
        bytes
    }
}

/// Writes the header of data in front of them: `buffer` is the datagram with its bytes. Returns the checksum,
/// if one is requested. Panics if `buffer` has no room for the header.
pub(super) fn emit_data(buffer: &mut [u8], run: u64, number: u64, offset: u64, checked: bool) -> Option<u32> {
    let flags = if checked { CHECKED } else { 0 };
    emit_header(buffer, PacketKind::Data, flags, [run, number, offset]);
    checked.then(|| write_checksum(buffer))
}

fn emit_header(buffer: &mut [u8], kind: PacketKind, flags: u16, numbers: [u64; 3]) {
    let bytes = (buffer.len() - HEADER_BYTES) as u32; // a datagram's length has 16 bits
    buffer[..4].copy_from_slice(&MAGIC);
    [buffer[4], buffer[5]] = [VERSION, kind as u8];
    buffer[6..8].copy_from_slice(&flags.to_be_bytes());
    for (place, number) in buffer[8..CHECKSUM_AT].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    buffer[CHECKSUM_AT..LENGTH_AT].fill(0);
    buffer[LENGTH_AT..HEADER_BYTES].copy_from_slice(&bytes.to_be_bytes());
}

fn write_checksum(bytes: &mut [u8]) -> u32 {
    let checksum = crc32c::crc32c(bytes);
    bytes[CHECKSUM_AT..LENGTH_AT].copy_from_slice(&checksum.to_be_bytes());
    checksum
}

fn checksum_of_packet(header: &[u8; HEADER_BYTES], rest: &[u8]) -> u32 {
    let mut header = *header;
    header[CHECKSUM_AT..LENGTH_AT].fill(0);
    crc32c::crc32c_append(crc32c::crc32c(&header), rest)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn data_packet(run: u64, number: u64, offset: u64, bytes: &[u8], checked: bool) -> Vec<u8> {
        let mut datagram = [&[0xee; HEADER_BYTES], bytes].concat();
        emit_data(&mut datagram, run, number, offset, checked);
        datagram
    }

    pub(in crate::transfer) fn with_new_checksum(bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes[CHECKSUM_AT..LENGTH_AT].fill(0);
        write_checksum(&mut bytes);
        bytes
    }

    fn any_control() -> impl Strategy<Value = ControlPacket> {
        let kind = prop_oneof![Just(PacketKind::Probe), Just(PacketKind::Report), Just(PacketKind::Head)];
        let numbers = [0..NUMBER_MAX, 0..NUMBER_MAX];
        let counts = proptest::array::uniform8(0..NUMBER_MAX);
        (kind, any::<u64>(), numbers, any::<[bool; 4]>(), counts).prop_map(
            |(kind, run, numbers, flags, counts)| {
                let ([number, offset], [last, acknowledgement, verify, has_length]) = (numbers, flags);
                let allowed = |flag, set: bool| set && kind.allowed_flags() & flag != 0;
                ControlPacket {
                    number,
                    offset,
                    last: allowed(LAST, last),
                    acknowledgement: allowed(ACKNOWLEDGEMENT, acknowledgement),
                    verify: allowed(VERIFY, verify),
                    has_length: allowed(LENGTH, has_length),
                    counts,
                    ..ControlPacket::new(kind, run)
                }
            },
        )
    }

    #[test]
    fn headers_have_the_documented_bytes() {
        let datagram = data_packet(0x0102_0304_0506_0708, 9, 10, b"abc", false);
        let header = [
            &b"nocp\x02\x00\x00\x00"[..],
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[0, 0, 0, 0, 0, 0, 0, 9],
            &[0, 0, 0, 0, 0, 0, 0, 10],
            &[0, 0, 0, 0],
            &[0, 0, 0, 3],
        ];
        assert_eq!(datagram, [&header.concat(), &b"abc"[..]].concat());
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa, "RFC 3720, B.4");
        let head =
            ControlPacket { number: 1, has_length: true, ..ControlPacket::new(PacketKind::Head, 7) }.emit();
        assert_eq!((head[5], &head[6..8], &head[36..40]), (3, &[0, 17][..], &[0, 0, 0, 64][..]));
    }

    #[test]
    fn other_versions_and_programs_are_foreign() {
        let sound = data_packet(1, 2, 3, b"abc", false);
        for (place, value) in [(0, b'x'), (4, 1), (4, 3)] {
            let mut other = sound.clone();
            other[place] = value;
            assert_eq!(Packet::parse(&other), Err(ParseError::Foreign));
        }
        for bytes in [&b""[..], b"nocp", &sound[..HEADER_BYTES - 1]] {
            assert_eq!(Packet::parse(bytes), Err(ParseError::Foreign));
        }
    }

    /// Such messages are refused even if their checksum is right.
    #[test]
    fn impossible_values_are_corrupt() {
        let plain = data_packet(1, 2, 3, b"abc", false);
        let probe = ControlPacket::new(PacketKind::Probe, 1).emit();
        let report = ControlPacket::new(PacketKind::Report, 1).emit();
        let mut unchecked = probe;
        unchecked[7] = 0;
        unchecked[CHECKSUM_AT..LENGTH_AT].fill(0);
        let changed = |bytes: &[u8], place: usize, value: u8| {
            let mut bytes = bytes.to_vec();
            bytes[place] = value;
            if bytes[7] & 1 == 0 { bytes } else { with_new_checksum(&bytes) }
        };
        for (what, bytes) in [
            ("shorter than it says", plain[..42].to_vec()),
            ("longer than it says", [&plain[..], b"d"].concat()),
            ("a checksum that is not announced", changed(&plain, 35, 1)),
            ("a kind that is not known", changed(&plain, 5, 4)),
            ("a flag that is not known", changed(&plain, 7, 32)),
            ("a flag that is not known, of the upper byte", changed(&plain, 6, 1)),
            ("a flag of probes in data", changed(&plain, 7, 2)),
            ("a flag of probes in a report", changed(&report, 7, 1 | 4)),
            ("a probe without a checksum", unchecked.to_vec()),
            ("a number that is too large", changed(&probe, 16, 0x40)),
            ("an offset that is too large", changed(&probe, 24, 0x40)),
            ("a count that is too large", changed(&probe, HEADER_BYTES, 0x40)),
            ("a record that is too long", changed(&[&probe[..], &[0; 8]].concat(), 39, 72)),
            ("a record that is too short", changed(&probe[..CONTROL_BYTES - 8], 39, 56)),
        ] {
            assert_eq!(Packet::parse(&bytes), Err(ParseError::Corrupt { run: 1 }), "{what}");
        }
        assert!(Packet::parse(&probe).is_ok() && Packet::parse(&report).is_ok());
    }

    proptest! {
        /// Without a panic, also with a valid beginning, length and checksum.
        #[test]
        fn any_bytes_are_parsed_without_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200), ours: bool,
        ) {
            if ours && bytes.len() >= HEADER_BYTES {
                bytes[..5].copy_from_slice(b"nocp\x02");
                bytes[5] %= 5;
                bytes[6] = 0;
                bytes[7] = (bytes[7] % 32) | 1;
                let length = (bytes.len() - HEADER_BYTES) as u32;
                bytes[LENGTH_AT..HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
                bytes = with_new_checksum(&bytes);
            }
            if let Ok(Packet::Control(control)) = Packet::parse(&bytes) {
                prop_assert_eq!(&control.emit()[..], &bytes[..], "there is one way to write it");
            }
        }

        #[test]
        fn emitted_packets_are_parsed_back(
            control in any_control(), run: u64, number in 0..NUMBER_MAX, offset in 0..NUMBER_MAX,
            bytes in proptest::collection::vec(any::<u8>(), 0..100), checked: bool,
        ) {
            let packet = control.emit();
            prop_assert_eq!(Packet::parse(&packet), Ok(Packet::Control(control)));
            let datagram = data_packet(run, number, offset, &bytes, checked);
            let Ok(Packet::Data(read)) = Packet::parse(&datagram) else { panic!("not data") };
            prop_assert_eq!((read.run, read.number, read.offset, read.bytes), (run, number, offset, &bytes[..]));
            prop_assert_eq!(read.checksum.is_some(), checked);
        }

        /// With a checksum, at any position.
        #[test]
        fn a_changed_bit_is_detected(
            control in any_control(), bytes in proptest::collection::vec(any::<u8>(), 0..60), is_data: bool,
            position: prop::sample::Index, bit in 0..8_u8,
        ) {
            let mut packet =
                if is_data { data_packet(7, 8, 9, &bytes, true) } else { control.emit().to_vec() };
            prop_assert!(Packet::parse(&packet).is_ok());
            let index = position.index(packet.len());
            packet[index] ^= 1 << bit;
            prop_assert!(Packet::parse(&packet).is_err());
        }
    }
}
