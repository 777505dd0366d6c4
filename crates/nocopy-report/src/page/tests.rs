//! Pages as a browser reads them: well-formed, whole, and nothing from elsewhere.

use std::collections::HashSet;
use std::path::Path;

use maud::html;
use roxmltree::{Document, Node};

use super::reading::{
    assert_page_is_valid, cell_texts, chart_count, elements_named, page_body, text_content,
};
use super::*;
use crate::chart::{self, Chart, ChartLine, ChartPoint, LineChart, StackedBar, StackedBarChart};
use crate::comparison::RunComparison;
use crate::figure::Figure;
use crate::result::{CopyEvidence, Report, Row};
use crate::sample;
use crate::table::Table;

fn series_rows(series: &str, count: usize) -> Vec<Row> {
    let name = |index| format!("method-{index}");
    let row = |index| sample::row_with_rate(series, &name(index), 1e6 * (index + 1) as f64);
    let rows = (0..count).map(|index| match index {
        0 => row(0),
        _ => sample::row_with_ratio("method-0", 1.0 + index as f64, row(index)),
    });
    rows.collect()
}

fn with_cause(row: Row) -> Row {
    Row { cause: Some("because of <veth> & others".into()), ..row }
}

#[test]
fn a_page_has_every_figure_and_its_ratio() {
    let mut rows = series_rows("capture, 64-byte frames", 3);
    rows.extend(series_rows("capture, long frames", 1));
    let report = sample::report_with_rows(rows);
    let page = bench_page(&report);
    assert_page_is_valid(&page);
    let cells = cell_texts(&page);
    for text in ["1.00 M [900 k–1.10 M]", "3.00 M [2.70 M–3.30 M]", "9", "2.00 [1.80–2.20] × method-0"]
    {
        assert!(cells.contains(text), "{text}: {cells:?}");
    }
    for text in
        ["Linux 6.18.5", "2 × Some Processor", "nocopy bench capture --quick", "Not measured.", "2026-01-31"]
    {
        assert!(page.contains(text), "{text}");
    }
}

/// So that the page of a run of everything can be sent, and opens at once on a phone.
const LARGEST_BYTES: usize = 400 << 10;

/// As many rows as `nocopy bench --all` has, with names as long.
#[test]
fn the_page_of_a_full_run_is_small() {
    let series = |index| format!("message-stream {index}, 1400-byte messages one way, MTU 1500, cubic");
    let rows = (0..120).flat_map(|index| series_rows(&series(index), 7)).map(with_cause);
    let page = bench_page(&sample::report_with_rows(rows.collect()));
    assert_page_is_valid(&page);
    assert!(page.len() < LARGEST_BYTES, "{} bytes", page.len());
}

#[test]
fn the_headline_comes_first_and_the_rest_is_folded() {
    let page = bench_page(&sample::full_run());
    let document = Document::parse(page_body(&page)).unwrap();
    let main = elements_named(&document, "main").next().unwrap();
    let mut parts = main.children().filter(|node| node.is_element());
    assert_eq!(parts.next().unwrap().tag_name().name(), "h1");
    let headline = parts.next().unwrap();
    assert_eq!(headline.attribute("class"), Some("headline"));
    let rows = headline.descendants().filter(|node| node.tag_name().name() == "tr");
    assert_eq!(
        rows.count(),
        1 + crate::headline::headline_lines(&sample::full_run()).len(),
        "the header and each line"
    );
    assert!(elements_named(&document, "details").all(|details| details.attribute("open").is_none()));
    for section in elements_named(&document, "section") {
        let folds = section.ancestors().filter(|node| node.tag_name().name() == "details");
        assert_eq!(folds.count(), 2, "its series and its workload");
    }
}

#[test]
fn the_only_workload_is_not_folded() {
    let page = bench_page(&sample::report_with_rows(series_rows("capture", 2)));
    let document = Document::parse(page_body(&page)).unwrap();
    let open = elements_named(&document, "details").filter(|details| details.attribute("open").is_some());
    assert_eq!(open.count(), 1);
}

#[test]
fn rows_of_several_buffer_lengths_are_drawn_as_a_line_chart() {
    let recv = |power: u32| Row {
        figure: Figure::BytesPerSecond,
        bytes_per_s: Some(f64::from(power) * 1e8),
        variant: Some(format!("{power}")),
        buffer_bytes: Some(1 << power),
        ..sample::row_with_rate("receive", "recv", 1.0)
    };
    let auto = Row { buffer_bytes: None, method: "auto".into(), variant: None, ..recv(20) };
    let page = bench_page(&sample::report_with_rows((10..=22).map(recv).chain([auto]).collect()));
    assert_page_is_valid(&page);
    assert_eq!(chart_count(&page), 1);
    assert!(page.contains(">64 KiB</text>") && page.contains(">4 MiB</text>"));
}

#[test]
fn results_read_from_json_make_the_same_page() {
    let report = sample::report_with_rows(series_rows("capture", 5));
    let read: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(bench_page(&report), bench_page(&read));
}

#[test]
fn compared_figures_are_in_the_first_columns() {
    let lost = |row| Row { lost_percent: Some(12.5), ..row };
    let page =
        bench_page(&sample::report_with_rows(series_rows("capture", 2).into_iter().map(lost).collect()));
    let document = Document::parse(page_body(&page)).unwrap();
    let line = |row: Node<'_, '_>| row.children().map(text_content).collect::<Vec<_>>();
    let lines: Vec<_> = elements_named(&document, "tr").map(line).collect();
    let (header, row) = (&lines[0], &lines[2]);
    assert_eq!(header[..5], ["method", "packets/s, more is better", "ratio [low–high]", "copies", "Gbit/s"]);
    assert_eq!(
        row[..4],
        ["method-1", "2.00 M [1.80 M–2.20 M] (12.5 % lost)", "2.00 [1.80–2.20] × method-0", "copied"]
    );
    assert_eq!(header.len(), row.len());
}

#[test]
fn causes_are_under_the_table() {
    let page = bench_page(&sample::report_with_rows(
        series_rows("capture", 2).into_iter().map(with_cause).collect(),
    ));
    assert_page_is_valid(&page);
    assert!(cell_texts(&page).contains("copied (1)"));
    assert!(page.contains("(1) because of &lt;veth&gt; &amp; others"));
}

#[test]
fn intervals_are_drawn_in_their_cells() {
    let page = bench_page(&sample::report_with_rows(series_rows("capture", 2)));
    let document = Document::parse(page_body(&page)).unwrap();
    let drawn: Vec<_> = elements_named(&document, "td").filter_map(|cell| cell.attribute("style")).collect();
    // The second rate is twice the first; the ratio, from 1.8 to 2.2, is on a logarithmic scale from 0.97,
    // with a line at 1.
    assert_eq!(
        drawn,
        ["--l:40.9;--m:45.5;--h:50.0", "--l:81.8;--m:90.9;--h:100.0", "--l:75.5;--m:88.4;--h:100.0;--r:3.7"]
    );
}

#[test]
fn extreme_results_make_a_valid_page() {
    let long =
        "a method whose name somebody <made> up & \"quoted\", and which goes on and on and on".repeat(3);
    let odd = |row: Row, low, high| Row { figure_low: low, figure_high: high, ..row };
    let silent = sample::row_with_rate("zeros", "silent", 0.0);
    let huge = odd(sample::row_with_rate("huge", "huge", 1e6), Some(0.0), Some(1e300));
    let apart = [sample::row_with_rate("apart", "slow", 1.0), sample::row_with_rate("apart", "fast", 1e9)];
    let named = sample::row_with_rate(&long, &long, 5.0);
    let none = Row { packets_per_s: None, ..odd(sample::row_with_rate("none", "none", 1.0), None, None) };
    let steering = sample::row_with_rate("control\u{1b}[31m\u{0}characters", "x", 1.0);
    let minus = odd(sample::row_with_rate("below nothing", "minus", -1.0), Some(-2.0), Some(-0.5));
    let ratio = Row {
        ratio_low: Some(0.0),
        ratio_high: Some(1e9),
        ..sample::row_with_ratio(&long, 0.0, silent.clone())
    };
    let rows = [silent, huge, named, none, steering, minus, ratio].into_iter().chain(apart);
    let report = sample::report_with_rows(rows.collect());
    assert_page_is_valid(&bench_page(&report));
    assert_page_is_valid(&comparison_page(&RunComparison::new(
        (Path::new("<a>"), &report),
        (Path::new("b&"), &report),
    )));
    assert_page_is_valid(&bench_page(&sample::report_with_rows(Vec::new())));
    assert_page_is_valid(&bench_page(&sample::report_with_rows(series_rows("many", 60))));
}

#[test]
fn both_runs_are_in_one_table() {
    let (a, mut b) = (
        sample::report_with_rows(series_rows("capture", 3)),
        sample::report_with_rows(series_rows("capture", 2)),
    );
    b.machine.kernel = "7.1".into();
    b.results[1] =
        Row { evidence: Some(CopyEvidence::ZeroCopy), ..sample::row_with_rate("capture", "method-1", 8e6) };
    let page = comparison_page(&RunComparison::new((Path::new("a.json"), &a), (Path::new("b.json"), &b)));
    assert_page_is_valid(&page);
    // B's second row has no baseline any more, and the third is A's alone.
    assert_eq!(page.matches("<table>").count(), 2, "differences, and a series");
    let cells = cell_texts(&page);
    for text in ["6.18.5", "7.1", "better", "4.00", "no difference", "A copied, B zero-copy"] {
        assert!(cells.contains(text), "{text}: {cells:?}");
    }
    assert!(page.contains("Only in A") && !page.contains("Only in B"));
}

fn page_with_chart_twice(chart: &dyn Chart) -> String {
    let table = Table::new(&["", "figure"], 1..2, vec![vec!["one".into(), "1".into()]]);
    html_document(
        "made up",
        &html! { (chart::chart_with_folded_table("one", chart, &table)) (chart::chart_with_folded_table("two", chart, &table)) },
    )
}

fn sample_line_chart() -> LineChart {
    let line = |name: &str, gbit_per_s: f64| ChartLine {
        name: name.into(),
        values: (10..=22_i32)
            .map(|power| {
                let value = gbit_per_s * (1.0 - 0.8_f64.powi(power - 9));
                ChartPoint { length_bytes: 1 << power, value, interval: Some((value * 0.95, value * 1.05)) }
            })
            .collect(),
    };
    LineChart {
        title: "Gbit/s, over the length of the buffer: made up".into(),
        lines: vec![
            line("without profiling", 22.0),
            line("with profiling", 21.0),
            line("fixed at 64 KB", 12.0),
            line("fixed, with profiling", 11.0),
        ],
    }
}

fn sample_stacked_bars() -> StackedBarChart {
    let parts = [
        "interrupt",
        "driver",
        "softirq receive",
        "softirq send",
        "protocol in the call",
        "copy to user",
        "system-call entry",
        "scheduler",
        "sleeping",
        "the rest",
    ];
    let bar = |power: u32| StackedBar {
        name: crate::quantity::length_text(1 << power),
        amounts: (0..parts.len())
            .map(|part| if part == 6 { f64::from(1_u32 << (22 - power)) } else { 20.0 + 13.0 * part as f64 })
            .collect(),
    };
    StackedBarChart {
        title: "Time by category, us per MB received: made up".into(),
        parts: parts.map(str::to_owned).to_vec(),
        bars: (12..=22).map(bar).collect(),
    }
}

#[test]
fn lines_are_distinguishable_without_colour() {
    let page = page_with_chart_twice(&sample_line_chart());
    assert_page_is_valid(&page);
    let document = Document::parse(page_body(&page)).unwrap();
    let legend = elements_named(&document, "line");
    let dashes: HashSet<_> = legend.filter_map(|node| node.attribute("stroke-dasharray")).collect();
    assert_eq!(dashes.len(), 4);
    let odd = LineChart {
        lines: vec![ChartLine { name: "nothing <&>".into(), values: Vec::new() }],
        ..sample_line_chart()
    };
    assert_page_is_valid(&page_with_chart_twice(&odd));
    assert_page_is_valid(&page_with_chart_twice(&LineChart { lines: Vec::new(), ..sample_line_chart() }));
}

#[test]
fn parts_are_distinguishable_without_colour() {
    let page = page_with_chart_twice(&sample_stacked_bars());
    assert_page_is_valid(&page);
    let document = Document::parse(page_body(&page)).unwrap();
    let textures: Vec<_> = elements_named(&document, "pattern")
        .map(|node| {
            let drawn = node.descendants().filter(|node| node.is_element()).skip(1);
            drawn.filter_map(|node| node.attribute("d")).collect::<String>()
        })
        .collect();
    assert!(textures.len() >= 10);
    assert!(textures.windows(2).all(|pair| pair[0] != pair[1]), "{textures:?}");
    let odd = |amounts: Vec<f64>| StackedBarChart {
        bars: vec![StackedBar { name: "odd".into(), amounts }],
        ..sample_stacked_bars()
    };
    for amounts in [vec![], vec![0.0; 10], vec![f64::NAN, -1.0, f64::INFINITY], vec![1e-9, 1e12]] {
        assert_page_is_valid(&page_with_chart_twice(&odd(amounts)));
    }
}
