//! Debian's tcpdump with the system's libpcap and with ours, on the same traffic at once: the same packets,
//! bytes, counts and words.
#![allow(unsafe_code)] // a packet socket of the test's own

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use nocopy_lab::patience::{PATIENCE, uninterrupted};

use crate::common::in_order;
use crate::comparison::EndCondition::{Enough, Interrupted, Itself, Shown};
use crate::comparison::frames::{KINDS, Wire, send_kinds};
use crate::comparison::{Case, Fixture, fixture};

const ROUNDS: u16 = 20;
/// Frames in both directions.
const SENT: usize = 2 * (KINDS * ROUNDS as usize + 1);

/// A user that may not capture.
const NOBODY: u32 = 65_534;

fn tcpdump_fixture(name: &str) -> Option<Fixture> {
    fixture(name, &["tcpdump"])
}

#[test]
fn every_option_gives_the_same_output() {
    let Some(fixture) = tcpdump_fixture("options") else { return };
    let cases = vec![
        Case::tcpdump("all", "-i nc1 -U -w file", Shown(2)),
        Case::tcpdump("interrupted", "-i nc1 -U -w file", Interrupted(2)),
        Case::tcpdump("root", "-i nc1 -U -w file -Z root", Shown(2)),
        Case::tcpdump("nano", "-i nc1 -U --time-stamp-precision=nano -w file", Shown(2)),
        Case::tcpdump("immediate", "-i nc1 -U -s 2000 -B 16384 --immediate-mode -w file", Shown(2)),
        Case::tcpdump("not-promiscuous", "-i nc1 -U -p -w file", Shown(2)),
        Case::tcpdump("text", "-i nc1 -l -n -e -t -v", Shown(2)),
        Case::tcpdump("bytes", "-i nc1 -l -n -t -XX", Shown(2)),
        Case::tcpdump("short", "-i nc1 -U -s 68 -w file", Shown(2)),
        Case::tcpdump("in", "-i nc1 -U -Q in -w file", Shown(1)),
        Case::tcpdump("out", "-i nc1 -U -Q out -w file", Shown(1)),
        Case::tcpdump("inout", "-i nc1 -U -Q inout -w file", Shown(2)),
        Case::tcpdump("any", "-i any -l -n -t -e", Shown(2)),
        Case::tcpdump("small", "-i nc1 -U -B 1024 -w file", Shown(2)),
        Case::tcpdump("count", "-i nc1 -c 57 -w file", Enough),
        Case::tcpdump("count-text", "-i nc1 -c 3 -n -t udp port 7005", Enough),
    ];
    let pairs = fixture.start(cases);
    send_kinds(&fixture.wires(), ROUNDS);
    for pair in pairs {
        let name = pair.name();
        let output = pair.compare();
        let packets = output.packets();
        match name {
            "all" | "interrupted" | "root" | "nano" | "immediate" | "not-promiscuous" => {
                assert_eq!(packets.len(), SENT, "{output}");
                assert_eq!(output.counted("packets captured"), SENT as u64, "{output}");
            }
            "in" | "out" => assert_eq!(packets.len(), SENT / 2, "{output}"),
            "short" => assert!(packets.iter().all(|packet| packet.bytes.len() <= 68), "{output}"),
            _ => (),
        }
    }
}

/// Nanoseconds are given only if they were requested.
#[test]
fn nanoseconds_are_given_only_on_request() {
    let Some(fixture) = tcpdump_fixture("nanoseconds") else { return };
    let cases = vec![
        Case::tcpdump("nano", "-i nc1 -U --nano -w file", Shown(2)),
        Case::tcpdump("micro", "-i nc1 -U --micro -w file", Shown(2)),
    ];
    let pairs = fixture.start(cases);
    send_kinds(&fixture.wires(), ROUNDS);
    for pair in pairs {
        let is_nano = pair.name() == "nano";
        let ours = pair.compare();
        let finest = ours.packets().iter().map(|packet| packet.fraction).max().unwrap();
        assert!(finest < if is_nano { 1_000_000_000 } else { 1_000_000 }, "{ours}");
        // Of all but one in a thousand times the last three digits are not 0.
        assert!(ours.packets().iter().any(|packet| packet.fraction % 1000 != 0), "{ours}");
        assert_eq!(finest > 1_000_000, is_nano, "{ours}");
    }
}

/// The kernel's filter accepts the same packets, tags included, also if it is set after root is dropped.
#[test]
fn every_filter_matches_the_same_packets() {
    let Some(fixture) = tcpdump_fixture("filters") else { return };
    let filters = [
        ("udp", "udp"),
        ("tcp", "tcp or port 9999"),
        ("arp", "arp or udp port 9999"),
        ("ports", "udp portrange 7001-7003 or udp port 9999"),
        ("host", "src host 10.77.0.88 and ip"),
        ("not-ip", "not ip or udp port 9999"),
        ("type", "ether proto 0x88b5 or udp port 9999"),
        ("long", "greater 1000 or udp port 9999"),
        ("vlan", "udp port 9999 or vlan"),
        ("vlan-5", "udp port 9999 or vlan 5"),
        ("vlan-udp", "udp port 9999 or (vlan and udp)"),
        ("vlan-twice", "udp port 9999 or (vlan 100 and vlan 7)"),
        ("bytes", "udp port 9999 or ether[12:2] = 0x8100"),
        ("payload", "udp[8] = 3 or udp port 9999"),
    ];
    let cases =
        filters.map(|(name, filter)| Case::tcpdump(name, &format!("-i nc1 -U -w file '{filter}'"), Shown(2)));
    let pairs = fixture.start(cases.into());
    send_kinds(&fixture.wires(), ROUNDS);
    for pair in pairs {
        let name = pair.name();
        let output = pair.compare();
        let count = output.packets().len();
        assert!(count < SENT, "{output}");
        assert!(count > 2 || name == "bytes", "the kernel has taken the tags out: {output}");
        assert_eq!(output.counted("packets captured"), count as u64, "{output}");
    }
}

/// Also when tcpdump has changed its user; files are full at the same packet.
#[test]
fn files_are_rotated_at_the_same_packet() {
    let Some(fixture) = tcpdump_fixture("rotation") else { return };
    let cases = vec![
        Case::tcpdump("rotated", "-i nc1 -U -B 16384 -C 1 -w file", Shown(1)),
        Case::tcpdump("ring", "-i nc1 -U -B 16384 -C 1 -W 2 -w file -Z root", Shown(1)),
    ];
    let pairs = fixture.start(cases);
    let [left, _] = fixture.wires();
    in_order(|| {
        for number in 0..2_500_u16 {
            left.send(&left.udp(number, &[7; 1_000]));
        }
        left.send_last();
    });
    for pair in pairs {
        let is_ring = pair.name() == "ring";
        let output = pair.compare();
        let savefiles = output.files.len() - 2;
        assert_eq!(savefiles, if is_ring { 2 } else { 3 }, "{output}");
        assert_eq!(output.counted("packets captured"), 2_501, "{output}");
        assert_eq!(output.counted("packets dropped by kernel"), 0, "{output}");
    }
}

/// Proves that the counts asked for by a signal, while the program runs, are the same, and that it runs on.
#[test]
fn counts_on_a_signal_are_the_same() {
    let Some(fixture) = tcpdump_fixture("meanwhile") else { return };
    let pairs = fixture.start(vec![Case::tcpdump("asked", "-i nc1 -U -w file udp", Shown(4))]);
    let wires = fixture.wires();
    send_kinds(&wires, ROUNDS);
    pairs.iter().for_each(|pair| pair.wait_for_last_frames(2));
    pairs.iter().for_each(|pair| pair.ask_for_counts());
    send_kinds(&wires, ROUNDS);
    for pair in pairs {
        pair.compare();
    }
}

#[test]
fn a_tcp_connection_is_captured_the_same() {
    let Some(fixture) = tcpdump_fixture("connection") else { return };
    let pairs = fixture.start(vec![
        Case::tcpdump("connection", "-i nc1 -U -B 16384 -w file tcp or udp port 9999", Shown(2)),
        Case::tcpdump("connection-text", "-i nc1 -l -B 16384 -n -t -vv tcp or udp port 9999", Shown(2)),
    ]);
    let wires = fixture.wires();
    in_order(|| {
        exchange(&fixture);
        wires.iter().for_each(Wire::send_last);
    });
    for pair in pairs {
        let has_file = pair.name() == "connection";
        let output = pair.compare();
        let longest = output.packets().iter().map(|packet| packet.bytes.len()).max();
        assert!(!has_file || longest.unwrap() > 1514, "{output}");
    }
}

/// On one thread: everything fits into the receiver's buffer.
fn exchange(fixture: &Fixture) {
    let (left, right) = (fixture.lab.left(), fixture.lab.right());
    let listener = right.namespace().run(|| TcpListener::bind((right.ipv4(), 0))).unwrap();
    let to = listener.local_addr().unwrap();
    // On this thread, since one that is started for the namespace may be on another processor.
    left.namespace().enter().unwrap();
    let mut near = TcpStream::connect(to).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    let mut room = vec![0; 32_000];
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    for _ in 0..10 {
        near.write_all(&[5; 32_000]).unwrap();
        far.read_exact(&mut room).unwrap();
        far.write_all(&[6; 20_000]).unwrap();
        near.read_exact(&mut room[..20_000]).unwrap();
    }
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(uninterrupted(|| far.read(&mut room)).unwrap(), 0);
    far.shutdown(Shutdown::Write).unwrap();
    assert_eq!(uninterrupted(|| near.read(&mut room)).unwrap(), 0);
}

/// A capture continues after its interface was down, and ends with the same error when it was removed.
#[test]
fn a_removed_interface_ends_the_capture_the_same() {
    let Some(fixture) = tcpdump_fixture("down") else { return };
    let (lab, wires) = (&fixture.lab, fixture.wires());
    let send_last = || wires.iter().for_each(Wire::send_last);
    let pairs = fixture.start(vec![
        Case::tcpdump("down", "-i nc1 -U -w file", Shown(6)),
        Case::tcpdump("gone", "-i nc1 -U -w file udp", Itself),
        Case::tcpdump("gone-text", "-i nc1 -l -n -t", Itself),
    ]);
    send_last();
    for (end, count) in [(lab.left(), 2), (lab.right(), 4)] {
        pairs.iter().for_each(|pair| pair.wait_for_last_frames(count));
        end.set_down().unwrap();
        if count == 4 {
            let refused = fixture.start(vec![Case::refused("not-up", "-i nc1 -c 1 -w file")]);
            refused.into_iter().for_each(|pair| assert_eq!(pair.compare().code, Some(1)));
        }
        end.set_up().unwrap();
        lab.wait_for_carrier().unwrap();
        send_last();
    }
    let (stays, goes): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|pair| pair.name() == "down");
    stays.into_iter().for_each(|pair| assert_eq!(pair.compare().packets().len(), 6));
    goes.iter().for_each(|pair| pair.wait_for_last_frames(6));
    lab.delete_pair().unwrap();
    for pair in goes {
        let output = pair.compare();
        assert!(output.lines("stderr").iter().any(|line| line.contains("disappeared")), "{output}");
        assert_eq!(output.last_frames(), 6, "{output}");
    }
}

#[test]
fn refusals_are_the_same() {
    let Some(fixture) = tcpdump_fixture("refused") else { return };
    let mut cases = vec![
        Case::refused("no-interface", "-i nc9"),
        Case::refused("long-name", "-i an-interface-of-a-very-long-name"),
        Case::refused("bad-filter", "-i nc1 'udp and frobnicate'"),
        Case::refused("syntax", "-i nc1 'udp and and'"),
        Case::refused("monitor", "-i nc1 -I"),
        Case::refused("link-type", "-i nc1 -y PPP"),
        Case::refused("no-link-type", "-i nc1 -y NONSENSE"),
        Case::refused("link-types", "-i nc1 -L"),
        Case::refused("time-stamp-types", "-i nc1 -J"),
        Case::refused("interfaces", "-D"),
        Case::refused("no-file", "-i nc1 -w /no/such/file"),
        Case::refused("not-a-savefile", "-r stdout"),
        Case::refused("code", "-i nc1 -d 'udp port 53 and greater 100'"),
        Case::refused("code-vlan", "-i nc1 -d 'vlan 5 and (udp or inbound)'"),
        Case::refused("version", "--version"),
    ];
    let mut nobody = Case::refused("not-permitted", "-i nc1 -w file");
    nobody.user = Some(NOBODY);
    cases.push(nobody);
    for pair in fixture.start(cases) {
        let is_list = ["link-types", "time-stamp-types", "interfaces", "code", "code-vlan", "version"];
        let is_refused = !is_list.contains(&pair.name());
        let output = pair.compare();
        assert_eq!(output.code, Some(i32::from(is_refused)), "{output}");
    }
}
