//! README.md, docs/performance.md and docs/founding.md show what this crate prints of the committed runs.
#![allow(missing_docs)]

use nocopy_report::founding::{format_systems, measured_systems};
use nocopy_report::headline_table::COLUMNS;
use nocopy_report::markdown::bench_page;
use nocopy_report::result::Report;
use nocopy_report::result_lines::read_report;

/// A cell without a figure.
const NOTHING: &str = "–";

fn founding_run() -> Report {
    read_report(include_bytes!("../../../docs/founding.jsonl")).expect("results of a bench")
}

/// Every figure of every table is there, no line is wider than a terminal, and docs/founding.md has the
/// output of `nocopy report docs/founding.jsonl`.
#[test]
fn the_committed_run_fills_all_tables() {
    let report = founding_run();
    let parts = measured_systems(&report);
    // Where the paper has no figure, or there is no such work: ports complete no checksum of a datagram
    // of 8 KiB, and 64 and 128 B are no gigabit.
    let expected_empty = [0, 0, 2 + 3, 2 + 2, 0];
    assert_eq!(parts.len(), expected_empty.len());
    for ((system, part), expected_empty) in parts.iter().zip(expected_empty) {
        assert!(!part.words.is_empty() && !part.table.rows.is_empty(), "{}", system.title);
        assert!(part.words.iter().all(|words| !words.contains("not measured")), "{:?}", part.words);
        let cells =
            part.table.figures.clone().flat_map(|column| part.table.rows.iter().map(move |row| &row[column]));
        let empty = cells.filter(|cell| *cell == NOTHING).count();
        assert_eq!(empty, expected_empty, "{}", part.table.text());
    }
    let text = format_systems(&report);
    assert!(include_str!("../../../docs/founding.md").contains(text.trim()), "{text}");
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|widest| widest <= COLUMNS), "{widest:?}\n{text}");
}

#[test]
fn founding_systems_come_before_their_rows() {
    let page = bench_page(&founding_run());
    let headings: Vec<_> = page.lines().filter(|line| line.starts_with("## ")).collect();
    assert_eq!(
        headings.len(),
        5 + 4 + 1,
        "five systems, four workloads with rows, how to read them: {headings:?}"
    );
    assert!(headings[4].contains("2011") && page.contains("| keepalive timer, % |"), "{headings:?}");
}

/// If it fails: `nocopy report docs/headline.jsonl --markdown FILE` writes the table for
/// docs/performance.md, of which README.md shows some lines.
#[test]
fn the_documents_show_the_committed_headline() {
    let run = read_report(include_bytes!("../../../docs/headline.jsonl")).expect("results of a bench");
    let page = bench_page(&run);
    let (_, headline) = page.split_once("## Headline\n\n").unwrap();
    let (headline, _) = headline.split_once("\n\n").unwrap();
    let (performance, readme) =
        (include_str!("../../../docs/performance.md"), include_str!("../../../README.md"));
    assert!(performance.contains(headline), "docs/performance.md has not this table:\n{headline}");
    let title = headline.lines().next().unwrap();
    let shown = readme.lines().skip_while(|line| *line != title).take_while(|line| !line.is_empty());
    let shown: Vec<&str> = shown.collect();
    assert!(shown.len() > 6, "README.md shows lines of the table:\n{headline}");
    for line in shown {
        assert!(headline.lines().any(|row| row == line), "README.md: not in the table: {line}");
    }
}
