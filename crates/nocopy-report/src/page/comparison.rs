//! The page of a comparison: both runs side by side, in a folded table for each series.

use maud::{Markup, html};

use super::estimates::EstimateScale;
use super::{
    INTERVALS, SeriesSection, fact_list, html_document, logarithmic_suffix, machine_facts, note_paragraphs,
    workload_section,
};
use crate::chart;
use crate::comparison::{
    self, ComparedRun, ComparedValue, ComparisonRow, Estimate, RowIdentity, RunComparison,
};
use crate::comparison_text;
use crate::table::Table;

pub fn comparison_page(comparison: &RunComparison<'_>) -> String {
    let sections: Vec<_> = comparison.sections().collect();
    let workloads: Vec<_> =
        sections.chunk_by(|one, other| one[0].row.workload == other[0].row.workload).collect();
    let body = html! {
        p class="result" { (comparison_text::counts_sentence(comparison)) }
        @if comparison.differences.is_empty() {
            p { "Both were measured by the same command, and say the same of their machines." }
        } @else {
            h2 { "Not the same" }
            (chart::table_markup(&comparison_text::difference_table(comparison), "Differences"))
        }
        div class="figures" { (run_facts("A", &comparison.a)) (run_facts("B", &comparison.b)) }
        h2 { "All rows" }
        @for sections in &workloads {
            @let series: Vec<_> = sections.iter().map(|rows| SeriesSection {
                title: comparison_text::series_heading(&rows[0].row),
                body: html! { @for rows in comparison::split_figures_and_ratios(rows) { (table_with_shared_scale(rows)) } },
            }).collect();
            (workload_section(sections[0][0].row.workload, workloads.len() == 1, &series))
        }
        (rows_of_one_run("A", &comparison.only_a))
        (rows_of_one_run("B", &comparison.only_b))
        h2 { "How to read it" }
        (note_paragraphs([comparison_text::HOW, INTERVALS]))
    };
    html_document("nocopy report", &body)
}

fn run_facts(name: &str, side: &ComparedRun<'_>) -> Markup {
    html! {
        div {
            h2 { (name) ": " (side.file) }
            (fact_list(&machine_facts(side.machine, side.measured_at)))
            pre { code { (side.command) } }
        }
    }
}

fn rows_of_one_run(name: &str, rows: &[RowIdentity<'_>]) -> Markup {
    html! {
        @if !rows.is_empty() {
            h2 { "Only in " (name) }
            ul { @for row in rows { li { (comparison_text::full_row_name(row)) } } }
        }
    }
}

/// The figures of a series, or its ratios: both runs on one scale.
fn table_with_shared_scale(rows: &[ComparisonRow<'_>]) -> Markup {
    let estimates = rows
        .iter()
        .flat_map(|row| [displayed_estimate(row, &row.a), displayed_estimate(row, &row.b)])
        .flatten();
    let estimates = match rows[0].value {
        ComparedValue::Figure => EstimateScale::for_figures(estimates),
        ComparedValue::Ratio => EstimateScale::for_ratios(estimates),
    };
    let interval = |row: usize, column| {
        let row = &rows[row];
        let side = [(A, &row.a), (B, &row.b)].into_iter().find(|(place, _)| *place == column)?.1;
        Some(estimates.cell_interval(displayed_estimate(row, side)?))
    };
    let title = comparison_text::quantity_and_direction(&rows[0]) + logarithmic_suffix(&estimates.scale);
    let table = Table { figures: B + 1..B + 2, ..comparison_text::rows_table(rows) };
    html! {
        p class="note" { (title) }
        (chart::table_markup_with_intervals(&table, &title, interval))
    }
}

/// The columns of the two runs.
const A: usize = 1;
const B: usize = 2;

fn displayed_estimate(row: &ComparisonRow<'_>, side: &Estimate) -> Option<super::estimates::Estimate> {
    let shown = |value| comparison_text::displayed_value(row, value);
    Some((shown(side.median?), side.low.zip(side.high).map(|(low, high)| (shown(low), shown(high)))))
}
