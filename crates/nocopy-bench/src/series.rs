//! Methods that are compared with each other, and the results of their rounds.

use std::time::Duration;

use super::traffic::TrafficReadings;
use super::window::WindowReading;
use crate::Failure;
use nocopy_report::figure::Figure;
use nocopy_report::result::{Evidence, LinkDescription, Row};
use nocopy_report::statistics::{self, median, median_interval};

/// A baseline: the trial of [`MODES`] with the best median.
pub(crate) const BEST_MODE: &str = "best mode";

/// A baseline: the trial of the series with the best median, other than the row itself. Variants do other
/// work and do not count.
pub(crate) const BEST_METHOD: &str = "best method";

/// A baseline: the trial of [`OWNED`] with the best median.
pub(crate) const BEST_FOR_OWNED: &str = "best method for owned buffers";

/// A baseline: the variant of a method with the best median.
pub(crate) const BEST_RECV: &str = "best recv";
pub(crate) const BEST_READ_WRITE: &str = "best read-write";

/// The methods that are a port in a mode that was chosen for it.
const MODES: [&str; 2] = ["xdp", "ring"];

/// Methods that send a buffer that the sender wrote and receives back.
const OWNED: [&str; 3] = ["plain", "zerocopy", "uring-zerocopy"];

/// One method, ready to run for a while.
pub(crate) struct Trial<'a> {
    pub method: &'static str,
    pub variant: Option<String>,
    /// The methods of the same series that it is compared with, each by the trial of the same variant, or
    /// else by its first one; or one of the constants above, as [`BEST_MODE`]. A row of results each.
    pub baselines: &'static [&'static str],
    pub run: Box<dyn Fn(Duration) -> Result<Sample, Failure> + 'a>,
}

/// Trials with the same source, sink and load: only these are compared.
pub(crate) struct Series<'a> {
    pub workload: &'static str,
    pub title: String,
    pub sink: Option<&'static str>,
    pub payload_bytes: usize,
    /// For streams only.
    pub link: Option<LinkDescription>,
    pub figure: Figure,
    pub trials: Vec<Trial<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Latency {
    pub mean_us: f64,
    /// Absent if only the mean is known.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub p99_9_us: Option<f64>,
    /// Messages in all phases, with and without an answer.
    pub answered: u64,
    pub lost: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub traffic: TrafficReadings,
    pub latency: Option<Latency>,
    pub evidence: Evidence,
    /// The share of sent packets that the receiver's filter accepts.
    pub wanted_share: f64,
}

impl Sample {
    /// What arrived (packets, or bytes of a stream), and in which time, at each receiver; at the sink if
    /// there is no receiver.
    fn arrivals(&self) -> impl Iterator<Item = (u64, Duration)> {
        let receivers = self.traffic.receivers.iter().map(|reading| (reading.packets, reading.elapsed));
        let sink = self.traffic.sink.filter(|_| self.traffic.receivers.is_empty());
        receivers.chain(sink).filter(|(_, elapsed)| !elapsed.is_zero())
    }

    pub(crate) fn total_arrived(&self) -> u64 {
        self.arrivals().map(|(packets, _)| packets).sum()
    }

    fn arrivals_per_s(&self) -> Option<f64> {
        let rates = self.arrivals().map(|(packets, elapsed)| packets as f64 / elapsed.as_secs_f64());
        rates.reduce(|sum, rate| sum + rate)
    }

    fn figure_value(&self, figure: Figure) -> Option<f64> {
        match figure {
            Figure::PacketsPerSecond | Figure::MessagesPerSecond | Figure::BytesPerSecond => {
                self.arrivals_per_s()
            }
            Figure::ReceiverCpuPerPacket => self.receiver_cpu_ns(),
            Figure::MachineCpuPerPacket => {
                time_per_packet_ns(self.traffic.machine_busy, self.total_arrived())
            }
            Figure::ReceiverCpu => self.receiver_cpu_percent(),
            // A nanosecond a byte is a millisecond a megabyte.
            Figure::SenderCpuPerMegabyte => self.sender_cpu_ns().map(|ns| ns * 1e3),
            Figure::ReceiverCpuPerMegabyte => self.receiver_cpu_ns().map(|ns| ns * 1e3),
            Figure::MedianLatency => self.latency.and_then(|latency| latency.p50_us),
            Figure::TailLatency => self.latency.and_then(|latency| latency.p99_us),
        }
    }

    /// The figure, converted so that more is better.
    fn merit(&self, figure: Figure) -> f64 {
        let value = self.figure_value(figure);
        value.map_or(0.0, |value| if figure.more_is_better() { value } else { value.recip() })
    }

    fn sender_cpu_ns(&self) -> Option<f64> {
        cpu_ns_per_packet(&self.traffic.senders)
    }

    fn receiver_cpu_ns(&self) -> Option<f64> {
        cpu_ns_per_packet(&self.traffic.receivers)
    }

    /// The proxy's processor time for each byte that arrived; time and bytes are of about the same window.
    fn proxy_cpu_ns(&self) -> Option<f64> {
        self.traffic.stream.proxy.and_then(|reading| time_per_packet_ns(reading.cpu, self.total_arrived()))
    }

    /// Share of a processor used by the receiver that needs most.
    fn receiver_cpu_percent(&self) -> Option<f64> {
        let awake = self.traffic.receivers.iter().filter(|reading| !reading.elapsed.is_zero());
        awake
            .map(|reading| reading.cpu.as_secs_f64() / reading.elapsed.as_secs_f64() * 100.0)
            .reduce(f64::max)
    }

    fn lost_percent(&self) -> Option<f64> {
        let total =
            |readings: &[WindowReading]| readings.iter().map(|reading| reading.packets_total).sum::<u64>();
        let (sent, received) = (total(&self.traffic.senders), total(&self.traffic.receivers));
        let measurable = sent > 0 && !self.traffic.receivers.is_empty();
        let wanted = sent as f64 * self.wanted_share;
        measurable.then(|| (wanted - received as f64).max(0.0) / wanted * 100.0)
    }
}

fn cpu_ns_per_packet(readings: &[WindowReading]) -> Option<f64> {
    let packets = readings.iter().map(|reading| reading.packets).sum();
    time_per_packet_ns(readings.iter().map(|reading| reading.cpu).sum(), packets)
}

fn time_per_packet_ns(time: Duration, packets: u64) -> Option<f64> {
    (packets > 0).then(|| time.as_nanos() as f64 / packets as f64)
}

type TrialSamples = Vec<Sample>;

/// The rows of a series; `rounds` has one list of samples per trial, in the order of trials.
pub(crate) fn result_rows(series: &Series<'_>, rounds: &[TrialSamples]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (trial, samples) in series.trials.iter().zip(rounds) {
        let Some(plain) = row_without_ratio(series, trial, samples) else { continue };
        let mut others: Vec<(ComparedTrial, &str)> = Vec::new();
        for &baseline in trial.baselines {
            let other = match baseline {
                BEST_MODE => find_best_trial(series, rounds, |other| MODES.contains(&other.method)),
                BEST_FOR_OWNED => find_best_trial(series, rounds, |other| OWNED.contains(&other.method)),
                BEST_RECV => find_best_trial(series, rounds, |other| other.method == "recv"),
                BEST_READ_WRITE => find_best_trial(series, rounds, |other| other.method == "read-write"),
                BEST_METHOD => find_best_trial(series, rounds, |other| {
                    other.method != trial.method && other.variant.is_none()
                }),
                method => find_named_trial(series, trial, method).map(ComparedTrial::same_in_all_rounds),
            };
            // The best trial may also be a named baseline; and a method is missing if the bench was
            // interrupted.
            let is_new = |other: &ComparedTrial| others.iter().all(|(known, _)| known.shown != other.shown);
            let is_played = |other: &ComparedTrial| !rounds[other.shown].is_empty();
            others.extend(other.filter(is_new).filter(is_played).map(|other| (other, baseline)));
        }
        let compared = others.into_iter().map(|(other, baseline)| {
            let row = row_with_ratio(plain.clone(), series.figure, samples, |round| {
                other.sample_in_round(rounds, round)
            });
            let other = &series.trials[other.shown];
            let namesakes = series.trials.iter().filter(|trial| trial.method == other.method).count();
            let baseline_variant = other.variant.clone().filter(|_| baseline == BEST_MODE || namesakes > 1);
            Row { baseline: Some(other.method.into()), baseline_variant, ..row }
        });
        let before = rows.len();
        rows.extend(compared);
        if rows.len() == before {
            rows.push(plain);
        }
    }
    rows
}

/// The trial of a method that another one is compared with.
fn find_named_trial(series: &Series<'_>, trial: &Trial<'_>, method: &str) -> Option<usize> {
    let position = |is_one: &dyn Fn(&Trial<'_>) -> bool| {
        series.trials.iter().position(|other| other.method == method && is_one(other))
    };
    let is_like = |other: &Trial<'_>| other.method != trial.method && other.variant == trial.variant;
    let like = trial.variant.is_some().then(|| position(&is_like)).flatten();
    like.or_else(|| position(&|_| true))
}

/// The trial that a row is compared with. The best of several is lucky in the rounds by which it is the best,
/// so it is picked in the odd rounds and compared in the even ones, and the other way round.
#[derive(Debug, Clone, Copy)]
struct ComparedTrial {
    /// The best of all rounds, which is named.
    shown: usize,
    /// The trial for even rounds, and for odd ones.
    in_rounds: [usize; 2],
}

impl ComparedTrial {
    fn same_in_all_rounds(trial: usize) -> Self {
        Self { shown: trial, in_rounds: [trial; 2] }
    }

    fn sample_in_round(self, rounds: &[TrialSamples], round: usize) -> Option<&Sample> {
        rounds[self.in_rounds[round % 2]].get(round)
    }
}

fn find_best_trial(
    series: &Series<'_>,
    rounds: &[TrialSamples],
    is_one: impl Fn(&Trial<'_>) -> bool,
) -> Option<ComparedTrial> {
    let best_of = |first: usize, step: usize| {
        let all = series.trials.iter().enumerate().filter(|(_, trial)| is_one(trial));
        let with_merit = all.filter_map(|(index, _)| {
            let merits = rounds[index].iter().skip(first).step_by(step);
            Some((index, median(&merits.map(|sample| sample.merit(series.figure)).collect::<Vec<_>>())?))
        });
        with_merit.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(index, _)| index)
    };
    let shown = best_of(0, 1)?;
    Some(ComparedTrial { shown, in_rounds: [1, 0].map(|first| best_of(first, 2).unwrap_or(shown)) })
}

fn row_without_ratio(series: &Series<'_>, trial: &Trial<'_>, samples: &[Sample]) -> Option<Row> {
    let last = samples.last()?;
    let figures: Vec<f64> = samples.iter().filter_map(|sample| sample.figure_value(series.figure)).collect();
    let interval = median_interval(&figures);
    let row = Row {
        workload: series.workload.into(),
        series: series.title.clone(),
        method: trial.method.into(),
        variant: trial.variant.clone(),
        sink: series.sink.map(str::to_owned),
        payload_bytes: series.payload_bytes,
        link: series.link.clone(),
        figure: series.figure,
        figure_low: interval.map(|interval| interval.low),
        figure_high: interval.map(|interval| interval.high),
        receiver_user_copies: median_figure(samples, |sample| sample.traffic.stream.receiver_user_copies),
        stolen_percent: samples.iter().map(|sample| sample.traffic.stolen_percent).reduce(f64::max),
        segments_retransmitted: samples
            .iter()
            .map(|sample| sample.traffic.stream.segments_retransmitted)
            .sum(),
        evidence: Some(last.evidence.copies),
        cause: last.evidence.cause.clone(),
        rounds: samples.len(),
        ..Row::default()
    };
    Some(match series.figure {
        Figure::BytesPerSecond | Figure::SenderCpuPerMegabyte | Figure::ReceiverCpuPerMegabyte => {
            row_of_stream(row, samples, last)
        }
        Figure::MedianLatency | Figure::TailLatency => row_of_latency(row, samples),
        Figure::MessagesPerSecond => row_of_messages(row, samples),
        _ => row_of_packets(row, samples, last),
    })
}

fn row_of_packets(row: Row, samples: &[Sample], last: &Sample) -> Row {
    let rate = median_figure(samples, Sample::arrivals_per_s);
    Row {
        packets_per_s: rate,
        gbit_per_s: rate.map(|rate| rate * row.payload_bytes as f64 * 8.0 / 1e9),
        ns_per_packet: rate.filter(|rate| *rate > 0.0).map(|rate| 1e9 / rate),
        lost_percent: median_figure(samples, Sample::lost_percent),
        sender_cpu_ns_per_packet: median_figure(samples, Sample::sender_cpu_ns),
        receiver_cpu_ns_per_packet: median_figure(samples, Sample::receiver_cpu_ns),
        receiver_cpu_percent: median_figure(samples, Sample::receiver_cpu_percent),
        receivers: Some(last.traffic.receivers.len()).filter(|count| *count > 1),
        machine_cpu_ns_per_packet: machine_cpu_ns(samples),
        ..row
    }
}

fn row_of_latency(row: Row, samples: &[Sample]) -> Row {
    let latency = |figure: fn(&Latency) -> Option<f64>| {
        median_figure(samples, |sample| sample.latency.as_ref().and_then(figure))
    };
    let total = |count: fn(&Latency) -> u64| {
        samples.iter().filter_map(|sample| sample.latency.as_ref().map(count)).sum()
    };
    Row {
        mean_us: latency(|latency| Some(latency.mean_us)),
        answered: Some(total(|latency| latency.answered)),
        lost: Some(total(|latency| latency.lost)),
        p50_us: latency(|latency| latency.p50_us),
        p99_us: latency(|latency| latency.p99_us),
        p99_9_us: latency(|latency| latency.p99_9_us),
        ..row
    }
}

fn row_of_messages(row: Row, samples: &[Sample]) -> Row {
    let rate = median_figure(samples, Sample::arrivals_per_s);
    Row {
        messages_per_s: rate,
        // Calls without a payload are messages, too.
        gbit_per_s: rate
            .filter(|_| row.payload_bytes > 0)
            .map(|rate| rate * row.payload_bytes as f64 * 8.0 / 1e9),
        ns_per_message: rate.filter(|rate| *rate > 0.0).map(|rate| 1e9 / rate),
        lost_percent: median_figure(samples, Sample::lost_percent),
        sender_cpu_ns_per_message: median_figure(samples, Sample::sender_cpu_ns),
        receiver_cpu_ns_per_message: median_figure(samples, Sample::receiver_cpu_ns),
        machine_cpu_ns_per_message: machine_cpu_ns(samples),
        ..row
    }
}

fn row_of_stream(row: Row, samples: &[Sample], last: &Sample) -> Row {
    let rate = median_figure(samples, Sample::arrivals_per_s);
    // A nanosecond a byte is a millisecond a megabyte.
    let us_per_mb = |ns_per_byte: Option<f64>| ns_per_byte.map(|ns| ns * 1e3);
    Row {
        buffer_bytes: last.traffic.stream.buffer_bytes,
        bytes_per_s: rate,
        gbit_per_s: rate.map(|rate| rate * 8.0 / 1e9),
        sender_cpu_us_per_mb: us_per_mb(median_figure(samples, Sample::sender_cpu_ns)),
        proxy_cpu_us_per_mb: us_per_mb(median_figure(samples, Sample::proxy_cpu_ns)),
        receiver_cpu_us_per_mb: us_per_mb(median_figure(samples, Sample::receiver_cpu_ns)),
        machine_cpu_us_per_mb: us_per_mb(machine_cpu_ns(samples)),
        receiver_cpu_percent: median_figure(samples, Sample::receiver_cpu_percent),
        receiver_memory_mib: median_figure(samples, |sample| {
            sample.traffic.stream.memory_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20))
        }),
        mapped_fraction: median_figure(samples, |sample| sample.traffic.stream.mapped_fraction),
        ..row
    }
}

fn row_with_ratio<'a>(
    row: Row,
    figure: Figure,
    samples: &[Sample],
    other: impl Fn(usize) -> Option<&'a Sample>,
) -> Row {
    let of_round =
        |(round, sample): (usize, &Sample)| Some((sample.merit(figure), other(round)?.merit(figure)));
    let (merits, others): (Vec<f64>, Vec<f64>) = samples.iter().enumerate().filter_map(of_round).unzip();
    let ratio = median_interval(&statistics::paired_ratios(&merits, &others));
    Row {
        ratio: ratio.map(|ratio| ratio.median),
        ratio_low: ratio.map(|ratio| ratio.low),
        ratio_high: ratio.map(|ratio| ratio.high),
        ..row
    }
}

fn median_figure(samples: &[Sample], figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    median(&samples.iter().filter_map(figure).collect::<Vec<_>>())
}

/// Over all rounds instead of a median: the kernel counts this in steps of 10 ms.
fn machine_cpu_ns(samples: &[Sample]) -> Option<f64> {
    let arrived = samples.iter().map(Sample::total_arrived).sum();
    time_per_packet_ns(samples.iter().map(|sample| sample.traffic.machine_busy).sum(), arrived)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial_of_method<'a>(
        method: &'static str,
        variant: Option<&str>,
        baselines: &'static [&'static str],
    ) -> Trial<'a> {
        let run = Box::new(|_| unreachable!("its samples are given"));
        Trial { method, variant: variant.map(str::to_owned), baselines, run }
    }

    fn sample_of_bytes(bytes: u64) -> Sample {
        let elapsed = Duration::from_secs(1);
        let reading = WindowReading { packets: bytes, elapsed, cpu: elapsed / 2, packets_total: bytes };
        let traffic = TrafficReadings {
            senders: vec![reading],
            receivers: vec![reading],
            ..TrafficReadings::default()
        };
        Sample { traffic, latency: None, evidence: Evidence::unknown("made up"), wanted_share: 1.0 }
    }

    fn rows_of_one_round(trials: Vec<Trial<'_>>, bytes: &[u64]) -> Vec<Row> {
        rows_of_rounds(trials, &bytes.iter().map(|&bytes| vec![bytes]).collect::<Vec<_>>())
    }

    fn rows_of_rounds(trials: Vec<Trial<'_>>, bytes: &[Vec<u64>]) -> Vec<Row> {
        let series = Series {
            workload: "made-up",
            title: String::new(),
            sink: None,
            payload_bytes: 1,
            link: None,
            figure: Figure::BytesPerSecond,
            trials,
        };
        let samples = |bytes: &Vec<u64>| bytes.iter().map(|&bytes| sample_of_bytes(bytes)).collect();
        result_rows(&series, &bytes.iter().map(samples).collect::<Vec<_>>())
    }

    #[test]
    fn the_best_variant_is_the_baseline_and_is_named() {
        let trials = vec![
            trial_of_method("recv", Some("1-KiB"), &[]),
            trial_of_method("recv", Some("64-KiB"), &[]),
            trial_of_method("recv", Some("4-MiB"), &[]),
            trial_of_method("auto", None, &[BEST_RECV]),
        ];
        let rows = rows_of_one_round(trials, &[1_000_000, 4_000_000, 2_000_000, 2_000_000]);
        let auto = &rows[3];
        assert_eq!(
            (auto.baseline.as_deref(), auto.baseline_variant.as_deref()),
            (Some("recv"), Some("64-KiB"))
        );
        assert_eq!((auto.ratio, auto.bytes_per_s, auto.packets_per_s), (Some(0.5), Some(2e6), None));
        assert_eq!((auto.sender_cpu_us_per_mb, auto.gbit_per_s), (Some(250_000.0), Some(0.016)));
    }

    #[test]
    fn a_variant_is_compared_with_the_same_variant() {
        let trials = vec![
            trial_of_method("udp", Some("blocking"), &[]),
            trial_of_method("udp", Some("spinning"), &["udp"]),
            trial_of_method("auto", Some("spinning"), &["udp"]),
            trial_of_method("auto", Some("adaptive"), &["udp"]),
        ];
        let rows = rows_of_one_round(trials, &[1_000_000, 4_000_000, 8_000_000, 8_000_000]);
        let compared: Vec<_> =
            rows.iter().map(|row| (row.baseline_variant.as_deref(), row.ratio)).skip(1).collect();
        let (first, like) = (Some("blocking"), Some("spinning"));
        assert_eq!(compared, [(first, Some(4.0)), (like, Some(2.0)), (first, Some(8.0))]);
    }

    /// Twenty equal methods whose rounds differ by chance: the best of them by the rounds that are compared
    /// would seem better by some 8 %.
    #[test]
    fn choosing_the_best_baseline_adds_no_bias() {
        let mut random = 1_u64;
        let mut rounds = |count: usize| -> Vec<u64> {
            let mut next = || {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                80_000 + (random >> 33) % 40_000
            };
            (0..count).map(|_| next()).collect()
        };
        let mut ratios = Vec::new();
        for _ in 0..100 {
            let by_hand = (0..20).map(|_| trial_of_method("recv", Some("one of many"), &[]));
            let trials: Vec<_> = by_hand.chain([trial_of_method("auto", None, &[BEST_RECV])]).collect();
            let bytes: Vec<_> = trials.iter().map(|_| rounds(12)).collect();
            ratios.extend(rows_of_rounds(trials, &bytes).last().and_then(|auto| auto.ratio));
        }
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        assert!((0.98..1.02).contains(&mean), "{mean}");
    }

    #[test]
    fn methods_that_send_other_data_are_no_baseline() {
        let trials = vec![
            trial_of_method("plain", None, &[]),
            trial_of_method("zerocopy", None, &["plain"]),
            trial_of_method("sendfile", None, &["plain"]),
            trial_of_method("auto", None, &["plain", BEST_FOR_OWNED]),
        ];
        let rows = rows_of_one_round(trials, &[2_000_000, 3_000_000, 9_000_000, 3_000_000]);
        let of_auto: Vec<_> = rows.iter().filter(|row| row.method == "auto").collect();
        let baselines: Vec<_> = of_auto.iter().map(|row| (row.baseline.as_deref(), row.ratio)).collect();
        assert_eq!(baselines, [(Some("plain"), Some(1.5)), (Some("zerocopy"), Some(1.0))]);
    }
}
