//! Round trips of one message at a time: both ends, and the statistics of their times.

use crate::evidence;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::frame;
use super::series::{Latency, Sample};
use super::stage::SitePair;
use super::traffic::{StreamFacts, ThreadWork, TrafficReadings, run_trial};
use super::window::{TrialPhase, WindowGauge};
use crate::Failure;
use nocopy_report::result::Evidence;
use nocopy_transfer::exchange::{Exchange, WaitMode};

/// How long to wait for an answer before the message counts as lost, and the next is sent.
const LOST_AFTER: Duration = Duration::from_millis(50);

/// Reading the clock costs about as much as looking for an answer: while spinning, the clock is read once in
/// this many polls.
const POLLS_PER_CLOCK_READ: u32 = 256;

/// Bytes of the message's number, at its beginning.
pub(crate) const NUMBER_BYTES: usize = 8;

/// What the asking side measured.
struct RoundTripResults {
    times: Histogram<u64>,
    /// Messages with an answer, in all phases. The last message, which the end of the trial interrupts, is
    /// not counted.
    answered: u64,
    lost: u64,
}

/// Messages of `bytes` from the stage's sender to its receiver and back, each after the answer to the one
/// before. The evidence is what is known in advance; a method with a ledger reports better evidence
/// afterwards.
pub(crate) fn measure_round_trips<E: Exchange>(
    stage: &SitePair,
    method: &'static str,
    (mut asking, mut answering): (E, E),
    bytes: usize,
    waiting: WaitMode,
    duration: Duration,
    evidence: Evidence,
) -> Result<Sample, Failure> {
    let round_trips = Mutex::new(RoundTripResults { times: empty_histogram(), answered: 0, lost: 0 });
    // Borrowed, so that both stay open until both threads are done: a closed UDP socket refuses the last
    // answer, and the refusal is an error at the other end.
    let ask_all: ThreadWork<'_> = Box::new(|gauge| {
        send_requests(
            &mut asking,
            bytes,
            waiting,
            gauge,
            &mut round_trips.lock().expect("nobody panicked with it"),
        )
    });
    let answer_all: ThreadWork<'_> = Box::new(|gauge| answer_requests(&mut answering, gauge));
    run_trial(stage, duration, None, vec![ask_all], vec![answer_all]).map_err(Failure::step(
        method,
        "exchange messages",
        "check that both interfaces are still up",
    ))?;
    let RoundTripResults { times, answered, lost } =
        round_trips.into_inner().expect("nobody panicked with it");
    let evidence = asking.ledger().map_or(evidence, |ledger| evidence::ledger_evidence(&ledger));
    let latency = latency_percentiles(&times).map(|latency| Latency { answered, lost, ..latency });
    let stream = StreamFacts { receiver_user_copies: answering.user_copies(), ..StreamFacts::default() };
    let traffic = TrafficReadings { stream, ..TrafficReadings::default() };
    Ok(Sample { traffic, latency, evidence, wanted_share: 1.0 })
}

/// 1 ns to 1 s, three digits.
pub(crate) fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1_000_000_000, 3).expect("the bounds are constant and valid")
}

pub(crate) fn latency_percentiles(times: &Histogram<u64>) -> Option<Latency> {
    let us = |quantile| Some(times.value_at_quantile(quantile) as f64 / 1e3);
    (!times.is_empty()).then(|| Latency {
        mean_us: times.mean() / 1e3,
        p50_us: us(0.5),
        p99_us: us(0.99),
        p99_9_us: us(0.999),
        answered: 0,
        lost: 0,
    })
}

fn send_requests(
    exchange: &mut impl Exchange,
    bytes: usize,
    waiting: WaitMode,
    gauge: &mut WindowGauge<'_>,
    round_trips: &mut RoundTripResults,
) -> io::Result<()> {
    let polls_per_clock_read = if waiting == WaitMode::Spinning { POLLS_PER_CLOCK_READ } else { 1 };
    let mut message: Vec<u8> = (0..bytes).map(|place| place as u8).collect();
    for number in 0_u64.. {
        message[..NUMBER_BYTES].copy_from_slice(&number.to_be_bytes());
        let start = Instant::now();
        exchange.send(&message)?;
        let pending = PendingRequest { number, bytes, start, polls_per_clock_read };
        let answered = await_answer(exchange, gauge, &pending)?;
        let elapsed = start.elapsed();
        if !gauge.may_send() {
            break;
        }
        match answered {
            true => round_trips.answered += 1,
            false => round_trips.lost += 1,
        }
        if answered && gauge.phase() == TrialPhase::Measure {
            round_trips.times.saturating_record(elapsed.as_nanos() as u64);
        }
        gauge.count_packets(answered.into());
    }
    Ok(())
}

struct PendingRequest {
    number: u64,
    bytes: usize,
    start: Instant,
    polls_per_clock_read: u32,
}

/// False when the answer is lost or the trial over.
fn await_answer(
    exchange: &mut impl Exchange,
    gauge: &WindowGauge<'_>,
    pending: &PendingRequest,
) -> io::Result<bool> {
    let mut answer = PartialMessage::default();
    for poll in 1_u32.. {
        if exchange.receive(|piece| answer.take_piece(piece))? {
            // An answer to an earlier message, which was given up.
            if answer.message_number() == Some(pending.number) && answer.bytes == pending.bytes {
                return Ok(true);
            }
            answer = PartialMessage::default();
        }
        let lost = poll.is_multiple_of(pending.polls_per_clock_read) && pending.start.elapsed() > LOST_AFTER;
        if lost || !gauge.may_send() {
            return Ok(false);
        }
    }
    Ok(false)
}

fn answer_requests(exchange: &mut impl Exchange, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
    let mut message = Vec::new();
    while gauge.may_receive() {
        // Every method copies here: the answer is built by this side, as if it had made it.
        let asked = exchange.receive(|piece| message.extend_from_slice(piece))?;
        if asked {
            exchange.send(&message)?;
            message.clear();
        }
        gauge.count_packets(asked.into());
    }
    Ok(())
}

/// A message that arrives in pieces, each of whose bytes is read.
#[derive(Debug, Default)]
pub(crate) struct PartialMessage {
    head: [u8; NUMBER_BYTES],
    pub bytes: usize,
}

impl PartialMessage {
    #[inline]
    pub(crate) fn take_piece(&mut self, piece: &[u8]) {
        frame::read_every_byte(piece);
        if self.bytes < NUMBER_BYTES {
            let missing = piece.len().min(NUMBER_BYTES - self.bytes);
            self.head[self.bytes..self.bytes + missing].copy_from_slice(&piece[..missing]);
        }
        self.bytes += piece.len();
    }

    pub(crate) fn message_number(&self) -> Option<u64> {
        (self.bytes >= NUMBER_BYTES).then(|| u64::from_be_bytes(self.head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_number_is_read_from_pieces() {
        let mut message = PartialMessage::default();
        assert_eq!(message.message_number(), None);
        for piece in [&[0, 0, 0][..], &[], &[0, 0, 0, 1], &[2, 9, 9], &[7]] {
            message.take_piece(piece);
        }
        assert_eq!((message.message_number(), message.bytes), (Some(258), 11));
    }
}
