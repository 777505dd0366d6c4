//! A program that counts packets which the kernel resends as if a card had received them: the highest rate
//! without loss.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::integration::xdp::Generator;
use serde::Serialize;

use super::interpreter::Interpreter;
use super::program::{Program, RunningProgram};
use crate::Failure;
use crate::cpu;
use crate::frame::FrameTemplate;
use crate::generator;
use crate::ramp::{RateRange, RateStep, Throughput, packets_arrived, send_at_rate};
use crate::stage::SitePair;
use crate::window::WindowReading;

/// From what scapy can do to what the source makes.
const RATES: RateRange = RateRange { kpps_min: 1.0, kpps_max: 6000.0 };

const STEP_MIN: Duration = Duration::from_millis(400);

/// How long the last packets may take to be counted: a slow program first empties its buffer.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// A program that has counted nothing for so long has counted everything that it will: blocks are handed over
/// after 10 ms.
const DRAIN_PAUSE: Duration = Duration::from_millis(60);
const DRAIN_POLL: Duration = Duration::from_millis(1);

/// A program, and the frames that it counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct GeneratedTrial<'a> {
    pub stage: &'a SitePair,
    pub program: Program,
    pub frame: &'a FrameTemplate,
}

impl GeneratedTrial<'_> {
    /// Also returns what the program printed.
    pub(super) fn find_highest_rate(
        self,
        interpreter: &Interpreter,
        task: &(impl Serialize + Sync),
        window: Duration,
    ) -> Result<(Throughput, String), Failure> {
        let Self { stage, program, frame } = self;
        let failed =
            || Failure::step(program.method, "count packets", "run it as root, and with --python PATH");
        let start = || RunningProgram::start(interpreter, program, task);
        let running = stage.receiver.run_pinned(start).map_err(failed())?;
        let generator = generator::open_generator(&stage.sender)?;
        let found = RATES.find_highest_lossless(|kpps| {
            let rate = RateStep { kpps, step: window.max(STEP_MIN), frame: frame.bytes() };
            stage.receiver.run(|| self.measure_rate(&running, &generator, rate)).map_err(failed())
        })?;
        Ok((found, running.end().map_err(failed())?))
    }

    /// The time is that until the program has counted the last packet: what lies in its buffer is no work
    /// done.
    fn measure_rate(
        self,
        running: &RunningProgram,
        generator: &Generator,
        rate: RateStep<'_>,
    ) -> io::Result<Throughput> {
        let interface = &self.stage.receiver.interface;
        let (counted, arrived, start) = (running.packets()?, packets_arrived(interface)?, Instant::now());
        let (cpu, idle) = (running.cpu_time()?, cpu::machine_idle_time()?.0);
        let sent = self.stage.sender.run_pinned(|| send_at_rate(generator, rate))?;
        let offered = packets_arrived(interface)? - arrived;
        let last = wait_for_count(running, counted + offered)?;
        let elapsed = sent.max(last - start);
        let (idle_then, processors) = cpu::machine_idle_time()?;
        let machine_busy = (start.elapsed() * processors).saturating_sub(idle_then.saturating_sub(idle));
        let packets = (running.packets()? - counted).min(offered);
        let cpu = running.cpu_time()?.saturating_sub(cpu);
        let reading = WindowReading { packets, elapsed, cpu, packets_total: packets };
        Ok(Throughput { offered, reading, machine_busy })
    }
}

/// Waits until a program has counted so many packets, or no more for a while. Returns when it counted the
/// last ones.
fn wait_for_count(running: &RunningProgram, expected: u64) -> io::Result<Instant> {
    let (start, mut last, mut counted) = (Instant::now(), Instant::now(), running.packets()?);
    while counted < expected && last.elapsed() < DRAIN_PAUSE && start.elapsed() < DRAIN_MAX {
        sleep(DRAIN_POLL);
        let now = running.packets()?;
        if now > counted {
            (counted, last) = (now, Instant::now());
        }
    }
    Ok(last)
}
