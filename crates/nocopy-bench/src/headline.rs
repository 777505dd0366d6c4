//! The measurements of `nocopy bench` without a workload: the main jobs, each against one or two other
//! methods, within a minute.
//!
//! A job is some methods of a series (`nocopy_report::headline`), so its rows are the same as those of
//! `nocopy bench --all`.

use std::time::{Duration, Instant};

use nocopy_lab::Lab;
use nocopy_report::headline::{HeadlineJob, JOBS};
use nocopy_report::headline_table::{self, wrap_text};
use nocopy_report::print;
use nocopy_report::result::Report;

use crate::Failure;
use crate::bench::{Bench, RoundLimits};
use crate::datagram::DatagramSpec;
use crate::generator::GeneratorLoad;
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
type JobMeasurement = (&'static Workload, fn(&mut JobRun<'_, '_>) -> Result<(), Failure>);

/// One for each job, in their order.
const MEASUREMENTS: [JobMeasurement; JOBS.len()] = [
    (&udp_send::UDP_SEND, |run| {
        let testbed = udp_send::delivered_testbed(USUAL_MTU_BYTES)?;
        run.run_series(udp_send::burst_series(&testbed, DatagramSpec::in_bursts(64)))
    }),
    (&udp_send::UDP_SEND, |run| {
        let testbed = udp_send::delivered_testbed(USUAL_MTU_BYTES)?;
        run.run_series(udp_send::burst_series(&testbed, DatagramSpec::in_bursts(1400)))
    }),
    (&udp_send::UDP_SEND, |run| {
        let testbed = udp_send::segmented_testbed(USUAL_MTU_BYTES)?;
        run.run_series(udp_send::single_datagram_series(&testbed, DatagramSpec::singly(1400)))
    }),
    (&udp_send::UDP_RECEIVE, |run| {
        let testbed = udp_send::pair_testbed(USUAL_MTU_BYTES)?;
        run.run_series(udp_send::reception(&testbed, 1400))
    }),
    (&tcp::send::TCP_SEND, |run| {
        run.run_series(tcp::send::owned_buffer_series(&tcp::TcpTestbed::over_loopback()?))
    }),
    (&tcp::send::TCP_SEND, |run| {
        run.run_series(tcp::send::published_data_series(&tcp::TcpTestbed::over_loopback()?))
    }),
    (&tcp::receive::TCP_RECEIVE, |run| {
        run.run_series(tcp::receive::series_of_testbed(&tcp::TcpTestbed::over_loopback()?))
    }),
    (&tcp::proxy::TCP_PROXY, |run| {
        run.run_series(tcp::proxy::build_series(&tcp::TcpTestbed::over_loopback()?))
    }),
    (&messages::latency::MESSAGE_LATENCY, |run| {
        let stage = messages::make_site_pair(Lab::builder())?;
        run.run_series(messages::latency::series_of_length(&stage, 64))
    }),
    (&messages::stream::MESSAGE_STREAM, |run| {
        let stage = messages::make_site_pair(Lab::builder())?;
        run.run_series(messages::stream::series_of_length(&stage, 64))
    }),
    (&messages::stream::MESSAGE_STREAM, |run| {
        let stage = messages::make_site_pair(Lab::builder())?;
        run.run_series(messages::stream::series_of_length(&stage, 1 << 20))
    }),
    (&packet_send::PACKET_SEND, |run| {
        let stage = run.bench.plan.make_site_pair(Lab::builder())?;
        let sink = packet_send::CountingDropSink::open(&stage)?;
        run.run_series(packet_send::series_of_length(&stage, &sink, 64))
    }),
    (&capture::CAPTURE, |run| {
        let stage = run.bench.plan.make_site_pair(Lab::builder().gro_right(capture::WITH_GRO))?;
        run.run_series(capture::generated_series(&stage, 64, GeneratorLoad::Full))
    }),
    (&capture::CAPTURE, |run| {
        let stage = run.bench.plan.make_site_pair(Lab::builder().gro_right(capture::WITH_GRO))?;
        run.run_series(capture::generated_series(&stage, 64, capture::PACE))
    }),
];

/// The workloads that have a job, in the order of the jobs.
pub(crate) fn headline_workloads() -> Vec<&'static Workload> {
    let mut all: Vec<_> = MEASUREMENTS.map(|(workload, _)| workload).into();
    all.dedup_by_key(|workload| workload.name);
    all
}

pub(crate) fn further_commands() -> String {
    let names: Vec<_> = list::ALL.iter().map(|workload| workload.name).collect();
    let one = wrap_text(&format!("one: nocopy bench {}", names.join(" | ")));
    format!("see all: nocopy bench --all (about 18 minutes) · how: nocopy bench --explain\n{one}\n")
}

pub(crate) fn print_footer(report: &Report) -> Result<(), Failure> {
    Ok(print::print_text(&(headline_table::headline_footer(report) + &further_commands()))?)
}

/// All jobs, the lines of each printed once they are measured.
pub(crate) fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let plan = bench.plan;
    let all = MEASUREMENTS.into_iter().zip(&JOBS);
    let all: Vec<_> = all.filter(|((workload, _), _)| workload.can_run(plan)).collect();
    let (deadline, window) = (Instant::now() + plan.halve_if_quick(TIME), plan.halve_if_quick(WINDOW));
    let mut methods_left: usize = all.iter().map(|(_, job)| job.method_count()).sum();
    bench.progress.add_expected_steps(u64::from(plan.rounds) * methods_left as u64);
    print_above_progress(bench, &headline_table::header_line())?;
    for ((_, measure), job) in all {
        let left = deadline.saturating_duration_since(Instant::now());
        let time = left * job.method_count() as u32 / methods_left as u32;
        let rounds = RoundLimits { count: plan.rounds, window: plan.window.unwrap_or(window), time };
        measure(&mut JobRun { bench: &mut *bench, job, rounds })?;
        methods_left -= job.method_count();
    }
    Ok(())
}

/// A job, and the rounds in which it runs.
struct JobRun<'a, 'b> {
    bench: &'a mut Bench<'b>,
    job: &'a HeadlineJob,
    rounds: RoundLimits,
}

impl JobRun<'_, '_> {
    /// Plays the methods of the job, which are some of the series'.
    fn run_series(&mut self, mut series: Series<'_>) -> Result<(), Failure> {
        let Self { bench, job, rounds } = self;
        series.trials.retain(|trial| job.has_method(trial.method, trial.variant.as_deref()));
        debug_assert_eq!((&*series.title, series.trials.len()), (job.series, job.method_count()));
        let before = bench.rows.len();
        let outcome = bench.run_rounds(&[series], *rounds, |row| row.headline = job.headline_names(row));
        let lines = headline_table::headline_text_lines(&bench.rows[before..]);
        print_above_progress(bench, &lines.concat())?;
        outcome
    }
}

fn print_above_progress(bench: &Bench<'_>, text: &str) -> Result<(), Failure> {
    Ok(bench.progress.suspend(|| print::print_text(text))?)
}
