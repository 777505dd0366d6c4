//! The page of a comparison: both runs side by side, in a folded table for each series.

use maud::{Markup, html};

use super::estimates::Estimates;
use super::{INTERVALS, Series, document, facts, logarithmic, machine, notes, workload};
use crate::chart;
use crate::comparison::{self, ComparedRun, ComparedValue, Comparison, ComparisonRow, Estimate, Identity};
use crate::comparison_text;
use crate::table::Table;

pub fn of_comparison(comparison: &Comparison<'_>) -> String {
    let sections: Vec<_> = comparison.sections().collect();
    let workloads: Vec<_> =
        sections.chunk_by(|one, other| one[0].row.workload == other[0].row.workload).collect();
    let body = html! {
        p class="result" { (comparison_text::counts(comparison)) }
        @if comparison.differences.is_empty() {
            p { "Both were measured by the same command, and say the same of their machines." }
        } @else {
            h2 { "Not the same" }
            (chart::markup(&comparison_text::differences(comparison), "Differences"))
        }
        div class="figures" { (side("A", &comparison.a)) (side("B", &comparison.b)) }
        h2 { "All rows" }
        @for sections in &workloads {
            @let series: Vec<_> = sections.iter().map(|rows| Series {
                title: comparison_text::heading(&rows[0].row),
                body: html! { @for rows in comparison::parts(rows) { (part(rows)) } },
            }).collect();
            (workload(sections[0][0].row.workload, workloads.len() == 1, &series))
        }
        (only("A", &comparison.only_a))
        (only("B", &comparison.only_b))
        h2 { "How to read it" }
        (notes([comparison_text::HOW, INTERVALS]))
    };
    document("nocopy report", &body)
}

fn side(name: &str, side: &ComparedRun<'_>) -> Markup {
    html! {
        div {
            h2 { (name) ": " (side.file) }
            (facts(&machine(side.machine, side.measured_at)))
            pre { code { (side.command) } }
        }
    }
}

fn only(name: &str, rows: &[Identity<'_>]) -> Markup {
    html! {
        @if !rows.is_empty() {
            h2 { "Only in " (name) }
            ul { @for row in rows { li { (comparison_text::full_name(row)) } } }
        }
    }
}

/// The figures of a series, or its ratios: both runs on one scale.
fn part(rows: &[ComparisonRow<'_>]) -> Markup {
    let estimates = rows.iter().flat_map(|row| [estimate(row, &row.a), estimate(row, &row.b)]).flatten();
    let estimates = match rows[0].value {
        ComparedValue::Figure => Estimates::figures(estimates),
        ComparedValue::Ratio => Estimates::ratios(estimates),
    };
    let interval = |row: usize, column| {
        let row = &rows[row];
        let side = [(A, &row.a), (B, &row.b)].into_iter().find(|(place, _)| *place == column)?.1;
        Some(estimates.position(estimate(row, side)?))
    };
    let title = comparison_text::axis(&rows[0]) + logarithmic(&estimates.scale);
    let table = Table { figures: B + 1..B + 2, ..comparison_text::table(rows) };
    html! {
        p class="note" { (title) }
        (chart::with_intervals(&table, &title, interval))
    }
}

/// The columns of the two runs.
const A: usize = 1;
const B: usize = 2;

fn estimate(row: &ComparisonRow<'_>, side: &Estimate) -> Option<super::estimates::Estimate> {
    let shown = |value| comparison_text::shown(row, value);
    Some((shown(side.median?), side.low.zip(side.high).map(|(low, high)| (shown(low), shown(high)))))
}
