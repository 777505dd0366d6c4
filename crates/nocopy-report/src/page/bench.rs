//! The page of a bench: the headline, and folded under it each workload with a table for each series.

use maud::{Markup, html};

use super::estimates::{Estimate, EstimateScale};
use super::{
    INTERVALS, SeriesSection, fact_list, founding, html_document, length, machine_facts, note_paragraphs,
    section_anchor, workload_section,
};
use crate::chart;
use crate::comparison_text;
use crate::figure::Figure;
use crate::headline::{self, HeadlineLine};
use crate::result::{Report, Row, Section};
use crate::result_table::{self, NumberedCauses};
use crate::table::Table;

pub fn bench_page(report: &Report) -> String {
    founding::founding_page(report).unwrap_or_else(|| page_of_rows(report))
}

fn page_of_rows(report: &Report) -> String {
    let sections: Vec<_> = report.sections().enumerate().collect();
    let workloads: Vec<_> =
        sections.chunk_by(|(_, one), (_, other)| one.workload() == other.workload()).collect();
    let machine = machine_facts(&report.machine, &report.measured_at);
    let body = html! {
        (headline_section(&headline::headline_lines(report)))
        (fact_list(&machine))
        p { "To repeat it:" }
        pre { code { (report.command) } }
        h2 { "All results" }
        @for sections in &workloads {
            @let series: Vec<_> = sections.iter().map(|&(index, part)| SeriesSection {
                title: result_table::section_heading(part),
                body: series_section(&section_anchor(index), part),
            }).collect();
            (workload_section(sections[0].1.workload(), workloads.len() == 1, &series))
        }
        h2 { "How to read it" }
        (note_paragraphs([INTERVALS]))
        (note_paragraphs(result_table::report_notes(report).iter().map(String::as_str)))
    };
    html_document("nocopy bench", &body)
}

/// The headline rows, each with a link to its series.
fn headline_section(lines: &[HeadlineLine<'_>]) -> Markup {
    let table = headline::table_of_headline(lines);
    let ratios = EstimateScale::for_ratios(lines.iter().filter_map(|line| ratio_estimate(line.row)));
    html! {
        @if !lines.is_empty() {
            table class="headline" {
                thead { tr { @for name in &table.header { th scope="col" { (name) } } } }
                tbody {
                    @for (cells, line) in table.rows.iter().zip(lines) {
                        tr {
                            th scope="row" { a href={ "#" (section_anchor(line.section)) } { (cells[0]) } }
                            @for (column, name) in table.header.iter().enumerate().skip(1) {
                                @let interval = ratio_estimate(line.row).filter(|_| column == headline::RATIO);
                                @let style = interval.map(|ratio| ratios.cell_interval(ratio).css_variables());
                                td data-name=(name) style=[style] { (cells[column]) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn series_section(id: &str, section: Section<'_>) -> Markup {
    let mut causes = NumberedCauses::default();
    html! {
        // A link into a folded section unfolds it.
        section id=(id) {
            (series_table(section, &mut causes))
            @for cause in causes.numbered_lines() { p class="note" { (cause) } }
            @if let Some(lines) = length::chart_by_buffer_length(section) { (chart::chart_markup(&format!("{id}-length"), &lines)) }
        }
    }
}

/// The table of the terminal, with the main columns first: the figure and the ratio, each with its interval
/// drawn, and the copies.
fn series_table(section: Section<'_>, causes: &mut NumberedCauses) -> Markup {
    let rows = section.rows;
    let figures = EstimateScale::for_figures(rows.iter().filter_map(median_estimate));
    let ratios = EstimateScale::for_ratios(rows.iter().filter_map(ratio_estimate));
    let interval = |row: usize, column| match column {
        FIGURE => Some(figures.cell_interval(median_estimate(&rows[row])?)),
        RATIO => Some(ratios.cell_interval(ratio_estimate(&rows[row])?)),
        _ => None,
    };
    chart::table_markup_with_intervals(
        &table_with_compared_columns_first(section, causes),
        section.title(),
        interval,
    )
}

const FIGURE: usize = 1;
const RATIO: usize = 2;

fn table_with_compared_columns_first(section: Section<'_>, causes: &mut NumberedCauses) -> Table {
    let figure = section.figure();
    let better = if figure.more_is_better() { "more is better" } else { "less is better" };
    let mut table = result_table::section_table(section, causes);
    let last = section.rows.iter().map(|row| (figure_text(row), row.rounds.to_string()));
    let last = std::iter::once((format!("{}, {better}", figure.unit()), "rounds".into())).chain(last);
    for (cells, (figure, rounds)) in std::iter::once(&mut table.header).chain(&mut table.rows).zip(last) {
        cells[1..].rotate_right(2); // the ratio and the copies
        if is_rate(section.figure()) {
            cells.remove(RATIO + 1); // now the figure again
        }
        cells.insert(FIGURE, figure);
        cells.push(rounds);
    }
    Table { figures: RATIO + 2..table.header.len(), ..table }
}

/// Whether the terminal's table begins with this figure and the loss.
fn is_rate(figure: Figure) -> bool {
    matches!(figure, Figure::PacketsPerSecond | Figure::MessagesPerSecond)
}

fn figure_text(row: &Row) -> String {
    let lost = row.lost_percent.filter(|_| is_rate(row.figure));
    let text = |(median, interval)| comparison_text::figure_text(row.figure, median, interval);
    median_estimate(row).map_or_else(|| "–".into(), text) + &result_table::lost_text(lost)
}

fn median_estimate(row: &Row) -> Option<Estimate> {
    Some((row.figure.value_in(row)?, row.figure_interval()))
}

fn ratio_estimate(row: &Row) -> Option<Estimate> {
    Some((row.ratio?, row.ratio_interval()))
}
