//! The page of a bench: the headline, and folded under it each workload with a table for each series.

use maud::{Markup, html};

use super::estimates::{Estimate, Estimates};
use super::{INTERVALS, Series, document, facts, founding, length, machine, notes, place, workload};
use crate::chart;
use crate::comparison_text;
use crate::figure::Figure;
use crate::headline::{self, HeadlineLine};
use crate::result::{Report, Row, Section};
use crate::result_table::{self, Causes};
use crate::table::Table;

pub fn of_bench(report: &Report) -> String {
    founding::of(report).unwrap_or_else(|| of_rows(report))
}

fn of_rows(report: &Report) -> String {
    let sections: Vec<_> = report.sections().enumerate().collect();
    let workloads: Vec<_> =
        sections.chunk_by(|(_, one), (_, other)| one.workload() == other.workload()).collect();
    let machine = machine(&report.machine, &report.measured_at);
    let body = html! {
        (headlines(&headline::of(report)))
        (facts(&machine))
        p { "To repeat it:" }
        pre { code { (report.command) } }
        h2 { "All results" }
        @for sections in &workloads {
            @let series: Vec<_> = sections.iter().map(|&(index, part)| Series {
                title: result_table::heading(part),
                body: section(&place(index), part),
            }).collect();
            (workload(sections[0].1.workload(), workloads.len() == 1, &series))
        }
        h2 { "How to read it" }
        (notes([INTERVALS]))
        (notes(result_table::notes(report).iter().map(String::as_str)))
    };
    document("nocopy bench", &body)
}

/// The headline rows, each with a link to its series.
fn headlines(lines: &[HeadlineLine<'_>]) -> Markup {
    let table = headline::table(lines);
    let ratios = Estimates::ratios(lines.iter().filter_map(|line| ratio(line.row)));
    html! {
        @if !lines.is_empty() {
            table class="headline" {
                thead { tr { @for name in &table.header { th scope="col" { (name) } } } }
                tbody {
                    @for (cells, line) in table.rows.iter().zip(lines) {
                        tr {
                            th scope="row" { a href={ "#" (place(line.section)) } { (cells[0]) } }
                            @for (column, name) in table.header.iter().enumerate().skip(1) {
                                @let interval = ratio(line.row).filter(|_| column == headline::RATIO);
                                @let style = interval.map(|ratio| ratios.position(ratio).style());
                                td data-name=(name) style=[style] { (cells[column]) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn section(id: &str, section: Section<'_>) -> Markup {
    let mut causes = Causes::default();
    html! {
        // A link into a folded section unfolds it.
        section id=(id) {
            (table(section, &mut causes))
            @for cause in causes.lines() { p class="note" { (cause) } }
            @if let Some(lines) = length::chart(section) { (chart::drawing(&format!("{id}-length"), &lines)) }
        }
    }
}

/// The table of the terminal, with the main columns first: the figure and the ratio, each with its interval
/// drawn, and the copies.
fn table(section: Section<'_>, causes: &mut Causes) -> Markup {
    let rows = section.rows;
    let figures = Estimates::figures(rows.iter().filter_map(median));
    let ratios = Estimates::ratios(rows.iter().filter_map(ratio));
    let interval = |row: usize, column| match column {
        FIGURE => Some(figures.position(median(&rows[row])?)),
        RATIO => Some(ratios.position(ratio(&rows[row])?)),
        _ => None,
    };
    chart::with_intervals(&compared_first(section, causes), section.title(), interval)
}

const FIGURE: usize = 1;
const RATIO: usize = 2;

fn compared_first(section: Section<'_>, causes: &mut Causes) -> Table {
    let figure = section.figure();
    let better = if figure.more_is_better() { "more is better" } else { "less is better" };
    let mut table = result_table::table(section, causes);
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
    let text = |(median, interval)| comparison_text::figure(row.figure, median, interval);
    median(row).map_or_else(|| "–".into(), text) + &result_table::lost_text(lost)
}

fn median(row: &Row) -> Option<Estimate> {
    Some((row.figure.of(row)?, row.figure_interval()))
}

fn ratio(row: &Row) -> Option<Estimate> {
    Some((row.ratio?, row.ratio_interval()))
}
