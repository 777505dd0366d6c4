//! The numbers and counts of the [header and record](super::wire) for datagrams.
//!
//! | | number | offset | counts |
//! |---|---|---|---|
//! | data | from 0 | where its bytes are in the stream | |
//! | probe | 0 | 0 | datagrams and bytes sent, sum of their checksums |
//! | report | how many datagrams were to come | 0 | as [`Received`] |

use serde::Serialize;

use super::wire::{CONTROL_BYTES, COUNTS, Control, Data, NUMBER_MAX, Packet, PacketKind, ParseError};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Sent {
    pub datagrams: u64,
    /// Bytes of the stream, without headers.
    pub bytes: u64,
    /// Sum of the checksums of the datagrams. They include the datagrams' numbers, so the sum covers the
    /// whole stream. 0 without checksums.
    pub checksum: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Received {
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
    pub sent: Sent,
    pub last: bool,
    pub acknowledgement: bool,
    pub verify: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Report {
    pub run: u64,
    /// The number of datagrams expected: up to the last received, or all that were sent, if known.
    pub expected: u64,
    pub received: Received,
    pub last: bool,
    pub verify: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Datagram<'a> {
    Data(Data<'a>),
    Probe(Probe),
    Report(Report),
}

impl<'a> Datagram<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        match Packet::parse(bytes)? {
            Packet::Data(data) => Ok(Self::Data(data)),
            Packet::Control(control) => Self::of(&control).ok_or(ParseError::Corrupt { run: control.run }),
        }
    }

    fn of(control: &Control) -> Option<Self> {
        let Control { run, number, last, acknowledgement, verify, counts, .. } = *control;
        if control.offset != 0 || control.has_length {
            return None;
        }
        match control.kind {
            PacketKind::Probe if number == 0 && control.is_zero_from(3) => {
                Some(Self::Probe(Probe { run, sent: Sent::of(counts), last, acknowledgement, verify }))
            }
            PacketKind::Report => {
                let received = Received::of(counts);
                Some(Self::Report(Report { run, expected: number, received, last, verify }))
            }
            _ => None,
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

impl Probe {
    pub(super) fn emit(&self) -> [u8; CONTROL_BYTES] {
        let Self { run, sent, last, acknowledgement, verify } = *self;
        Control {
            last,
            acknowledgement,
            verify,
            counts: sent.counts(),
            ..Control::new(PacketKind::Probe, run)
        }
        .emit()
    }
}

impl Report {
    pub(super) fn emit(&self) -> [u8; CONTROL_BYTES] {
        let Self { run, expected, received, last, verify } = *self;
        let number = expected.min(NUMBER_MAX - 1);
        Control { number, last, verify, counts: received.counts(), ..Control::new(PacketKind::Report, run) }
            .emit()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unused_fields_of_datagrams_are_zero() {
        let probe = Control::new(PacketKind::Probe, 1);
        let report = Control::new(PacketKind::Report, 1);
        for wrong in [
            Control { number: 1, ..probe },
            Control { offset: 1, ..probe },
            Control { has_length: true, ..probe },
            Control { counts: [0, 0, 0, 1, 0, 0, 0, 0], ..probe },
            Control { counts: [0, 0, 0, 0, 0, 0, 0, 1], ..probe },
            Control { offset: 1, ..report },
            Control::new(PacketKind::Head, 1),
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
            let probe = Probe { run, sent: Sent::of(counts), last, acknowledgement, verify };
            let bytes = probe.emit();
            prop_assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Probe(probe)));
            let report = Report { run, expected: number, received: Received::of(counts), last, verify };
            let bytes = report.emit();
            prop_assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Report(report)));
        }
    }
}
