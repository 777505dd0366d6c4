//! The measurements of `nocopy bench` without a workload: the main jobs, each against one or two other ways, within a minute.
//!
//! A job is some methods of a series (`nocopy_report::headline`), so its rows are the same as those of `nocopy bench --all`.

use std::time::{Duration, Instant};

use nocopy_lab::Lab;
use nocopy_report::headline::{JOBS, Job};
use nocopy_report::headline_table::{self, wrapped};
use nocopy_report::print;
use nocopy_report::result::Report;

use crate::Failure;
use crate::bench::{Bench, Rounds};
use crate::datagram::Datagrams;
use crate::generator::Load;
use crate::series::Series;
use crate::stage::USUAL_MTU_BYTES;
use crate::workload::{Workload, capture, list, messages, packet_send, tcp, udp_send};

/// Seven: six are enough for an interval of 95 %, and one may fail.
pub(crate) const ROUNDS: u32 = 7;

/// With the other costs of a trial, seven rounds of all jobs fit into [`TIME`].
const WINDOW: Duration = Duration::from_millis(120);

/// The time for all jobs. Each uses its share of the remaining time, if necessary with fewer rounds.
const TIME: Duration = Duration::from_secs(52);

/// How a job is measured.
struct Measurement {
    workload: &'static Workload,
    /// Makes the stage, and plays the job's series on it.
    play: fn(&mut Bench<'_>, &Job, Rounds) -> Result<(), Failure>,
}

/// One for each job, in their order.
const MEASUREMENTS: [Measurement; JOBS.len()] = [
    Measurement {
        workload: &udp_send::UDP_SEND,
        play: |bench, job, rounds| {
            let place = udp_send::delivered(USUAL_MTU_BYTES)?;
            bench.play_job(job, udp_send::in_bursts(&place, Datagrams::in_bursts(64)), rounds)
        },
    },
    Measurement {
        workload: &udp_send::UDP_SEND,
        play: |bench, job, rounds| {
            let place = udp_send::delivered(USUAL_MTU_BYTES)?;
            bench.play_job(job, udp_send::in_bursts(&place, Datagrams::in_bursts(1400)), rounds)
        },
    },
    Measurement {
        workload: &udp_send::UDP_SEND,
        play: |bench, job, rounds| {
            let place = udp_send::segmented(USUAL_MTU_BYTES)?;
            bench.play_job(job, udp_send::singly(&place, Datagrams::singly(1400)), rounds)
        },
    },
    Measurement {
        workload: &udp_send::UDP_RECEIVE,
        play: |bench, job, rounds| {
            let place = udp_send::pair(USUAL_MTU_BYTES)?;
            bench.play_job(job, udp_send::reception(&place, 1400), rounds)
        },
    },
    Measurement {
        workload: &tcp::send::TCP_SEND,
        play: |bench, job, rounds| bench.play_job(job, tcp::send::of_owned(&tcp::Place::loopback()?), rounds),
    },
    Measurement {
        workload: &tcp::send::TCP_SEND,
        play: |bench, job, rounds| {
            bench.play_job(job, tcp::send::of_published(&tcp::Place::loopback()?), rounds)
        },
    },
    Measurement {
        workload: &tcp::receive::TCP_RECEIVE,
        play: |bench, job, rounds| {
            bench.play_job(job, tcp::receive::of_any(&tcp::Place::loopback()?), rounds)
        },
    },
    Measurement {
        workload: &tcp::proxy::TCP_PROXY,
        play: |bench, job, rounds| bench.play_job(job, tcp::proxy::series(&tcp::Place::loopback()?), rounds),
    },
    Measurement {
        workload: &messages::latency::MESSAGE_LATENCY,
        play: |bench, job, rounds| {
            let stage = messages::stage(Lab::builder())?;
            bench.play_job(job, messages::latency::of_length(&stage, 64), rounds)
        },
    },
    Measurement {
        workload: &messages::stream::MESSAGE_STREAM,
        play: |bench, job, rounds| {
            let stage = messages::stage(Lab::builder())?;
            bench.play_job(job, messages::stream::of_length(&stage, 64), rounds)
        },
    },
    Measurement {
        workload: &messages::stream::MESSAGE_STREAM,
        play: |bench, job, rounds| {
            let stage = messages::stage(Lab::builder())?;
            bench.play_job(job, messages::stream::of_length(&stage, 1 << 20), rounds)
        },
    },
    Measurement {
        workload: &packet_send::PACKET_SEND,
        play: |bench, job, rounds| {
            let stage = bench.plan.stage(Lab::builder())?;
            let sink = packet_send::Sink::open(&stage)?;
            bench.play_job(job, packet_send::of_length(&stage, &sink, 64), rounds)
        },
    },
    Measurement {
        workload: &capture::CAPTURE,
        play: |bench, job, rounds| {
            let stage = bench.plan.stage(Lab::builder().gro_right(capture::WITH_GRO))?;
            bench.play_job(job, capture::generated(&stage, 64, Load::Full), rounds)
        },
    },
    Measurement {
        workload: &capture::CAPTURE,
        play: |bench, job, rounds| {
            let stage = bench.plan.stage(Lab::builder().gro_right(capture::WITH_GRO))?;
            bench.play_job(job, capture::generated(&stage, 64, capture::PACE), rounds)
        },
    },
];

/// The workloads that have a job, in the order of the jobs.
pub(crate) fn workloads() -> Vec<&'static Workload> {
    let mut all: Vec<&'static Workload> =
        MEASUREMENTS.iter().map(|measurement| measurement.workload).collect();
    all.dedup_by_key(|workload| workload.name);
    all
}

pub(crate) fn more() -> String {
    let names: Vec<_> = list::ALL.iter().map(|workload| workload.name).collect();
    let one = wrapped(&format!("one: nocopy bench {}", names.join(" | ")));
    format!("see all: nocopy bench --all (about 18 minutes) · how: nocopy bench --explain\n{one}\n")
}

pub(crate) fn print_footer(report: &Report) -> Result<(), Failure> {
    Ok(print::text(&(headline_table::footer(report) + &more()))?)
}

/// All jobs, the lines of each printed once they are measured.
pub(crate) fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    bench.measure_jobs()
}

impl Bench<'_> {
    fn measure_jobs(&mut self) -> Result<(), Failure> {
        let plan = self.plan;
        let all = MEASUREMENTS.iter().zip(&JOBS);
        let all: Vec<_> = all.filter(|(measurement, _)| measurement.workload.can_play(plan)).collect();
        let (deadline, window) = (Instant::now() + plan.halved(TIME), plan.halved(WINDOW));
        let mut methods_left: usize = all.iter().map(|(_, job)| job.methods()).sum();
        self.progress.expect(u64::from(plan.rounds) * methods_left as u64);
        self.print(&headline_table::header())?;
        for (measurement, job) in all {
            let left = deadline.saturating_duration_since(Instant::now());
            let time = left * job.methods() as u32 / methods_left as u32;
            let rounds = Rounds { count: plan.rounds, window: plan.window.unwrap_or(window), time };
            (measurement.play)(self, job, rounds)?;
            methods_left -= job.methods();
        }
        Ok(())
    }

    fn play_job(&mut self, job: &Job, mut series: Series<'_>, rounds: Rounds) -> Result<(), Failure> {
        series.trials.retain(|trial| job.has(trial.method, trial.variant.as_deref()));
        debug_assert_eq!((&*series.title, series.trials.len()), (job.series, job.methods()));
        let before = self.rows.len();
        let played = self.play_rounds(&[series], rounds, |row| row.headline = job.names(row));
        let lines = headline_table::lines(&self.rows[before..]);
        self.print(&lines.concat())?;
        played
    }

    fn print(&self, text: &str) -> Result<(), Failure> {
        Ok(self.progress.suspend(|| print::text(text))?)
    }
}
