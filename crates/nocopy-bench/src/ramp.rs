//! Packets at a steady rate to a program that counts them, and the highest rate at which none is lost.

use std::fs;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::integration::xdp::Generator;

use super::baseline::recorder::RunningRecorder;
use super::cpu;
use super::series::Sample;
use super::stage::SitePair;
use super::traffic::TrafficReadings;
use super::window::WindowReading;
use crate::Failure;
use nocopy_report::result::Evidence;

/// How closely the highest rate is looked for.
const STEP_RATIO: f64 = 1.08;

/// Time for a program to set itself up after it has opened its socket.
const SETTLE: Duration = Duration::from_millis(100);

const INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy)]
pub(crate) struct RateRange {
    pub kpps_min: f64,
    pub kpps_max: f64,
}

/// A rate, with its duration and frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RateStep<'a> {
    pub kpps: f64,
    pub step: Duration,
    pub frame: &'a [u8],
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Throughput {
    /// Packets that reached the interface.
    pub offered: u64,
    pub reading: WindowReading,
    pub machine_busy: Duration,
}

impl Throughput {
    fn is_lossless(&self) -> bool {
        self.reading.packets >= self.offered
    }

    /// Reduces the counted packets to `packets`, if the program claims more.
    pub(crate) fn limit_packets(&mut self, packets: u64) {
        self.reading.packets = self.reading.packets.min(packets);
        self.reading.packets_total = self.reading.packets;
    }

    pub(crate) fn into_sample(self, cause: &str) -> Sample {
        let Self { offered, reading, machine_busy } = self;
        let sender = WindowReading { packets_total: offered, ..WindowReading::default() };
        let traffic = TrafficReadings {
            senders: vec![sender],
            receivers: vec![reading],
            machine_busy,
            ..TrafficReadings::default()
        };
        Sample { traffic, latency: None, evidence: Evidence::copied(cause), wanted_share: 1.0 }
    }
}

impl RateRange {
    /// Halves the range of rates, by ratio, until it is narrow.
    ///
    /// If even the lowest rate loses packets, its losses are shown.
    pub(crate) fn find_highest_lossless(
        self,
        at: impl Fn(f64) -> Result<Throughput, Failure>,
    ) -> Result<Throughput, Failure> {
        let (mut low, mut high, mut best) = (self.kpps_min, self.kpps_max, None);
        while high / low > STEP_RATIO {
            let kpps = (low * high).sqrt();
            let throughput = at(kpps)?;
            let achieved = throughput.reading.packets as f64 / throughput.reading.elapsed.as_secs_f64() / 1e3;
            if !throughput.is_lossless() {
                high = kpps;
            } else {
                (low, best) = (kpps, Some(throughput));
                // The source makes no more than this.
                if achieved < kpps / STEP_RATIO {
                    break;
                }
            }
        }
        best.map_or_else(|| at(self.kpps_min), Ok)
    }
}

/// Makes a program count what arrives at a rate, until it is ended. Called on a thread that entered the
/// receiver's site.
pub(crate) fn measure_rate(
    stage: &SitePair,
    generator: &Generator,
    rate: RateStep<'_>,
    running: RunningRecorder,
) -> io::Result<Throughput> {
    let interface = &stage.receiver.interface;
    sleep(SETTLE);
    let (cpu, idle, before) = (running.cpu_time()?, cpu::machine_idle_time()?.0, packets_arrived(interface)?);
    let elapsed = stage.sender.run_pinned(|| send_at_rate(generator, rate))?;
    let delay = running.capture_delay();
    sleep(delay);
    let offered = packets_arrived(interface)? - before;
    let (cpu, (idle_then, processors)) = (running.cpu_time()?.saturating_sub(cpu), cpu::machine_idle_time()?);
    let packets = running.stop()?.packets;
    let machine_busy = ((elapsed + delay) * processors).saturating_sub(idle_then.saturating_sub(idle));
    let reading = WindowReading { packets, elapsed, cpu, packets_total: packets };
    Ok(Throughput { offered, reading, machine_busy })
}

pub(crate) fn send_at_rate(generator: &Generator, rate: RateStep<'_>) -> io::Result<Duration> {
    let RateStep { kpps, step, frame } = rate;
    let (start, mut sent) = (Instant::now(), 0_u64);
    loop {
        let elapsed = start.elapsed();
        if elapsed >= step {
            return Ok(elapsed);
        }
        let due = (elapsed.as_secs_f64() * kpps * 1e3) as u64;
        let burst = u32::try_from(due - sent.min(due)).unwrap_or(u32::MAX).min(4 * kpps as u32);
        if burst > 0 {
            match generator.send(frame, burst) {
                Ok(()) => sent += u64::from(burst),
                // A signal ended the call after a part was sent; the receiver counts what arrives.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        sleep(INTERVAL.saturating_sub(start.elapsed().saturating_sub(elapsed)));
    }
}

/// Packets that have arrived on an interface of this thread's network namespace, whichever program received
/// them: packets lost before it are no program's loss.
pub(crate) fn packets_arrived(interface: &str) -> io::Result<u64> {
    let counts = fs::read_to_string("/proc/thread-self/net/dev")?;
    let of_interface =
        counts.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    let packets = of_interface.and_then(|counts| counts.split_whitespace().nth(1)?.parse().ok());
    packets.ok_or_else(|| io::ErrorKind::NotFound.into())
}
