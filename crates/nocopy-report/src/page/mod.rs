//! Results as one HTML file that needs nothing else: no network, no script, no font.
//!
//! `report`, which reads the JSON, makes the same page as `bench`: both start from one `Report`. Intervals
//! are drawn by the style sheet in the cells of the tables, from three numbers in each cell.

mod bench;
mod comparison;
mod estimates;
mod founding;
mod length;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart::{self, AxisScale};
use crate::print;
use crate::result::Machine;
pub use bench::bench_page;
pub use comparison::comparison_page;

const STYLE: &str = include_str!("../style.css");

pub fn html_document(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (chart::symbol_definitions())
                main {
                    h1 { (title) }
                    (body)
                }
            }
        }
    };
    print::replace_control_characters(&page.into_string())
}

pub fn fact_list(facts: &[(&str, String)]) -> Markup {
    html! {
        dl {
            @for (name, fact) in facts {
                div { dt { (name) } dd { (fact) } }
            }
        }
    }
}

/// The machine that measured, and the version and command.
pub fn machine_facts(machine: &Machine, measured_at: &str) -> [(&'static str, String); 5] {
    let processor = machine.processor.as_deref().unwrap_or("unknown");
    let shared =
        if machine.virtual_machine { ", of a virtual machine: others share the real one" } else { "" };
    [
        ("Measured", measured_at.into()),
        ("Kernel", format!("Linux {} ({})", machine.kernel, machine.architecture)),
        ("Processor", format!("{} × {processor}{shared}", machine.processors)),
        ("Network", machine.network.clone()),
        ("nocopy", machine.nocopy_version.clone()),
    ]
}

/// Lines of text as they are printed.
pub fn note_paragraphs<'a>(lines: impl IntoIterator<Item = &'a str>) -> Markup {
    html! { @for line in lines { p class="note" { (line) } } }
}

/// The contents: the names of sections, whose anchors are `id` and their number.
pub fn table_of_contents(titles: &[String]) -> Markup {
    html! {
        @if titles.len() > 1 {
            details {
                summary { "Contents: " (titles.len()) " sections" }
                ul class="contents" { @for (index, title) in titles.iter().enumerate() { li { a href={ "#" (section_anchor(index)) } { (title) } } } }
            }
        }
    }
}

/// How to read the drawings in cells.
const INTERVALS: &str = "Under a figure: its median (the mark) and its interval (the bar), from 0 to the largest of the series, \
    or logarithmic where they are more than 200 times apart. Under a ratio: the same, logarithmic, with a line at 1.";

/// Results that are compared with each other.
struct SeriesSection {
    title: String,
    body: Markup,
}

/// The series of a workload, each folded.
fn workload_section(name: &str, is_open: bool, series: &[SeriesSection]) -> Markup {
    html! {
        details class="workload" open=[is_open.then_some("")] {
            summary { b { (name) } ", " (series.len()) " series" }
            @for SeriesSection { title, body } in series {
                details {
                    summary { (title) }
                    (body)
                }
            }
        }
    }
}

/// The addition to a title for a logarithmic scale.
fn logarithmic_suffix(scale: &AxisScale) -> &'static str {
    if scale.is_logarithmic() { ", logarithmic" } else { "" }
}

/// The anchor of a section.
pub fn section_anchor(index: usize) -> String {
    format!("s{}", index + 1)
}

#[cfg(any(test, feature = "page-checks"))]
pub mod reading;
#[cfg(test)]
mod tests;
