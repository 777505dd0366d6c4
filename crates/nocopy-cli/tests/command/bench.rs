//! The command as users run it: output, exit codes, and files and processes that it must not leave behind.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy_lab::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

fn run_nocopy(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nocopy")).args(arguments).output().unwrap()
}

fn utf8_text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn assert_one_line_error(output: &Output, words: &[&str]) {
    let message = utf8_text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert_eq!(message.lines().count(), 1, "one line: {message}");
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
}

#[test]
fn bench_errors_are_one_line_before_any_measurement() {
    assert_one_line_error(
        &run_nocopy(&["bench", "--json", "/nonexistent/file.json"]),
        &["/nonexistent/file.json", "directory"],
    );
    assert_one_line_error(
        &run_nocopy(&["bench", "--html", "/nonexistent/page.html"]),
        &["/nonexistent/page.html", "directory"],
    );
    let missing = run_nocopy(&["bench", "--interface", "nc-none", "--peer", "nc-gone"]);
    assert_one_line_error(&missing, &["nc-none", "no such interface"]);
    assert_one_line_error(&run_nocopy(&["bench", "--interface", "lo", "--peer", "lo"]), &["lo", "--peer"]);
    let between = ["bench", "udp-send", "--interface", "nc-none", "--peer", "nc-gone"];
    assert_one_line_error(&run_nocopy(&between), &["udp-send", "loopback"]);
    let between = ["bench", "tcp-send", "udp-send", "--interface", "nc-none", "--peer", "nc-gone"];
    assert_one_line_error(&run_nocopy(&between), &["udp-send, tcp-send", "loopback"]);
    assert_one_line_error(
        &run_nocopy(&["bench-child", "stream", "{}"]),
        &["task: cannot be read", "nocopy bench"],
    );
    assert_one_line_error(&run_nocopy(&["man", "brew"]), &["brew", "--help"]);
}

#[test]
fn invalid_arguments_are_refused() {
    for arguments in [
        &["bench", "tea"][..],
        &["bench", "--method", "tea"],
        &["bench", "--rounds", "0"],
        &["bench", "--window", "49ms"],
        &["bench", "--all", "capture"],
        &["bench", "--founding", "capture"],
        &["bench", "--founding", "--interface", "a", "--peer", "b"],
        &["bench", "--pair", "a"],
        &["bench", "--pair", "a", "b", "--all"],
        &["bench", "--pair", "a", "b", "--interface", "a", "--peer", "b"],
        &["bench", "--yes"],
        &["bench", "--explain", "--json", "never.json"],
    ] {
        assert_eq!(run_nocopy(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn options_are_in_manual_and_completions() {
    for (command, option) in [
        ("bench", "rounds"),
        ("report", "html"),
        ("ping", "interval"),
        ("serve", "exec"),
        ("call", "timeout"),
        ("run", "report"),
        ("profile-sweep", "rounds"),
    ] {
        let page = run_nocopy(&["man", command]);
        assert!(page.status.success() && utf8_text(&page.stdout).contains(option), "{command}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = run_nocopy(&["completions", shell]);
        assert!(script.status.success() && utf8_text(&script.stdout).contains("packet-send"), "{shell}");
    }
}

#[test]
fn doctor_reports_the_port_mode_and_exits_1_without_one() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let end = lab.left();
    let doctor = |arguments: &[&str]| end.namespace().run(|| run_nocopy(&[&["doctor"], arguments].concat()));
    let healthy = doctor(&[end.interface()]);
    let (table, warnings) = (utf8_text(&healthy.stdout), utf8_text(&healthy.stderr));
    assert!(healthy.status.success() && table.contains("in the mode 'xdp copy native'"), "{table}{warnings}");
    for (gate, said) in [
        ("driver", "veth. It carries"),
        ("generic receive offload", "ethtool -K nc0 gro on"),
        ("zero-copy receive", "mtu 4148"),
        ("interrupts", "unknown"),
    ] {
        // A cell may be broken over several lines, but not within its first words.
        assert!(table.contains(gate) && table.contains(said), "{gate}: {table}");
    }
    end.set_down().unwrap();
    let down = doctor(&["--json", end.interface()]);
    assert_eq!(down.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&down.stdout).unwrap();
    let up = json["gates"].as_array().unwrap().iter().find(|gate| gate["name"] == "up").unwrap();
    assert_eq!((&json["schema"], &up["state"]), (&"nocopy.doctor/1".into(), &"closed".into()));
    assert!(up["fix"].as_str().unwrap().contains("ip link set"), "{up}");
    assert_eq!(up["command"], "ip link set dev nc0 up");
    assert_one_line_error(&run_nocopy(&["doctor", "nc-none"]), &["nc-none", "no such interface"]);
}

#[test]
fn doctor_lists_all_interfaces_and_fix_commands() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let end = lab.left();
    let doctor = |arguments: &[&str]| end.namespace().run(|| run_nocopy(&[&["doctor"], arguments].concat()));
    let row = |text: &str| {
        let row = text.lines().find(|line| line.trim_start().starts_with("nc0")).map(str::to_owned);
        row.unwrap_or_else(|| panic!("no row of nc0: {text}"))
    };
    let all = doctor(&[]);
    assert!(all.status.success());
    let healthy = row(&utf8_text(&all.stdout));
    assert!(healthy.contains("veth") && healthy.contains("xdp copy native"), "{healthy}");
    end.set_down().unwrap();
    let down = row(&utf8_text(&doctor(&[]).stdout));
    assert!(down.contains("none") && down.contains("up: no"), "{down}");
    let json: Value = serde_json::from_slice(&doctor(&["--json"]).stdout).unwrap();
    let rows = json["interfaces"].as_array().unwrap();
    let nc0 = rows.iter().find(|row| row["interface"] == "nc0").unwrap();
    assert_eq!(
        (&nc0["driver"], &nc0["mode"], &nc0["obstacles"][0]),
        (&"veth".into(), &Value::Null, &"up: no".into())
    );
    for arguments in [&["--fix"][..], &["--fix", end.interface()]] {
        let script = utf8_text(&doctor(arguments).stdout);
        assert!(script.contains("# nc0: up: no\nip link set dev nc0 up\n"), "{script}");
    }
    let fixes: Value = serde_json::from_slice(&doctor(&["--fix", "--json", "nc0"]).stdout).unwrap();
    let commands: Vec<_> = fixes["fixes"].as_array().unwrap().iter().map(|fix| &fix["command"]).collect();
    assert!(commands.contains(&&"ip link set dev nc0 up".into()), "{commands:?}");
    assert!(row(&utf8_text(&doctor(&[]).stdout)).contains("up: no"), "printing the commands runs none");
}

/// Proves that `nocopy … | head -0` is no error.
#[test]
fn a_closed_pipe_is_not_an_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nocopy"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), utf8_text(&output.stderr)), (Some(0), String::new()));
}

/// Runs a bench of short windows and returns its output and report. A machine that stalls moves nothing in
/// some windows, which the tests do not check: such a row is replaced by that of another run of its method,
/// with longer windows.
fn run_short_bench(name: &str, arguments: &[&str], is_good: impl Fn(&Value) -> bool) -> (Output, Value) {
    const WINDOWS_AGAIN: [&str; 2] = ["300ms", "1s"];
    let (output, mut report) = run_bench_once(name, "100ms", arguments);
    let rows = report["results"].as_array_mut().unwrap();
    assert_no_row_twice(rows);
    for window in WINDOWS_AGAIN {
        let bad = rows.iter().filter(|row| !is_good(row)).flat_map(|row| [&row["method"], &row["baseline"]]);
        let methods: BTreeSet<_> = bad.filter_map(Value::as_str).map(str::to_owned).collect();
        if methods.is_empty() {
            break;
        }
        let methods: Vec<_> = methods.iter().flat_map(|method| ["--method", method]).collect();
        let (_, again) = run_bench_once(name, window, &[arguments, &methods].concat());
        let others = again["results"].as_array().unwrap();
        for row in rows.iter_mut().filter(|row| !is_good(row)) {
            let better =
                others.iter().find(|other| trial_fields(other) == trial_fields(row) && is_good(other));
            // What is the best, with which it is compared, may be another one each time.
            let compared_with = BASELINE.map(|field| row[field].clone());
            better.into_iter().for_each(|better| *row = better.clone());
            BASELINE.into_iter().zip(compared_with).for_each(|(field, value)| row[field] = value);
        }
    }
    let silent: Vec<_> = rows.iter().filter(|row| !is_good(row)).collect();
    assert!(silent.is_empty(), "in each run: {silent:#?}");
    (output, report)
}

fn assert_no_row_twice(rows: &[Value]) {
    let mut seen = HashSet::new();
    for row in rows {
        let what = [trial_fields(row), BASELINE.map(|field| &row[field]).to_vec()].concat();
        assert!(seen.insert(format!("{what:?}")), "twice: {row:#}");
    }
}

/// Runs it once; its exit code says whether something was moved in each window.
fn run_bench_once(name: &str, window: &str, arguments: &[&str]) -> (Output, Value) {
    let path = std::env::temp_dir().join(format!("nocopy-bench-{name}-{}.json", std::process::id()));
    let options = ["--quick", "--rounds", "1", "--window", window, "--json", path.to_str().unwrap()];
    let output = run_nocopy(&[&["bench"], arguments, &options].concat());
    let (said, printed) = (utf8_text(&output.stderr), utf8_text(&output.stdout));
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}{printed}");
    let report = parse_results(&fs::read_to_string(&path).unwrap());
    fs::remove_file(&path).unwrap();
    let is_silent = !report["results"].as_array().unwrap().iter().all(row_moved_data);
    assert_eq!(output.status.code(), Some(i32::from(is_silent)), "{said}{printed}");
    (output, report)
}

/// The header of a file of results, with its rows as `results`, and its last line as `end`.
fn parse_results(text: &str) -> Value {
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut report = lines[0].clone();
    assert_eq!(report["line"], "header", "{report}");
    report["end"] = lines.iter().find(|line| line["line"] == "end").cloned().unwrap_or_default();
    report["results"] = lines.into_iter().filter(|line| line["line"] == "row").collect();
    report
}

const BASELINE: [&str; 2] = ["baseline", "baseline_variant"];

fn trial_fields(row: &Value) -> Vec<&Value> {
    let fields = [
        "workload",
        "series",
        "method",
        "variant",
        "sink",
        "payload_bytes",
        "link",
        "mtu_bytes",
        "source_bytes",
        "buffer_bytes",
        "receivers",
        "figure",
    ];
    fields.iter().map(|field| &row[field]).collect()
}

fn row_moved_data(row: &Value) -> bool {
    let figures = ["packets_per_s", "messages_per_s", "bytes_per_s", "p50_us", "mean_us"];
    figures.iter().find_map(|figure| row[figure].as_f64()) > Some(0.0)
}

fn field_values(rows: &[Value], workload: &str, field: &str) -> BTreeSet<u64> {
    rows.iter().filter(|row| row["workload"] == workload).filter_map(|row| row[field].as_u64()).collect()
}

/// Proves that every line of the headline is measured, that it fits a terminal, and that it is shown again
/// from its file.
#[test]
fn the_headline_bench_prints_one_table() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let path = std::env::temp_dir().join(format!("nocopy-bench-headline-{}.json", std::process::id()));
    let file = path.to_str().unwrap();
    let output = run_nocopy(&["bench", "--rounds", "1", "--window", "50ms", "--json", file]);
    let (said, printed) = (utf8_text(&output.stderr), utf8_text(&output.stdout));
    // In a window this short a busy machine may have moved nothing.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}{printed}");
    assert!(printed.lines().all(|line| line.chars().count() <= 100), "{printed}");
    for words in ["UDP send, 64 B", "TCP receive", "capture", "nocopy bench --all", "message-stream"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    // The footer's parts, each on a line of its own. How many lines they take depends on the machine's name.
    let below: Vec<_> = printed.lines().skip_while(|line| !line.is_empty()).skip(1).collect();
    let starts = |start: &str| below.iter().position(|line| line.starts_with(start)).expect(&printed);
    let parts = ["rounds: ", "see all: nocopy bench --all (about ", "one: nocopy bench "].map(starts);
    assert!(parts[0] == 0 && parts.is_sorted(), "{parts:?}: {printed}");
    assert!(!printed.contains("veth has no zero-copy"), "{printed}");
    let report = parse_results(&fs::read_to_string(&path).unwrap());
    let rows = report["results"].as_array().unwrap();
    let lines: Vec<_> = rows.iter().filter(|row| row["headline"].is_object()).collect();
    for line in &lines {
        for name in ["what", "nocopy", "other"] {
            assert!(printed.contains(line["headline"][name].as_str().unwrap()), "{line}");
        }
        let is_other = |row: &&Value| row["series"] == line["series"] && row["method"] == line["baseline"];
        assert_eq!(rows.iter().filter(is_other).count(), 1, "{line}");
    }
    // Against what most programs do, and against what is written with care.
    let against: Vec<_> = lines.iter().map(|line| line["headline"]["other"].as_str().unwrap()).collect();
    for other in ["send()", "GSO by hand", "recvmmsg()", "GRO by hand", "TCP gathered"] {
        assert!(against.contains(&other), "{other}: {against:?}");
    }
    assert_eq!(lines.len(), 17, "{against:?}");
    let shown = utf8_text(&run_nocopy(&["report", file]).stdout);
    assert!(!shown.is_empty() && printed.starts_with(&shown), "{shown}{printed}");
    fs::remove_file(&path).unwrap();
}

#[test]
fn bench_explains_methods_without_a_measurement() {
    let all = utf8_text(&run_nocopy(&["bench", "--explain"]).stdout);
    let one = utf8_text(&run_nocopy(&["bench", "udp-send", "--explain"]).stdout);
    assert!(all.contains("Every round") && all.contains(&one), "{all}");
    assert!(
        one.contains("uring-zerocopy-gso") && one.contains("offload") && !one.contains("tcpdump"),
        "{one}"
    );
}

/// Only this project's recorder: the others take more time.
#[test]
fn a_short_bench_of_record_has_rows() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let (_, report) = run_short_bench("record", &["record", "--method", "record"], row_moved_data);
    let rows = report["results"].as_array().unwrap();
    assert!(rows.len() >= 2 && rows.iter().all(|row| row["method"] == "record"), "{report:#}");
}

/// Proves the whole way on real packets: every method, with the JSON it promises.
#[test]
fn a_short_bench_moves_packets_by_every_method() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let (output, report) = run_short_bench("others", &["packet-send", "capture", "latency"], row_moved_data);
    let finished = utf8_text(&output.stderr);
    assert!(
        ["packet-send: ", "capture: ", "latency: "].iter().all(|name| finished.contains(name)),
        "{finished}"
    );
    assert_eq!((&report["schema"], &report["end"]["ended"]), (&"nocopy.bench/3".into(), &"complete".into()));
    assert_eq!(report["arguments"]["workloads"], json!(["packet-send", "capture", "latency"]));
    let rows = report["results"].as_array().unwrap();
    for (workload, method) in [
        ("packet-send", "packet-tx-ring"),
        ("packet-send", "ring"),
        ("packet-send", "default"),
        ("capture", "ring"),
        ("capture", "default"),
        ("capture", "packet-ring-fanout"),
        ("capture", "ring-fanout"),
        ("packet-send", "packet-send"),
        ("packet-send", "sendmmsg"),
        ("packet-send", "xdp"),
        ("packet-send", "kernel-generator"),
        ("capture", "recvmmsg"),
        ("capture", "packet-ring"),
        ("capture", "xdp"),
        ("capture", "xdp-drop"),
        ("capture", "xdp-filter"),
        ("capture", "ring-filter"),
        ("latency", "tcp-spinning"),
        ("latency", "xdp-poll"),
    ] {
        let found = rows.iter().any(|row| row["workload"] == workload && row["method"] == method);
        assert!(found, "{workload} {method} in {report:#}");
    }
    let xdp = rows.iter().find(|row| row["workload"] == "packet-send" && row["method"] == "xdp").unwrap();
    assert_eq!((&xdp["evidence"], &xdp["baseline"]), (&"copied".into(), &"packet-send".into()), "{xdp}");
    assert!(xdp["ratio"].as_f64().unwrap() > 0.0 && xdp["p50_us"].is_null(), "{xdp}");
    for (workload, kernels) in [("packet-send", "packet-send"), ("capture", "packet-ring")] {
        let of_workload = rows.iter().filter(|row| row["workload"] == workload && row["method"] == "default");
        let chosen: Vec<_> = of_workload.collect();
        assert!(!chosen.is_empty(), "{workload}");
        for row in &chosen {
            let same = chosen.iter().filter(|other| trial_fields(other) == trial_fields(row));
            let baselines: Vec<_> = same.filter_map(|row| row["baseline"].as_str()).collect();
            let [first, best] = baselines[..] else { panic!("{workload}: {baselines:?}") };
            let is_right = first == kernels && ["xdp", "ring"].contains(&best);
            assert!(is_right, "the kernel's way, and the best mode: {baselines:?}");
        }
    }
    let queues = rows.iter().find(|row| row["receivers"] == 2 && row["method"] == "xdp").unwrap();
    assert!(queues["receiver_cpu_percent"].as_f64().unwrap() > 0.0, "{queues}");
    let variant = queues["variant"].as_str().unwrap();
    assert!(variant.contains("two-queues"), "{variant}");
}

/// Only this project's library, preloaded into Debian's tcpdump and a program that injects: the others take
/// more time.
#[test]
fn a_short_bench_runs_programs_of_libpcap() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    // Without it, the reason why a filter is invalid is not known.
    if !utf8_text(&run_nocopy(&["sniff", "lo", "udp prot 9"]).stderr).contains("pcap-filter(7)") {
        return nocopy_lab::skip(&nocopy_lab::Missing::Device("libpcap.so.0.8"));
    }
    let arguments = ["libpcap", "--method", "nocopy-passive"];
    let (programs, report) = run_short_bench("libpcap", &arguments, row_moved_data);
    let printed = utf8_text(&programs.stdout);
    let rows = report["results"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["packets_per_s"].as_f64() > Some(0.0)), "{report:#}");
    let mut expected = BTreeSet::from(["libpcap, pcap_inject to-xdp, 64-byte frames"]);
    if !printed.contains("SKIP: libpcap, pcap_inject into tc") {
        expected.insert("libpcap, pcap_inject, 64-byte frames");
    }
    if !printed.contains("SKIP: libpcap, receiving") {
        expected.extend([
            "libpcap, tcpdump, 64-byte frames, highest-rate-without-loss",
            "libpcap, tcpdump, 64-byte frames, 300-kpps",
            "libpcap, tcpdump, 64-byte frames, 300-kpps, the machine",
        ]);
    }
    let series: BTreeSet<_> = rows.iter().map(|row| row["series"].as_str().unwrap()).collect();
    assert_eq!(series, expected, "{report:#}");
}

/// Proves that every server serves every series, that rows are compared as they should be, and that the
/// evidence is the server's own account.
#[test]
fn a_short_bench_serves_files_by_nfs() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let (output, report) = run_short_bench("nfs", &["nfs"], row_moved_data);
    let printed = utf8_text(&output.stdout);
    let [has_ganesha, has_disk, has_memory] =
        ["SKIP: nfs, ganesha", "SKIP: nfs, beside", "SKIP: nfs, writes"].map(|skip| !printed.contains(skip));
    let rows = report["results"].as_array().unwrap();
    let methods = |series: &str, figure: &str| -> BTreeSet<String> {
        let of = rows.iter().filter(|row| row["series"] == series && row["figure"] == figure);
        let name = |row: &Value| {
            let baseline = row["baseline"].as_str().map(|baseline| format!(" by {baseline}"));
            row["method"].as_str().unwrap().to_owned() + &baseline.unwrap_or_default()
        };
        of.map(name).collect()
    };
    let expected = |all: &[&str]| -> BTreeSet<String> {
        let known = all.iter().filter(|name| has_ganesha || !name.contains("ganesha"));
        known.map(|name| (*name).to_owned()).collect()
    };
    let reads = [
        "pread-writev",
        "sendfile by pread-writev",
        "ganesha by pread-writev",
        "nocopy by ganesha",
        "nocopy by pread-writev",
        "nocopy by sendfile",
        "nocopy by nocopy-stable",
        "nocopy-stable by pread-writev",
    ];
    for bytes in [4, 64, 1024] {
        let series = format!("nfs, reads of {bytes} KiB, MTU 1500");
        for figure in ["bytes_per_s", "sender_cpu_us_per_mb"] {
            assert_eq!(methods(&series, figure), expected(&reads), "{series}, {figure}");
        }
        let ours = rows.iter().find(|row| row["series"] == *series && row["method"] == "nocopy").unwrap();
        let (evidence, copied) = if bytes == 4 { ("copied", "1.00") } else { ("unknown", "0.00") };
        assert_eq!(ours["evidence"], evidence, "{ours:#}");
        assert!(
            ours["cause"].as_str().unwrap().contains(&format!("copied {copied} of each byte")),
            "{ours:#}"
        );
    }
    for series in ["nfs, GETATTR of 1000 files", "nfs, LOOKUP of 1000 names", "nfs, 'ls -l' of 2000 files"] {
        let found = methods(series, "messages_per_s");
        let ours = if has_ganesha { "nocopy by ganesha" } else { "nocopy" };
        assert!(found.contains(ours) && found.len() == 1 + usize::from(has_ganesha), "{series}: {found:?}");
    }
    let writes =
        ["recv-pwrite", "ganesha by recv-pwrite", "nocopy by ganesha", "nocopy by recv-pwrite"].as_slice();
    let series = "nfs, writes of 1024 KiB to memory, MTU 1500";
    for figure in ["bytes_per_s", "sender_cpu_us_per_mb"] {
        assert_eq!(methods(series, figure), expected(if has_memory { writes } else { &[] }), "{figure}");
    }
    for ours in rows.iter().filter(|row| row["series"] == series && row["method"] == "nocopy") {
        let cause = ours["cause"].as_str().unwrap();
        assert!(ours["evidence"] == "copied" && cause.contains("each byte that was written 1."), "{ours:#}");
    }
    let made = methods("nfs, files of 4 KiB made in memory, 10000 in a directory", "messages_per_s");
    assert_eq!(made.contains("nocopy") || made.contains("nocopy by ganesha"), has_memory, "{made:?}");
    let beside = methods("nfs, cached reads of 64 KiB, one at a time", "p99_us");
    assert_eq!(beside.contains("nocopy by nocopy"), has_disk, "{beside:?}");
}

#[test]
fn a_short_bench_reads_files_by_nfs() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let (output, report) = run_short_bench("nfs-read", &["nfs-read"], row_moved_data);
    let printed = utf8_text(&output.stdout);
    let [has_libnfs, has_memory, has_disk] =
        ["SKIP: nfs-read, libnfs", "SKIP: nfs-read, copies", "SKIP: nfs-read, a long"]
            .map(|skip| !printed.contains(skip));
    let rows = report["results"].as_array().unwrap();
    let methods = |series: &str, figure: &str| -> Vec<String> {
        let of = rows.iter().filter(|row| row["series"] == series && row["figure"] == figure);
        let by = |row: &Value| row["baseline"].as_str().map(|baseline| format!(" by {baseline}"));
        of.map(|row| row["method"].as_str().unwrap().to_owned() + &by(row).unwrap_or_default()).collect()
    };
    let ours = if has_libnfs { &["libnfs", "nocopy by libnfs"][..] } else { &["nocopy"] };
    for bytes in [64, 1024] {
        for connections in ["1 connection", "8 connections"] {
            let series = format!("nfs-read, reads of {bytes} KiB, {connections}");
            for figure in ["bytes_per_s", "receiver_cpu_us_per_mb"] {
                let found = methods(&series, figure);
                let limits = found.iter().filter(|name| *name == "recv").count();
                assert!(limits == 3 && found.contains(&"nocopy by recv".to_owned()), "{series}: {found:?}");
                assert_eq!(found.contains(&"nocopy by libnfs".to_owned()), has_libnfs, "{series}: {found:?}");
            }
        }
    }
    let small = methods("nfs-read, 1000 files of 4 KiB copied", "messages_per_s");
    assert_eq!(small, if has_memory { ours } else { &[] });
    let long = "nfs-read, 1 GiB copied by 1024 KiB";
    assert_eq!(methods(long, "bytes_per_s"), if has_disk { ours } else { &[] });
    for row in rows.iter().filter(|row| row["series"] == long && row["method"] == "nocopy") {
        assert!(row["receiver_memory_mib"].as_f64() < Some(64.0), "{row:#}");
    }
    if has_libnfs {
        let cause = rows.iter().find(|row| row["method"] == "libnfs").unwrap()["cause"].as_str().unwrap();
        assert!(cause.starts_with("libnfs ") && cause.as_bytes()[7].is_ascii_digit(), "{cause}");
    }
}

#[test]
fn a_short_bench_sends_datagrams_by_every_method() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let (output, report) = run_short_bench("udp", &["udp-send"], row_moved_data);
    let has_method = measured_method_filter(&output);
    let rows = report["results"].as_array().unwrap();
    let sinks: BTreeSet<_> = rows.iter().filter_map(|row| row["sink"].as_str()).collect();
    assert!(["segmented", "delivered", "pair"].iter().all(|sink| sinks.contains(sink)), "{sinks:?}");
    let has_offload = !utf8_text(&output.stdout).contains("SKIP: udp-send into offload");
    assert_eq!(sinks.contains("offload"), has_offload, "{sinks:?}");
    let lengths = field_values(rows, "udp-send", "payload_bytes");
    assert!(lengths.len() > 1, "{lengths:?}");
    for (sink, &bytes) in sinks.iter().flat_map(|sink| lengths.iter().map(move |bytes| (sink, bytes))) {
        let of = |method: &str| -> Vec<_> {
            let is_one = |row: &&Value| {
                (&row["sink"], &row["payload_bytes"], &row["method"])
                    == (&(*sink).into(), &bytes.into(), &method.into())
                    && row["variant"] != "one-a-call"
            };
            rows.iter().filter(is_one).collect()
        };
        for method in UDP_METHODS.iter().filter(&has_method) {
            let rates: Vec<_> = of(method).iter().map(|row| row["packets_per_s"].as_f64().unwrap()).collect();
            assert!(!rates.is_empty() && rates.iter().all(|rate| *rate > 0.0), "{sink} {bytes} {method}");
        }
        assert_eq!(of("gso")[0]["evidence"], "copied", "{sink} {bytes}");
        let baselines: Vec<_> = of("auto").iter().map(|row| row["baseline"].as_str().unwrap()).collect();
        assert!(baselines.starts_with(&["socket", "gso"]) && baselines.len() <= 3, "{baselines:?}");
        assert_eq!(of("auto")[0]["baseline_variant"] == "to-recvmmsg", *sink == "pair", "{sink} {bytes}");
    }
    let bare = rows.iter().filter(|row| row["variant"] == "no-checksum" && row["sink"] == "segmented");
    let bare: HashSet<_> =
        bare.map(|row| (row["method"].as_str().unwrap(), row["payload_bytes"].as_u64().unwrap())).collect();
    let each = lengths.iter().flat_map(|&bytes| [("xdp-udp", bytes), ("xdp-copy", bytes)]);
    assert_eq!(bare, each.collect(), "both methods of a port, each length");
    let mut singles = rows.iter().filter(|row| row["variant"] == "one-a-call" && row["method"] == "auto");
    assert!(singles.clone().count() > 0 && singles.all(|row| row["baseline"] == "socket"), "{report:#}");
}

/// Whether a method is measured; without io_uring, the bench says which are left out.
fn measured_method_filter(output: &Output) -> impl Fn(&&&str) -> bool + use<> {
    let has_io_uring =
        !utf8_text(&output.stdout).contains("SKIP: uring-*: method uring-zerocopy: not available; io_uring");
    assert!(has_io_uring || !nocopy_lab::io_uring_or_skip());
    move |method| has_io_uring || !method.starts_with("uring-")
}

const UDP_METHODS: [&str; 10] = [
    "socket",
    "sendmmsg",
    "gso",
    "zerocopy",
    "zerocopy-gso",
    "uring-zerocopy",
    "uring-zerocopy-gso",
    "xdp-udp",
    "xdp-copy",
    "auto",
];

#[test]
fn a_short_bench_moves_streams_by_every_method() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    // Where a segment has whole pages behind its headers, most of them are mapped, as long as none is
    // retransmitted.
    let has_whole_pages = |mtu_bytes: u64| (mtu_bytes - 52).is_multiple_of(4096);
    let is_good = |row: &Value| {
        let needs_pages = row["method"] == "mapped" && has_whole_pages(row["mtu_bytes"].as_u64().unwrap());
        row_moved_data(row) && (!needs_pages || row["mapped_fraction"].as_f64() > Some(0.5))
    };
    let (output, report) = run_short_bench("tcp", &["tcp-send", "tcp-receive", "tcp-proxy"], is_good);
    let has_method = measured_method_filter(&output);
    let printed = utf8_text(&output.stdout);
    assert!(printed.contains("tcp-send over lo, MTU 65536, reno"), "{printed}");
    let rows = report["results"].as_array().unwrap();
    for row in rows {
        let figures = ["bytes_per_s", "gbit_per_s", "sender_cpu_us_per_mb", "receiver_cpu_us_per_mb"];
        assert!(figures.iter().all(|figure| row[figure].as_f64().unwrap() > 0.0), "{row}");
        assert_eq!(row["congestion_control"], "reno", "{row}");
        assert!(row["source_bytes"].as_u64().unwrap() > 0, "{row}");
        assert!(row["packets_per_s"].is_null() && row["lost_percent"].is_null(), "{row}");
        let is_proxy = row["workload"] == "tcp-proxy";
        // Of a window this short it may be nothing.
        assert_eq!(row["proxy_cpu_us_per_mb"].is_number(), is_proxy, "{row}");
    }
    let of = |workload: &str, method: &str, link: &str, mtu_bytes: u64| -> Vec<&Value> {
        let is_one = |row: &&Value| {
            (&row["workload"], &row["method"], &row["link"], &row["mtu_bytes"])
                == (&workload.into(), &method.into(), &link.into(), &mtu_bytes.into())
        };
        rows.iter().filter(is_one).collect()
    };
    let each = |rows: &[&Value], field: &str| -> BTreeSet<String> {
        rows.iter().map(|row| row[field].to_string()).collect()
    };
    let places = [("lo", 65536), ("veth", 1500)];
    for (link, mtu_bytes) in places {
        for method in TCP_SEND_METHODS.iter().filter(&has_method) {
            assert!(!of("tcp-send", method, link, mtu_bytes).is_empty(), "{link} {method}");
        }
        // Owned buffers and published data are each compared with plain sends of the same memory.
        let sources = field_values(rows, "tcp-send", "source_bytes");
        let plain = of("tcp-send", "plain", link, mtu_bytes);
        // Each by throughput and by the sender's processor time.
        let figures = each(&plain, "figure");
        assert_eq!((plain.len(), figures.len()), (2 * sources.len(), 2), "{link} {figures:?}");
        // Against 'plain', and against the best if that is another one.
        let auto = of("tcp-send", "auto", link, mtu_bytes);
        assert!(auto.len() <= 2 * figures.len() && auto[0]["baseline"] == "plain", "{link}");
        assert!(!of("tcp-receive", "auto", link, mtu_bytes).is_empty(), "{link}");
    }
    // The same lengths in both places.
    let [on_lo, on_veth] = places.map(|(link, mtu)| each(&of("tcp-receive", "recv", link, mtu), "variant"));
    assert!(on_lo.len() > 1 && on_lo == on_veth, "{on_lo:?} {on_veth:?}");
    let mapped: Vec<_> = rows.iter().filter(|row| row["method"] == "mapped").collect();
    let mtus: BTreeSet<_> = mapped.iter().map(|row| row["mtu_bytes"].as_u64().unwrap()).collect();
    assert!(mtus.iter().any(|&mtu| has_whole_pages(mtu)) && mtus.iter().any(|&mtu| !has_whole_pages(mtu)));
    for row in &mapped {
        assert!((0.0..=1.0).contains(&row["mapped_fraction"].as_f64().unwrap()), "{row}");
    }
    for &mtu_bytes in &mtus {
        for method in ["recv", "mapped", "auto"] {
            assert!(!of("tcp-receive", method, "veth", mtu_bytes).is_empty(), "{method} {mtu_bytes}");
        }
    }
    let by_hand = each(&of("tcp-proxy", "read-write", "lo", 65536), "variant");
    assert!(by_hand.len() > 1, "{by_hand:?}");
    let splice = rows.iter().find(|row| row["method"] == "splice").unwrap();
    assert_eq!((&splice["baseline"], &splice["workload"]), (&"read-write".into(), &"tcp-proxy".into()));
}

const TCP_SEND_METHODS: [&str; 6] =
    ["plain", "zerocopy", "uring-zerocopy", "published", "sendfile", "vmsplice"];

#[test]
fn a_short_bench_runs_programs_of_tokio() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let (_, report) = run_short_bench("async", &["async"], row_moved_data);
    let rows = report["results"].as_array().unwrap();
    let measured: BTreeSet<_> = rows
        .iter()
        .map(|row| ["series", "figure", "method"].map(|field| row[field].as_str().unwrap()))
        .collect();
    let stream = "async over lo, MTU 65536, reno";
    let [received, sent] = ["received", "sent"].map(|way| format!("{stream}, {way} by copy_buf"));
    let expected = [
        [&received, "bytes_per_s"],
        [&received, "receiver_cpu_us_per_mb"],
        [&sent, "bytes_per_s"],
        [&sent, "sender_cpu_us_per_mb"],
        ["async, 1400-byte datagrams", "packets_per_s"],
        ["async, 1400-byte datagrams", "receiver_cpu_ns_per_packet"],
    ];
    let expected = expected
        .into_iter()
        .flat_map(|[series, figure]| ["tokio", "nocopy"].map(|method| [series, figure, method]));
    assert_eq!(measured, expected.collect(), "{report:#}");
    for row in rows {
        let is_ours = row["method"] == "nocopy";
        assert_eq!(row["baseline"].as_str(), is_ours.then_some("tokio"), "{row}");
        assert_eq!((row["ratio"].is_number(), &row["evidence"]), (is_ours, &"copied".into()), "{row}");
    }
}

#[test]
fn a_short_bench_moves_messages_by_every_method() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    // In a window this short a busy machine may have moved no long message to its end.
    let answered = |row: &Value| row["answered"] != 0;
    let (output, report) =
        run_short_bench("message", &["message-latency", "message-stream", "message-beside"], answered);
    let printed = utf8_text(&output.stdout);
    let rows = report["results"].as_array().unwrap();
    let of = |workload: &str, method: &str, variant: Option<&str>, bytes: u64| -> Vec<&Value> {
        let is_one = |row: &&Value| {
            (&row["workload"], &row["method"], row["variant"].as_str(), &row["payload_bytes"])
                == (&workload.into(), &method.into(), variant, &bytes.into())
        };
        rows.iter().filter(is_one).collect()
    };
    let baselines = |rows: &[&Value]| -> Vec<String> {
        rows.iter().filter_map(|row| row["baseline"].as_str().map(str::to_owned)).collect()
    };
    const HEADERS_BYTES: u64 = 20 + 8;
    const MTU_BYTES: u64 = 1500;
    let lengths = field_values(rows, "message-latency", "payload_bytes");
    assert!(lengths.iter().any(|&bytes| bytes + HEADERS_BYTES > 1 << 16), "{lengths:?}");
    for &bytes in &lengths {
        for method in ["message-xdp", "message-udp", "message-auto"] {
            let found = |variant| baselines(&of("message-latency", method, Some(variant), bytes));
            assert_eq!(found("spinning")[0], "tcp-spinning", "{method} {bytes}");
            assert_eq!(found("blocking"), ["tcp-blocking"], "{method} {bytes}");
            assert_eq!(found("adaptive"), ["tcp-blocking", "tcp-spinning"], "{method} {bytes}");
        }
        for method in ["tcp-blocking", "tcp-spinning"] {
            assert_eq!(of("message-latency", method, None, bytes).len(), 1, "{method} {bytes}");
        }
        let is_missing = |method| of("message-latency", method, None, bytes).is_empty();
        assert_eq!(is_missing("xdp-spinning"), bytes + HEADERS_BYTES > MTU_BYTES, "{bytes}");
        assert_eq!(is_missing("udp-spinning"), bytes + HEADERS_BYTES > u64::from(u16::MAX), "{bytes}");
    }
    let shortest = *lengths.first().unwrap();
    let against_xdp = baselines(&of("message-latency", "message-xdp", Some("spinning"), shortest));
    assert_eq!(against_xdp, ["tcp-spinning", "xdp-spinning", "udp-spinning"]);
    for row in rows.iter().filter(|row| row["workload"] == "message-latency") {
        // What is lost on veth is retransmitted, or was not lost.
        assert!(row["answered"].as_u64().unwrap() > 0 && row["mean_us"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(
            (&row["mtu_bytes"], &row["congestion_control"]),
            (&MTU_BYTES.into(), &"reno".into()),
            "{row}"
        );
    }
    let lengths = field_values(rows, "message-stream", "payload_bytes");
    // Several of a batch's bytes, or none.
    let is_batched = |bytes: u64| !of("message-stream", "tcp-batched", None, bytes).is_empty();
    assert!(is_batched(*lengths.first().unwrap()) && !is_batched(*lengths.last().unwrap()), "{lengths:?}");
    assert!(lengths.contains(&(16 << 20)), "{lengths:?}");
    let carriers = [
        ("message-udp", Some("spinning")),
        ("message-udp", Some("blocking")),
        ("message-auto", Some("spinning")),
        ("message-auto", Some("blocking")),
        ("tcp-blocking", None),
    ];
    let others =
        [("message-xdp", Some("spinning")), ("message-xdp", Some("blocking")), ("tcp-spinning", None)];
    let is_of_all = |bytes: u64| !of("message-stream", "tcp-spinning", None, bytes).is_empty();
    assert_eq!(lengths.iter().filter(|&&bytes| is_of_all(bytes)).count(), 4, "{lengths:?}");
    for bytes in lengths {
        let batched = is_batched(bytes);
        let others = others.iter().filter(|_| is_of_all(bytes));
        for &(method, variant) in carriers.iter().chain(others) {
            let found = of("message-stream", method, variant, bytes);
            assert!(!found.is_empty(), "{method} {bytes}");
            // What is reliable has arrived to the last.
            assert!(found.iter().all(|row| row["lost_percent"] == 0.0), "{found:?}");
            if variant.is_some() {
                let like = found.iter().find(|row| row["baseline"] == "message-udp");
                let like = like.and_then(|row| row["baseline_variant"].as_str());
                assert_eq!(like, variant.filter(|_| method == "message-auto"), "{method} {bytes}: {found:?}");
                let found = baselines(&found);
                for several in ["tcp-batched", "tcp-gathered"] {
                    assert_eq!(found.contains(&several.into()), batched, "{method} {bytes}: {found:?}");
                }
                assert!(found.contains(&"tcp-blocking".into()), "{method} {bytes}: {found:?}");
            }
        }
    }
    let copies = |method| -> Vec<f64> {
        let found = rows.iter().filter(|row| row["method"] == method);
        found.map(|row| row["receiver_user_copies"].as_f64().unwrap()).collect()
    };
    for method in ["message-posted", "message-posted-udp", "message-puts", "message-puts-udp"] {
        let copies = copies(method);
        assert!(
            !copies.is_empty() && copies.iter().all(|copies| (0.0..=1.0).contains(copies)),
            "{method}: {copies:?}"
        );
    }
    // By datagrams all are copied; how soon there is a TCP connection depends on the machine.
    let copies = copies("message-posted-udp");
    assert!(copies.iter().all(|copies| *copies > 0.9), "{copies:?}");
    let long = rows.iter().filter(|row| row["mtu_bytes"] == 9000 && row["workload"] == "message-stream");
    let long: HashSet<_> = long.map(|row| row["method"].as_str().unwrap()).collect();
    assert!(["message-xdp", "message-udp", "tcp-blocking"].iter().all(|method| long.contains(method)));
    let pingpong = printed.contains("SKIP: message-latency fi_pingpong");
    assert_eq!(of("message-latency", "fi_pingpong", None, shortest).is_empty(), pingpong, "{printed}");
}

#[test]
fn a_killed_bench_leaves_no_process() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let mut bench = Command::new(env!("CARGO_BIN_EXE_nocopy"))
        .args(["bench", "tcp-send", "--quick", "--rounds", "1000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            sleep(Duration::from_millis(2));
        }
    };
    let peers = std::cell::RefCell::new(Vec::new());
    wait_for("the bench never had two processes", &|| {
        *peers.borrow_mut() = bench_children_of(bench.id());
        peers.borrow().len() == 2
    });
    bench.kill().unwrap();
    bench.wait().unwrap();
    for peer in peers.into_inner() {
        wait_for("a process lives on", &|| !is_bench_child(peer));
    }
}

/// After Ctrl-C, the rows measured so far are printed and in the file, the file says that the bench was
/// interrupted, and the parent process learns of the signal.
#[test]
fn an_interrupted_bench_keeps_its_rows() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let path = std::env::temp_dir().join(format!("nocopy-bench-interrupted-{}.json", std::process::id()));
    let mut bench = Command::new(env!("CARGO_BIN_EXE_nocopy"))
        .args(["bench", "packet-send", "tcp-send", "--method", "sendmmsg", "--method", "plain"])
        .args(["--rounds", "9", "--window", "50ms", "--json", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let has_row = || fs::read_to_string(&path).is_ok_and(|text| text.contains(r#""line":"row""#));
    while !has_row() {
        assert!(start.elapsed() < Duration::from_secs(300), "no row was written");
        assert!(bench.try_wait().unwrap().is_none(), "it ended");
        sleep(Duration::from_millis(20));
    }
    let process = Pid::from_child(&bench);
    kill_process(process, Signal::INT).unwrap();
    let output = bench.wait_with_output().unwrap();
    let (said, printed) = (utf8_text(&output.stderr), utf8_text(&output.stdout));
    assert_eq!(output.status.signal(), Some(Signal::INT.as_raw()), "{said}{printed}");
    assert!(printed.contains("sendmmsg") && printed.contains("INCOMPLETE"), "{printed}");
    assert!(
        said.contains(
            "bench: interrupted; a signal arrived; start it again for the results that are missing"
        ),
        "{said}"
    );
    let report = parse_results(&fs::read_to_string(&path).unwrap());
    assert_eq!(report["end"]["ended"], "interrupted", "{report:#}");
    assert!(report["results"].as_array().unwrap().iter().any(|row| row["method"] == "sendmmsg"));
    let shown = run_nocopy(&["report", path.to_str().unwrap()]);
    assert_eq!((utf8_text(&shown.stdout), shown.status.code()), (printed, Some(0)));
    fs::remove_file(&path).unwrap();
}

/// The processes of a stream that this bench has started.
fn bench_children_of(bench: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().map_while(Result::ok);
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = format!("PPid:\t{bench}\n");
    let is_child = |process: &u32| {
        fs::read_to_string(format!("/proc/{process}/status")).is_ok_and(|status| status.contains(&parent))
    };
    numbers.filter(|process| is_child(process) && is_bench_child(*process)).collect()
}

/// Whether this process exists and was started by a bench; a process that has ended has no arguments.
fn is_bench_child(process: u32) -> bool {
    fs::read(format!("/proc/{process}/cmdline"))
        .is_ok_and(|words| words.split(|&byte| byte == 0).nth(1) == Some(b"bench-child"))
}

/// Proves that a bench killed in the middle leaves no namespace, interface or program: nothing refers to its
/// namespaces any more, and the host's interfaces are as before.
#[test]
fn a_killed_bench_leaves_no_namespace() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let host = Namespace::current().unwrap();
    let before = host.interfaces().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_nocopy"))
        .args(["bench", "packet-send", "--quick"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let kept = wait_for_lab_namespace(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    let start = Instant::now();
    // We keep one of the two namespaces. When the other is destroyed, the pair is removed from ours.
    while kept.interfaces().unwrap().len() > 1 {
        assert!(start.elapsed() < Duration::from_secs(60), "the other namespace lives on");
        sleep(Duration::from_millis(20));
    }
    assert_eq!(host.interfaces().unwrap(), before);
}

/// One of the lab's namespaces of another process, once its end of the pair is there and up.
fn wait_for_lab_namespace(process: u32) -> Namespace {
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
        for path in descriptors.map_while(Result::ok).map(|entry| entry.path()) {
            let is_namespace = fs::read_link(&path)
                .is_ok_and(|target| target.to_string_lossy().starts_with("net:[") && target != own);
            if is_namespace && let Some(namespace) = namespace_with_ready_pair(&path) {
                return namespace;
            }
        }
        sleep(Duration::from_millis(5));
    }
    panic!("the bench never made a lab");
}

fn namespace_with_ready_pair(path: &std::path::Path) -> Option<Namespace> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    let file = fs::File::open(path).ok()?;
    let found = std::thread::spawn(move || {
        use std::os::fd::AsFd;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
        Namespace::current().ok()
    });
    let namespace = found.join().unwrap()?;
    let carrier =
        namespace.interfaces().ok()?.iter().any(|interface| interface.name != "lo" && interface.carrier);
    carrier.then_some(namespace)
}
