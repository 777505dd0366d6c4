//! A message of 64 bytes there and back, one at a time.

use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::Failure;
use crate::bench::baseline::{tcp, udp};
use crate::bench::frame;
use crate::bench::result::Evidence;
use crate::bench::series::{Figure, Latency, Sample, Series, Trial};
use crate::bench::stage::Stage;
use crate::bench::traffic::{Traffic, Work, conduct};
use crate::bench::window::{Gauge, Phase};
use crate::bench::xdp;

pub(crate) const NAME: &str = "latency";
pub(crate) const PAYLOAD_BYTES: usize = 64;

/// How long a blocked receiver sleeps before it looks whether the trial is over.
pub(crate) const PATIENCE: Duration = Duration::from_millis(10);
/// A message without an answer for so long is lost, and another one is sent.
const LOST_AFTER: Duration = Duration::from_millis(50);
/// Looking at the clock costs about as much as looking for an answer: spinning, only every so many looks.
const LOOKS_A_CLOCK: u32 = 256;

const SOCKET_CAUSE: &str = "socket call: the kernel copies what is sent, and what is received";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Asleep until the kernel wakes it.
    Blocking,
    /// Looking again and again.
    Spinning,
}

impl Waiting {
    fn looks_a_clock(self) -> u32 {
        match self {
            Waiting::Blocking => 1,
            Waiting::Spinning => LOOKS_A_CLOCK,
        }
    }
}

/// One end of a conversation in messages of [`PAYLOAD_BYTES`].
pub(crate) trait Exchange: Send {
    fn send(&mut self, payload: &[u8; PAYLOAD_BYTES]) -> io::Result<()>;

    /// True when `payload` is a message now; false when none came: at once, or after [`PATIENCE`].
    fn receive(&mut self, payload: &mut [u8; PAYLOAD_BYTES]) -> io::Result<bool>;
}

pub(crate) fn series(stage: &Stage) -> Vec<Series<'_>> {
    let mut trials = vec![xdp_trial(stage, "xdp-poll", &["udp-blocking"], Waiting::Blocking)];
    trials.push(xdp_trial(stage, "xdp-spinning", &["udp-spinning", "tcp-spinning"], Waiting::Spinning));
    if stage.is_private() {
        trials.splice(
            0..0,
            [
                udp_trial(stage, "udp-blocking", &[], Waiting::Blocking),
                udp_trial(stage, "udp-spinning", &[], Waiting::Spinning),
                tcp_trial(stage, "tcp-blocking", &["udp-blocking"], Waiting::Blocking),
                tcp_trial(stage, "tcp-spinning", &["udp-spinning"], Waiting::Spinning),
            ],
        );
    }
    vec![Series {
        workload: NAME,
        title: format!("{NAME}, {PAYLOAD_BYTES}-byte payload, there and back"),
        sink: None,
        payload_bytes: PAYLOAD_BYTES,
        link: None,
        figure: Figure::MedianLatency,
        trials,
    }]
}

/// Between two of the kernel's own sockets.
fn socket_trial<'a, E: Exchange + 'a>(
    stage: &'a Stage,
    method: &'static str,
    baselines: &'static [&'static str],
    waiting: Waiting,
    open: fn(&Stage, Waiting) -> io::Result<(E, E)>,
    action: &'static str,
) -> Trial<'a> {
    let run = move |duration| {
        let pair = open(stage, waiting).map_err(Failure::step(method, "open its sockets", action))?;
        converse(stage, method, pair, waiting, duration, Evidence::copied(SOCKET_CAUSE))
    };
    Trial { method, variant: None, baselines, run: Box::new(run) }
}

fn udp_trial<'a>(
    stage: &'a Stage,
    method: &'static str,
    baselines: &'static [&'static str],
    waiting: Waiting,
) -> Trial<'a> {
    socket_trial(stage, method, baselines, waiting, udp::pair, "see the errno")
}

fn tcp_trial<'a>(
    stage: &'a Stage,
    method: &'static str,
    baselines: &'static [&'static str],
    waiting: Waiting,
) -> Trial<'a> {
    let action = "check that the kernel has the cubic congestion control";
    socket_trial(stage, method, baselines, waiting, tcp::pair, action)
}

fn xdp_trial<'a>(
    stage: &'a Stage,
    method: &'static str,
    baselines: &'static [&'static str],
    waiting: Waiting,
) -> Trial<'a> {
    let run = move |duration| {
        let (pair, evidence) = xdp::pair(stage, waiting)?;
        converse(stage, method, pair, waiting, duration, evidence)
    };
    Trial { method, variant: None, baselines, run: Box::new(run) }
}

fn converse<E: Exchange>(
    stage: &Stage,
    method: &'static str,
    (mut asking, mut answering): (E, E),
    waiting: Waiting,
    duration: Duration,
    evidence: Evidence,
) -> Result<Sample, Failure> {
    let times = Mutex::new(empty_histogram());
    let looks = waiting.looks_a_clock();
    // Borrowed, so that both stay open until both threads are done: a closed UDP socket refuses the last
    // answer, and the refusal is an error at the other end.
    let ask_all: Work<'_> =
        Box::new(|gauge| ask(&mut asking, looks, gauge, &mut times.lock().expect("nobody panicked with it")));
    let answer_all: Work<'_> = Box::new(|gauge| answer(&mut answering, gauge));
    conduct(stage, duration, None, vec![ask_all], vec![answer_all]).map_err(Failure::step(
        method,
        "exchange messages",
        "check that both interfaces are still up",
    ))?;
    let times = times.into_inner().expect("nobody panicked with it");
    Ok(Sample { traffic: Traffic::default(), latency: percentiles(&times), evidence, wanted_share: 1.0 })
}

/// 1 ns to 1 s, three digits.
fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1_000_000_000, 3).expect("the bounds are constant and valid")
}

fn percentiles(times: &Histogram<u64>) -> Option<Latency> {
    let us = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    (!times.is_empty()).then(|| Latency { p50_us: us(0.5), p99_us: us(0.99), p99_9_us: us(0.999) })
}

fn ask(
    exchange: &mut impl Exchange,
    looks_a_clock: u32,
    gauge: &mut Gauge<'_>,
    times: &mut Histogram<u64>,
) -> io::Result<()> {
    let mut payload = [0; PAYLOAD_BYTES];
    for sequence in 0_u64.. {
        payload.fill(sequence as u8);
        payload[..8].copy_from_slice(&sequence.to_be_bytes());
        let start = Instant::now();
        exchange.send(&payload)?;
        let awaited = Awaited { sequence, start, looks_a_clock };
        let answered = await_answer(exchange, gauge, &awaited, &mut payload)?;
        let elapsed = start.elapsed();
        if !gauge.sending() {
            break;
        }
        if answered && gauge.phase() == Phase::Measure {
            times.saturating_record(elapsed.as_nanos() as u64);
        }
        gauge.count(answered.into());
    }
    Ok(())
}

/// The message that is under way.
struct Awaited {
    sequence: u64,
    start: Instant,
    looks_a_clock: u32,
}

/// False when the answer is lost or the trial over.
fn await_answer(
    exchange: &mut impl Exchange,
    gauge: &Gauge<'_>,
    awaited: &Awaited,
    payload: &mut [u8; PAYLOAD_BYTES],
) -> io::Result<bool> {
    for look in 1_u32.. {
        if exchange.receive(payload)? {
            frame::read(payload);
            // An answer that was given up already is not this one's.
            if payload[..8] == awaited.sequence.to_be_bytes() {
                return Ok(true);
            }
        }
        let lost = look.is_multiple_of(awaited.looks_a_clock) && awaited.start.elapsed() > LOST_AFTER;
        if lost || !gauge.sending() {
            return Ok(false);
        }
    }
    Ok(false)
}

fn answer(exchange: &mut impl Exchange, gauge: &mut Gauge<'_>) -> io::Result<()> {
    let mut payload = [0; PAYLOAD_BYTES];
    while gauge.receiving() {
        let asked = exchange.receive(&mut payload)?;
        if asked {
            frame::read(&payload);
            exchange.send(&payload)?;
        }
        gauge.count(asked.into());
    }
    Ok(())
}
