//! The sender's side of a run: it numbers data, and asks the receiver for its counts.

use std::time::Duration;

use super::datagram::{Answer, Ask, Datagram, Sent};
use super::report::Findings;
use super::wire::{CONTROL_BYTES, HEADER_BYTES, emit_data};

/// Intervals of questions: until the receiver answers, while data flow (so that both ends know that the other
/// works), and after the last data.
const CONNECTING_NS: u64 = 50_000_000;
const RUNNING_NS: u64 = 100_000_000;
const FINISHING_NS: u64 = 20_000_000;

/// How long answers may be missing. In this time a hundred questions are asked, so one gets through even if 9
/// of 10 datagrams are lost.
pub(super) const SILENCE_NS: u64 = 10_000_000_000;

#[derive(Debug)]
pub(crate) struct Sending {
    run: u64,
    verify: bool,
    /// How long to wait for the first answer.
    patience_ns: u64,
    sent: Sent,
    answer: Option<Answer>,
    stage: Stage,
    heard_ns: u64,
    ask_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Connecting,
    Running,
    Finishing,
    /// The last answer has arrived; and whether that was before all data were sent, and whether thanks were
    /// sent.
    Over {
        early: bool,
        thanked: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Connecting,
    Running,
    /// The receiver has ended it, before all data were sent.
    EndedEarly,
    /// The receiver is asked for its final answer.
    Finishing,
    Agreed,
    /// No answer has arrived for too long, or none at all.
    Silent,
}

impl Sending {
    /// `run` is a random number, which cannot be guessed.
    pub(crate) fn new(run: u64, verify: bool, patience: Duration) -> Self {
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let (sent, stage) = (Sent::default(), Stage::Connecting);
        Self { run, verify, patience_ns, sent, answer: None, stage, heard_ns: 0, ask_ns: 0 }
    }

    /// Writes the header in front of the bytes in `datagram`, and counts it as sent.
    /// Panics if the buffer has no room for the header.
    pub(crate) fn seal(&mut self, datagram: &mut [u8]) {
        let Sent { datagrams, bytes, checksum } = self.sent;
        let sum = emit_data(datagram, self.run, datagrams, bytes, self.verify);
        self.sent = Sent {
            datagrams: datagrams + 1,
            bytes: bytes + (datagram.len() - HEADER_BYTES) as u64,
            checksum: checksum.wrapping_add(sum.unwrap_or(0).into()),
        };
    }

    pub(crate) fn ask(&mut self, now_ns: u64) -> Option<[u8; CONTROL_BYTES]> {
        if let Stage::Over { thanked: thanked @ false, .. } = &mut self.stage {
            *thanked = true;
            return Some(self.say(true));
        }
        let interval_ns = match self.stage {
            Stage::Connecting => CONNECTING_NS,
            Stage::Running => RUNNING_NS,
            Stage::Finishing => FINISHING_NS,
            Stage::Over { .. } => return None,
        };
        if now_ns < self.ask_ns {
            return None;
        }
        self.ask_ns = now_ns + interval_ns;
        Some(self.say(false))
    }

    fn say(&self, thanks: bool) -> [u8; CONTROL_BYTES] {
        let last = self.stage == Stage::Finishing;
        Ask { run: self.run, sent: self.sent, last, thanks, verify: self.verify }.emit()
    }

    /// Handles a datagram from the receiver's address; everything but answers of this run is ignored.
    pub(crate) fn handle(&mut self, bytes: &[u8], now_ns: u64) {
        let Ok(Datagram::Answer(answer)) = Datagram::parse(bytes) else { return };
        if answer.run != self.run || matches!(self.stage, Stage::Over { .. }) {
            return;
        }
        self.heard_ns = now_ns;
        self.answer = Some(answer);
        // Only before data was sent: a stream has checksums for all data or none.
        self.verify |= answer.verify && self.sent.datagrams == 0;
        self.stage = match self.stage {
            stage if answer.last => Stage::Over { early: stage != Stage::Finishing, thanked: false },
            Stage::Connecting => Stage::Running,
            stage => stage,
        };
    }

    pub(crate) fn finish(&mut self, now_ns: u64) {
        if self.stage == Stage::Running {
            self.stage = Stage::Finishing;
            (self.heard_ns, self.ask_ns) = (now_ns, now_ns);
        }
    }

    pub(crate) fn state(&self, now_ns: u64) -> State {
        let silent_ns = now_ns.saturating_sub(self.heard_ns);
        match self.stage {
            Stage::Over { early: true, .. } => State::EndedEarly,
            Stage::Over { early: false, .. } => State::Agreed,
            Stage::Connecting if silent_ns < self.patience_ns => State::Connecting,
            Stage::Running if silent_ns < SILENCE_NS => State::Running,
            Stage::Finishing if silent_ns < SILENCE_NS => State::Finishing,
            _ => State::Silent,
        }
    }

    pub(crate) fn sent(&self) -> Sent {
        self.sent
    }

    /// The receiver's last report, if there is one.
    pub(crate) fn findings(&self) -> Option<Findings> {
        self.answer.map(|Answer { expected, received, last, .. }| Findings {
            received,
            expected,
            sent: Some(self.sent),
            is_whole: self.stage != Stage::Running && expected == self.sent.datagrams,
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

    use super::super::receiving::{Handled, Phase, Receiving};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);
    const MS: u64 = 1_000_000;

    #[test]
    fn who_is_never_answered_gives_up() {
        let mut sending = Sending::new(1, false, PATIENCE);
        let asked = (0..1000).filter(|time_ms| sending.ask(time_ms * MS).is_some()).count();
        assert_eq!((asked, sending.state(999 * MS)), (20, State::Connecting));
        assert_eq!(sending.state(1000 * MS), State::Silent);
    }

    #[test]
    fn who_is_not_answered_any_more_gives_up_too() {
        let (mut sending, mut receiving) = (Sending::new(1, false, PATIENCE), receiver(true));
        exchange(&mut sending, &mut receiving, 0);
        assert!(sending.has_checksums(), "the receiver wants them");
        assert_eq!(sending.state(SILENCE_NS - 1), State::Running);
        assert_eq!(sending.state(SILENCE_NS), State::Silent);
        sending.finish(SILENCE_NS - 1);
        assert_eq!(sending.state(SILENCE_NS), State::Finishing);
        assert_eq!(sending.state(2 * SILENCE_NS), State::Silent);
    }

    #[test]
    fn a_receiver_that_ends_first_is_heard() {
        let (mut sending, mut receiving) = (Sending::new(1, false, PATIENCE), receiver(false));
        exchange(&mut sending, &mut receiving, 0);
        receiving.close(0);
        exchange(&mut sending, &mut receiving, 200 * MS);
        assert_eq!(sending.state(u64::MAX), State::EndedEarly);
        exchange(&mut sending, &mut receiving, 200 * MS);
        assert_eq!(receiving.phase(200 * MS), Phase::Over, "and thanked");
    }

    fn receiver(wants_checksums: bool) -> Receiving {
        Receiving::new(wants_checksums, Duration::from_secs(10))
    }

    fn address() -> SocketAddr {
        ([127, 0, 0, 1], 9).into()
    }

    fn exchange(sending: &mut Sending, receiving: &mut Receiving, now_ns: u64) {
        if let Some(ask) = sending.ask(now_ns)
            && let Handled::Answer(answer) = receiving.handle(address(), &ask, now_ns)
        {
            sending.handle(&answer, now_ns);
        }
    }

    /// A path that loses, delays, repeats and damages datagrams.
    struct Way {
        fates: Box<dyn Iterator<Item = u8>>,
        under_way: VecDeque<(u64, Vec<u8>)>,
        damaged: u64,
    }

    impl Way {
        fn push(&mut self, now_ns: u64, mut datagram: Vec<u8>) {
            match self.fates.next() {
                Some(0) => return,
                Some(1) => self.under_way.push_back((now_ns, datagram.clone())),
                Some(2) => {
                    self.under_way.push_back((now_ns + 15 * MS, datagram));
                    return;
                }
                Some(3) if datagram.len() > CONTROL_BYTES => {
                    self.damaged += 1;
                    datagram[HEADER_BYTES + 2] ^= 0x40;
                }
                _ => {}
            }
            self.under_way.push_back((now_ns, datagram));
        }

        fn pop(&mut self, now_ns: u64) -> Option<Vec<u8>> {
            let place = self.under_way.iter().position(|(due_ns, _)| *due_ns <= now_ns)?;
            self.under_way.remove(place).map(|(_, datagram)| datagram)
        }
    }

    proptest! {
        /// Over a path that loses, repeats, delays and damages in both directions, both ends get the same
        /// counts, data are passed on unchanged, and both ends end.
        #[test]
        fn both_ends_agree(fates in proptest::collection::vec(0..10_u8, 1..400), datagrams in 0..120_u64, verify: bool) {
            let way = |skipped| Way {
                fates: Box::new(fates.clone().into_iter().cycle().skip(skipped).take(4000)),
                under_way: VecDeque::new(),
                damaged: 0,
            };
            let (mut there, mut back) = (way(0), way(fates.len() / 2));
            let (mut sending, mut receiving) = (Sending::new(5, verify, 20 * PATIENCE), receiver(verify));
            let (mut handed_on, mut now_ns) = (Vec::new(), 0);
            while !matches!(receiving.phase(now_ns), Phase::Over | Phase::Silent) && now_ns < 60_000 * MS {
                now_ns += MS;
                if sending.state(now_ns) == State::Running {
                    if sending.sent().datagrams < datagrams {
                        let mut datagram = vec![sending.sent().datagrams as u8; CONTROL_BYTES + 1];
                        sending.seal(&mut datagram);
                        there.push(now_ns, datagram);
                    } else {
                        sending.finish(now_ns);
                    }
                }
                there.under_way.extend(sending.ask(now_ns).map(|ask| (now_ns, ask.to_vec())));
                while let Some(datagram) = there.pop(now_ns) {
                    match receiving.handle(address(), &datagram, now_ns) {
                        Handled::Data(data) => {
                            prop_assert!(!verify || data.bytes.iter().all(|byte| *byte == data.number as u8));
                            handed_on.push(data.number);
                        }
                        Handled::Answer(answer) => back.push(now_ns, answer.to_vec()),
                        Handled::Nothing => {}
                    }
                }
                while let Some(answer) = back.pop(now_ns) {
                    sending.handle(&answer, now_ns);
                }
            }
            // If nearly all answers were lost, the result is silence.
            prop_assume!(sending.state(now_ns) != State::Silent);
            prop_assert_eq!(sending.state(now_ns), State::Agreed);
            prop_assert_eq!(receiving.phase(now_ns), Phase::Over);
            let findings = receiving.findings().unwrap();
            prop_assert_eq!(sending.findings(), Some(findings));
            let received = findings.received;
            prop_assert_eq!((findings.is_final, received.datagrams), (true, handed_on.len() as u64));
            if verify {
                prop_assert_eq!(received.corrupt, there.damaged);
            }
            handed_on.sort_unstable();
            handed_on.dedup();
            prop_assert_eq!(received.datagrams, handed_on.len() as u64, "each once");
        }
    }
}
