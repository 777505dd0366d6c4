//! The headline: the main rows of a run, nocopy beside the other method.

use crate::figure::Figure;
use crate::headline_table;
use crate::result::{HeadlineNames, Report, Row, Section};
use crate::table::Table;

/// A row of the headline, and its baseline.
#[derive(Debug, Clone)]
pub struct HeadlineLine<'a> {
    pub names: HeadlineNames,
    pub row: &'a Row,
    /// `None` if the run does not have it.
    pub other: Option<&'a Row>,
    /// The index of its section in the run.
    pub section: usize,
}

/// A job: a series, the method of nocopy, and what it is compared with: a line each.
#[derive(Debug)]
pub struct HeadlineJob {
    pub what: &'static str,
    pub series: &'static str,
    /// The sink, for series that have the same title with several sinks.
    pub(crate) sink: Option<&'static str>,
    pub(crate) own: ComparedMethod,
    /// What it is compared with: what most programs do, and what a program does that was written with care
    /// for this job.
    pub(crate) baselines: &'static [ComparedMethod],
}

#[derive(Debug)]
pub(crate) struct ComparedMethod {
    pub(crate) method: &'static str,
    /// The variant: of others, if it is not the best one.
    pub(crate) variant: Option<&'static str>,
    name: &'static str,
}

impl ComparedMethod {
    const fn new(method: &'static str, name: &'static str) -> Self {
        Self { method, variant: None, name }
    }

    const fn with_variant(self, variant: &'static str) -> Self {
        Self { variant: Some(variant), ..self }
    }
}

const AUTO: ComparedMethod = ComparedMethod::new("auto", "auto");

/// The jobs, chosen before measuring, including some that nocopy does slower.
pub const JOBS: [HeadlineJob; 14] = [
    HeadlineJob {
        what: "UDP send, 64 B",
        series: "udp-send, 64-byte datagrams",
        sink: Some("delivered"),
        own: AUTO,
        baselines: &[ComparedMethod::new("socket", "send()"), ComparedMethod::new("gso", "GSO by hand")],
    },
    HeadlineJob {
        what: "UDP send, 1400 B",
        series: "udp-send, 1400-byte datagrams",
        sink: Some("delivered"),
        own: AUTO,
        baselines: &[ComparedMethod::new("socket", "send()"), ComparedMethod::new("gso", "GSO by hand")],
    },
    HeadlineJob {
        what: "UDP send, 1400 B, singly",
        series: "udp-send, 1400-byte datagrams, one-a-call",
        sink: None,
        own: AUTO.with_variant("one-a-call"),
        baselines: &[ComparedMethod::new("socket", "send()")],
    },
    HeadlineJob {
        what: "UDP receive, 1400 B",
        series: "udp-receive, 1400-byte datagrams",
        sink: None,
        own: AUTO,
        baselines: &[
            ComparedMethod::new("recvmmsg", "recvmmsg()"),
            ComparedMethod::new("gro", "GRO by hand"),
        ],
    },
    HeadlineJob {
        what: "TCP send, 64 KiB buffers",
        series: "tcp-send over lo, MTU 65536, reno",
        sink: None,
        own: AUTO,
        baselines: &[ComparedMethod::new("plain", "send()")],
    },
    HeadlineJob {
        what: "TCP send, published 1 MiB",
        series: "tcp-send over lo, MTU 65536, reno, the same 1 MiB again and again",
        sink: None,
        own: ComparedMethod::new("published", "by page"),
        baselines: &[ComparedMethod::new("plain", "send()")],
    },
    HeadlineJob {
        what: "TCP receive",
        series: "tcp-receive over lo, MTU 65536, reno",
        sink: None,
        own: AUTO,
        baselines: &[ComparedMethod::new("recv", "recv()").with_variant("64-KiB")],
    },
    HeadlineJob {
        what: "TCP proxy",
        series: "tcp-proxy over lo, MTU 65536, reno",
        sink: None,
        own: ComparedMethod::new("splice", "splice()"),
        baselines: &[ComparedMethod::new("read-write", "recv+send").with_variant("64-KiB")],
    },
    HeadlineJob {
        what: "message round trip, 64 B",
        series: "message-latency, 64 B there and back, MTU 1500",
        sink: None,
        own: ComparedMethod::new("message-xdp", "AF_XDP").with_variant("spinning"),
        baselines: &[ComparedMethod::new("tcp-spinning", "TCP")],
    },
    HeadlineJob {
        what: "messages one way, 64 B",
        series: "message-stream, 64 B, MTU 1500",
        sink: None,
        own: ComparedMethod::new("message-auto", "auto").with_variant("blocking"),
        baselines: &[ComparedMethod::new("tcp-gathered", "TCP gathered")],
    },
    HeadlineJob {
        what: "messages one way, 1 MiB",
        series: "message-stream, 1 MiB, MTU 1500",
        sink: None,
        own: ComparedMethod::new("message-auto", "auto").with_variant("blocking"),
        baselines: &[ComparedMethod::new("tcp-blocking", "TCP")],
    },
    HeadlineJob {
        what: "packet send, 64 B",
        series: "packet-send, 64-byte frames",
        sink: None,
        own: ComparedMethod::new("xdp", "AF_XDP"),
        baselines: &[ComparedMethod::new("packet-send", "send()")],
    },
    HeadlineJob {
        what: "capture, 64 B, full rate",
        series: "capture, 64-byte frames, full-rate",
        sink: None,
        own: ComparedMethod::new("xdp", "AF_XDP").with_variant("coalesced full-rate"),
        baselines: &[ComparedMethod::new("packet-ring", "packet ring")],
    },
    HeadlineJob {
        what: "capture CPU, 64 B, 300 k/s",
        series: "capture, 64-byte frames, 300-kpps",
        sink: None,
        own: ComparedMethod::new("xdp", "AF_XDP").with_variant("coalesced 300-kpps"),
        baselines: &[ComparedMethod::new("packet-ring", "packet ring")],
    },
];

impl HeadlineJob {
    /// Whether a row is one of the job's series, which has another title between ports of a card.
    fn has_series_of(&self, row: &Row) -> bool {
        row.series == self.series && (self.sink.is_none() || row.sink.as_deref() == self.sink)
    }

    /// Which of the job's comparisons a row of its series is.
    fn comparison_index(&self, row: &Row) -> Option<usize> {
        let is_own = row.method == self.own.method
            && row.variant.as_deref() == self.own.variant
            // Beside its rate: `tcp-send` has both.
            && row.figure != Figure::SenderCpuPerMegabyte;
        let is_baseline = |other: &ComparedMethod| row.baseline.as_deref() == Some(other.method);
        self.baselines.iter().position(is_baseline).filter(|_| is_own)
    }

    /// How many methods it compares.
    pub fn method_count(&self) -> usize {
        1 + self.baselines.len()
    }

    /// Whether a method is one of the job's.
    pub fn has_method(&self, method: &str, variant: Option<&str>) -> bool {
        let is_other = |other: &ComparedMethod| {
            method == other.method && (other.variant.is_none() || variant == other.variant)
        };
        self.baselines.iter().any(is_other) || (method, variant) == (self.own.method, self.own.variant)
    }

    /// The names of a row of the job's series in the headline, if it is one of the job's comparisons.
    pub fn headline_names(&self, row: &Row) -> Option<HeadlineNames> {
        let other = &self.baselines[self.comparison_index(row)?];
        let [what, nocopy, other] = [self.what, self.own.name, other.name].map(str::to_owned);
        Some(HeadlineNames { what, nocopy, other })
    }
}

/// The headline's lines in a run of `nocopy bench` or `nocopy bench --all`; empty for runs of other rows.
pub fn headline_lines(report: &Report) -> Vec<HeadlineLine<'_>> {
    let sections = report.sections().enumerate();
    let lines = sections.flat_map(|(section, part)| part.rows.iter().map(move |row| (section, part, row)));
    let mut lines: Vec<_> =
        lines.filter_map(|(section, part, row)| headline_line(section, part, row)).collect();
    lines.sort_by_key(|(position, _)| *position);
    lines.into_iter().map(|(_, line)| line).collect()
}

/// The line, with its position in the headline. A row that has its own names needs no job.
fn headline_line<'a>(
    section: usize,
    part: Section<'a>,
    row: &'a Row,
) -> Option<((usize, usize), HeadlineLine<'a>)> {
    let of_series = JOBS
        .iter()
        .find_map(|job| Some((job, job.comparison_index(row)?)).filter(|_| job.has_series_of(row)));
    let names = row.headline.clone().or_else(|| of_series?.0.headline_names(row))?;
    // Between ports of a card its series has another title.
    let position = JOBS.iter().position(|job| job.what == names.what).unwrap_or(JOBS.len());
    let position = (position, of_series.map_or(0, |(_, comparison)| comparison));
    let other = part.rows.iter().find(|other| is_baseline(other, row));
    Some((position, HeadlineLine { names, row, other, section }))
}

fn is_baseline(row: &Row, compared: &Row) -> bool {
    let variant = &compared.baseline_variant;
    Some(&row.method) == compared.baseline.as_ref() && (variant.is_none() || *variant == row.variant)
}

/// The column of ratios.
pub const RATIO: usize = 3;

pub fn table_of_headline(lines: &[HeadlineLine<'_>]) -> Table {
    let cells =
        |line: &HeadlineLine<'_>| headline_table::headline_cells(line.row, line.other, &line.names).into();
    Table::new(&headline_table::HEADER, 0..0, lines.iter().map(cells).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_run_of_every_job_has_every_line_in_order() {
        let mut report = sample::full_run();
        report.results.reverse();
        let lines = headline_lines(&report);
        let named: Vec<_> = lines.iter().map(|line| (&*line.names.what, &*line.names.other)).collect();
        let expected: Vec<_> =
            JOBS.iter().flat_map(|job| job.baselines.iter().map(|other| (job.what, other.name))).collect();
        assert_eq!(named, expected);
        let sections: Vec<_> = report.sections().collect();
        for HeadlineLine { row, other, section, .. } in lines {
            assert_eq!(row.series, sections[section].title());
            assert_eq!(other.map(|other| &other.method), row.baseline.as_ref());
        }
    }

    #[test]
    fn a_job_has_its_own_methods_only() {
        let job = JOBS.iter().find(|job| job.what == "TCP receive").unwrap();
        let has = [("auto", None), ("recv", Some("64-KiB")), ("recv", Some("1-KiB")), ("mapped", None)];
        assert_eq!(has.map(|(method, variant)| job.has_method(method, variant)), [true, true, false, false]);
        let row = sample::row_with_ratio("recv", 2.0, sample::row_with_rate(job.series, "auto", 1.0));
        assert_eq!(job.headline_names(&row).unwrap().other, "recv()");
        let against_another =
            sample::row_with_ratio("mapped", 2.0, sample::row_with_rate(job.series, "auto", 1.0));
        assert!(
            [against_another, Row { method: "recv".into(), ..row }]
                .iter()
                .all(|row| job.headline_names(row).is_none())
        );
    }

    #[test]
    fn a_line_has_the_figures_of_both_methods() {
        let series = "packet-send, 64-byte frames";
        let other = sample::row_with_rate(series, "packet-send", 1e6);
        let own = sample::row_with_ratio("packet-send", 2.0, sample::row_with_rate(series, "xdp", 2e6));
        let report = sample::report_with_rows(vec![other, own]);
        let expected =
            ["packet send, 64 B", "2.00 M/s AF_XDP", "1.00 M/s send()", "2.00 [1.80–2.20]", "copied"];
        assert_eq!(table_of_headline(&headline_lines(&report)).rows, [expected.map(str::to_owned)]);
    }

    #[test]
    fn the_other_method_is_the_variant_of_the_baseline() {
        let row = |variant: &str, rate| Row {
            variant: Some(variant.into()),
            ..sample::row_with_rate("a", "recv", rate)
        };
        let names = HeadlineNames { what: "a job".into(), nocopy: "auto".into(), other: "recv()".into() };
        let auto = sample::row_with_ratio("recv", 2.0, sample::row_with_rate("a", "auto", 3.0));
        let auto = Row { baseline_variant: Some("64-KiB".into()), headline: Some(names), ..auto };
        let report = sample::report_with_rows(vec![row("1-KiB", 1.0), row("64-KiB", 2.0), auto]);
        let lines = headline_lines(&report);
        let variant = lines[0].other.and_then(|other| other.variant.as_deref());
        assert_eq!((lines.len(), variant), (1, Some("64-KiB")));
    }

    #[test]
    fn a_run_of_other_rows_has_no_headline() {
        let report = sample::report_with_rows(vec![sample::row_with_rate("capture", "ring", 1e6)]);
        assert!(headline_lines(&report).is_empty());
    }
}
