//! The sender's end of the control connection.

use std::time::Duration;

use super::super::wire::CONTROL_BYTES;
use super::message::{Answer, Count, Malformed, Message, Question, Refusal};
use super::report::RunCounts;

/// Between two questions: often enough for a receiver that waits [10 s](SILENCE_NS) or a second.
const INTERVAL_NS: u64 = 100_000_000;

/// How long answers may be missing.
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
    /// The receiver has closed the connection without a last answer.
    Gone,
    Silent,
}

#[derive(Debug)]
pub(crate) struct SenderControl {
    question: Question,
    connect_timeout_ns: u64,
    /// When the last question was sent, and the last answer received.
    question_ns: Option<u64>,
    answer_ns: u64,
    answer: Option<Answer>,
    /// The last answer arrived before everything was sent.
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
        let sent = Count::empty(verify);
        let question = Question { run, streams, total, sent, last: false, thanks: false, verify };
        let connect_timeout_ns = u64::try_from(connect_timeout.as_nanos()).unwrap_or(u64::MAX);
        Self {
            question,
            connect_timeout_ns,
            question_ns: None,
            answer_ns: 0,
            answer: None,
            is_early: false,
            broken: None,
        }
    }

    pub(crate) fn state(&self, now_ns: u64) -> ControlState {
        let silence_ns = now_ns.saturating_sub(self.answer_ns);
        match (self.answer, self.broken) {
            (Some(Answer { refusal: Some(why), .. }), _) => ControlState::Refused(why),
            (Some(Answer { last: true, .. }), _) if self.question.last => ControlState::Agreed,
            (Some(Answer { last: true, .. }), _) => ControlState::EndedEarly,
            (_, Some(broken)) => broken,
            (None, _) if silence_ns > self.connect_timeout_ns => ControlState::Silent,
            (None, _) => ControlState::Connecting,
            (Some(_), _) if silence_ns > SILENCE_NS => ControlState::Silent,
            (Some(_), _) if self.question.last => ControlState::Finishing,
            (Some(_), _) => ControlState::Running,
        }
    }

    /// The question to be sent now, if there is one. `sent_bytes`: the bytes that are known to be sent so
    /// far.
    pub(crate) fn next_question(&mut self, sent_bytes: u64, now_ns: u64) -> Option<[u8; CONTROL_BYTES]> {
        if matches!(self.state(now_ns), ControlState::Agreed) && !self.question.thanks {
            self.question.thanks = true;
            return Some(self.question.emit());
        }
        let is_due =
            self.question_ns.is_none_or(|question_ns| now_ns.saturating_sub(question_ns) >= INTERVAL_NS);
        if !is_due || self.question.thanks {
            return None;
        }
        self.question_ns = Some(now_ns);
        if !self.question.last {
            self.question.sent.bytes = sent_bytes;
        }
        Some(self.question.emit())
    }

    /// Everything was sent. A receiver that ended early only gets thanks.
    pub(crate) fn finish(&mut self, sent: Count) {
        self.is_early = self.answer.is_some_and(|answer| answer.last);
        self.question.last = true;
        self.question.verify = sent.crc32c.is_some();
        self.question.sent = sent;
        self.question_ns = None;
    }

    pub(crate) fn handle(&mut self, message: Result<Message, Malformed>, now_ns: u64) {
        match message {
            Ok(Message::Answer(mut answer)) if answer.run == self.question.run => {
                if !answer.last {
                    answer.received.crc32c = None; // it is not over
                }
                // The last answer must be the last message.
                if self.answer.is_none_or(|answer| !answer.last) {
                    self.answer = Some(answer);
                }
                self.answer_ns = now_ns;
            }
            _ => self.broken = self.broken.or(Some(ControlState::Malformed)),
        }
    }

    pub(crate) fn end(&mut self) {
        self.broken = self.broken.or(Some(ControlState::Gone));
    }

    /// Whether all data need a checksum, because one end asks for it.
    pub(crate) fn has_checksums(&self) -> bool {
        self.question.verify || self.answer.is_some_and(|answer| answer.verify)
    }

    pub(crate) fn run_counts(&self) -> RunCounts {
        let answer = self.answer.filter(|answer| answer.refusal.is_none());
        RunCounts {
            total: self.question.total,
            sent: self.question.last.then_some(self.question.sent),
            received: answer.map(|answer| answer.received),
            is_final: answer.is_some_and(|answer| answer.last),
            is_whole: !self.is_early,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    const SECOND_NS: u64 = 1_000_000_000;

    fn answer(bytes: u64, last: bool) -> Result<Message, Malformed> {
        let received = Count { bytes, crc32c: None };
        Ok(Message::Answer(Answer { run: 7, refusal: None, received, last, verify: false }))
    }

    fn running_control() -> SenderControl {
        let mut sender_control = SenderControl::new(7, 1, None, false, CONNECT_TIMEOUT);
        assert_eq!(sender_control.state(SECOND_NS), ControlState::Connecting);
        assert!(
            sender_control.next_question(0, 0).is_some()
                && sender_control.next_question(0, 1).is_none()
                && sender_control.next_question(0, INTERVAL_NS).is_some()
        );
        sender_control.handle(answer(0, false), SECOND_NS);
        assert_eq!(sender_control.state(SECOND_NS), ControlState::Running);
        sender_control
    }

    #[test]
    fn a_run_ends_after_the_last_messages_of_both_ends() {
        let mut sender_control = running_control();
        sender_control.finish(Count { bytes: 9, crc32c: None });
        assert_eq!(sender_control.state(SECOND_NS), ControlState::Finishing);
        assert!(sender_control.next_question(0, SECOND_NS).is_some(), "at once");
        sender_control.handle(answer(8, false), SECOND_NS);
        assert_eq!(sender_control.state(2 * SECOND_NS), ControlState::Finishing);
        sender_control.handle(answer(9, true), SECOND_NS);
        sender_control.handle(answer(5, false), SECOND_NS);
        sender_control.end();
        assert_eq!(sender_control.state(100 * SECOND_NS), ControlState::Agreed, "for ever");
        assert!(
            sender_control.next_question(0, SECOND_NS).is_some()
                && sender_control.next_question(0, 9 * SECOND_NS).is_none(),
            "thanks, once"
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
        sender_control.end();
        assert_eq!(sender_control.state(SECOND_NS), ControlState::Gone);
        let of_another =
            Answer { run: 8, refusal: None, received: Count::default(), last: true, verify: false };
        for message in [Err(Malformed), Ok(Message::Answer(of_another))] {
            let mut sender_control = running_control();
            sender_control.handle(message, SECOND_NS);
            assert_eq!(sender_control.state(SECOND_NS), ControlState::Malformed);
        }
        let mut sender_control = fresh();
        sender_control
            .handle(Ok(Message::Answer(Answer { run: 7, refusal: Some(Refusal::Busy), ..of_another })), 0);
        assert_eq!(sender_control.state(0), ControlState::Refused(Refusal::Busy));
    }

    #[test]
    fn an_early_end_by_the_receiver_is_not_compared() {
        let mut sender_control = running_control();
        sender_control.handle(answer(5, true), SECOND_NS);
        assert_eq!(sender_control.state(SECOND_NS), ControlState::EndedEarly);
        sender_control.finish(Count { bytes: 9, crc32c: Some(1) });
        assert_eq!(sender_control.state(SECOND_NS), ControlState::Agreed);
        let run_counts = sender_control.run_counts();
        assert!(run_counts.is_final && !run_counts.is_whole);
    }
}
