//! Programs that send datagrams one by one, as they are, with the library that joins them and without; and, as the ceiling, with the same
//! bursts made by hand, without any of its rules.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use nocopy::Cause;

use super::udp_send::{Place, delivered, pair};
use super::{LOOPBACK, Method, Workload};
use crate::Failure;
use crate::baseline::datagram_program::{Program, Running};
use crate::baseline::datagram_sender::PORT;
use crate::bench::Bench;
use crate::datagram::Datagrams;
use crate::evidence;
use crate::plan::Plan;
use crate::series::{Sample, Series, Trial};
use crate::stage::USUAL_MTU_BYTES;
use crate::traffic::{Work, conduct};
use crate::window::Reading;
use nocopy_report::figure::Figure;

const NAME: &str = "run-udp";
const DATAGRAM_BYTES: usize = 1400;

const PLAIN: &str = "unchanged";
const BATCHED: &str = "batch-udp";
const CEILING: &str = "by-hand";
const LIMIT: &str = "by-hand-first";

/// How often the thread that waits for a program looks whether it is time.
const LOOK: Duration = Duration::from_micros(500);

/// Programs that send, with and without.
#[derive(Debug)]
pub(crate) struct RunUdp;

impl Workload for RunUdp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "Unchanged programs that send datagrams one by one, with 'nocopy run --batch-udp' and without"
    }

    fn methods(&self) -> &'static [Method] {
        &[
            ("unchanged", "the program as it is"),
            ("batch-udp", "the same with the library that joins its datagrams to bursts"),
            ("by-hand", "the same with bursts of which nothing takes care: the ceiling"),
            ("by-hand-first", "the same, but the first datagram of each burst goes alone, as with batch-udp"),
        ]
    }

    fn lab_only(&self) -> Option<&'static str> {
        Some(LOOPBACK)
    }

    fn skips(&self, plan: &Plan) -> Vec<String> {
        let library = plan.tools.sockets.as_ref().err().map(|error| format!("SKIP: {NAME}: {error}"));
        let missing = Program::ALL.into_iter().filter(|program| !program.is_installed());
        let missing = missing.map(|program| {
            let (name, package) = (program.name(), program.package());
            format!("SKIP: {NAME}, {name}: {package} is not installed: 'apt install {package}'.")
        });
        library.into_iter().chain(missing).collect()
    }

    fn measure(&self, bench: &mut Bench<'_>) -> Result<(), Failure> {
        let Ok(library) = &bench.plan.tools.sockets else { return Ok(()) }; // a note says so
        let places = [delivered(USUAL_MTU_BYTES)?, pair(USUAL_MTU_BYTES)?];
        let programs = Program::ALL.into_iter().filter(|program| program.is_installed());
        let all =
            programs.flat_map(|program| places.iter().map(move |place| series(place, program, library)));
        bench.play(all.collect(), 60)
    }
}

fn series<'a>(place: &'a Place, program: Program, library: &'a Path) -> Series<'a> {
    let trial = |method: &'static str, baselines| {
        let run = Box::new(move |duration| Sender { place, program, library, method }.run(duration));
        Trial { method, variant: Some(program.name().into()), baselines, run }
    };
    Series {
        workload: NAME,
        title: format!("{NAME}, {}, {DATAGRAM_BYTES}-byte datagrams", program.name()),
        sink: Some(place.sink.name()),
        payload_bytes: DATAGRAM_BYTES,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials: vec![
            trial(PLAIN, &[]),
            trial(CEILING, &[PLAIN]),
            trial(LIMIT, &[CEILING]),
            trial(BATCHED, &[PLAIN, CEILING, LIMIT]),
        ],
    }
}

/// A program that sends, in one of the four ways.
#[derive(Debug, Clone, Copy)]
struct Sender<'a> {
    place: &'a Place,
    program: Program,
    library: &'a Path,
    method: &'static str,
}

impl<'a> Sender<'a> {
    fn run(self, duration: Duration) -> Result<Sample, Failure> {
        let stage = &self.place.stage;
        let taker = self.place.sink.taker().into_iter();
        let datagrams = Datagrams::singly(DATAGRAM_BYTES);
        let receive = taker.map(|taker| taker.open(&stage.receiver, datagrams)).collect::<Result<_, _>>()?;
        let cpu = Arc::new(Mutex::new(Duration::ZERO));
        let action = "try 'nocopy run --batch-udp --report' by itself";
        let failed = Failure::step(self.method, "send", action);
        let mut traffic = conduct(stage, duration, None, vec![self.work(&cpu)], receive).map_err(failed)?;
        // The count of the sink stands for that of the program, which counts nothing.
        let arrived: u64 = traffic.receivers.iter().map(|reading| reading.packets).sum();
        let cpu = *cpu.lock().expect("nobody panicked with it");
        traffic.senders = vec![Reading { packets: arrived, elapsed: duration, cpu, packets_total: 0 }];
        let evidence = evidence::told(nocopy::Evidence::Copied(Cause::SocketCall));
        Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
    }

    /// Runs the program for as long as the window is open; notes the processor time that it took within it.
    fn work(self, cpu: &Arc<Mutex<Duration>>) -> Work<'a> {
        let cpu = Arc::clone(cpu);
        Box::new(move |gauge| {
            let to = (self.place.stage.receiver.ipv4, PORT);
            let running = Running::start(self.program, to, DATAGRAM_BYTES, |command| self.prepare(command))?;
            self.check(running.id())?;
            let mut before = None;
            while gauge.sending() {
                gauge.count(0);
                if before.is_none() && gauge.is_measuring() {
                    before = Some(running.cpu()?);
                }
                sleep(LOOK);
            }
            let taken = running.cpu()?.saturating_sub(before.unwrap_or_default());
            *cpu.lock().expect("nobody panicked with it") = taken;
            drop(running);
            gauge.count(0);
            Ok(())
        })
    }

    fn prepare(self, command: &mut Command) {
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

    /// Whether it has the library that is to be measured: the loader only warns.
    fn check(self, process: u32) -> io::Result<()> {
        let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
        let is_loaded = maps.contains(&*self.library.to_string_lossy());
        match is_loaded == (self.method != PLAIN) {
            true => Ok(()),
            false => Err(io::Error::other(format!("{} was not loaded, or unasked", self.library.display()))),
        }
    }
}
