//! `nocopy stats` as its users meet it, on known traffic in a private lab.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::process_state::{is_stopped, wait_until};
use crate::running::{PATIENCE, RunningNocopy, open_terminal};
use crate::signal_handlers::wait_for_signal_handlers;
use nocopy::Port;
use nocopy_lab::{End, Lab};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use rustix::termios::{LocalModes, tcgetattr};
use serde_json::Value;

fn stats_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    command.arg("stats").args(arguments).stdin(Stdio::null());
    command
}

fn run_stats(end: &End, arguments: &[&str]) -> String {
    let output = end.namespace().run(|| stats_command(arguments).arg(end.interface()).output().unwrap());
    let Output { status, stdout, stderr } = output;
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// A port with room for 64 packets: further ones are dropped and counted, because it is not read.
fn open_small_port(end: &End) -> Port {
    let set = || Port::builder(end.interface()).frame_count(64, 512).ring_sizes(64, 512).open();
    end.namespace().run(set).unwrap()
}

fn send_packets(lab: &Lab, port: &mut Port, count: usize) {
    let mut drafts = port.sender().drafts(count, 100).unwrap();
    assert_eq!(drafts.remaining(), count);
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
fn known_traffic_is_counted_in_every_output_format() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (mut left, _right) = (open_small_port(lab.left()), open_small_port(lab.right()));
    send_packets(&lab, &mut left, 200);

    let json: Value = serde_json::from_str(&run_stats(lab.right(), &["--once", "--json"])).unwrap();
    assert_eq!((&json["schema"], &json["interface"]), (&"nocopy.stats/1".into(), &"nc1".into()));
    assert_eq!(json["link"]["rx_packets"], serde_json::json!({ "total": 200 }), "no rate without time");
    assert_eq!(json["driver"]["rx_queue_0_xdp_packets"]["total"], 200);
    assert!(json["seconds"].is_null());

    let lines = run_stats(lab.right(), &["--once"]);
    assert!(lines.lines().any(|line| line == "nc1 link rx_packets 200"), "{lines}");
    assert!(!lines.contains("rx_crc_errors"), "what never counted is left out: {lines}");
    assert!(run_stats(lab.right(), &["--once", "--all"]).contains("nc1 link rx_crc_errors 0\n"));

    let metrics = parse_openmetrics(&run_stats(lab.right(), &["--openmetrics"]));
    assert_eq!(metrics[r#"nocopy_link_rx_packets_total{interface="nc1"}"#], 200);
    assert_eq!(metrics[r#"nocopy_driver{interface="nc1",name="rx_queue_0_xdp_packets"}"#], 200);

    // The kernel reports other processes' sockets, or every form says that it does not.
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

/// The sum of the rates is the growth of the totals, whenever the traffic arrived between the refreshes.
#[test]
fn rates_add_up_to_the_increase_of_totals() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (mut left, _right) = (open_small_port(lab.left()), open_small_port(lab.right()));
    send_packets(&lab, &mut left, 100);
    let mut child = lab.right().namespace().run(|| {
        let mut command =
            stats_command(&["--json", "--count", "4", "--interval", "0.1", lab.right().interface()]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    });
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&output.next()?.unwrap()).ok();
    let first = next().unwrap();
    assert_eq!(first["link"]["rx_packets"]["total"], 100);
    send_packets(&lab, &mut left, 300);
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
    let lines = run_stats(lab.right(), &["--count", "1", "--interval", "0.01"]);
    assert!(lines.starts_with("nc1 link rx_packets 400 ") && lines.contains("/s\n"), "{lines}");
}

/// A live view, and the person at its terminal.
struct RunningLiveView {
    command: RunningNocopy,
    person: File,
    /// The command's end; as long as it is open here, too, it can be looked at when the command has ended.
    screen: File,
    before: LocalModes,
    drawn: String,
}

impl RunningLiveView {
    fn start(rows: u16, arguments: &[&str]) -> Self {
        Self::start_prepared(rows, arguments, |_| {})
    }

    fn start_prepared(rows: u16, arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let (person, screen) = open_terminal(rows, 120);
        let before = tcgetattr(&screen).unwrap().local_modes;
        let mut command = stats_command(arguments);
        command
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .env_remove("CLICOLOR_FORCE")
            .env_remove("CLICOLOR");
        command.stdin(screen.try_clone().unwrap()).stdout(screen.try_clone().unwrap()).stderr(Stdio::piped());
        prepare(&mut command);
        let command = RunningNocopy(Some(command.spawn().unwrap()));
        Self { command, person, screen, before, drawn: String::new() }
    }

    /// On an interface of the lab, or on all of them.
    fn start_in_namespace(end: &End, arguments: &[&str]) -> Self {
        end.namespace().run(|| Self::start(24, arguments))
    }

    fn press_key(&mut self, key: &str) {
        self.person.write_all(key.as_bytes()).unwrap();
    }

    /// Reads until the output since the last call contains it.
    fn read_until(&mut self, wanted: &str, is_so: impl Fn(&str) -> bool) -> String {
        let (mut bytes, limit) = (Vec::new(), Timespec::try_from(PATIENCE).unwrap());
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if is_so(&text) {
                self.drawn += &text;
                return text;
            }
            let mut waited = [PollFd::new(&self.person, PollFlags::IN)];
            assert_eq!(poll(&mut waited, Some(&limit)), Ok(1), "no {wanted} in {text:?}");
            let mut more = [0; 4096];
            let count = self.person.read(&mut more).unwrap();
            bytes.extend_from_slice(&more[..count]);
        }
    }

    fn read_until_drawn(&mut self, wanted: &str) -> String {
        self.read_until(wanted, |text| text.contains(wanted) && text.ends_with(FRAME_END))
    }

    fn terminal_modes(&self) -> LocalModes {
        tcgetattr(&self.screen).unwrap().local_modes
    }

    fn wait_for_end(mut self) -> EndedLiveView {
        self.read_until("summary", |text| {
            text.rsplit_once(LEAVE)
                .is_some_and(|(_, after)| after.contains("; dropped ") && after.ends_with('\n'))
        });
        let output = self.command.0.take().unwrap().wait_with_output().unwrap();
        EndedLiveView {
            modes: tcgetattr(&self.screen).unwrap().local_modes,
            drawn: self.drawn,
            code: output.status.code().unwrap(),
            said: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The results of a live view that has ended.
#[derive(Debug)]
struct EndedLiveView {
    drawn: String,
    code: i32,
    /// Its standard error.
    said: String,
    modes: LocalModes,
}

impl EndedLiveView {
    /// The text left on the terminal after the view.
    fn summary(&self) -> &str {
        self.drawn.rsplit_once(LEAVE).unwrap().1
    }
}

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const FRAME: &str = "\x1b[H";
const FRAME_END: &str = "\x1b[J";

/// Proves that a terminal gets one table, drawn over at each refresh and cut to its size, and a summary when
/// it is over.
#[test]
fn a_table_is_redrawn_on_a_terminal() {
    let live = RunningLiveView::start_prepared(3, &["lo", "--interval", "10ms", "--count", "3"], |command| {
        command.stdin(Stdio::null());
    });
    let ended = live.wait_for_end();
    let text = &ended.drawn;
    assert_eq!(ended.code, 0, "{text:?}");
    assert_eq!((text.matches(ENTER).count(), text.matches(LEAVE).count()), (1, 1), "{text:?}");
    // A process that was stopped draws again when it goes on (SIGCONT).
    assert!(text.matches(FRAME).count() >= 4, "one at once and three refreshes: {text:?}");
    for frame in text.split_once(LEAVE).unwrap().0.split(FRAME).skip(1) {
        assert!(frame.contains("Ctrl-C quits") && frame.contains("drops/s"), "{frame:?}");
        assert_eq!(frame.matches("\r\n").count(), 2, "a fourth line would scroll: {frame:?}");
    }
    let summary = ended.summary();
    assert!(summary.starts_with("lo in ") && summary.trim_end().lines().count() == 1, "{summary:?}");
}

#[test]
fn keys_sort_reverse_filter_and_quit() {
    let mut live = RunningLiveView::start(40, &["--interval", "1h"]);
    let before = live.before;
    assert!(live.read_until_drawn("q quit").contains("interface ▼"));
    let during = live.terminal_modes();
    assert!(!during.intersects(LocalModes::ICANON | LocalModes::ECHO), "{during:?}");
    live.press_key("s");
    live.read_until_drawn("rx packets/s ▼");
    live.press_key("r");
    live.read_until_drawn("rx packets/s ▲");
    live.press_key("x");
    live.press_key("s");
    live.read_until_drawn("rx bytes/s ▼");
    live.press_key("a");
    live.read_until_drawn(FRAME);
    live.press_key("q");
    let ended = live.wait_for_end();
    assert!(before.contains(LocalModes::ICANON | LocalModes::ECHO));
    assert_eq!((ended.code, ended.modes), (0, before));
}

#[test]
fn signals_restore_the_terminal_and_print_a_summary() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut live = RunningLiveView::start(24, &["lo", "--interval", "1h"]);
        let before = live.before;
        live.read_until_drawn("q quit");
        assert_ne!(live.terminal_modes(), before);
        live.command.signal(signal);
        let ended = live.wait_for_end();
        assert_eq!((ended.code, ended.said.as_str(), ended.modes), (0, "", before), "{signal:?}");
        assert!(ended.summary().starts_with("lo in "), "{ended:?}");
    }
}

#[test]
fn a_stopped_view_restores_and_reenters_the_terminal() {
    let mut live = RunningLiveView::start(24, &["lo", "--interval", "1h"]);
    let before = live.before;
    live.read_until_drawn("q quit");
    live.command.signal(Signal::TSTP);
    wait_until("it is stopped", || is_stopped(live.command.pid()));
    assert_eq!(live.terminal_modes(), before);
    live.command.signal(Signal::CONT);
    live.read_until_drawn("q quit");
    assert_ne!(live.terminal_modes(), before);
    live.press_key("q");
    let ended = live.wait_for_end();
    assert_eq!((ended.code, ended.modes), (0, before));
    assert!(ended.drawn.contains(&format!("{LEAVE}{ENTER}")), "{ended:?}");
}

#[test]
fn colours_obey_no_color_and_clicolor() {
    for (variables, has_colours) in [
        (&[][..], true),
        (&[("NO_COLOR", "")], true),
        (&[("CLICOLOR", "0")], false),
        (&[("NO_COLOR", "1")], false),
        (&[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")], false),
    ] {
        let live =
            RunningLiveView::start_prepared(24, &["lo", "--count", "1", "--interval", "10ms"], |command| {
                command.envs(variables.iter().copied());
            });
        let text = live.wait_for_end().drawn;
        assert_eq!(text.contains("\x1b[1m") && text.contains("\x1b[0m"), has_colours, "{text:?}");
        assert!(has_colours || !text.replace(FRAME, "").contains("m\x1b[K"), "{text:?}");
    }
}

#[test]
fn the_summary_counts_packets_of_the_observation() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (mut left, _right) = (open_small_port(lab.left()), open_small_port(lab.right()));
    send_packets(&lab, &mut left, 100);
    let mut live = RunningLiveView::start_in_namespace(lab.right(), &["--interval", "1h"]);
    let first = live.read_until_drawn("nc1");
    assert!(first.contains("queue 0"), "{first:?}");
    send_packets(&lab, &mut left, 200);
    live.press_key("q");
    let ended = live.wait_for_end();
    assert!(ended.code == 0 && ended.summary().contains("s: received 200 packets"), "{ended:?}");
}

#[test]
fn a_removed_interface_leaves_the_table() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let mut all = RunningLiveView::start_in_namespace(lab.right(), &["--all", "--interval", "10ms"]);
    let mut one = RunningLiveView::start_in_namespace(lab.right(), &["nc1", "--interval", "10ms"]);
    for live in [&mut all, &mut one] {
        live.read_until_drawn("nc1");
    }
    lab.delete_pair().unwrap();
    all.read_until("frame without it", |text| {
        let frame = text.rsplit(FRAME).find(|frame| frame.ends_with(FRAME_END));
        frame.is_some_and(|frame| frame.contains("lo") && !frame.contains("nc1"))
    });
    all.press_key("q");
    assert_eq!(all.wait_for_end().code, 0);
    let ended = one.wait_for_end();
    assert!(ended.code == 2 && ended.said.contains("nc1: no such interface"), "{ended:?}");
    assert!(ended.summary().starts_with("nc1 in "), "{ended:?}");
}

#[test]
fn all_interfaces_are_in_every_output_format() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let all = |arguments: &[&str]| {
        let output = lab.right().namespace().run(|| stats_command(arguments).output().unwrap());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let json = all(&["--json", "--count", "1", "--interval", "10ms"]);
    let json: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: HashSet<_> = json.iter().map(|line| line["interface"].as_str().unwrap()).collect();
    assert!(names.contains("lo") && names.contains("nc1") && names.len() == json.len(), "{names:?}");
    assert!(json.iter().all(|line| line["link"]["rx_packets"]["per_second"].is_number()));
    let lines = all(&["--once", "--all"]);
    assert!(lines.contains("lo link rx_packets ") && lines.contains("nc1 link rx_packets "), "{lines}");
    assert_eq!(lines.matches("\n\n").count(), 1, "an empty line ends the refresh, and not each interface");
    let metrics = parse_openmetrics(&all(&["--openmetrics"]));
    for name in ["lo", "nc1"] {
        let sample = format!(r#"nocopy_link_rx_packets_total{{interface="{name}"}}"#);
        assert!(metrics.contains_key(&sample), "{sample}");
    }
}

#[test]
fn errors_of_stats_are_one_line() {
    let missing = stats_command(&["nc-none"]).output().unwrap();
    let message = String::from_utf8(missing.stderr).unwrap();
    assert_eq!((missing.status.code(), message.lines().count()), (Some(2), 1), "{message}");
    assert!(message.contains("nc-none: no such interface") && message.contains("ip link"), "{message}");
    for arguments in [
        &["lo", "--interval", "0"][..],
        &["lo", "--interval", "soon"],
        &["lo", "--count", "0"],
        &["lo", "--once", "--count", "2"],
        &["lo", "--openmetrics", "--json"],
        &["lo", "--interval", "1ms"],
        &["--interval", "2d"],
    ] {
        assert_eq!(stats_command(arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_named_interface_removed_meanwhile_is_an_error() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let mut child = lab.right().namespace().run(|| {
        let mut command = stats_command(&["--json", "--interval", "0.01", lab.right().interface()]);
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

/// In the middle of a pause, and if the shell of a script had the signal ignored.
#[test]
fn without_a_terminal_an_interrupt_prints_a_summary() {
    let run = |shell: &str, options: &[&str]| {
        let mut command = Command::new("sh");
        let script = format!("{shell} exec \"$@\"");
        command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_nocopy"), "stats", "lo"]).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = RunningNocopy(Some(command.spawn().unwrap()));
        wait_for_signal_handlers(running.0.as_ref().unwrap(), PATIENCE);
        running
    };
    for shell in ["", "trap '' INT;"] {
        for form in [&["--json"][..], &[]] {
            let pausing = run(shell, &[&["--interval", "1d"], form].concat());
            let mut refreshing = run(shell, &[&["--interval", "10ms"], form].concat());
            let mut output = BufReader::new(refreshing.take_output());
            output.read_line(&mut String::new()).unwrap();
            for running in [pausing, refreshing] {
                running.signal(Signal::INT);
                let ended = running.wait_for_end();
                let said = String::from_utf8(ended.stderr).unwrap();
                assert_eq!(ended.status.code(), Some(0), "{shell} {form:?}: {said}");
                assert!(said.starts_with("lo in ") && said.lines().count() == 1, "{said:?}");
            }
        }
    }
}

/// Proves that `nocopy stats … | head -1` ends, without a word.
#[test]
fn a_closed_output_ends_stats() {
    let mut child = stats_command(&["lo", "--interval", "0.01"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
}

#[test]
fn stats_is_in_manual_and_completions() {
    let output = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_nocopy")).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(output(&["man", "stats"]).contains("openmetrics"));
    assert!(output(&["completions", "bash"]).contains("--openmetrics"));
}

/// Reads OpenMetrics text as strictly as the specification has it for counters: descriptors first and once
/// for each family, samples of a family together, a counter's name with `_total`, a unit at the end of its
/// name, `# EOF` at the end.
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
