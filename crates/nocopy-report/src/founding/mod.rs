//! The five systems that the project is based on: what each published, beside the same work measured by
//! `nocopy bench --founding`.
//!
//! ```text
//!   rows of a workload ─▶ table, words (reached or not), charts ─▶ terminal, page
//! ```
//! The machines are 15 to 30 years apart, so only ratios are compared: one method against another on one
//! machine, in one run.

mod area;
mod ntzc;
mod receive_analysis;
mod sockets;
mod zerocpy;

use std::fmt::Write as _;

use crate::chart::{LineChart, StackedBarChart};
use crate::headline_table::wrap_text;
use crate::result::{Report, Row};
use crate::table::Table;

/// A system, and the function that makes its part of a report.
#[derive(Debug)]
pub struct PublishedSystem {
    pub title: &'static str,
    /// The measurement of the paper, and its machines.
    pub about: &'static str,
    /// `None` if the run did not measure it.
    part: fn(&Report) -> Option<SystemResults>,
}

/// The systems, oldest first.
const SYSTEMS: [PublishedSystem; 5] =
    [area::SYSTEM, sockets::SYSTEM, zerocpy::SYSTEM, ntzc::SYSTEM, receive_analysis::SYSTEM];

/// A part of the page, about one system.
#[derive(Debug, Default)]
pub struct SystemResults {
    pub table: Table,
    /// Sentences: which published ratios are reached, and why others are not.
    pub words: Vec<String>,
    pub bars: Vec<StackedBarChart>,
    pub lines: Vec<LineChart>,
}

/// The systems that were measured in a run, with their tables; empty if the run has other workloads only.
pub fn measured_systems(report: &Report) -> Vec<(&'static PublishedSystem, SystemResults)> {
    SYSTEMS.iter().filter_map(|system| Some((system, (system.part)(report)?))).collect()
}

/// The report as text for a terminal; empty if the run has none of these workloads.
pub fn format_systems(report: &Report) -> String {
    let parts = measured_systems(report);
    if parts.is_empty() {
        return String::new();
    }
    let mut text = String::new();
    for (system, part) in &parts {
        let _ = writeln!(text, "\n{}\n{}\n\n{}", system.title, wrap_text(system.about), part.table.text());
        part.words.iter().for_each(|words| text.push_str(&(wrap_text(&format!("- {words}")) + "\n")));
    }
    let _ = writeln!(text, "\n{}", wrap_text(HOW));
    for note in report.notes.iter().chain([&report.machine.description()]) {
        let _ = writeln!(text, "{}", wrap_text(note));
    }
    text
}

pub(crate) const HOW: &str = "x: times better than the first row of the same kind, in the same rounds. Figures are medians. The machines are \
    decades apart, so only ratios are compared with what was published. docs/founding.md explains each table.";

#[derive(Debug)]
struct WorkloadRows<'a>(Vec<&'a Row>);

impl<'a> WorkloadRows<'a> {
    /// `None` if the run has no row of it.
    fn rows_of_workload(report: &'a Report, workload: &str) -> Option<Self> {
        let rows: Vec<_> = report.results.iter().filter(|row| row.workload == workload).collect();
        (!rows.is_empty()).then_some(Self(rows))
    }

    /// The row of a method in a series, by variant if it has several.
    fn row_of_method(&self, series: &str, method: &str, variant: Option<&str>) -> Option<&'a Row> {
        self.rows_of_method(series, method, variant).next()
    }

    /// As [`row_compared_with`](Self::row_compared_with), but if `method` was not compared with `other`, the
    /// row without that comparison, for its own figures.
    fn row_compared_or_plain(
        &self,
        series: &str,
        method: &str,
        variant: Option<&str>,
        other: &str,
    ) -> Option<&'a Row> {
        self.row_compared_with(series, method, variant, other)
            .or_else(|| self.row_of_method(series, method, variant))
    }

    fn row_compared_with(
        &self,
        series: &str,
        method: &str,
        variant: Option<&str>,
        other: &str,
    ) -> Option<&'a Row> {
        self.rows_of_method(series, method, variant).find(|row| row.baseline.as_deref() == Some(other))
    }

    fn rows_of_method(
        &self,
        series: &str,
        method: &str,
        variant: Option<&str>,
    ) -> impl Iterator<Item = &'a Row> {
        self.0.iter().copied().filter(move |row| {
            let is_variant = variant.is_none() || row.variant.as_deref() == variant;
            row.series == series && row.method == method && is_variant
        })
    }
}

const NOTHING: &str = "–";

fn decimal_text(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| NOTHING.into(), |value| format!("{value:.decimals$}"))
}

/// Payload, in the papers' unit.
fn mbit_per_s(row: &Row) -> Option<f64> {
    row.gbit_per_s.map(|gbit| gbit * 1e3)
}

/// How many times better than this method; 1 of the method itself.
fn ratio_text(row: Option<&Row>, method: &str) -> String {
    let row = row.filter(|row| row.method == method || row.baseline.as_deref() == Some(method));
    decimal_text(row.and_then(|row| if row.method == method { Some(1.0) } else { row.ratio }), 2)
}

/// A sentence on whether a ratio without a published figure shows a difference.
fn difference_sentence(what: &str, row: Option<&Row>) -> String {
    let Some((row, ratio)) = row.and_then(|row| Some((row, row.ratio?))) else {
        return format!("{what}: not measured.");
    };
    let Some((low, high)) = row.ratio_interval() else {
        return format!("{what}: {ratio:.2} x in one round, which shows no difference.");
    };
    let said = match () {
        () if low > 1.0 => "faster",
        () if high < 1.0 => "slower",
        () => "no difference shown",
    };
    format!("{what}: {ratio:.2} x [{low:.2}–{high:.2}]: {said}.")
}

/// A sentence on whether a ratio reaches the published one.
fn verdict_sentence(what: &str, row: Option<&Row>, published: f64) -> String {
    let Some((row, ratio)) = row.and_then(|row| Some((row, row.ratio?))) else {
        return format!("{what}: not measured; published: {published:.2} x.");
    };
    let interval = row.ratio_interval();
    let (low, high) = interval.unwrap_or((ratio, ratio));
    let reached = match () {
        () if low >= published => "reached",
        () if ratio >= published => "reached by the median, not in every round",
        () if high >= published => "not reached by the median, only in some rounds",
        () => "not reached",
    };
    let between = interval.map(|(low, high)| format!(" [{low:.2}–{high:.2}]")).unwrap_or_default();
    format!("{what}: {ratio:.2} x{between} here, {published:.2} x published: {reached}.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_verdict_names_whether_the_ratio_is_reached() {
        let verdict_of = |ratio: f64| {
            let row = sample::row_with_ratio("socket", ratio, sample::row_with_rate("a", "xdp", 1e6));
            verdict_sentence("sending", Some(&row), 2.0)
        };
        assert_eq!(verdict_of(2.5), "sending: 2.50 x [2.25–2.75] here, 2.00 x published: reached.");
        assert!(verdict_of(2.1).ends_with("2.00 x published: reached by the median, not in every round."));
        assert!(
            verdict_of(1.9).ends_with("2.00 x published: not reached by the median, only in some rounds.")
        );
        assert!(verdict_of(1.5).ends_with("2.00 x published: not reached."));
        assert_eq!(verdict_sentence("sending", None, 2.0), "sending: not measured; published: 2.00 x.");
    }

    #[test]
    fn a_ratio_is_shown_against_its_own_baseline_only() {
        let row = sample::row_with_ratio("socket", 2.0, sample::row_with_rate("a", "xdp", 1e6));
        assert_eq!([ratio_text(Some(&row), "socket"), ratio_text(Some(&row), "xdp-copy")], ["2.00", NOTHING]);
        let socket = sample::row_with_rate("a", "socket", 1e6);
        assert_eq!([ratio_text(Some(&socket), "socket"), ratio_text(None, "socket")], ["1.00", NOTHING]);
    }

    #[test]
    fn a_comparison_says_whether_there_is_a_difference() {
        let said = |ratio: f64| {
            difference_sentence(
                "it",
                Some(&sample::row_with_ratio("socket", ratio, sample::row_with_rate("a", "b", 1.0))),
            )
        };
        assert_eq!(said(2.0), "it: 2.00 x [1.80–2.20]: faster.");
        assert!(said(0.5).ends_with("slower.") && said(1.05).ends_with("no difference shown."));
    }

    #[test]
    fn runs_of_other_workloads_have_no_systems() {
        assert!(
            format_systems(&sample::report_with_rows(vec![sample::row_with_rate("capture", "ring", 1e6)]))
                .is_empty()
        );
    }
}
