//! Debian's programs with a library that takes packets from the host: their output for incoming packets is
//! the same as with the system's libpcap, and the host gets the packets that they do not want.
#![allow(unsafe_code)] // a packet socket of the test's own

use std::net::UdpSocket;

use nocopy_lab::patience::{PATIENCE, uninterrupted};

use crate::capturing::End::{Enough, Interrupted, Itself, Shown};
use crate::capturing::frames::{KINDS, LAST_PORT, Wire};
use crate::capturing::{Case, Library, Scene, scene};
use crate::common::in_order;

const ROUNDS: u16 = 20;
const SENT: usize = KINDS * ROUNDS as usize + 1;

const BOTH: [Library; 2] = [Library::System, Library::Taking];

/// Frames of all kinds, all of them coming in.
fn send_in(scene: &Scene) {
    let wire = Wire::open(scene.lab.left());
    in_order(|| {
        for number in 0..ROUNDS {
            wire.kinds(number).iter().for_each(|frame| wire.send(frame));
        }
        wire.send_last();
    });
}

fn compare(scene: &Scene, cases: &[Case]) {
    for case in cases {
        let ours = scene.compare_in_turn(case, BOTH, || send_in(scene));
        let is_all = case.name.starts_with("all");
        assert!(!is_all || ours.packets().len() == SENT, "{ours}");
    }
}

#[test]
fn tcpdump_sees_what_comes_in() {
    let Some(scene) = scene("taken", &["tcpdump"]) else { return };
    compare(
        &scene,
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
fn tcpdump_s_filters_let_the_same_in() {
    let Some(scene) = scene("taken-filters", &["tcpdump"]) else { return };
    compare(
        &scene,
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
fn other_programs_see_what_comes_in() {
    let Some(scene) = scene("taken-others", &["dumpcap", "tshark", "ngrep"]) else { return };
    let fields = "-T fields -e frame.len -e eth.type -e vlan.id -e ip.src -e udp.dstport";
    compare(
        &scene,
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
fn the_host_gets_the_rest() {
    const PORT: u16 = 7_100;
    let Some(scene) = scene("taken-rest", &["tcpdump"]) else { return };
    let (left, right) = (scene.lab.left(), scene.lab.right());
    let [socket, taken] = [PORT, LAST_PORT].map(|port| {
        let socket = right.namespace().run(|| UdpSocket::bind((right.ipv4(), port))).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    });
    let sender = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0))).unwrap();
    for (name, user) in [("in-front", "root"), ("in-program", "tcpdump")] {
        let line = format!("-i nc1 -U -Z {user} -w file udp port 9999");
        let program = scene.run(&Case::tcpdump(name, &line, Shown(1)), Library::Taking);
        program.wait_for("listening on");
        for number in 0..50_u8 {
            sender.send_to(&[number; 300], (right.ipv4(), PORT)).unwrap();
            let mut room = [0; 300];
            assert_eq!((uninterrupted(|| socket.recv(&mut room)).unwrap(), room[0]), (300, number));
        }
        sender.send_to(b"for the program", (right.ipv4(), LAST_PORT)).unwrap();
        program.wait_for_last_frames(1);
        let account = program.end(Shown(1));
        assert_eq!((account.packets().len(), account.code), (1, Some(0)), "{account}");
        sender.send_to(b"for the host", (right.ipv4(), LAST_PORT)).unwrap();
        let mut room = [0; 100];
        let bytes = uninterrupted(|| taken.recv(&mut room)).unwrap();
        assert_eq!(String::from_utf8_lossy(&room[..bytes]), "for the host", "{account}");
    }
}

/// The errors are the same.
#[test]
fn an_interface_that_goes_is_told_alike() {
    let words: Vec<_> = BOTH
        .into_iter()
        .filter_map(|library| {
            let scene = scene(&format!("taken-gone-{library:?}"), &["tcpdump"])?;
            let (lab, wire) = (&scene.lab, Wire::open(scene.lab.left()));
            let program = scene.run(&Case::tcpdump("gone", "-i nc1 -U -w file", Itself), library);
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
        crate::capturing::compare("gone", system, ours);
        assert!(ours.lines("stderr").iter().any(|line| line.contains("disappeared")), "{ours}");
    }
}
