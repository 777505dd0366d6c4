//! Sends one message after another, and records the result of each.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nocopy_proto::errno::{ErrorCounts, is_transient};

use crate::arguments::PingArguments;
use crate::endpoint::Scheme;
use crate::exchange::{Exchange, MARK, PATIENCE, WaitMode};
use crate::processor;
use nocopy_report::live::LiveLine;
use nocopy_report::quantity::short_number;
use nocopy_report::{CommandEnd, Interrupt};

/// Bytes of a message's number, at its beginning; the answering end sets its highest bit.
const NUMBER_BYTES: usize = 8;

/// How late a sleep may end: this last part of a pause is spent reading the clock.
const SLEEP_SLACK: Duration = Duration::from_micros(150);

/// While spinning, polls between two reads of the clock.
const LOOKS_A_CLOCK: u32 = 64;

pub(super) struct PingSession<'a> {
    arguments: &'a PingArguments,
    interrupt: Interrupt,
    /// Whether the other end marks its answers.
    is_marked: bool,
    message: Vec<u8>,
    start: Instant,
    pub elapsed: Duration,
    processor: processor::ProcessorTimeSnapshot,
    pub used: Option<processor::ProcessorUse>,
    /// Times from sending to the answer, and from the due time, in ns.
    pub round_trips: Histogram<u64>,
    pub since_due: Histogram<u64>,
    pub sent: u64,
    pub answered: u64,
    /// Without an answer in time.
    pub lost: u64,
    /// Of these, those that the kernel did not take, or reported as refused.
    pub lost_by: ErrorCounts,
    /// Answers that arrived later, or twice.
    pub late: u64,
    /// Answers whose bytes differ from those sent.
    pub corrupt: u64,
    pub ended: Option<CommandEnd>,
}

/// 1 ns to 1 h, three digits.
fn round_trip_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("the bounds are constant and valid")
}

impl<'a> PingSession<'a> {
    pub(super) fn new(arguments: &'a PingArguments, interrupt: Interrupt) -> Self {
        Self {
            arguments,
            interrupt,
            is_marked: matches!(arguments.target.scheme(), Scheme::Udp | Scheme::Xdp),
            message: (0..arguments.size).map(|place| place as u8).collect(),
            start: Instant::now(),
            elapsed: Duration::ZERO,
            processor: processor::ProcessorTimeSnapshot::now(),
            used: None,
            round_trips: round_trip_histogram(),
            since_due: round_trip_histogram(),
            sent: 0,
            answered: 0,
            lost: 0,
            lost_by: ErrorCounts::default(),
            late: 0,
            corrupt: 0,
            ended: None,
        }
    }

    /// Continues until all rounds are done or the user interrupts.
    pub(super) fn run(&mut self, mut exchange: impl Exchange) -> io::Result<()> {
        let mut line = LiveLine::default();
        self.start = Instant::now();
        let played = self.run_until_over(&mut exchange, &mut line);
        self.elapsed = self.start.elapsed();
        self.used = Some(self.processor.usage_since(self.answered));
        // If everything was answered, there is no need to wait.
        let _ = exchange.finish(PATIENCE);
        played
    }

    fn run_until_over(&mut self, exchange: &mut impl Exchange, line: &mut LiveLine) -> io::Result<()> {
        let count = match (self.arguments.count, self.arguments.duration) {
            (None, None) => super::COUNT,
            (count, _) => count.unwrap_or(u64::MAX),
        };
        let mut due = Instant::now();
        for number in 0..count {
            if self.is_over() || !self.wait_until_due(exchange, due)? {
                return Ok(());
            }
            self.run_round(exchange, number, due)?;
            let now = Instant::now();
            due = match self.arguments.interval {
                Some(interval) => due + interval,
                None => now,
            };
            line.update(now, |_| {
                let p50 = self.round_trips.value_at_quantile(0.5) as f64 / 1e3;
                format!("{} answers, {} lost, p50 {p50:.1} us", short_number(self.answered as f64), self.lost)
            });
        }
        self.ended = Some(CommandEnd::Count);
        Ok(())
    }

    fn is_over(&mut self) -> bool {
        if self.interrupt.was_interrupted() {
            self.ended = Some(CommandEnd::Interrupted);
        } else if self.arguments.duration.is_some_and(|duration| self.start.elapsed() >= duration) {
            self.ended = Some(CommandEnd::Duration);
        }
        self.ended.is_some()
    }

    /// Waits until a message is due; returns false if the run ends before.
    fn wait_until_due(&mut self, exchange: &mut impl Exchange, due: Instant) -> io::Result<bool> {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(true);
            }
            if self.is_over() {
                return Ok(false);
            }
            exchange.do_pending_work()?;
            if left > SLEEP_SLACK && self.arguments.wait != WaitMode::Spinning {
                sleep(left.min(PATIENCE) - SLEEP_SLACK);
            }
        }
    }

    fn run_round(&mut self, exchange: &mut impl Exchange, number: u64, due: Instant) -> io::Result<()> {
        self.message[..NUMBER_BYTES].copy_from_slice(&number.to_be_bytes());
        let start = Instant::now();
        self.sent += 1;
        let mut error = exchange.send(&self.message).err();
        match self.await_answer(exchange, start, &mut error)? {
            AnswerWaitResult::Answered(at) => {
                self.answered += 1;
                self.round_trips.saturating_record((at - start).as_nanos() as u64);
                self.since_due.saturating_record((at - due).as_nanos() as u64);
            }
            AnswerWaitResult::Lost => {
                self.lost += 1;
                error.iter().for_each(|error| self.lost_by.add(error, 1));
            }
            // The wait for it ended before.
            AnswerWaitResult::Interrupted => self.sent -= 1,
        }
        Ok(())
    }

    /// `error`: the last one of this round. A datagram may be lost by it; a stream or a connection ends.
    fn await_answer(
        &mut self,
        exchange: &mut impl Exchange,
        start: Instant,
        error: &mut Option<io::Error>,
    ) -> io::Result<AnswerWaitResult> {
        let is_spinning = self.arguments.wait == WaitMode::Spinning;
        let mut answer = PartialAnswer::default();
        // The first answer shows that there is a way to the other end.
        let may_be_lost = |answered: u64, error: &io::Error| answered > 0 && is_transient(error);
        error.take_if(|error| !self.is_marked || !may_be_lost(self.answered, error)).map_or(Ok(()), Err)?;
        for look in 1_u32.. {
            let Self { message, is_marked, .. } = &*self;
            let received = exchange.receive(|piece| answer.add_piece(piece, message, *is_marked));
            let is_answer = match received {
                Err(refused) if *is_marked && may_be_lost(self.answered, &refused) => {
                    *error = Some(refused);
                    false
                }
                received => received?,
            };
            if is_answer {
                let at = Instant::now();
                match std::mem::take(&mut answer).classify(message) {
                    AnswerKind::Current => return Ok(AnswerWaitResult::Answered(at)),
                    AnswerKind::Late => self.late += 1,
                    AnswerKind::Corrupt => self.corrupt += 1,
                }
            }
            if !is_spinning || look.is_multiple_of(LOOKS_A_CLOCK) {
                if start.elapsed() > self.arguments.timeout {
                    return Ok(AnswerWaitResult::Lost);
                }
                if self.interrupt.was_interrupted() {
                    return Ok(AnswerWaitResult::Interrupted);
                }
            }
        }
        Ok(AnswerWaitResult::Lost)
    }
}

enum AnswerWaitResult {
    Answered(Instant),
    Lost,
    Interrupted,
}

/// An answer that arrives piece by piece.
#[derive(Debug, Default)]
struct PartialAnswer {
    head: [u8; NUMBER_BYTES],
    bytes: usize,
    /// Whether the bytes after the number differ from those sent.
    is_corrupt: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum AnswerKind {
    /// To the message that was sent last.
    Current,
    /// An answer to an earlier message.
    Late,
    Corrupt,
}

impl PartialAnswer {
    fn add_piece(&mut self, piece: &[u8], message: &[u8], is_marked: bool) {
        let mut piece = piece;
        if self.bytes < NUMBER_BYTES {
            let (head, rest) = piece.split_at(piece.len().min(NUMBER_BYTES - self.bytes));
            self.head[self.bytes..self.bytes + head.len()].copy_from_slice(head);
            if is_marked && self.bytes == 0 && !head.is_empty() {
                // An answer has the mark; a message that returns without it is no answer.
                self.head[0] ^= MARK;
            }
            self.bytes += head.len();
            piece = rest;
        }
        let sent = message.get(self.bytes..self.bytes + piece.len());
        self.is_corrupt |= sent != Some(piece);
        self.bytes += piece.len();
    }

    fn classify(self, message: &[u8]) -> AnswerKind {
        let is_whole = self.bytes == message.len() && !self.is_corrupt;
        match message.first_chunk() {
            Some(head) if is_whole && self.head == *head => AnswerKind::Current,
            Some(head) if is_whole && u64::from_be_bytes(self.head) < u64::from_be_bytes(*head) => {
                AnswerKind::Late
            }
            _ => AnswerKind::Corrupt,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// The options of `ping` only.
    #[derive(Parser)]
    struct PingCommandLine {
        #[command(flatten)]
        ping: PingArguments,
    }

    /// A transport that returns the last message.
    #[derive(Default)]
    struct EchoExchange {
        message: Vec<u8>,
        idled: u32,
    }

    impl Exchange for EchoExchange {
        fn send(&mut self, message: &[u8]) -> io::Result<()> {
            self.message = message.to_vec();
            Ok(())
        }

        fn receive(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
            take(&self.message);
            Ok(true)
        }

        fn do_pending_work(&mut self) -> io::Result<()> {
            self.idled += 1;
            Ok(())
        }
    }

    #[test]
    fn pauses_use_no_processor_time_in_any_wait_mode() {
        for wait in ["spin", "block", "adaptive"] {
            let words = ["ping", "message://127.0.0.1:9", "--interval", "20ms", "--count", "2"];
            let words = words.into_iter().chain(["--wait", wait]);
            let arguments = PingCommandLine::parse_from(words).ping;
            let mut exchange = EchoExchange::default();
            let mut rounds = PingSession::new(&arguments, Interrupt::catch().unwrap());
            rounds.run_until_over(&mut exchange, &mut LiveLine::default()).unwrap();
            assert_eq!((rounds.answered, exchange.idled > 0), (2, true), "{wait}");
        }
    }

    fn classify_pieces(pieces: &[&[u8]], is_marked: bool) -> AnswerKind {
        let message = [&7_u64.to_be_bytes()[..], b"behind"].concat();
        let mut answer = PartialAnswer::default();
        pieces.iter().for_each(|piece| answer.add_piece(piece, &message, is_marked));
        answer.classify(&message)
    }

    #[test]
    fn answers_are_classified_as_current_late_or_corrupt() {
        assert_eq!(
            classify_pieces(&[&[0, 0], &[0, 0, 0, 0, 0, 7, b'b'], b"ehind"], false),
            AnswerKind::Current
        );
        assert_eq!(classify_pieces(&[&[0, 0, 0, 0, 0, 0, 0, 6], b"behind"], false), AnswerKind::Late);
        assert_eq!(classify_pieces(&[&[0, 0, 0, 0, 0, 0, 0, 8], b"behind"], false), AnswerKind::Corrupt);
        assert_eq!(classify_pieces(&[&[0, 0, 0, 0, 0, 0, 0, 7], b"behinx"], false), AnswerKind::Corrupt);
        assert_eq!(
            classify_pieces(&[&[0, 0, 0, 0, 0, 0, 0, 7], b"behind and more"], false),
            AnswerKind::Corrupt
        );
        assert_eq!(classify_pieces(&[&[0, 0, 0, 0]], false), AnswerKind::Corrupt);
    }

    #[test]
    fn unmarked_answers_are_refused_where_marks_are_expected() {
        assert_eq!(classify_pieces(&[&[0x80, 0, 0, 0, 0, 0, 0, 7], b"behind"], true), AnswerKind::Current);
        assert_eq!(classify_pieces(&[&[0, 0, 0, 0, 0, 0, 0, 7], b"behind"], true), AnswerKind::Corrupt);
        assert_eq!(classify_pieces(&[&[0x80, 0, 0, 0, 0, 0, 0, 7], b"behind"], false), AnswerKind::Corrupt);
    }
}
