//! The page of a comparison: both runs in one chart for each section.

use maud::{Markup, html};

use super::{contents, document, facts, logarithmic, machine, notes, place};
use crate::chart::{self, Entry, Intervals, Mark, Point, Scale, Shape};
use crate::comparison::{self, Compared, Comparison, Estimate, Identity, Side, What};
use crate::comparison_text;

const A: Mark = Mark { shape: Shape::Ring, tone: 0 };
const B: Mark = Mark { shape: Shape::Square, tone: 1 };

pub fn of_comparison(comparison: &Comparison<'_>) -> String {
    let sections: Vec<_> = comparison.sections().collect();
    let titles: Vec<_> = sections.iter().map(|section| comparison_text::heading(&section[0].row)).collect();
    let body = html! {
        p class="result" { (comparison_text::counts(comparison)) }
        @if comparison.differences.is_empty() {
            p { "Both were measured by the same command, and say the same of their machines." }
        } @else {
            h2 { "Not the same" }
            (chart::markup(&comparison_text::differences(comparison), "Differences"))
        }
        div class="figures" { (side("A", A, &comparison.a)) (side("B", B, &comparison.b)) }
        (contents(&titles))
        @for (index, rows) in sections.iter().enumerate() {
            section id=(place(index)) {
                h2 { (rows[0].row.series) }
                @if let Some(sink) = rows[0].row.sink { p class="note" { "into: " (sink) } }
                div class="figures" {
                    @for (number, rows) in comparison::parts(rows).enumerate() {
                        (chart::figure(&format!("{}-{number}", place(index)), &intervals(rows), &comparison_text::table(rows)))
                    }
                }
            }
        }
        (only("A", &comparison.only_a))
        (only("B", &comparison.only_b))
        h2 { "How to read it" }
        (notes([comparison_text::HOW]))
    };
    document("nocopy report", &body)
}

fn side(name: &str, mark: Mark, side: &Side<'_>) -> Markup {
    html! {
        div {
            h2 { (mark.sample()) (name) ": " (side.file) }
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

fn intervals(rows: &[Compared<'_>]) -> Intervals {
    let entries: Vec<_> = rows.iter().map(entry).collect();
    let points = || entries.iter().flat_map(|row: &Entry| &row.points);
    let values: Vec<_> = points().flat_map(|point| [point.low, point.median, point.high]).collect();
    let of_ratio = rows[0].what == What::Ratio;
    let values = values.iter().copied();
    let scale = if of_ratio { Scale::around_one(values) } else { Scale::spread(values) };
    let title = comparison_text::axis(&rows[0]) + logarithmic(&scale);
    Intervals { title, scale, reference: of_ratio.then_some(1.0), rows: entries }
}

fn entry(row: &Compared<'_>) -> Entry {
    let sides = [(A, &row.a), (B, &row.b)];
    let points = sides.into_iter().filter_map(|(mark, estimate)| point(row, mark, estimate));
    Entry {
        name: row.name.clone(),
        said: format!("B/A {}: {}", comparison_text::ratio(row), row.verdict.name()),
        points: points.collect(),
    }
}

fn point(row: &Compared<'_>, mark: Mark, estimate: &Estimate) -> Option<Point> {
    let median = estimate.median?;
    let (low, high) = estimate.low.zip(estimate.high).unwrap_or((median, median));
    let [median, low, high] = [median, low, high].map(|value| comparison_text::shown(row, value));
    Some(Point { median, low, high, mark })
}
