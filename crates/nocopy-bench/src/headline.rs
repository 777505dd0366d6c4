//! The measurements of `nocopy bench` without a workload: the main jobs, one line each, within a minute.
//!
//! Each line is two methods of a series, by the jobs of `nocopy_report::headline`, so its rows are the same as those of `nocopy bench --all`.

use std::time::{Duration, Instant};

use nocopy_lab::Lab;
use nocopy_report::headline_table::{self, wrapped};
use nocopy_report::result::Report;
use nocopy_report::{headline, print};

use crate::Failure;
use crate::bench::{Bench, Rounds};
use crate::datagram::Datagrams;
use crate::generator::Load;
use crate::series::Series;
use crate::stage::USUAL_MTU_BYTES;
use crate::workload::{Workload, capture, list, messages, packet_send, tcp, udp_send};

/// Seven: six are enough for an interval of 95 %, and one may fail.
pub(crate) const ROUNDS: u32 = 7;

/// With the other costs of a trial, seven rounds of all lines fit into [`TIME`].
const WINDOW: Duration = Duration::from_millis(120);

/// The time for all lines. Each uses its share of the remaining time, if necessary with fewer rounds.
const TIME: Duration = Duration::from_secs(52);

/// A line: a series of a workload, and its measurement.
struct Line {
    workload: &'static dyn Workload,
    /// Makes the stage, and plays the series on it.
    play: fn(&mut Bench<'_>, Rounds) -> Result<(), Failure>,
}

const LINES: [Line; 13] = [
    Line {
        workload: &udp_send::UdpSend,
        play: |bench, rounds| {
            let place = udp_send::delivered(USUAL_MTU_BYTES)?;
            bench.play_line(udp_send::in_bursts(&place, Datagrams::in_bursts(64)), rounds)
        },
    },
    Line {
        workload: &udp_send::UdpSend,
        play: |bench, rounds| {
            let place = udp_send::delivered(USUAL_MTU_BYTES)?;
            bench.play_line(udp_send::in_bursts(&place, Datagrams::in_bursts(1400)), rounds)
        },
    },
    Line {
        workload: &udp_send::UdpSend,
        play: |bench, rounds| {
            let place = udp_send::segmented(USUAL_MTU_BYTES)?;
            bench.play_line(udp_send::singly(&place, Datagrams::singly(1400)), rounds)
        },
    },
    Line {
        workload: &udp_send::UdpReceive,
        play: |bench, rounds| {
            let place = udp_send::pair(USUAL_MTU_BYTES)?;
            bench.play_line(udp_send::reception(&place, 1400), rounds)
        },
    },
    Line {
        workload: &tcp::send::TcpSend,
        play: |bench, rounds| bench.play_line(tcp::send::of_owned(&tcp::Place::loopback()?), rounds),
    },
    Line {
        workload: &tcp::send::TcpSend,
        play: |bench, rounds| bench.play_line(tcp::send::of_published(&tcp::Place::loopback()?), rounds),
    },
    Line {
        workload: &tcp::receive::TcpReceive,
        play: |bench, rounds| bench.play_line(tcp::receive::of_any(&tcp::Place::loopback()?), rounds),
    },
    Line {
        workload: &tcp::proxy::TcpProxy,
        play: |bench, rounds| bench.play_line(tcp::proxy::series(&tcp::Place::loopback()?), rounds),
    },
    Line {
        workload: &messages::latency::MessageLatency,
        play: |bench, rounds| {
            let stage = messages::stage(Lab::builder())?;
            bench.play_line(messages::latency::of_length(&stage, 64), rounds)
        },
    },
    Line {
        workload: &messages::stream::MessageStream,
        play: |bench, rounds| {
            let stage = messages::stage(Lab::builder())?;
            bench.play_line(messages::stream::of_length(&stage, 1 << 20), rounds)
        },
    },
    Line {
        workload: &packet_send::PacketSend,
        play: |bench, rounds| {
            let stage = bench.plan.stage(Lab::builder())?;
            let sink = packet_send::Sink::open(&stage)?;
            bench.play_line(packet_send::of_length(&stage, &sink, 64), rounds)
        },
    },
    Line {
        workload: &capture::Capture,
        play: |bench, rounds| {
            let stage = bench.plan.stage(Lab::builder().gro_right(capture::WITH_GRO))?;
            bench.play_line(capture::generated(&stage, 64, Load::Full), rounds)
        },
    },
    Line {
        workload: &capture::Capture,
        play: |bench, rounds| {
            let stage = bench.plan.stage(Lab::builder().gro_right(capture::WITH_GRO))?;
            bench.play_line(capture::generated(&stage, 64, capture::PACE), rounds)
        },
    },
];

/// The workloads that have a line, in the order of the lines.
pub(crate) fn workloads() -> Vec<&'static dyn Workload> {
    let mut all: Vec<&'static dyn Workload> = LINES.iter().map(|line| line.workload).collect();
    all.dedup_by_key(|workload| workload.name());
    all
}

pub(crate) fn more() -> String {
    let names: Vec<_> = list::ALL.iter().map(|workload| workload.name()).collect();
    let one = wrapped(&format!("one: nocopy bench {}", names.join(" | ")));
    format!("see all: nocopy bench --all (about 18 minutes) · how: nocopy bench --explain\n{one}\n")
}

pub(crate) fn print_footer(report: &Report) -> Result<(), Failure> {
    Ok(print::text(&(headline_table::footer(report) + &more()))?)
}

/// All lines, each printed once it is measured.
pub(crate) fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    bench.measure_lines()
}

impl Bench<'_> {
    fn measure_lines(&mut self) -> Result<(), Failure> {
        let plan = self.plan;
        let lines: Vec<_> = LINES.iter().filter(|line| line.workload.can_play(plan)).collect();
        let (deadline, window) = (Instant::now() + plan.halved(TIME), plan.halved(WINDOW));
        self.progress.expect(u64::from(plan.rounds) * 2 * lines.len() as u64);
        self.print(&headline_table::header())?;
        for (line, left) in lines.iter().zip((1..=lines.len() as u32).rev()) {
            let time = deadline.saturating_duration_since(Instant::now()) / left;
            let rounds = Rounds { count: plan.rounds, window: plan.window.unwrap_or(window), time };
            (line.play)(self, rounds)?;
        }
        Ok(())
    }

    fn play_line(&mut self, mut series: Series<'_>, rounds: Rounds) -> Result<(), Failure> {
        let job = headline::job(&series.title, series.sink).expect("each line is that of a job");
        series.trials.retain(|trial| job.has(trial.method, trial.variant.as_deref()));
        debug_assert_eq!(series.trials.len(), 2, "{}", job.what);
        let before = self.rows.len();
        let played = self.play_rounds(&[series], rounds, |row| {
            row.headline = row.baseline.is_some().then(|| job.names());
        });
        let lines = headline_table::lines(&self.rows[before..]);
        self.print(&lines.concat())?;
        played
    }

    fn print(&self, text: &str) -> Result<(), Failure> {
        Ok(self.progress.suspend(|| print::text(text))?)
    }
}
