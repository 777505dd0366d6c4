//! Pages as a browser reads them: well-formed, whole, and nothing from elsewhere.

use std::collections::HashSet;
use std::path::Path;

use maud::html;
use roxmltree::{Document, Node};

use super::reading::{body, cells, charts, check, named, words};
use super::*;
use crate::chart::{self, Bar, Chart, Line, Lines, Stacks, Value};
use crate::comparison::Comparison;
use crate::figure::Figure;
use crate::made_up;
use crate::result::{Report, Row};
use crate::table::Table;

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
