//! `nocopy send` as its users meet it, in a private lab: what arrives at the other end is what was asked for.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nocopy::{Mode, Port};
use nocopy_lab::{End, Lab};
use nocopy_proto::IpAddresses;
use nocopy_proto::wire::udp::{Datagram, Integrity};
use nocopy_proto::wire::{ethernet, ipv4, ipv6, vlan};
use serde_json::Value;

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);

const MODES: [&str; 3] = ["xdp-copy-native", "xdp-copy-generic", "packet-ring"];

/// `nocopy send` on the left end.
fn command(lab: &Lab, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    command.args(["send", lab.left().interface()]).args(arguments).stdin(Stdio::null());
    command
}

fn run(lab: &Lab, arguments: &[&str]) -> Output {
    lab.left().namespace().run(|| command(lab, arguments).output().unwrap())
}

/// Runs to a good end, and returns the summary.
fn sent(lab: &Lab, arguments: &[&str]) -> Value {
    let Output { status, stdout, stderr } = run(lab, &[arguments, &["--json"]].concat());
    assert!(status.success(), "{status}: {}{}", text(&stdout), text(&stderr));
    let summary: Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!((&summary["schema"], &summary["ended"]), (&"nocopy.send/1".into(), &"done".into()));
    summary
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A receiver with room for everything a test sends, so that it can be emptied afterwards.
fn receiver(end: &End) -> Port {
    let builder = || {
        Port::builder(end.interface())
            .mode(Mode::XdpCopyNative)
            .frame_count(8192, 64)
            .ring_sizes(8192, 64)
            .multi_buffer(true)
            .promiscuous(true)
            .open()
    };
    end.namespace().run(builder).unwrap()
}

/// All packets that came, but those the kernels send to get to know each other.
fn received(port: &mut Port) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let mut batch = port.receiver().receive_timeout(SECOND / 5).unwrap();
        let before = all.len();
        while let Some(packet) = batch.next_chain() {
            all.push(packet.to_vec());
        }
        if all.len() == before {
            break;
        }
    }
    assert_eq!(port.statistics().unwrap().rx_lost(), 0);
    all.retain(|packet| !is_chatter(packet));
    all
}

/// Neighbour discovery and multicast listener reports.
fn is_chatter(packet: &[u8]) -> bool {
    packet[..2] == [0x33, 0x33]
}

/// A packet of ours, taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    tag: Option<(u16, u8)>,
    source: IpAddr,
    destination: IpAddr,
    ports: (u16, u16),
    payload: Vec<u8>,
    checksum: Integrity,
}

impl Seen {
    fn new(packet: &[u8]) -> Self {
        let frame = ethernet::Frame::parse(packet).unwrap();
        let stack = vlan::Stack::parse(&frame).unwrap();
        let tag = stack.tags().next().map(|(_, tag)| (tag.control.vlan_id(), tag.control.priority()));
        let (addresses, segment): (IpAddresses, &[u8]) =
            if stack.ether_type() == nocopy_proto::EtherType::IPV4 {
                let packet = ipv4::Packet::parse(stack.payload()).unwrap();
                assert!(packet.checksum_is_valid());
                (packet.addresses(), packet.payload())
            } else {
                let packet = ipv6::Packet::parse(stack.payload()).unwrap();
                (packet.addresses(), packet.payload())
            };
        let datagram = Datagram::parse(segment).unwrap();
        Self {
            tag,
            source: addresses.source(),
            destination: addresses.destination(),
            ports: (datagram.source_port(), datagram.destination_port()),
            payload: datagram.payload().to_vec(),
            checksum: datagram.verify_checksum(&addresses).expect("a right checksum"),
        }
    }

    fn number(&self) -> u64 {
        u64::from_be_bytes(self.payload[..8].try_into().unwrap())
    }
}

fn seen(port: &mut Port) -> Vec<Seen> {
    received(port).iter().map(|packet| Seen::new(packet)).collect()
}

/// A file that is gone with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

macro_rules! lab {
    () => {
        match nocopy_lab::lab_or_skip() {
            Some(lab) => lab,
            None => return,
        }
    };
    ($builder:expr) => {
        match $builder.build_or_skip() {
            Some(lab) => lab,
            None => return,
        }
    };
}

/// Proves that in every mode exactly the packets asked for arrive, in order, and that the summary says so.
#[test]
fn in_every_mode_exactly_what_was_asked_for_arrives() {
    for mode in MODES {
        let lab = lab!();
        let mut right = receiver(lab.right());
        let summary = sent(&lab, &["--count", "3000", "--size", "100", "--mode", mode]);
        let packets = received(&mut right);
        assert_eq!(packets.len(), 3000, "{mode}");
        for (number, packet) in packets.iter().enumerate() {
            assert_eq!((packet.len(), &packet[6..12]), (100, &lab.left().mac()[..]), "{mode}");
            let seen = Seen::new(packet);
            assert_eq!((seen.number(), seen.checksum), (number as u64, Integrity::Verified), "{mode}");
            assert_eq!(seen.ports, (49152, 9));
        }
        assert_eq!(summary["mode"], mode.replacen("-", " ", 2));
        assert_eq!(summary["evidence"]["copies"], "copied");
        for field in ["packets", "completed"] {
            assert_eq!(summary[field], 3000, "{summary}");
        }
        assert_eq!((&summary["bytes"], &summary["asked"]["packets"]), (&300_000.into(), &3000.into()));
        let balance = &summary["balance"];
        assert_eq!((&balance["free"], &balance["whole"]), (&balance["total"], &true.into()), "{summary}");
    }
}

#[test]
fn every_field_is_as_asked_for() {
    let lab = lab!();
    let mut right = receiver(lab.right());
    sent(
        &lab,
        &[
            "--count=2",
            "--vlan=5:3",
            "--source=10.0.0.7",
            "--destination=10.0.0.8",
            "--source-port=1000",
            "--destination-port=2000",
            "--source-mac=02:00:00:00:00:01",
            "--destination-mac=02:00:00:00:00:02",
            "--payload=hex:c0FFee",
            "--checksum=none",
        ],
    );
    for packet in received(&mut right) {
        assert_eq!((packet.len(), &packet[..12]), (64, &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..]));
        let expected = Seen {
            tag: Some((5, 3)),
            source: [10, 0, 0, 7].into(),
            destination: [10, 0, 0, 8].into(),
            ports: (1000, 2000),
            payload: [&[0xc0, 0xff, 0xee][..], &[0; 15]].concat(),
            checksum: Integrity::Unprotected,
        };
        assert_eq!(Seen::new(&packet), expected);
    }
}

#[test]
fn flows_are_sent_in_turn_on_ipv6_too() {
    let lab = lab!();
    let mut right = receiver(lab.right());
    sent(&lab, &["--count=12", "--flows=5", "-6", "--source=fd00::ffff", "--source-port=65534"]);
    let seen = seen(&mut right);
    let expected = |number: usize| {
        let flow = number % 5;
        let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, (flow / 2 > 0).into(), [0xffff, 0, 1][flow / 2]);
        (number as u64, IpAddr::from(address), 65534 + (flow % 2) as u16)
    };
    let came: Vec<_> = seen.iter().map(|seen| (seen.number(), seen.source, seen.ports.0)).collect();
    assert_eq!(came, (0..12).map(expected).collect::<Vec<_>>());
    assert!(seen.iter().all(|seen| seen.checksum == Integrity::Verified));
    assert_eq!(seen[0].destination, "2001:2::2".parse::<IpAddr>().unwrap());
}

#[test]
fn payloads_are_text_files_or_zeros() {
    let lab = lab!();
    let mut right = receiver(lab.right());
    let content: Vec<u8> = (0..1000).map(|place| (place * 7) as u8).collect();
    let file = Scratch::new("payload", &content);
    let named = format!("--payload=file:{}", file.path());
    for (argument, expected) in [
        ("--payload=text:what: ever", [&b"what: ever"[..], &[0; 12]].concat()),
        ("--payload=zeros", vec![0; 22]),
        (&named, content.clone()),
    ] {
        sent(&lab, &["--count=1", argument]);
        assert_eq!(seen(&mut right)[0].payload, expected, "{argument}");
    }
}

/// Proves that a checksum left to others arrives complete, and that who cannot do it says so.
#[test]
fn a_checksum_left_to_the_device_arrives_complete_or_is_refused() {
    let lab = lab!();
    let mut right = receiver(lab.right());
    for ip in ["--ipv4", "--ipv6"] {
        sent(
            &lab,
            &["--count=100", "--checksum=device", "--flows=3", "--size=101", "--mode=xdp-copy-native", ip],
        );
        let seen = seen(&mut right);
        assert_eq!(seen.len(), 100);
        assert!(seen.iter().all(|seen| seen.checksum == Integrity::Verified), "{ip}");
    }
    let refused = run(&lab, &["--count=1", "--checksum=device", "--mode=packet-ring"]);
    assert_error(&refused, &["cannot leave checksums to nc0", "packet ring", "--checksum computed"]);
}

#[test]
fn long_frames_go_as_far_as_the_mtu() {
    for mode in MODES {
        let lab = lab!(Lab::builder().mtu(9000));
        let mut right = receiver(lab.right());
        for size in ["4000", "9014"] {
            let summary = sent(&lab, &["--count=50", "--size", size, "--mode", mode]);
            assert_eq!(summary["completed"], 50, "{mode}");
            let packets = received(&mut right);
            assert_eq!(packets.len(), 50, "{mode} {size}");
            for (number, packet) in packets.iter().enumerate() {
                assert_eq!(packet.len(), size.parse::<usize>().unwrap());
                let seen = Seen::new(packet);
                assert_eq!((seen.number(), seen.checksum), (number as u64, Integrity::Verified), "{mode}");
            }
        }
        assert_error(&run(&lab, &["--size=9015"]), &["9015", "nc0", "MTU of 9000", "9014"]);
        assert_eq!(sent(&lab, &["--count=1", "--size=9018", "--vlan=7", "--mode", mode])["packets"], 1);
    }
}

#[test]
fn the_kernel_resends_one_frame() {
    let lab = lab!(Lab::builder().gro_right(true));
    let mut right = receiver(lab.right());
    let arguments = ["--generator=kernel", "--payload=text:again", "--size=70", "--vlan=9"];
    let summary = sent(&lab, &[&["--count=1000", "--rate=100kpps"], &arguments[..]].concat());
    let packets = received(&mut right);
    assert_eq!((packets.len(), &summary["packets"]), (1000, &1000.into()));
    assert!(packets.iter().all(|packet| *packet == packets[0] && packet.len() == 70));
    assert_eq!(
        (&Seen::new(&packets[0]).payload[..5], Seen::new(&packets[0]).tag),
        (&b"again"[..], Some((9, 0)))
    );
    assert_eq!(
        (&summary["mode"], &summary["evidence"]["copies"]),
        (&"kernel generator".into(), &"unknown".into())
    );
    assert!(summary["completed"].is_null(), "the kernel does not tell");
    for (option, named) in [
        ("--flows=2", "--flows"),
        ("--payload=sequence", "--payload"),
        ("--checksum=device", "--checksum"),
        ("--mode=packet-ring", "--mode"),
        ("--queue=1", "--queue"),
    ] {
        let refused = run(&lab, &["--count=1", "--generator=kernel", option]);
        assert_error(&refused, &["the kernel's generator cannot", named]);
    }
}

/// Proves that packets which veth throws away unseen, because nobody takes redirected frames there, are said to be lost.
#[test]
fn what_nobody_takes_from_the_kernels_generator_is_counted() {
    let lab = lab!();
    let output = run(&lab, &["--generator=kernel", "--count=1000", "--json"]);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &summary["packets"]), (Some(1), &1000.into()), "{summary}");
    assert!(summary["dropped"]["not_taken"].as_u64().unwrap() > 900, "{summary}");
}

fn assert_error(output: &Output, words: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert_eq!(message.lines().count(), 1, "one line: {message}");
    assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
}
