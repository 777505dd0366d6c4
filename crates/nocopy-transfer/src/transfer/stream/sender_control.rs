//! The sender's end of the control connection.

use std::time::Duration;

use super::super::wire::CONTROL_BYTES;
use super::message::{ByteCount, ControlMessage, MalformedMessage, Probe, Refusal, Report};
use super::report::RunCounts;

/// Between two probes: often enough for a receiver that waits [10 s](SILENCE_NS) or a second.
const INTERVAL_NS: u64 = 100_000_000;

/// How long reports may be missing.
const SILENCE_NS: u64 = 10_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlState {
    Connecting,
    Running,
    /// The receiver has stopped counting, before everything was sent.
    EndedEarly,
    /// Everything was sent; the receiver has not confirmed the end yet.
    Finishing,
    /// Both have sent their last message.
    Agreed,
    Refused(Refusal),
    /// The receiver's messages are not of this protocol.
    Malformed,
    /// The receiver has closed the connection without a last report.
    Gone,
    Silent,
}

#[derive(Debug)]
pub(crate) struct SenderControl {
    probe: Probe,
    connect_timeout_ns: u64,
    /// When the last probe was sent, and the last report received.
    probe_ns: Option<u64>,
    report_ns: u64,
    report: Option<Report>,
    /// The last report arrived before everything was sent.
    is_early: bool,
    /// The connection was closed, or a malformed message arrived.
    broken: Option<ControlState>,
}

impl SenderControl {
    pub(crate) fn new(
        run: u64,
        streams: u32,
        total: Option<u64>,
        verify: bool,
        connect_timeout: Duration,
    ) -> Self {
        let sent = ByteCount::empty(verify);
        let probe = Probe { run, streams, total, sent, last: false, acknowledgement: false, verify };
        let connect_timeout_ns = u64::try_from(connect_timeout.as_nanos()).unwrap_or(u64::MAX);
        Self {
            probe,
            connect_timeout_ns,
            probe_ns: None,
            report_ns: 0,
            report: None,
            is_early: false,
            broken: None,
        }
    }

    pub(crate) fn state(&self, now_ns: u64) -> ControlState {
        let silence_ns = now_ns.saturating_sub(self.report_ns);
        match (self.report, self.broken) {
            (Some(Report { refusal: Some(why), .. }), _) => ControlState::Refused(why),
            (Some(Report { last: true, .. }), _) if self.probe.last => ControlState::Agreed,
            (Some(Report { last: true, .. }), _) => ControlState::EndedEarly,
            (_, Some(broken)) => broken,
            (None, _) if silence_ns > self.connect_timeout_ns => ControlState::Silent,
            (None, _) => ControlState::Connecting,
            (Some(_), _) if silence_ns > SILENCE_NS => ControlState::Silent,
            (Some(_), _) if self.probe.last => ControlState::Finishing,
            (Some(_), _) => ControlState::Running,
        }
    }

    /// The probe to be sent now, if there is one. `sent_bytes`: the bytes that are known to be sent so
    /// far.
    pub(crate) fn next_probe(&mut self, sent_bytes: u64, now_ns: u64) -> Option<[u8; CONTROL_BYTES]> {
        if matches!(self.state(now_ns), ControlState::Agreed) && !self.probe.acknowledgement {
            self.probe.acknowledgement = true;
            return Some(self.probe.emit());
        }
        let is_due = self.probe_ns.is_none_or(|probe_ns| now_ns.saturating_sub(probe_ns) >= INTERVAL_NS);
        if !is_due || self.probe.acknowledgement {
            return None;
        }
        self.probe_ns = Some(now_ns);
        if !self.probe.last {
            self.probe.sent.bytes = sent_bytes;
        }
        Some(self.probe.emit())
    }

    /// Everything was sent. A receiver that ended early only gets an acknowledgement.
    pub(crate) fn finish(&mut self, sent: ByteCount) {
        self.is_early = self.report.is_some_and(|report| report.last);
        self.probe.last = true;
        self.probe.verify = sent.crc32c.is_some();
        self.probe.sent = sent;
        self.probe_ns = None;
    }

    pub(crate) fn handle_message(&mut self, message: Result<ControlMessage, MalformedMessage>, now_ns: u64) {
        match message {
            Ok(ControlMessage::Report(mut report)) if report.run == self.probe.run => {
                if !report.last {
                    report.received.crc32c = None; // it is not over
                }
                // The last report must be the last message.
                if self.report.is_none_or(|report| !report.last) {
                    self.report = Some(report);
                }
                self.report_ns = now_ns;
            }
            _ => self.broken = self.broken.or(Some(ControlState::Malformed)),
        }
    }

    pub(crate) fn record_connection_end(&mut self) {
        self.broken = self.broken.or(Some(ControlState::Gone));
    }

    /// Whether all data need a checksum, because one end asks for it.
    pub(crate) fn has_checksums(&self) -> bool {
        self.probe.verify || self.report.is_some_and(|report| report.verify)
    }

    pub(crate) fn run_counts(&self) -> RunCounts {
        let report = self.report.filter(|report| report.refusal.is_none());
        RunCounts {
            total: self.probe.total,
            sent: self.probe.last.then_some(self.probe.sent),
            received: report.map(|report| report.received),
            is_final: report.is_some_and(|report| report.last),
            is_whole: !self.is_early,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    const SECOND_NS: u64 = 1_000_000_000;

    fn report_message(bytes: u64, last: bool) -> Result<ControlMessage, MalformedMessage> {
        let received = ByteCount { bytes, crc32c: None };
        Ok(ControlMessage::Report(Report { run: 7, refusal: None, received, last, verify: false }))
    }

    fn running_control() -> SenderControl {
        let mut sender_control = SenderControl::new(7, 1, None, false, CONNECT_TIMEOUT);
        assert_eq!(sender_control.state(SECOND_NS), ControlState::Connecting);
        assert!(
            sender_control.next_probe(0, 0).is_some()
                && sender_control.next_probe(0, 1).is_none()
                && sender_control.next_probe(0, INTERVAL_NS).is_some()
        );
        sender_control.handle_message(report_message(0, false), SECOND_NS);
        assert_eq!(sender_control.state(SECOND_NS), ControlState::Running);
        sender_control
    }

    #[test]
    fn a_run_ends_after_the_last_messages_of_both_ends() {
        let mut sender_control = running_control();
        sender_control.finish(ByteCount { bytes: 9, crc32c: None });
        assert_eq!(sender_control.state(SECOND_NS), ControlState::Finishing);
        assert!(sender_control.next_probe(0, SECOND_NS).is_some(), "at once");
        sender_control.handle_message(report_message(8, false), SECOND_NS);
        assert_eq!(sender_control.state(2 * SECOND_NS), ControlState::Finishing);
        sender_control.handle_message(report_message(9, true), SECOND_NS);
        sender_control.handle_message(report_message(5, false), SECOND_NS);
        sender_control.record_connection_end();
        assert_eq!(sender_control.state(100 * SECOND_NS), ControlState::Agreed, "for ever");
        assert!(
            sender_control.next_probe(0, SECOND_NS).is_some()
                && sender_control.next_probe(0, 9 * SECOND_NS).is_none(),
            "an acknowledgement, once"
        );
        let run_counts = sender_control.run_counts();
        assert!(run_counts.is_final && run_counts.is_whole);
        assert_eq!(run_counts.received.map(|received| received.bytes), Some(9));
    }

    #[test]
    fn silent_closed_and_invalid_peers_are_distinguished() {
        let fresh = || SenderControl::new(7, 1, None, false, CONNECT_TIMEOUT);
        assert_eq!(fresh().state(6 * SECOND_NS), ControlState::Silent);
        assert_eq!(running_control().state(12 * SECOND_NS), ControlState::Silent);
        let mut sender_control = running_control();
        sender_control.record_connection_end();
        assert_eq!(sender_control.state(SECOND_NS), ControlState::Gone);
        let of_another =
            Report { run: 8, refusal: None, received: ByteCount::default(), last: true, verify: false };
        for message in [Err(MalformedMessage), Ok(ControlMessage::Report(of_another))] {
            let mut sender_control = running_control();
            sender_control.handle_message(message, SECOND_NS);
            assert_eq!(sender_control.state(SECOND_NS), ControlState::Malformed);
        }
        let mut sender_control = fresh();
        sender_control.handle_message(
            Ok(ControlMessage::Report(Report { run: 7, refusal: Some(Refusal::Busy), ..of_another })),
            0,
        );
        assert_eq!(sender_control.state(0), ControlState::Refused(Refusal::Busy));
    }

    #[test]
    fn counts_are_not_compared_after_an_early_end_by_the_receiver() {
        let mut sender_control = running_control();
        sender_control.handle_message(report_message(5, true), SECOND_NS);
        assert_eq!(sender_control.state(SECOND_NS), ControlState::EndedEarly);
        sender_control.finish(ByteCount { bytes: 9, crc32c: Some(1) });
        assert_eq!(sender_control.state(SECOND_NS), ControlState::Agreed);
        let run_counts = sender_control.run_counts();
        assert!(run_counts.is_final && !run_counts.is_whole);
    }
}
