//! Pages as a browser reads them: well-formed, whole, and nothing from elsewhere.

use std::collections::HashSet;
use std::path::Path;

use maud::html;
use roxmltree::{Document, Node};

use super::*;
use crate::bench::figure::Figure;
use crate::bench::made_up;
use crate::bench::result::{Report, Row};
use crate::profile::figures::Figures;
use crate::profile::specimen::bulk_receive;
use crate::profile::sweep::{self, CellFigures, Range, Sweep};
use crate::report::chart::{self, Bar, Chart, Line, Lines, Stacks, Value};
use crate::report::comparison::{Comparison, Verdict};
use crate::report::throughput;
use crate::table::Table;

/// What is in the head is not XML, and always the same.
fn body(page: &str) -> &str {
    let start = page.find("<body>").expect("a body");
    page[start..].trim_end().strip_suffix("</html>").expect("an end")
}

fn named<'a, 'b>(document: &'a Document<'b>, name: &'a str) -> impl Iterator<Item = Node<'a, 'b>> {
    document.descendants().filter(move |node| node.tag_name().name() == name)
}

fn words(node: Node<'_, '_>) -> String {
    node.descendants().filter_map(|node| node.text().filter(|_| node.is_text())).collect()
}

/// What holds for every page.
fn check(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>"));
    assert!(
        !page.contains("http")
            && !page.contains("<script")
            && !page.contains("NaN")
            && !page.contains("inf%")
    );
    let document = Document::parse(body(page)).unwrap_or_else(|error| panic!("{error}: {page}"));
    let ids: Vec<_> = document.descendants().filter_map(|node| node.attribute("id")).collect();
    let known: HashSet<_> = ids.iter().copied().collect();
    assert_eq!(ids.len(), known.len(), "ids are there once: {ids:?}");
    for node in document.descendants() {
        assert!(
            !node
                .attributes()
                .any(|attribute| attribute.name().starts_with("on") || attribute.name() == "src")
        );
        let references = node.attribute("aria-labelledby").unwrap_or_default().split_whitespace();
        assert!(references.into_iter().all(|id| known.contains(id)), "{node:?}");
        if let Some(link) = node.attribute("href") {
            assert!(known.contains(link.strip_prefix('#').expect("within the page")), "{link}");
        }
        if let Some(fill) = node.attribute("fill").and_then(|fill| fill.strip_prefix("url(#")) {
            assert!(known.contains(fill.trim_end_matches(')')), "{fill}");
        }
    }
    for figure in named(&document, "figure") {
        let count = |name| figure.descendants().filter(|node| node.tag_name().name() == name).count();
        let charts = figure.descendants().filter(|node| node.attribute("role") == Some("img"));
        assert_eq!((charts.count(), count("table"), count("figcaption"), count("desc")), (1, 1, 1, 1));
    }
    for line in named(&document, "line").flat_map(|line| line.attributes()) {
        let percent = line.value().strip_suffix('%').map(|number| number.parse::<f64>().unwrap());
        assert!(percent.is_none_or(|place| (0.0..=100.0).contains(&place)), "{line:?}");
    }
}

/// The cells of all tables.
fn cells(page: &str) -> HashSet<String> {
    let document = Document::parse(body(page)).unwrap();
    let cells = document.descendants().filter(|node| ["td", "th"].contains(&node.tag_name().name()));
    cells.map(words).collect()
}

fn charts(page: &str) -> usize {
    body(page).matches("role=\"img\"").count()
}

fn section(series: &str, count: usize) -> Vec<Row> {
    let name = |index| format!("method-{index}");
    let row = |index| made_up::row(series, &name(index), 1e6 * (index + 1) as f64);
    let rows = (0..count).map(|index| match index {
        0 => row(0),
        _ => made_up::against("method-0", 1.0 + index as f64, row(index)),
    });
    rows.collect()
}

fn evidence(copies: Option<Copies>, row: Row) -> Row {
    Row { evidence: copies, cause: Some("because of <veth> & others".into()), ..row }
}

#[test]
fn a_page_has_every_figure_in_a_chart_and_in_a_table() {
    let mut rows = section("capture, 64-byte frames", 3);
    rows.extend(section("capture, long frames", 1));
    let report = made_up::report(rows);
    let page = of_bench(&report);
    check(&page);
    // Nothing is compared with a single row.
    assert_eq!(charts(&page), 3);
    let cells = cells(&page);
    for said in
        ["1.00 M [900 k–1.10 M]", "3.00 M [2.70 M–3.30 M]", "9", "2.00 [1.80–2.20] × method-0", "2.700"]
    {
        assert!(cells.contains(said), "{said}: {cells:?}");
    }
    for said in
        ["Linux 6.18.5", "2 × Some Processor", "nocopy bench capture --quick", "Not measured.", "2026-01-31"]
    {
        assert!(page.contains(said), "{said}");
    }
}

#[test]
fn processor_time_is_a_chart_of_its_parts() {
    let costly = |row: Row, machine| Row {
        sender_cpu_ns_per_packet: Some(100.0),
        receiver_cpu_ns_per_packet: Some(50.0),
        machine_cpu_ns_per_packet: machine,
        ..row
    };
    let rows = section("capture", 3).into_iter().zip([Some(200.0), Some(120.0), None]);
    let page = of_bench(&made_up::report(rows.map(|(row, machine)| costly(row, machine)).collect()));
    check(&page);
    assert_eq!(charts(&page), 3);
    let document = Document::parse(body(&page)).unwrap();
    let figure = named(&document, "figure").last().unwrap();
    let rows = figure.descendants().filter(|node| node.tag_name().name() == "tr").skip(1);
    let rows: Vec<String> = rows.map(|row| row.children().map(words).collect::<Vec<_>>().join(" ")).collect();
    // The parts may be more than the whole, which is counted in steps.
    assert_eq!(rows, ["method-0 100 50 50 200", "method-1 100 50 0 120"]);
}

#[test]
fn buffers_of_several_lengths_are_a_curve() {
    let recv = |power: u32| Row {
        figure: Figure::BytesPerSecond,
        bytes_per_s: Some(f64::from(power) * 1e8),
        variant: Some(format!("{power}")),
        buffer_bytes: Some(1 << power),
        ..made_up::row("receive", "recv", 1.0)
    };
    let auto = Row { buffer_bytes: None, method: "auto".into(), variant: None, ..recv(20) };
    let page = of_bench(&made_up::report((10..=22).map(recv).chain([auto]).collect()));
    check(&page);
    assert_eq!(charts(&page), 2);
    assert!(cells(&page).contains("64 KiB") && cells(&page).contains("4 MiB"));
}

/// Proves that a page is made of nothing but what is written as JSON.
#[test]
fn results_that_were_written_and_read_make_the_same_page() {
    let report = made_up::report(section("capture", 5));
    let read: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(of_bench(&report), of_bench(&read));
}

#[test]
fn evidence_has_a_shape_of_its_own() {
    let known = [Some(Copies::ZeroCopy), Some(Copies::Copied), Some(Copies::Unknown), None];
    let shapes: HashSet<_> = known.map(|evidence| mark(evidence).path().into_string()).into_iter().collect();
    assert_eq!(shapes.len(), known.len());
    let rows = section("capture", 4).into_iter().zip(known).map(|(row, known)| evidence(known, row));
    let page = of_bench(&made_up::report(rows.collect()));
    check(&page);
    assert!(shapes.iter().all(|shape| page.contains(shape.as_str())));
    assert!(page.contains("zero-copy (because of &lt;veth&gt; &amp; others)"));
}

#[test]
fn odd_results_make_a_page_too() {
    let long =
        "a method whose name somebody <made> up & \"quoted\", and which goes on and on and on".repeat(3);
    let odd = |row: Row, low, high| Row { figure_low: low, figure_high: high, ..row };
    let silent = made_up::row("zeros", "silent", 0.0);
    let huge = odd(made_up::row("huge", "huge", 1e6), Some(0.0), Some(1e300));
    let apart = [made_up::row("apart", "slow", 1.0), made_up::row("apart", "fast", 1e9)];
    let named = made_up::row(&long, &long, 5.0);
    let none = Row { packets_per_s: None, ..odd(made_up::row("none", "none", 1.0), None, None) };
    let steering = made_up::row("control\u{1b}[31m\u{0}characters", "x", 1.0);
    let minus = odd(made_up::row("below nothing", "minus", -1.0), Some(-2.0), Some(-0.5));
    let ratio =
        Row { ratio_low: Some(0.0), ratio_high: Some(1e9), ..made_up::against(&long, 0.0, silent.clone()) };
    let rows = [silent, huge, named, none, steering, minus, ratio].into_iter().chain(apart);
    let report = made_up::report(rows.collect());
    check(&of_bench(&report));
    check(&of_comparison(&Comparison::new((Path::new("<a>"), &report), (Path::new("b&"), &report))));
    check(&of_bench(&made_up::report(Vec::new())));
    check(&of_bench(&made_up::report(section("many", 60))));
}

#[test]
fn both_runs_are_in_one_chart() {
    let (a, mut b) = (made_up::report(section("capture", 3)), made_up::report(section("capture", 2)));
    b.machine.kernel = "7.1".into();
    b.results[1] = evidence(Some(Copies::ZeroCopy), made_up::row("capture", "method-1", 8e6));
    let page = of_comparison(&Comparison::new((Path::new("a.json"), &a), (Path::new("b.json"), &b)));
    check(&page);
    // B's second row has no baseline any more, and the third is A's alone.
    assert_eq!(charts(&page), 1);
    let cells = cells(&page);
    for said in ["6.18.5", "7.1", "better", "4.00", "not told apart", "A copied, B zero-copy"] {
        assert!(cells.contains(said), "{said}: {cells:?}");
    }
    assert!(page.contains("Only in A") && !page.contains("Only in B"));
}

fn sweep() -> Sweep {
    let range = |median: f64| Range { median, low: median * 0.9, high: median * 1.1 };
    let cell = |power: u32, receive_buffer_bytes, gro| CellFigures {
        buffer_bytes: 1 << power,
        receive_buffer_bytes,
        gro,
        without_gbit_per_s: range(f64::from(power)),
        with_gbit_per_s: range(f64::from(power) * 0.96),
        overhead_percent: range(4.0),
        figures: Figures::of(&bulk_receive()),
        checks: Vec::new(),
    };
    let settings = [(None, true), (None, false), (Some(64 << 10), true), (Some(64 << 10), false)];
    let cells =
        settings.into_iter().flat_map(|(fixed, gro)| (10..=22).map(move |power| cell(power, fixed, gro)));
    let Report { machine, measured_at, .. } = made_up::report(Vec::new());
    Sweep {
        schema: sweep::SCHEMA.into(),
        command: "nocopy profile sweep --bytes 268435456".into(),
        measured_at,
        machine,
        bytes: 256 << 20,
        rounds: 6,
        congestion_control: "cubic".into(),
        cells: cells.collect(),
    }
}

#[test]
fn a_sweep_has_throughput_and_time_of_each_setting() {
    let page = of_sweep(&sweep());
    check(&page);
    assert_eq!(charts(&page), 8);
    let cells = cells(&page);
    for said in
        ["64 KiB", "10.00 [9.00–11.00]", "15.36 [13.82–16.90]", "4.00 [3.60–4.40]", "copy to user", "asleep"]
    {
        assert!(cells.contains(said), "{said}: {cells:?}");
    }
    for said in ["receive buffer fixed at 64 KiB, GRO off", "receive buffer autotuned, GRO on", "256 MiB"] {
        assert!(page.contains(said), "{said}");
    }
    assert!(!page.contains("Checks that failed"));
    check(&of_sweep(&Sweep { cells: Vec::new(), ..sweep() }));
    let read: Sweep = serde_json::from_str(&sweep().json()).unwrap();
    assert_eq!(of_sweep(&read), page);
}

#[test]
fn sweeps_are_compared_by_their_throughput() {
    let a = sweep();
    let mut b = sweep();
    b.cells[0].without_gbit_per_s = Range { median: 20.0, low: 19.0, high: 21.0 };
    let (a, b) = (throughput::of(&a), throughput::of(&b));
    let compared = Comparison::new((Path::new("a.json"), &a), (Path::new("b.json"), &b));
    assert_eq!(compared.rows.len(), 2 * 4 * 13);
    let better: Vec<_> = compared.rows.iter().filter(|row| row.verdict == Verdict::Better).collect();
    assert_eq!(better.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["recv 1-KiB"]);
    assert_eq!(better[0].b_over_a, Some(2.0));
}

fn page_of(chart: &dyn Chart) -> String {
    let table = Table::new(&["", "figure"], 1..2, vec![vec!["one".into(), "1".into()]]);
    document(
        "made up",
        &html! { (chart::figure("one", chart, &table)) (chart::figure("two", chart, &table)) },
    )
}

fn lines() -> Lines {
    let line = |name: &str, gbit_per_s: f64| Line {
        name: name.into(),
        values: (10..=22_i32)
            .map(|power| {
                let value = gbit_per_s * (1.0 - 0.8_f64.powi(power - 9));
                Value { length_bytes: 1 << power, value, interval: Some((value * 0.95, value * 1.05)) }
            })
            .collect(),
    };
    Lines {
        title: "Gbit/s, over the length of the buffer: made up".into(),
        lines: vec![
            line("without profiling", 22.0),
            line("with profiling", 21.0),
            line("fixed at 64 KB", 12.0),
            line("fixed, with profiling", 11.0),
        ],
    }
}

fn stacks() -> Stacks {
    let parts = [
        "interrupt",
        "driver",
        "softirq receive",
        "softirq send",
        "protocol in the call",
        "copy to user",
        "system-call entry",
        "scheduler",
        "asleep",
        "the rest",
    ];
    let bar = |power: u32| Bar {
        name: crate::quantity::length(1 << power),
        amounts: (0..parts.len())
            .map(|part| if part == 6 { f64::from(1_u32 << (22 - power)) } else { 20.0 + 13.0 * part as f64 })
            .collect(),
    };
    Stacks {
        title: "Time by place, us per MB received: made up".into(),
        parts: parts.map(str::to_owned).to_vec(),
        bars: (12..=22).map(bar).collect(),
    }
}

#[test]
fn lines_are_told_apart_without_colour() {
    let page = page_of(&lines());
    check(&page);
    let document = Document::parse(body(&page)).unwrap();
    let line = |node: Node<'_, '_>| node.attribute("class").is_some_and(|class| class.contains("line "));
    let legend = named(&document, "line").filter(|&node| line(node));
    let dashes: HashSet<_> = legend.filter_map(|node| node.attribute("stroke-dasharray")).collect();
    assert_eq!(dashes.len(), 4);
    let odd = Lines { lines: vec![Line { name: "nothing <&>".into(), values: Vec::new() }], ..lines() };
    check(&page_of(&odd));
    check(&page_of(&Lines { lines: Vec::new(), ..lines() }));
}

#[test]
fn parts_are_told_apart_without_colour() {
    let page = page_of(&stacks());
    check(&page);
    let document = Document::parse(body(&page)).unwrap();
    let textures: Vec<_> = named(&document, "pattern")
        .map(|node| {
            let drawn = node.descendants().filter(|node| node.is_element()).skip(1);
            drawn.filter_map(|node| node.attribute("d")).collect::<String>()
        })
        .collect();
    assert_eq!(textures.len(), 20);
    assert!(textures[..10].windows(2).all(|pair| pair[0] != pair[1]), "{textures:?}");
    let odd = |amounts: Vec<f64>| Stacks { bars: vec![Bar { name: "odd".into(), amounts }], ..stacks() };
    for amounts in [vec![], vec![0.0; 10], vec![f64::NAN, -1.0, f64::INFINITY], vec![1e-9, 1e12]] {
        check(&page_of(&odd(amounts)));
    }
}
