//! The sender's end of the control connection.

use std::time::Duration;

use super::super::wire::CONTROL_BYTES;
use super::message::{Answer, Ask, Count, Malformed, Message, Refusal};
use super::report::Findings;

/// Between two questions: often enough for a receiver that waits [10 s](SILENCE_NS) or a second.
const INTERVAL_NS: u64 = 100_000_000;

/// How long answers may be missing.
const SILENCE_NS: u64 = 10_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
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
pub(crate) struct Asking {
    ask: Ask,
    patience_ns: u64,
    /// When the last question was sent, and the last answer received.
    asked_ns: Option<u64>,
    heard_ns: u64,
    answer: Option<Answer>,
    /// The last answer arrived before everything was sent.
    is_early: bool,
    /// The connection was closed, or a malformed message arrived.
    broken: Option<State>,
}

impl Asking {
    pub(crate) fn new(run: u64, streams: u32, total: Option<u64>, verify: bool, patience: Duration) -> Self {
        let sent = Count::nothing(verify);
        let ask = Ask { run, streams, total, sent, last: false, thanks: false, verify };
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        Self { ask, patience_ns, asked_ns: None, heard_ns: 0, answer: None, is_early: false, broken: None }
    }

    pub(crate) fn state(&self, now_ns: u64) -> State {
        let silence_ns = now_ns.saturating_sub(self.heard_ns);
        match (self.answer, self.broken) {
            (Some(Answer { refusal: Some(why), .. }), _) => State::Refused(why),
            (Some(Answer { last: true, .. }), _) if self.ask.last => State::Agreed,
            (Some(Answer { last: true, .. }), _) => State::EndedEarly,
            (_, Some(broken)) => broken,
            (None, _) if silence_ns > self.patience_ns => State::Silent,
            (None, _) => State::Connecting,
            (Some(_), _) if silence_ns > SILENCE_NS => State::Silent,
            (Some(_), _) if self.ask.last => State::Finishing,
            (Some(_), _) => State::Running,
        }
    }

    /// The question to be sent now, if there is one. `sent_bytes`: the bytes that are known to be sent so
    /// far.
    pub(crate) fn ask(&mut self, sent_bytes: u64, now_ns: u64) -> Option<[u8; CONTROL_BYTES]> {
        if matches!(self.state(now_ns), State::Agreed) && !self.ask.thanks {
            self.ask.thanks = true;
            return Some(self.ask.emit());
        }
        let is_due = self.asked_ns.is_none_or(|asked_ns| now_ns.saturating_sub(asked_ns) >= INTERVAL_NS);
        if !is_due || self.ask.thanks {
            return None;
        }
        self.asked_ns = Some(now_ns);
        if !self.ask.last {
            self.ask.sent.bytes = sent_bytes;
        }
        Some(self.ask.emit())
    }

    /// Everything was sent. A receiver that ended early only gets thanks.
    pub(crate) fn finish(&mut self, sent: Count) {
        self.is_early = self.answer.is_some_and(|answer| answer.last);
        self.ask.last = true;
        self.ask.verify = sent.crc32c.is_some();
        self.ask.sent = sent;
        self.asked_ns = None;
    }

    pub(crate) fn handle(&mut self, message: Result<Message, Malformed>, now_ns: u64) {
        match message {
            Ok(Message::Answer(mut answer)) if answer.run == self.ask.run => {
                if !answer.last {
                    answer.received.crc32c = None; // it is not over
                }
                // The last answer must be the last message.
                if self.answer.is_none_or(|answer| !answer.last) {
                    self.answer = Some(answer);
                }
                self.heard_ns = now_ns;
            }
            _ => self.broken = self.broken.or(Some(State::Malformed)),
        }
    }

    pub(crate) fn end(&mut self) {
        self.broken = self.broken.or(Some(State::Gone));
    }

    /// Whether all data need a checksum, because one end asks for it.
    pub(crate) fn has_checksums(&self) -> bool {
        self.ask.verify || self.answer.is_some_and(|answer| answer.verify)
    }

    pub(crate) fn findings(&self) -> Findings {
        let answer = self.answer.filter(|answer| answer.refusal.is_none());
        Findings {
            total: self.ask.total,
            sent: self.ask.last.then_some(self.ask.sent),
            received: answer.map(|answer| answer.received),
            is_final: answer.is_some_and(|answer| answer.last),
            is_whole: !self.is_early,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);
    const SECOND_NS: u64 = 1_000_000_000;

    fn answer(bytes: u64, last: bool) -> Result<Message, Malformed> {
        let received = Count { bytes, crc32c: None };
        Ok(Message::Answer(Answer { run: 7, refusal: None, received, last, verify: false }))
    }

    fn running() -> Asking {
        let mut asking = Asking::new(7, 1, None, false, PATIENCE);
        assert_eq!(asking.state(SECOND_NS), State::Connecting);
        assert!(
            asking.ask(0, 0).is_some() && asking.ask(0, 1).is_none() && asking.ask(0, INTERVAL_NS).is_some()
        );
        asking.handle(answer(0, false), SECOND_NS);
        assert_eq!(asking.state(SECOND_NS), State::Running);
        asking
    }

    #[test]
    fn a_run_ends_when_both_have_said_their_last_word() {
        let mut asking = running();
        asking.finish(Count { bytes: 9, crc32c: None });
        assert_eq!(asking.state(SECOND_NS), State::Finishing);
        assert!(asking.ask(0, SECOND_NS).is_some(), "at once");
        asking.handle(answer(8, false), SECOND_NS);
        assert_eq!(asking.state(2 * SECOND_NS), State::Finishing);
        asking.handle(answer(9, true), SECOND_NS);
        asking.handle(answer(5, false), SECOND_NS);
        asking.end();
        assert_eq!(asking.state(100 * SECOND_NS), State::Agreed, "for ever");
        assert!(asking.ask(0, SECOND_NS).is_some() && asking.ask(0, 9 * SECOND_NS).is_none(), "thanks, once");
        let findings = asking.findings();
        assert!(findings.is_final && findings.is_whole);
        assert_eq!(findings.received.map(|received| received.bytes), Some(9));
    }

    #[test]
    fn who_is_silent_gone_or_mad_is_told_apart() {
        let fresh = || Asking::new(7, 1, None, false, PATIENCE);
        assert_eq!(fresh().state(6 * SECOND_NS), State::Silent);
        assert_eq!(running().state(12 * SECOND_NS), State::Silent);
        let mut asking = running();
        asking.end();
        assert_eq!(asking.state(SECOND_NS), State::Gone);
        let of_another =
            Answer { run: 8, refusal: None, received: Count::default(), last: true, verify: false };
        for message in [Err(Malformed), Ok(Message::Answer(of_another))] {
            let mut asking = running();
            asking.handle(message, SECOND_NS);
            assert_eq!(asking.state(SECOND_NS), State::Malformed);
        }
        let mut asking = fresh();
        asking.handle(Ok(Message::Answer(Answer { run: 7, refusal: Some(Refusal::Busy), ..of_another })), 0);
        assert_eq!(asking.state(0), State::Refused(Refusal::Busy));
    }

    #[test]
    fn nothing_is_compared_if_the_receiver_has_enough() {
        let mut asking = running();
        asking.handle(answer(5, true), SECOND_NS);
        assert_eq!(asking.state(SECOND_NS), State::EndedEarly);
        asking.finish(Count { bytes: 9, crc32c: Some(1) });
        assert_eq!(asking.state(SECOND_NS), State::Agreed);
        let findings = asking.findings();
        assert!(findings.is_final && !findings.is_whole);
    }
}
