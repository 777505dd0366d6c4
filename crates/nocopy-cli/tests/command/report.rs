//! `nocopy report` as users run it: its output and files, and what it refuses.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// A directory that is removed with the test.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nocopy-report-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn write_file(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    fn read_file(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }

    /// Runs the command in the directory.
    fn run_nocopy(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_nocopy")).args(arguments).current_dir(&self.0).output().unwrap()
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn utf8_text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The results as lines of the present version, with one line of an unknown kind.
fn result_lines(report: &Value) -> String {
    let mut report = report.clone();
    for row in report["results"].as_array_mut().unwrap() {
        let row = row.as_object_mut().unwrap();
        for (old, new) in [("runs", "rounds"), ("dropped_percent", "lost_percent")] {
            if let Some(value) = row.remove(old) {
                row.insert(new.into(), value);
            }
        }
    }
    result_lines_of_schema("nocopy.bench/3", &report)
}

fn result_lines_of_schema(schema: &str, report: &Value) -> String {
    let mut header = report.clone();
    header["schema"] = schema.into();
    header["line"] = "header".into();
    header["arguments"] = json!({ "workloads": ["capture"], "methods": [], "rounds": 9 });
    let rows = report["results"].as_array().unwrap().iter().map(|row| {
        let mut row = row.clone();
        row["line"] = "row".into();
        row
    });
    let end = json!({ "line": "end", "ended": "complete", "notes": report["notes"] });
    let lines = [header, json!({ "line": "weather" })].into_iter().chain(rows).chain([end]);
    lines.map(|line| format!("{line}\n")).collect()
}

/// Results of one row, as in the first version of the schema, with an unknown field.
fn example_results(method: &str, packets_per_s: f64) -> Value {
    json!({
        "schema": "nocopy.bench/1",
        "command": "nocopy bench capture",
        "measured_at": "2026-01-31T12:00:00Z",
        "weather": "fair",
        "machine": {
            "nocopy_version": "0.1.0", "kernel": "6.18.5", "architecture": "x86_64", "processors": 2,
            "virtual_machine": false, "network": "private veth pair",
        },
        "notes": [],
        "results": [{
            "workload": "capture", "series": "capture, 64-byte frames", "method": method, "payload_bytes": 64,
            "figure": "packets_per_s", "packets_per_s": packets_per_s, "figure_low": packets_per_s * 0.9,
            "figure_high": packets_per_s * 1.1, "evidence": "copied", "runs": 9,
        }],
    })
}

#[test]
fn bench_and_report_of_its_results_make_the_same_page() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let scratch = ScratchDirectory::new("bench");
    let short =
        ["bench", "packet-send", "--method", "sendmmsg", "--method", "xdp", "--quick", "--rounds", "1"];
    let measured = scratch.run_nocopy(&[&short[..], &["--json", "a.json", "--html", "a.html"]].concat());
    // A window this short may have moved nothing.
    assert!(matches!(measured.status.code(), Some(0 | 1)), "{}", utf8_text(&measured.stderr));
    let shown = scratch.run_nocopy(&["report", "a.json", "--html", "again.html"]);
    assert_eq!((shown.status.code(), utf8_text(&shown.stderr)), (Some(0), String::new()));
    assert_eq!(utf8_text(&measured.stdout), utf8_text(&shown.stdout));
    let page = scratch.read_file("a.html");
    assert_eq!(page, scratch.read_file("again.html"));
    assert!(
        page.contains("nocopy bench packet-send --quick --rounds 1 --method sendmmsg --method xdp"),
        "{page}"
    );
    assert!(page.contains("--m:") && page.contains("sendmmsg"), "{page}");
    let compared = scratch.run_nocopy(&["report", "a.json", "a.json"]);
    assert!(utf8_text(&compared.stdout).contains("too few rounds"), "{}", utf8_text(&compared.stdout));
}

#[test]
fn all_schema_versions_are_read() {
    let scratch = ScratchDirectory::new("versions");
    let mut first = example_results("xdp", 1e6);
    first["results"][0]["dropped_percent"] = 12.5.into();
    scratch.write_file("1.json", &first.to_string());
    scratch.write_file("2.json", &result_lines_of_schema("nocopy.bench/2", &first));
    scratch.write_file("3.json", &result_lines(&first));
    let shown = ["1.json", "2.json", "3.json"].map(|file| scratch.run_nocopy(&["report", file]));
    assert!(utf8_text(&shown[0].stdout).contains("1.00 M (12.5 % lost)"), "{}", utf8_text(&shown[0].stdout));
    for later in &shown[1..] {
        assert_eq!(utf8_text(&shown[0].stdout), utf8_text(&later.stdout), "{}", utf8_text(&later.stderr));
    }
    let compared = utf8_text(&scratch.run_nocopy(&["report", "1.json", "3.json"]).stdout);
    assert!(compared.contains("1 no difference") && !compared.contains("Only in"), "{compared}");
}

#[test]
fn results_of_a_killed_run_are_marked() {
    let scratch = ScratchDirectory::new("killed");
    let whole = result_lines(&example_results("xdp", 1e6));
    let rows = whole.lines().count() - 1;
    let kept: Vec<_> = whole.lines().take(rows).collect();
    scratch.write_file("killed.json", &(kept.join("\n") + "\n{\"line\":\"row\""));
    let shown = scratch.run_nocopy(&["report", "killed.json"]);
    let said = utf8_text(&shown.stdout);
    assert_eq!(shown.status.code(), Some(0), "{}", utf8_text(&shown.stderr));
    assert!(said.contains("1.00 M") && said.contains("KILLED"), "{said}");
}

#[test]
fn two_runs_are_compared() {
    let scratch = ScratchDirectory::new("compare");
    scratch.write_file("a.json", &example_results("xdp", 1e6).to_string());
    scratch.write_file("b.json", &result_lines(&example_results("xdp", 2e6)));
    scratch.write_file("other.json", &example_results("ring", 1e6).to_string());
    let output = scratch.run_nocopy(&["report", "a.json", "b.json", "--html", "page.html"]);
    let said = utf8_text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", utf8_text(&output.stderr));
    for words in ["1.00 M [900 k–1.10 M]", "2.00 M [1.80 M–2.20 M]", "better", "1 better"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(scratch.read_file("page.html").contains("2.00 M [1.80 M–2.20 M]"));
    let again = ["report", "b.json", "a.json", "--html", "page.html"];
    let refused = scratch.run_nocopy(&again);
    assert!(refused.status.code() == Some(2) && utf8_text(&refused.stderr).contains("--force"));
    assert_eq!(scratch.run_nocopy(&[&again[..], &["--force"]].concat()).status.code(), Some(0));
    assert!(scratch.read_file("page.html").contains("worse"));
    let json: Value =
        serde_json::from_slice(&scratch.run_nocopy(&["report", "b.json", "a.json", "--json"]).stdout)
            .unwrap();
    let row = &json["rows"][0];
    assert_eq!(
        (&json["schema"], &row["verdict"], &row["b_over_a"], &row["figure"]),
        (&"nocopy.report/2".into(), &"worse".into(), &0.5.into(), &"packets_per_s".into())
    );
    let apart = scratch.run_nocopy(&["report", "a.json", "other.json"]);
    let said = utf8_text(&apart.stdout);
    assert_eq!(apart.status.code(), Some(1), "{said}");
    assert!(said.contains("no row in common") && said.contains("Only in A:") && said.contains("Only in B:"));
}

#[test]
fn a_run_is_written_as_markdown() {
    let scratch = ScratchDirectory::new("markdown");
    scratch.write_file("a.json", &example_results("xdp", 1e6).to_string());
    let written = scratch.run_nocopy(&["report", "a.json", "--markdown", "a.md", "--html", "a.html"]);
    assert_eq!((written.status.code(), utf8_text(&written.stderr)), (Some(0), String::new()));
    let page = scratch.read_file("a.md");
    for line in [
        "    nocopy bench capture",
        "### capture, 64-byte frames",
        "| xdp | 1.00 M | – | – | – | – | – | – | copied |",
    ] {
        assert!(page.lines().any(|other| other == line), "{line}: {page}");
    }
    assert!(scratch.read_file("a.html").contains("capture, 64-byte frames"));
    let refused = |arguments: &[&str], words: &str| {
        let output = scratch.run_nocopy(&[&["report"], arguments].concat());
        let said = utf8_text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(words), "{said}");
    };
    refused(&["a.json", "--markdown", "a.md"], "--force");
    const OVER: &str = ": the page cannot be written there; it would overwrite the results, or another page; name another file with --html or --markdown";
    refused(&["a.json", "--markdown", "a.json", "--force"], &format!("nocopy: a.json{OVER}"));
    refused(&["a.json", "--markdown", "b", "--html", "./b"], &format!("nocopy: ./b{OVER}"));
    refused(&["a.json", "a.json", "--markdown", "c.md"], "cannot be used with");
    refused(&["a.json", "--force"], "--markdown");
    assert!(!scratch.0.join("c.md").exists());
    let again = scratch.run_nocopy(&["report", "a.json", "--markdown", "a.md", "--force"]);
    assert_eq!((again.status.code(), scratch.read_file("a.md")), (Some(0), page));
}

#[test]
fn files_that_are_no_results_are_refused_in_one_line() {
    let scratch = ScratchDirectory::new("refused");
    let mut unknown = example_results("xdp", 1e6);
    unknown["schema"] = "nocopy.bench/99".into();
    let mut damaged = example_results("xdp", 1e6);
    damaged["results"][0]["runs"] = "many".into();
    let mut short = example_results("xdp", 1e6).to_string();
    short.truncate(short.len() / 2);
    scratch.write_file("unknown.json", &unknown.to_string());
    scratch.write_file("damaged.json", &damaged.to_string());
    scratch.write_file("short.json", &short);
    scratch.write_file("empty.json", "");
    scratch.write_file("good.json", &example_results("xdp", 1e6).to_string());
    let refused = |arguments: &[&str], words: &[&str]| {
        let output = scratch.run_nocopy(&[&["report"], arguments].concat());
        let said = utf8_text(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    refused(&["none.json"], &["none.json", "cannot be read"]);
    refused(&["unknown.json"], &["unknown.json", "nocopy.bench/99", "version of nocopy that wrote them"]);
    refused(&["damaged.json"], &["damaged.json", "many", "nocopy bench --json"]);
    let mut wrong_line = result_lines(&example_results("xdp", 1e6));
    wrong_line.insert_str(wrong_line.find('\n').unwrap() + 1, "tea\n");
    scratch.write_file("line.json", &wrong_line);
    refused(&["line.json"], &["line.json", "line 2"]);
    refused(&["good.json", "short.json", "--html", "page.html"], &["short.json", "EOF"]);
    refused(&["empty.json"], &["empty.json", "EOF"]);
    assert!(!scratch.0.join("page.html").exists(), "nothing is written of what cannot be read");
    let good = scratch.read_file("good.json");
    std::os::unix::fs::symlink("good.json", scratch.0.join("link.html")).unwrap();
    refused(&["good.json", "--html", "good.json"], &["good.json", "overwrite the results", "--html"]);
    refused(&["good.json", "--html", "link.html"], &["good.json", "overwrite the results"]);
    scratch.write_file("also.json", &example_results("xdp", 1e6).to_string());
    refused(&["also.json", "good.json", "--html", "./good.json"], &["good.json", "overwrite the results"]);
    assert_eq!(scratch.read_file("good.json"), good);
    refused(&["good.json", "--html", "none/page.html"], &["none/page.html", "directory"]);
    let alone = scratch.run_nocopy(&["report", "good.json", "--json"]);
    assert_eq!(alone.status.code(), Some(2), "one file is JSON already");
}

/// Control characters in a file do not reach the terminal, also if it is refused.
#[test]
fn strings_of_a_refused_file_are_escaped() {
    let scratch = ScratchDirectory::new("escapes");
    let mut kind = example_results("xdp", 1e6);
    kind["schema"] = "nocopy.bench/\x1b]0;title\x07".into();
    let mut variant = example_results("xdp", 1e6);
    variant["results"][0]["figure"] = "\u{9b}2Jfigure".into();
    for (results, words) in [(kind, "title"), (variant, "2Jfigure")] {
        scratch.write_file("results.json", &results.to_string());
        let output = scratch.run_nocopy(&["report", "results.json"]);
        let said = utf8_text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words) && !said.contains(['\x1b', '\x07', '\u{9b}']), "{said:?}");
    }
}

/// Whatever the words of results are, they are words in a terminal, and on every page.
#[test]
fn strings_of_results_are_escaped() {
    const HOSTILE: &str =
        "\x1b]0;title\x07\u{9b}2J\r\n# heading\n| cell | <script>bad()</script> \"' onload=bad() [a](b)";
    const FREE: [&str; 7] = [
        "/command",
        "/machine/nocopy_version",
        "/machine/kernel",
        "/machine/architecture",
        "/machine/network",
        "/results/0/series",
        "/notes/0",
    ];
    let scratch = ScratchDirectory::new("hostile");
    let mut hostile = example_results("xdp", 1e6);
    hostile["notes"] = json!([""]);
    for field in FREE {
        *hostile.pointer_mut(field).unwrap() = format!("words {HOSTILE}").into();
    }
    scratch.write_file("a.json", &hostile.to_string());
    scratch.write_file("b.json", &result_lines(&hostile));
    for files in
        [&["a.json", "--html", "page.html", "--markdown", "page.md", "--force"][..], &["a.json", "b.json"]]
    {
        let output = scratch.run_nocopy(&[&["report"], files].concat());
        let said = utf8_text(&output.stdout) + &utf8_text(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");
        assert!(said.contains("title") && !said.contains(|c: char| c.is_control() && c != '\n'), "{said:?}");
        assert!(!said.lines().any(|line| line.starts_with('#') || line.starts_with("| cell")), "{said}");
    }
    let html = scratch.read_file("page.html");
    assert!(html.contains("title") && !html.contains("<script>bad") && !html.contains('\x1b'), "{html}");
    let markdown = scratch.read_file("page.md");
    assert!(markdown.contains("title") && !markdown.contains('\x1b'), "{markdown}");
    // What is indented is code.
    for line in markdown.lines().filter(|line| !line.starts_with("    ")) {
        let is_markup = ["# heading", "| cell"].iter().any(|begin| line.starts_with(begin))
            || [" <script>bad", "[a](b"].iter().any(|inside| line.contains(inside));
        assert!(!is_markup, "{line}");
    }
}

#[test]
fn exit_codes_survive_an_unwritable_standard_error() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    let status = command.args(["report", "/nonexistent/results.json"]).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(2));
}
