//! `nocopy send` as users run it, in a private lab: exactly what was asked for arrives at the other end.

use nocopy_lab::patience::PATIENCE;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::process_state::{retry_with_more_seconds, sleep_count, wait_until};
use crate::recording::{ETHERNET, RecordedPacket, pcap_file, pcapng_file};
use crate::scratch::ScratchFile;
use crate::signal_handlers::wait_for_signal_handlers;
use nocopy::{Mode, Port};
use nocopy_lab::{End, Lab};
use nocopy_proto::IpAddresses;
use nocopy_proto::wire::udp::{ChecksumStatus, Datagram};
use nocopy_proto::wire::{ethernet, ipv4, ipv6, vlan};
use serde_json::Value;

const SECOND: Duration = Duration::from_secs(1);
const MODES: [&str; 3] = ["xdp-copy-native", "xdp-copy-generic", "packet-ring"];

/// `nocopy send` on the left end.
fn send_command(lab: &Lab, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    command.args(["send", lab.left().interface()]).args(arguments).stdin(Stdio::null());
    command
}

pub(crate) fn run_send(lab: &Lab, arguments: &[&str]) -> Output {
    lab.left().namespace().run(|| send_command(lab, arguments).output().unwrap())
}

/// Runs to a good end, and returns the summary.
pub(crate) fn send_and_summarize(lab: &Lab, arguments: &[&str]) -> Value {
    let Output { status, stdout, stderr } = run_send(lab, &[arguments, &["--json"]].concat());
    assert!(status.success(), "{status}: {}{}", utf8_text(&stdout), utf8_text(&stderr));
    let summary: Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!((&summary["schema"], &summary["ended"]), (&"nocopy.send/2".into(), &"done".into()));
    summary
}

pub(crate) fn utf8_text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A receiver with room for everything a test sends, so that it can be emptied afterwards.
pub(crate) fn open_receiver(end: &End) -> Port {
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

/// That many packets, or more if more arrive, without those that the kernels exchange to resolve each other.
pub(crate) fn receive_packets(port: &mut Port, count: usize) -> Vec<Vec<u8>> {
    let (mut all, give_up) = (Vec::new(), Instant::now() + PATIENCE);
    loop {
        let (before, is_over) = (all.len(), all.len() >= count || Instant::now() > give_up);
        let mut batch = port.receiver().receive_timeout(SECOND / 10).unwrap();
        while let Some(packet) = batch.next_chain() {
            all.push(packet.to_vec());
        }
        drop(batch);
        all.retain(|packet| !is_background_traffic(packet));
        if is_over && all.len() == before {
            break;
        }
    }
    assert_eq!(port.receiver().stats().dropped, 0);
    all
}

/// Neighbour discovery and multicast listener reports.
fn is_background_traffic(packet: &[u8]) -> bool {
    packet[..2] == [0x33, 0x33]
}

/// A packet that nocopy sent, parsed.
#[derive(Debug, PartialEq, Eq)]
struct ParsedPacket {
    tag: Option<(u16, u8)>,
    source: IpAddr,
    destination: IpAddr,
    ports: (u16, u16),
    payload: Vec<u8>,
    checksum: ChecksumStatus,
}

impl ParsedPacket {
    fn new(packet: &[u8]) -> Self {
        let frame = ethernet::Frame::parse(packet).unwrap();
        let stack = vlan::TagStack::parse(&frame).unwrap();
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

    fn sequence_number(&self) -> u64 {
        u64::from_be_bytes(self.payload[..8].try_into().unwrap())
    }
}

fn parsed_packets(port: &mut Port, count: usize) -> Vec<ParsedPacket> {
    receive_packets(port, count).iter().map(|packet| ParsedPacket::new(packet)).collect()
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

#[test]
fn in_every_mode_exactly_the_requested_packets_arrive() {
    for mode in MODES {
        let lab = lab!();
        let mut right = open_receiver(lab.right());
        let summary = send_and_summarize(&lab, &["--count", "3000", "--size", "100", "--mode", mode]);
        let packets = receive_packets(&mut right, 3000);
        assert_eq!(packets.len(), 3000, "{mode}");
        for (number, packet) in packets.iter().enumerate() {
            assert_eq!((packet.len(), &packet[6..12]), (100, &lab.left().mac()[..]), "{mode}");
            let parsed = ParsedPacket::new(packet);
            assert_eq!(
                (parsed.sequence_number(), parsed.checksum),
                (number as u64, ChecksumStatus::Verified),
                "{mode}"
            );
            assert_eq!(parsed.ports, (49152, 9));
        }
        assert_eq!(summary["mode"], mode.replacen("-", " ", 2));
        assert_eq!(summary["evidence"]["copies"], "copied");
        for field in ["packets", "completed"] {
            assert_eq!(summary[field], 3000, "{summary}");
        }
        assert_eq!((&summary["bytes"], &summary["requested"]["packets"]), (&300_000.into(), &3000.into()));
        let balance = &summary["balance"];
        assert_eq!((&balance["free"], &balance["balanced"]), (&balance["total"], &true.into()), "{summary}");
    }
}

#[test]
fn every_field_has_the_requested_value() {
    let lab = lab!();
    let mut right = open_receiver(lab.right());
    send_and_summarize(
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
    let packets = receive_packets(&mut right, 2);
    assert_eq!(packets.len(), 2);
    for packet in packets {
        assert_eq!((packet.len(), &packet[..12]), (64, &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..]));
        let expected = ParsedPacket {
            tag: Some((5, 3)),
            source: [10, 0, 0, 7].into(),
            destination: [10, 0, 0, 8].into(),
            ports: (1000, 2000),
            payload: [&[0xc0, 0xff, 0xee][..], &[0; 15]].concat(),
            checksum: ChecksumStatus::Unprotected,
        };
        assert_eq!(ParsedPacket::new(&packet), expected);
    }
}

#[test]
fn flows_alternate_over_ipv6() {
    let lab = lab!();
    let mut right = open_receiver(lab.right());
    send_and_summarize(
        &lab,
        &["--count=12", "--flows=5", "-6", "--source=fd00::ffff", "--source-port=65534"],
    );
    let parsed = parsed_packets(&mut right, 12);
    let expected = |number: usize| {
        let flow = number % 5;
        let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, (flow / 2 > 0).into(), [0xffff, 0, 1][flow / 2]);
        (number as u64, IpAddr::from(address), 65534 + (flow % 2) as u16)
    };
    let came: Vec<_> =
        parsed.iter().map(|parsed| (parsed.sequence_number(), parsed.source, parsed.ports.0)).collect();
    assert_eq!(came, (0..12).map(expected).collect::<Vec<_>>());
    assert!(parsed.iter().all(|parsed| parsed.checksum == ChecksumStatus::Verified));
    assert_eq!(parsed[0].destination, "2001:2::2".parse::<IpAddr>().unwrap());
}

#[test]
fn payloads_are_text_files_or_zeros() {
    let lab = lab!();
    let mut right = open_receiver(lab.right());
    let content: Vec<u8> = (0..1000).map(|place| (place * 7) as u8).collect();
    let file = ScratchFile::with_content("payload", &content);
    let named = format!("--payload=file:{}", file.path());
    for (argument, expected) in [
        ("--payload=text:what: ever", [&b"what: ever"[..], &[0; 12]].concat()),
        ("--payload=zeros", vec![0; 22]),
        (&named, content.clone()),
    ] {
        send_and_summarize(&lab, &["--count=1", argument]);
        assert_eq!(parsed_packets(&mut right, 1)[0].payload, expected, "{argument}");
    }
}

#[test]
fn an_offloaded_checksum_is_complete_or_refused() {
    let lab = lab!();
    let mut right = open_receiver(lab.right());
    for ip in ["--ipv4", "--ipv6"] {
        send_and_summarize(
            &lab,
            &["--count=100", "--checksum=device", "--flows=3", "--size=101", "--mode=xdp-copy-native", ip],
        );
        let parsed = parsed_packets(&mut right, 100);
        assert_eq!(parsed.len(), 100);
        assert!(parsed.iter().all(|parsed| parsed.checksum == ChecksumStatus::Verified), "{ip}");
    }
    let refused = run_send(&lab, &["--count=1", "--checksum=device", "--mode=packet-ring"]);
    assert_one_line_error(
        &refused,
        &[
            "nc0: cannot compute checksums; mode 'packet ring' has none; do it in software, or open the port in another mode; use --checksum computed",
        ],
    );
}

#[test]
fn frames_up_to_the_mtu_are_sent() {
    for mode in MODES {
        let lab = lab!(Lab::builder().mtu(9000));
        let mut right = open_receiver(lab.right());
        for size in ["4000", "9014"] {
            let summary = send_and_summarize(&lab, &["--count=50", "--size", size, "--mode", mode]);
            assert_eq!(summary["completed"], 50, "{mode}");
            let packets = receive_packets(&mut right, 50);
            assert_eq!(packets.len(), 50, "{mode} {size}");
            for (number, packet) in packets.iter().enumerate() {
                assert_eq!(packet.len(), size.parse::<usize>().unwrap());
                let parsed = ParsedPacket::new(packet);
                assert_eq!(
                    (parsed.sequence_number(), parsed.checksum),
                    (number as u64, ChecksumStatus::Verified),
                    "{mode}"
                );
            }
        }
        assert_one_line_error(&run_send(&lab, &["--size=9015"]), &["9015", "nc0", "MTU of 9000", "9014"]);
        assert_eq!(
            send_and_summarize(&lab, &["--count=1", "--size=9018", "--vlan=7", "--mode", mode])["packets"],
            1
        );
    }
}

#[test]
fn the_kernels_generator_resends_one_frame() {
    let lab = lab!(Lab::builder().gro_right(true));
    let mut right = open_receiver(lab.right());
    let arguments = ["--generator=kernel", "--payload=text:again", "--size=70", "--vlan=9"];
    let summary = send_and_summarize(&lab, &[&["--count=1000", "--rate=100kpps"], &arguments[..]].concat());
    let packets = receive_packets(&mut right, 1000);
    assert_eq!((packets.len(), &summary["packets"]), (1000, &1000.into()));
    assert!(packets.iter().all(|packet| *packet == packets[0] && packet.len() == 70));
    assert_eq!(
        (&ParsedPacket::new(&packets[0]).payload[..5], ParsedPacket::new(&packets[0]).tag),
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
        let refused = run_send(&lab, &["--count=1", "--generator=kernel", option]);
        assert_one_line_error(&refused, &["not possible with --generator kernel", named]);
    }
}

/// veth drops redirected frames if the peer has no XDP program; they are reported as lost.
#[test]
fn frames_of_the_kernels_generator_not_taken_are_counted() {
    let lab = lab!();
    let output = run_send(&lab, &["--generator=kernel", "--count=1000", "--json"]);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &summary["packets"]), (Some(1), &1000.into()), "{summary}");
    assert!(summary["dropped"]["not_sent_by_kernel"].as_u64().unwrap() > 900, "{summary}");
}

/// Frames of many lengths, numbered; EtherType for experiments.
fn numbered_packets(count: u32) -> Vec<RecordedPacket> {
    let frame = |number: u32| {
        let bytes = 60 + number as usize * 101 % 1455;
        let mut frame: Vec<u8> = (0..bytes).map(|place| (number as usize + place) as u8).collect();
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame[14..18].copy_from_slice(&number.to_be_bytes());
        frame
    };
    let start_ns = 1_700_000_000_000_000_000;
    (0..count)
        .map(|number| RecordedPacket::new(start_ns + u64::from(number) * 10_000, frame(number)))
        .collect()
}

fn bytes_of_packets(packets: &[RecordedPacket]) -> Vec<Vec<u8>> {
    packets.iter().map(|packet| packet.bytes.clone()).collect()
}

/// Unchanged and in order, from every kind of file and in every mode.
#[test]
fn a_recording_arrives_byte_for_byte() {
    let lab = lab!();
    let mut right = open_receiver(lab.right());
    let mut packets = numbered_packets(500);
    packets.iter_mut().zip(0..).for_each(|(packet, number)| packet.interface = number % 2);
    let files = [
        pcap_file(false, false, 1, &packets),
        pcap_file(true, true, 1, &packets),
        pcapng_file(false, &[ETHERNET; 2], &packets),
        pcapng_file(true, &[ETHERNET; 2], &packets),
    ];
    for (file, mode) in files.iter().zip(MODES.iter().cycle()) {
        let file = ScratchFile::with_content("whole", file);
        for how in
            [&["--timing=recorded"][..], &["--speed=0.5x"], &["--timing=flat-out"], &["--rate=200kpps"]]
        {
            let summary =
                send_and_summarize(&lab, &[&["--replay", file.path(), "--mode", mode], how].concat());
            assert!(
                receive_packets(&mut right, packets.len()) == bytes_of_packets(&packets),
                "{mode} {how:?}"
            );
            assert_eq!((&summary["packets"], &summary["replay"]["rounds"]), (&500.into(), &1.into()));
        }
    }
}

#[test]
fn a_recording_is_sent_up_to_loop_and_count() {
    let lab = lab!();
    let mut right = open_receiver(lab.right());
    let packets = numbered_packets(100);
    let file = ScratchFile::with_content("loop", pcap_file(false, true, 1, &packets));
    let replayed = |arguments: &[&str]| {
        send_and_summarize(&lab, &[&["--replay", file.path(), "--timing=flat-out"], arguments].concat())
    };
    assert_eq!(replayed(&["--loop=3"])["replay"]["rounds"], 3);
    assert!(receive_packets(&mut right, 300) == vec![bytes_of_packets(&packets); 3].concat());
    replayed(&["--loop=forever", "--count=250"]);
    assert!(receive_packets(&mut right, 250) == vec![bytes_of_packets(&packets); 3].concat()[..250]);
    for (count, rounds) in [("--count=7", 0), ("--count=100", 1)] {
        assert_eq!(replayed(&[count])["replay"]["rounds"], rounds, "{count}");
    }
    assert!(
        receive_packets(&mut right, 107)
            == [&bytes_of_packets(&packets)[..7], &bytes_of_packets(&packets)].concat()
    );
    let too_few = run_send(&lab, &["--replay", file.path(), "--count=101", "--json"]);
    assert_eq!(too_few.status.code(), Some(1), "fewer packets than asked for");
}

#[test]
fn packets_of_a_recording_not_sent_are_counted() {
    let lab = lab!();
    let mut right = open_receiver(lab.right());
    let mut packets = numbered_packets(6);
    packets[1].bytes.resize(1515, 0);
    packets[2].bytes.truncate(13);
    packets[3].bytes.clear();
    packets[4].cut_bytes = 1000;
    let mut tagged = packets[5].bytes.clone();
    tagged.resize(1518, 0);
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    packets[5].bytes = tagged;
    let file = ScratchFile::with_content("misfits", pcapng_file(true, &[ETHERNET], &packets));
    let output = run_send(&lab, &["--replay", file.path(), "--json"]);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &summary["packets"]), (Some(1), &3.into()), "{summary}");
    assert_eq!(summary["not_sent"], serde_json::json!({ "too_long": 1, "too_short": 2 }));
    assert_eq!(summary["replay"]["truncated"], 1);
    assert!(
        receive_packets(&mut right, 3)
            == bytes_of_packets(&[packets[0].clone(), packets[4].clone(), packets[5].clone()])
    );
    let table = utf8_text(&run_send(&lab, &["--replay", file.path()]).stdout);
    assert!(
        table.contains("too_long 1, too_short 2") && table.contains("1 packets truncated when recorded"),
        "{table}"
    );
}

/// If the beginning is damaged nothing is sent, otherwise the packets before the damage.
#[test]
fn errors_of_damaged_recordings_name_the_position() {
    let lab = lab!();
    let mut right = open_receiver(lab.right());
    let packets = numbered_packets(10);
    let (whole, blocks) = (pcap_file(false, false, 1, &packets), pcapng_file(false, &[ETHERNET], &packets));
    let last = whole.len() - packets[9].bytes.len() - 16;
    let mut huge = whole.clone();
    huge[last + 8..last + 12].copy_from_slice(&[0xff; 4]);
    let mut torn = blocks.clone();
    let end = torn.len();
    torn[end - 4..].fill(0xff);
    let cases: [(&str, &[u8], usize, &[&str]); 7] = [
        ("empty", b"", 0, &["it is empty", "record it again"]),
        ("text", b"not a capture file at all", 0, &["it is no capture file", "6e 6f 74 20"]),
        ("header", &whole[..24], 0, &["it holds no packets"]),
        (
            "link",
            &pcap_file(false, false, 105, &packets),
            0,
            &["link type 105 (ieee802_11)", "record on an Ethernet"],
        ),
        ("truncated", &whole[..whole.len() - 5], 9, &["ends inside packet 10", "5 bytes short"]),
        ("huge", &huge, 9, &["packet 10", "claims 4294967295 bytes"]),
        ("corrupt", &torn, 9, &["packet 10", "two lengths of a block differ"]),
    ];
    for (name, bytes, count, words) in cases {
        let file = ScratchFile::with_content(name, bytes);
        let output = run_send(&lab, &["--replay", file.path(), "--timing=flat-out", "--json"]);
        assert_one_line_error(&output, &[&["cannot be replayed", file.path()], words].concat());
        assert!(receive_packets(&mut right, count) == bytes_of_packets(&packets[..count]), "{name}");
        // The summary includes what was sent before the damage.
        assert_eq!(output.stdout.is_empty(), count == 0, "{name}");
        if count > 0 {
            let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!((&summary["packets"], &summary["ended"]), (&9.into(), &"failed".into()));
        }
    }
    assert_one_line_error(
        &run_send(&lab, &["--replay=/nonexistent"]),
        &["/nonexistent: cannot be replayed", "name a file"],
    );
}

/// A run in the background, ended with the test.
struct RunningSender(Child);

impl RunningSender {
    fn start(lab: &Lab, arguments: &[&str]) -> Self {
        let spawn =
            || send_command(lab, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self(lab.left().namespace().run(spawn))
    }

    fn start_with_pipe(lab: &Lab, arguments: &[&str]) -> Self {
        Self::start_with_input(lab, Stdio::piped(), arguments)
    }

    fn start_with_input(lab: &Lab, input: impl Into<Stdio>, arguments: &[&str]) -> Self {
        let mut command = send_command(lab, &[&["--replay=/dev/stdin"], arguments].concat());
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(lab.left().namespace().run(|| command.spawn().unwrap()))
    }

    /// Waits until it catches the signal of Ctrl-C.
    fn wait_for_signal_handlers(&self) {
        wait_for_signal_handlers(&self.0, PATIENCE);
    }

    fn interrupt(&self) {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    }

    fn wait_for_end(&mut self) -> Output {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.0.stdout.take().map(|mut pipe| pipe.read_to_end(&mut stdout).unwrap());
        self.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        Output { status: self.0.wait().unwrap(), stdout, stderr }
    }
}

impl Drop for RunningSender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for_packets(port: &mut Port, count: usize) -> usize {
    let (mut came, deadline) = (0, Instant::now() + PATIENCE);
    while came < count {
        assert!(Instant::now() < deadline, "only {came} of {count} packets came");
        came += count_received_packets(port, SECOND / 10);
    }
    came
}

/// Receives what arrives within that time, and counts it; without packets of the kernels.
fn count_received_packets(port: &mut Port, timeout: Duration) -> usize {
    let mut batch = port.receiver().receive_timeout(timeout).unwrap();
    let mut count = 0;
    while let Some(packet) = batch.next_chain() {
        count += usize::from(!is_background_traffic(&packet.to_vec()));
    }
    count
}

/// The summary contains exactly what arrived, and every frame is free. Sent slowly, so that there is
/// room for everything while this thread stalls.
#[test]
fn an_interrupt_ends_a_sender_with_a_summary() {
    let lab = lab!();
    let mut right = open_receiver(lab.right());
    for (more, code) in [(&[][..], 0), (&["--count=1M"], 1), (&["--duration=1h"], 1)] {
        let mut running = RunningSender::start(&lab, &[&["--rate=1kpps", "--json"], more].concat());
        let came = wait_for_packets(&mut right, 100);
        running.interrupt();
        let output = running.wait_for_end();
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        let sent = summary["packets"].as_u64().unwrap() as usize;
        let came = came + receive_packets(&mut right, sent.saturating_sub(came)).len();
        assert_eq!(
            (output.status.code(), &summary["ended"]),
            (Some(code), &"interrupted".into()),
            "{summary}"
        );
        assert_eq!((&summary["packets"], &summary["completed"]), (&came.into(), &came.into()));
        assert_eq!(summary["balance"]["free"], summary["balance"]["total"]);
    }
}

/// Proves that packets of a pipe go out while it stays open, and that neither Ctrl-C nor the end of time
/// waits for its end.
#[test]
fn packets_of_a_pausing_pipe_are_sent_without_delay() {
    let lab = lab!();
    let mut right = open_receiver(lab.right());
    let packets = numbered_packets(5);
    let file = pcap_file(false, true, 1, &packets);
    // The input ends with half of a packet's header.
    let pieces = [&file[..], &[0; 7]].concat();
    let assert_ended = |output: Output, ended: &str| {
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["ended"], ended, "{summary}");
        summary["packets"].as_u64().unwrap()
    };
    let mut running = RunningSender::start_with_pipe(&lab, &["--json"]);
    let mut pipe = running.0.stdin.take().unwrap();
    pipe.write_all(&pieces).unwrap();
    assert_eq!(wait_for_packets(&mut right, 5), 5);
    running.interrupt();
    assert_eq!(assert_ended(running.wait_for_end(), "interrupted"), 5);
    drop(pipe);
    retry_with_more_seconds(|seconds| {
        let (reader, mut pipe) = std::io::pipe().unwrap();
        pipe.write_all(&pieces).unwrap();
        let duration = format!("--duration={seconds}s");
        let mut running =
            RunningSender::start_with_input(&lab, reader, &[&duration, "--timing=flat-out", "--json"]);
        let sent = assert_ended(running.wait_for_end(), "done");
        assert_eq!(receive_packets(&mut right, sent as usize).len() as u64, sent);
        (sent == 5).then_some(())
    });
    let silent = RunningSender::start_with_pipe(&lab, &[]);
    silent.wait_for_signal_handlers();
    silent.interrupt();
    assert_one_line_error(
        &{ silent }.wait_for_end(),
        &["/dev/stdin", "no packet was read before the interrupt"],
    );
    let mut twice = RunningSender::start_with_pipe(&lab, &["--loop=2"]);
    let _ = twice.0.stdin.take().unwrap().write_all(&file);
    assert_one_line_error(&twice.wait_for_end(), &["/dev/stdin", "cannot be read twice", "--loop"]);
    assert!(receive_packets(&mut right, 0).is_empty(), "nothing of what cannot be sent as asked");
}

/// Not in the middle of a call, whose effect would be unknown.
#[test]
fn an_interrupt_ends_the_kernels_generator() {
    let lab = lab!(Lab::builder().gro_right(true));
    let mut right = open_receiver(lab.right());
    let mut running = RunningSender::start(&lab, &["--generator=kernel", "--json"]);
    wait_for_packets(&mut right, 1000);
    running.interrupt();
    let output = running.wait_for_end();
    assert_eq!(utf8_text(&output.stderr), "");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["ended"], "interrupted", "{summary}");
    assert!(summary["packets"].as_u64().unwrap() >= 1000, "{summary}");
}

/// A closed output pipe does not change the exit code.
#[test]
fn exit_codes_survive_a_closed_output() {
    let lab = lab!();
    for (break_it, code, words) in [(false, 1, ""), (true, 2, "the interface ")] {
        let mut right = open_receiver(lab.right());
        let mut running = RunningSender::start(&lab, &["--rate=10kpps", "--count=1M"]);
        drop(running.0.stdout.take());
        wait_for_packets(&mut right, 100);
        match break_it {
            true => lab.delete_pair().unwrap(),
            false => running.interrupt(),
        }
        let Output { status, stderr, .. } = running.wait_for_end();
        assert_eq!(status.code(), Some(code), "{}", utf8_text(&stderr));
        assert!(utf8_text(&stderr).contains(words) && utf8_text(&stderr).is_empty() == words.is_empty());
    }
}

/// It sleeps until the next packet, and Ctrl-C wakes it.
#[test]
fn a_slow_sender_sleeps() {
    const SLEEPS: u64 = 25;
    let lab = lab!();
    let mut right = open_receiver(lab.right());
    let mut running = RunningSender::start(&lab, &["--rate=2pps"]);
    wait_for_packets(&mut right, 1);
    let (id, start) = (running.0.id(), Instant::now());
    let before = sleep_count(id);
    // One that looks at the clock all the time never sleeps.
    wait_until("it sleeps again and again", || sleep_count(id) >= before + SLEEPS);
    // It sleeps 50 ms at a time: 1.25 s in all. One that sleeps a little at a time is there sooner.
    let slept = start.elapsed();
    assert!(slept >= Duration::from_millis(500), "{SLEEPS} sleeps within {slept:?}");
    running.interrupt();
    let table = utf8_text(&running.wait_for_end().stdout);
    for words in
        ["handed over", "interrupted", "completed", "only the receiver knows", "balance", "requested"]
    {
        assert!(table.contains(words), "{words}: {table}");
    }
}

#[test]
fn the_duration_ends_a_sender_and_a_missed_rate_is_reported() {
    let lab = lab!();
    send_and_summarize(&lab, &["--duration=200ms"]);
    let output = run_send(&lab, &["--duration=200ms", "--rate=10kpps", "--json"]);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    // After a stall some are missing, which is reported.
    assert!(summary["packets"] == 2000 || summary["behind_seconds"].as_f64().unwrap() > 0.0, "{summary}");
    let output = run_send(&lab, &["--duration=300ms", "--rate=500Mpps", "--json"]);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &summary["rate_reached"]), (Some(1), &false.into()), "{summary}");
    assert!(summary["behind_seconds"].as_f64().unwrap() > 0.0);
    let at_once = [RecordedPacket::new(0, vec![0; 60]), RecordedPacket::new(500_000_000, vec![0; 60])];
    let file = ScratchFile::with_content("gap", pcap_file(false, false, 1, &at_once));
    let summary = send_and_summarize(&lab, &["--replay", file.path()]);
    let rate = summary["packets_per_second"].as_f64().unwrap();
    // By how much the first packet was late the gap is shorter; without one the rate would be thousands.
    assert!(rate > 0.0 && rate <= 4.0, "one gap of half a second: {summary}");
    let table = utf8_text(&run_send(&lab, &["--count=2", "--rate=2.5pps"]).stdout);
    // If the machine stalled at the end of a gap, that is longer, and reported.
    assert!(["reached", "NOT reached"].iter().any(|word| table.contains(&format!("2.50 packets/s, {word}"))));
    let table = utf8_text(&run_send(&lab, &["--duration=300ms", "--rate=500Mpps"]).stdout);
    assert!(
        table.contains("500 M packets/s, NOT reached") && table.contains("of the schedule skipped"),
        "{table}"
    );
}

#[test]
fn a_removed_interface_ends_a_sender_with_its_error() {
    for mode in MODES {
        let lab = lab!();
        let mut right = open_receiver(lab.right());
        let mut running = RunningSender::start(&lab, &["--rate=10kpps", "--json", "--mode", mode]);
        wait_for_packets(&mut right, 100);
        drop(right);
        lab.delete_pair().unwrap();
        let output = running.wait_for_end();
        assert_one_line_error(&output, &["nc0 queue 0", "the interface was removed"]);
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&summary["ended"], &summary["balance"]["balanced"]),
            (&"failed".into(), &true.into()),
            "{mode}"
        );
    }
}

#[test]
fn an_interface_that_is_down_delays_a_sender() {
    for mode in MODES {
        let lab = lab!();
        let mut right = open_receiver(lab.right());
        let mut running = RunningSender::start(&lab, &["--rate=1kpps", "--json", "--mode", mode]);
        wait_for_packets(&mut right, 100);
        lab.left().set_down().unwrap();
        let before = sleep_count(running.0.id());
        wait_until("it waits", || sleep_count(running.0.id()) >= before + 100);
        lab.left().bring_interface_up().unwrap();
        lab.wait_for_carrier().unwrap();
        wait_for_packets(&mut right, 1000);
        lab.left().set_down().unwrap();
        let before = sleep_count(running.0.id());
        wait_until("it waits", || sleep_count(running.0.id()) >= before + 100);
        running.interrupt();
        let output = running.wait_for_end();
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &summary["ended"]), (Some(1), &"interrupted".into()), "{summary}");
        let count = |field: &Value| field.as_u64().unwrap();
        let left = count(&summary["packets"]) - count(&summary["completed"]);
        assert!(left > 0 && summary["dropped"]["still_queued"] == left, "{mode}: {summary}");
    }
}

#[test]
fn errors_of_send_are_one_line() {
    let lab = lab!();
    for (arguments, words) in [
        (&["--size=41"][..], &["41 B are too short", "42"][..]),
        (&["--size=1515"], &["1515", "MTU of 1500", "1514"]),
        (&["--size=70", "--payload=text:0123456789abcdef0123456789abcdef"], &["too short", "74"]),
        (&["--source=10.0.0.1", "--destination=fd00::1"], &["one is IPv4, the other IPv6"]),
        (&["-4", "--source=fd00::1"], &["fd00::1: not an IPv4 address"]),
        (&["-6", "--checksum=none"], &["IPv6 packets need a UDP checksum"]),
        (&["--payload=file:/nonexistent"], &["/nonexistent: cannot be read (ENOENT)"]),
        (&["--payload=file:/dev/zero"], &["/dev/zero: too long", "up to 65527 bytes"]),
        (&["--mode=xdp-zero-copy"], &["nc0 queue 0", "xdp zero-copy"]),
        (&["--queue=1"], &["nc0 queue 1", "the interface has 1, counted from 0"]),
    ] {
        assert_one_line_error(&run_send(&lab, arguments), words);
    }
    for name in ["nc-none", "longer-than-any-name"] {
        let mut elsewhere = Command::new(env!("CARGO_BIN_EXE_nocopy"));
        assert_one_line_error(
            &elsewhere.args(["send", name]).output().unwrap(),
            &[name, "no such interface"],
        );
    }
}

#[test]
fn invalid_arguments_are_refused() {
    for arguments in [
        &["--count=0"][..],
        &["--rate=fast"],
        &["--flows=0"],
        &["--vlan=4096"],
        &["--vlan=1:8"],
        &["--payload=hex:abc"],
        &["--payload=other"],
        &["-4", "-6"],
        &["--loop=2"],
        &["--timing=recorded"],
        &["--replay=x", "--size=64"],
        &["--replay=x", "--rate=1pps", "--timing=recorded"],
        &["--replay=x", "--generator=kernel"],
        &["--replay=x", "--loop=0"],
        &["--replay=x", "--speed=0x"],
        &["--replay=x", "--speed=2x", "--timing=flat-out"],
        &["--replay=x", "--rate=1pps", "--max-gap=1s"],
        &["--replay=x", "--max-gap=0"],
        &["--max-gap=1s"],
        &["--fix-checksums"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
        let output = command.args(["send", "lo"]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

/// Proves that combinations of values, which are refused by more than the grammar of the options, end a
/// command before it sends anything.
#[test]
fn conflicting_values_are_refused_before_sending() {
    let (datagrams, streams) =
        (UdpSocket::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    datagrams.set_nonblocking(true).unwrap();
    streams.set_nonblocking(true).unwrap();
    let udp = format!("udp://{}", datagrams.local_addr().unwrap());
    let tcp = format!("tcp://{}", streams.local_addr().unwrap());
    let kernel = ["nc-none", "--generator=kernel"]; // refused before the interface is looked for
    for (arguments, words) in [
        ([&kernel[..], &["--flows=2"]].concat(), ["--flows", "--generator program"]),
        ([&kernel[..], &["--payload=sequence"]].concat(), ["--payload sequence", "--generator program"]),
        ([&kernel[..], &["--mode=packet-ring"]].concat(), ["--mode", "--generator program"]),
        ([&kernel[..], &["--checksum=device"]].concat(), ["--checksum device", "--generator program"]),
        ([&kernel[..], &["--queue=1"]].concat(), ["--queue", "--generator program"]),
        (vec![&udp, "--interface=lo"], ["--interface", "leave it out"]),
        (vec![&udp, "--raw", "--connect-timeout=1s"], ["--connect-timeout", "--raw"]),
        (
            vec!["udp://no.such.host.invalid:9", "--raw", "--connect-timeout=1s"],
            ["--connect-timeout", "--raw"],
        ),
        (vec![&tcp, "--file=-", "--streams=2"], ["--streams", "is one stream"]),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
        let output = command.arg("send").args(&arguments).stdin(Stdio::null()).output().unwrap();
        assert_one_line_error(&output, &words);
        assert!(output.stdout.is_empty(), "{arguments:?}: no summary");
    }
    assert_eq!(datagrams.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(streams.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn send_is_in_manual_and_completions() {
    let output = |arguments: &[&str]| {
        utf8_text(&Command::new(env!("CARGO_BIN_EXE_nocopy")).args(arguments).output().unwrap().stdout)
    };
    assert!(output(&["man", "send"]).contains("replay"));
    assert!(output(&["completions", "bash"]).contains("--source-mac"));
}

fn assert_one_line_error(output: &Output, words: &[&str]) {
    let message = utf8_text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert_eq!(message.lines().count(), 1, "one line: {message}");
    assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
}
