//! `nocopy bench --founding`: all five systems, measured for a moment each.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use serde_json::Value;

use crate::scratch::ScratchFile;

fn run_nocopy(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nocopy")).args(arguments).output().unwrap()
}

/// In a window as short as the first a sender may not even start on a busy machine: then it is measured for
/// longer.
const WINDOWS: [&str; 4] = ["50ms", "200ms", "1s", "3s"];

#[test]
fn the_founding_bench_measures_and_reports_five_tables() {
    // One of its rows is a method of io_uring.
    if nocopy_lab::lab_or_skip().is_none() || !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let files = ["founding.jsonl", "founding.html"].map(ScratchFile::new);
    let [json, html] = files.each_ref().map(ScratchFile::path);
    let measure = |window| {
        let short = ["bench", "--founding", "--rounds", "1", "--window", window];
        let run = run_nocopy(&[&short[..], &["--json", json, "--html", html, "--force"]].concat());
        let (text, words) = (String::from_utf8(run.stdout).unwrap(), String::from_utf8_lossy(&run.stderr));
        match run.status.success() && !text.contains("not measured") {
            true => Ok(text),
            false => Err(format!("{words}\n{text}")),
        }
    };
    let mut last = String::new();
    let text = WINDOWS.into_iter().find_map(|window| measure(window).map_err(|said| last = said).ok());
    let text = text.unwrap_or_else(|| panic!("every figure in one of the windows: {last}"));
    for title in ["1997 · ", "2000 · ", "2001 · ", "2010 · ", "2011 · "] {
        assert!(text.contains(title), "{title}: {text}");
    }
    let lines = std::fs::read_to_string(json).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_kind = |kind: &'static str| lines.iter().filter(move |line| line["line"] == kind);
    let workloads: BTreeSet<_> = of_kind("row").map(|row| row["workload"].as_str().unwrap()).collect();
    assert_eq!(workloads, BTreeSet::from(["communication-area", "ntzc", "zero-copy-sockets", "zerocpy"]));
    let analysis = of_kind("receive-analysis").next().unwrap();
    for buffer in analysis["buffers"].as_array().unwrap() {
        let shares: f64 =
            buffer["rows"].as_array().unwrap().iter().map(|row| row["share"].as_f64().unwrap()).sum();
        // A window this short may have no sample at all.
        assert!(
            (shares - 1.0).abs() < 1e-9 || buffer["samples"] == 0,
            "the rows are all of the time: {buffer}"
        );
    }
    assert_eq!(of_kind("end").next().unwrap()["ended"], "complete");
    let again = run_nocopy(&["report", json]);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), text);
    let page = std::fs::read_to_string(html).unwrap();
    assert_eq!(page.matches("<h2>").count(), 6, "five systems, and how to read them");
}
