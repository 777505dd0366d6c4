//! The measurements of `nocopy bench` without a workload: the main jobs, each against one or two other
//! methods, within a minute.
//!
//! A job is some methods of a series (`nocopy_report::headline`), so its rows are the same as those of
//! `nocopy bench --all`.

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

/// A job's workload, and what makes the stage and runs the job's series on it.
type Measurement = (&'static Workload, fn(&mut JobRun<'_, '_>) -> Result<(), Failure>);

/// One for each job, in their order.
const MEASUREMENTS: [Measurement; JOBS.len()] = [
    (&udp_send::UDP_SEND, |run| {
        let testbed = udp_send::delivered(USUAL_MTU_BYTES)?;
        run.run_series(udp_send::in_bursts(&testbed, Datagrams::in_bursts(64)))
    }),
    (&udp_send::UDP_SEND, |run| {
        let testbed = udp_send::delivered(USUAL_MTU_BYTES)?;
        run.run_series(udp_send::in_bursts(&testbed, Datagrams::in_bursts(1400)))
    }),
    (&udp_send::UDP_SEND, |run| {
        let testbed = udp_send::segmented(USUAL_MTU_BYTES)?;
        run.run_series(udp_send::singly(&testbed, Datagrams::singly(1400)))
    }),
    (&udp_send::UDP_RECEIVE, |run| {
        let testbed = udp_send::pair(USUAL_MTU_BYTES)?;
        run.run_series(udp_send::reception(&testbed, 1400))
    }),
    (&tcp::send::TCP_SEND, |run| run.run_series(tcp::send::of_owned(&tcp::TcpTestbed::loopback()?))),
    (&tcp::send::TCP_SEND, |run| run.run_series(tcp::send::of_published(&tcp::TcpTestbed::loopback()?))),
    (&tcp::receive::TCP_RECEIVE, |run| run.run_series(tcp::receive::of_any(&tcp::TcpTestbed::loopback()?))),
    (&tcp::proxy::TCP_PROXY, |run| run.run_series(tcp::proxy::series(&tcp::TcpTestbed::loopback()?))),
    (&messages::latency::MESSAGE_LATENCY, |run| {
        let stage = messages::stage(Lab::builder())?;
        run.run_series(messages::latency::of_length(&stage, 64))
    }),
    (&messages::stream::MESSAGE_STREAM, |run| {
        let stage = messages::stage(Lab::builder())?;
        run.run_series(messages::stream::of_length(&stage, 64))
    }),
    (&messages::stream::MESSAGE_STREAM, |run| {
        let stage = messages::stage(Lab::builder())?;
        run.run_series(messages::stream::of_length(&stage, 1 << 20))
    }),
    (&packet_send::PACKET_SEND, |run| {
        let stage = run.bench.plan.stage(Lab::builder())?;
        let sink = packet_send::Sink::open(&stage)?;
        run.run_series(packet_send::of_length(&stage, &sink, 64))
    }),
    (&capture::CAPTURE, |run| {
        let stage = run.bench.plan.stage(Lab::builder().gro_right(capture::WITH_GRO))?;
        run.run_series(capture::generated(&stage, 64, Load::Full))
    }),
    (&capture::CAPTURE, |run| {
        let stage = run.bench.plan.stage(Lab::builder().gro_right(capture::WITH_GRO))?;
        run.run_series(capture::generated(&stage, 64, capture::PACE))
    }),
];

/// The workloads that have a job, in the order of the jobs.
pub(crate) fn workloads() -> Vec<&'static Workload> {
    let mut all: Vec<_> = MEASUREMENTS.map(|(workload, _)| workload).into();
    all.dedup_by_key(|workload| workload.name);
    all
}

pub(crate) fn further_commands() -> String {
    let names: Vec<_> = list::ALL.iter().map(|workload| workload.name).collect();
    let one = wrapped(&format!("one: nocopy bench {}", names.join(" | ")));
    format!("see all: nocopy bench --all (about 18 minutes) · how: nocopy bench --explain\n{one}\n")
}

pub(crate) fn print_footer(report: &Report) -> Result<(), Failure> {
    Ok(print::text(&(headline_table::footer(report) + &further_commands()))?)
}

/// All jobs, the lines of each printed once they are measured.
pub(crate) fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let plan = bench.plan;
    let all = MEASUREMENTS.into_iter().zip(&JOBS);
    let all: Vec<_> = all.filter(|((workload, _), _)| workload.can_run(plan)).collect();
    let (deadline, window) = (Instant::now() + plan.halved(TIME), plan.halved(WINDOW));
    let mut methods_left: usize = all.iter().map(|(_, job)| job.methods()).sum();
    bench.progress.expect(u64::from(plan.rounds) * methods_left as u64);
    show(bench, &headline_table::header())?;
    for ((_, measure), job) in all {
        let left = deadline.saturating_duration_since(Instant::now());
        let time = left * job.methods() as u32 / methods_left as u32;
        let rounds = Rounds { count: plan.rounds, window: plan.window.unwrap_or(window), time };
        measure(&mut JobRun { bench: &mut *bench, job, rounds })?;
        methods_left -= job.methods();
    }
    Ok(())
}

/// A job, and the rounds in which it runs.
struct JobRun<'a, 'b> {
    bench: &'a mut Bench<'b>,
    job: &'a Job,
    rounds: Rounds,
}

impl JobRun<'_, '_> {
    /// Plays the methods of the job, which are some of the series'.
    fn run_series(&mut self, mut series: Series<'_>) -> Result<(), Failure> {
        let Self { bench, job, rounds } = self;
        series.trials.retain(|trial| job.has(trial.method, trial.variant.as_deref()));
        debug_assert_eq!((&*series.title, series.trials.len()), (job.series, job.methods()));
        let before = bench.rows.len();
        let outcome = bench.run_rounds(&[series], *rounds, |row| row.headline = job.names(row));
        let lines = headline_table::lines(&bench.rows[before..]);
        show(bench, &lines.concat())?;
        outcome
    }
}

fn show(bench: &Bench<'_>, text: &str) -> Result<(), Failure> {
    Ok(bench.progress.suspend(|| print::text(text))?)
}
