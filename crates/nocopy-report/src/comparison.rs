//! Two runs against each other, row by row. The JSON schema `nocopy.report/2`.

use std::collections::HashMap;
use std::path::Path;

use serde::Serialize;

use crate::figure::Figure;
use crate::result::{CopyEvidence, Machine, Report, Row};
use crate::result_table;
use crate::statistics::ENOUGH;

const SCHEMA: &str = "nocopy.report/2";

#[derive(Debug, Serialize)]
pub struct RunComparison<'a> {
    schema: &'static str,
    pub a: ComparedRun<'a>,
    pub b: ComparedRun<'a>,
    /// How the machines or the commands of the two runs differ.
    pub differences: Vec<RunDifference>,
    pub rows: Vec<ComparisonRow<'a>>,
    pub only_a: Vec<RowIdentity<'a>>,
    pub only_b: Vec<RowIdentity<'a>>,
}

#[derive(Debug, Serialize)]
pub struct ComparedRun<'a> {
    pub file: String,
    pub measured_at: &'a str,
    pub command: &'a str,
    pub machine: &'a Machine,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct RunDifference {
    pub property: &'static str,
    pub a: String,
    pub b: String,
}

/// The fields by which a row of one run is found in the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct RowIdentity<'a> {
    pub workload: &'a str,
    pub series: &'a str,
    pub method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink: Option<&'a str>,
    pub payload_bytes: usize,
}

impl<'a> RowIdentity<'a> {
    fn of_row(row: &'a Row) -> Self {
        Self {
            workload: &row.workload,
            series: &row.series,
            method: &row.method,
            variant: row.variant.as_deref(),
            sink: row.sink.as_deref(),
            payload_bytes: row.payload_bytes,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComparedValue {
    Figure,
    /// The ratio to the baseline of the same run, in which disturbances of both cancel.
    Ratio,
}

#[derive(Debug, Clone, Serialize)]
pub struct ComparisonRow<'a> {
    #[serde(flatten)]
    pub row: RowIdentity<'a>,
    #[serde(skip)]
    pub name: String,
    pub figure: Figure,
    pub value: ComparedValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_variant: Option<&'a str>,
    pub more_is_better: bool,
    pub a: Estimate,
    pub b: Estimate,
    /// The quotient of the medians; `None` if one is missing, or A's is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b_over_a: Option<f64>,
    pub verdict: ComparisonVerdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    pub rounds: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<CopyEvidence>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComparisonVerdict {
    Better,
    Worse,
    /// The intervals overlap.
    NoDifference,
    /// The intervals do not have 95 % confidence.
    TooFewRounds,
    /// One of the two runs has no figure.
    NoFigure,
}

impl ComparisonVerdict {
    pub const ALL: [Self; 5] =
        [Self::Better, Self::Worse, Self::NoDifference, Self::TooFewRounds, Self::NoFigure];

    pub fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoDifference => "no difference",
            Self::TooFewRounds => "too few rounds",
            Self::NoFigure => "no figure",
        }
    }

    fn compare_estimates(a: &Estimate, b: &Estimate, more_is_better: bool) -> Self {
        let (Some(a_low), Some(a_high), Some(b_low), Some(b_high)) = (a.low, a.high, b.low, b.high) else {
            return Self::NoFigure;
        };
        match () {
            () if a.rounds.min(b.rounds) < ENOUGH => Self::TooFewRounds,
            () if b_low <= a_high && a_low <= b_high => Self::NoDifference,
            () if (b_low > a_high) == more_is_better => Self::Better,
            () => Self::Worse,
        }
    }
}

impl Estimate {
    fn of_figure(row: &Row) -> Self {
        Self {
            median: row.figure.value_in(row),
            low: row.figure_low,
            high: row.figure_high,
            rounds: row.rounds,
            evidence: row.evidence,
        }
    }

    fn of_ratio(row: &Row) -> Self {
        Self { median: row.ratio, low: row.ratio_low, high: row.ratio_high, ..Self::of_figure(row) }
    }
}

/// A row, and its baseline in its own run.
type Pair<'a> = (RowIdentity<'a>, Option<(&'a str, Option<&'a str>)>);

fn row_and_baseline(row: &Row) -> Pair<'_> {
    let baseline = row.baseline.as_deref().map(|method| (method, row.baseline_variant.as_deref()));
    (RowIdentity::of_row(row), baseline)
}

impl<'a> RunComparison<'a> {
    pub fn new((a_path, a): (&Path, &'a Report), (b_path, b): (&Path, &'a Report)) -> Self {
        let side = |path: &Path, report: &'a Report| ComparedRun {
            file: path.display().to_string(),
            measured_at: &report.measured_at,
            command: &report.command,
            machine: &report.machine,
        };
        let all = |report: &'a Report| -> HashMap<RowIdentity<'a>, &'a Row> {
            report.results.iter().rev().map(|row| (RowIdentity::of_row(row), row)).collect()
        };
        Self {
            schema: SCHEMA,
            a: side(a_path, a),
            b: side(b_path, b),
            differences: differences(a, b),
            rows: compare_rows(a, b, &all(b)),
            only_a: rows_missing_in(a, &all(b)),
            only_b: rows_missing_in(b, &all(a)),
        }
    }

    /// The rows by their series.
    pub fn sections(&self) -> impl Iterator<Item = &[ComparisonRow<'a>]> {
        let key = |row: &ComparisonRow<'a>| (row.row.workload, row.row.series, row.row.sink);
        self.rows.chunk_by(move |one, other| key(one) == key(other))
    }

    /// The number of rows by verdict.
    pub fn rows_by_verdict(&self) -> Vec<(ComparisonVerdict, usize)> {
        let count = |verdict| self.rows.iter().filter(|row| row.verdict == verdict).count();
        let counts = ComparisonVerdict::ALL.map(|verdict| (verdict, count(verdict)));
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

/// Splits a section into figures and ratios.
pub fn split_figures_and_ratios<'a, 'b>(
    section: &'b [ComparisonRow<'a>],
) -> impl Iterator<Item = &'b [ComparisonRow<'a>]> {
    section.chunk_by(|one, other| (one.figure, one.value) == (other.figure, other.value))
}

/// The figures of a section, then its ratios.
fn compare_rows<'a>(
    a: &'a Report,
    b: &'a Report,
    in_b: &HashMap<RowIdentity<'a>, &'a Row>,
) -> Vec<ComparisonRow<'a>> {
    let ratios_of_b: HashMap<Pair<'a>, &'a Row> =
        b.results.iter().map(|row| (row_and_baseline(row), row)).collect();
    let mut rows = Vec::new();
    for section in a.sections() {
        // A row appears once per baseline.
        let firsts =
            section.rows.chunk_by(|one, other| RowIdentity::of_row(one) == RowIdentity::of_row(other));
        let figures = firsts.filter_map(|same| Some((&same[0], *in_b.get(&RowIdentity::of_row(&same[0]))?)));
        let same_figure = figures.filter(|(one, other)| one.figure == other.figure);
        rows.extend(same_figure.map(|(one, other)| comparison_row(one, other, ComparedValue::Figure)));
        let with_ratio = section.rows.iter().filter(|row| row.baseline.is_some());
        let ratios = with_ratio.filter_map(|row| Some((row, *ratios_of_b.get(&row_and_baseline(row))?)));
        rows.extend(ratios.map(|(one, other)| comparison_row(one, other, ComparedValue::Ratio)));
    }
    rows
}

fn comparison_row<'a>(one: &'a Row, other: &'a Row, value: ComparedValue) -> ComparisonRow<'a> {
    let of_ratio = value == ComparedValue::Ratio;
    let estimate = if of_ratio { Estimate::of_ratio } else { Estimate::of_figure };
    let (a, b) = (estimate(one), estimate(other));
    let more_is_better = of_ratio || one.figure.more_is_better();
    let baseline = result_table::baseline_label(one, &one.series).filter(|_| of_ratio);
    let against = baseline.map(|baseline| format!(" × {baseline}")).unwrap_or_default();
    ComparisonRow {
        row: RowIdentity::of_row(one),
        name: result_table::row_label(one, &one.series) + &against,
        figure: one.figure,
        value,
        baseline: one.baseline.as_deref().filter(|_| of_ratio),
        baseline_variant: one.baseline_variant.as_deref().filter(|_| of_ratio),
        more_is_better,
        a,
        b,
        b_over_a: a.median.zip(b.median).filter(|(a, _)| *a > 0.0).map(|(a, b)| b / a),
        verdict: ComparisonVerdict::compare_estimates(&a, &b, more_is_better),
    }
}

fn rows_missing_in<'a>(from: &'a Report, other: &HashMap<RowIdentity<'a>, &'a Row>) -> Vec<RowIdentity<'a>> {
    let mut rows: Vec<_> = from.results.iter().map(RowIdentity::of_row).collect();
    rows.dedup();
    rows.retain(|row| !other.contains_key(row));
    rows
}

fn differences(a: &Report, b: &Report) -> Vec<RunDifference> {
    let facts = |report: &Report| {
        let Machine { nocopy_version, kernel, architecture, processor, .. } = report.machine.clone();
        [
            ("kernel", kernel),
            ("processor", processor.unwrap_or_else(|| "unknown".into())),
            ("processors", report.machine.processors.to_string()),
            ("virtual machine", if report.machine.virtual_machine { "yes" } else { "no" }.into()),
            ("architecture", architecture),
            ("network", report.machine.network.clone()),
            ("nocopy", nocopy_version),
            ("command", report.command.clone()),
        ]
    };
    let pairs = facts(a).into_iter().zip(facts(b)).filter(|((_, a), (_, b))| a != b);
    pairs.map(|((property, a), (_, b))| RunDifference { property, a, b }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn compare_reports<'a>(a: &'a Report, b: &'a Report) -> RunComparison<'a> {
        RunComparison::new((Path::new("a.json"), a), (Path::new("b.json"), b))
    }

    fn verdict_on_rows(a: Row, b: Row) -> ComparisonVerdict {
        let (a, b) = (sample::report_with_rows(vec![a]), sample::report_with_rows(vec![b]));
        compare_reports(&a, &b).rows[0].verdict
    }

    fn packet_rate_row(rate: f64) -> Row {
        sample::row_with_rate("capture", "xdp", rate)
    }

    #[test]
    fn overlapping_intervals_are_no_difference() {
        assert_eq!(verdict_on_rows(packet_rate_row(1e6), packet_rate_row(1.3e6)), ComparisonVerdict::Better);
        assert_eq!(verdict_on_rows(packet_rate_row(1.3e6), packet_rate_row(1e6)), ComparisonVerdict::Worse);
        assert_eq!(
            verdict_on_rows(packet_rate_row(1e6), packet_rate_row(1.1e6)),
            ComparisonVerdict::NoDifference
        );
        assert_eq!(
            verdict_on_rows(packet_rate_row(1e6), packet_rate_row(1e6)),
            ComparisonVerdict::NoDifference
        );
    }

    #[test]
    fn a_shorter_time_is_better() {
        let time = |us: f64| Row {
            figure: Figure::MedianLatency,
            p50_us: Some(us),
            figure_low: Some(us),
            figure_high: Some(us),
            ..packet_rate_row(0.0)
        };
        assert_eq!(verdict_on_rows(time(9.0), time(3.0)), ComparisonVerdict::Better);
        assert_eq!(verdict_on_rows(time(3.0), time(9.0)), ComparisonVerdict::Worse);
    }

    #[test]
    fn too_few_rounds_give_no_verdict() {
        let few = |rate| Row { rounds: 5, ..packet_rate_row(rate) };
        assert_eq!(verdict_on_rows(few(1e6), packet_rate_row(9e6)), ComparisonVerdict::TooFewRounds);
        let none = Row { packets_per_s: None, figure_low: None, figure_high: None, ..packet_rate_row(0.0) };
        assert_eq!(verdict_on_rows(packet_rate_row(1e6), none), ComparisonVerdict::NoFigure);
    }

    #[test]
    fn a_row_with_two_baselines_is_compared_once() {
        let rows = |best: &str| {
            let auto = || sample::row_with_rate("send", "auto", 2e6);
            let plain = sample::row_with_rate("send", "plain", 1e6);
            vec![
                plain,
                sample::row_with_ratio("plain", 2.0, auto()),
                sample::row_with_ratio(best, 1.0, auto()),
            ]
        };
        let (a, b) = (sample::report_with_rows(rows("gso")), sample::report_with_rows(rows("zerocopy")));
        let compared = compare_reports(&a, &b);
        let names: Vec<_> = compared.rows.iter().map(|row| (row.name.as_str(), row.value)).collect();
        assert_eq!(
            names,
            [
                ("plain", ComparedValue::Figure),
                ("auto", ComparedValue::Figure),
                ("auto × plain", ComparedValue::Ratio)
            ]
        );
        assert_eq!((compared.only_a.len(), compared.only_b.len()), (0, 0));
    }

    #[test]
    fn rows_of_one_run_and_machine_differences_are_listed() {
        let mut a = sample::report_with_rows(vec![
            packet_rate_row(1e6),
            sample::row_with_rate("capture", "ring", 1e6),
        ]);
        let b =
            sample::report_with_rows(vec![sample::row_with_rate("other", "xdp", 1e6), packet_rate_row(1e6)]);
        a.machine.kernel = "6.1".into();
        let compared = compare_reports(&a, &b);
        let difference = RunDifference { property: "kernel", a: "6.1".into(), b: "6.18.5".into() };
        assert_eq!(compared.differences, [difference]);
        assert_eq!(compared.only_a.iter().map(|row| row.method).collect::<Vec<_>>(), ["ring"]);
        assert_eq!(compared.only_b.iter().map(|row| row.series).collect::<Vec<_>>(), ["other"]);
    }

    #[test]
    fn a_zero_median_has_no_quotient() {
        let (a, b) = (
            sample::report_with_rows(vec![packet_rate_row(0.0)]),
            sample::report_with_rows(vec![packet_rate_row(1e6)]),
        );
        assert_eq!(compare_reports(&a, &b).rows[0].b_over_a, None);
    }
}
