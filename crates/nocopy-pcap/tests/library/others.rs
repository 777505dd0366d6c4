//! Debian's dumpcap, tshark, ngrep and nmap with the system's libpcap and with ours: the same packets, counts
//! and words.
#![allow(unsafe_code)] // a packet socket of the test's own

use std::net::TcpListener;

use crate::capturing::End::{Enough, Interrupted, Itself, Shown};
use crate::capturing::account::Account;
use crate::capturing::frames::{KINDS, send_kinds};
use crate::capturing::program::Program;
use crate::capturing::{Case, Library, scene};

const ROUNDS: u16 = 20;
/// Frames in both directions.
const SENT: usize = 2 * (KINDS * ROUNDS as usize + 1);

/// Proves that dumpcap, which waits by select, writes the same and counts the same.
#[test]
#[cfg_attr(
    nocopy_sanitizer,
    ignore = "dumpcap never ends with the address sanitizer: p11-kit waits for a lock of the C library"
)]
fn dumpcap_writes_the_same() {
    let Some(scene) = scene("dumpcap", &["dumpcap"]) else { return };
    let case = |name, line: &str, end| Case::new(name, &format!("dumpcap -P -w file {line}"), "File: ", end);
    let pairs = scene.start(vec![
        case("all", "-i nc1", Shown(2)),
        case("interrupted", "-i nc1 -B 4", Interrupted(2)),
        case("filter", "-i nc1 -f 'udp port 9999 or arp'", Shown(2)),
        case("short", "-i nc1 -s 68", Shown(2)),
        case("not-promiscuous", "-i nc1 -p", Shown(2)),
        case("count", "-i nc1 -c 31", Enough),
        Case::new("two", "dumpcap -i nc1 -i lo -t -w file", "File: ", Shown(2)),
    ]);
    send_kinds(&scene.wires(), ROUNDS);
    for pair in pairs {
        let is_all = ["all", "interrupted", "two"].contains(&pair.name());
        let account = pair.compare();
        assert!(!is_all || account.packets().len() == SENT, "{account}");
    }
    let refused = |name, line: &str| Case::new(name, &format!("dumpcap {line}"), "", Itself);
    let pairs = scene.start(vec![
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
fn tshark_shows_the_same() {
    let Some(scene) = scene("tshark", &["tshark", "dumpcap"]) else { return };
    let fields = "-l -n -T fields -e frame.len -e eth.type -e vlan.id -e ip.src -e udp.dstport";
    let pairs = scene.start(vec![
        Case::new("fields", &format!("tshark -i nc1 {fields}"), "File: ", Interrupted(2)),
        Case::new("filter", &format!("tshark -i nc1 -f 'udp or arp' {fields}"), "File: ", Interrupted(2)),
    ]);
    send_kinds(&scene.wires(), ROUNDS);
    for pair in pairs {
        let is_all = pair.name() == "fields";
        let account = pair.compare();
        assert!(!is_all || account.lines("stdout").len() == SENT, "{account}");
    }
}

/// Proves that ngrep, which gives up root, finds the same.
#[test]
fn ngrep_finds_the_same() {
    let Some(scene) = scene("ngrep", &["ngrep"]) else { return };
    let pairs = scene.start(vec![
        Case::new("words", "ngrep -l -q -d nc1 'the last' udp", "match", Shown(2)),
        Case::new("bytes", "ngrep -l -d nc1 -x -X 746865206c617374 ip", "match", Shown(2)),
        Case::new("file", "ngrep -l -q -d nc1 -O file 'the last' udp port 9999", "match", Shown(2)),
    ]);
    send_kinds(&scene.wires(), ROUNDS);
    for pair in pairs {
        pair.compare();
    }
}

/// Proves that nmap, which sends by itself and listens for the answers, sees the same.
#[test]
fn nmap_sees_the_same() {
    const OPEN: u16 = 7_002;
    let Some(scene) = scene("nmap", &["nmap"]) else { return };
    let (left, right) = (scene.lab.left(), scene.lab.right());
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
            let directory = scene.scratch.directory(&format!("{name}-{library:?}"));
            Program::start(left, directory, scene.scratch.library(), library, &case).end(Itself)
        });
        assert_eq!((theirs.code, seen(&theirs)), (ours.code, seen(&ours)), "{theirs}\n{ours}");
        assert!(!seen(&theirs).is_empty(), "{theirs}");
        if name == "syn" {
            assert!(seen(&ours).contains(&format!("{OPEN}/tcp open")), "{ours}");
        }
    }
}

/// The lines of a scan that contain no times: ports with their states, and hosts that answered.
fn seen(account: &Account) -> Vec<String> {
    let lines = account.lines("stdout").iter().filter_map(|line| {
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
