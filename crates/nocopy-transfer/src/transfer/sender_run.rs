//! The sender's side of a run: it numbers data, and sends probes for the receiver's counts.

use std::time::Duration;

use super::datagram::{Datagram, Probe, Report, SentCounts};
use super::report::RunCounts;
use super::wire::{CONTROL_BYTES, HEADER_BYTES, emit_data};

/// Intervals of probes: until the receiver reports, while data flow (so that both ends know that the other
/// works), and after the last data.
const CONNECTING_NS: u64 = 50_000_000;
const RUNNING_NS: u64 = 100_000_000;
const FINISHING_NS: u64 = 20_000_000;

/// How long reports may be missing. In this time a hundred probes are sent, so one gets through even if 9
/// of 10 datagrams are lost.
pub(super) const SILENCE_NS: u64 = 10_000_000_000;

#[derive(Debug)]
pub(crate) struct SenderRun {
    run: u64,
    verify: bool,
    /// How long to wait for the first report.
    connect_timeout_ns: u64,
    sent: SentCounts,
    report: Option<Report>,
    stage: SenderStage,
    reported_ns: u64,
    probe_due_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SenderStage {
    Connecting,
    Running,
    Finishing,
    /// The last report has arrived; and whether that was before all data were sent, and whether it was
    /// acknowledged.
    Over {
        early: bool,
        acknowledged: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SenderState {
    Connecting,
    Running,
    /// The receiver has ended it, before all data were sent.
    EndedEarly,
    /// Probes request the receiver's final report.
    Finishing,
    Agreed,
    /// No report has arrived for too long, or none at all.
    Silent,
}

impl SenderRun {
    /// `run` is a random number, which cannot be guessed.
    pub(crate) fn new(run: u64, verify: bool, connect_timeout: Duration) -> Self {
        let connect_timeout_ns = u64::try_from(connect_timeout.as_nanos()).unwrap_or(u64::MAX);
        let (sent, stage) = (SentCounts::default(), SenderStage::Connecting);
        Self { run, verify, connect_timeout_ns, sent, report: None, stage, reported_ns: 0, probe_due_ns: 0 }
    }

    /// Writes the header in front of the bytes in `datagram`, and counts it as sent.
    /// Panics if the buffer has no room for the header.
    pub(crate) fn write_header(&mut self, datagram: &mut [u8]) {
        let SentCounts { datagrams, bytes, checksum } = self.sent;
        let sum = emit_data(datagram, self.run, datagrams, bytes, self.verify);
        self.sent = SentCounts {
            datagrams: datagrams + 1,
            bytes: bytes + (datagram.len() - HEADER_BYTES) as u64,
            checksum: checksum.wrapping_add(sum.unwrap_or(0).into()),
        };
    }

    pub(crate) fn next_probe(&mut self, now_ns: u64) -> Option<[u8; CONTROL_BYTES]> {
        if let SenderStage::Over { acknowledged: acknowledged @ false, .. } = &mut self.stage {
            *acknowledged = true;
            return Some(self.emit_probe(true));
        }
        let interval_ns = match self.stage {
            SenderStage::Connecting => CONNECTING_NS,
            SenderStage::Running => RUNNING_NS,
            SenderStage::Finishing => FINISHING_NS,
            SenderStage::Over { .. } => return None,
        };
        if now_ns < self.probe_due_ns {
            return None;
        }
        self.probe_due_ns = now_ns + interval_ns;
        Some(self.emit_probe(false))
    }

    fn emit_probe(&self, acknowledgement: bool) -> [u8; CONTROL_BYTES] {
        let last = self.stage == SenderStage::Finishing;
        Probe { run: self.run, sent: self.sent, last, acknowledgement, verify: self.verify }.emit()
    }

    /// Handles a datagram from the receiver's address; everything but reports of this run is ignored.
    pub(crate) fn handle_datagram(&mut self, bytes: &[u8], now_ns: u64) {
        let Ok(Datagram::Report(report)) = Datagram::parse(bytes) else { return };
        if report.run != self.run || matches!(self.stage, SenderStage::Over { .. }) {
            return;
        }
        self.reported_ns = now_ns;
        self.report = Some(report);
        // Only before data was sent: a stream has checksums for all data or none.
        self.verify |= report.verify && self.sent.datagrams == 0;
        self.stage = match self.stage {
            stage if report.last => {
                SenderStage::Over { early: stage != SenderStage::Finishing, acknowledged: false }
            }
            SenderStage::Connecting => SenderStage::Running,
            stage => stage,
        };
    }

    pub(crate) fn finish(&mut self, now_ns: u64) {
        if self.stage == SenderStage::Running {
            self.stage = SenderStage::Finishing;
            (self.reported_ns, self.probe_due_ns) = (now_ns, now_ns);
        }
    }

    pub(crate) fn state(&self, now_ns: u64) -> SenderState {
        let silent_ns = now_ns.saturating_sub(self.reported_ns);
        match self.stage {
            SenderStage::Over { early: true, .. } => SenderState::EndedEarly,
            SenderStage::Over { early: false, .. } => SenderState::Agreed,
            SenderStage::Connecting if silent_ns < self.connect_timeout_ns => SenderState::Connecting,
            SenderStage::Running if silent_ns < SILENCE_NS => SenderState::Running,
            SenderStage::Finishing if silent_ns < SILENCE_NS => SenderState::Finishing,
            _ => SenderState::Silent,
        }
    }

    pub(crate) fn sent_counts(&self) -> SentCounts {
        self.sent
    }

    /// The receiver's last report, if there is one.
    pub(crate) fn run_counts(&self) -> Option<RunCounts> {
        self.report.map(|Report { expected, received, last, .. }| RunCounts {
            received,
            expected,
            sent: Some(self.sent),
            is_whole: self.stage != SenderStage::Running && expected == self.sent.datagrams,
            is_final: last,
        })
    }

    pub(crate) fn has_checksums(&self) -> bool {
        self.verify
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::super::receiver_run::{HandledDatagram, ReceiverPhase, ReceiverRun};
    use super::*;

    const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
    const MS: u64 = 1_000_000;

    #[test]
    fn a_sender_without_any_answer_gives_up() {
        let mut sending = SenderRun::new(1, false, CONNECT_TIMEOUT);
        let probes = (0..1000).filter(|time_ms| sending.next_probe(time_ms * MS).is_some()).count();
        assert_eq!((probes, sending.state(999 * MS)), (20, SenderState::Connecting));
        assert_eq!(sending.state(1000 * MS), SenderState::Silent);
    }

    #[test]
    fn a_sender_whose_answers_stop_gives_up() {
        let (mut sending, mut receiving) = (SenderRun::new(1, false, CONNECT_TIMEOUT), new_receiver(true));
        exchange_probe_and_report(&mut sending, &mut receiving, 0);
        assert!(sending.has_checksums(), "the receiver wants them");
        assert_eq!(sending.state(SILENCE_NS - 1), SenderState::Running);
        assert_eq!(sending.state(SILENCE_NS), SenderState::Silent);
        sending.finish(SILENCE_NS - 1);
        assert_eq!(sending.state(SILENCE_NS), SenderState::Finishing);
        assert_eq!(sending.state(2 * SILENCE_NS), SenderState::Silent);
    }

    #[test]
    fn an_early_end_by_the_receiver_is_acknowledged() {
        let (mut sending, mut receiving) = (SenderRun::new(1, false, CONNECT_TIMEOUT), new_receiver(false));
        exchange_probe_and_report(&mut sending, &mut receiving, 0);
        receiving.stop_counting(0);
        exchange_probe_and_report(&mut sending, &mut receiving, 200 * MS);
        assert_eq!(sending.state(u64::MAX), SenderState::EndedEarly);
        exchange_probe_and_report(&mut sending, &mut receiving, 200 * MS);
        assert_eq!(receiving.phase(200 * MS), ReceiverPhase::Over, "and acknowledged");
    }

    fn new_receiver(wants_checksums: bool) -> ReceiverRun {
        ReceiverRun::new(wants_checksums, Duration::from_secs(10))
    }

    fn receiver_address() -> SocketAddr {
        ([127, 0, 0, 1], 9).into()
    }

    fn exchange_probe_and_report(sending: &mut SenderRun, receiving: &mut ReceiverRun, now_ns: u64) {
        if let Some(probe) = sending.next_probe(now_ns)
            && let HandledDatagram::Report(report) =
                receiving.handle_datagram(receiver_address(), &probe, now_ns)
        {
            sending.handle_datagram(&report, now_ns);
        }
    }

    /// A path that loses, delays, repeats and damages datagrams.
    struct LossyPath {
        faults: Box<dyn Iterator<Item = u8>>,
        in_flight: VecDeque<(u64, Vec<u8>)>,
        damaged: u64,
    }

    impl LossyPath {
        fn push(&mut self, now_ns: u64, mut datagram: Vec<u8>) {
            match self.faults.next() {
                Some(0) => return,
                Some(1) => self.in_flight.push_back((now_ns, datagram.clone())),
                Some(2) => {
                    self.in_flight.push_back((now_ns + 15 * MS, datagram));
                    return;
                }
                Some(3) if datagram.len() > CONTROL_BYTES => {
                    self.damaged += 1;
                    datagram[HEADER_BYTES + 2] ^= 0x40;
                }
                _ => {}
            }
            self.in_flight.push_back((now_ns, datagram));
        }

        fn pop(&mut self, now_ns: u64) -> Option<Vec<u8>> {
            let index = self.in_flight.iter().position(|(due_ns, _)| *due_ns <= now_ns)?;
            self.in_flight.remove(index).map(|(_, datagram)| datagram)
        }
    }

    proptest! {
        /// Over a path that loses, repeats, delays and damages in both directions, both ends get the same
        /// counts, data are passed on unchanged, and both ends end.
        #[test]
        fn both_ends_agree_over_a_lossy_path(
            faults in proptest::collection::vec(0..10_u8, 1..400), datagrams in 0..120_u64, verify: bool,
        ) {
            let path = |skipped| LossyPath {
                faults: Box::new(faults.clone().into_iter().cycle().skip(skipped).take(4000)),
                in_flight: VecDeque::new(),
                damaged: 0,
            };
            let (mut there, mut back) = (path(0), path(faults.len() / 2));
            let mut sending = SenderRun::new(5, verify, 20 * CONNECT_TIMEOUT);
            let mut receiving = new_receiver(verify);
            let (mut delivered, mut now_ns) = (Vec::new(), 0);
            while !matches!(receiving.phase(now_ns), ReceiverPhase::Over | ReceiverPhase::Silent)
                && now_ns < 60_000 * MS
            {
                now_ns += MS;
                if sending.state(now_ns) == SenderState::Running {
                    if sending.sent_counts().datagrams < datagrams {
                        let mut datagram = vec![sending.sent_counts().datagrams as u8; CONTROL_BYTES + 1];
                        sending.write_header(&mut datagram);
                        there.push(now_ns, datagram);
                    } else {
                        sending.finish(now_ns);
                    }
                }
                let probe = sending.next_probe(now_ns);
                there.in_flight.extend(probe.map(|probe| (now_ns, probe.to_vec())));
                while let Some(datagram) = there.pop(now_ns) {
                    match receiving.handle_datagram(receiver_address(), &datagram, now_ns) {
                        HandledDatagram::Data(data) => {
                            prop_assert!(!verify || data.bytes.iter().all(|byte| *byte == data.number as u8));
                            delivered.push(data.number);
                        }
                        HandledDatagram::Report(report) => back.push(now_ns, report.to_vec()),
                        HandledDatagram::Nothing => {}
                    }
                }
                while let Some(report) = back.pop(now_ns) {
                    sending.handle_datagram(&report, now_ns);
                }
            }
            // If nearly all reports were lost, the result is silence.
            prop_assume!(sending.state(now_ns) != SenderState::Silent);
            prop_assert_eq!(sending.state(now_ns), SenderState::Agreed);
            prop_assert_eq!(receiving.phase(now_ns), ReceiverPhase::Over);
            let run_counts = receiving.run_counts().unwrap();
            prop_assert_eq!(sending.run_counts(), Some(run_counts));
            let received = run_counts.received;
            prop_assert_eq!((run_counts.is_final, received.datagrams), (true, delivered.len() as u64));
            if verify {
                prop_assert_eq!(received.corrupt, there.damaged);
            }
            delivered.sort_unstable();
            delivered.dedup();
            prop_assert_eq!(received.datagrams, delivered.len() as u64, "each once");
        }
    }
}
