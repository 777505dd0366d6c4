//! The results of a bench as a page of Markdown tables, for a repository's documents.

use std::fmt::Write as _;

use crate::card;
use crate::founding;
use crate::headline;
use crate::print;
use crate::result::{Report, Section};
use crate::result_table::{self, NumberedCauses};
use crate::table::Table;

pub fn bench_page(report: &Report) -> String {
    let mut page = String::from(
        "# Measurements\n\nWritten by `nocopy report RUN --markdown FILE`: to change this page, measure again.\n\n",
    );
    let _ = writeln!(page, "Measured at {}, by this command:\n", escape_markdown(&report.measured_at));
    // Indented, no line of it can end the block.
    let _ = writeln!(page, "    {}\n", join_whitespace(&report.command));
    let _ = writeln!(
        page,
        "nocopy {}: {}\n",
        escape_markdown(&report.machine.nocopy_version),
        escape_markdown(&report.machine.description())
    );
    let (founding, lines) = (founding::measured_systems(report), headline::headline_lines(report));
    if let Some(card) = card_table(report) {
        let _ = writeln!(page, "## Card\n\n{card}");
    } else if !lines.is_empty() && founding.is_empty() {
        let _ = writeln!(page, "## Headline\n\n{}", markdown_table(&headline::table_of_headline(&lines)));
    }
    for (system, part) in founding {
        let _ = writeln!(
            page,
            "## {}\n\n{}\n\n{}",
            escape_markdown(system.title),
            escape_markdown(system.about),
            markdown_table(&part.table)
        );
        part.words.iter().for_each(|words| page.push_str(&format!("- {}\n", escape_markdown(words))));
        page.push('\n');
    }
    let sections: Vec<_> = report.sections().collect();
    for sections in sections.chunk_by(|one, other| one.workload() == other.workload()) {
        write_workload(&mut page, sections);
    }
    page.push_str("## How to read it\n");
    for note in result_table::report_notes(report) {
        let _ = writeln!(page, "\n{}", escape_markdown(&note));
    }
    print::replace_control_characters(&page)
}

/// The table of a card, to paste; `None`: it was another kind of run.
pub fn card_table(report: &Report) -> Option<String> {
    let table = card::card_table(report)?;
    Some(print::replace_control_characters(&markdown_table(&table)))
}

/// A table for each series, with the causes of copies, and of unknown evidence, under it.
fn write_workload(page: &mut String, sections: &[Section<'_>]) {
    let mut causes = NumberedCauses::default();
    let _ = writeln!(page, "## {}\n", escape_markdown(sections[0].workload()));
    for &section in sections {
        let _ = writeln!(page, "### {}\n", escape_markdown(&result_table::section_heading(section)));
        let rows = result_table::section_table(section, &mut causes);
        let _ = writeln!(page, "Ratio: {}.\n\n{}", section.figure().name(), markdown_table(&rows));
    }
    for cause in causes.numbered_lines() {
        let _ = writeln!(page, "{}\n", escape_markdown(&cause));
    }
}

fn markdown_table(table: &Table) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| escape_markdown(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = |index: usize| if table.figures.contains(&index) { "--:" } else { "---" };
    let rules: Vec<_> = (0..table.header.len()).map(rule).collect();
    let rows: String = table.rows.iter().map(|row| line(row)).collect();
    format!("{}| {} |\n{rows}", line(&table.header), rules.join(" | "))
}

/// The text in one line, escaped so that Markdown shows it unchanged.
fn escape_markdown(text: &str) -> String {
    let mut plain = String::new();
    for character in join_whitespace(text).chars() {
        let begins_a_link = character == '(' && plain.ends_with(']');
        if begins_a_link || matches!(character, '\\' | '|' | '<' | '&' | '`' | '*') {
            plain.push('\\');
        }
        plain.push(character);
    }
    plain
}

fn join_whitespace(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Row;
    use crate::sample;

    #[test]
    fn a_page_has_command_machine_and_a_table_per_series() {
        let because = |row| Row { cause: Some("socket call".into()), ..row };
        let baseline = because(sample::row_with_rate("capture, short", "packet-ring", 1e6));
        let xdp = sample::row_with_ratio(
            "packet-ring",
            2.0,
            because(sample::row_with_rate("capture, short", "xdp", 2e6)),
        );
        let page = bench_page(&sample::report_with_rows(vec![
            baseline,
            xdp,
            sample::row_with_rate("capture, long", "xdp", 3e6),
        ]));
        let lines: Vec<_> = page.lines().collect();
        for expected in [
            "Measured at 2026-01-31T12:00:00Z, by this command:",
            "    nocopy bench capture --quick",
            "nocopy 0.1.0: private veth pair · Linux 6.18.5 · 2 × Some Processor (a virtual machine)",
            "## capture",
            "### capture, short",
            "### capture, long",
            "| method | packets/s | Gbit/s | ns/packet | sender | receiver | machine | ratio [low–high] | copies |",
            "| --- | --: | --: | --: | --: | --: | --: | --- | --- |",
            "| xdp | 2.00 M | – | – | – | – | – | 2.00 [1.80–2.20] × packet-ring | copied (1) |",
            "(1) socket call",
            "Not measured.",
        ] {
            assert!(lines.contains(&expected), "{expected}: {page}");
        }
        assert!(!page.contains("## Headline"), "none of its rows is one");
    }

    #[test]
    fn the_headline_comes_before_the_workloads() {
        let page = bench_page(&sample::full_run());
        let headings: Vec<_> = page.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(headings[0], "## Headline");
        assert_eq!(headings.last(), Some(&"## How to read it"));
        let row = page.lines().find(|line| line.starts_with("| TCP proxy |")).unwrap();
        assert_eq!(row.matches('|').count(), 6, "{row}");
    }

    #[test]
    fn text_of_results_is_escaped() {
        let odd = "a|b\n## odd <script> `d` [e](f) \u{1b}[2J";
        let mut report = sample::report_with_rows(vec![sample::row_with_rate(odd, odd, 1.0)]);
        report.command = odd.into();
        let page = bench_page(&report);
        assert!(!page.contains("\n## odd") && !page.contains('\u{1b}'), "{page}");
        assert!(page.contains("a\\|b ## odd \\<script> \\`d\\` [e]\\(f)"), "{page}");
        let cells = |line: &&str| line.replace("\\|", "").matches('|').count();
        let tables: Vec<_> = page.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(tables.iter().map(cells).collect::<Vec<_>>(), [10, 10, 10]);
    }
}
