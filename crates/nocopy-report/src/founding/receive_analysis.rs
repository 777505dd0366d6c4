//! 2011: where the time goes in TCP receive. On an ARM9 throughput grew with the program's buffer and was
//! level from 64 KiB on; small buffers cost system calls and acknowledgements, and lost the direct path.

use super::{NOTHING, PublishedSystem, SystemResults};
use crate::chart::{ChartLine, ChartPoint, LineChart, StackedBar, StackedBarChart};
use crate::quantity::length_text;
use crate::receive_analysis::{BufferAnalysis, ProcessorTimeRow, ReceiveAnalysis};
use crate::result::Report;

pub(super) const SYSTEM: PublishedSystem = PublishedSystem {
    title: "2011 · TCP receive analysis (USTC): where the processor time of a receiver goes",
    about: "TCP with SO_RCVBUF of 64 KiB, read by recv() with MSG_WAITALL into buffers of 1 KiB to 4 MiB; shares of the receiver's processor \
            time, its part of the softirqs included and the measurement itself left out.",
    part: receive_analysis_results,
};

/// The buffer length from which the study found constant throughput.
const PUBLISHED_LEVEL_BYTES: usize = 64 << 10;

/// Throughput counts as constant from this share of the best rate on.
const LEVEL: f64 = 0.9;

/// If samples cover less than this share of the accounted time, time without samples could change the shares.
const SAMPLED_MIN: f64 = 0.9;

fn receive_analysis_results(report: &Report) -> Option<SystemResults> {
    let analysis = report.receive_analysis.as_ref()?;
    Some(SystemResults {
        table: analysis.table(),
        words: result_sentences(analysis),
        bars: vec![processor_time_bars(analysis)],
        lines: vec![throughput_lines(analysis)],
    })
}

fn result_sentences(analysis: &ReceiveAnalysis) -> Vec<String> {
    let amount = format!(
        "Each transfer moves {} MiB, {} times with profiling and as often without, whose rate is in the first line. Since Linux 4.14 every byte \
         goes through the receive queue: the direct share is of those that arrived when the reader waited already.",
        analysis.bytes >> 20,
        analysis.rounds
    );
    let failed = analysis.failed_checks().map(|(buffer, check)| {
        format!("A cross-check failed, buffer {}: {}.", length_text(buffer.buffer_bytes), check.description())
    });
    [level_throughput_sentence(analysis), amount]
        .into_iter()
        .chain(missed_samples_sentence(analysis))
        .chain(failed)
        .collect()
}

/// Names the smallest buffer that is as fast as all larger ones.
fn level_throughput_sentence(analysis: &ReceiveAnalysis) -> String {
    let rate = |buffer: &BufferAnalysis| buffer.gbit_per_s.median;
    let best = analysis.buffers.iter().map(rate).fold(0.0, f64::max);
    let is_level = |buffer: &&BufferAnalysis| rate(buffer) >= LEVEL * best;
    let first = analysis.buffers.iter().rev().take_while(is_level).last();
    let verdict = match first.map(|buffer| buffer.buffer_bytes) {
        Some(PUBLISHED_LEVEL_BYTES) => "the same",
        _ => "other than published",
    };
    format!(
        "Median throughput stays within {:.0} % of the best from a buffer of {} on; published: from 64 KiB on: {verdict}.",
        (1.0 - LEVEL) * 100.0,
        first.map_or_else(|| NOTHING.into(), |buffer| length_text(buffer.buffer_bytes)),
    )
}

fn missed_samples_sentence(analysis: &ReceiveAnalysis) -> Option<String> {
    let sampled = analysis.buffers.iter().filter_map(|buffer| buffer.sampled_share).reduce(f64::min)?;
    (sampled < SAMPLED_MIN).then(|| {
        format!(
            "Samples cover as little as {:.0} % of the threads' time that the kernel accounted: they come late where a thread leaves its processor \
             often. The shares are of what was sampled, and totals of columns that were sampled unequally cannot be compared.",
            sampled * 100.0
        )
    })
}

fn processor_time_bars(analysis: &ReceiveAnalysis) -> StackedBarChart {
    let amounts = |buffer: &BufferAnalysis| {
        let time = |row: &ProcessorTimeRow| {
            buffer.rows.iter().find(|time| time.row == *row).and_then(|time| time.us_per_mb)
        };
        ProcessorTimeRow::ALL.iter().map(|row| time(row).unwrap_or(0.0)).collect()
    };
    let bar = |buffer: &BufferAnalysis| StackedBar {
        name: length_text(buffer.buffer_bytes),
        amounts: amounts(buffer),
    };
    StackedBarChart {
        title: "Processor time by the length of the buffer, us for 10^6 bytes".into(),
        parts: ProcessorTimeRow::ALL.iter().map(|row| row.title().to_owned()).collect(),
        bars: analysis.buffers.iter().map(bar).collect(),
    }
}

fn throughput_lines(analysis: &ReceiveAnalysis) -> LineChart {
    let value = |buffer: &BufferAnalysis| ChartPoint {
        length_bytes: buffer.buffer_bytes as u64,
        value: buffer.gbit_per_s.median,
        interval: Some((buffer.gbit_per_s.low, buffer.gbit_per_s.high)),
    };
    let line = ChartLine { name: "recv()".into(), values: analysis.buffers.iter().map(value).collect() };
    LineChart { title: "Throughput by the length of the buffer, Gbit/s".into(), lines: vec![line] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::MedianRange;

    /// An analysis with these rates, of buffers of 1 KiB to 4 MiB.
    fn analysis_with_rates(gbit_per_s: [f64; 7]) -> ReceiveAnalysis {
        let buffer = |(index, median): (usize, f64)| BufferAnalysis {
            buffer_bytes: 1024 << (2 * index),
            gbit_per_s: MedianRange { median, low: median, high: median },
            ..BufferAnalysis::sample()
        };
        let buffers = gbit_per_s.into_iter().enumerate().map(buffer).collect();
        ReceiveAnalysis { bytes: 1 << 20, rounds: 1, congestion_control: "cubic".into(), buffers }
    }

    #[test]
    fn throughput_is_level_where_it_stays_near_the_best() {
        let published = level_throughput_sentence(&analysis_with_rates([1.0, 4.0, 7.0, 9.5, 9.2, 10.0, 9.8]));
        assert!(
            published.contains("from a buffer of 64 KiB on") && published.ends_with("the same."),
            "{published}"
        );
        let level_at_once = level_throughput_sentence(&analysis_with_rates([9.5; 7]));
        assert!(level_at_once.contains("of 1 KiB on") && level_at_once.contains("other"), "{level_at_once}");
        let falls = level_throughput_sentence(&analysis_with_rates([1.0, 4.0, 7.0, 9.5, 9.2, 10.0, 5.0]));
        assert!(falls.contains("of – on") && falls.contains("other"), "{falls}");
    }
}
