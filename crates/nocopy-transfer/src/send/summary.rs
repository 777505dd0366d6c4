//! The summary: the JSON schema `nocopy.send/1` (docs/send.md). A field that does not apply is absent.

use std::collections::BTreeMap;
use std::time::Duration;

use nocopy::Counter;
use nocopy::area::Balance;
use nocopy::integration::statistics::LinkCounters;
use nocopy::{Evidence, Port};
use serde::Serialize;

use super::kernel::{self, KernelTransmitter};
use super::pacer::Pace;
use super::queue::{Goal, Schedule, Tally};
use super::replay::{Replay, ReplayRow};
use super::run::Run;
use super::source::Source;
use super::transmitter::PortTransmitter;
use nocopy_report::CommandEnd;
use nocopy_report::quantity::Rate;

/// The share of a requested rate from which it counts as reached.
const REACHED: f64 = 0.99;

pub(super) type Counts = BTreeMap<String, u64>;

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub interface: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// A port's mode, or `kernel generator`.
    pub mode: String,
    /// The port's explanation, in lines.
    pub report: Vec<String>,
    pub evidence: EvidenceRow,
    pub ended: CommandEnd,
    pub packets: u64,
    pub bytes: u64,
    /// Packets the kernel has finished, delivered or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
    /// Time until the last packet was handed over; without a rate, until the kernel had finished it.
    pub seconds: f64,
    #[serde(flatten)]
    pub rates: Rates,
    /// Packets that were not handed over, by cause.
    pub not_sent: Counts,
    /// Packets that were handed over and are known to be lost, by counter name.
    pub dropped: Counts,
    /// The interface's counts during the run, for all senders.
    pub interface_counters: Counts,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplayRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance: Option<BalanceRow>,
}

#[derive(Debug, Serialize)]
pub(super) struct Rates {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_second: Option<f64>,
    pub asked: RequestedRates,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_reached: Option<bool>,
    /// By how much the schedule was shifted.
    pub behind_seconds: f64,
}

impl Rates {
    pub(super) fn new(schedule: &Schedule, pace: Pace, duration: Duration) -> Self {
        let [packets_per_second, bits_per_second] = achieved(schedule.tally, pace, duration);
        let asked = RequestedRates::new(schedule.goal, pace);
        let reached = |asked: Option<f64>, achieved: Option<f64>| Some(achieved? >= REACHED * asked?);
        let rate_reached = reached(asked.packets_per_second, packets_per_second)
            .or_else(|| reached(asked.bits_per_second, bits_per_second));
        let behind_seconds = schedule.pacer.skipped_ns() as f64 / 1e9;
        Self { packets_per_second, bits_per_second, asked, rate_reached, behind_seconds }
    }

    /// Whether fewer packets were handed over than requested, or at a lower rate.
    pub(super) fn are_missed(&self, packets: u64) -> bool {
        let too_few = self.asked.packets.is_some_and(|asked| packets < asked);
        too_few || self.asked.seconds.is_some() && self.rate_reached == Some(false)
    }
}

#[derive(Debug, Serialize)]
pub(super) struct EvidenceRow {
    pub copies: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct RequestedRates {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits_per_second: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct BalanceRow {
    total: u32,
    free: u64,
    yours: i64,
    lent_rx: u64,
    lent_tx: u64,
    retired: u32,
    whole: bool,
    #[serde(skip)]
    pub words: String,
}

impl From<Balance> for BalanceRow {
    fn from(balance: Balance) -> Self {
        let Balance { total, free, yours, lent_rx, lent_tx, retired, .. } = balance;
        let (whole, words) = (balance.is_whole(), balance.to_string());
        Self { total, free, yours, lent_rx, lent_tx, retired, whole, words }
    }
}

impl EvidenceRow {
    fn unknown(cause: &str) -> Self {
        Self { copies: "unknown", cause: Some(cause.into()) }
    }

    fn of(evidence: Evidence) -> Self {
        match evidence {
            Evidence::ZeroCopy => Self { copies: "zero-copy", cause: None },
            Evidence::Copied(cause) => Self { copies: "copied", cause: Some(cause.to_string()) },
            _ => Self { copies: "unknown", cause: None },
        }
    }
}

impl RequestedRates {
    fn new(goal: Goal, pace: Pace) -> Self {
        let (packets_per_second, bits_per_second) = match pace {
            Pace::Rate(Rate::Packets(rate)) => (Some(rate), None),
            Pace::Rate(Rate::Bits(rate)) => (None, Some(rate)),
            Pace::FlatOut | Pace::Recorded { .. } => (None, None),
        };
        let seconds = goal.duration.as_ref().map(Duration::as_secs_f64);
        Self { packets: goal.packets, seconds, packets_per_second, bits_per_second }
    }
}

impl Summary {
    /// For packets sent through a port, which was drained.
    pub(super) fn of_port<S: Source>(
        interface: &str,
        transmitter: &mut PortTransmitter<S>,
        pace: Pace,
        run: &Run,
    ) -> Self {
        let queue = transmitter.queue();
        let mut summary = Self::new(interface, &queue.schedule, pace, run);
        let port = transmitter.port();
        summary.queue = Some(port.queue());
        summary.mode = port.mode().to_string();
        summary.report = port.explain().to_string().lines().map(|line| line.trim().to_owned()).collect();
        summary.evidence = EvidenceRow::of(port.explain().evidence);
        summary.dropped = dropped(port);
        // Its interface is down, or has no carrier.
        let still_queued = port.sender().queued();
        if still_queued > 0 {
            summary.dropped.insert("still_queued".into(), still_queued.into());
        }
        summary.balance = Some(port.balance().into());
        let unfinished = port.sender().in_flight();
        // Frames can be assigned to packets only if each packet is one.
        summary.completed = match unfinished {
            0 => Some(summary.packets),
            frames => (transmitter.queue().schedule.tally.frames == summary.packets)
                .then(|| summary.packets.saturating_sub(frames as u64)),
        };
        summary
    }

    /// For packets made by the kernel, which reports nothing else about them.
    pub(super) fn of_kernel(interface: &str, transmitter: &KernelTransmitter, pace: Pace, run: &Run) -> Self {
        let queue = transmitter.queue();
        Self::new(interface, &queue.schedule, pace, run)
    }

    fn new(interface: &str, schedule: &Schedule, pace: Pace, run: &Run) -> Self {
        let tally = schedule.tally;
        let not_sent = [("too_long", tally.too_long), ("too_short", tally.too_short)];
        Self {
            interface: interface.into(),
            queue: None,
            mode: "kernel generator".into(),
            report: Vec::new(),
            evidence: EvidenceRow::unknown(kernel::CAUSE),
            ended: run.ended(),
            packets: tally.packets,
            bytes: tally.bytes,
            completed: None,
            seconds: run.duration.as_secs_f64(),
            rates: Rates::new(schedule, pace, run.duration),
            not_sent: not_sent.map(|(cause, count)| (cause.to_owned(), count)).into(),
            dropped: Counts::new(),
            interface_counters: Counts::new(),
            replay: None,
            balance: None,
        }
    }

    pub(super) fn add_replay(&mut self, replay: &mut Replay, is_timed: bool) {
        for (cause, count) in replay.unsendable() {
            *self.not_sent.entry(cause).or_default() += count;
        }
        self.replay = Some(replay.row(is_timed));
    }

    /// For packets whose outcome the kernel does not report: those that the interface does not count as sent
    /// are lost. The interface may count more if other programs sent, too.
    pub(super) fn add_missing(&mut self, counted: u64) {
        self.dropped.insert("not_taken".into(), self.packets.saturating_sub(counted));
    }

    pub(super) fn add_interface(&mut self, counted: &LinkCounters) {
        self.interface_counters =
            counts(counted.counters().filter(|counter| counter.name.starts_with("tx_")));
    }
}

/// Packets and bits per second. With a schedule, the time from the first packet to the last has one gap fewer
/// than packets.
fn achieved(tally: Tally, pace: Pace, duration: Duration) -> [Option<f64>; 2] {
    let (packets, bytes) = match pace {
        Pace::Rate(_) | Pace::Recorded { .. } => {
            (tally.packets.saturating_sub(1), tally.bytes - tally.last_bytes)
        }
        Pace::FlatOut => (tally.packets, tally.bytes),
    };
    let seconds = duration.as_secs_f64();
    let a_second = |count: u64| (packets > 0 && seconds > 0.0).then(|| count as f64 / seconds);
    [a_second(packets), a_second(8 * bytes)]
}

/// Packets counted as lost after they were handed over.
fn dropped(port: &mut Port) -> Counts {
    let stats = port.sender().stats().unwrap_or_default();
    counts(stats.into_iter().filter(|counter| counter.name != "tx_ring_empty_descs").cloned())
}

fn counts(counters: impl Iterator<Item = Counter>) -> Counts {
    counters.map(|counter| (counter.name.into_owned(), counter.value)).collect()
}
