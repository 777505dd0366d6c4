//! `nocopy bench`: methods against each other, in interleaved and paired rounds.
//!
//! ```text
//!   plan ─▶ stage (a lab, or two interfaces) ─▶ series of trials ─▶ rounds ─▶ rows ─▶ table, JSON
//! ```
//! A round runs every trial of every series once; the order within a series rotates from round to round.
//! What the machine does to one method in a round it does to its neighbours too, so ratios are taken round
//! by round, and survive a machine whose speed drifts.

// Read by the crates of this workspace alone: what a name does not say, a comment does.
#![allow(missing_docs)]

mod arguments;
mod baseline;
mod conversation;
mod cpu;
mod datagram;
mod evidence;
mod failure;
mod frame;
mod generator;
mod message;
mod ramp;
mod series;
pub mod stage;
pub mod stream;
mod traffic;
mod udp;
mod udp_over_port;
mod window;
mod workload;
mod xdp;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use nocopy_lab::{Builder, Lab};

pub use arguments::{BenchArguments, WorkloadName};
pub use baseline::injector::run as inject;
pub use failure::Failure;
use nocopy_report::ResultFile;
use nocopy_report::page;
use nocopy_report::progress::Progress;
use nocopy_report::result::{Report, Row, SCHEMA};
use nocopy_report::{Outcome, capability, print, wall_clock};
use nocopy_report::{machine, result_table};
use series::{Sample, Series, Trial};
use stage::{LONG_MTU_BYTES, Stage, USUAL_MTU_BYTES};
pub use stream::run as peer;
use workload::{capture, latency, libpcap, messages, packet_send, record, tcp, udp_send};

/// Every method of every workload, for `--method`.
pub const METHODS: [&str; 47] = [
    "packet-send",
    "sendmmsg",
    "packet-tx-ring",
    "ring",
    "xdp",
    "default",
    "kernel-generator",
    "packet-ring",
    "recvmmsg",
    "xdp-drop",
    "xdp-filter",
    "ring-filter",
    "packet-ring-fanout",
    "ring-fanout",
    "record",
    "tcpdump",
    "dumpcap",
    "tcp-blocking",
    "tcp-spinning",
    "udp-blocking",
    "udp-spinning",
    "xdp-poll",
    "xdp-spinning",
    "socket",
    "gso",
    "zerocopy",
    "zerocopy-gso",
    "uring-zerocopy",
    "uring-zerocopy-gso",
    "auto",
    "xdp-udp",
    "xdp-copy",
    "plain",
    "sendfile",
    "published",
    "vmsplice",
    "recv",
    "mapped",
    "read-write",
    "splice",
    "message-xdp",
    "message-udp",
    "tcp-batched",
    "fi_pingpong",
    "libpcap",
    "nocopy-passive",
    "nocopy-take",
];

/// Nine: the confidence interval may then ignore the best and the worst round.
const ROUNDS: u32 = 9;
const ROUNDS_QUICK: u32 = 7;

/// Time a trial takes besides its window: sockets, attaching, warming up, draining.
const TRIAL_OVERHEAD: Duration = Duration::from_millis(90);
pub const WINDOW_MIN: Duration = Duration::from_millis(50);
const WINDOW_MAX: Duration = Duration::from_millis(500);

/// What goes through the hosts' own TCP.
const STREAMS: [WorkloadName; 3] = [WorkloadName::TcpSend, WorkloadName::TcpReceive, WorkloadName::TcpProxy];

/// What is not measured between two interfaces of one namespace.
const PRIVATE: [WorkloadName; 7] = [
    WorkloadName::Libpcap,
    WorkloadName::UdpSend,
    WorkloadName::TcpSend,
    WorkloadName::TcpReceive,
    WorkloadName::TcpProxy,
    WorkloadName::MessageLatency,
    WorkloadName::MessageStream,
];

/// What moves messages.
const MESSAGES: [WorkloadName; 2] = [WorkloadName::MessageLatency, WorkloadName::MessageStream];

/// How long to look at the machine before using it.
const BUSY_LOOK: Duration = Duration::from_millis(200);
const BUSY_PERCENT_MAX: f64 = 15.0;

/// What was asked for.
struct Plan<'a> {
    arguments: &'a BenchArguments,
    workloads: Vec<WorkloadName>,
    rounds: u32,
    /// Our library in front of libpcap, or why it was not found.
    libpcap: Result<PathBuf, String>,
}

impl<'a> Plan<'a> {
    fn new(arguments: &'a BenchArguments, libpcap: Result<PathBuf, String>) -> Self {
        let chosen =
            |name: &&WorkloadName| arguments.workloads.is_empty() || arguments.workloads.contains(name);
        let rounds = if arguments.quick { ROUNDS_QUICK } else { ROUNDS };
        Self {
            arguments,
            workloads: WorkloadName::value_variants().iter().filter(chosen).copied().collect(),
            rounds: arguments.rounds.unwrap_or(rounds),
            libpcap,
        }
    }

    fn budget(&self, seconds: u64) -> Duration {
        let whole = Duration::from_secs(seconds);
        if self.arguments.quick { whole / 2 } else { whole }
    }

    fn wants(&self, method: &str) -> bool {
        let methods = &self.arguments.methods;
        methods.is_empty() || methods.iter().any(|wanted| wanted == method)
    }

    /// Whether there is nothing to measure between two interfaces, of all that is asked for.
    fn refuse_loopback(&self) -> Result<(), Failure> {
        let Self { workloads, arguments, .. } = self;
        if arguments.interface.is_none() || !workloads.iter().all(|workload| PRIVATE.contains(workload)) {
            return Ok(());
        }
        let names = workloads.iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<_> = names.map(|name| name.get_name().to_owned()).collect();
        Err(Failure::Loopback { workload: names.join(", ") })
    }

    /// A private one as `lab` says, or that of the interfaces given.
    fn stage(&self, lab: Builder) -> Result<Stage, Failure> {
        match (&self.arguments.interface, &self.arguments.peer) {
            (Some(interface), Some(peer)) => Stage::given(interface, peer),
            _ => Stage::private(lab),
        }
    }

    /// One that takes long frames; `None` if the interfaces given do not.
    fn long_stage(&self) -> Result<Option<Stage>, Failure> {
        let stage = self.stage(Lab::builder().mtu(LONG_MTU_BYTES))?;
        Ok(Some(stage).filter(Stage::is_long))
    }

    /// One with two queues; only a private one: which queue a packet comes to is the card's decision.
    fn two_queues_stage(&self) -> Result<Option<Stage>, Failure> {
        if self.arguments.interface.is_some() {
            return Ok(None);
        }
        Stage::of_two_queues(Lab::builder().gro_right(capture::WITH_GRO)).map(Some)
    }

    /// What to run for the same again, without the files it writes.
    fn command(&self) -> String {
        let BenchArguments { quick, rounds, interface, peer, methods, .. } = self.arguments;
        let workloads = self.arguments.workloads.iter().filter_map(ValueEnum::to_possible_value);
        let mut words = vec!["nocopy bench".to_owned()];
        words.extend(workloads.map(|workload| workload.get_name().to_owned()));
        words.extend(quick.then(|| "--quick".into()));
        words.extend(rounds.map(|rounds| format!("--rounds {rounds}")));
        words.extend(interface.as_ref().map(|interface| format!("--interface {interface}")));
        words.extend(peer.as_ref().map(|peer| format!("--peer {peer}")));
        words.extend(methods.iter().map(|method| format!("--method {method}")));
        words.join(" ")
    }

    fn network(&self) -> String {
        match (&self.arguments.interface, &self.arguments.peer) {
            (Some(interface), Some(peer)) => format!("{interface} to {peer}"),
            _ => "private veth pair".into(),
        }
    }

    fn notes(&self) -> Vec<String> {
        let records = self.workloads.contains(&WorkloadName::Record);
        let mut notes = if records { record::skips() } else { Vec::new() };
        if self.workloads.contains(&WorkloadName::Libpcap) && self.arguments.interface.is_none() {
            notes.extend(libpcap::skips(&self.libpcap));
        }
        if self.workloads.contains(&WorkloadName::UdpSend) && self.arguments.interface.is_none() {
            notes.extend(udp_send::notes());
        }
        if self.workloads.iter().any(|workload| STREAMS.contains(workload))
            && self.arguments.interface.is_none()
        {
            notes.push(tcp::NOTE.into());
        }
        if self.workloads.iter().any(|workload| MESSAGES.contains(workload))
            && self.arguments.interface.is_none()
        {
            notes.extend(messages::notes());
        }
        notes.extend(self.network_notes());
        notes
    }

    fn network_notes(&self) -> Vec<String> {
        if self.arguments.interface.is_none() {
            return vec![
                "veth has no zero-copy: AF_XDP runs in copy mode here, and the sender's processor does the receiving \
                 softirq too.".into(),
            ];
        }
        let skips = [
            (
                WorkloadName::Latency,
                "SKIP: tcp-* and udp-*: between two interfaces of one namespace the kernel delivers by loopback; \
                 leave out --interface for them.",
            ),
            (
                WorkloadName::UdpSend,
                "SKIP: udp-send: between two interfaces of one namespace the kernel delivers by loopback; leave out \
                 --interface for it.",
            ),
            (
                WorkloadName::Libpcap,
                "SKIP: libpcap: programs on interfaces that are not ours; leave out --interface for it.",
            ),
            (WorkloadName::TcpSend, "SKIP: tcp-send: as udp-send; leave out --interface for it."),
            (WorkloadName::TcpReceive, "SKIP: tcp-receive: as udp-send; leave out --interface for it."),
            (WorkloadName::TcpProxy, "SKIP: tcp-proxy: as udp-send; leave out --interface for it."),
            (
                WorkloadName::MessageLatency,
                "SKIP: message-latency: as udp-send; leave out --interface for it.",
            ),
            (WorkloadName::MessageStream, "SKIP: message-stream: as udp-send; leave out --interface for it."),
            (
                WorkloadName::Capture,
                "SKIP: two queues: which queue a packet comes to is the card's decision; leave out --interface for them.",
            ),
        ];
        let chosen = skips.iter().filter(|(workload, _)| self.workloads.contains(workload));
        chosen.map(|(_, skip)| (*skip).into()).collect()
    }
}

pub fn run(arguments: &BenchArguments, libpcap: Result<PathBuf, String>) -> Result<Outcome, Failure> {
    let open = |path| ResultFile::open(path, arguments.force);
    let json = arguments.json.as_deref().map(open).transpose()?;
    let html = arguments.html.as_deref().map(open).transpose()?;
    // Only now: to write where the files are to be may have taken one more.
    let plan = Plan::new(arguments, libpcap);
    let recorders = [WorkloadName::Record, WorkloadName::Libpcap];
    let records = plan.workloads.iter().any(|workload| recorders.contains(workload));
    let others = if records { capability::RECORDERS } else { capability::NONE };
    capability::drop_all_but(capability::NETWORK.union(others))?;
    plan.refuse_loopback()?;
    // What cannot work fails now, not after the first workload; and before anybody reads a warning.
    drop(plan.stage(Lab::builder())?);
    warn_if_busy();
    let report = measure_all(&plan)?;
    capability::drop_all_but(capability::NONE)?;
    if let Some(json) = json {
        json.write_json(&report)?;
    }
    if let Some(html) = html {
        html.write(&page::of_bench(&report))?;
    }
    result_table::print(&report)?;
    Ok(if report.is_silent() { Outcome::Negative } else { Outcome::Positive })
}

fn measure_all(plan: &Plan<'_>) -> Result<Report, Failure> {
    let measured_at = wall_clock::now();
    let progress = Progress::default();
    let mut results = Vec::new();
    for &workload in &plan.workloads {
        results.extend(measure(plan, workload, &progress)?);
    }
    if results.is_empty() {
        return Err(Failure::NothingToMeasure);
    }
    Ok(Report {
        schema: SCHEMA.into(),
        command: plan.command(),
        measured_at,
        machine: machine::describe(plan.network()),
        notes: plan.notes(),
        results,
    })
}

/// Other work on the processors is not wrong, but whoever reads wide intervals should know where they are from.
pub fn warn_if_busy() {
    if let Ok(percent) = cpu::busy_percent(BUSY_LOOK)
        && percent >= BUSY_PERCENT_MAX
    {
        print::say(format_args!(
            "warning: the processors are {percent:.0} % busy with other work: rates will be low and intervals wide: \
             stop it, or repeat later"
        ));
    }
}

fn measure(plan: &Plan<'_>, workload: WorkloadName, progress: &Progress) -> Result<Vec<Row>, Failure> {
    let play = |series: Vec<Series<'_>>, seconds: u64| play(plan, series, plan.budget(seconds), progress);
    match workload {
        WorkloadName::PacketSend => {
            let stage = plan.stage(Lab::builder())?;
            let sink = packet_send::Sink::open(&stage)?;
            let mut rows = play(packet_send::series(&stage, &sink), 30)?;
            if let Some(stage) = plan.long_stage()? {
                let sink = packet_send::Sink::open(&stage)?;
                rows.extend(play(packet_send::series_of_long_frames(&stage, &sink), 18)?);
            }
            Ok(rows)
        }
        WorkloadName::Capture => {
            let stage = plan.stage(Lab::builder().gro_right(capture::WITH_GRO))?;
            let mut rows = play(capture::series(&stage), 78)?;
            let stage = plan.stage(Lab::builder())?;
            rows.extend(play(capture::series_from_sockets(&stage), 38)?);
            if let Some(stage) = plan.long_stage()? {
                rows.extend(play(capture::series_of_long_frames(&stage), 16)?);
            }
            if let Some(stage) = plan.two_queues_stage()? {
                rows.extend(play(capture::series_of_two_queues(&stage), 16)?);
            }
            Ok(rows)
        }
        WorkloadName::Record => {
            let stage = plan.stage(Lab::builder().gro_right(capture::WITH_GRO))?;
            play(record::series(&stage), 240)
        }
        // Between two interfaces of one namespace there is nothing to measure, and a note says so.
        private if PRIVATE.contains(&private) && plan.arguments.interface.is_some() => Ok(Vec::new()),
        WorkloadName::Libpcap => {
            let Ok(library) = &plan.libpcap else { return Ok(Vec::new()) }; // a note says so
            let stage = Stage::private(Lab::builder().gro_right(capture::WITH_GRO))?;
            let mut rows = play(libpcap::capture::series(&stage, library), 300)?;
            drop(stage);
            rows.extend(play(libpcap::inject::series(&libpcap::inject::places()?, library), 40)?);
            Ok(rows)
        }
        WorkloadName::UdpSend => {
            let places = udp_send::places(USUAL_MTU_BYTES)?;
            let mut series = udp_send::series(&places, &udp_send::PAYLOAD_BYTES);
            series.extend(udp_send::series_of_single_datagrams(&places, &udp_send::PAYLOAD_BYTES));
            let mut rows = play(series, 50)?;
            drop(places);
            let places = udp_send::places(LONG_MTU_BYTES)?;
            rows.extend(play(udp_send::series(&places, &udp_send::PAYLOAD_BYTES_LONG), 25)?);
            Ok(rows)
        }
        WorkloadName::TcpSend => play(tcp::send::series(&tcp::Place::both()?), 80),
        WorkloadName::TcpReceive => {
            let mut rows = play(tcp::receive::series(&tcp::Place::both()?), 50)?;
            rows.extend(play(tcp::receive::series_of_pages(&tcp::receive::page_places()?), 35)?);
            Ok(rows)
        }
        WorkloadName::TcpProxy => play(tcp::proxy::series(&tcp::Place::loopback()?), 30),
        WorkloadName::MessageLatency => {
            let stage = Stage::private(Lab::builder())?;
            play(messages::latency::series(&stage), 80)
        }
        WorkloadName::MessageStream => {
            let stage = Stage::private(Lab::builder())?;
            let mut rows = play(messages::stream::series(&stage, &messages::stream::PAYLOADS_BYTES), 70)?;
            let stage = Stage::private(Lab::builder().mtu(LONG_MTU_BYTES))?;
            rows.extend(play(messages::stream::series(&stage, &messages::stream::PAYLOADS_BYTES_LONG), 14)?);
            Ok(rows)
        }
        WorkloadName::Latency => {
            let stage = plan.stage(Lab::builder())?;
            play(latency::series(&stage), 22)
        }
    }
}

/// How often a window is measured again because of signals.
const INTERRUPTIONS_MAX: u32 = 100;

/// Runs the rounds of a workload, at least one, and fewer than planned rather than longer than the budget.
fn play(
    plan: &Plan<'_>,
    mut all: Vec<Series<'_>>,
    budget: Duration,
    progress: &Progress,
) -> Result<Vec<Row>, Failure> {
    for series in &mut all {
        series.trials.retain(|trial| plan.wants(trial.method));
    }
    all.retain(|series| !series.trials.is_empty());
    let trials: usize = all.iter().map(|series| series.trials.len()).sum();
    if trials == 0 {
        return Ok(Vec::new());
    }
    let by_budget = || window_length(budget, plan.rounds, trials);
    let window = plan.arguments.window.unwrap_or_else(by_budget);
    progress.expect(u64::from(plan.rounds) * trials as u64);
    let mut rounds: Vec<Vec<Vec<Sample>>> =
        all.iter().map(|series| series.trials.iter().map(|_| Vec::new()).collect()).collect();
    let start = Instant::now();
    for round in 0..plan.rounds as usize {
        for (series, samples) in all.iter().zip(&mut rounds) {
            play_round(series, round, window, samples, progress)?;
        }
        let a_round = start.elapsed() / (round as u32 + 1);
        if start.elapsed() + a_round > budget + budget / 10 {
            progress.skip((plan.rounds as u64 - 1 - round as u64) * trials as u64);
            break;
        }
    }
    Ok(all.iter().zip(&rounds).flat_map(|(series, samples)| series::rows(series, samples)).collect())
}

fn play_round(
    series: &Series<'_>,
    round: usize,
    window: Duration,
    samples: &mut [Vec<Sample>],
    progress: &Progress,
) -> Result<(), Failure> {
    let count = series.trials.len();
    for index in (0..count).map(|offset| (round + offset) % count) {
        let trial = &series.trials[index];
        let variant = trial.variant.as_deref().unwrap_or_default();
        progress.start(format!("{}: {} {variant}", series.title, trial.method));
        samples[index].push(sample(trial, window)?);
        progress.step();
    }
    Ok(())
}

/// One sample. A window during which a signal interrupted a call (the bench was stopped, and went on) is measured again: it would
/// not be a measurement of the method.
fn sample(trial: &Trial<'_>, window: Duration) -> Result<Sample, Failure> {
    let mut interruptions = 0;
    loop {
        match (trial.run)(window) {
            Err(failure) if failure.is_interrupted() && interruptions < INTERRUPTIONS_MAX => {
                interruptions += 1
            }
            done => return done,
        }
    }
}

fn window_length(budget: Duration, rounds: u32, trials: usize) -> Duration {
    let share = budget / rounds.saturating_mul(u32::try_from(trials).unwrap_or(u32::MAX)).max(1);
    share.saturating_sub(TRIAL_OVERHEAD).clamp(WINDOW_MIN, WINDOW_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_the_budget_within_reason() {
        let budget = Duration::from_secs(30);
        let window = window_length(budget, 9, 8);
        assert!((window + TRIAL_OVERHEAD) * 72 <= budget);
        assert_eq!(window_length(budget, 1000, 22), WINDOW_MIN);
        assert_eq!(window_length(budget, 1, 1), WINDOW_MAX);
    }
}
