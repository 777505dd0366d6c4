//! The run: step by step, until everything is handed over, the user interrupts it, or something fails.

use std::time::{Duration, Instant};

use nocopy_proto::errno::is_interface_down;

use super::error::Error;
use super::pause;
use super::queue::SendStep;
use super::source::PacketSource;
use super::transmitter::{PortTransmitter, Transmitter};
use crate::Failure;
use nocopy_report::live::LiveLine;
use nocopy_report::quantity::short_number;
use nocopy_report::{CommandEnd, Interrupt};

/// How often to check the live line.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct SendRunResult {
    /// Time until the last packet was handed over.
    pub duration: Duration,
    pub interrupted: bool,
    pub failure: Option<Failure>,
}

impl SendRunResult {
    /// A run that the user interrupted before it began.
    pub(super) fn interrupted_before_start() -> Self {
        Self { duration: Duration::ZERO, interrupted: true, failure: None }
    }

    pub(super) fn end_reason(&self) -> CommandEnd {
        match self {
            Self { failure: Some(_), .. } => CommandEnd::Failed,
            Self { interrupted: true, .. } => CommandEnd::Interrupted,
            _ => CommandEnd::Done,
        }
    }

    /// Waits for a limited time until the kernel has finished everything; without a rate, the duration
    /// includes this time.
    pub(super) fn drain_transmitter<S: PacketSource>(
        &mut self,
        transmitter: &mut PortTransmitter<S>,
        is_flat_out: bool,
        patience: Duration,
    ) {
        let start = Instant::now();
        let drained = transmitter.port().sender().drain(patience);
        if is_flat_out && transmitter.tally().packets > 0 {
            self.duration += start.elapsed();
        }
        if let (Err(error), None) = (drained, &self.failure)
            && !is_interface_down(&error)
        {
            self.failure = Some(Error::Port(error).into());
        }
    }
}

/// Sends until the transmitter is done or the user interrupts it.
pub(super) fn run_transmitter(transmitter: &mut impl Transmitter, interrupt: &Interrupt) -> SendRunResult {
    let start = Instant::now();
    let mut live = LiveStatus::new(start);
    let mut run = SendRunResult { duration: Duration::ZERO, interrupted: false, failure: None };
    let mut now = Duration::ZERO;
    loop {
        if interrupt.was_interrupted() {
            run.interrupted = true;
            return run;
        }
        let before = transmitter.tally().packets;
        let step = transmitter.send_due_batch(now.as_nanos() as u64); // ns of 584 years
        now = start.elapsed();
        if transmitter.tally().packets > before {
            run.duration = now;
        }
        match step {
            Ok(SendStep::Sent) => {}
            Ok(SendStep::Early { due_ns }) => {
                pause::sleep_toward_deadline(start + Duration::from_nanos(due_ns))
            }
            Ok(SendStep::Batch) => pause::sleep_for_batch(),
            Ok(SendStep::Silence) => pause::sleep_for_input(),
            Ok(SendStep::NoRoom) => pause::sleep_for_room(),
            Ok(SendStep::Done) => return run,
            Err(failure) => {
                run.failure = Some(failure);
                return run;
            }
        }
        if !matches!(step, Ok(SendStep::Sent)) {
            now = start.elapsed();
        }
        live.update(start + now, transmitter);
    }
}

struct LiveStatus {
    line: LiveLine,
    next: Instant,
    packets: u64,
    bytes: u64,
}

impl LiveStatus {
    fn new(start: Instant) -> Self {
        Self { line: LiveLine::default(), next: start + POLL_INTERVAL, packets: 0, bytes: 0 }
    }

    fn update(&mut self, now: Instant, transmitter: &impl Transmitter) {
        if now < self.next {
            return;
        }
        self.next = now + POLL_INTERVAL;
        let tally = transmitter.tally();
        let Self { line, packets, bytes, .. } = self;
        line.update(now, |since| {
            let a_second = |count: u64| short_number(count as f64 / since.as_secs_f64());
            let text = format!(
                "{} packets handed over, {} packets/s, {}bit/s",
                tally.packets,
                a_second(tally.packets - *packets),
                a_second(8 * (tally.bytes - *bytes)),
            );
            (*packets, *bytes) = (tally.packets, tally.bytes);
            text
        });
    }
}
