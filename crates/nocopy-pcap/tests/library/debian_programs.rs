//! Debian's dumpcap, tshark, ngrep and nmap with the system's libpcap and with ours: the same packets, counts
//! and words.
#![allow(unsafe_code)] // a packet socket of the test's own

use std::net::TcpListener;

use crate::comparison::EndCondition::{Enough, Interrupted, Itself, Shown};
use crate::comparison::frames::{KINDS, send_frames_of_every_kind};
use crate::comparison::output::ProgramOutput;
use crate::comparison::program::RunningProgram;
use crate::comparison::{LibraryKind, ProgramCase, fixture_or_skip};

const ROUNDS: u16 = 20;
/// Frames in both directions.
const SENT: usize = 2 * (KINDS * ROUNDS as usize + 1);

/// Proves that dumpcap, which waits by select, writes the same and counts the same.
#[test]
#[cfg_attr(
    nocopy_sanitizer,
    ignore = "dumpcap never ends with the address sanitizer: p11-kit waits for a lock of the C library"
)]
fn dumpcap_writes_the_same_packets_and_counts_with_both_libraries() {
    let Some(fixture) = fixture_or_skip("dumpcap", &["dumpcap"]) else { return };
    let case =
        |name, line: &str, end| ProgramCase::new(name, &format!("dumpcap -P -w file {line}"), "File: ", end);
    let pairs = fixture.start_pairs(vec![
        case("all", "-i nc1", Shown(2)),
        case("interrupted", "-i nc1 -B 4", Interrupted(2)),
        case("filter", "-i nc1 -f 'udp port 9999 or arp'", Shown(2)),
        case("short", "-i nc1 -s 68", Shown(2)),
        case("not-promiscuous", "-i nc1 -p", Shown(2)),
        case("count", "-i nc1 -c 31", Enough),
        ProgramCase::new("two", "dumpcap -i nc1 -i lo -t -w file", "File: ", Shown(2)),
    ]);
    send_frames_of_every_kind(&fixture.frame_senders(), ROUNDS);
    for pair in pairs {
        let is_all = ["all", "interrupted", "two"].contains(&pair.case_name());
        let output = pair.end_and_compare();
        assert!(!is_all || output.saved_packets().len() == SENT, "{output}");
    }
    let refused = |name, line: &str| ProgramCase::new(name, &format!("dumpcap {line}"), "", Itself);
    let pairs = fixture.start_pairs(vec![
        refused("no-interface", "-i nc9 -w file"),
        refused("bad-filter", "-i nc1 -f 'udp and frobnicate' -w file"),
        refused("interfaces", "-D"),
        refused("link-types", "-i nc1 -L"),
    ]);
    for pair in pairs {
        pair.end_and_compare();
    }
}

/// Proves that tshark, which has dumpcap capture for it, shows the same.
#[test]
#[cfg_attr(
    nocopy_sanitizer,
    ignore = "dumpcap never ends with the address sanitizer: p11-kit waits for a lock of the C library"
)]
fn tshark_prints_the_same_packets_with_both_libraries() {
    let Some(fixture) = fixture_or_skip("tshark", &["tshark", "dumpcap"]) else { return };
    let fields = "-l -n -T fields -e frame.len -e eth.type -e vlan.id -e ip.src -e udp.dstport";
    let pairs = fixture.start_pairs(vec![
        ProgramCase::new("fields", &format!("tshark -i nc1 {fields}"), "File: ", Interrupted(2)),
        ProgramCase::new(
            "filter",
            &format!("tshark -i nc1 -f 'udp or arp' {fields}"),
            "File: ",
            Interrupted(2),
        ),
    ]);
    send_frames_of_every_kind(&fixture.frame_senders(), ROUNDS);
    for pair in pairs {
        let is_all = pair.case_name() == "fields";
        let output = pair.end_and_compare();
        assert!(!is_all || output.text_lines("stdout").len() == SENT, "{output}");
    }
}

/// Proves that ngrep, which gives up root, finds the same.
#[test]
fn ngrep_finds_the_same_matches_with_both_libraries() {
    let Some(fixture) = fixture_or_skip("ngrep", &["ngrep"]) else { return };
    let pairs = fixture.start_pairs(vec![
        ProgramCase::new("words", "ngrep -l -q -d nc1 'the last' udp", "match", Shown(2)),
        ProgramCase::new("bytes", "ngrep -l -d nc1 -x -X 746865206c617374 ip", "match", Shown(2)),
        ProgramCase::new("file", "ngrep -l -q -d nc1 -O file 'the last' udp port 9999", "match", Shown(2)),
    ]);
    send_frames_of_every_kind(&fixture.frame_senders(), ROUNDS);
    for pair in pairs {
        pair.end_and_compare();
    }
}

/// Proves that nmap, which sends by itself and listens for the answers, sees the same.
#[test]
fn nmap_reports_the_same_port_states_with_both_libraries() {
    const OPEN: u16 = 7_002;
    let Some(fixture) = fixture_or_skip("nmap", &["nmap"]) else { return };
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
        let case = ProgramCase::new(name, &line, "", Itself);
        // One after the other: each would see the answers to the other's probes.
        let [theirs, ours] = [LibraryKind::System, LibraryKind::Ours].map(|library| {
            let directory = fixture.scratch.create_subdirectory(&format!("{name}-{library:?}"));
            RunningProgram::start(left, directory, fixture.scratch.copy_of_library(), library, &case)
                .end_and_read_output(Itself)
        });
        assert_eq!(
            (theirs.code, scan_results(&theirs)),
            (ours.code, scan_results(&ours)),
            "{theirs}\n{ours}"
        );
        assert!(!scan_results(&theirs).is_empty(), "{theirs}");
        if name == "syn" {
            assert!(scan_results(&ours).contains(&format!("{OPEN}/tcp open")), "{ours}");
        }
    }
}

/// The lines of a scan that contain no times: ports with their states, and hosts that answered.
fn scan_results(output: &ProgramOutput) -> Vec<String> {
    let lines = output.text_lines("stdout").iter().filter_map(|line| {
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
