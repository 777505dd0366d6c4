//! Debian's programs with a library that takes packets from the host: their output for incoming packets is
//! the same as with the system's libpcap, and the host gets the packets that they do not want.
#![allow(unsafe_code)] // a packet socket of the test's own

use std::net::UdpSocket;

use nocopy_lab::patience::{PATIENCE, uninterrupted};

use crate::common::on_one_processor;
use crate::comparison::EndCondition::{Enough, Interrupted, Itself, Shown};
use crate::comparison::frames::{FrameSender, KINDS, LAST_PORT};
use crate::comparison::{ComparisonFixture, LibraryKind, ProgramCase, fixture_or_skip};

const ROUNDS: u16 = 20;
const SENT: usize = KINDS * ROUNDS as usize + 1;

const BOTH: [LibraryKind; 2] = [LibraryKind::System, LibraryKind::Take];

/// Frames of all kinds, all of them coming in.
fn send_incoming_frames(fixture: &ComparisonFixture) {
    let wire = FrameSender::open(fixture.lab.left());
    on_one_processor(|| {
        for number in 0..ROUNDS {
            wire.frames_of_every_kind(number).iter().for_each(|frame| wire.send(frame));
        }
        wire.send_last_frame();
    });
}

fn compare_cases(fixture: &ComparisonFixture, cases: &[ProgramCase]) {
    for case in cases {
        let ours = fixture.compare_in_turn(case, BOTH, || send_incoming_frames(fixture));
        let is_all = case.name.starts_with("all");
        assert!(!is_all || ours.saved_packets().len() == SENT, "{ours}");
    }
}

#[test]
fn tcpdump_captures_the_same_incoming_packets_when_taking_them() {
    let Some(fixture) = fixture_or_skip("taken", &["tcpdump"]) else { return };
    compare_cases(
        &fixture,
        &[
            ProgramCase::capturing_tcpdump("all", "-i nc1 -U -w file", Shown(1)),
            ProgramCase::capturing_tcpdump("all-interrupted", "-i nc1 -U -w file -Z root", Interrupted(1)),
            ProgramCase::capturing_tcpdump("all-in", "-i nc1 -U -Q in -B 8192 -w file", Shown(1)),
            ProgramCase::capturing_tcpdump("text", "-i nc1 -l -n -e -t -v", Shown(1)),
            ProgramCase::capturing_tcpdump("short", "-i nc1 -U -s 68 --nano -w file", Shown(1)),
            ProgramCase::capturing_tcpdump("count", "-i nc1 -c 57 -w file", Enough),
        ],
    );
}

/// With the filter before the capture, also after tcpdump has given up root.
#[test]
fn tcpdump_filters_match_the_same_incoming_packets_when_taking_them() {
    let Some(fixture) = fixture_or_skip("taken-filters", &["tcpdump"]) else { return };
    compare_cases(
        &fixture,
        &[
            ProgramCase::capturing_tcpdump(
                "port",
                "-i nc1 -U -w file udp port 7005 or udp port 9999",
                Shown(1),
            ),
            ProgramCase::capturing_tcpdump(
                "root",
                "-i nc1 -U -Z root -w file udp port 7005 or udp port 9999",
                Shown(1),
            ),
            ProgramCase::capturing_tcpdump(
                "type",
                "-i nc1 -U -w file ether proto 0x88b5 or udp port 9999",
                Shown(1),
            ),
            ProgramCase::capturing_tcpdump("vlan", "-i nc1 -U -w file udp port 9999 or vlan 5", Shown(1)),
            ProgramCase::capturing_tcpdump(
                "vlan-udp",
                "-i nc1 -U -Z root -w file 'udp port 9999 or (vlan and udp)'",
                Shown(1),
            ),
            ProgramCase::capturing_tcpdump("long", "-i nc1 -l -n -t greater 1200 or udp port 9999", Shown(1)),
        ],
    );
}

#[test]
#[cfg_attr(
    nocopy_sanitizer,
    ignore = "dumpcap never ends with the address sanitizer: p11-kit waits for a lock of the C library"
)]
fn dumpcap_tshark_and_ngrep_capture_the_same_when_taking_packets() {
    let Some(fixture) = fixture_or_skip("taken-others", &["dumpcap", "tshark", "ngrep"]) else { return };
    let fields = "-T fields -e frame.len -e eth.type -e vlan.id -e ip.src -e udp.dstport";
    compare_cases(
        &fixture,
        &[
            ProgramCase::new("all-dumpcap", "dumpcap -P -i nc1 -w file", "File: ", Shown(1)),
            ProgramCase::new("tshark", &format!("tshark -i nc1 -l -n {fields}"), "File: ", Interrupted(1)),
            ProgramCase::new(
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
fn packets_that_do_not_match_the_filter_reach_the_host() {
    const PORT: u16 = 7_100;
    let Some(fixture) = fixture_or_skip("taken-rest", &["tcpdump"]) else { return };
    let (left, right) = (fixture.lab.left(), fixture.lab.right());
    let [socket, taken] = [PORT, LAST_PORT].map(|port| {
        let socket = right.namespace().run(|| UdpSocket::bind((right.ipv4(), port))).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    });
    let sender = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0))).unwrap();
    for (name, user) in [("in-front", "root"), ("in-program", "tcpdump")] {
        let line = format!("-i nc1 -U -Z {user} -w file udp port 9999");
        let program =
            fixture.start_program(&ProgramCase::capturing_tcpdump(name, &line, Shown(1)), LibraryKind::Take);
        program.wait_for_output("listening on");
        for number in 0..50_u8 {
            sender.send_to(&[number; 300], (right.ipv4(), PORT)).unwrap();
            let mut room = [0; 300];
            assert_eq!((uninterrupted(|| socket.recv(&mut room)).unwrap(), room[0]), (300, number));
        }
        sender.send_to(b"for the program", (right.ipv4(), LAST_PORT)).unwrap();
        program.wait_for_last_frames(1);
        let output = program.end_and_read_output(Shown(1));
        assert_eq!((output.saved_packets().len(), output.code), (1, Some(0)), "{output}");
        sender.send_to(b"for the host", (right.ipv4(), LAST_PORT)).unwrap();
        let mut room = [0; 100];
        let bytes = uninterrupted(|| taken.recv(&mut room)).unwrap();
        assert_eq!(String::from_utf8_lossy(&room[..bytes]), "for the host", "{output}");
    }
}

/// The errors are the same.
#[test]
fn an_interface_removed_while_taking_gives_the_systems_error() {
    let words: Vec<_> = BOTH
        .into_iter()
        .filter_map(|library| {
            let fixture = fixture_or_skip(&format!("taken-gone-{library:?}"), &["tcpdump"])?;
            let (lab, wire) = (&fixture.lab, FrameSender::open(fixture.lab.left()));
            let program = fixture
                .start_program(&ProgramCase::capturing_tcpdump("gone", "-i nc1 -U -w file", Itself), library);
            program.wait_for_output("listening on");
            wire.send_last_frame();
            program.wait_for_last_frames(1);
            lab.right().set_down().unwrap();
            lab.right().bring_interface_up().unwrap();
            lab.wait_for_carrier().unwrap();
            wire.send_last_frame();
            program.wait_for_last_frames(2);
            lab.delete_pair().unwrap();
            Some(program.end_and_read_output(Itself))
        })
        .collect();
    if let [system, ours] = &words[..] {
        crate::comparison::assert_same_output("gone", system, ours);
        assert!(ours.text_lines("stderr").iter().any(|line| line.contains("disappeared")), "{ours}");
    }
}
