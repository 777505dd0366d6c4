//! The rows of a whole run that a reader wants first: a job, nocopy's way, the other way.

use crate::comparison_text;
use crate::result::{Report, Row, Section};
use crate::result_table;
use crate::table::Table;

/// One of [`ROWS`] as it was measured.
#[derive(Debug, Clone, Copy)]
pub struct Headline<'a> {
    /// The job, and the unit of its figures.
    pub what: &'static str,
    pub row: &'a Row,
    /// What the row is compared with.
    pub other: &'a Row,
    /// The place of its section among all of the run.
    pub section: usize,
}

/// Which row it is: workload, series, sink, method and its variant, and the baseline. An empty text: none, or any.
struct Choice {
    what: &'static str,
    workload: &'static str,
    series: &'static str,
    sink: &'static str,
    method: &'static str,
    variant: &'static str,
    baseline: &'static str,
}

const ANY: Choice =
    Choice { what: "", workload: "", series: "", sink: "", method: "", variant: "", baseline: "" };

/// Chosen before measuring, and with what is slower, so that the list flatters nothing.
const ROWS: [Choice; 12] = [
    Choice {
        what: "receive 64-byte packets, packets/s",
        workload: "capture",
        series: "capture, 64-byte frames, full-rate",
        method: "xdp",
        variant: "coalesced full-rate",
        baseline: "packet-ring",
        ..ANY
    },
    Choice {
        what: "receive 300,000 packets/s of 64 bytes, CPU ns per packet",
        workload: "capture",
        series: "capture, 64-byte frames, 300-kpps",
        method: "xdp",
        variant: "coalesced 300-kpps",
        baseline: "packet-ring",
        ..ANY
    },
    Choice {
        what: "send 64-byte packets, packets/s",
        workload: "packet-send",
        series: "packet-send, 64-byte frames",
        method: "xdp",
        baseline: "packet-send",
        ..ANY
    },
    Choice {
        what: "record 1,400-byte packets to a disk without loss, packets/s",
        workload: "record",
        series: "record to disk, 1400-byte frames, highest-rate-without-loss",
        method: "record",
        baseline: "tcpdump",
        ..ANY
    },
    Choice {
        what: "tcpdump, unchanged, without loss, packets/s",
        workload: "libpcap",
        series: "libpcap, tcpdump, 64-byte frames, highest-rate-without-loss",
        method: "nocopy-take",
        baseline: "libpcap",
        ..ANY
    },
    Choice {
        what: "send 1,400-byte datagrams to a card that cuts bursts, datagrams/s",
        workload: "udp-send",
        series: "udp-send, 1400-byte datagrams",
        sink: "offload",
        method: "auto",
        baseline: "socket",
        ..ANY
    },
    Choice {
        what: "send and receive 1,400-byte datagrams, datagrams/s",
        workload: "udp-send",
        series: "udp-send, 1400-byte datagrams",
        sink: "pair",
        method: "auto",
        baseline: "socket",
        ..ANY
    },
    Choice {
        what: "send the same 1 MiB by TCP again and again, Gbit/s",
        workload: "tcp-send",
        series: "tcp-send over lo, MTU 65536, cubic, the same 1 MiB again and again",
        method: "published",
        baseline: "plain",
        ..ANY
    },
    Choice {
        what: "pass on a TCP stream, Gbit/s",
        workload: "tcp-proxy",
        series: "tcp-proxy over lo, MTU 65536, cubic",
        method: "splice",
        baseline: "read-write",
        ..ANY
    },
    Choice {
        what: "64 bytes there and back, median in us",
        workload: "latency",
        series: "latency, 64-byte payload, there and back",
        method: "xdp-spinning",
        baseline: "udp-spinning",
        ..ANY
    },
    Choice {
        what: "messages of 64 bytes one way, messages/s",
        workload: "message-stream",
        series: "message-stream, 64 B, MTU 1500",
        method: "message-udp",
        variant: "spinning",
        baseline: "tcp-blocking",
        ..ANY
    },
    Choice {
        what: "messages of 1 MiB one way, messages/s",
        workload: "message-stream",
        series: "message-stream, 1 MiB, MTU 1500",
        method: "message-udp",
        variant: "spinning",
        baseline: "tcp-blocking",
        ..ANY
    },
];

impl Choice {
    fn find<'a>(&self, sections: &[Section<'a>]) -> Option<Headline<'a>> {
        sections.iter().enumerate().find_map(|(section, &part)| {
            let row = part.rows.iter().find(|row| self.is(row))?;
            let other = part.rows.iter().find(|other| is_baseline(other, row))?;
            Some(Headline { what: self.what, row, other, section })
        })
    }

    fn is(&self, row: &Row) -> bool {
        let is_named = |text: &Option<String>, name: &str| name.is_empty() || text.as_deref() == Some(name);
        row.workload == self.workload
            && row.series == self.series
            && row.method == self.method
            && is_named(&row.sink, self.sink)
            && is_named(&row.variant, self.variant)
            && is_named(&row.baseline, self.baseline)
    }
}

/// Whether a row of the same section is what another one is compared with.
fn is_baseline(row: &Row, compared: &Row) -> bool {
    let variant = &compared.baseline_variant;
    Some(&row.method) == compared.baseline.as_ref() && (variant.is_none() || *variant == row.variant)
}

/// Those that the run has; none of a run of other methods.
pub fn of(report: &Report) -> Vec<Headline<'_>> {
    let sections: Vec<_> = report.sections().collect();
    ROWS.iter().filter_map(|choice| choice.find(&sections)).collect()
}

const HEADER: [&str; 5] = ["what", "nocopy", "other way", "ratio [95 %]", "copies"];

/// The column of ratios.
pub const RATIO: usize = 3;

pub fn table(headlines: &[Headline<'_>]) -> Table {
    Table::new(&HEADER, 0..0, headlines.iter().map(cells).collect())
}

fn cells(headline: &Headline<'_>) -> Vec<String> {
    let Headline { what, row, other, .. } = headline;
    vec![(*what).into(), way(row), way(other), result_table::ratio(row), copies(row)]
}

/// The figure, and the method.
fn way(row: &Row) -> String {
    let median = row
        .figure
        .of(row)
        .map_or_else(|| "–".into(), |median| comparison_text::figure(row.figure, median, None));
    format!("{median} {}", result_table::name(row, &row.series))
}

fn copies(row: &Row) -> String {
    row.evidence.map_or("–", |copies| copies.name()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made_up;

    #[test]
    fn a_whole_run_has_every_headline() {
        let report = made_up::whole_run();
        let headlines = of(&report);
        let names: Vec<_> = headlines.iter().map(|headline| headline.what).collect();
        assert_eq!(names, ROWS.each_ref().map(|choice| choice.what));
        let sections: Vec<_> = report.sections().collect();
        for headline in headlines {
            let Headline { row, other, section, .. } = headline;
            assert_eq!(row.series, sections[section].title());
            assert_eq!(Some(&other.method), row.baseline.as_ref());
        }
    }

    #[test]
    fn a_headline_has_the_figures_of_both_ways() {
        let series = "packet-send, 64-byte frames";
        let of_workload = |row| Row { workload: "packet-send".into(), ..row };
        let other = made_up::row(series, "packet-send", 1e6);
        let ours = made_up::against("packet-send", 2.0, made_up::row(series, "xdp", 2e6));
        let report = made_up::report([other, ours].map(of_workload).into());
        let table = table(&of(&report));
        let expected = [
            "send 64-byte packets, packets/s",
            "2.00 M xdp",
            "1.00 M packet-send",
            "2.00 [1.80–2.20]",
            "copied",
        ];
        assert_eq!(table.rows, [expected.map(str::to_owned)]);
    }

    #[test]
    fn the_other_way_is_the_variant_it_was_compared_with() {
        let report = made_up::whole_run();
        let pair =
            of(&report).into_iter().find(|headline| headline.row.sink.as_deref() == Some("pair")).unwrap();
        assert_eq!(pair.other.variant.as_deref(), Some("to-recvmmsg"));
    }

    #[test]
    fn a_run_of_other_methods_has_no_headline() {
        let report = made_up::report(vec![made_up::row("capture", "ring", 1e6)]);
        assert!(of(&report).is_empty());
    }
}
