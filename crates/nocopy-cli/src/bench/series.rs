//! Methods that are compared with each other, and what their rounds amount to.

use std::time::Duration;

use super::result::{Evidence, Row};
use super::statistics::{self, interval, median};
use super::traffic::Traffic;
use crate::Failure;

/// What a ratio compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Figure {
    PacketsPerSecond,
    ReceiverCpuPerPacket,
    MedianLatency,
}

impl Figure {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Figure::PacketsPerSecond => "packets/s",
            Figure::ReceiverCpuPerPacket => "receiver CPU per packet",
            Figure::MedianLatency => "p50",
        }
    }

    /// The figure as something of which more is better.
    fn merit(self, sample: &Sample) -> f64 {
        match self {
            Figure::PacketsPerSecond => sample.packets_per_s().unwrap_or(0.0),
            Figure::ReceiverCpuPerPacket => sample.receiver_cpu_ns().map_or(0.0, f64::recip),
            Figure::MedianLatency => sample.latency.map_or(0.0, |latency| latency.p50_us.recip()),
        }
    }
}

/// One way to do it, ready to run for a while.
pub(crate) struct Trial<'a> {
    pub(crate) method: &'static str,
    pub(crate) variant: Option<String>,
    /// Methods of the same series it is compared with; a row of results each.
    pub(crate) baselines: &'static [&'static str],
    pub(crate) run: Box<dyn Fn(Duration) -> Result<Sample, Failure> + 'a>,
}

/// Trials with the same source, sink and load: the only ones that are ever compared.
pub(crate) struct Series<'a> {
    pub(crate) workload: &'static str,
    pub(crate) title: String,
    pub(crate) sink: Option<&'static str>,
    pub(crate) payload_bytes: usize,
    pub(crate) figure: Figure,
    pub(crate) trials: Vec<Trial<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Latency {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
}

/// What one run of a trial gave.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) traffic: Traffic,
    pub(crate) latency: Option<Latency>,
    pub(crate) evidence: Evidence,
}

impl Sample {
    /// Of the receiver or sink, never of the sender.
    fn arrived(&self) -> Option<(u64, Duration)> {
        let receiver = self.traffic.receiver.map(|reading| (reading.packets, reading.elapsed));
        receiver.or(self.traffic.sink).filter(|(_, elapsed)| !elapsed.is_zero())
    }

    fn packets_per_s(&self) -> Option<f64> {
        self.arrived().map(|(packets, elapsed)| packets as f64 / elapsed.as_secs_f64())
    }

    fn sender_cpu_ns(&self) -> Option<f64> {
        per_packet(self.traffic.sender.cpu, self.traffic.sender.packets)
    }

    fn receiver_cpu_ns(&self) -> Option<f64> {
        self.traffic.receiver.and_then(|reading| per_packet(reading.cpu, reading.packets))
    }

    fn dropped_percent(&self) -> Option<f64> {
        let (sent, received) = (self.traffic.sender.packets_total, self.traffic.receiver?.packets_total);
        (sent > 0).then(|| sent.saturating_sub(received) as f64 / sent as f64 * 100.0)
    }
}

fn per_packet(time: Duration, packets: u64) -> Option<f64> {
    (packets > 0).then(|| time.as_nanos() as f64 / packets as f64)
}

/// The samples of one trial, a round each.
type Rounds = Vec<Sample>;

/// The rows of a series; `rounds` is one list of samples for each trial, in the trials' order.
pub(crate) fn rows(series: &Series<'_>, rounds: &[Rounds]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (trial, samples) in series.trials.iter().zip(rounds) {
        let Some(plain) = plain_row(series, trial, samples) else { continue };
        let compared = trial.baselines.iter().filter_map(|&baseline| {
            let index = series.trials.iter().position(|other| other.method == baseline)?;
            Some(compare(plain.clone(), series.figure, samples, baseline, &rounds[index]))
        });
        let before = rows.len();
        rows.extend(compared);
        if rows.len() == before {
            rows.push(plain);
        }
    }
    rows
}

fn plain_row(series: &Series<'_>, trial: &Trial<'_>, samples: &[Sample]) -> Option<Row> {
    let last = samples.last()?;
    let rate = median_of(samples, Sample::packets_per_s).filter(|_| last.latency.is_none());
    let latency =
        |figure: fn(&Latency) -> f64| median_of(samples, |sample| sample.latency.as_ref().map(figure));
    Some(Row {
        workload: series.workload,
        method: trial.method,
        variant: trial.variant.clone(),
        sink: series.sink,
        payload_bytes: series.payload_bytes,
        packets_per_s: rate,
        gbit_per_s: rate.map(|rate| rate * series.payload_bytes as f64 * 8.0 / 1e9),
        ns_per_packet: rate.filter(|rate| *rate > 0.0).map(|rate| 1e9 / rate),
        dropped_percent: median_of(samples, Sample::dropped_percent),
        sender_cpu_ns_per_packet: median_of(samples, Sample::sender_cpu_ns),
        receiver_cpu_ns_per_packet: median_of(samples, Sample::receiver_cpu_ns),
        machine_cpu_ns_per_packet: machine_cpu_ns(samples),
        p50_us: latency(|latency| latency.p50_us),
        p99_us: latency(|latency| latency.p99_us),
        p99_9_us: latency(|latency| latency.p99_9_us),
        evidence: Some(last.evidence.copies),
        cause: last.evidence.cause.clone(),
        runs: samples.len(),
        ..Row::default()
    })
}

fn compare(row: Row, figure: Figure, samples: &[Sample], baseline: &'static str, others: &[Sample]) -> Row {
    let merits = |samples: &[Sample]| samples.iter().map(|sample| figure.merit(sample)).collect::<Vec<_>>();
    let ratio = interval(&statistics::ratios(&merits(samples), &merits(others)));
    Row {
        baseline: Some(baseline),
        ratio: ratio.map(|ratio| ratio.median),
        ratio_low: ratio.map(|ratio| ratio.low),
        ratio_high: ratio.map(|ratio| ratio.high),
        ..row
    }
}

fn median_of(samples: &[Sample], figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    median(&samples.iter().filter_map(figure).collect::<Vec<_>>())
}

/// All rounds together, not a median of them: the kernel counts this in steps of 10 ms.
fn machine_cpu_ns(samples: &[Sample]) -> Option<f64> {
    let arrived: u64 = samples.iter().filter_map(|sample| Some(sample.arrived()?.0)).sum();
    per_packet(samples.iter().map(|sample| sample.traffic.machine_busy).sum(), arrived)
}
