//! The page of `nocopy bench --founding`: a section for each system, with its table, the ratios reached, and
//! its charts.

use maud::{Markup, html};

use super::{fact_list, html_document, machine_facts, note_paragraphs, section_anchor};
use crate::chart::{self, Chart};
use crate::founding::{self, PublishedSystem, SystemResults};
use crate::result::Report;

pub(super) fn founding_page(report: &Report) -> Option<String> {
    let parts = founding::measured_systems(report);
    let body = html! {
        p { "What five systems published between 1997 and 2011, and the same work here." }
        (fact_list(&machine_facts(&report.machine, &report.measured_at)))
        p { "To repeat it:" }
        pre { code { (report.command) } }
        @for (index, (system, part)) in parts.iter().enumerate() { (system_section(&section_anchor(index), system, part)) }
        h2 { "How to read it" }
        (note_paragraphs([founding::HOW].into_iter().chain(report.notes.iter().map(String::as_str))))
    };
    (!parts.is_empty()).then(|| html_document("nocopy bench --founding", &body))
}

fn system_section(id: &str, system: &PublishedSystem, part: &SystemResults) -> Markup {
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
            (chart::table_markup(&part.table, system.title))
            (note_paragraphs(part.words.iter().map(String::as_str)))
            @for (index, chart) in charts.into_iter().enumerate() { (chart::chart_markup(&format!("{id}-{index}"), chart)) }
        }
    }
}
