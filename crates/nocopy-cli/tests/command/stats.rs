//! `nocopy stats` as its users meet it, on known traffic in a private lab.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::running::terminal;
use nocopy::Port;
use nocopy_lab::{End, Lab};
use serde_json::Value;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    command.arg("stats").args(arguments).stdin(Stdio::null());
    command
}

fn stats(end: &End, arguments: &[&str]) -> String {
    let output = end.namespace().run(|| command(arguments).arg(end.interface()).output().unwrap());
    let Output { status, stdout, stderr } = output;
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// A port with room for 64 packets: whatever comes beyond is dropped and counted, because nobody reads.
fn small_port(end: &End) -> Port {
    let set = || Port::builder(end.interface()).frame_count(64, 512).ring_sizes(64, 512).open();
    end.namespace().run(set).unwrap()
}

fn send(lab: &Lab, port: &mut Port, count: usize) {
    let mut drafts = port.sender().drafts(count, 100).unwrap();
    assert_eq!(drafts.left(), count);
    while let Some(mut draft) = drafts.next_draft() {
        draft.fill(0);
        draft[..6].copy_from_slice(&lab.right().mac());
        draft[12..14].copy_from_slice(&[0x88, 0xb5]);
        draft.queue();
    }
    drop(drafts);
    assert!(port.sender().drain(Duration::from_secs(60)).unwrap());
}

#[test]
fn known_traffic_shows_in_every_form() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (mut left, _right) = (small_port(lab.left()), small_port(lab.right()));
    send(&lab, &mut left, 200);

    let json: Value = serde_json::from_str(&stats(lab.right(), &["--once", "--json"])).unwrap();
    assert_eq!((&json["schema"], &json["interface"]), (&"nocopy.stats/1".into(), &"nc1".into()));
    assert_eq!(json["link"]["rx_packets"], serde_json::json!({ "total": 200 }), "no rate without time");
    assert_eq!(json["driver"]["rx_queue_0_xdp_packets"]["total"], 200);
    assert!(json["seconds"].is_null());

    let lines = stats(lab.right(), &["--once"]);
    assert!(lines.lines().any(|line| line == "nc1 link rx_packets 200"), "{lines}");
    assert!(!lines.contains("rx_crc_errors"), "what never counted is left out: {lines}");
    assert!(stats(lab.right(), &["--once", "--all"]).contains("nc1 link rx_crc_errors 0\n"));

    let metrics = parse_openmetrics(&stats(lab.right(), &["--openmetrics"]));
    assert_eq!(metrics[r#"nocopy_link_rx_packets_total{interface="nc1"}"#], 200);
    assert_eq!(metrics[r#"nocopy_driver{interface="nc1",name="rx_queue_0_xdp_packets"}"#], 200);

    // The kernel tells of other processes' sockets, or says in every form that it does not.
    let pid = std::process::id();
    if let Some(sockets) = json["sockets"].as_array() {
        assert_eq!((&sockets[0]["pid"], &sockets[0]["queue"]), (&pid.into(), &0.into()));
        assert_eq!(sockets[0]["counters"]["rx_dropped"]["total"], 200 - 64);
        assert!(lines.contains("-queue-0 rx_dropped 136"), "{lines}");
        let drops = metrics.iter().find(|(sample, _)| sample.starts_with("nocopy_socket_rx_dropped_total"));
        let (sample, value) = drops.unwrap();
        assert!(sample.contains(&format!(r#"pid="{pid}""#)) && *value == 136, "{sample} {value}");
    } else {
        assert!(json["sockets"].is_null() && !metrics.keys().any(|sample| sample.contains("socket")));
    }
}

/// Proves that rates and totals are of one piece: what the rates add up to is what the totals grew by, whenever the
/// traffic came between the refreshes.
#[test]
fn rates_add_up_to_what_the_totals_grew_by() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (mut left, _right) = (small_port(lab.left()), small_port(lab.right()));
    send(&lab, &mut left, 100);
    let mut child = lab.right().namespace().run(|| {
        let mut command = command(&["--json", "--count", "4", "--interval", "0.1", lab.right().interface()]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    });
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&output.next()?.unwrap()).ok();
    let first = next().unwrap();
    assert_eq!(first["link"]["rx_packets"]["total"], 100);
    send(&lab, &mut left, 300);
    let (mut counted, mut total, mut refreshes) = (0.0, 0, 1);
    while let Some(refresh) = next() {
        let packets = &refresh["link"]["rx_packets"];
        counted += packets["per_second"].as_f64().unwrap() * refresh["seconds"].as_f64().unwrap();
        total = packets["total"].as_u64().unwrap();
        refreshes += 1;
    }
    assert_eq!(refreshes, 4);
    assert!((counted - (total - 100) as f64).abs() < 1e-6, "{counted} {total}");
    assert!(child.wait().unwrap().success());
    let lines = stats(lab.right(), &["--count", "1", "--interval", "0.01"]);
    assert!(lines.starts_with("nc1 link rx_packets 400 ") && lines.contains("/s\n"), "{lines}");
}

/// What is drawn on a terminal of so many rows.
fn drawn(end: &End, rows: u16, arguments: &[&str]) -> String {
    let (mut terminal, screen) = terminal(rows, 80);
    let mut child = end.namespace().run(|| {
        let mut command = command(&[arguments, &["--interval", "0.05", end.interface()]].concat());
        command.stdout(screen).spawn().unwrap()
    });
    let mut text = Vec::new();
    // Ends with an error when nobody has the other end any more.
    let _ = terminal.read_to_end(&mut text);
    assert!(child.wait().unwrap().success());
    String::from_utf8(text).unwrap()
}

/// Proves that a terminal gets one table, drawn over at each refresh and cut to its size.
#[test]
fn on_a_terminal_a_table_is_drawn_over() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let text = drawn(lab.right(), 4, &["--count", "3"]);
    assert_eq!((text.matches("\x1b[2J").count(), text.matches("a second").count()), (1, 3), "{text:?}");
    assert_eq!(text.matches("tx_packets").count(), 3, "{text:?}");
    assert!(!text.contains("rx_bytes"), "a fifth line would scroll: {text:?}");
}

#[test]
fn what_cannot_be_shown_is_an_error_of_one_line() {
    let missing = command(&["nc-none"]).output().unwrap();
    let message = String::from_utf8(missing.stderr).unwrap();
    assert_eq!((missing.status.code(), message.lines().count()), (Some(2), 1), "{message}");
    assert!(message.contains("nc-none: no such interface") && message.contains("ip link"), "{message}");
    for arguments in [
        &["lo", "--interval", "0"][..],
        &["lo", "--interval", "soon"],
        &["lo", "--count", "0"],
        &["lo", "--once", "--count", "2"],
        &["lo", "--openmetrics", "--json"],
        &[],
    ] {
        assert_eq!(command(arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn an_interface_that_goes_while_watched_ends_it_with_an_error() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let mut child = lab.right().namespace().run(|| {
        let mut command = command(&["--json", "--interval", "0.01", lab.right().interface()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    lab.delete_pair().unwrap();
    std::io::copy(&mut output, &mut std::io::sink()).unwrap();
    let (status, mut message) = (child.wait().unwrap(), String::new());
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert!(status.code() == Some(2) && message.contains("no such interface"), "{status} {message}");
}

/// Proves that `nocopy stats … | head -1` ends, without a word.
#[test]
fn a_reader_that_has_enough_ends_it() {
    let mut child =
        command(&["lo", "--interval", "0.01"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
}

#[test]
fn manual_and_completions_know_it() {
    let output = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_nocopy")).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(output(&["man", "stats"]).contains("openmetrics"));
    assert!(output(&["completions", "bash"]).contains("--openmetrics"));
}

/// Reads OpenMetrics text as strictly as the specification has it for counters: descriptors first and once for each
/// family, samples of a family together, a counter's name with `_total`, a unit at the end of its name, `# EOF` at the end.
fn parse_openmetrics(text: &str) -> HashMap<String, u64> {
    let body = text.strip_suffix("# EOF\n").expect("ends with # EOF");
    let (mut samples, mut seen) = (HashMap::new(), HashSet::new());
    let (mut family, mut kind, mut helped) = (String::new(), String::new(), false);
    for line in body.lines() {
        if let Some(descriptor) = line.strip_prefix("# ") {
            let [what, name, rest] = descriptor.splitn(3, ' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            if name != family {
                assert!(seen.insert(name.to_owned()), "{name} is not in one piece");
                (family, kind, helped) = (name.to_owned(), String::new(), false);
            }
            match what {
                "HELP" => helped = !rest.is_empty() && !rest.contains(['\\', '"']),
                "TYPE" => kind = rest.to_owned(),
                "UNIT" => assert!(name.ends_with(&format!("_{rest}")), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap();
        let wanted = match &*kind {
            "counter" => format!("{family}_total"),
            "unknown" => family.clone(),
            _ => panic!("{line}: a family of type '{kind}'"),
        };
        assert!(helped && name == wanted, "{line} in {family}");
        let legal = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        assert!(legal(name), "{line}");
        for label in labels.strip_suffix('}').unwrap().split("\",") {
            let (name, value) = label.split_once("=\"").unwrap();
            let value = value.strip_suffix('"').unwrap_or(value);
            assert!(legal(name) && !value.contains(['"', '\\']), "{line}");
        }
        assert!(samples.insert(series.to_owned(), value.parse().unwrap()).is_none(), "{line} twice");
    }
    samples
}
