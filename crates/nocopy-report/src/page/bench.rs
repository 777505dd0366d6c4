//! The page of a bench: the headline, and folded under it each workload with a table for each series.

use maud::{Markup, html};

use super::{document, facts, length, machine, notes, place};
use crate::chart::{self, CellInterval, Scale};
use crate::comparison_text;
use crate::headline::{self, Headline};
use crate::result::{Report, Row, Section};
use crate::result_table::{self, Causes};
use crate::table::Table;

pub fn of_bench(report: &Report) -> String {
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
        @for sections in &workloads { (workload(sections, workloads.len() == 1)) }
        h2 { "How to read it" }
        (notes([INTERVALS]))
        (notes(result_table::notes(report).iter().map(String::as_str)))
    };
    document("nocopy bench", &body)
}

const INTERVALS: &str = "Under a figure: its median (the mark) and its interval (the bar), from 0 to the largest of the series, \
    or logarithmic where they are more than 200 times apart. Under a ratio: the same, logarithmic, with a line at 1.";

/// The rows that are looked for first, each with a link to its series.
fn headlines(headlines: &[Headline<'_>]) -> Markup {
    let table = headline::table(headlines);
    let ratios = ratio_scale(headlines.iter().map(|headline| headline.row));
    html! {
        @if !headlines.is_empty() {
            table class="headline intervals" style=(line_at_one(&ratios)) {
                thead { tr { @for name in &table.header { th scope="col" { (name) } } } }
                tbody {
                    @for (cells, headline) in table.rows.iter().zip(headlines) {
                        tr {
                            th scope="row" { a href={ "#" (place(headline.section)) } { (cells[0]) } }
                            @for (column, name) in table.header.iter().enumerate().skip(1) {
                                @let interval = ratio(headline.row).filter(|_| column == headline::RATIO);
                                @let style = interval.map(|ratio| place_in(&ratios, ratio).style());
                                td data-name=(name) style=[style] { (cells[column]) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The series of a workload, each folded; the numbers are those of the page.
fn workload(sections: &[(usize, Section<'_>)], is_open: bool) -> Markup {
    let name = sections[0].1.workload();
    html! {
        details class="workload" open=[is_open.then_some("")] {
            summary { b { (name) } ", " (sections.len()) " series" }
            @for &(index, part) in sections { (section(&place(index), part)) }
        }
    }
}

fn section(id: &str, section: Section<'_>) -> Markup {
    let mut causes = Causes::default();
    html! {
        details {
            summary { (result_table::heading(section)) }
            // A link to what is folded unfolds it.
            section id=(id) {
                (table(section, &mut causes))
                @for cause in causes.lines() { p class="note" { (cause) } }
                @if let Some(lines) = length::chart(section) { (chart::drawing(&format!("{id}-length"), &lines)) }
            }
        }
    }
}

/// The table of the terminal, what is compared first: the figure and the ratio, each with its interval drawn, and the copies.
fn table(section: Section<'_>, causes: &mut Causes) -> Markup {
    let rows = section.rows;
    let figures = Scale::spread(values(rows.iter().filter_map(median)));
    let ratios = ratio_scale(rows.iter());
    let interval = |row: usize, column| match column {
        FIGURE => Some(place_in(&figures, median(&rows[row])?)),
        RATIO => Some(place_in(&ratios, ratio(&rows[row])?)),
        _ => None,
    };
    html! {
        div class="intervals" style=(line_at_one(&ratios)) {
            (chart::with_intervals(&compared_first(section, causes), section.title(), interval))
        }
    }
}

const FIGURE: usize = 1;
const RATIO: usize = 2;

fn compared_first(section: Section<'_>, causes: &mut Causes) -> Table {
    let figure = section.figure();
    let better = if figure.more_is_better() { "more is better" } else { "less is better" };
    let mut table = result_table::table(section, causes);
    let last = section.rows.iter().map(|row| (figure_text(row), row.runs.to_string()));
    let last = std::iter::once((format!("{}, {better}", figure.unit()), "rounds".into())).chain(last);
    for (cells, (figure, rounds)) in std::iter::once(&mut table.header).chain(&mut table.rows).zip(last) {
        cells[1..].rotate_right(2); // the ratio and the copies
        cells.insert(FIGURE, figure);
        cells.push(rounds);
    }
    Table { figures: RATIO + 2..table.header.len(), ..table }
}

fn figure_text(row: &Row) -> String {
    let text = |(median, interval)| comparison_text::figure(row.figure, median, interval);
    median(row).map_or_else(|| "–".into(), text)
}

/// A median, and its interval if there is one.
type Estimate = (f64, Option<(f64, f64)>);

fn median(row: &Row) -> Option<Estimate> {
    Some((row.figure.of(row)?, row.figure_low.zip(row.figure_high)))
}

fn ratio(row: &Row) -> Option<Estimate> {
    Some((row.ratio?, row.ratio_low.zip(row.ratio_high)))
}

fn values(estimates: impl Iterator<Item = Estimate> + Clone) -> impl Iterator<Item = f64> + Clone {
    let all = |(median, interval): Estimate| interval.map_or([median; 3], |(low, high)| [low, median, high]);
    estimates.flat_map(all)
}

fn ratio_scale<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> Scale {
    Scale::around_one(values(rows.filter_map(ratio)))
}

/// Where the style sheet draws the line of ratios.
fn line_at_one(ratios: &Scale) -> String {
    format!("--one:{:.1}", ratios.place(1.0) * 100.0)
}

fn place_in(scale: &Scale, (median, interval): Estimate) -> CellInterval {
    let (low, high) = interval.unwrap_or((median, median));
    CellInterval { low: scale.place(low), median: scale.place(median), high: scale.place(high) }
}
