//! Debian's programs with a library that takes packets from the host: their output for incoming packets is
//! the same as with the system's libpcap, and the host gets the packets that they do not want.
#![allow(unsafe_code)] // a packet socket of the test's own

use std::net::UdpSocket;

use nocopy_lab::patience::{PATIENCE, uninterrupted};

use crate::common::in_order;
use crate::comparison::EndCondition::{Enough, Interrupted, Itself, Shown};
use crate::comparison::frames::{KINDS, LAST_PORT, Wire};
use crate::comparison::{Case, Fixture, Library, fixture};

const ROUNDS: u16 = 20;
const SENT: usize = KINDS * ROUNDS as usize + 1;

const BOTH: [Library; 2] = [Library::System, Library::Take];

/// Frames of all kinds, all of them coming in.
fn send_in(fixture: &Fixture) {
    let wire = Wire::open(fixture.lab.left());
    in_order(|| {
        for number in 0..ROUNDS {
            wire.kinds(number).iter().for_each(|frame| wire.send(frame));
        }
        wire.send_last();
    });
}

fn compare(fixture: &Fixture, cases: &[Case]) {
    for case in cases {
        let ours = fixture.compare_in_turn(case, BOTH, || send_in(fixture));
        let is_all = case.name.starts_with("all");
        assert!(!is_all || ours.packets().len() == SENT, "{ours}");
    }
}

#[test]
fn tcpdump_captures_the_same_incoming_packets() {
    let Some(fixture) = fixture("taken", &["tcpdump"]) else { return };
    compare(
        &fixture,
        &[
            Case::tcpdump("all", "-i nc1 -U -w file", Shown(1)),
            Case::tcpdump("all-interrupted", "-i nc1 -U -w file -Z root", Interrupted(1)),
            Case::tcpdump("all-in", "-i nc1 -U -Q in -B 8192 -w file", Shown(1)),
            Case::tcpdump("text", "-i nc1 -l -n -e -t -v", Shown(1)),
            Case::tcpdump("short", "-i nc1 -U -s 68 --nano -w file", Shown(1)),
            Case::tcpdump("count", "-i nc1 -c 57 -w file", Enough),
        ],
    );
}

/// With the filter before the capture, also after tcpdump has given up root.
#[test]
fn tcpdump_filters_match_the_same_incoming_packets() {
    let Some(fixture) = fixture("taken-filters", &["tcpdump"]) else { return };
    compare(
        &fixture,
        &[
            Case::tcpdump("port", "-i nc1 -U -w file udp port 7005 or udp port 9999", Shown(1)),
            Case::tcpdump("root", "-i nc1 -U -Z root -w file udp port 7005 or udp port 9999", Shown(1)),
            Case::tcpdump("type", "-i nc1 -U -w file ether proto 0x88b5 or udp port 9999", Shown(1)),
            Case::tcpdump("vlan", "-i nc1 -U -w file udp port 9999 or vlan 5", Shown(1)),
            Case::tcpdump(
                "vlan-udp",
                "-i nc1 -U -Z root -w file 'udp port 9999 or (vlan and udp)'",
                Shown(1),
            ),
            Case::tcpdump("long", "-i nc1 -l -n -t greater 1200 or udp port 9999", Shown(1)),
        ],
    );
}

#[test]
#[cfg_attr(
    nocopy_sanitizer,
    ignore = "dumpcap never ends with the address sanitizer: p11-kit waits for a lock of the C library"
)]
fn other_programs_capture_the_same_incoming_packets() {
    let Some(fixture) = fixture("taken-others", &["dumpcap", "tshark", "ngrep"]) else { return };
    let fields = "-T fields -e frame.len -e eth.type -e vlan.id -e ip.src -e udp.dstport";
    compare(
        &fixture,
        &[
            Case::new("all-dumpcap", "dumpcap -P -i nc1 -w file", "File: ", Shown(1)),
            Case::new("tshark", &format!("tshark -i nc1 -l -n {fields}"), "File: ", Interrupted(1)),
            Case::new(
                "ngrep",
                "ngrep -l -q -d nc1 'the last' udp port 9999 or udp port 7005",
                "match",
                Shown(1),
            ),
        ],
    );
}

/// Wherever the filter runs; matching packets do not reach the host.
#[test]
fn unmatched_packets_reach_the_host() {
    const PORT: u16 = 7_100;
    let Some(fixture) = fixture("taken-rest", &["tcpdump"]) else { return };
    let (left, right) = (fixture.lab.left(), fixture.lab.right());
    let [socket, taken] = [PORT, LAST_PORT].map(|port| {
        let socket = right.namespace().run(|| UdpSocket::bind((right.ipv4(), port))).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    });
    let sender = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0))).unwrap();
    for (name, user) in [("in-front", "root"), ("in-program", "tcpdump")] {
        let line = format!("-i nc1 -U -Z {user} -w file udp port 9999");
        let program = fixture.run(&Case::tcpdump(name, &line, Shown(1)), Library::Take);
        program.wait_for("listening on");
        for number in 0..50_u8 {
            sender.send_to(&[number; 300], (right.ipv4(), PORT)).unwrap();
            let mut room = [0; 300];
            assert_eq!((uninterrupted(|| socket.recv(&mut room)).unwrap(), room[0]), (300, number));
        }
        sender.send_to(b"for the program", (right.ipv4(), LAST_PORT)).unwrap();
        program.wait_for_last_frames(1);
        let output = program.end(Shown(1));
        assert_eq!((output.packets().len(), output.code), (1, Some(0)), "{output}");
        sender.send_to(b"for the host", (right.ipv4(), LAST_PORT)).unwrap();
        let mut room = [0; 100];
        let bytes = uninterrupted(|| taken.recv(&mut room)).unwrap();
        assert_eq!(String::from_utf8_lossy(&room[..bytes]), "for the host", "{output}");
    }
}

/// The errors are the same.
#[test]
fn a_removed_interface_gives_the_same_error() {
    let words: Vec<_> = BOTH
        .into_iter()
        .filter_map(|library| {
            let fixture = fixture(&format!("taken-gone-{library:?}"), &["tcpdump"])?;
            let (lab, wire) = (&fixture.lab, Wire::open(fixture.lab.left()));
            let program = fixture.run(&Case::tcpdump("gone", "-i nc1 -U -w file", Itself), library);
            program.wait_for("listening on");
            wire.send_last();
            program.wait_for_last_frames(1);
            lab.right().set_down().unwrap();
            lab.right().set_up().unwrap();
            lab.wait_for_carrier().unwrap();
            wire.send_last();
            program.wait_for_last_frames(2);
            lab.delete_pair().unwrap();
            Some(program.end(Itself))
        })
        .collect();
    if let [system, ours] = &words[..] {
        crate::comparison::compare("gone", system, ours);
        assert!(ours.lines("stderr").iter().any(|line| line.contains("disappeared")), "{ours}");
    }
}
