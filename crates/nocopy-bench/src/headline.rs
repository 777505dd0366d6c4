//! The measurements of `nocopy bench` without a workload: the main jobs, each against one or two other
//! methods, within a minute.
//!
//! A job is some methods of a series (`nocopy_report::headline`), so its rows are the same as those of
//! `nocopy bench --all`.

use std::time::{Duration, Instant};

use nocopy_lab::Lab;
use nocopy_report::headline::{HeadlineJob, JOBS};
use nocopy_report::headline_table::{self, wrap_text};
use nocopy_report::result::Report;
use nocopy_report::{markdown, print};

use crate::Failure;
use crate::bench::{Bench, RoundLimits};
use crate::card::describe_card;
use crate::datagram::DatagramSpec;
use crate::generator::GeneratorLoad;
use crate::series::Series;
use crate::stage::SitePair;
use crate::workload::tcp::TcpTestbed;
use crate::workload::{Workload, capture, list, messages, packet_send, tcp, udp_send};

/// Seven: six are enough for an interval of 95 %, and one may fail.
pub(crate) const ROUNDS: u32 = 7;

/// With the other costs of a trial, seven rounds of all jobs fit into [`TIME`].
const WINDOW: Duration = Duration::from_millis(120);

/// The same between two ports, whose links some drivers reset when a program comes or goes.
const TIME_OVER_CABLE: Duration = Duration::from_secs(120);

/// The time for all jobs. Each uses its share of the remaining time, if necessary with fewer rounds.
const TIME: Duration = Duration::from_secs(52);

/// Below the table of a card.
const AFTER_CARD: &str = "Paste this table into a card report; docs/cards.md collects them. It names no host, address or serial number.";

/// A job's workload, and what makes the stage and runs the job's series on it.
type JobMeasurement = (&'static Workload, fn(&mut JobRun<'_, '_>) -> Result<(), Failure>);

/// One for each job, in their order.
const MEASUREMENTS: [JobMeasurement; JOBS.len()] = [
    (&udp_send::UDP_SEND, |run| {
        let testbed = udp_send::delivered_testbed(run.make_private_site_pair()?)?;
        run.run_series(udp_send::burst_series(&testbed, DatagramSpec::in_bursts(64)))
    }),
    (&udp_send::UDP_SEND, |run| {
        let testbed = udp_send::delivered_testbed(run.make_private_site_pair()?)?;
        run.run_series(udp_send::burst_series(&testbed, DatagramSpec::in_bursts(1400)))
    }),
    (&udp_send::UDP_SEND, |run| {
        let testbed = udp_send::segmented_testbed(run.make_private_site_pair()?)?;
        run.run_series(udp_send::single_datagram_series(&testbed, DatagramSpec::singly(1400)))
    }),
    (&udp_send::UDP_RECEIVE, |run| {
        let testbed = udp_send::pair_testbed(run.make_private_site_pair()?)?;
        run.run_series(udp_send::reception(&testbed, 1400))
    }),
    (&tcp::send::TCP_SEND, |run| run.run_series(tcp::send::owned_buffer_series(&run.tcp_testbed()?))),
    (&tcp::send::TCP_SEND, |run| run.run_series(tcp::send::published_data_series(&run.tcp_testbed()?))),
    (&tcp::receive::TCP_RECEIVE, |run| run.run_series(tcp::receive::series_of_testbed(&run.tcp_testbed()?))),
    (&tcp::proxy::TCP_PROXY, |run| run.run_series(tcp::proxy::build_series(&run.tcp_testbed()?))),
    (&messages::latency::MESSAGE_LATENCY, |run| {
        let stage = run.make_private_site_pair()?.with_congestion_control()?;
        run.run_series(messages::latency::series_of_length(&stage, 64))
    }),
    (&messages::stream::MESSAGE_STREAM, |run| {
        let stage = run.make_private_site_pair()?.with_congestion_control()?;
        run.run_series(messages::stream::series_of_length(&stage, 64))
    }),
    (&messages::stream::MESSAGE_STREAM, |run| {
        let stage = run.make_private_site_pair()?.with_congestion_control()?;
        run.run_series(messages::stream::series_of_length(&stage, 1 << 20))
    }),
    (&packet_send::PACKET_SEND, |run| {
        let stage = run.bench.plan.make_site_pair(Lab::builder())?;
        let sink = packet_send::CountingDropSink::open(&stage)?;
        run.run_series(packet_send::series_of_length(&stage, &sink, 64))
    }),
    (&capture::CAPTURE, |run| {
        let stage = run.bench.plan.make_site_pair(Lab::builder().gro_right(capture::WITH_GRO))?;
        let _ready = capture::prepare_sender(&stage)?;
        run.run_series(capture::generated_series(&stage, 64, GeneratorLoad::Full))
    }),
    (&capture::CAPTURE, |run| {
        let stage = run.bench.plan.make_site_pair(Lab::builder().gro_right(capture::WITH_GRO))?;
        let _ready = capture::prepare_sender(&stage)?;
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
    format!("see all: nocopy bench --all (about 22 minutes) · how: nocopy bench --explain\n{one}\n")
}

pub(crate) fn print_footer(report: &Report) -> Result<(), Failure> {
    if let Some(table) = markdown::card_table(report) {
        return Ok(print::print_text(&format!("\n{table}\n{AFTER_CARD}\n"))?);
    }
    Ok(print::print_text(&(headline_table::headline_footer(report) + &further_commands()))?)
}

/// All jobs, the lines of each printed once they are measured.
pub(crate) fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let plan = bench.plan;
    let all = MEASUREMENTS.into_iter().zip(&JOBS);
    let all: Vec<_> = all.filter(|((workload, _), _)| workload.can_run(plan)).collect();
    let time = if plan.cable.is_some() { TIME_OVER_CABLE } else { TIME };
    let (deadline, window) = (Instant::now() + plan.halve_if_quick(time), plan.halve_if_quick(WINDOW));
    let mut methods_left: usize = all.iter().map(|(_, job)| job.method_count()).sum();
    bench.progress.add_expected_steps(u64::from(plan.rounds) * methods_left as u64);
    print_above_progress(bench, &headline_table::header_line())?;
    for ((_, measure), job) in all {
        let left = deadline.saturating_duration_since(Instant::now());
        let time = left * job.method_count() as u32 / methods_left as u32;
        let rounds = RoundLimits { count: plan.rounds, window: plan.window.unwrap_or(window), time };
        match measure(&mut JobRun { bench: &mut *bench, job, rounds }) {
            // What one card cannot do must not hide the rest.
            Err(failure) if plan.cable.is_some() && !bench.is_interrupted() => {
                bench.skips.push(format!("SKIP: {}: {failure}", job.what));
            }
            measured => measured?,
        }
        methods_left -= job.method_count();
    }
    match &plan.cable {
        Some(cable) => bench.add_card(describe_card(&cable.lab)?),
        None => Ok(()),
    }
}

/// A job, and the rounds in which it runs.
struct JobRun<'a, 'b> {
    bench: &'a mut Bench<'b>,
    job: &'a HeadlineJob,
    rounds: RoundLimits,
}

impl JobRun<'_, '_> {
    fn tcp_testbed(&self) -> Result<TcpTestbed, Failure> {
        TcpTestbed::over_cable_or_loopback(self.bench.plan)
    }

    fn make_private_site_pair(&self) -> Result<SitePair, Failure> {
        self.bench.plan.make_private_site_pair(Lab::builder())
    }

    /// Plays the methods of the job, which are some of the series'.
    fn run_series(&mut self, mut series: Series<'_>) -> Result<(), Failure> {
        let Self { bench, job, rounds } = self;
        series.trials.retain(|trial| job.has_method(trial.method, trial.variant.as_deref()));
        debug_assert_eq!(series.trials.len(), job.method_count());
        debug_assert!(series.title == job.series || bench.plan.cable.is_some());
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
