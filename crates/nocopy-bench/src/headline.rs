//! What `nocopy bench` measures when no workload is named: the main jobs, one line each, within a minute.
//!
//! Each line is two trials of a series of a workload, so its rows are the same as those of `nocopy bench --all`.

use std::time::{Duration, Instant};

use nocopy_lab::Lab;
use nocopy_report::headline_table::{self, wrapped};
use nocopy_report::print;
use nocopy_report::result::{Headline, Report};

use crate::Failure;
use crate::bench::{Bench, Rounds};
use crate::datagram::Datagrams;
use crate::series::{Series, Trial};
use crate::stage::{Stage, USUAL_MTU_BYTES};
use crate::workload::{Workload, capture, list, messages, packet_send, tcp, udp_send};

/// Seven: enough for an interval of 95 % (six), and one that may fail to be played in time.
pub(crate) const ROUNDS: u32 = 7;

/// With what a trial needs besides, seven rounds of all lines are within [`TIME`].
const WINDOW: Duration = Duration::from_millis(120);

/// For all lines together. Each may take its share of what is left, and then has fewer rounds.
const TIME: Duration = Duration::from_secs(52);

/// A job: two trials of one series.
struct Line {
    what: &'static str,
    workload: &'static dyn Workload,
    ours: Pick,
    other: Pick,
    /// Sets the stage, and plays the series there.
    play: fn(&mut Bench<'_>, &Line, Rounds) -> Result<(), Failure>,
}

/// A trial, and how it is called in the table.
struct Pick {
    method: &'static str,
    variant: Option<&'static str>,
    name: &'static str,
}

const fn pick(method: &'static str, name: &'static str) -> Pick {
    Pick { method, variant: None, name }
}

const fn variant(method: &'static str, variant: &'static str, name: &'static str) -> Pick {
    Pick { method, variant: Some(variant), name }
}

impl Pick {
    fn is(&self, trial: &Trial<'_>) -> bool {
        (trial.method, trial.variant.as_deref()) == (self.method, self.variant)
    }
}

const LINES: [Line; 13] = [
    Line {
        what: "UDP send, 64 B",
        workload: &udp_send::UdpSend,
        ours: pick("auto", "auto"),
        other: pick("socket", "send()"),
        play: |bench, line, rounds| {
            let place = udp_send::delivered(USUAL_MTU_BYTES)?;
            bench.play_line(udp_send::in_bursts(&place, Datagrams::in_bursts(64)), line, rounds)
        },
    },
    Line {
        what: "UDP send, 1400 B",
        workload: &udp_send::UdpSend,
        ours: pick("auto", "auto"),
        other: pick("socket", "send()"),
        play: |bench, line, rounds| {
            let place = udp_send::delivered(USUAL_MTU_BYTES)?;
            bench.play_line(udp_send::in_bursts(&place, Datagrams::in_bursts(1400)), line, rounds)
        },
    },
    Line {
        what: "UDP send, 1400 B, singly",
        workload: &udp_send::UdpSend,
        ours: variant("auto", udp_send::ONE_A_CALL, "auto"),
        other: variant("socket", udp_send::ONE_A_CALL, "send()"),
        play: |bench, line, rounds| {
            let place = udp_send::segmented(USUAL_MTU_BYTES)?;
            bench.play_line(udp_send::singly(&place, Datagrams::singly(1400)), line, rounds)
        },
    },
    Line {
        what: "UDP receive, 1400 B",
        workload: &udp_send::UdpReceive,
        ours: pick("auto", "auto"),
        other: pick("recvmmsg", "recvmmsg()"),
        play: |bench, line, rounds| {
            let place = udp_send::pair(USUAL_MTU_BYTES)?;
            bench.play_line(udp_send::reception(&place, 1400), line, rounds)
        },
    },
    Line {
        what: "TCP send, 64 KiB buffers",
        workload: &tcp::send::TcpSend,
        ours: pick("auto", "auto"),
        other: pick("plain", "send()"),
        play: |bench, line, rounds| {
            bench.play_line(tcp::send::of_owned(&tcp::Place::loopback()?), line, rounds)
        },
    },
    Line {
        what: "TCP send, the same 1 MiB",
        workload: &tcp::send::TcpSend,
        ours: pick("published", "published"),
        other: pick("plain", "send()"),
        play: |bench, line, rounds| {
            bench.play_line(tcp::send::of_published(&tcp::Place::loopback()?), line, rounds)
        },
    },
    Line {
        what: "TCP receive",
        workload: &tcp::receive::TcpReceive,
        ours: pick("auto", "auto"),
        other: variant("recv", "64-KiB", "recv()"),
        play: |bench, line, rounds| {
            bench.play_line(tcp::receive::of_any(&tcp::Place::loopback()?), line, rounds)
        },
    },
    Line {
        what: "TCP proxy",
        workload: &tcp::proxy::TcpProxy,
        ours: pick("splice", "splice()"),
        other: variant("read-write", "64-KiB", "recv+send"),
        play: |bench, line, rounds| {
            bench.play_line(tcp::proxy::series(&tcp::Place::loopback()?), line, rounds)
        },
    },
    Line {
        what: "message round trip, 64 B",
        workload: &messages::latency::MessageLatency,
        ours: variant("message-xdp", "spinning", "AF_XDP"),
        other: pick("tcp-spinning", "TCP"),
        play: |bench, line, rounds| {
            let stage = Stage::private(Lab::builder())?;
            bench.play_line(messages::latency::of_length(&stage, 64), line, rounds)
        },
    },
    Line {
        what: "messages one way, 1 MiB",
        workload: &messages::stream::MessageStream,
        ours: variant("message-udp", "blocking", "UDP sockets"),
        other: pick("tcp-blocking", "TCP"),
        play: |bench, line, rounds| {
            let stage = Stage::private(Lab::builder())?;
            bench.play_line(messages::stream::of_length(&stage, 1 << 20), line, rounds)
        },
    },
    Line {
        what: "packet send, 64 B",
        workload: &packet_send::PacketSend,
        ours: pick("xdp", "AF_XDP"),
        other: pick("packet-send", "send()"),
        play: |bench, line, rounds| {
            let stage = bench.plan.stage(Lab::builder())?;
            let sink = packet_send::Sink::open(&stage)?;
            bench.play_line(packet_send::of_length(&stage, &sink, 64), line, rounds)
        },
    },
    Line {
        what: "capture, 64 B, full rate",
        workload: &capture::Capture,
        ours: variant("xdp", "coalesced full-rate", "AF_XDP"),
        other: variant("packet-ring", "full-rate", "packet ring"),
        play: |bench, line, rounds| {
            let stage = bench.plan.stage(Lab::builder().gro_right(capture::WITH_GRO))?;
            bench.play_line(capture::at_full_rate(&stage, 64), line, rounds)
        },
    },
    Line {
        what: "capture CPU, 64 B, 300 k/s",
        workload: &capture::Capture,
        ours: variant("xdp", "coalesced 300-kpps", "AF_XDP"),
        other: variant("packet-ring", "300-kpps", "packet ring"),
        play: |bench, line, rounds| {
            let stage = bench.plan.stage(Lab::builder().gro_right(capture::WITH_GRO))?;
            bench.play_line(capture::at_pace(&stage, 64), line, rounds)
        },
    },
];

/// The workloads that have a line, in the order of the lines.
pub(crate) fn workloads() -> Vec<&'static dyn Workload> {
    let mut all: Vec<&'static dyn Workload> = LINES.iter().map(|line| line.workload).collect();
    all.dedup_by_key(|workload| workload.name());
    all
}

/// What to run to see more.
pub(crate) fn more() -> String {
    let names: Vec<_> = list::ALL.iter().map(|workload| workload.name()).collect();
    let one = wrapped(&format!("One workload: nocopy bench {}", names.join(" | ")));
    format!("\nAll of it, in about 20 minutes: nocopy bench --all\n{one}\n")
}

/// What there is to print under the lines.
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
            (line.play)(self, line, rounds)?;
        }
        Ok(())
    }

    fn play_line(&mut self, mut series: Series<'_>, line: &Line, rounds: Rounds) -> Result<(), Failure> {
        series.trials.retain(|trial| line.ours.is(trial) || line.other.is(trial));
        debug_assert_eq!(series.trials.len(), 2, "{}", line.what);
        let before = self.rows.len();
        let names = [line.what, line.ours.name, line.other.name].map(str::to_owned);
        let played = self.play_rounds(&[series], rounds, |row| {
            let [what, nocopy, other] = names.clone();
            row.headline = row.baseline.is_some().then_some(Headline { what, nocopy, other });
        });
        let lines = headline_table::lines(&self.rows[before..]);
        self.print(&lines.concat())?;
        played
    }

    fn print(&self, text: &str) -> Result<(), Failure> {
        Ok(self.progress.suspend(|| print::text(text))?)
    }
}
