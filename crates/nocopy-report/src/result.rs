//! Rows of a bench, as the JSON schema `nocopy.bench/3` has them. A field that does not apply is
//! absent, never null or zero.

use serde::{Deserialize, Serialize};

use super::figure::Figure;
use super::receive_analysis::ReceiveAnalysis;

/// The ends of an interval that are this far apart say little.
pub const UNCERTAIN: f64 = 3.0;

/// The schema of the file: see [`crate::result_lines`].
pub const SCHEMA: &str = "nocopy.bench/3";

/// The same lines, in which some fields had other names: the aliases below.
pub const SCHEMA_2: &str = "nocopy.bench/2";

/// The same fields as in version 2, but the file is one object, which is a [`Report`].
pub const SCHEMA_1: &str = "nocopy.bench/1";

#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    /// The command that repeats the measurement.
    pub command: String,
    /// UTC, to the second.
    pub measured_at: String,
    pub machine: Machine,
    /// Measurements that were not possible, and other remarks for the reader.
    pub notes: Vec<String>,
    pub results: Vec<Row>,
    /// Only for `nocopy bench --founding`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_analysis: Option<ReceiveAnalysis>,
    /// Only for `nocopy bench --pair`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<Card>,
}

impl Report {
    /// The number of rounds of its rows: `9`, or `5 to 9`.
    pub fn rounds(&self) -> String {
        let rounds = self.results.iter().map(|row| row.rounds);
        let (fewest, most) = (rounds.clone().min().unwrap_or(0), rounds.max().unwrap_or(0));
        if fewest == most { format!("{most}") } else { format!("{fewest} to {most}") }
    }

    /// The rows, grouped by comparison.
    pub fn sections(&self) -> impl Iterator<Item = Section<'_>> {
        let same = |one: &Row, other: &Row| Section::series_key(one) == Section::series_key(other);
        self.results.chunk_by(same).map(|rows| Section { first: &rows[0], rows })
    }

    /// Whether the figure of any row is 0: nothing was moved.
    pub fn has_zero_figure(&self) -> bool {
        let figure = |row: &Row| {
            let rate = row.packets_per_s.or(row.messages_per_s).or(row.bytes_per_s);
            rate.or(row.p50_us).or(row.mean_us).unwrap_or(0.0)
        };
        self.results.iter().any(|row| figure(row) <= 0.0)
    }
}

/// The rows of one series, never empty, and their common fields.
#[derive(Debug, Clone, Copy)]
pub struct Section<'a> {
    first: &'a Row,
    pub rows: &'a [Row],
}

impl<'a> Section<'a> {
    fn series_key(row: &Row) -> (&str, &str, Option<&str>, Figure) {
        (&row.workload, &row.series, row.sink.as_deref(), row.figure)
    }

    pub fn title(self) -> &'a str {
        &self.first.series
    }

    pub fn workload(self) -> &'a str {
        &self.first.workload
    }

    pub fn sink(self) -> Option<&'a str> {
        self.first.sink.as_deref()
    }

    pub fn figure(self) -> Figure {
        self.first.figure
    }
}

/// The machine, for readers who compare results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub nocopy_version: String,
    pub kernel: String,
    pub architecture: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    pub processors: usize,
    /// Whether the processor reports that it is virtual, and so shares a real one with others.
    pub virtual_machine: bool,
    /// `private veth pair`, or the interfaces given.
    pub network: String,
}

impl Machine {
    pub fn description(&self) -> String {
        let Self { network, kernel, processors, .. } = self;
        let processor = self.processor.as_deref().unwrap_or("unknown processor");
        let shared = if self.virtual_machine { " (a virtual machine)" } else { "" };
        format!("{network} · Linux {kernel} · {processors} × {processor}{shared}")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyEvidence {
    ZeroCopy,
    Copied,
    Unknown,
}

impl CopyEvidence {
    pub fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::Copied => "copied",
            Self::Unknown => "unknown",
        }
    }
}

/// Evidence about copies, and its cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub copies: CopyEvidence,
    pub cause: Option<String>,
}

impl Evidence {
    pub fn copied(cause: impl Into<String>) -> Self {
        Self { copies: CopyEvidence::Copied, cause: Some(cause.into()) }
    }

    pub fn unknown(cause: impl Into<String>) -> Self {
        Self { copies: CopyEvidence::Unknown, cause: Some(cause.into()) }
    }
}

/// The path of a stream or of messages, and the size of the memory that is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkDescription {
    pub link: String,
    pub mtu_bytes: u32,
    pub congestion_control: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_bytes: Option<usize>,
}

/// The headline's names of a row and its baseline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadlineNames {
    pub what: String,
    pub nocopy: String,
    pub other: String,
}

/// One method in one situation against one baseline. Costs and rates are medians of the rounds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Row {
    pub workload: String,
    /// Title of the rows that are compared with each other.
    pub series: String,
    pub method: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink: Option<String>,
    pub payload_bytes: usize,
    /// For streams: the interface, its MTU, and the congestion control.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkDescription>,
    /// The receiver's buffer, if its length is fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer_bytes: Option<usize>,
    /// The compared figure, and its interval.
    pub figure: Figure,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figure_low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figure_high: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_per_message: Option<f64>,
    #[serde(alias = "dropped_percent", skip_serializing_if = "Option::is_none")]
    pub lost_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_cpu_ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver_cpu_ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver_cpu_percent: Option<f64>,
    /// The number of receiving threads, if several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receivers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_cpu_ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_cpu_ns_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver_cpu_ns_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_cpu_ns_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_cpu_us_per_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_cpu_us_per_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver_cpu_us_per_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_cpu_us_per_mb: Option<f64>,
    /// The fraction of received bytes that were mapped, not copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mapped_fraction: Option<f64>,
    /// How often the receiver copied each byte in user space, by the library's ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver_user_copies: Option<f64>,
    /// The most memory that the receiver's process had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver_memory_mib: Option<f64>,
    /// The share of the processors' time that another machine took, in the worst round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stolen_percent: Option<f64>,
    /// TCP segments that were retransmitted, in all rounds.
    #[serde(alias = "segments_resent", skip_serializing_if = "Option::is_none")]
    pub segments_retransmitted: Option<u64>,
    /// Messages with and without an answer, over all rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_9_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<CopyEvidence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// The variant of the baseline, if it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_variant: Option<String>,
    /// How many times better than the baseline: the baseline's cost divided by this row's, or this row's rate
    /// divided by the baseline's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_high: Option<f64>,
    #[serde(alias = "runs")]
    pub rounds: usize,
    /// For a row of the headline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headline: Option<HeadlineNames>,
}

impl Row {
    /// The 95 % interval of the ratio; `None` after a single round.
    pub fn ratio_interval(&self) -> Option<(f64, f64)> {
        self.ratio_low.zip(self.ratio_high).filter(|_| self.rounds > 1)
    }

    pub fn figure_interval(&self) -> Option<(f64, f64)> {
        self.figure_low.zip(self.figure_high).filter(|_| self.rounds > 1)
    }

    /// Whether one of its intervals is so wide that it says little.
    pub fn is_uncertain(&self) -> bool {
        let intervals = [self.ratio_interval(), self.figure_interval()];
        intervals.into_iter().flatten().any(|(low, high)| high >= low * UNCERTAIN)
    }
}

impl Figure {
    pub fn value_in(self, row: &Row) -> Option<f64> {
        match self {
            Figure::PacketsPerSecond => row.packets_per_s,
            Figure::MessagesPerSecond => row.messages_per_s,
            Figure::BytesPerSecond => row.bytes_per_s,
            Figure::ReceiverCpuPerPacket => row.receiver_cpu_ns_per_packet,
            Figure::MachineCpuPerPacket => row.machine_cpu_ns_per_packet,
            Figure::ReceiverCpu => row.receiver_cpu_percent,
            Figure::SenderCpuPerMegabyte => row.sender_cpu_us_per_mb,
            Figure::ReceiverCpuPerMegabyte => row.receiver_cpu_us_per_mb,
            Figure::MedianLatency => row.p50_us,
            Figure::TailLatency => row.p99_us,
        }
    }
}

/// The two ports, without anything that tells whose they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// The driver; `one to other` if the sending port has another one than the receiving port.
    pub driver: String,
    /// As `driver`; absent if the driver reports none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Of the link, in Mbit/s; absent if the driver does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_mbit: Option<u32>,
    /// Receive queues in use.
    pub queues: u32,
    /// The modes of a port, from the fastest to the slowest, as a port was opened in each.
    pub modes: Vec<CardMode>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardMode {
    pub mode: String,
    /// Why no port could be opened in it; absent if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn absent_fields_are_not_written() {
        let row = Row {
            workload: "latency".into(),
            series: "latency, 64 B".into(),
            method: "xdp-spinning".into(),
            payload_bytes: 64,
            figure: Figure::MedianLatency,
            p50_us: Some(2.5),
            evidence: Some(CopyEvidence::ZeroCopy),
            rounds: 3,
            ..Row::default()
        };
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(
            text,
            r#"{"workload":"latency","series":"latency, 64 B","method":"xdp-spinning","payload_bytes":64,"figure":"p50_us","p50_us":2.5,"evidence":"zero-copy","rounds":3}"#
        );
        let read: Row = serde_json::from_str(&text).unwrap();
        assert_eq!((read.p50_us, read.link, read.sink), (Some(2.5), None, None));
    }

    #[test]
    fn fields_of_earlier_versions_are_read() {
        let row = Row {
            lost_percent: Some(12.5),
            segments_retransmitted: Some(7),
            ..sample::row_with_rate("capture", "xdp", 1e6)
        };
        let mut text = serde_json::to_string(&row).unwrap();
        for (present, earlier) in [
            ("rounds", "runs"),
            ("lost_percent", "dropped_percent"),
            ("segments_retransmitted", "segments_resent"),
        ] {
            assert!(text.contains(&format!("\"{present}\":")), "{text}");
            text = text.replace(present, earlier);
        }
        let read: Row = serde_json::from_str(&text).unwrap();
        assert_eq!((read.rounds, read.lost_percent, read.segments_retransmitted), (9, Some(12.5), Some(7)));
    }

    #[test]
    fn a_link_survives_a_round_trip() {
        let link = LinkDescription {
            link: "lo".into(),
            mtu_bytes: 1500,
            congestion_control: "cubic".into(),
            source_bytes: None,
        };
        let text = serde_json::to_string(&Row { link: Some(link.clone()), ..Row::default() }).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap().link, Some(link));
    }

    #[test]
    fn each_figure_is_read_from_the_row_field_of_its_name() {
        let figures = [
            Figure::PacketsPerSecond,
            Figure::MessagesPerSecond,
            Figure::BytesPerSecond,
            Figure::ReceiverCpuPerPacket,
            Figure::MachineCpuPerPacket,
            Figure::ReceiverCpu,
            Figure::SenderCpuPerMegabyte,
            Figure::ReceiverCpuPerMegabyte,
            Figure::MedianLatency,
            Figure::TailLatency,
        ];
        for figure in figures {
            let mut row = serde_json::to_value(Row::default()).unwrap();
            let name = serde_json::to_value(figure).unwrap().as_str().unwrap().to_owned();
            row[name] = 7.0.into();
            assert_eq!(figure.value_in(&serde_json::from_value(row).unwrap()), Some(7.0), "{figure:?}");
        }
    }

    #[test]
    fn rows_of_one_series_are_a_section() {
        let row = |series, figure| Row { figure, ..sample::row_with_rate(series, "xdp", 1.0) };
        let (rate, cpu) = (Figure::PacketsPerSecond, Figure::ReceiverCpu);
        let report =
            sample::report_with_rows(vec![row("a", rate), row("a", rate), row("a", cpu), row("b", cpu)]);
        let sections: Vec<_> = report
            .sections()
            .map(|section| (section.title(), section.figure(), section.rows.len()))
            .collect();
        assert_eq!(sections, [("a", rate, 2), ("a", cpu, 1), ("b", cpu, 1)]);
    }
}
