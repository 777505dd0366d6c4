//! Debian's tcpdump with the system's libpcap and with ours, on the same traffic at once: the same packets,
//! bytes, counts and words.
#![allow(unsafe_code)] // a packet socket of the test's own

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use nocopy_lab::patience::{PATIENCE, uninterrupted};

use crate::common::on_one_processor;
use crate::comparison::EndCondition::{Enough, Interrupted, Itself, Shown};
use crate::comparison::frames::{FrameSender, KINDS, send_frames_of_every_kind};
use crate::comparison::{ComparisonFixture, ProgramCase, fixture_or_skip};

const ROUNDS: u16 = 20;
/// Frames in both directions.
const SENT: usize = 2 * (KINDS * ROUNDS as usize + 1);

/// A user that may not capture.
const NOBODY: u32 = 65_534;

fn tcpdump_fixture(name: &str) -> Option<ComparisonFixture> {
    fixture_or_skip(name, &["tcpdump"])
}

#[test]
fn tcpdump_options_give_the_same_output_with_both_libraries() {
    let Some(fixture) = tcpdump_fixture("options") else { return };
    let cases = vec![
        ProgramCase::capturing_tcpdump("all", "-i nc1 -U -w file", Shown(2)),
        ProgramCase::capturing_tcpdump("interrupted", "-i nc1 -U -w file", Interrupted(2)),
        ProgramCase::capturing_tcpdump("root", "-i nc1 -U -w file -Z root", Shown(2)),
        ProgramCase::capturing_tcpdump("nano", "-i nc1 -U --time-stamp-precision=nano -w file", Shown(2)),
        ProgramCase::capturing_tcpdump(
            "immediate",
            "-i nc1 -U -s 2000 -B 16384 --immediate-mode -w file",
            Shown(2),
        ),
        ProgramCase::capturing_tcpdump("not-promiscuous", "-i nc1 -U -p -w file", Shown(2)),
        ProgramCase::capturing_tcpdump("text", "-i nc1 -l -n -e -t -v", Shown(2)),
        ProgramCase::capturing_tcpdump("bytes", "-i nc1 -l -n -t -XX", Shown(2)),
        ProgramCase::capturing_tcpdump("short", "-i nc1 -U -s 68 -w file", Shown(2)),
        ProgramCase::capturing_tcpdump("in", "-i nc1 -U -Q in -w file", Shown(1)),
        ProgramCase::capturing_tcpdump("out", "-i nc1 -U -Q out -w file", Shown(1)),
        ProgramCase::capturing_tcpdump("inout", "-i nc1 -U -Q inout -w file", Shown(2)),
        ProgramCase::capturing_tcpdump("any", "-i any -l -n -t -e", Shown(2)),
        ProgramCase::capturing_tcpdump("small", "-i nc1 -U -B 1024 -w file", Shown(2)),
        ProgramCase::capturing_tcpdump("count", "-i nc1 -c 57 -w file", Enough),
        ProgramCase::capturing_tcpdump("count-text", "-i nc1 -c 3 -n -t udp port 7005", Enough),
    ];
    let pairs = fixture.start_pairs(cases);
    send_frames_of_every_kind(&fixture.frame_senders(), ROUNDS);
    for pair in pairs {
        let name = pair.case_name();
        let output = pair.end_and_compare();
        let packets = output.saved_packets();
        match name {
            "all" | "interrupted" | "root" | "nano" | "immediate" | "not-promiscuous" => {
                assert_eq!(packets.len(), SENT, "{output}");
                assert_eq!(output.printed_count("packets captured"), SENT as u64, "{output}");
            }
            "in" | "out" => assert_eq!(packets.len(), SENT / 2, "{output}"),
            "short" => assert!(packets.iter().all(|packet| packet.bytes.len() <= 68), "{output}"),
            _ => (),
        }
    }
}

/// Nanoseconds are given only if they were requested.
#[test]
fn nanosecond_times_are_written_only_on_request() {
    let Some(fixture) = tcpdump_fixture("nanoseconds") else { return };
    let cases = vec![
        ProgramCase::capturing_tcpdump("nano", "-i nc1 -U --nano -w file", Shown(2)),
        ProgramCase::capturing_tcpdump("micro", "-i nc1 -U --micro -w file", Shown(2)),
    ];
    let pairs = fixture.start_pairs(cases);
    send_frames_of_every_kind(&fixture.frame_senders(), ROUNDS);
    for pair in pairs {
        let is_nano = pair.case_name() == "nano";
        let ours = pair.end_and_compare();
        let finest = ours.saved_packets().iter().map(|packet| packet.fraction).max().unwrap();
        assert!(finest < if is_nano { 1_000_000_000 } else { 1_000_000 }, "{ours}");
        // Of all but one in a thousand times the last three digits are not 0.
        assert!(ours.saved_packets().iter().any(|packet| packet.fraction % 1000 != 0), "{ours}");
        assert_eq!(finest > 1_000_000, is_nano, "{ours}");
    }
}

/// The kernel's filter accepts the same packets, tags included, also if it is set after root is dropped.
#[test]
fn tcpdump_filters_match_the_same_packets_with_both_libraries() {
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
    let cases = filters.map(|(name, filter)| {
        ProgramCase::capturing_tcpdump(name, &format!("-i nc1 -U -w file '{filter}'"), Shown(2))
    });
    let pairs = fixture.start_pairs(cases.into());
    send_frames_of_every_kind(&fixture.frame_senders(), ROUNDS);
    for pair in pairs {
        let name = pair.case_name();
        let output = pair.end_and_compare();
        let count = output.saved_packets().len();
        assert!(count < SENT, "{output}");
        assert!(count > 2 || name == "bytes", "the kernel has taken the tags out: {output}");
        assert_eq!(output.printed_count("packets captured"), count as u64, "{output}");
    }
}

/// Also when tcpdump has changed its user; files are full at the same packet.
#[test]
fn tcpdump_rotates_files_at_the_same_packet_with_both_libraries() {
    let Some(fixture) = tcpdump_fixture("rotation") else { return };
    let cases = vec![
        ProgramCase::capturing_tcpdump("rotated", "-i nc1 -U -B 16384 -C 1 -w file", Shown(1)),
        ProgramCase::capturing_tcpdump("ring", "-i nc1 -U -B 16384 -C 1 -W 2 -w file -Z root", Shown(1)),
    ];
    let pairs = fixture.start_pairs(cases);
    let [left, _] = fixture.frame_senders();
    on_one_processor(|| {
        for number in 0..2_500_u16 {
            left.send(&left.udp_frame(number, &[7; 1_000]));
        }
        left.send_last_frame();
    });
    for pair in pairs {
        let is_ring = pair.case_name() == "ring";
        let output = pair.end_and_compare();
        let savefiles = output.files.len() - 2;
        assert_eq!(savefiles, if is_ring { 2 } else { 3 }, "{output}");
        assert_eq!(output.printed_count("packets captured"), 2_501, "{output}");
        assert_eq!(output.printed_count("packets dropped by kernel"), 0, "{output}");
    }
}

/// Proves that the counts asked for by a signal, while the program runs, are the same, and that it runs on.
#[test]
fn tcpdump_counts_on_sigusr1_are_the_same_with_both_libraries() {
    let Some(fixture) = tcpdump_fixture("meanwhile") else { return };
    let pairs =
        fixture.start_pairs(vec![ProgramCase::capturing_tcpdump("asked", "-i nc1 -U -w file udp", Shown(4))]);
    let wires = fixture.frame_senders();
    send_frames_of_every_kind(&wires, ROUNDS);
    pairs.iter().for_each(|pair| pair.wait_for_last_frames(2));
    pairs.iter().for_each(|pair| pair.ask_for_counts());
    send_frames_of_every_kind(&wires, ROUNDS);
    for pair in pairs {
        pair.end_and_compare();
    }
}

#[test]
fn a_tcp_connection_is_captured_the_same_with_both_libraries() {
    let Some(fixture) = tcpdump_fixture("connection") else { return };
    let pairs = fixture.start_pairs(vec![
        ProgramCase::capturing_tcpdump(
            "connection",
            "-i nc1 -U -B 16384 -w file tcp or udp port 9999",
            Shown(2),
        ),
        ProgramCase::capturing_tcpdump(
            "connection-text",
            "-i nc1 -l -B 16384 -n -t -vv tcp or udp port 9999",
            Shown(2),
        ),
    ]);
    let wires = fixture.frame_senders();
    on_one_processor(|| {
        exchange_tcp_data(&fixture);
        wires.iter().for_each(FrameSender::send_last_frame);
    });
    for pair in pairs {
        let has_file = pair.case_name() == "connection";
        let output = pair.end_and_compare();
        let longest = output.saved_packets().iter().map(|packet| packet.bytes.len()).max();
        assert!(!has_file || longest.unwrap() > 1514, "{output}");
    }
}

/// On one thread: everything fits into the receiver's buffer.
fn exchange_tcp_data(fixture: &ComparisonFixture) {
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
fn interface_down_and_removal_act_the_same_with_both_libraries() {
    let Some(fixture) = tcpdump_fixture("down") else { return };
    let (lab, wires) = (&fixture.lab, fixture.frame_senders());
    let send_last_frame = || wires.iter().for_each(FrameSender::send_last_frame);
    let pairs = fixture.start_pairs(vec![
        ProgramCase::capturing_tcpdump("down", "-i nc1 -U -w file", Shown(6)),
        ProgramCase::capturing_tcpdump("gone", "-i nc1 -U -w file udp", Itself),
        ProgramCase::capturing_tcpdump("gone-text", "-i nc1 -l -n -t", Itself),
    ]);
    send_last_frame();
    for (end, count) in [(lab.left(), 2), (lab.right(), 4)] {
        pairs.iter().for_each(|pair| pair.wait_for_last_frames(count));
        end.set_down().unwrap();
        if count == 4 {
            let refused = fixture
                .start_pairs(vec![ProgramCase::tcpdump_ending_itself("not-up", "-i nc1 -c 1 -w file")]);
            refused.into_iter().for_each(|pair| assert_eq!(pair.end_and_compare().code, Some(1)));
        }
        end.bring_interface_up().unwrap();
        lab.wait_for_carrier().unwrap();
        send_last_frame();
    }
    let (stays, goes): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|pair| pair.case_name() == "down");
    stays.into_iter().for_each(|pair| assert_eq!(pair.end_and_compare().saved_packets().len(), 6));
    goes.iter().for_each(|pair| pair.wait_for_last_frames(6));
    lab.delete_pair().unwrap();
    for pair in goes {
        let output = pair.end_and_compare();
        assert!(output.text_lines("stderr").iter().any(|line| line.contains("disappeared")), "{output}");
        assert_eq!(output.last_frame_count(), 6, "{output}");
    }
}

#[test]
fn tcpdump_refusals_and_listings_are_the_same_with_both_libraries() {
    let Some(fixture) = tcpdump_fixture("refused") else { return };
    let mut cases = vec![
        ProgramCase::tcpdump_ending_itself("no-interface", "-i nc9"),
        ProgramCase::tcpdump_ending_itself("long-name", "-i an-interface-of-a-very-long-name"),
        ProgramCase::tcpdump_ending_itself("bad-filter", "-i nc1 'udp and frobnicate'"),
        ProgramCase::tcpdump_ending_itself("syntax", "-i nc1 'udp and and'"),
        ProgramCase::tcpdump_ending_itself("monitor", "-i nc1 -I"),
        ProgramCase::tcpdump_ending_itself("link-type", "-i nc1 -y PPP"),
        ProgramCase::tcpdump_ending_itself("no-link-type", "-i nc1 -y NONSENSE"),
        ProgramCase::tcpdump_ending_itself("link-types", "-i nc1 -L"),
        ProgramCase::tcpdump_ending_itself("time-stamp-types", "-i nc1 -J"),
        ProgramCase::tcpdump_ending_itself("interfaces", "-D"),
        ProgramCase::tcpdump_ending_itself("no-file", "-i nc1 -w /no/such/file"),
        ProgramCase::tcpdump_ending_itself("not-a-savefile", "-r stdout"),
        ProgramCase::tcpdump_ending_itself("code", "-i nc1 -d 'udp port 53 and greater 100'"),
        ProgramCase::tcpdump_ending_itself("code-vlan", "-i nc1 -d 'vlan 5 and (udp or inbound)'"),
        ProgramCase::tcpdump_ending_itself("version", "--version"),
    ];
    let mut nobody = ProgramCase::tcpdump_ending_itself("not-permitted", "-i nc1 -w file");
    nobody.user = Some(NOBODY);
    cases.push(nobody);
    for pair in fixture.start_pairs(cases) {
        let is_list = ["link-types", "time-stamp-types", "interfaces", "code", "code-vlan", "version"];
        let is_refused = !is_list.contains(&pair.case_name());
        let output = pair.end_and_compare();
        assert_eq!(output.code, Some(i32::from(is_refused)), "{output}");
    }
}
