//! The numbers and counts of the [header and record](super::wire) for datagrams.
//!
//! | | number | offset | counts |
//! |---|---|---|---|
//! | data | from 0 | where its bytes are in the stream | |
//! | probe | 0 | 0 | datagrams and bytes sent, sum of their checksums |
//! | report | how many datagrams were to come | 0 | as [`ReceivedCounts`] |

use serde::Serialize;

use super::wire::{
    CONTROL_BYTES, COUNTS, ControlPacket, DataPacket, NUMBER_MAX, Packet, PacketKind, ParseError,
};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SentCounts {
    pub datagrams: u64,
    /// Bytes of the stream, without headers.
    pub bytes: u64,
    /// Sum of the checksums of the datagrams. They include the datagrams' numbers, so the sum covers the
    /// whole stream. 0 without checksums.
    pub checksum: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ReceivedCounts {
    /// Undamaged datagrams, each counted once.
    pub datagrams: u64,
    pub bytes: u64,
    pub checksum: u64,
    /// Datagrams received after later ones.
    pub reordered: u64,
    pub duplicate: u64,
    /// Received with changed content, not counted as received. Includes probes.
    pub corrupt: u64,
    /// Too late to know whether they arrived before; not counted as received.
    pub stale: u64,
    /// Datagrams that the receiver's kernel dropped, because its buffer was full (SO_RXQ_OVFL).
    pub kernel_dropped: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Probe {
    pub run: u64,
    pub sent: SentCounts,
    pub last: bool,
    pub acknowledgement: bool,
    pub verify: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Report {
    pub run: u64,
    /// The number of datagrams expected: up to the last received, or all that were sent, if known.
    pub expected: u64,
    pub received: ReceivedCounts,
    pub last: bool,
    pub verify: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Datagram<'a> {
    Data(DataPacket<'a>),
    Probe(Probe),
    Report(Report),
}

impl<'a> Datagram<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        match Packet::parse(bytes)? {
            Packet::Data(data) => Ok(Self::Data(data)),
            Packet::Control(control) => {
                Self::from_control(&control).ok_or(ParseError::Corrupt { run: control.run })
            }
        }
    }

    fn from_control(control: &ControlPacket) -> Option<Self> {
        let ControlPacket { run, number, last, acknowledgement, verify, counts, .. } = *control;
        if control.offset != 0 || control.has_length {
            return None;
        }
        match control.kind {
            PacketKind::Probe if number == 0 && control.has_zero_counts_from(3) => Some(Self::Probe(Probe {
                run,
                sent: SentCounts::from_counts(counts),
                last,
                acknowledgement,
                verify,
            })),
            PacketKind::Report => {
                let received = ReceivedCounts::from_counts(counts);
                Some(Self::Report(Report { run, expected: number, received, last, verify }))
            }
            _ => None,
        }
    }
}

impl SentCounts {
    fn from_counts(counts: [u64; COUNTS]) -> Self {
        let [datagrams, bytes, checksum, ..] = counts;
        Self { datagrams, bytes, checksum }
    }

    fn to_counts(self) -> [u64; COUNTS] {
        [self.datagrams, self.bytes, self.checksum, 0, 0, 0, 0, 0]
    }
}

impl ReceivedCounts {
    fn from_counts(counts: [u64; COUNTS]) -> Self {
        let [datagrams, bytes, checksum, reordered, duplicate, corrupt, stale, kernel_dropped] = counts;
        Self { datagrams, bytes, checksum, reordered, duplicate, corrupt, stale, kernel_dropped }
    }

    fn to_counts(self) -> [u64; COUNTS] {
        let Self { datagrams, bytes, checksum, reordered, duplicate, corrupt, stale, kernel_dropped } = self;
        [datagrams, bytes, checksum, reordered, duplicate, corrupt, stale, kernel_dropped]
    }
}

impl Probe {
    pub(super) fn emit(&self) -> [u8; CONTROL_BYTES] {
        let Self { run, sent, last, acknowledgement, verify } = *self;
        ControlPacket {
            last,
            acknowledgement,
            verify,
            counts: sent.to_counts(),
            ..ControlPacket::new(PacketKind::Probe, run)
        }
        .emit()
    }
}

impl Report {
    pub(super) fn emit(&self) -> [u8; CONTROL_BYTES] {
        let Self { run, expected, received, last, verify } = *self;
        let number = expected.min(NUMBER_MAX - 1);
        ControlPacket {
            number,
            last,
            verify,
            counts: received.to_counts(),
            ..ControlPacket::new(PacketKind::Report, run)
        }
        .emit()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unused_fields_of_datagrams_are_zero() {
        let probe = ControlPacket::new(PacketKind::Probe, 1);
        let report = ControlPacket::new(PacketKind::Report, 1);
        for wrong in [
            ControlPacket { number: 1, ..probe },
            ControlPacket { offset: 1, ..probe },
            ControlPacket { has_length: true, ..probe },
            ControlPacket { counts: [0, 0, 0, 1, 0, 0, 0, 0], ..probe },
            ControlPacket { counts: [0, 0, 0, 0, 0, 0, 0, 1], ..probe },
            ControlPacket { offset: 1, ..report },
            ControlPacket::new(PacketKind::Head, 1),
        ] {
            assert_eq!(Datagram::parse(&wrong.emit()), Err(ParseError::Corrupt { run: 1 }), "{wrong:?}");
        }
        assert!(Datagram::parse(&probe.emit()).is_ok() && Datagram::parse(&report.emit()).is_ok());
    }

    proptest! {
        #[test]
        fn emitted_packets_are_parsed_back(
            run: u64, number in 0..NUMBER_MAX, counts in proptest::array::uniform8(0..NUMBER_MAX),
            last: bool, acknowledgement: bool, verify: bool,
        ) {
            let probe = Probe { run, sent: SentCounts::from_counts(counts), last, acknowledgement, verify };
            let bytes = probe.emit();
            prop_assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Probe(probe)));
            let received = ReceivedCounts::from_counts(counts);
            let report = Report { run, expected: number, received, last, verify };
            let bytes = report.emit();
            prop_assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Report(report)));
        }
    }
}
