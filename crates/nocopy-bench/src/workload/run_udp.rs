//! Programs that send datagrams one by one, as they are, with the library that joins them and without; and,
//! as the ceiling, with the same bursts made by hand, without any of its rules. Programs that send no runs of
//! equal datagrams have nothing to gain: with the library they must not be slower.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use nocopy::Cause;

use super::udp_send::{SinkTestbed, delivered_testbed, pair_testbed, private_site_pair};
use super::{LOOPBACK, Workload, has_loaded_library};
use crate::Failure;
use crate::baseline::datagram_program::{RunningSenderProgram, SenderProgram};
use crate::baseline::datagram_sender::PORT;
use crate::baseline::server_program::{self, ServerProgram};
use crate::bench::Bench;
use crate::datagram::DatagramSpec;
use crate::evidence;
use crate::plan::BenchPlan;
use crate::series::{Sample, Series, Trial};
use crate::stage::{SitePair, USUAL_MTU_BYTES};
use crate::traffic::{ThreadWork, TrafficReadings, run_trial};
use crate::window::{WindowGauge, WindowReading};
use nocopy_lab::PreloadLibrary;
use nocopy_report::figure::Figure;

const NAME: &str = "run-udp";
const DATAGRAM_BYTES: usize = 1400;

const PLAIN: &str = "unchanged";
const BATCHED: &str = "batch-udp";
const CEILING: &str = "by-hand";
const LIMIT: &str = "by-hand-first";

/// The interval at which the thread that waits for a program checks the time.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// Programs that send, with and without `nocopy run --batch-udp`.
pub(crate) const RUN_UDP: Workload = Workload {
    name: NAME,
    about: "Unchanged programs that send datagrams one by one, with 'nocopy run --batch-udp' and without",
    methods: &[
        ("unchanged", "the program as it is"),
        ("batch-udp", "the same with the library that joins its datagrams to bursts"),
        ("by-hand", "the same with bursts of which nothing takes care: the ceiling"),
        ("by-hand-first", "the same, but the first datagram of each burst goes alone, as with batch-udp"),
    ],
    lab_only: Some(LOOPBACK),
    skips: skip_notes,
    ..Workload::measured_by(measure)
};

fn skip_notes(_plan: &BenchPlan) -> Vec<String> {
    let library =
        PreloadLibrary::Sockets.ld_preload_path().err().map(|error| format!("SKIP: {NAME}: {error}"));
    let missing = SenderProgram::ALL.into_iter();
    let missing = missing
        .filter_map(|program| Some(format!("SKIP: {NAME}, {}: {}", program.name(), program.absence()?)));
    let servers = ServerProgram::ALL.into_iter().filter(|server| !server.is_installed());
    let servers = servers.map(|server| {
        let (name, packages) = (server.name(), server.packages());
        format!("SKIP: {NAME}, {name}: {packages} not installed: 'apt install {packages}'.")
    });
    library.into_iter().chain(missing).chain(servers).collect()
}

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let Ok(library) = &PreloadLibrary::Sockets.ld_preload_path() else { return Ok(()) }; // a note says so
    let testbeds = [
        delivered_testbed(private_site_pair(USUAL_MTU_BYTES)?)?,
        pair_testbed(private_site_pair(USUAL_MTU_BYTES)?)?,
    ];
    let programs = SenderProgram::ALL.into_iter().filter(|program| program.absence().is_none());
    let mut all = Vec::new();
    for program in programs {
        // What gains nothing says as much with one receiver as with two.
        let testbeds = if program.sends_equal_datagrams() { &testbeds[..] } else { &testbeds[..1] };
        all.extend(testbeds.iter().map(|testbed| sender_series(testbed, program, library)));
    }
    let servers = ServerProgram::ALL.into_iter().filter(|server| server.is_installed());
    all.extend(servers.map(|server| server_series(&testbeds[0].stage, server, library)));
    bench.run_series(all, 75)
}

fn sender_series<'a>(testbed: &'a SinkTestbed, program: SenderProgram, library: &'a Path) -> Series<'a> {
    let trial = |method: &'static str, baselines| {
        let preload = PreloadMethod { library, method };
        let run = Box::new(move |duration| SenderTrial { testbed, program, preload }.run(duration));
        Trial { method, variant: Some(program.name().into()), baselines, run }
    };
    let trials = match program.sends_equal_datagrams() {
        true => vec![
            trial(PLAIN, &[]),
            trial(CEILING, &[PLAIN]),
            trial(LIMIT, &[CEILING]),
            trial(BATCHED, &[PLAIN, CEILING, LIMIT]),
        ],
        false => vec![trial(PLAIN, &[]), trial(BATCHED, &[PLAIN])],
    };
    Series {
        workload: NAME,
        title: format!("{NAME}, {}, {DATAGRAM_BYTES}-byte datagrams", program.name()),
        sink: Some(testbed.sink.name()),
        payload_bytes: DATAGRAM_BYTES,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials,
    }
}

fn server_series<'a>(stage: &'a SitePair, server: ServerProgram, library: &'a Path) -> Series<'a> {
    let trial = |method: &'static str, baselines| {
        let preload = PreloadMethod { library, method };
        let run = Box::new(move |duration| measure_server(stage, server, preload, duration));
        Trial { method, variant: Some(server.name().into()), baselines, run }
    };
    Series {
        workload: NAME,
        title: format!("{NAME}, {}, answers", server.name()),
        sink: Some(server.load_generator_name()),
        payload_bytes: 0,
        link: None,
        figure: Figure::MessagesPerSecond,
        trials: vec![trial(PLAIN, &[]), trial(BATCHED, &[PLAIN])],
    }
}

#[derive(Debug, Clone, Copy)]
struct PreloadMethod<'a> {
    library: &'a Path,
    method: &'static str,
}

impl PreloadMethod<'_> {
    fn prepare_command(self, command: &mut Command) {
        for variable in ["LD_PRELOAD", "NOCOPY_BATCH_TUNING", "NOCOPY_BATCH_REPORT"] {
            command.env_remove(variable);
        }
        if self.method != PLAIN {
            command.env("LD_PRELOAD", self.library);
        }
        if [CEILING, LIMIT].contains(&self.method) {
            command.env("NOCOPY_BATCH_TUNING", self.method);
        }
    }

    /// Checks that a process has loaded the library to be measured: the loader only warns if it cannot.
    fn check_loaded(self, process: u32) -> io::Result<()> {
        let is_loaded = has_loaded_library(process, self.library)?;
        let library = self.library.display();
        match (is_loaded, self.method != PLAIN) {
            (false, true) => Err(io::Error::other(format!("{library} was not loaded"))),
            (true, false) => Err(io::Error::other(format!("{library} was loaded without being asked for"))),
            _ => Ok(()),
        }
    }

    fn run_failure(self) -> impl FnOnce(io::Error) -> Failure {
        Failure::step(self.method, "run the program", "try 'nocopy run --batch-udp --report' by itself")
    }
}

/// Answers of a server, as that or the kernel counts them, while its load keeps it busy.
fn measure_server(
    stage: &SitePair,
    server: ServerProgram,
    preload: PreloadMethod<'_>,
    duration: Duration,
) -> Result<Sample, Failure> {
    let start =
        || server_program::RunningServer::start(server, stage, |command| preload.prepare_command(command));
    let (running, counter) = start().map_err(preload.run_failure())?;
    preload.check_loaded(running.process_id()).map_err(preload.run_failure())?;
    let counter = Mutex::new(counter);
    let count = || counter.lock().expect("nobody panicked with it").read_count();
    let cpu = Mutex::new(Duration::ZERO);
    let work: ThreadWork<'_> =
        Box::new(|gauge| measure_cpu_while_sending(gauge, &cpu, || running.cpu_time()));
    let mut traffic =
        run_trial(stage, duration, Some(&count), vec![work], vec![]).map_err(preload.run_failure())?;
    let answers = traffic.sink.map_or(0, |(answers, _)| answers);
    let cpu = *cpu.lock().expect("nobody panicked with it");
    traffic.senders = vec![WindowReading { packets: answers, elapsed: duration, cpu, packets_total: 0 }];
    Ok(sample_from_traffic(traffic))
}

fn sample_from_traffic(traffic: TrafficReadings) -> Sample {
    let evidence = evidence::result_evidence(nocopy::Evidence::Copied(Cause::SocketCall));
    Sample { traffic, latency: None, evidence, wanted_share: 1.0 }
}

/// Waits for as long as senders are to send; notes the processor time that a program took within the window.
fn measure_cpu_while_sending(
    gauge: &mut WindowGauge<'_>,
    cpu: &Mutex<Duration>,
    taken: impl Fn() -> io::Result<Duration>,
) -> io::Result<()> {
    let mut before = None;
    while gauge.may_send() {
        gauge.count_packets(0);
        if before.is_none() && gauge.is_measuring() {
            before = Some(taken()?);
        }
        sleep(POLL_INTERVAL);
    }
    let taken = taken()?.saturating_sub(before.unwrap_or_default());
    *cpu.lock().expect("nobody panicked with it") = taken;
    Ok(())
}

/// A program that sends, in one of the four ways.
#[derive(Debug, Clone, Copy)]
struct SenderTrial<'a> {
    testbed: &'a SinkTestbed,
    program: SenderProgram,
    preload: PreloadMethod<'a>,
}

impl<'a> SenderTrial<'a> {
    fn run(self, duration: Duration) -> Result<Sample, Failure> {
        let stage = &self.testbed.stage;
        let receiver_kind = self.testbed.sink.receiver_kind().into_iter();
        let datagrams = DatagramSpec::singly(DATAGRAM_BYTES);
        let receive = receiver_kind
            .map(|receiver_kind| receiver_kind.open(&stage.receiver, datagrams))
            .collect::<Result<_, _>>()?;
        let cpu = Arc::new(Mutex::new(Duration::ZERO));
        let work = vec![self.sender_work(&cpu)];
        let mut traffic =
            run_trial(stage, duration, None, work, receive).map_err(self.preload.run_failure())?;
        // The count of the sink stands for that of the program, which counts nothing.
        let arrived: u64 = traffic.receivers.iter().map(|reading| reading.packets).sum();
        let cpu = *cpu.lock().expect("nobody panicked with it");
        traffic.senders = vec![WindowReading { packets: arrived, elapsed: duration, cpu, packets_total: 0 }];
        Ok(sample_from_traffic(traffic))
    }

    /// Runs the program for as long as the window is open; notes the processor time that it took within it.
    fn sender_work(self, cpu: &Arc<Mutex<Duration>>) -> ThreadWork<'a> {
        let cpu = Arc::clone(cpu);
        Box::new(move |gauge| {
            let to = (self.testbed.stage.receiver.ipv4, PORT);
            let prepare = |command: &mut Command| self.preload.prepare_command(command);
            let running = RunningSenderProgram::start(self.program, to, DATAGRAM_BYTES, prepare)?;
            self.preload.check_loaded(running.process_id())?;
            measure_cpu_while_sending(gauge, &cpu, || running.cpu_time())?;
            drop(running);
            gauge.count_packets(0);
            Ok(())
        })
    }
}
