//! The JSON schema `nocopy.bench/1`. A field that does not apply is absent, never null or zero.

use nocopy::Ledger;
use serde::{Deserialize, Serialize};

use super::figure::Figure;

pub(crate) const SCHEMA: &str = "nocopy.bench/1";

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) schema: String,
    /// What to run for the same again.
    pub(crate) command: String,
    /// UTC, to the second.
    pub(crate) measured_at: String,
    pub(crate) machine: Machine,
    /// What a reader of the results needs to know, and what could not be measured.
    pub(crate) notes: Vec<String>,
    pub(crate) results: Vec<Row>,
}

impl Report {
    /// The rows by what they are compared within.
    pub(crate) fn sections(&self) -> impl Iterator<Item = Section<'_>> {
        let same = |one: &Row, other: &Row| Section::key(one) == Section::key(other);
        self.results.chunk_by(same).map(|rows| Section { first: &rows[0], rows })
    }

    /// Whether anything that was measured was not there.
    pub(crate) fn is_silent(&self) -> bool {
        let figure = |row: &Row| {
            let rate = row.packets_per_s.or(row.messages_per_s).or(row.bytes_per_s);
            rate.or(row.p50_us).or(row.mean_us).unwrap_or(0.0)
        };
        self.results.iter().any(|row| figure(row) <= 0.0)
    }
}

/// The rows of one series with what they have in common; never empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section<'a> {
    first: &'a Row,
    pub(crate) rows: &'a [Row],
}

impl<'a> Section<'a> {
    fn key(row: &Row) -> (&str, &str, Option<&str>, Figure) {
        (&row.workload, &row.series, row.sink.as_deref(), row.figure)
    }

    pub(crate) fn title(self) -> &'a str {
        &self.first.series
    }

    pub(crate) fn sink(self) -> Option<&'a str> {
        self.first.sink.as_deref()
    }

    pub(crate) fn figure(self) -> Figure {
        self.first.figure
    }
}

/// What a reader needs to know before comparing figures of two machines: usually, that it is another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) nocopy_version: String,
    pub(crate) kernel: String,
    pub(crate) architecture: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) processor: Option<String>,
    pub(crate) processors: usize,
    /// True when the processor says it is a virtual one, so that others share the real one.
    pub(crate) virtual_machine: bool,
    /// `private veth pair`, or the interfaces given.
    pub(crate) network: String,
}

impl Machine {
    pub(crate) fn line(&self) -> String {
        let Self { network, kernel, processors, .. } = self;
        let processor = self.processor.as_deref().unwrap_or("unknown processor");
        let shared = if self.virtual_machine { " (a virtual machine)" } else { "" };
        format!("{network} · Linux {kernel} · {processors} × {processor}{shared}")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Copies {
    ZeroCopy,
    Copied,
    Unknown,
}

impl Copies {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::Copied => "copied",
            Self::Unknown => "unknown",
        }
    }
}

const UNKNOWN_CAUSE: &str =
    "not copied by the socket; behind a virtual interface nobody says what becomes of the bytes";

/// What is known of copies, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Evidence {
    pub(crate) copies: Copies,
    pub(crate) cause: Option<String>,
}

impl Evidence {
    pub(crate) fn copied(cause: impl Into<String>) -> Self {
        Self { copies: Copies::Copied, cause: Some(cause.into()) }
    }

    pub(crate) fn unknown(cause: impl Into<String>) -> Self {
        Self { copies: Copies::Unknown, cause: Some(cause.into()) }
    }

    /// What the library says.
    pub(crate) fn told(evidence: nocopy::Evidence) -> Self {
        match evidence {
            nocopy::Evidence::Copied(cause) => Self::copied(cause.to_string()),
            nocopy::Evidence::ZeroCopy => Self { copies: Copies::ZeroCopy, cause: None },
            _ => Self::unknown(UNKNOWN_CAUSE),
        }
    }

    /// What a socket of the library says of all it moved; of several things that of the most bytes, but `zero-copy` only if it is all of
    /// them.
    pub(crate) fn of(tally: &Ledger) -> Self {
        let entries: Vec<_> = tally.entries().collect();
        let weight = |entry: &(nocopy::Evidence, u64)| (entry.0 != nocopy::Evidence::ZeroCopy, entry.1);
        let Some((evidence, _)) = entries.iter().copied().max_by_key(weight) else {
            return Self::unknown("nothing was moved");
        };
        let told = Self::told(evidence);
        if entries.len() == 1 {
            return told;
        }
        let share = |(evidence, bytes): &(nocopy::Evidence, u64)| {
            format!("{evidence} {:.0} %", *bytes as f64 / tally.bytes() as f64 * 100.0)
        };
        let cause = entries.iter().map(share).collect::<Vec<_>>().join(", ");
        Self { cause: Some(cause), ..told }
    }
}

/// What a stream, or messages, go over, and how much memory they come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) link: String,
    pub(crate) mtu_bytes: u32,
    /// Of TCP.
    pub(crate) congestion_control: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_bytes: Option<usize>,
}

/// One method in one situation against one baseline. Costs and rates are medians of the rounds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) workload: String,
    /// What is compared with each other, as a title.
    pub(crate) series: String,
    pub(crate) method: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sink: Option<String>,
    pub(crate) payload_bytes: usize,
    /// Of streams: the interface, its MTU and how the ends control congestion.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<Link>,
    /// The receiver's, where its length is fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) buffer_bytes: Option<usize>,
    /// Which of the following is compared, and its interval.
    pub(crate) figure: Figure,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) figure_low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) figure_high: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) packets_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gbit_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ns_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dropped_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sender_cpu_ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receiver_cpu_ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receiver_cpu_percent: Option<f64>,
    /// Receiving threads, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receivers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) machine_cpu_ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sender_cpu_ns_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receiver_cpu_ns_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) machine_cpu_ns_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sender_cpu_us_per_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proxy_cpu_us_per_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receiver_cpu_us_per_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) machine_cpu_us_per_mb: Option<f64>,
    /// Of the bytes received, those that were mapped and not copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mapped_fraction: Option<f64>,
    /// Messages with an answer, of all rounds together, and those without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) answered: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_9_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) evidence: Option<Copies>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline: Option<String>,
    /// Which of several rows of the baseline, where it is not the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline_variant: Option<String>,
    /// How many times better than the baseline: its cost over this one's, or this rate over its.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_high: Option<f64>,
    pub(crate) runs: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::made_up;

    #[test]
    fn what_does_not_apply_is_absent() {
        let row = Row {
            workload: "latency".into(),
            series: "latency, 64 B".into(),
            method: "xdp-spinning".into(),
            payload_bytes: 64,
            figure: Figure::MedianLatency,
            p50_us: Some(2.5),
            evidence: Some(Copies::ZeroCopy),
            runs: 3,
            ..Row::default()
        };
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(
            text,
            r#"{"workload":"latency","series":"latency, 64 B","method":"xdp-spinning","payload_bytes":64,"figure":"p50_us","p50_us":2.5,"evidence":"zero-copy","runs":3}"#
        );
        let read: Row = serde_json::from_str(&text).unwrap();
        assert_eq!((read.p50_us, read.link, read.sink), (Some(2.5), None, None));
    }

    #[test]
    fn a_link_is_read_as_it_was_written() {
        let link = Link {
            link: "lo".into(),
            mtu_bytes: 1500,
            congestion_control: "cubic".into(),
            source_bytes: None,
        };
        let text = serde_json::to_string(&Row { link: Some(link.clone()), ..Row::default() }).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap().link, Some(link));
    }

    /// Proves that the name of a figure is that of the field it stands for.
    #[test]
    fn figures_are_fields() {
        let figures = [
            Figure::PacketsPerSecond,
            Figure::MessagesPerSecond,
            Figure::BytesPerSecond,
            Figure::ReceiverCpuPerPacket,
            Figure::MachineCpuPerPacket,
            Figure::ReceiverCpu,
            Figure::MedianLatency,
        ];
        for figure in figures {
            let mut row = serde_json::to_value(Row::default()).unwrap();
            let name = serde_json::to_value(figure).unwrap().as_str().unwrap().to_owned();
            row[name] = 7.0.into();
            assert_eq!(figure.of(&serde_json::from_value(row).unwrap()), Some(7.0), "{figure:?}");
        }
    }

    #[test]
    fn rows_that_are_compared_are_a_section() {
        let row = |series, figure| Row { figure, ..made_up::row(series, "xdp", 1.0) };
        let (rate, cpu) = (Figure::PacketsPerSecond, Figure::ReceiverCpu);
        let report = made_up::report(vec![row("a", rate), row("a", rate), row("a", cpu), row("b", cpu)]);
        let sections: Vec<_> = report
            .sections()
            .map(|section| (section.title(), section.figure(), section.rows.len()))
            .collect();
        assert_eq!(sections, [("a", rate, 2), ("a", cpu, 1), ("b", cpu, 1)]);
    }
}
