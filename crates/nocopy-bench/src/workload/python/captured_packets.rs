//! Packets captured and counted by source: the highest rate without loss.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::integration::xdp::Generator;
use nocopy_report::figure::Figure;
use serde::Serialize;

use super::interpreter::Interpreter;
use super::program::{Program, RunningProgram};
use super::{ARRAY_ROWS, NAME};
use crate::Failure;
use crate::cpu;
use crate::frame::FrameTemplate;
use crate::generator;
use crate::ramp::{RateRange, RateStep, Throughput, packets_arrived, send_at_rate};
use crate::series::{Sample, Series, Trial};
use crate::stage::SitePair;
use crate::window::WindowReading;

/// What the programs need.
pub(super) const PACKAGES: [&str; 4] = ["nocopy.Capture", "scapy", "pcapy-ng", "dpkt"];

const FRAME_BYTES: usize = 64;

const PACKET_SOCKET: Program =
    Program { method: "packet-socket", text: include_str!("programs/packet_socket.py") };
const SCAPY: Program = Program { method: "scapy", text: include_str!("programs/scapy_sniff.py") };
const PCAPY: Program = Program { method: "pcapy-dpkt", text: include_str!("programs/pcapy_dpkt.py") };
const CAPTURE: Program = Program { method: "capture", text: include_str!("programs/nocopy_capture.py") };

/// From what scapy can do to what the source makes.
const RATES: RateRange = RateRange { kpps_min: 1.0, kpps_max: 6000.0 };

/// Of each program: small compared with what comes in a step, so that it must keep up.
const BUFFER_BYTES: usize = 4 << 20;

const STEP_MIN: Duration = Duration::from_millis(400);

/// How long the last packets may take to be counted: a slow program first empties its buffer.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// A program that has counted nothing for so long has counted everything that it will: blocks are handed over
/// after 10 ms.
const DRAIN_PAUSE: Duration = Duration::from_millis(60);
const DRAIN_POLL: Duration = Duration::from_millis(1);

const CAUSE: &str = "packet socket: the kernel copies each packet into its ring or into the program's memory";

/// The argument of the programs.
#[derive(Debug, Serialize)]
struct CaptureTask<'a> {
    interface: &'a str,
    bytes: usize,
    rows: usize,
    buffer: usize,
}

pub(super) fn build_series<'a>(stage: &'a SitePair, interpreter: &'a Interpreter) -> Series<'a> {
    let trial = |program: Program, baselines| {
        let run = Box::new(move |window: Duration| {
            CaptureTrial { stage, program }.find_highest_rate(interpreter, window.max(STEP_MIN))
        });
        Trial { method: program.method, variant: None, baselines, run }
    };
    let has = |packages: &[&str]| packages.iter().all(|package| interpreter.has(package));
    let mut trials = vec![trial(PACKET_SOCKET, &[])];
    trials.extend(has(&["scapy"]).then(|| trial(SCAPY, &[])));
    trials.extend(has(&["pcapy-ng", "dpkt"]).then(|| trial(PCAPY, &[])));
    trials.push(trial(CAPTURE, &[PACKET_SOCKET.method, SCAPY.method, PCAPY.method]));
    Series {
        workload: NAME,
        title: format!("{NAME}, {FRAME_BYTES}-byte frames counted by source, highest rate without loss"),
        sink: Some("a count for each source"),
        payload_bytes: FRAME_BYTES,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials,
    }
}

#[derive(Debug, Clone, Copy)]
struct CaptureTrial<'a> {
    stage: &'a SitePair,
    program: Program,
}

impl CaptureTrial<'_> {
    fn find_highest_rate(self, interpreter: &Interpreter, step: Duration) -> Result<Sample, Failure> {
        let site = &self.stage.receiver;
        let (interface, rows) = (&*site.interface, ARRAY_ROWS);
        let task = CaptureTask { interface, bytes: FRAME_BYTES, rows, buffer: BUFFER_BYTES };
        let failed =
            || Failure::step(self.program.method, "capture", "run it as root, and with --python PATH");
        let running =
            site.run_pinned(|| RunningProgram::start(interpreter, self.program, &task)).map_err(failed())?;
        let generator = generator::open_generator(&self.stage.sender)?;
        let frame = FrameTemplate::to_other_host(self.stage, FRAME_BYTES);
        let found = RATES.find_highest_lossless(|kpps| {
            let rate = RateStep { kpps, step, frame: frame.bytes() };
            site.run(|| self.measure_rate(&running, &generator, rate)).map_err(failed())
        })?;
        running.end().map_err(failed())?;
        Ok(found.into_sample(CAUSE))
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
