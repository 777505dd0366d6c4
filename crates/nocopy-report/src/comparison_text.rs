//! A comparison for a terminal; the page has the same tables.

use std::fmt::Write as _;

use crate::comparison::{
    self, ComparedRun, ComparedValue, ComparisonRow, Estimate, RowIdentity, RunComparison,
};
use crate::figure::Figure;
use crate::quantity;
use crate::table::Table;

pub fn format_comparison(comparison: &RunComparison<'_>) -> String {
    let mut text = String::new();
    for (name, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        let _ = writeln!(text, "{name}: {}", run_line(side));
    }
    if !comparison.differences.is_empty() {
        let _ = write!(text, "\nNot the same:\n{}", difference_table(comparison).text());
    }
    for section in comparison.sections() {
        let _ = writeln!(text, "\n{}", series_heading(&section[0].row));
        for part in comparison::split_figures_and_ratios(section) {
            let _ = write!(text, "· {}\n{}", quantity_and_direction(&part[0]), rows_table(part).text());
        }
    }
    for (name, only) in [("A", &comparison.only_a), ("B", &comparison.only_b)] {
        if !only.is_empty() {
            let _ = writeln!(text, "\nOnly in {name}:");
        }
        for row in only {
            let _ = writeln!(text, "  {}", full_row_name(row));
        }
    }
    let _ = writeln!(text, "\n{}\n{HOW}", counts_sentence(comparison));
    text
}

pub const HOW: &str = "Medians [95 % interval]. better, worse: the intervals do not overlap; no difference: they do, and \
    either may be the better\none; too few rounds: fewer than 6, so there are no such intervals. The times of different hours differ \
    by themselves on a\nshared machine; ratios (×) to a baseline of the same round do so less.";

fn run_line(side: &ComparedRun<'_>) -> String {
    format!(
        "{} · {} · nocopy {} · {}",
        side.file,
        side.measured_at,
        side.machine.nocopy_version,
        side.machine.description()
    )
}

pub fn difference_table(comparison: &RunComparison<'_>) -> Table {
    let rows = comparison.differences.iter();
    let rows =
        rows.map(|difference| vec![difference.property.into(), difference.a.clone(), difference.b.clone()]);
    Table::new(&["", "A", "B"], 0..0, rows.collect())
}

pub fn series_heading(row: &RowIdentity<'_>) -> String {
    let sink = row.sink.map(|sink| format!(" · into: {sink}")).unwrap_or_default();
    format!("{}{sink}", row.series)
}

/// The compared quantity, and the better direction.
pub fn quantity_and_direction(first: &ComparisonRow<'_>) -> String {
    let direction = if first.more_is_better { "more is better" } else { "less is better" };
    match first.value {
        ComparedValue::Figure => format!("{}, {direction}", first.figure.unit()),
        ComparedValue::Ratio => format!("ratio to the baseline by {}, {direction}", first.figure.name()),
    }
}

pub fn rows_table(rows: &[ComparisonRow<'_>]) -> Table {
    let cells = |row: &ComparisonRow<'_>| {
        vec![
            row.name.clone(),
            estimate_text(row, &row.a),
            estimate_text(row, &row.b),
            ratio_text(row),
            row.verdict.name().into(),
            evidence_text(row),
        ]
    };
    let header = ["method", "A", "B", "B/A", "B is", "copies"];
    Table::new(&header, 1..4, rows.iter().map(cells).collect())
}

/// The displayed value of a row's figure or ratio.
pub fn displayed_value(row: &ComparisonRow<'_>, value: f64) -> f64 {
    if row.value == ComparedValue::Figure { row.figure.displayed_value(value) } else { value }
}

pub fn estimate_text(row: &ComparisonRow<'_>, estimate: &Estimate) -> String {
    match (row.value, estimate.median, estimate.low.zip(estimate.high)) {
        (_, None, _) => "–".into(),
        (ComparedValue::Figure, Some(median), interval) => figure_text(row.figure, median, interval),
        (ComparedValue::Ratio, Some(median), Some((low, high))) => {
            format!("{median:.2} [{low:.2}–{high:.2}]")
        }
        (ComparedValue::Ratio, Some(median), None) => format!("{median:.2}"),
    }
}

/// A median with its interval, as text.
pub fn figure_text(figure: Figure, median: f64, interval: Option<(f64, f64)>) -> String {
    let short = |value| quantity::short_number(figure.displayed_value(value));
    match interval {
        Some((low, high)) => format!("{} [{}–{}]", short(median), short(low), short(high)),
        None => short(median),
    }
}

pub fn ratio_text(row: &ComparisonRow<'_>) -> String {
    row.b_over_a.map_or_else(|| "–".into(), |ratio| format!("{ratio:.2}"))
}

fn evidence_text(row: &ComparisonRow<'_>) -> String {
    let [a, b] = [&row.a, &row.b].map(|side| side.evidence.map_or("–", |copies| copies.name()));
    if a == b { a.into() } else { format!("A {a}, B {b}") }
}

/// The name of a row outside of a table.
pub fn full_row_name(row: &RowIdentity<'_>) -> String {
    let variant = row.variant.map(|variant| format!(" {variant}")).unwrap_or_default();
    format!("{} · {}{variant}", series_heading(row), row.method)
}

pub fn counts_sentence(comparison: &RunComparison<'_>) -> String {
    let counts = comparison.rows_by_verdict();
    if counts.is_empty() {
        return "The two have no row in common.".into();
    }
    let counts: Vec<_> =
        counts.into_iter().map(|(verdict, count)| format!("{count} {}", verdict.name())).collect();
    format!("B against A: {}.", counts.join(", "))
}
