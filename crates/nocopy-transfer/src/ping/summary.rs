//! The summary of round trips: the JSON schema `nocopy.ping/2` (docs/ping.md). A field that does not apply is
//! absent.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::rounds::PingSession;
use crate::arguments::PingArguments;
use crate::exchange::WaitMode;
use crate::processor::ProcessorUse;
use nocopy_report::quantity::{short_number, time_text};
use nocopy_report::table::Table;
use nocopy_report::{CommandEnd, Outcome};

/// The most rows of a histogram, and the possible ratios of their bounds.
const ROWS_MAX: usize = 20;
const RATIOS: [f64; 7] = [1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 10.0];

/// The longest bar.
const BAR_CHARACTERS: u64 = 40;

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    target: String,
    scheme: &'static str,
    address: SocketAddr,
    /// The interface whose port carries the messages; absent with the kernel's sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
    wait: WaitMode,
    size_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval_us: Option<f64>,
    ended: CommandEnd,
    sent: u64,
    answered: u64,
    lost: u64,
    /// Of these, those that the kernel did not take, or reported as refused.
    lost_by: BTreeMap<String, u64>,
    late: u64,
    corrupt: u64,
    seconds: f64,
    answers_per_second: f64,
    /// Time from sending a message to its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip: Option<RoundTripTimes>,
    /// Time from the due time; only with an interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    since_due: Option<RoundTripTimes>,
    histogram: Vec<HistogramBar>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processor: Option<ProcessorUse>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct RoundTripTimes {
    min_us: f64,
    mean_us: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p99_9_us: f64,
    max_us: f64,
}

/// Number of round trips of at least `from_us` and less than `to_us`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct HistogramBar {
    from_us: f64,
    to_us: f64,
    count: u64,
}

impl RoundTripTimes {
    fn from_histogram(times: &Histogram<u64>) -> Option<Self> {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(times.value_at_quantile(quantile));
        (!times.is_empty()).then(|| Self {
            min_us: us(times.min()),
            mean_us: times.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            max_us: us(times.max()),
        })
    }

    fn description(self) -> String {
        let Self { min_us, mean_us, p50_us, p90_us, p99_us, p99_9_us, max_us } = self;
        format!(
            "p50 {p50_us:.1} us, p90 {p90_us:.1}, p99 {p99_us:.1}, p99.9 {p99_9_us:.1}; min {min_us:.1}, mean {mean_us:.1}, max {max_us:.1}"
        )
    }
}

/// Rows whose bounds have a fixed ratio, the smallest with which all fit.
fn histogram_bars(times: &Histogram<u64>) -> Vec<HistogramBar> {
    if times.is_empty() {
        return Vec::new();
    }
    let (low, high) = (times.min().max(1) as f64, times.max().max(1) as f64);
    let rows = |ratio: f64| ((high / low).ln() / ratio.ln()).floor() as usize + 1;
    let ratio = RATIOS.into_iter().find(|ratio| rows(*ratio) <= ROWS_MAX).unwrap_or(RATIOS[RATIOS.len() - 1]);
    let us = |ns: u64| ns as f64 / 1e3;
    let mut bars: Vec<HistogramBar> = Vec::new();
    let mut to = 0;
    for step in times.iter_recorded() {
        // The histogram reports the highest of the values that it does not distinguish.
        let value = step.value_iterated_to().min(times.max());
        while bars.is_empty() || value >= to {
            let from = if bars.is_empty() { times.min() } else { to };
            to = ((from as f64 * ratio).ceil() as u64).max(from + 1);
            bars.push(HistogramBar { from_us: us(from), to_us: us(to), count: 0 });
        }
        if let Some(bar) = bars.last_mut() {
            bar.count += step.count_at_value();
        }
    }
    bars
}

impl Summary {
    pub(super) fn from_rounds(
        arguments: &PingArguments,
        address: SocketAddr,
        rounds: &PingSession<'_>,
        failed: bool,
    ) -> Self {
        let ended = if failed { CommandEnd::Failed } else { rounds.ended.unwrap_or(CommandEnd::Interrupted) };
        let seconds = rounds.elapsed.as_secs_f64();
        Self {
            target: arguments.target.to_string(),
            scheme: arguments.target.scheme().name(),
            address,
            interface: arguments.interface.clone(),
            wait: arguments.wait,
            size_bytes: arguments.size,
            interval_us: arguments.interval.map(|interval| interval.as_secs_f64() * 1e6),
            ended,
            sent: rounds.sent,
            answered: rounds.answered,
            lost: rounds.lost,
            lost_by: rounds.lost_by.counts_by_name(),
            late: rounds.late,
            corrupt: rounds.corrupt,
            seconds,
            answers_per_second: rounds.answered as f64 / seconds.max(f64::MIN_POSITIVE),
            round_trip: RoundTripTimes::from_histogram(&rounds.round_trips),
            since_due: arguments.interval.and_then(|_| RoundTripTimes::from_histogram(&rounds.since_due)),
            histogram: histogram_bars(&rounds.round_trips),
            processor: rounds.used,
        }
    }
}

impl nocopy_report::Summary for Summary {
    const SCHEMA: &'static str = "nocopy.ping/2";

    /// Negative if an answer is missing, or none arrived.
    fn outcome(&self) -> Outcome {
        match self.lost > 0 || self.corrupt > 0 || self.answered == 0 {
            true => Outcome::Negative,
            false => Outcome::Positive,
        }
    }

    fn table(&self) -> Table {
        let over = self.interface.as_ref().map(|name| format!(" over a port of {name}")).unwrap_or_default();
        let end = self.ended.words();
        let seconds = self.seconds;
        let rate = short_number(self.answers_per_second);
        let (sent, answered, lost) = (self.sent, self.answered, self.lost);
        let mut said = format!("{sent} sent, {answered} answered ({rate}/s), {lost} lost");
        let causes: Vec<_> = self.lost_by.iter().map(|(error, count)| format!("{error} {count}")).collect();
        if !causes.is_empty() {
            let _ = write!(said, " ({})", causes.join(", "));
        }
        for (count, what) in [(self.late, "late"), (self.corrupt, "corrupt")] {
            if count > 0 {
                let _ = write!(said, ", {count} {what}");
            }
        }
        let mut rows = vec![
            (self.target.clone(), format!("{} bytes{over}, {}{end}", self.size_bytes, time_text(seconds))),
            ("messages".into(), said),
        ];
        rows.extend(self.round_trip.map(|times| ("round trip".into(), times.description())));
        rows.extend(self.since_due.map(|times| ("since due".into(), times.description())));
        rows.extend(self.processor.iter().map(|used| ("processor".into(), used.description())));
        rows.into()
    }

    fn details(&self) -> String {
        draw_bars(&self.histogram)
    }
}

fn draw_bars(bars: &[HistogramBar]) -> String {
    let most = bars.iter().map(|bar| bar.count).max().unwrap_or(0).max(1);
    let mut text = String::new();
    for HistogramBar { from_us, to_us, count } in bars {
        // A count above 0 is visible, even if small.
        let length = (count * BAR_CHARACTERS).div_ceil(most) as usize;
        let line = format!("{from_us:>12.1} to {to_us:>10.1} us {count:>9} {}", "█".repeat(length));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram_of(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut times = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
        values.into_iter().for_each(|value| times.record(value).unwrap());
        times
    }

    #[test]
    fn every_round_trip_is_in_exactly_one_bar() {
        for values in [vec![1], vec![0, 1, 2], (1000..3000).collect(), vec![5, 4_000_000_000, 7_000, 7_001]] {
            let times = histogram_of(values);
            let bars = histogram_bars(&times);
            assert!(!bars.is_empty() && bars.len() <= ROWS_MAX + 1, "{bars:?}");
            assert_eq!(bars.iter().map(|bar| bar.count).sum::<u64>(), times.len(), "{bars:?}");
            assert!(bars.windows(2).all(|pair| pair[0].to_us == pair[1].from_us), "{bars:?}");
        }
        assert_eq!(histogram_bars(&histogram_of([])), []);
    }

    #[test]
    fn every_bar_with_a_count_is_drawn() {
        let bar = |from_us, to_us, count| HistogramBar { from_us, to_us, count };
        let drawn = draw_bars(&[bar(1.0, 2.0, 10_000), bar(2.0, 4.0, 0), bar(4.0, 8.0, 1)]);
        let lengths: Vec<_> = drawn.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!(lengths, [40, 0, 1], "{drawn}");
    }

    #[test]
    fn percentiles_are_in_microseconds() {
        let times = RoundTripTimes::from_histogram(&histogram_of((1..=1000).map(|us| us * 1000))).unwrap();
        assert!((times.p50_us - 500.0).abs() < 1.0 && (times.p99_us - 990.0).abs() < 1.0, "{times:?}");
        assert!(times.min_us <= 1.0 && times.max_us >= 1000.0, "{times:?}");
    }
}
