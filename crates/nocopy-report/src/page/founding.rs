//! The page of `nocopy bench --founding`: a section for each system, with its table, the ratios reached, and
//! its charts.

use maud::{Markup, html};

use super::{document, facts, machine, notes, place};
use crate::chart::{self, Chart};
use crate::founding::{self, System, SystemResults};
use crate::result::Report;

pub(super) fn of(report: &Report) -> Option<String> {
    let parts = founding::parts(report);
    let body = html! {
        p { "What five systems published between 1997 and 2011, and the same work here." }
        (facts(&machine(&report.machine, &report.measured_at)))
        p { "To repeat it:" }
        pre { code { (report.command) } }
        @for (index, (system, part)) in parts.iter().enumerate() { (section(&place(index), system, part)) }
        h2 { "How to read it" }
        (notes([founding::HOW].into_iter().chain(report.notes.iter().map(String::as_str))))
    };
    (!parts.is_empty()).then(|| document("nocopy bench --founding", &body))
}

fn section(id: &str, system: &System, part: &SystemResults) -> Markup {
    let charts: Vec<&dyn Chart> = part
        .bars
        .iter()
        .map(|bars| -> &dyn Chart { bars })
        .chain(part.lines.iter().map(|lines| -> &dyn Chart { lines }))
        .collect();
    html! {
        section id=(id) {
            h2 { (system.title) }
            p { (system.about) }
            (chart::markup(&part.table, system.title))
            (notes(part.words.iter().map(String::as_str)))
            @for (index, chart) in charts.into_iter().enumerate() { (chart::drawing(&format!("{id}-{index}"), chart)) }
        }
    }
}
