//! The receiver's end of the control connection.

use std::time::Duration;

use super::super::wire::CONTROL_BYTES;
use super::message::{ByteCount, ControlMessage, MalformedMessage, Probe, Report};
use super::report::RunCounts;

/// How long to wait for the acknowledgement, which need not arrive.
const ACKNOWLEDGEMENT_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct ReceiverControl {
    run: u64,
    total: Option<u64>,
    verify: bool,
    idle_ns: u64,
    probe_ns: u64,
    must_report: bool,
    /// The sender's total, once it has reported it.
    sent: Option<ByteCount>,
    /// Whether everything was counted up to the sender's end.
    is_whole: bool,
    /// The last report, and when it was given.
    last: Option<(ByteCount, u64)>,
    /// No more messages will arrive: an acknowledgement, the end of the connection, or a malformed message
    /// came.
    is_over: bool,
}

impl ReceiverControl {
    /// Begins with the sender's first probe. `verify`: this end asks for checksums.
    pub(crate) fn new(probe: &Probe, verify: bool, idle: Duration, now_ns: u64) -> Self {
        let mut control = Self {
            run: probe.run,
            total: probe.total,
            verify: verify || probe.verify,
            idle_ns: u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX),
            probe_ns: now_ns,
            must_report: false,
            sent: None,
            is_whole: true,
            last: None,
            is_over: false,
        };
        control.handle_message(Ok(ControlMessage::Probe(*probe)), now_ns);
        control
    }

    pub(crate) fn has_checksums(&self) -> bool {
        self.verify
    }

    pub(crate) fn handle_message(&mut self, message: Result<ControlMessage, MalformedMessage>, now_ns: u64) {
        match message {
            Ok(ControlMessage::Probe(probe)) if probe.run == self.run => {
                self.probe_ns = now_ns;
                self.must_report = !probe.acknowledgement;
                self.is_over |= probe.acknowledgement;
                if probe.last {
                    self.sent.get_or_insert(probe.sent);
                }
            }
            _ => self.is_over = true,
        }
    }

    pub(crate) fn record_connection_end(&mut self) {
        self.is_over = true;
    }

    /// The report to be sent now, if there is one; `received_bytes` so far.
    pub(crate) fn next_report(&mut self, received_bytes: u64) -> Option<[u8; CONTROL_BYTES]> {
        if !std::mem::take(&mut self.must_report) {
            return None;
        }
        let (received, last) = match self.last {
            Some((received, _)) => (received, true),
            None => (ByteCount { bytes: received_bytes, crc32c: None }, false),
        };
        // Before the last report the flag asks for checksums; in the last report it announces one.
        let verify = if last { received.crc32c.is_some() } else { self.verify };
        Some(Report { run: self.run, refusal: None, received, last, verify }.emit())
    }

    /// Stops counting. `received` counts everything up to the streams' ends, or up to the receiver's limit.
    pub(crate) fn stop_counting(&mut self, received: ByteCount, is_whole: bool, now_ns: u64) {
        if self.last.is_none() {
            (self.last, self.is_whole, self.must_report) = (Some((received, now_ns)), is_whole, true);
        }
    }

    /// Whether the sender has reported that everything was sent.
    pub(crate) fn is_all_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// Whether no more messages are expected from the sender.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.is_over
            || self.last.is_some_and(|(_, last_ns)| now_ns.saturating_sub(last_ns) > ACKNOWLEDGEMENT_NS)
    }

    /// Whether the sender disconnected early: it has ended without reporting that everything was sent.
    pub(crate) fn has_disconnected(&self) -> bool {
        self.is_over && self.sent.is_none() && self.last.is_none()
    }

    pub(crate) fn is_silent(&self, now_ns: u64) -> bool {
        self.last.is_none() && now_ns.saturating_sub(self.probe_ns) > self.idle_ns
    }

    pub(crate) fn run_counts(&self) -> RunCounts {
        RunCounts {
            total: self.total,
            sent: self.sent,
            received: self.last.map(|(received, _)| received),
            // A sender that disconnected does not receive it.
            is_final: self.last.is_some() && (self.sent.is_some() || !self.is_whole),
            is_whole: self.is_whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::parse_message;
    use super::*;
    use crate::transfer::stream::{ControlState, SenderControl};

    const IDLE: Duration = Duration::from_secs(10);
    const SECOND_NS: u64 = 1_000_000_000;

    fn first_probe(sender_control: &mut SenderControl) -> Probe {
        match parse_message(&sender_control.next_probe(0, 0).unwrap()) {
            Ok(ControlMessage::Probe(probe)) => probe,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_ends_report_the_same_counts() {
        for (theirs, ours) in [(true, false), (false, true), (false, false)] {
            let mut sender_control = SenderControl::new(7, 2, Some(9), theirs, IDLE);
            let mut receiver_control = ReceiverControl::new(&first_probe(&mut sender_control), ours, IDLE, 0);
            let count = ByteCount { bytes: 9, crc32c: (theirs || ours).then_some(5) };
            sender_control.handle_message(parse_message(&receiver_control.next_report(0).unwrap()), 1);
            assert!(receiver_control.next_report(0).is_none(), "one report for each probe");
            assert_eq!(
                (sender_control.has_checksums(), receiver_control.has_checksums()),
                (theirs || ours, theirs || ours)
            );
            sender_control.finish(count);
            receiver_control
                .handle_message(parse_message(&sender_control.next_probe(9, SECOND_NS).unwrap()), SECOND_NS);
            assert!(receiver_control.is_all_sent() && !receiver_control.is_over(SECOND_NS));
            receiver_control.stop_counting(count, true, SECOND_NS);
            sender_control
                .handle_message(parse_message(&receiver_control.next_report(3).unwrap()), SECOND_NS);
            assert_eq!(sender_control.state(SECOND_NS), ControlState::Agreed);
            receiver_control
                .handle_message(parse_message(&sender_control.next_probe(9, SECOND_NS).unwrap()), SECOND_NS);
            assert!(
                receiver_control.is_over(SECOND_NS)
                    && !receiver_control.has_disconnected()
                    && receiver_control.next_report(9).is_none()
            );
            assert_eq!(sender_control.run_counts(), receiver_control.run_counts());
        }
    }

    #[test]
    fn a_sender_that_closes_before_its_end_counts_as_disconnected() {
        let mut sender_control = SenderControl::new(7, 1, None, false, IDLE);
        let probe = first_probe(&mut sender_control);
        let new_control = || ReceiverControl::new(&probe, false, IDLE, 0);
        assert!(!new_control().is_silent(9 * SECOND_NS) && new_control().is_silent(11 * SECOND_NS));
        let mut receiver_control = new_control();
        receiver_control.record_connection_end();
        assert!(receiver_control.has_disconnected() && !receiver_control.run_counts().is_final);
        let other_run = Probe { run: 8, ..probe };
        for message in [Err(MalformedMessage), Ok(ControlMessage::Probe(other_run))] {
            let mut receiver_control = new_control();
            receiver_control.handle_message(message, 1);
            assert!(receiver_control.has_disconnected());
        }
    }

    /// Without a probe, once, and for a limited time.
    #[test]
    fn closing_early_informs_the_sender_for_a_limited_time() {
        let mut sender_control = SenderControl::new(7, 1, None, false, IDLE);
        let mut receiver_control = ReceiverControl::new(&first_probe(&mut sender_control), false, IDLE, 0);
        sender_control.handle_message(parse_message(&receiver_control.next_report(0).unwrap()), 0);
        receiver_control.stop_counting(ByteCount { bytes: 4, crc32c: None }, false, SECOND_NS);
        sender_control.handle_message(parse_message(&receiver_control.next_report(4).unwrap()), SECOND_NS);
        assert_eq!(sender_control.state(SECOND_NS), ControlState::EndedEarly);
        assert!(receiver_control.next_report(4).is_none() && !receiver_control.is_over(SECOND_NS));
        assert!(receiver_control.is_over(3 * SECOND_NS) && !receiver_control.is_silent(99 * SECOND_NS));
        assert!(!receiver_control.run_counts().is_whole);
    }
}
