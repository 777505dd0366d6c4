//! Debian's dumpcap, tshark, ngrep and nmap with the system's libpcap and with ours: the same packets, counts
//! and words.
#![allow(unsafe_code)] // a packet socket of the test's own

use std::net::TcpListener;

use crate::comparison::EndCondition::{Enough, Interrupted, Itself, Shown};
use crate::comparison::frames::{KINDS, send_kinds};
use crate::comparison::output::ProgramOutput;
use crate::comparison::program::Program;
use crate::comparison::{Case, Library, fixture};

const ROUNDS: u16 = 20;
/// Frames in both directions.
const SENT: usize = 2 * (KINDS * ROUNDS as usize + 1);

/// Proves that dumpcap, which waits by select, writes the same and counts the same.
#[test]
#[cfg_attr(
    nocopy_sanitizer,
    ignore = "dumpcap never ends with the address sanitizer: p11-kit waits for a lock of the C library"
)]
fn dumpcap_writes_the_same_packets_and_counts() {
    let Some(fixture) = fixture("dumpcap", &["dumpcap"]) else { return };
    let case = |name, line: &str, end| Case::new(name, &format!("dumpcap -P -w file {line}"), "File: ", end);
    let pairs = fixture.start(vec![
        case("all", "-i nc1", Shown(2)),
        case("interrupted", "-i nc1 -B 4", Interrupted(2)),
        case("filter", "-i nc1 -f 'udp port 9999 or arp'", Shown(2)),
        case("short", "-i nc1 -s 68", Shown(2)),
        case("not-promiscuous", "-i nc1 -p", Shown(2)),
        case("count", "-i nc1 -c 31", Enough),
        Case::new("two", "dumpcap -i nc1 -i lo -t -w file", "File: ", Shown(2)),
    ]);
    send_kinds(&fixture.wires(), ROUNDS);
    for pair in pairs {
        let is_all = ["all", "interrupted", "two"].contains(&pair.name());
        let output = pair.compare();
        assert!(!is_all || output.packets().len() == SENT, "{output}");
    }
    let refused = |name, line: &str| Case::new(name, &format!("dumpcap {line}"), "", Itself);
    let pairs = fixture.start(vec![
        refused("no-interface", "-i nc9 -w file"),
        refused("bad-filter", "-i nc1 -f 'udp and frobnicate' -w file"),
        refused("interfaces", "-D"),
        refused("link-types", "-i nc1 -L"),
    ]);
    for pair in pairs {
        pair.compare();
    }
}

/// Proves that tshark, which has dumpcap capture for it, shows the same.
#[test]
#[cfg_attr(
    nocopy_sanitizer,
    ignore = "dumpcap never ends with the address sanitizer: p11-kit waits for a lock of the C library"
)]
fn tshark_prints_the_same_packets() {
    let Some(fixture) = fixture("tshark", &["tshark", "dumpcap"]) else { return };
    let fields = "-l -n -T fields -e frame.len -e eth.type -e vlan.id -e ip.src -e udp.dstport";
    let pairs = fixture.start(vec![
        Case::new("fields", &format!("tshark -i nc1 {fields}"), "File: ", Interrupted(2)),
        Case::new("filter", &format!("tshark -i nc1 -f 'udp or arp' {fields}"), "File: ", Interrupted(2)),
    ]);
    send_kinds(&fixture.wires(), ROUNDS);
    for pair in pairs {
        let is_all = pair.name() == "fields";
        let output = pair.compare();
        assert!(!is_all || output.lines("stdout").len() == SENT, "{output}");
    }
}

/// Proves that ngrep, which gives up root, finds the same.
#[test]
fn ngrep_finds_the_same_matches() {
    let Some(fixture) = fixture("ngrep", &["ngrep"]) else { return };
    let pairs = fixture.start(vec![
        Case::new("words", "ngrep -l -q -d nc1 'the last' udp", "match", Shown(2)),
        Case::new("bytes", "ngrep -l -d nc1 -x -X 746865206c617374 ip", "match", Shown(2)),
        Case::new("file", "ngrep -l -q -d nc1 -O file 'the last' udp port 9999", "match", Shown(2)),
    ]);
    send_kinds(&fixture.wires(), ROUNDS);
    for pair in pairs {
        pair.compare();
    }
}

/// Proves that nmap, which sends by itself and listens for the answers, sees the same.
#[test]
fn nmap_reports_the_same_states() {
    const OPEN: u16 = 7_002;
    let Some(fixture) = fixture("nmap", &["nmap"]) else { return };
    let (left, right) = (fixture.lab.left(), fixture.lab.right());
    let _listener = right.namespace().run(|| TcpListener::bind((right.ipv4(), OPEN))).unwrap();
    // Where every probe is answered there is no hurry: a late answer is one.
    const PATIENT: &str = "--initial-rtt-timeout 30s --min-rtt-timeout 30s --max-rtt-timeout 60s";
    let scans = [
        ("syn", format!("nmap -n -Pn -sS {PATIENT} -p 7001-7003 -e nc0 --send-eth 10.77.0.2")),
        ("null", "nmap -n -Pn -sN -p 7001-7003 -e nc0 --send-ip 10.77.0.2".to_owned()),
        ("udp", format!("nmap -n -Pn -sU {PATIENT} -p 7001 -e nc0 10.77.0.2")),
        ("arp", format!("nmap -n -sn -PR {PATIENT} -e nc0 10.77.0.2")),
        ("echo", format!("nmap -n -sn -PE {PATIENT} -e nc0 --send-ip 10.77.0.2")),
    ];
    for (name, line) in scans {
        let case = Case::new(name, &line, "", Itself);
        // One after the other: each would see the answers to the other's probes.
        let [theirs, ours] = [Library::System, Library::Ours].map(|library| {
            let directory = fixture.scratch.directory(&format!("{name}-{library:?}"));
            Program::start(left, directory, fixture.scratch.library(), library, &case).end(Itself)
        });
        assert_eq!((theirs.code, seen(&theirs)), (ours.code, seen(&ours)), "{theirs}\n{ours}");
        assert!(!seen(&theirs).is_empty(), "{theirs}");
        if name == "syn" {
            assert!(seen(&ours).contains(&format!("{OPEN}/tcp open")), "{ours}");
        }
    }
}

/// The lines of a scan that contain no times: ports with their states, and hosts that answered.
fn seen(output: &ProgramOutput) -> Vec<String> {
    let lines = output.lines("stdout").iter().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [port, state, ..] if port.contains("/tcp") || port.contains("/udp") => {
                Some(format!("{port} {state}"))
            }
            ["Host", "is", "up", ..] => Some("up".to_owned()),
            _ => None,
        }
    });
    lines.collect()
}
