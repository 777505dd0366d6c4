//! `nocopy send udp://…` and `nocopy recv` as users run them: two processes, over lo and over a lab, whose
//! summaries agree.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::process_state::{retry_with_more_seconds, uninterrupted, wait_until};
use crate::running::{PATIENCE, RunningNocopy, lossy_text, nocopy_command};
use crate::scratch::ScratchFile;
use crate::transfer::{self, pseudo_random_bytes, sum_of_evidence_bytes};
use rustix::process::Signal;
use serde_json::Value;

const HEADER_BYTES: usize = 40;

/// So few that they fit into any socket's buffer even if it is not read: nothing may be lost.
const FEW: [&str; 4] = ["--count", "100", "--size", "200"];

/// A receiver at a free port of that address, once it is there.
fn start_receiver(address: &str, arguments: &[&str]) -> (RunningNocopy, SocketAddr) {
    let (receiver, at, _) = start_receiver_with_errors(address, arguments);
    (receiver, at)
}

fn start_receiver_with_errors(
    address: &str,
    arguments: &[&str],
) -> (RunningNocopy, SocketAddr, JoinHandle<String>) {
    transfer::start_receiver_with_errors("udp", address, arguments)
}

fn start_sender(to: SocketAddr, arguments: &[&str]) -> RunningNocopy {
    transfer::start_sender("udp", to, arguments)
}

/// Checks that both summaries agree, and returns both.
fn agreeing_summaries(sender: RunningNocopy, receiver: RunningNocopy) -> ((Value, i32), (Value, i32)) {
    let ends = transfer::agreeing_summaries(&["sent", "received", "lost", "final"], sender, receiver);
    let sent = &ends.0.0;
    assert_eq!(sent["datagrams"], sent["sent"]["datagrams"]);
    ends
}

#[test]
fn all_data_arrives_by_every_method() {
    let methods = [
        "auto",
        "socket",
        "sendmmsg",
        "gso",
        "zerocopy",
        "zerocopy-gso",
        "uring-zerocopy",
        "uring-zerocopy-gso",
    ];
    for (method, address) in methods.iter().flat_map(|method| [(method, "127.0.0.1"), (method, "[::1]")]) {
        if method.starts_with("uring") && !nocopy_lab::io_uring_or_skip() {
            break;
        }
        if address.starts_with('[') && !nocopy_lab::ipv6_or_skip() {
            continue;
        }
        let (receiver, at) = start_receiver(address, &["--json", "--verify"]);
        let sender = start_sender(at, &[&FEW[..], &["--json", "--method", method]].concat());
        let ((sent, code), (received, received_code)) = agreeing_summaries(sender, receiver);
        assert_eq!((code, received_code), (0, 0), "{method}: {sent}{received}");
        assert_eq!(
            (&sent["schema"], &received["schema"]),
            (&"nocopy.send-udp/2".into(), &"nocopy.recv-udp/1".into())
        );
        assert_eq!(
            (&sent["method"], &sent["lost"], &sent["verified"]),
            (&(**method).into(), &0.into(), &true.into())
        );
        assert_eq!(received["received"]["bytes"], 100 * (200 - HEADER_BYTES));
        assert_eq!((&received["datagrams"], &received["bytes"]), (&100.into(), &20_000.into()));
        let by_whom = if *method == "auto" { "chosen by measurement" } else { "chosen by the user" };
        assert!(sent["explanation"][0].as_str().unwrap().contains(by_whom), "{sent}");
        assert!(sum_of_evidence_bytes(&sent) >= 20_000, "every byte is in the ledger: {sent}");
        assert!(
            sent["processor"]["ns_per_datagram"].is_number() && received["processor"]["percent"].is_number()
        );
    }
}

#[test]
fn a_file_arrives_byte_for_byte() {
    for bytes in [0, 1, 1360, 1361, 60_000] {
        let content = pseudo_random_bytes(bytes);
        let (source, target) = (ScratchFile::with_content("source", &content), ScratchFile::new("target"));
        let (receiver, at) = start_receiver("127.0.0.1", &["--json", "--output", target.path()]);
        let ((sent, code), (received, _)) =
            agreeing_summaries(start_sender(at, &["--json", "--verify", "--file", source.path()]), receiver);
        assert_eq!((code, &sent["verified"]), (0, &true.into()), "{sent}{received}");
        assert!(fs::read(target.path()).unwrap() == content, "{bytes}");
        assert_eq!(received["received"]["bytes"], bytes);

        let (receiver, at) = start_receiver("127.0.0.1", &["--json", "--output", "-"]);
        assert_eq!(start_sender(at, &["--json", "--file", source.path()]).wait_for_summary().1, 0);
        assert!(receiver.wait_for_end().stdout == content, "{bytes}");
    }
}

/// At once, not when a datagram is full; a silence ends nothing.
#[test]
fn standard_input_is_sent_without_delay() {
    let sent = transfer::check_input_is_sent_without_delay("udp", &["--stdin", "--json"]);
    assert_eq!(sent["datagrams"], 3, "{sent}");
}

#[derive(Clone, Copy, PartialEq)]
enum PacketAction {
    Pass,
    Drop,
    Duplicate,
    Delay,
    Corrupt,
}

/// Forwards between two sockets, in both directions, until both are closed.
fn start_relay(to: SocketAddr, action: impl Fn(u64) -> PacketAction + Send + 'static) -> SocketAddr {
    let (front, back) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    back.connect(to).unwrap();
    let at = front.local_addr().unwrap();
    let forward = move || {
        front.set_read_timeout(Some(PATIENCE)).unwrap();
        let answers = front.try_clone().unwrap();
        let (mut buffer, mut delayed, mut sender) = ([0; 65_536], None::<Vec<u8>>, None);
        while let Ok((bytes, from)) = uninterrupted(|| front.recv_from(&mut buffer)) {
            let datagram = &mut buffer[..bytes];
            if sender.is_none() {
                sender = Some(from);
                let (back, answers) = (back.try_clone().unwrap(), answers.try_clone().unwrap());
                back.set_read_timeout(Some(PATIENCE)).unwrap();
                thread::spawn(move || {
                    let mut buffer = [0; 65_536];
                    while let Ok(bytes) = uninterrupted(|| back.recv(&mut buffer)) {
                        answers.send_to(&buffer[..bytes], from).unwrap();
                    }
                });
            }
            let number = u64::from_be_bytes(datagram[16..24].try_into().unwrap());
            let is_data = datagram[5] == 0;
            let action = if is_data { action(number) } else { PacketAction::Pass };
            match action {
                PacketAction::Drop => continue,
                PacketAction::Delay => {
                    delayed = Some(datagram.to_vec());
                    continue;
                }
                PacketAction::Corrupt => datagram[HEADER_BYTES] ^= 1,
                PacketAction::Pass | PacketAction::Duplicate => {}
            }
            let times = if action == PacketAction::Duplicate { 2 } else { 1 };
            for _ in 0..times {
                let _ = back.send(datagram); // gone at the end
            }
            if let Some(late) = delayed.take_if(|_| is_data) {
                let _ = back.send(&late);
            }
        }
    };
    thread::spawn(forward);
    at
}

/// Losses, repeats and damage on the path are counted exactly, and equally by both.
#[test]
fn loss_duplicates_and_damage_are_counted_by_both_ends() {
    let (receiver, at) = start_receiver("127.0.0.1", &["--json"]);
    let action = |number| match number % 10 {
        3 => PacketAction::Drop,
        5 => PacketAction::Duplicate,
        7 if number < 50 => PacketAction::Corrupt,
        8 => PacketAction::Delay,
        _ => PacketAction::Pass,
    };
    let through = start_relay(at, action);
    let sender = start_sender(through, &[&FEW[..], &["--json", "--verify"]].concat());
    let ((sent, code), (received, received_code)) = agreeing_summaries(sender, receiver);
    assert_eq!((code, received_code), (1, 1), "{sent}{received}");
    let counted = &received["received"];
    for (name, count) in
        [("datagrams", 85), ("duplicate", 10), ("corrupt", 5), ("reordered", 10), ("stale", 0)]
    {
        assert_eq!(counted[name], count, "{name}: {received}");
    }
    assert_eq!((&received["lost"], &received["verified"]), (&15.into(), &false.into()));
}

#[test]
fn lost_datagrams_are_holes_in_files_and_omitted_in_pipes() {
    let content = pseudo_random_bytes(20_000);
    let source = ScratchFile::with_content("gaps-source", &content);
    let action = |number| match number {
        3 => PacketAction::Drop,
        5 => PacketAction::Delay,
        _ => PacketAction::Pass,
    };
    let lost = 3 * 1360..4 * 1360;
    let target = ScratchFile::new("gaps-target");
    for output in [target.path(), "-"] {
        let (receiver, at) = start_receiver("127.0.0.1", &["--output", output]);
        assert_eq!(
            start_sender(start_relay(at, action), &["--json", "--file", source.path()]).wait_for_summary().1,
            1
        );
        let printed = receiver.wait_for_end();
        assert_eq!(printed.status.code(), Some(1));
        let mut expected = content.clone();
        if output == "-" {
            expected.drain(lost.clone());
            assert!(printed.stdout == expected, "in order, without what was lost");
        } else {
            expected[lost.clone()].fill(0);
            assert!(fs::read(output).unwrap() == expected, "in its place, with a hole");
        }
    }
}

#[test]
fn a_full_receive_buffer_is_counted_by_both_ends() {
    let (receiver, at) = start_receiver("127.0.0.1", &["--json", "--buffer", "1"]);
    let ((sent, code), (received, received_code)) =
        agreeing_summaries(start_sender(at, &["--json", "--count", "20k"]), receiver);
    let lost = received["lost"].as_u64().unwrap();
    assert!(lost > 0, "{received}");
    assert_eq!((code, received_code), (1, 1));
    assert_eq!(received["received"]["datagrams"], 20_000 - lost);
    assert!(sent["received"]["kernel_dropped"].as_u64().unwrap() > 0, "{sent}");
}

/// An interrupted file is reported, and a requested count of its datagrams is not.
#[test]
fn an_incomplete_file_is_a_negative_result() {
    let source = ScratchFile::with_content("long", pseudo_random_bytes(1_000_000));
    for (limit, expected) in [(["--rate", "50pps"], 1), (["--count", "20"], 0)] {
        let stream = ScratchFile::new("long-stream");
        let (receiver, at) = start_receiver("127.0.0.1", &["--json", "--output", stream.path()]);
        let sender = start_sender(at, &[&["--json", "--file", source.path()], &limit[..]].concat());
        if expected == 1 {
            wait_until("data come", || has_data(&stream));
            sender.signal(Signal::INT);
        }
        let ((sent, code), (_, received_code)) = agreeing_summaries(sender, receiver);
        assert_eq!((code, received_code, &sent["lost"]), (expected, 0, &0.into()), "{sent}");
    }
}

#[test]
fn a_receiver_that_cannot_bind_leaves_its_file_unchanged() {
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = ScratchFile::with_content("kept", "precious");
    let busy = format!("udp://{}", other.local_addr().unwrap());
    let output = nocopy_command(&["recv", &busy, "--output", target.path(), "--force"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read(target.path()).unwrap(), b"precious");
}

/// Proves that datagrams over a port, written in its frames or copied into them, longer than a frame, a
/// link's MTU, or neither, arrive as they were sent, and that the ledger says what was copied.
#[test]
fn all_data_arrives_over_a_port() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (address, interface) = (lab.right().ipv4().to_string(), lab.left().interface().to_owned());
    let content = pseudo_random_bytes(100_001);
    let source = ScratchFile::with_content("over-port", &content);
    for (method, size, slices) in [
        ("xdp-udp", "1400", false),
        ("xdp-copy", "1400", true),
        ("xdp-udp", "1600", false),
        ("xdp-udp", "9000", true),
    ] {
        let target = ScratchFile::new("over-port-target");
        let (receiver, at) = lab
            .right()
            .namespace()
            .run(|| start_receiver(&address, &["--json", "--verify", "--output", target.path()]));
        let options = [
            "--json",
            "--method",
            method,
            "--interface",
            &interface,
            "--size",
            size,
            "--file",
            source.path(),
        ];
        let sender = lab.left().namespace().run(|| start_sender(at, &options));
        let ((sent, code), (received, received_code)) = agreeing_summaries(sender, receiver);
        assert_eq!((code, received_code, &sent["verified"]), (0, 0, &true.into()), "{sent}{received}");
        assert!(fs::read(target.path()).unwrap() == content, "{method} {size}");
        let explanation = sent["explanation"].to_string();
        assert!(
            sum_of_evidence_bytes(&sent) >= sent["bytes"].as_u64().unwrap(),
            "every byte is in the ledger: {sent}"
        );
        assert!(
            explanation.contains("chosen by the user") && explanation.contains(&interface),
            "{explanation}"
        );
        assert_eq!(explanation.contains("written in frames"), !slices, "{method} {size}: {explanation}");
        // Longer than the link's MTU of 1,500: the kernel fragments.
        assert_eq!(explanation.contains("too_long"), size != "1400", "{explanation}");
    }
}

/// Datagrams to a group reach all its members, on the named interface.
#[test]
fn multicast_groups_are_joined() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (left, right) = (lab.left(), lab.right());
    let target = "udp://239.1.2.3:9100";
    let receivers = [(); 2].map(|()| {
        right.namespace().run(|| {
            let options =
                ["recv", target, "--raw", "--json", "--count", "5", "--interface", right.interface()];
            RunningNocopy::start(&options)
        })
    });
    // A receiver prints its address after joining.
    let receivers = receivers.map(|mut receiver| {
        let mut errors = BufReader::new(receiver.0.as_mut().unwrap().stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        assert!(line.contains("receiving at udp://239.1.2.3:9100"), "{line}");
        receiver
    });
    for method in ["auto", "xdp-udp"] {
        let count = if method == "auto" { "3" } else { "2" };
        let options = [
            "send",
            target,
            "--raw",
            "--json",
            "--count",
            count,
            "--interface",
            left.interface(),
            "--method",
            method,
        ];
        let sender = left.namespace().run(|| RunningNocopy::start(&options));
        let (sent, code) = sender.wait_for_summary();
        assert_eq!(code, 0, "{sent}");
    }
    for receiver in receivers {
        let (received, code) = receiver.wait_for_summary();
        assert_eq!((code, &received["datagrams"]), (0, &5.into()), "{received}");
    }
}

#[test]
fn a_missing_receiver_is_detected_over_a_port() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let target = format!("udp://{}:9", lab.right().ipv4());
    retry_with_more_seconds(|seconds| {
        let (interface, time) = (lab.left().interface(), format!("{seconds}s"));
        let options = ["--method", "xdp-udp", "--interface", interface, "--connect-timeout", &time];
        let arguments = [&["send", &target], &options[..]].concat();
        let sender = lab.left().namespace().run(|| nocopy_command(&arguments).output().unwrap());
        let said = lossy_text(&sender.stderr);
        assert_eq!((sender.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        is_port_unreachable(&said).then_some(())
    });
}

/// Whether a sender found that its port is closed. If not, it must have got no answer in time.
fn is_port_unreachable(said: &str) -> bool {
    let is_refused = said.contains("port unreachable");
    assert!(is_refused || said.contains("nothing comes back"), "{said}");
    is_refused
}

#[test]
fn datagrams_over_a_veth_pair_are_complete() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let address = lab.right().ipv4().to_string();
    for method in ["auto", "gso", "zerocopy-gso"] {
        let (receiver, at) =
            lab.right().namespace().run(|| start_receiver(&address, &["--json", "--verify"]));
        let sender = lab
            .left()
            .namespace()
            .run(|| start_sender(at, &[&FEW[..], &["--json", "--method", method]].concat()));
        let ((sent, code), (received, _)) = agreeing_summaries(sender, receiver);
        assert_eq!(
            (code, &sent["lost"], &sent["verified"]),
            (0, &0.into(), &true.into()),
            "{sent}{received}"
        );
    }
}

/// In both directions, and unknown values are not reported.
#[test]
fn other_programs_are_peers_of_raw_datagrams() {
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut sender =
        start_sender(other.local_addr().unwrap(), &["--raw", "--stdin", "--json", "--size", "4"]);
    sender.take_input().write_all(b"abcdefg").unwrap();
    let mut buffer = [0; 100];
    for expected in [&b"abcd"[..], b"efg"] {
        let bytes = uninterrupted(|| other.recv(&mut buffer)).unwrap();
        assert_eq!(&buffer[..bytes], expected);
    }
    let (sent, code) = sender.wait_for_summary();
    assert_eq!((code, &sent["datagrams"], &sent["lost"]), (0, &2.into(), &Value::Null), "{sent}");

    let target = ScratchFile::new("raw");
    let (receiver, at) =
        start_receiver("127.0.0.1", &["--raw", "--count", "3", "--json", "--output", target.path()]);
    for words in ["one", "", "two", "three"] {
        other.send_to(words.as_bytes(), at).unwrap();
    }
    let (received, code) = receiver.wait_for_summary();
    assert_eq!(
        (code, &received["ended"], &received["lost"]),
        (0, &"count".into(), &Value::Null),
        "{received}"
    );
    assert_eq!((&received["datagrams"], fs::read(target.path()).unwrap()), (&3.into(), b"onetwo".to_vec()));
}

/// With both families an IPv4 address is printed as such, and a name may have addresses of either.
#[test]
fn a_wildcard_receiver_is_reached_at_each_address() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    for (host, name) in [("127.0.0.1", "127.0.0.1:"), ("[::1]", "[::1]:"), ("localhost", "")] {
        let (receiver, at) = start_receiver("", &["--json"]);
        let target = format!("udp://{host}:{}", at.port());
        let sender = RunningNocopy::start(&[&["send", &target, "--json"], &FEW[..]].concat());
        let (_, (received, code)) = agreeing_summaries(sender, receiver);
        assert_eq!(code, 0, "{received}");
        assert!(received["sender"].as_str().unwrap().starts_with(name), "{received}");
    }
}

#[test]
fn raw_datagrams_can_be_sent_to_a_broadcast_address() {
    let other = UdpSocket::bind("0.0.0.0:0").unwrap();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    let target = format!("udp://127.255.255.255:{}", other.local_addr().unwrap().port());
    let (sent, code) =
        RunningNocopy::start(&["send", &target, "--raw", "--json", "--count", "1"]).wait_for_summary();
    assert_eq!((code, uninterrupted(|| other.recv(&mut [0; 2000])).unwrap()), (0, 1400), "{sent}");
}

#[test]
fn a_receiver_answers_only_its_sender() {
    let (receiver, at) = start_receiver("127.0.0.1", &["--json"]);
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    for bytes in [&b"hello"[..], &[0; 1000], b"nocp\x02\x00"] {
        other.send_to(bytes, at).unwrap();
    }
    let sender = start_sender(at, &[&FEW[..], &["--json"]].concat());
    let (_, (received, code)) = agreeing_summaries(sender, receiver);
    assert_eq!((code, &received["foreign"], &received["lost"]), (0, &3.into(), &0.into()), "{received}");
    other.set_nonblocking(true).unwrap();
    assert!(other.recv(&mut [0; 10]).is_err(), "nothing came back");
}

/// An endless sender and its receiver, after data have arrived.
fn running_transfer(name: &str, receiving: &[&str]) -> (RunningNocopy, RunningNocopy) {
    running_transfer_in_time(name, receiving).expect("the receiver goes on until data come")
}

/// As [`running_transfer`], for a receiver that may end before data arrive; `None` if its time ran out.
fn running_transfer_in_time(name: &str, receiving: &[&str]) -> Option<(RunningNocopy, RunningNocopy)> {
    let stream = ScratchFile::new(name);
    let (mut receiver, at) =
        start_receiver("127.0.0.1", &[&["--json", "--output", stream.path()], receiving].concat());
    let sender = start_sender(at, &["--json", "--rate", "500pps"]);
    wait_until("data, or the end", || receiver.has_ended() || has_data(&stream));
    if !has_data(&stream) {
        let (received, _) = receiver.wait_for_summary();
        assert!(received["ended"] == "duration" || received["ended"] == "timeout", "{received}");
        return None;
    }
    Some((sender, receiver))
}

fn has_data(stream: &ScratchFile) -> bool {
    fs::metadata(stream.path()).unwrap().len() > 0
}

#[test]
fn a_sender_of_a_killed_receiver_ends() {
    let (sender, receiver) = running_transfer("receiver-killed", &[]);
    receiver.signal(Signal::KILL);
    drop(receiver);
    let output = sender.wait_for_end();
    let said = lossy_text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("port unreachable") && said.contains("killed") && said.lines().count() == 1,
        "{said}"
    );
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["ended"], &summary["final"]), (&"failed".into(), &false.into()));
    // It has sent more since the last answer: that is not known to be lost.
    assert_eq!((&summary["lost"], &summary["verified"]), (&0.into(), &Value::Null), "{summary}");
    assert!(summary["errors"]["ECONNREFUSED"].as_u64().unwrap() > 0, "{summary}");
}

#[test]
fn a_receiver_of_a_killed_sender_ends() {
    let (sender, receiver) = retry_with_more_seconds(|seconds| {
        running_transfer_in_time("sender-killed", &["--idle", &format!("{seconds}s")])
    });
    sender.signal(Signal::KILL);
    let (received, code) = receiver.wait_for_summary();
    assert_eq!((code, &received["ended"]), (1, &"timeout".into()), "{received}");
    assert!(
        received["received"]["datagrams"].as_u64().unwrap() > 0 && received["sent"].is_null(),
        "{received}"
    );
}

#[test]
fn an_interrupt_of_one_end_ends_the_other_with_a_summary() {
    let (sender, receiver) = running_transfer("sender-interrupted", &[]);
    sender.signal(Signal::INT);
    let ((sent, code), (received, received_code)) = agreeing_summaries(sender, receiver);
    assert_eq!((&sent["ended"], &received["ended"]), (&"interrupted".into(), &"done".into()));
    assert_eq!((code, received_code), (0, 0), "{sent}{received}");

    let (sender, receiver) = running_transfer("receiver-interrupted", &[]);
    receiver.signal(Signal::TERM);
    let ((sent, _), (received, received_code)) = (sender.wait_for_summary(), receiver.wait_for_summary());
    assert_eq!((&sent["ended"], &received["ended"]), (&"by-receiver".into(), &"interrupted".into()));
    assert_eq!((received_code, &sent["received"]), (0, &received["received"]), "{sent}{received}");
}

#[test]
fn a_receiver_with_a_closed_output_ends_its_sender() {
    transfer::check_closed_receiver_pipe_ends_sender("udp", &["--json", "--rate", "500pps"]);
}

#[test]
fn a_receiver_at_its_count_or_duration_ends_its_sender() {
    for ended in ["count", "duration"] {
        let (sender, receiver) = if ended == "count" {
            running_transfer(ended, &["--count", "20", "--verify"])
        } else {
            retry_with_more_seconds(|seconds| {
                running_transfer_in_time(ended, &["--duration", &format!("{seconds}s"), "--verify"])
            })
        };
        let ((sent, sent_code), (received, code)) = (sender.wait_for_summary(), receiver.wait_for_summary());
        assert_eq!(
            (sent_code, code, &received["ended"], &sent["ended"]),
            (0, 0, &ended.into(), &"by-receiver".into()),
            "{sent}{received}"
        );
        for field in ["received", "lost", "final", "verified"] {
            assert_eq!(sent[field], received[field], "{field}: {sent}{received}");
        }
        assert_eq!((&sent["lost"], &sent["verified"]), (&0.into(), &true.into()), "{sent}");
        assert!(ended == "duration" || received["received"]["datagrams"] == 20, "{received}");
    }
}

#[test]
fn errors_are_one_line_with_a_remedy() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (taken, target) = (nobody.local_addr().unwrap(), ScratchFile::new("exists"));
    fs::write(target.path(), "x").unwrap();
    // No other test is at this address.
    let free = UdpSocket::bind("127.0.0.77:0").unwrap().local_addr().unwrap();
    let (free, busy) = (format!("udp://{free}"), format!("udp://{taken}"));
    transfer::assert_refused_in_one_line(&[
        (
            &["send", &busy, "--connect-timeout", "200ms"][..],
            &["no receiver", "nothing comes back", "nocopy recv", "--raw"][..],
        ),
        (&["send", &free, "--raw"], &["port unreachable", "start"]),
        (&["send", &free, "--size", "40"], &["header", "--raw", "41 to 65507"]),
        (&["send", &free, "--size", "65508"], &["65507"]),
        (&["send", &free, "--file", "/nonexistent"], &["/nonexistent"]),
        (&["send", "udp://127.0.0.1:9", "-6"], &["no IPv6 address"]),
        (&["send", "udp://239.1.1.1:9"], &["multicast", "--raw"]),
        (&["send", &free, "--interface", "lo"], &["--interface", "xdp-udp", "leave it out"]),
        (
            &["send", &free, "--method", "xdp-udp", "--interface", "lo"],
            &["delivers datagrams for this host itself", "another host"],
        ),
        (&["send", &free, "--method", "xdp-copy", "--interface", "nothing0"], &["no such interface"]),
        (&["recv", "udp://239.1.1.1:0"], &["multicast", "--raw"]),
        (&["recv", "udp://:0", "--interface", "lo"], &["multicast", "leave it out"]),
        (&["recv", "udp://239.1.1.1:0", "--raw", "--interface", "nothing0"], &["no such interface"]),
        (&["recv", &busy], &["another program uses it", "port 0"]),
        (&["recv", "udp://192.0.2.1:0"], &["this host has no such address"]),
        (&["recv", "udp://:0", "-o", target.path()], &["exists", "--force"]),
        (&["recv", "udp://:0", "-o", "/nonexistent/file"], &["/nonexistent/file", "directory"]),
    ]);
    retry_with_more_seconds(|seconds| {
        let time = format!("{seconds}s");
        let output = RunningNocopy::start(&["send", &free, "--connect-timeout", &time]).wait_for_end();
        let said = lossy_text(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(["no receiver", "nocopy recv", "--raw"].iter().all(|word| said.contains(word)), "{said}");
        is_port_unreachable(&said).then_some(())
    });
    transfer::assert_refused(&[
        &["send", "udp://localhost"][..],
        &["send", &free, "--flows", "2"],
        &["send", &free, "--method", "xdp-udp"],
        &["send", "lo", "--verify"],
        &["send", &free, "--raw", "--verify"],
        &["send", &free, "--stdin", "--file", "x"],
        &["recv", "lo"],
        &["recv", "udp://:1", "--raw", "--verify"],
    ]);
}

#[test]
fn only_allowed_senders_are_accepted() {
    let target = ScratchFile::new("from");
    let options = ["--raw", "--json", "--from", "127.0.0.2", "--count", "1", "--output", target.path()];
    let (receiver, at, errors) = start_receiver_with_errors("127.0.0.1", &options);
    for (source, words) in [("127.0.0.1", "stranger"), ("127.0.0.2", "friend")] {
        UdpSocket::bind((source, 0)).unwrap().send_to(words.as_bytes(), at).unwrap();
    }
    let (received, code) = receiver.wait_for_summary();
    assert_eq!((code, &received["foreign"]), (0, &1.into()), "{received}");
    assert_eq!(fs::read(target.path()).unwrap(), b"friend");
    assert_eq!(errors.join().unwrap(), "");
    let (receiver, _, errors) = start_receiver_with_errors("127.0.0.1", &["--duration", "1ms"]);
    receiver.wait_for_end();
    assert!(errors.join().unwrap().contains("--from ADDRESS"));
}

/// Proves that a sender that puts each byte into a block of its own does not fill the disk, and that pieces
/// left out are reported as a negative result.
#[test]
fn distant_one_byte_pieces_do_not_fill_the_disk() {
    let target = ScratchFile::new("apart");
    let (receiver, at) = start_receiver("127.0.0.1", &["--json", "--output", target.path()]);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let say = |kind: u8, flags: u8, numbers: [u64; 2], rest: &[u8]| {
        let mut datagram = [&b"nocp\x02"[..], &[kind, 0, flags], b"abcdefgh"].concat();
        numbers.iter().for_each(|number| datagram.extend(number.to_be_bytes()));
        datagram.extend([0; 4]);
        datagram.extend((rest.len() as u32).to_be_bytes());
        datagram.extend(rest);
        let checksum = crc32c::crc32c(&datagram);
        datagram[32..36].copy_from_slice(&checksum.to_be_bytes());
        sender.send_to(&datagram, at).unwrap();
    };
    let is_answered = || sender.recv(&mut [0; 200]).is_ok();
    wait_until("it is answered", || {
        say(1, 1, [0, 0], &[0; 64]);
        is_answered()
    });
    let (pieces, apart) = (20_000, 4096);
    for number in 0..pieces {
        say(0, 1, [number, apart * number], b"x");
        if number % 100 == 0 {
            // So that its buffer does not fill.
            wait_until("it has taken these", || {
                say(1, 1, [0, 0], &[0; 64]);
                is_answered()
            });
        }
    }
    let totals = [pieces, apart * pieces].map(u64::to_be_bytes).concat();
    wait_until("it has said its last word", || {
        say(1, 3, [0, 0], &[&totals[..], &[0; 48]].concat());
        let mut answer = [0; 200];
        sender.recv(&mut answer).is_ok() && answer[7] & 2 != 0
    });
    say(1, 7, [0, 0], &[&totals[..], &[0; 48]].concat());
    let (received, code) = receiver.wait_for_summary();
    assert_eq!((code, &received["lost"]), (1, &0.into()), "{received}");
    assert!(received["output"].as_str().unwrap().contains("left out"), "{received}");
    let disk_bytes = 512 * fs::metadata(target.path()).unwrap().blocks();
    assert!(disk_bytes < 70 << 20, "{disk_bytes} bytes for {pieces}");
}
