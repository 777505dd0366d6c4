//! A TCP receiver in the terms of the study of 2011: processor time by the study's rows, and the figures of
//! its other tables, by the length of the program's buffer. One line of `nocopy bench --founding --json`.

use serde::{Deserialize, Serialize};

use crate::check::CountCheck;
use crate::quantity::{length_text, short_number};
use crate::statistics::MedianRange;
use crate::table::Table;

/// The processor time of a TCP receiver by row of the study, and figures of its socket, for each length of
/// the program's buffer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReceiveAnalysis {
    /// The amount that each transfer moved.
    pub bytes: u64,
    /// Rounds for each buffer, each with profiling and without.
    pub rounds: u32,
    pub congestion_control: String,
    pub buffers: Vec<BufferAnalysis>,
}

/// Results for one length of the program's buffer, over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BufferAnalysis {
    pub buffer_bytes: usize,
    /// `SO_RCVBUF`, if it was set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer_bytes: Option<usize>,
    /// Without profiling.
    pub gbit_per_s: MedianRange,
    /// The loss of throughput by profiling.
    pub overhead_percent: MedianRange,
    /// Every row of the study once, in the order of [`ProcessorTimeRow::ALL`].
    pub rows: Vec<ProcessorTimeShare>,
    /// The copy to the program, a part of [`ProcessorTimeRow::ReceiveInProcess`], as a share of all rows.
    pub copy_share: f64,
    /// All rows together, per 10^6 received bytes; `None` if nothing was received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_mb: Option<f64>,
    /// The same as a share of one processor's time while it was profiled; may be more than 1, since softirqs
    /// run on another one.
    pub processor_share: f64,
    /// The number of samples for the rows.
    pub samples: u64,
    /// The share of the receiver's processor time (as the kernel accounts it) that samples cover. Samples of
    /// a thread that often leaves its processor arrive late.
    #[serde(default, alias = "seen_share", skip_serializing_if = "Option::is_none")]
    pub sampled_share: Option<f64>,
    /// The share of the received bytes that were not yet in the receive queue when the call began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct_share: Option<f64>,
    /// The share of incoming packets that the process handled itself, when it released the socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acks_per_segment: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_mean_bytes: Option<f64>,
    /// The receive queue when a call begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_mean_bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_max_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_mean_packets: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_max_packets: Option<u64>,
    pub checks: Vec<CountCheck>,
}

/// A row of the study's table of processor time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessorTimeRow {
    DriverInInterrupt,
    DriverOutsideInterrupt,
    ReceiveInSoftirq,
    ReceiveInProcess,
    AckInSoftirq,
    AckOutsideSoftirq,
    RetransmitTimer,
    DelayedAckTimer,
    KeepaliveTimer,
    EverythingElse,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessorTimeShare {
    pub row: ProcessorTimeRow,
    /// The row's share of the time of all rows, and half of its 95 % interval.
    pub share: f64,
    pub error_share: f64,
    /// For 10^6 bytes received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_mb: Option<f64>,
}

impl ProcessorTimeRow {
    pub const ALL: [Self; 10] = [
        Self::DriverInInterrupt,
        Self::DriverOutsideInterrupt,
        Self::ReceiveInSoftirq,
        Self::ReceiveInProcess,
        Self::AckInSoftirq,
        Self::AckOutsideSoftirq,
        Self::RetransmitTimer,
        Self::DelayedAckTimer,
        Self::KeepaliveTimer,
        Self::EverythingElse,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::DriverInInterrupt => "driver in interrupt",
            Self::DriverOutsideInterrupt => "driver outside interrupt",
            Self::ReceiveInSoftirq => "protocol receive in softirq",
            Self::ReceiveInProcess => "protocol receive in the process",
            Self::AckInSoftirq => "ACK sending in softirq",
            Self::AckOutsideSoftirq => "ACK sending outside softirq",
            Self::RetransmitTimer => "retransmit timer",
            Self::DelayedAckTimer => "delayed-ACK timer",
            Self::KeepaliveTimer => "keepalive timer",
            Self::EverythingElse => "everything else",
        }
    }
}

impl ReceiveAnalysis {
    /// A column for each buffer, and a line for each row and figure.
    pub fn table(&self) -> Table {
        let header = std::iter::once("buffer".to_owned());
        let header = header.chain(self.buffers.iter().map(|buffer| length_text(buffer.buffer_bytes)));
        let header: Vec<_> = header.collect();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let columns: Vec<_> = self.buffers.iter().map(BufferAnalysis::column_of_table).collect();
        // The buffers of a file that anybody wrote may have different rows: those of the longest, and a dash
        // for each that is missing.
        let names =
            columns.iter().max_by_key(|column| column.len()).into_iter().flatten().map(|(name, _)| name);
        let rows = names.map(|name| {
            let value = |column: &Vec<(String, String)>| {
                let found = column.iter().find(|(other, _)| other == name);
                found.map_or_else(|| "–".into(), |(_, value)| value.clone())
            };
            std::iter::once(name.clone()).chain(columns.iter().map(value)).collect()
        });
        Table::new(&header, 1..header.len(), rows.collect())
    }

    pub fn failed_checks(&self) -> impl Iterator<Item = (&BufferAnalysis, &CountCheck)> {
        let all =
            self.buffers.iter().flat_map(|buffer| buffer.checks.iter().map(move |check| (buffer, check)));
        all.filter(|(_, check)| !check.passed)
    }
}

impl BufferAnalysis {
    /// Names and values of [`ReceiveAnalysis::table`].
    fn column_of_table(&self) -> Vec<(String, String)> {
        let percent = |share: f64| format!("{:.1}", 100.0 * share);
        let optional =
            |value: Option<f64>, text: &dyn Fn(f64) -> String| value.map_or_else(|| "–".into(), text);
        let bytes = |bytes: f64| short_number(bytes.round());
        let two_digits = |rate: f64| format!("{rate:.0$}", usize::from(rate < 9.95));
        let MedianRange { median, low, high } = self.gbit_per_s;
        let mut column = vec![
            ("Gbit/s".into(), format!("{median:.2}")),
            ("  its interval".into(), format!("{}–{}", two_digits(low), two_digits(high))),
        ];
        for ProcessorTimeShare { row, share, .. } in &self.rows {
            column.push((format!("{}, %", row.title()), percent(*share)));
            if *row == ProcessorTimeRow::ReceiveInProcess {
                column.push(("  of it copying, %".into(), percent(self.copy_share)));
            }
        }
        let max = |value: Option<u64>| value.map(|value| value as f64);
        let figures = [
            ("total of these, us/MB", optional(self.us_per_mb, &|time| format!("{time:.0}"))),
            ("total of these, % of one processor", percent(self.processor_share)),
            ("threads' time sampled, %", optional(self.sampled_share, &percent)),
            ("cost of profiling, %", format!("{:.1}", self.overhead_percent.median)),
            ("direct share, %", optional(self.direct_share, &percent)),
            ("backlog share, %", optional(self.backlog_share, &percent)),
            ("ACKs a segment", optional(self.acks_per_segment, &|acks| format!("{acks:.3}"))),
            ("mean window, B", optional(self.window_mean_bytes, &bytes)),
            ("queue, mean B", optional(self.queue_mean_bytes, &bytes)),
            ("queue, largest B", optional(max(self.queue_max_bytes), &bytes)),
            ("queue, mean packets", optional(self.queue_mean_packets, &|packets| format!("{packets:.1}"))),
            (
                "queue, largest packets",
                optional(max(self.queue_max_packets), &|packets| format!("{packets:.0}")),
            ),
        ];
        column.extend(figures.map(|(name, value)| (name.to_owned(), value)));
        column
    }
}

#[cfg(test)]
impl BufferAnalysis {
    /// One without rows and without what is not always known.
    pub(crate) fn sample() -> Self {
        let range = || MedianRange { median: 1.0, low: 1.0, high: 1.0 };
        Self {
            buffer_bytes: 4096,
            receive_buffer_bytes: None,
            gbit_per_s: range(),
            overhead_percent: range(),
            rows: Vec::new(),
            copy_share: 0.25,
            us_per_mb: None,
            processor_share: 0.5,
            samples: 1,
            sampled_share: None,
            direct_share: None,
            backlog_share: None,
            acks_per_segment: None,
            window_mean_bytes: None,
            queue_mean_bytes: None,
            queue_max_bytes: None,
            queue_mean_packets: None,
            queue_max_packets: None,
            checks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer_with_rows(rows: &[ProcessorTimeRow]) -> BufferAnalysis {
        let row = |row: &ProcessorTimeRow| ProcessorTimeShare {
            row: *row,
            share: 0.5,
            error_share: 0.0,
            us_per_mb: None,
        };
        BufferAnalysis { rows: rows.iter().map(row).collect(), ..BufferAnalysis::sample() }
    }

    #[test]
    fn fields_of_earlier_versions_are_read() {
        let analysis = BufferAnalysis { sampled_share: Some(0.5), ..buffer_with_rows(&[]) };
        let text = serde_json::to_string(&analysis).unwrap();
        let read: BufferAnalysis =
            serde_json::from_str(&text.replace("sampled_share", "seen_share")).unwrap();
        assert_eq!(read, analysis);
    }

    /// A file that anybody may have written.
    #[test]
    fn buffers_may_have_different_rows() {
        let (shorter, longer) =
            (buffer_with_rows(&[ProcessorTimeRow::EverythingElse]), buffer_with_rows(&ProcessorTimeRow::ALL));
        for buffers in [vec![shorter.clone(), longer.clone()], vec![longer, shorter]] {
            let analysis =
                ReceiveAnalysis { bytes: 1, rounds: 1, congestion_control: "cubic".into(), buffers };
            let text = analysis.table().text();
            let line = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            let cells = |name: &str| line(name).matches("50.0").count();
            assert_eq!((cells("everything else"), cells("keepalive timer")), (2, 1), "{text}");
            assert!(line("keepalive timer").contains('–'), "{text}");
        }
    }
}
