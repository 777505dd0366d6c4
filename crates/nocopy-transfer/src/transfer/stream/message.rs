//! The meaning of the numbers and counts of the [header and record](super::super::wire) on connections; the
//! messages have no data.
//!
//! | | number | offset | counts |
//! |---|---|---|---|
//! | head | of the stream, from 0 | offset of its bytes in all data | number of streams, bytes of the stream |
//! | probe | 0 | bytes of all data | number of streams, bytes sent, their CRC32C |
//! | report | 0, or why the run is refused | 0 | 0, bytes received, their CRC32C |
//!
//! The bytes of all data and of a stream are 0 if unknown; a flag says whether they are known.

use serde::{Serialize, Serializer};

use super::super::wire::{CHECKSUM_COUNT, CONTROL_BYTES, COUNTS, ControlPacket, Packet, PacketKind};

pub(super) const STREAMS_MAX: u32 = 64;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ByteCount {
    pub bytes: u64,
    /// For all bytes, in the order of the streams; `None` without checksums.
    #[serde(serialize_with = "serialize_hex", skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<u32>,
}

#[allow(clippy::ref_option, reason = "as serde calls it")]
fn serialize_hex<S: Serializer>(value: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(&format_args!("{value:08x}")),
        None => serializer.serialize_none(),
    }
}

impl ByteCount {
    /// Appends the count of following bytes.
    #[must_use]
    pub(crate) fn append(self, behind: Self) -> Self {
        let crc32c = self.crc32c.zip(behind.crc32c);
        Self {
            bytes: self.bytes.saturating_add(behind.bytes),
            crc32c: crc32c.map(|(first, second)| {
                crc32c::crc32c_combine(first, second, behind.bytes as usize) // 64-bit only, as the whole
            }),
        }
    }

    /// A count of no bytes, with a checksum or without.
    pub(crate) fn empty(has_checksum: bool) -> Self {
        Self { bytes: 0, crc32c: has_checksum.then_some(0) }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.crc32c = self.crc32c.map(|crc32c| crc32c::crc32c_append(crc32c, bytes));
    }
}

/// The beginning of a connection for data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamHead {
    pub run: u64,
    /// Below `streams`.
    pub number: u32,
    pub streams: u32,
    pub offset: u64,
    pub length: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probe {
    pub run: u64,
    /// The number of connections for data: from 1 to [`STREAMS_MAX`].
    pub streams: u32,
    /// The number of bytes in total, if it is known from the beginning.
    pub total: Option<u64>,
    pub sent: ByteCount,
    pub last: bool,
    pub acknowledgement: bool,
    pub verify: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has a run already.
    Busy,
    /// There are several connections, and the offsets of their bytes are not known.
    NoRanges,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Report {
    pub run: u64,
    pub refusal: Option<Refusal>,
    pub received: ByteCount,
    pub last: bool,
    pub verify: bool,
}

pub(crate) fn refusal_message(probe: &Probe, why: Refusal) -> [u8; CONTROL_BYTES] {
    let received = ByteCount::default();
    Report { run: probe.run, refusal: Some(why), received, last: true, verify: false }.emit()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlMessage {
    Head(StreamHead),
    Probe(Probe),
    Report(Report),
}

/// Bytes are no message: of another program or version, or damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MalformedMessage;

impl ControlMessage {
    pub(crate) fn parse(bytes: &[u8; CONTROL_BYTES]) -> Result<Self, MalformedMessage> {
        match Packet::parse(bytes) {
            Ok(Packet::Control(control)) => Self::from_control(&control).ok_or(MalformedMessage),
            _ => Err(MalformedMessage),
        }
    }

    fn from_control(control: &ControlPacket) -> Option<Self> {
        match control.kind {
            PacketKind::Head => StreamHead::from_control(control).map(Self::Head),
            PacketKind::Probe => Probe::from_control(control).map(Self::Probe),
            PacketKind::Report => Report::from_control(control).map(Self::Report),
            PacketKind::Data => None,
        }
    }
}

/// A number of bytes that is 0 if unknown.
fn parse_optional_bytes(bytes: u64, is_known: bool) -> Option<Option<u64>> {
    (is_known || bytes == 0).then_some(is_known.then_some(bytes))
}

/// The number of streams, if it is allowed.
fn parse_stream_count(count: u64) -> Option<u32> {
    u32::try_from(count).ok().filter(|count| (1..=STREAMS_MAX).contains(count))
}

impl ByteCount {
    /// With a checksum only if the flag is set.
    fn from_control(control: &ControlPacket) -> Option<Self> {
        let checksum = u32::try_from(control.counts[CHECKSUM_COUNT]).ok()?;
        let is_sound = (control.verify || checksum == 0) && control.has_zero_counts_from(CHECKSUM_COUNT + 1);
        is_sound.then_some(Self { bytes: control.counts[1], crc32c: control.verify.then_some(checksum) })
    }

    fn to_counts(self, streams: u32) -> [u64; COUNTS] {
        [streams.into(), self.bytes, self.crc32c.unwrap_or(0).into(), 0, 0, 0, 0, 0]
    }
}

impl StreamHead {
    fn from_control(control: &ControlPacket) -> Option<Self> {
        let ControlPacket { run, number, offset, has_length, counts, .. } = *control;
        let (streams, length) =
            (parse_stream_count(counts[0])?, parse_optional_bytes(counts[1], has_length)?);
        let is_sound = number < streams.into() && control.has_zero_counts_from(2);
        is_sound.then_some(Self { run, number: number as u32, streams, offset, length })
    }

    pub(crate) fn emit(&self) -> [u8; CONTROL_BYTES] {
        let Self { run, number, streams, offset, length } = *self;
        let counts = ByteCount { bytes: length.unwrap_or(0), crc32c: None }.to_counts(streams);
        let (number, has_length) = (number.into(), length.is_some());
        ControlPacket { number, offset, has_length, counts, ..ControlPacket::new(PacketKind::Head, run) }
            .emit()
    }
}

impl Probe {
    fn from_control(control: &ControlPacket) -> Option<Self> {
        let ControlPacket { run, number, offset, last, acknowledgement, verify, has_length, counts, .. } =
            *control;
        let (streams, total) = (parse_stream_count(counts[0])?, parse_optional_bytes(offset, has_length)?);
        let sent = ByteCount::from_control(control)?;
        (number == 0).then_some(Self { run, streams, total, sent, last, acknowledgement, verify })
    }

    pub(crate) fn emit(&self) -> [u8; CONTROL_BYTES] {
        let Self { run, streams, total, sent, last, acknowledgement, verify } = *self;
        let (offset, has_length) = (total.unwrap_or(0), total.is_some());
        let counts = sent.to_counts(streams);
        let probe = ControlPacket::new(PacketKind::Probe, run);
        ControlPacket { offset, has_length, last, acknowledgement, verify, counts, ..probe }.emit()
    }
}

impl Report {
    fn from_control(control: &ControlPacket) -> Option<Self> {
        let ControlPacket { run, number, offset, last, verify, counts, .. } = *control;
        let refusal = match number {
            0 => None,
            1 => Some(Refusal::Busy),
            2 => Some(Refusal::NoRanges),
            _ => return None,
        };
        let received = ByteCount::from_control(control)?;
        (offset == 0 && counts[0] == 0).then_some(Self { run, refusal, received, last, verify })
    }

    pub(crate) fn emit(&self) -> [u8; CONTROL_BYTES] {
        let Self { run, refusal, received, last, verify } = *self;
        let number = match refusal {
            None => 0,
            Some(Refusal::Busy) => 1,
            Some(Refusal::NoRanges) => 2,
        };
        let counts = received.to_counts(0);
        ControlPacket { number, last, verify, counts, ..ControlPacket::new(PacketKind::Report, run) }.emit()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct MessageBuffer {
    message: [u8; CONTROL_BYTES],
    filled: usize,
}

impl MessageBuffer {
    pub(crate) fn new() -> Self {
        Self { message: [0; CONTROL_BYTES], filled: 0 }
    }

    /// Where the next bytes of the message are to be written.
    pub(crate) fn unfilled(&mut self) -> &mut [u8] {
        &mut self.message[self.filled..]
    }

    /// Notes that bytes were written to the [room](Self::unfilled). Returns the message, if it is complete.
    pub(crate) fn advance_filled(
        &mut self,
        bytes: usize,
    ) -> Option<Result<ControlMessage, MalformedMessage>> {
        self.filled = (self.filled + bytes).min(CONTROL_BYTES);
        (self.filled == CONTROL_BYTES).then(|| {
            self.filled = 0;
            ControlMessage::parse(&self.message)
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::super::super::wire::{NUMBER_MAX, tests::with_new_checksum};
    use super::*;

    /// Parses bytes, which must have the length of a message.
    pub(in crate::transfer::stream) fn parse_message(
        bytes: &[u8],
    ) -> Result<ControlMessage, MalformedMessage> {
        ControlMessage::parse(bytes.try_into().unwrap())
    }

    #[test]
    fn impossible_messages_are_malformed() {
        let head = StreamHead { run: 1, number: 0, streams: 1, offset: 0, length: None };
        for wrong in [
            StreamHead { number: 1, ..head },
            StreamHead { streams: 0, ..head },
            StreamHead { streams: STREAMS_MAX + 1, ..head },
            StreamHead { offset: NUMBER_MAX, ..head },
            StreamHead { length: Some(NUMBER_MAX), ..head },
        ] {
            assert_eq!(parse_message(&wrong.emit()), Err(MalformedMessage), "{wrong:?}");
        }
        let one_stream = [1, 0, 0, 0, 0, 0, 0, 0];
        let head = ControlPacket { counts: one_stream, ..ControlPacket::new(PacketKind::Head, 1) };
        let probe = ControlPacket { counts: one_stream, ..ControlPacket::new(PacketKind::Probe, 1) };
        let report = ControlPacket::new(PacketKind::Report, 1);
        for wrong in [
            ControlPacket { counts: [1, 7, 0, 0, 0, 0, 0, 0], ..head },
            ControlPacket { counts: [1, 0, 1, 0, 0, 0, 0, 0], ..head },
            ControlPacket { counts: [1 << 32 | 1, 0, 0, 0, 0, 0, 0, 0], ..head },
            ControlPacket { number: 1, ..probe },
            ControlPacket { offset: 7, ..probe },
            ControlPacket { counts: [0; COUNTS], ..probe },
            ControlPacket { counts: [1, 0, 5, 0, 0, 0, 0, 0], ..probe },
            ControlPacket { counts: [1, 0, 1 << 32, 0, 0, 0, 0, 0], verify: true, ..probe },
            ControlPacket { counts: [1, 0, 0, 0, 0, 0, 0, 1], ..probe },
            ControlPacket { number: 3, ..report },
            ControlPacket { offset: 1, ..report },
            ControlPacket { counts: one_stream, ..report },
            ControlPacket { counts: [0, 0, 0, 1, 0, 0, 0, 0], ..report },
        ] {
            assert_eq!(parse_message(&wrong.emit()), Err(MalformedMessage), "{wrong:?}");
        }
        for sound in [head, probe, report] {
            assert!(parse_message(&sound.emit()).is_ok(), "{sound:?}");
        }
    }

    #[test]
    fn checksums_of_parts_combine_to_that_of_the_whole() {
        let bytes = b"123456789";
        for split in 0..=bytes.len() {
            let [first, second] = [&bytes[..split], &bytes[split..]].map(|part| {
                let mut count = ByteCount::empty(true);
                count.add(part);
                count
            });
            let whole = first.append(second);
            assert_eq!(
                (whole.bytes, whole.crc32c),
                (9, Some(0xe306_9283)),
                "RFC 3720's polynomial, at {split}"
            );
            assert_eq!(first.append(ByteCount::empty(false)).crc32c, None);
        }
        let json = serde_json::to_string(&ByteCount { bytes: 1, crc32c: Some(10) }).unwrap();
        assert_eq!(json, r#"{"bytes":1,"crc32c":"0000000a"}"#);
    }

    proptest! {
        /// Without a panic, in any pieces, also with a valid beginning and checksum.
        #[test]
        fn any_bytes_are_parsed_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), CONTROL_BYTES), ours: bool, pieces in 1..110_usize,
        ) {
            let mut message = bytes;
            if ours {
                message[..5].copy_from_slice(b"nocp\x02");
                message[5] %= 4;
                (message[6], message[7]) = (0, (message[7] % 32) | 1);
                message[36..40].copy_from_slice(&[0, 0, 0, 64]);
                message = with_new_checksum(&message);
            }
            let mut buffer = MessageBuffer::new();
            let mut read_once = None;
            for piece in message.chunks(pieces) {
                buffer.unfilled()[..piece.len()].copy_from_slice(piece);
                prop_assert!(read_once.is_none());
                read_once = buffer.advance_filled(piece.len());
            }
            prop_assert_eq!(read_once, Some(parse_message(&message)));
        }

        #[test]
        fn emitted_messages_are_parsed_back(
            run: u64, number in 0..STREAMS_MAX, offset in 0..NUMBER_MAX, total in proptest::option::of(0..NUMBER_MAX),
            bytes in 0..NUMBER_MAX, crc in proptest::option::of(any::<u32>()), last: bool, acknowledgement: bool,
        ) {
            let head = StreamHead { run, number, streams: STREAMS_MAX, offset, length: total };
            prop_assert_eq!(parse_message(&head.emit()), Ok(ControlMessage::Head(head)));
            let (count, verify) = (ByteCount { bytes, crc32c: crc }, crc.is_some());
            let probe = Probe { run, streams: number + 1, total, sent: count, last, acknowledgement, verify };
            prop_assert_eq!(parse_message(&probe.emit()), Ok(ControlMessage::Probe(probe)));
            for refusal in [None, Some(Refusal::Busy), Some(Refusal::NoRanges)] {
                let report = Report { run, refusal, received: count, last, verify };
                prop_assert_eq!(parse_message(&report.emit()), Ok(ControlMessage::Report(report)));
            }
        }
    }
}
