//! The receiver's end of the control connection.

use std::time::Duration;

use super::super::wire::CONTROL_BYTES;
use super::message::{Answer, Ask, Count, Malformed, Message};
use super::report::Findings;

/// How long to wait for thanks, which need not arrive.
const THANKS_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct Answering {
    run: u64,
    total: Option<u64>,
    verify: bool,
    idle_ns: u64,
    heard_ns: u64,
    owes: bool,
    /// The sender's total, once it has reported it.
    sent: Option<Count>,
    /// Whether everything was counted up to the sender's end.
    is_whole: bool,
    /// The last answer, and when it was given.
    last: Option<(Count, u64)>,
    /// No more messages will arrive: thanks, the end of the connection, or a malformed message came.
    is_over: bool,
}

impl Answering {
    /// Begins with the sender's first question. `verify`: this end asks for checksums.
    pub(crate) fn new(ask: &Ask, verify: bool, idle: Duration, now_ns: u64) -> Self {
        let mut begun = Self {
            run: ask.run,
            total: ask.total,
            verify: verify || ask.verify,
            idle_ns: u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX),
            heard_ns: now_ns,
            owes: false,
            sent: None,
            is_whole: true,
            last: None,
            is_over: false,
        };
        begun.handle(Ok(Message::Ask(*ask)), now_ns);
        begun
    }

    pub(crate) fn has_checksums(&self) -> bool {
        self.verify
    }

    pub(crate) fn handle(&mut self, message: Result<Message, Malformed>, now_ns: u64) {
        match message {
            Ok(Message::Ask(ask)) if ask.run == self.run => {
                self.heard_ns = now_ns;
                self.owes = !ask.thanks;
                self.is_over |= ask.thanks;
                if ask.last {
                    self.sent.get_or_insert(ask.sent);
                }
            }
            _ => self.is_over = true,
        }
    }

    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    /// The answer to be sent now, if there is one; `received_bytes` so far.
    pub(crate) fn answer(&mut self, received_bytes: u64) -> Option<[u8; CONTROL_BYTES]> {
        if !std::mem::take(&mut self.owes) {
            return None;
        }
        let (received, last) = match self.last {
            Some((received, _)) => (received, true),
            None => (Count { bytes: received_bytes, crc32c: None }, false),
        };
        // Before the last answer the flag asks for checksums; in the last answer it announces one.
        let verify = if last { received.crc32c.is_some() } else { self.verify };
        Some(Answer { run: self.run, refusal: None, received, last, verify }.emit())
    }

    /// Stops counting. `received` counts everything up to the streams' ends, or up to the receiver's limit.
    pub(crate) fn close(&mut self, received: Count, is_whole: bool, now_ns: u64) {
        if self.last.is_none() {
            (self.last, self.is_whole, self.owes) = (Some((received, now_ns)), is_whole, true);
        }
    }

    /// Whether the sender has reported that everything was sent.
    pub(crate) fn is_all_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// Whether no more messages are expected from the sender.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.is_over || self.last.is_some_and(|(_, last_ns)| now_ns.saturating_sub(last_ns) > THANKS_NS)
    }

    /// Whether the sender broke off: it has ended without reporting that everything was sent.
    pub(crate) fn is_broken_off(&self) -> bool {
        self.is_over && self.sent.is_none() && self.last.is_none()
    }

    pub(crate) fn is_silent(&self, now_ns: u64) -> bool {
        self.last.is_none() && now_ns.saturating_sub(self.heard_ns) > self.idle_ns
    }

    pub(crate) fn findings(&self) -> Findings {
        Findings {
            total: self.total,
            sent: self.sent,
            received: self.last.map(|(received, _)| received),
            // A sender that broke off does not receive it.
            is_final: self.last.is_some() && (self.sent.is_some() || !self.is_whole),
            is_whole: self.is_whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::read;
    use super::*;
    use crate::transfer::stream::{Asking, State};

    const IDLE: Duration = Duration::from_secs(10);
    const SECOND_NS: u64 = 1_000_000_000;

    fn first_question(asking: &mut Asking) -> Ask {
        match read(&asking.ask(0, 0).unwrap()) {
            Ok(Message::Ask(ask)) => ask,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_ends_agree() {
        for (theirs, ours) in [(true, false), (false, true), (false, false)] {
            let mut asking = Asking::new(7, 2, Some(9), theirs, IDLE);
            let mut answering = Answering::new(&first_question(&mut asking), ours, IDLE, 0);
            let count = Count { bytes: 9, crc32c: (theirs || ours).then_some(5) };
            asking.handle(read(&answering.answer(0).unwrap()), 1);
            assert!(answering.answer(0).is_none(), "one answer a question");
            assert_eq!((asking.has_checksums(), answering.has_checksums()), (theirs || ours, theirs || ours));
            asking.finish(count);
            answering.handle(read(&asking.ask(9, SECOND_NS).unwrap()), SECOND_NS);
            assert!(answering.is_all_sent() && !answering.is_over(SECOND_NS));
            answering.close(count, true, SECOND_NS);
            asking.handle(read(&answering.answer(3).unwrap()), SECOND_NS);
            assert_eq!(asking.state(SECOND_NS), State::Agreed);
            answering.handle(read(&asking.ask(9, SECOND_NS).unwrap()), SECOND_NS);
            assert!(
                answering.is_over(SECOND_NS) && !answering.is_broken_off() && answering.answer(9).is_none()
            );
            assert_eq!(asking.findings(), answering.findings());
        }
    }

    #[test]
    fn a_sender_that_goes_without_a_word_has_broken_off() {
        let mut asking = Asking::new(7, 1, None, false, IDLE);
        let ask = first_question(&mut asking);
        let begun = || Answering::new(&ask, false, IDLE, 0);
        assert!(!begun().is_silent(9 * SECOND_NS) && begun().is_silent(11 * SECOND_NS));
        let mut answering = begun();
        answering.end();
        assert!(answering.is_broken_off() && !answering.findings().is_final);
        let stranger = Ask { run: 8, ..ask };
        for message in [Err(Malformed), Ok(Message::Ask(stranger))] {
            let mut answering = begun();
            answering.handle(message, 1);
            assert!(answering.is_broken_off());
        }
    }

    /// Without a question, once, and for a limited time.
    #[test]
    fn a_receiver_that_has_enough_says_so() {
        let mut asking = Asking::new(7, 1, None, false, IDLE);
        let mut answering = Answering::new(&first_question(&mut asking), false, IDLE, 0);
        asking.handle(read(&answering.answer(0).unwrap()), 0);
        answering.close(Count { bytes: 4, crc32c: None }, false, SECOND_NS);
        asking.handle(read(&answering.answer(4).unwrap()), SECOND_NS);
        assert_eq!(asking.state(SECOND_NS), State::EndedEarly);
        assert!(answering.answer(4).is_none() && !answering.is_over(SECOND_NS));
        assert!(answering.is_over(3 * SECOND_NS) && !answering.is_silent(99 * SECOND_NS));
        assert!(!answering.findings().is_whole);
    }
}
