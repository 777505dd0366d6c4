//! Heaps placed into chunks by number: the highest rate without loss, and the processor time at one rate.

use std::cell::RefCell;
use std::io;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::Cause;
use nocopy_report::figure::Figure;
use serde::Serialize;

use super::evidence::of_printed_ledger;
use super::heaps::{self, HeapSource};
use super::interpreter::Interpreter;
use super::program::{Program, RunningProgram};
use super::{ARRAY_ROWS, DATAGRAM_BYTES, NAME};
use crate::Failure;
use crate::baseline::datagram_receiver::RECEIVE_BUFFER_BYTES;
use crate::baseline::datagram_sender::PORT;
use crate::baseline::started::{UdpQueue, udp_queue};
use crate::cpu;
use crate::evidence::result_evidence;
use crate::ramp::{RateRange, Throughput};
use crate::series::{Sample, Series, Trial};
use crate::stage::SitePair;
use crate::window::WindowReading;

/// What the programs need.
pub(super) const PACKAGES: [&str; 2] = ["nocopy.PlacedReceiver", "spead2"];

const BASELINE: &str = "spead2";

/// Compiles spead2's callback.
const COMPILER: &str = "cc";

const SPEAD2: Program = Program { method: BASELINE, text: include_str!("programs/spead2_chunks.py") };
const PLACE: Program = Program { method: "place", text: include_str!("programs/nocopy_place.py") };

/// Chunks that each program has.
const RING: usize = 4;
/// Rows that a program may have received and not counted yet.
const OPEN_ROWS: u64 = (RING * ARRAY_ROWS) as u64;
const HEAPS: usize = ARRAY_ROWS / heaps::HEAP_ROWS;

const RATES: RateRange = RateRange { kpps_min: 100.0, kpps_max: 6000.0 };

/// The rate at which processor time is compared: both programs keep up with it easily.
const CPU_KPPS: f64 = 200.0;

/// How long the last datagrams may lie in the socket: both programs have received them long before.
const DRAIN_MAX: Duration = Duration::from_secs(2);
const DRAIN_POLL: Duration = Duration::from_millis(1);

/// The argument of the programs.
#[derive(Debug, Serialize)]
struct PlaceTask {
    at: String,
    port: u16,
    receive_buffer: usize,
    header_bytes: usize,
    payload_bytes: usize,
    heap_at: usize,
    offset_at: usize,
    heaps: usize,
    heap_rows: usize,
    ring: usize,
}

/// What a series compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compared {
    HighestRate,
    ReceiverCpu,
}

/// Why spead2 cannot be measured although it is installed, if so.
pub(super) fn compiler_absence() -> Option<String> {
    let runs = Command::new(COMPILER).arg("--version").output().is_ok_and(|output| output.status.success());
    (!runs).then(|| format!("spead2 needs a compiler for C, {COMPILER}: 'apt install gcc'"))
}

pub(super) fn build_series<'a>(
    stage: &'a SitePair,
    interpreter: &'a Interpreter,
    a_burst: usize,
    compared: Compared,
) -> Series<'a> {
    let trial = |program: Program, baselines| {
        let run = Box::new(move |duration| {
            PlaceTrial { stage, program, a_burst }.run(interpreter, compared, duration)
        });
        Trial { method: program.method, variant: None, baselines, run }
    };
    let mut trials = Vec::new();
    if interpreter.has(BASELINE) && compiler_absence().is_none() {
        trials.push(trial(SPEAD2, &[]));
    }
    trials.push(trial(PLACE, &[BASELINE]));
    let way = if a_burst > 1 { "in bursts" } else { "one by one" };
    let (what, figure) = match compared {
        Compared::HighestRate => ("highest rate without loss".to_owned(), Figure::PacketsPerSecond),
        Compared::ReceiverCpu => (format!("{CPU_KPPS} kpps"), Figure::ReceiverCpuPerPacket),
    };
    Series {
        workload: NAME,
        title: format!("{NAME}, heaps into chunks, sent {way}, {what}"),
        sink: Some("chunks in memory"),
        payload_bytes: DATAGRAM_BYTES,
        link: None,
        figure,
        trials,
    }
}

#[derive(Debug, Clone, Copy)]
struct PlaceTrial<'a> {
    stage: &'a SitePair,
    program: Program,
    a_burst: usize,
}

impl PlaceTrial<'_> {
    fn run(self, interpreter: &Interpreter, compared: Compared, step: Duration) -> Result<Sample, Failure> {
        let failed = || {
            Failure::step(self.program.method, "run the program", "run it as root, and with --python PATH")
        };
        let start = || RunningProgram::start(interpreter, self.program, &self.task());
        let running = self.stage.receiver.run_pinned(start).map_err(failed())?;
        let source = RefCell::new(HeapSource::open(self.stage, self.a_burst).map_err(failed())?);
        let at = |kpps| self.measure_rate(&running, &mut source.borrow_mut(), kpps, step).map_err(failed());
        let found = match compared {
            Compared::HighestRate => RATES.find_highest_lossless(at)?,
            Compared::ReceiverCpu => at(CPU_KPPS)?,
        };
        let output = running.end().map_err(failed())?;
        let sample = found.into_sample("");
        let evidence = of_printed_ledger(&output, "received")
            .unwrap_or_else(|| result_evidence(nocopy::Evidence::Copied(Cause::SocketCall)));
        Ok(Sample { evidence, ..sample })
    }

    fn task(&self) -> PlaceTask {
        PlaceTask {
            at: self.stage.receiver.ipv4.to_string(),
            port: PORT,
            receive_buffer: RECEIVE_BUFFER_BYTES,
            header_bytes: heaps::HEADER_BYTES,
            payload_bytes: heaps::PAYLOAD_BYTES,
            heap_at: heaps::HEAP_AT,
            offset_at: heaps::OFFSET_AT,
            heaps: HEAPS,
            heap_rows: heaps::HEAP_ROWS,
            ring: RING,
        }
    }

    /// Something is lost if the kernel had no room in the program's socket. How much is then not known:
    /// datagrams that the kernel joined are one for its counter.
    fn measure_rate(
        &self,
        running: &RunningProgram,
        source: &mut HeapSource,
        kpps: f64,
        step: Duration,
    ) -> io::Result<Throughput> {
        let before = self.drained_queue()?;
        let (sent, counted) = (source.sent(), running.packets()?);
        let (cpu, idle) = (running.cpu_time()?, cpu::machine_idle_time()?.0);
        let elapsed = self.stage.sender.run_pinned(|| source.send_at_rate(kpps * 1e3, step))?;
        let start = Instant::now();
        let after = self.drained_queue()?;
        let (idle_then, processors) = cpu::machine_idle_time()?;
        let machine_busy =
            ((elapsed + start.elapsed()) * processors).saturating_sub(idle_then.saturating_sub(idle));
        let offered = source.sent() - sent;
        let drops = after.drops - before.drops;
        if drops == 0 {
            check_count(running.packets()? - counted, offered)?;
        }
        let packets = offered.saturating_sub(drops);
        let cpu = running.cpu_time()?.saturating_sub(cpu);
        let reading = WindowReading { packets, elapsed, cpu, packets_total: packets };
        Ok(Throughput { offered, reading, machine_busy })
    }

    /// The socket's queue, once the program has emptied it.
    fn drained_queue(&self) -> io::Result<UdpQueue> {
        let start = Instant::now();
        loop {
            let queue = self.stage.receiver.run(|| udp_queue(PORT))?;
            if queue.bytes == 0 || start.elapsed() > DRAIN_MAX {
                return Ok(queue);
            }
            sleep(DRAIN_POLL);
        }
    }
}

/// The rows that the program saw must be those that its socket delivered, but for the chunks that are not
/// complete.
fn check_count(counted: u64, delivered: u64) -> io::Result<()> {
    if counted.abs_diff(delivered) <= OPEN_ROWS {
        return Ok(());
    }
    let text =
        format!("the program counted {counted} rows of {delivered} datagrams that its socket delivered");
    Err(io::Error::other(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_misses_or_invents_rows_is_refused() {
        assert!(check_count(100_000, 100_000 + OPEN_ROWS).is_ok() && check_count(OPEN_ROWS, 0).is_ok());
        assert!(check_count(100_000, 100_001 + OPEN_ROWS).is_err() && check_count(OPEN_ROWS + 1, 0).is_err());
    }
}
