//! The page of a bench: a section for each series, with the figures and the ratios as charts.

use std::collections::HashSet;

use maud::{Markup, html};

use super::{contents, cost, document, facts, length, logarithmic, machine, mark, notes, place};
use crate::chart::{self, Entry, Intervals, Point, Scale};
use crate::comparison_text;
use crate::result::{Copies, Report, Row, Section};
use crate::result_table::{self, Causes};
use crate::statistics::ENOUGH;
use crate::table::Table;

pub fn of_bench(report: &Report) -> String {
    let sections: Vec<_> = report.sections().collect();
    let titles: Vec<_> = sections.iter().map(|&section| result_table::heading(section)).collect();
    let machine = machine(&report.machine, &report.measured_at);
    let body = html! {
        (facts(&machine))
        p { "To repeat it:" }
        pre { code { (report.command) } }
        (key())
        (contents(&titles))
        @for (index, &part) in sections.iter().enumerate() { (section(&place(index), part)) }
        h2 { "How to read it" }
        (notes(result_table::notes(report).iter().map(String::as_str)))
    };
    document("nocopy bench", &body)
}

/// What is known of copies, by the shape of a mark.
fn key() -> Markup {
    let kinds = [
        (Some(Copies::ZeroCopy), "zero-copy"),
        (Some(Copies::Copied), "copied; the table has the cause"),
        (Some(Copies::Unknown), "unknown; the table has the cause"),
    ];
    html! {
        ul class="legend" aria-label="Marks" {
            @for (evidence, name) in kinds { li { (mark(evidence).sample()) (name) } }
            li { "mark: median; line: its 95 % interval (of fewer than " (ENOUGH) " rounds: all values)" }
        }
    }
}

fn section(id: &str, section: Section<'_>) -> Markup {
    let mut causes = Causes::default();
    let table = full_table(section, &mut causes);
    let ratios = ratios(section);
    html! {
        section id=(id) {
            h2 { (section.title()) }
            @if let Some(sink) = section.sink() { p class="note" { "into: " (sink) } }
            div class="figures" {
                (chart::figure(&format!("{id}-figure"), &figures(section), &table))
                @if !ratios.rows.is_empty() {
                    (chart::figure(&format!("{id}-ratio"), &ratios, &ratio_table(section)))
                }
                @if let Some((lines, table)) = length::chart(section) {
                    (chart::figure(&format!("{id}-length"), &lines, &table))
                }
                @if let Some((stacks, table)) = cost::chart(section) {
                    (chart::figure(&format!("{id}-cost"), &stacks, &table))
                }
            }
            @for cause in causes.lines() { p class="note" { (cause) } }
        }
    }
}

/// The rows, each of which stands there once for each of its baselines, without repetition.
pub(crate) fn once(section: Section<'_>) -> impl Iterator<Item = &Row> {
    let same = |one: &Row, other: &Row| (&one.method, &one.variant) == (&other.method, &other.variant);
    section.rows.chunk_by(same).map(|rows| &rows[0])
}

/// The table of the terminal, with the interval of what is compared.
fn full_table(section: Section<'_>, causes: &mut Causes) -> Table {
    let mut table = result_table::table(section, causes);
    table.header.insert(1, format!("{} [interval]", section.figure().unit()));
    table.header.insert(2, "rounds".into());
    table.figures.end += 2;
    for (cells, row) in table.rows.iter_mut().zip(section.rows) {
        cells.insert(1, said(row));
        cells.insert(2, row.runs.to_string());
    }
    table
}

pub(crate) fn interval(row: &Row) -> Option<(f64, f64)> {
    row.figure_low.zip(row.figure_high)
}

pub(crate) fn said(row: &Row) -> String {
    row.figure
        .of(row)
        .map_or_else(|| "–".into(), |median| comparison_text::figure(row.figure, median, interval(row)))
}

fn figures(section: Section<'_>) -> Intervals {
    let figure = section.figure();
    let shown = |value| figure.shown(value);
    let entry = |row: &Row| Entry {
        name: result_table::name(row, section.title()),
        said: said(row),
        points: figure
            .of(row)
            .into_iter()
            .map(|median| point(row, median, interval(row), said(row), shown))
            .collect(),
    };
    let rows: Vec<Entry> = once(section).map(entry).collect();
    let direction = if figure.more_is_better() { "more is better" } else { "less is better" };
    let scale = Scale::spread(values(&rows));
    let title = format!("{}, {direction}{}", figure.unit(), logarithmic(&scale));
    Intervals { title, scale, reference: None, rows }
}

fn ratios(section: Section<'_>) -> Intervals {
    let title = section.title();
    let baselines: HashSet<_> =
        section.rows.iter().filter_map(|row| result_table::baseline(row, title)).collect();
    // The only one is in the title; of several each row has its own.
    let only = baselines.iter().next().filter(|_| baselines.len() == 1);
    let rows: Vec<_> =
        section.rows.iter().filter_map(|row| ratio_entry(row, title, only.is_none())).collect();
    let scale = Scale::around_one(values(&rows));
    let baseline = only.map_or("the baseline", String::as_str);
    let title = format!("Times better than {baseline} by {}, logarithmic", section.figure().name());
    Intervals { title, scale, reference: Some(1.0), rows }
}

fn ratio_entry(row: &Row, title: &str, names_baseline: bool) -> Option<Entry> {
    let (ratio, baseline) = row.ratio.zip(result_table::baseline(row, title))?;
    let interval = row.ratio_low.zip(row.ratio_high);
    let said = match interval {
        Some((low, high)) => format!("{ratio:.2} [{low:.2}–{high:.2}]"),
        None => format!("{ratio:.2}"),
    };
    let points = vec![point(row, ratio, interval, said.clone(), |ratio| ratio)];
    let against = if names_baseline { format!(" × {baseline}") } else { String::new() };
    Some(Entry { name: result_table::name(row, title) + &against, said, points })
}

fn values(rows: &[Entry]) -> impl Iterator<Item = f64> + Clone {
    rows.iter().flat_map(|row| &row.points).flat_map(|point| [point.low, point.median, point.high])
}

fn point(
    row: &Row,
    median: f64,
    interval: Option<(f64, f64)>,
    said: String,
    shown: impl Fn(f64) -> f64,
) -> Point {
    let (low, high) = interval.unwrap_or((median, median));
    let copies = row.evidence.map_or("", |copies| copies.name());
    let cause = row.cause.as_ref().map(|cause| format!(" ({cause})")).unwrap_or_default();
    Point {
        median: shown(median),
        low: shown(low),
        high: shown(high),
        mark: mark(row.evidence),
        said: format!("{said} {copies}{cause}"),
    }
}

fn ratio_table(section: Section<'_>) -> Table {
    let rows = section.rows.iter().filter_map(|row| {
        let baseline = result_table::baseline(row, section.title())?;
        let number = |value: Option<f64>| value.map_or_else(|| "–".into(), |value| format!("{value:.3}"));
        let [ratio, low, high] = [row.ratio?, row.ratio_low?, row.ratio_high?].map(Some).map(number);
        Some(vec![result_table::name(row, section.title()), ratio, low, high, baseline])
    });
    Table::new(&["method", "ratio", "low", "high", "baseline"], 1..4, rows.collect())
}
