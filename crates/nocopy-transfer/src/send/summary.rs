//! The summary: the JSON schema `nocopy.send/2` (docs/send.md). A field that does not apply is absent.

use std::collections::BTreeMap;
use std::time::Duration;

use nocopy::Counter;
use nocopy::area::Balance;
use nocopy::integration::statistics::LinkCounters;
use nocopy::{Evidence, Port};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::kernel::{self, KernelTransmitter};
use super::pacer::Pace;
use super::queue::{Schedule, SendLimits, Tally};
use super::replay::{ReplayRow, ReplaySource};
use super::run::SendRunResult;
use super::source::PacketSource;
use super::transmitter::PortTransmitter;
use nocopy_report::CommandEnd;
use nocopy_report::quantity::Rate;

/// The share of a requested rate from which it counts as reached.
const REACHED: f64 = 0.99;

pub(super) type NamedCounts = BTreeMap<String, u64>;

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub interface: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// A port's mode, or `kernel generator`.
    pub mode: String,
    /// The port's, in lines.
    pub explanation: Vec<String>,
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
    pub not_sent: NamedCounts,
    /// Packets that were handed over and are known to be lost, by counter name.
    pub dropped: NamedCounts,
    /// The interface's counts during the run, for all senders.
    pub interface_counters: NamedCounts,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplayRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance: Option<FrameBalanceRow>,
}

/// What is counted. It names the fields of a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountedUnit {
    Packets,
    Datagrams,
    /// Of a stream.
    Pieces,
}

impl CountedUnit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Datagrams => "datagrams",
            Self::Pieces => "pieces",
        }
    }

    fn rate_field_name(self) -> &'static str {
        match self {
            Self::Packets => "packets_per_second",
            Self::Datagrams => "datagrams_per_second",
            Self::Pieces => "pieces_per_second",
        }
    }
}

#[derive(Debug)]
pub(super) struct Rates {
    pub unit: CountedUnit,
    pub units_per_second: Option<f64>,
    pub bits_per_second: Option<f64>,
    pub requested: RequestedRates,
    pub rate_reached: Option<bool>,
    /// By how much the schedule was shifted.
    pub behind_seconds: f64,
}

impl Rates {
    pub(super) fn new(unit: CountedUnit, schedule: &Schedule, pace: Pace, duration: Duration) -> Self {
        let [units_per_second, bits_per_second] = achieved_rates(schedule.tally, pace, duration);
        let requested = RequestedRates::new(unit, schedule.goal, pace);
        let reached = |requested: Option<f64>, achieved: Option<f64>| Some(achieved? >= REACHED * requested?);
        let rate_reached = reached(requested.units_per_second, units_per_second)
            .or_else(|| reached(requested.bits_per_second, bits_per_second));
        let behind_seconds = schedule.pacer.skipped_ns() as f64 / 1e9;
        Self { unit, units_per_second, bits_per_second, requested, rate_reached, behind_seconds }
    }

    /// Whether fewer units were handed over than requested, or at a lower rate.
    pub(super) fn are_goals_missed(&self, units: u64) -> bool {
        let too_few = self.requested.units.is_some_and(|requested| units < requested);
        too_few || self.requested.seconds.is_some() && self.rate_reached == Some(false)
    }
}

impl Serialize for Rates {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        serialize_if_known(&mut fields, self.unit.rate_field_name(), self.units_per_second)?;
        serialize_if_known(&mut fields, "bits_per_second", self.bits_per_second)?;
        fields.serialize_entry("requested", &self.requested)?;
        serialize_if_known(&mut fields, "rate_reached", self.rate_reached)?;
        fields.serialize_entry("behind_seconds", &self.behind_seconds)?;
        fields.end()
    }
}

/// A field that is absent if it is not known.
fn serialize_if_known<M: SerializeMap>(
    fields: &mut M,
    name: &'static str,
    value: Option<impl Serialize>,
) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| fields.serialize_entry(name, &value))
}

#[derive(Debug, Serialize)]
pub(super) struct EvidenceRow {
    pub copies: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

#[derive(Debug)]
pub(super) struct RequestedRates {
    unit: CountedUnit,
    pub units: Option<u64>,
    pub seconds: Option<f64>,
    pub units_per_second: Option<f64>,
    pub bits_per_second: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct FrameBalanceRow {
    total: u32,
    free: u64,
    in_use: i64,
    lent_rx: u64,
    lent_tx: u64,
    retired: u32,
    balanced: bool,
    #[serde(skip)]
    pub words: String,
}

impl From<Balance> for FrameBalanceRow {
    fn from(balance: Balance) -> Self {
        let Balance { total, free, in_use, lent_rx, lent_tx, retired, .. } = balance;
        let (balanced, words) = (balance.is_balanced(), balance.to_string());
        Self { total, free, in_use, lent_rx, lent_tx, retired, balanced, words }
    }
}

impl EvidenceRow {
    fn unknown(cause: &str) -> Self {
        Self { copies: "unknown", cause: Some(cause.into()) }
    }

    fn from_evidence(evidence: Evidence) -> Self {
        match evidence {
            Evidence::ZeroCopy => Self { copies: "zero-copy", cause: None },
            Evidence::Copied(cause) => Self { copies: "copied", cause: Some(cause.to_string()) },
            _ => Self { copies: "unknown", cause: None },
        }
    }
}

impl RequestedRates {
    fn new(unit: CountedUnit, goal: SendLimits, pace: Pace) -> Self {
        let (units_per_second, bits_per_second) = match pace {
            Pace::Rate(Rate::Packets(rate)) => (Some(rate), None),
            Pace::Rate(Rate::Bits(rate)) => (None, Some(rate)),
            Pace::FlatOut | Pace::Recorded { .. } => (None, None),
        };
        let seconds = goal.duration.as_ref().map(Duration::as_secs_f64);
        Self { unit, units: goal.packets, seconds, units_per_second, bits_per_second }
    }
}

impl Serialize for RequestedRates {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        serialize_if_known(&mut fields, self.unit.name(), self.units)?;
        serialize_if_known(&mut fields, "seconds", self.seconds)?;
        serialize_if_known(&mut fields, self.unit.rate_field_name(), self.units_per_second)?;
        serialize_if_known(&mut fields, "bits_per_second", self.bits_per_second)?;
        fields.end()
    }
}

impl Summary {
    /// For packets sent through a port, which was drained.
    pub(super) fn from_port<S: PacketSource>(
        interface: &str,
        transmitter: &mut PortTransmitter<S>,
        pace: Pace,
        run: &SendRunResult,
    ) -> Self {
        let queue = transmitter.scheduled_source();
        let mut summary = Self::new(interface, &queue.schedule, pace, run);
        let port = transmitter.port();
        summary.queue = Some(port.queue());
        summary.mode = port.mode().to_string();
        let explanation = port.explain().to_string();
        summary.explanation = explanation.lines().map(|line| line.trim().to_owned()).collect();
        summary.evidence = EvidenceRow::from_evidence(port.explain().evidence);
        summary.dropped = drop_counts(port);
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
            frames => (transmitter.scheduled_source().schedule.tally.frames == summary.packets)
                .then(|| summary.packets.saturating_sub(frames as u64)),
        };
        summary
    }

    /// For packets made by the kernel, which reports nothing else about them.
    pub(super) fn from_kernel(
        interface: &str,
        transmitter: &KernelTransmitter,
        pace: Pace,
        run: &SendRunResult,
    ) -> Self {
        let queue = transmitter.scheduled_source();
        Self::new(interface, &queue.schedule, pace, run)
    }

    fn new(interface: &str, schedule: &Schedule, pace: Pace, run: &SendRunResult) -> Self {
        let tally = schedule.tally;
        let not_sent = [("too_long", tally.too_long), ("too_short", tally.too_short)];
        Self {
            interface: interface.into(),
            queue: None,
            mode: "kernel generator".into(),
            explanation: Vec::new(),
            evidence: EvidenceRow::unknown(kernel::CAUSE),
            ended: run.end_reason(),
            packets: tally.packets,
            bytes: tally.bytes,
            completed: None,
            seconds: run.duration.as_secs_f64(),
            rates: Rates::new(CountedUnit::Packets, schedule, pace, run.duration),
            not_sent: not_sent.map(|(cause, count)| (cause.to_owned(), count)).into(),
            dropped: NamedCounts::new(),
            interface_counters: NamedCounts::new(),
            replay: None,
            balance: None,
        }
    }

    pub(super) fn add_replay(&mut self, replay: &mut ReplaySource, is_timed: bool) {
        for (cause, count) in replay.unsendable_by_cause() {
            *self.not_sent.entry(cause).or_default() += count;
        }
        self.replay = Some(replay.report_row(is_timed));
    }

    /// For packets whose outcome the kernel does not report: those that the interface does not count as sent
    /// are lost. The interface may count more if other programs sent, too.
    pub(super) fn add_uncounted_packets(&mut self, counted: u64) {
        self.dropped.insert("not_sent_by_kernel".into(), self.packets.saturating_sub(counted));
    }

    pub(super) fn add_interface_counters(&mut self, counted: &LinkCounters) {
        self.interface_counters =
            collect_counts(counted.counters().filter(|counter| counter.name.starts_with("tx_")));
    }
}

/// Packets and bits per second. With a schedule, the time from the first packet to the last has one gap fewer
/// than packets.
fn achieved_rates(tally: Tally, pace: Pace, duration: Duration) -> [Option<f64>; 2] {
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
fn drop_counts(port: &mut Port) -> NamedCounts {
    let stats = port.sender().stats();
    collect_counts(stats.into_iter().filter(|counter| counter.name != "tx_ring_empty_descs").cloned())
}

fn collect_counts(counters: impl Iterator<Item = Counter>) -> NamedCounts {
    counters.map(|counter| (counter.name.into_owned(), counter.value)).collect()
}
