//! Checksum requests and metadata of packets, on veth pairs in private namespaces.

use std::net::UdpSocket;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{
    PATIENCE, assert_all_frames_returned, lab, numbered_packet, open_port, open_port_with, receive_packets,
    send_packets,
};
use nocopy::Reason;
use nocopy::integration::PortTuning;
use nocopy::integration::xdp::Generator;
use nocopy::metadata::{Clock, Request, Unsupported};
use nocopy::port::PortBuilder;
use nocopy::{Frame, Mode, Port};
use nocopy_lab::patience::uninterrupted;
use nocopy_lab::{End, Lab};
use nocopy_proto::wire::checksum::ChecksumField;
use nocopy_proto::wire::udp::{ChecksumStatus, Datagram};
use nocopy_proto::wire::{ethernet, ipv4};
use nocopy_proto::{IpAddresses, MacAddress, UdpChecksum, UdpFrame};

/// The largest difference of two clock readings in a test that was delayed.
const CLOSE_NS: u64 = 60_000_000_000;

const PORT: u16 = 4660;

/// A value in a note that no kernel wrote.
const FORGED: u32 = 0xf0f0_f0f1;

fn lab_flow(lab: &Lab, checksum: UdpChecksum) -> UdpFrame {
    let (source, destination) = (lab.left().ipv4(), lab.right().ipv4());
    UdpFrame {
        source_mac: MacAddress(lab.left().mac()),
        destination_mac: MacAddress(lab.right().mac()),
        vlan: None,
        addresses: IpAddresses::V4 { source, destination },
        traffic_class: 0,
        hop_limit: 64,
        source_port: 7,
        destination_port: PORT,
        checksum,
    }
}

fn patterned_payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + bytes) as u8).collect()
}

fn frame_with(port: &mut Port, flow: &UdpFrame, payload: &[u8]) -> Frame {
    let mut bytes = vec![0; flow.header_bytes()];
    flow.emit_headers(&mut bytes, payload).unwrap();
    bytes.extend(payload);
    let mut frame = port.sender().buffer().expect("a free frame");
    frame.fill(&bytes).expect("fits");
    frame
}

fn open_with_send_metadata(end: &End, mode: Mode) -> Port {
    open_port_with(end, |builder| builder.mode(mode).send_metadata(true)).expect("opened")
}

/// The checksum as the receiver of a packet sees it.
fn checksum_integrity(flow: &UdpFrame, packet: &[u8]) -> ChecksumStatus {
    let frame = ethernet::Frame::parse(packet).unwrap();
    let ip = ipv4::Packet::parse(frame.payload()).unwrap();
    Datagram::parse(ip.payload()).unwrap().verify_checksum(&flow.addresses).expect("a right checksum")
}

/// Sends datagrams of every length up to `bytes_max` and some beyond, and checks each at a socket of the
/// kernel, which drops those with a wrong checksum.
fn send_and_check_all_lengths(lab: &Lab, port: &mut Port) {
    let socket = lab.right().namespace().run(|| UdpSocket::bind((lab.right().ipv4(), PORT)).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let flow = lab_flow(lab, UdpChecksum::Offloaded);
    for bytes in (0..200).chain([1000, 1001, 1471, 1472]) {
        let sent = patterned_payload(bytes);
        let frame = frame_with(port, &flow, &sent);
        port.sender().send_with(frame, Request::default().checksum(flow.checksum_field())).expect("sent");
        port.sender().flush().unwrap();
        let mut received = [0xff; 1500];
        let count =
            uninterrupted(|| socket.recv(&mut received)).unwrap_or_else(|error| panic!("{bytes} B: {error}"));
        assert_eq!(received[..count], sent[..], "{bytes} B");
    }
}

#[test]
fn the_kernel_completes_checksums_in_copy_mode() {
    for mode in [Mode::XdpCopyNative, Mode::XdpCopyGeneric] {
        let lab = lab!();
        let mut left = open_with_send_metadata(lab.left(), mode);
        assert_eq!(left.explain().checksum, Ok(()));
        send_and_check_all_lengths(&lab, &mut left);
        assert_all_frames_returned(&mut left);
    }
}

#[test]
fn checksums_without_offload_are_completed_in_software() {
    let lab = lab!();
    let mut plain = open_port(lab.left());
    assert_eq!(plain.explain().checksum, Err(Unsupported::NotRequested));
    send_and_check_all_lengths(&lab, &mut plain);
    assert_all_frames_returned(&mut plain);
    drop(plain);
    let mut ring = open_with_send_metadata(lab.left(), Mode::PacketRing);
    assert_eq!(ring.explain().checksum, Err(Unsupported::Mode(Mode::PacketRing)));
    send_and_check_all_lengths(&lab, &mut ring);
    assert_all_frames_returned(&mut ring);
}

#[test]
fn an_offloaded_checksum_is_complete_on_arrival() {
    let lab = lab!();
    let mut left = open_with_send_metadata(lab.left(), Mode::XdpCopyNative);
    let mut right = open_port(lab.right());
    for checksum in [UdpChecksum::Offloaded, UdpChecksum::Omitted, UdpChecksum::Computed] {
        let flow = lab_flow(&lab, checksum);
        for bytes in [0, 1, 2, 17, 18, 1472] {
            let frame = frame_with(&mut left, &flow, &patterned_payload(bytes));
            match checksum {
                UdpChecksum::Offloaded => {
                    left.sender()
                        .send_with(frame, Request::default().checksum(flow.checksum_field()))
                        .unwrap();
                }
                _ => left.sender().send(frame).unwrap(),
            }
            left.sender().flush().unwrap();
            let expected = match checksum {
                UdpChecksum::Omitted => ChecksumStatus::Unprotected,
                _ => ChecksumStatus::Verified,
            };
            assert_eq!(
                checksum_integrity(&flow, &receive_packets(&mut right, 1)[0]),
                expected,
                "{checksum:?} {bytes}"
            );
        }
    }
    assert_all_frames_returned(&mut left);
}

/// A frame keeps the bytes of a request in front of its packet; sent again without one, they must have no
/// effect.
#[test]
fn a_request_applies_to_one_send() {
    let lab = lab!();
    // One frame, so that the same one is sent each time.
    let one = |builder: PortBuilder| {
        builder.mode(Mode::XdpCopyNative).send_metadata(true).frame_count(64, 1).ring_sizes(64, 64)
    };
    let mut left = open_port_with(lab.left(), one).unwrap();
    let mut right = open_port(lab.right());
    let flow = lab_flow(&lab, UdpChecksum::Offloaded);
    for round in 0..10_u8 {
        let frame = frame_with(&mut left, &flow, &[round; 100]);
        left.sender().send_with(frame, Request::default().checksum(flow.checksum_field())).unwrap();
        left.sender().flush().unwrap();
        assert_eq!(checksum_integrity(&flow, &receive_packets(&mut right, 1)[0]), ChecksumStatus::Verified);
        assert!(left.sender().drain(PATIENCE).unwrap());
        let untouched = [numbered_packet(lab.right(), round.into(), 142)];
        send_packets(&mut left, &untouched);
        assert_eq!(receive_packets(&mut right, 1), untouched);
        assert!(left.sender().drain(PATIENCE).unwrap());
    }
    assert_all_frames_returned(&mut left);
}

#[test]
fn a_forwarded_frame_carries_no_request() {
    let lab = lab!();
    let mut left = open_with_send_metadata(lab.left(), Mode::XdpCopyNative);
    let right = open_port_with(lab.right(), |builder| builder.mode(Mode::XdpCopyNative).send_metadata(true));
    let mut right = right.unwrap();
    let flow = lab_flow(&lab, UdpChecksum::Offloaded);
    for number in 0..50 {
        let frame = frame_with(&mut left, &flow, &[number; 64]);
        left.sender()
            .send_with(frame, Request::default().checksum(flow.checksum_field()).timestamp(1))
            .unwrap();
        left.sender().flush().unwrap();
        let (receiver, sender) = right.halves();
        for packet in receiver.receive_timeout(PATIENCE).unwrap() {
            let mut frame = packet.take();
            frame[40..42].copy_from_slice(&[0xab, 0xcd]); // a checksum that nobody would compute
            sender.send(frame).unwrap();
        }
        sender.flush().unwrap();
        assert_eq!(receive_packets(&mut left, 1)[0][40..42], [0xab, 0xcd]);
    }
    assert_all_frames_returned(&mut right);
}

#[test]
fn an_impossible_request_returns_the_frame() {
    let lab = lab!();
    let flow = lab_flow(&lab, UdpChecksum::Offloaded);
    let mut plain = open_port(lab.left());
    let nothing = frame_with(&mut plain, &flow, b"nothing is asked");
    plain.sender().send_with(nothing, Request::default()).expect("as a plain send");
    assert_all_frames_returned(&mut plain);
    let frame = frame_with(&mut plain, &flow, b"as it was");
    let before = frame.to_vec();
    let request = Request::default().checksum(flow.checksum_field()).timestamp(1);
    let rejected = plain.sender().send_with(frame, request).unwrap_err();
    assert!(matches!(rejected.reason, Reason::Unsupported(Unsupported::NotRequested)));
    let outside = ChecksumField { start: 40, offset: before.len() as u16 - 41 };
    let rejected = plain.sender().send_with(rejected.item, Request::default().checksum(outside)).unwrap_err();
    assert!(matches!(rejected.reason, Reason::ChecksumOutside(_)), "{rejected}");
    assert_eq!(rejected.item[..], before[..]);
    drop((rejected, plain));

    let mut left = open_with_send_metadata(lab.left(), Mode::XdpCopyNative);
    let frame = frame_with(&mut left, &flow, b"as it was");
    let rejected = left.sender().send_with(frame, Request::default().checksum(outside)).unwrap_err();
    assert!(matches!(rejected.reason, Reason::ChecksumOutside(_)), "{rejected}");
    // The kernel needs room for a request in front of every packet, and would otherwise keep the frame for
    // ever.
    let mut frame = rejected.item;
    frame.truncate(100);
    let room = frame.headroom_bytes() - 15;
    frame.prepend(room).expect("headroom").fill(0);
    for attempt in 0..3 {
        let sent = match attempt {
            0 => left.sender().send(frame),
            1 => left.sender().send_with(frame, Request::default()),
            _ => left.sender().send_with(frame, Request::default().timestamp(1)),
        };
        let rejected = sent.unwrap_err();
        assert!(matches!(rejected.reason, Reason::NoHeadroom { .. }));
        frame = rejected.item;
    }
    frame.trim_front(1);
    left.sender().send(frame).unwrap();
    let mut frame = left.sender().buffer().unwrap();
    let room = frame.headroom_bytes();
    frame.prepend(room).unwrap().fill(0);
    let rejected = left.sender().send_chain(frame.into()).unwrap_err();
    assert!(matches!(rejected.reason, Reason::NoHeadroom { .. }));
    drop(rejected);
    assert_all_frames_returned(&mut left);
    assert_eq!(left.sender().stats().get("tx_invalid_descs").unwrap(), 0);
}

#[test]
fn departure_times_are_reported_with_their_tokens() {
    let lab = lab!();
    let mut left = open_with_send_metadata(lab.left(), Mode::XdpCopyNative);
    let _right = open_port(lab.right());
    assert_eq!(left.explain().departure_clock, Ok(Clock::Tai));
    let flow = lab_flow(&lab, UdpChecksum::Offloaded);
    let mut last = tai_now_ns();
    for token in 0..100 {
        let frame = frame_with(&mut left, &flow, &patterned_payload(token as usize));
        let mut request = Request::default().timestamp(token);
        if token % 2 == 0 {
            request = request.checksum(flow.checksum_field());
        }
        left.sender().send_with(frame, request).unwrap();
        send_packets(&mut left, &[numbered_packet(lab.right(), 1, 64)]); // one that nobody asks for
        assert!(left.sender().drain(PATIENCE).unwrap());
        let known: Vec<_> = left.sender().departures().collect();
        assert_eq!(known.len(), 1);
        let left_at = known[0].1.expect("the kernel says");
        assert_eq!((known[0].0, left_at.clock), (token, Clock::Tai));
        let now = tai_now_ns();
        assert!((last..=now).contains(&left_at.ns), "{} not from {last} to {now}", left_at.ns);
        last = left_at.ns;
    }
    assert_all_frames_returned(&mut left);
}

fn tai_now_ns() -> u64 {
    let time = rustix::time::clock_gettime_dynamic(rustix::time::DynamicClockId::Tai).expect("a clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn realtime_now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

#[test]
fn veth_reports_hashes_and_no_time() {
    let lab = lab!();
    let mut left = open_port(lab.left());
    let native = |builder: PortBuilder| builder.mode(Mode::XdpCopyNative).receive_metadata(true);
    let mut right = open_port_with(lab.right(), native).unwrap();
    let flow = lab_flow(&lab, UdpChecksum::Computed);
    // More packets than frames, so that every frame is reused.
    for number in 0..10_000_u16 {
        let (destination_port, is_ip) = (u16::from(number % 5 > 2), number % 2 == 0);
        let flow = UdpFrame { destination_port, ..flow };
        let frame = frame_with(&mut left, &flow, &number.to_be_bytes());
        if is_ip {
            left.sender().send(frame).unwrap();
            left.sender().flush().unwrap();
        } else {
            drop(frame);
            send_packets(&mut left, &[numbered_packet(lab.right(), number.into(), 64)]);
        }
        let mut batch = right.receiver().receive_timeout(PATIENCE).unwrap();
        let arrival = batch.next().expect("a packet").arrival();
        assert_eq!(arrival.timestamp, Err(Unsupported::Absent), "nobody stamped it");
        assert_eq!(arrival.vlan, Err(Unsupported::Absent));
        if is_ip {
            // veth chooses the hash: under load packets of one flow had different ones (Linux 6.18).
            assert!(arrival.hash.is_ok(), "packets of a flow have one");
        }
    }
    assert_all_frames_returned(&mut right);
}

#[test]
fn missing_metadata_is_reported_with_its_reason() {
    let lab = lab!();
    let arrival_at = |right: &mut Port| {
        let mut left = open_port(lab.left());
        send_packets(&mut left, &[numbered_packet(lab.right(), 1, 64)]);
        let mut batch = right.receiver().receive_timeout(PATIENCE).unwrap();
        batch.next().expect("a packet").arrival()
    };
    let mut plain = open_port(lab.right());
    assert_eq!(arrival_at(&mut plain).hash, Err(Unsupported::NotRequested));
    drop(plain);
    let generic = |builder: PortBuilder| builder.mode(Mode::XdpCopyGeneric).receive_metadata(true);
    let mut generic = open_port_with(lab.right(), generic).unwrap();
    assert_eq!(arrival_at(&mut generic).hash, Err(Unsupported::Mode(Mode::XdpCopyGeneric)));
    drop(generic);

    let (mut a, mut b) =
        Port::memory_builder().receive_metadata(true).send_metadata(true).memory_pair().unwrap();
    send_packets(&mut a, &[vec![1; 64]]);
    let arrival = b.receiver().try_receive().unwrap().next().expect("a packet").arrival();
    assert_eq!(arrival.timestamp, Err(Unsupported::Mode(Mode::Memory)));
    assert_eq!(a.explain().departure_clock, Err(Unsupported::Mode(Mode::Memory)));
}

#[test]
fn the_first_port_decides_the_programs_metadata() {
    let lab = lab!(Lab::builder().queues(2));
    let on = |queue, asks| {
        open_port_with(lab.right(), |builder| {
            builder.mode(Mode::XdpCopyNative).queue(queue).receive_metadata(asks)
        })
        .unwrap()
    };
    let mut left = open_port(lab.left());
    let mut hash_at = |port: &mut Port| {
        send_packets(&mut left, &[numbered_packet(lab.right(), 1, 64)]);
        let mut batch = port.receiver().receive_timeout(PATIENCE).unwrap();
        batch.next().expect("veth keeps to the sender's queue").arrival().hash
    };
    let silent = on(1, false);
    assert_eq!(hash_at(&mut on(0, true)), Err(Unsupported::OtherProgram));
    drop(silent);
    let asking = on(1, true);
    assert_eq!(hash_at(&mut on(0, false)), Err(Unsupported::NotRequested));
    assert!(hash_at(&mut on(0, true)) != Err(Unsupported::OtherProgram));
    drop(asking);
}

/// The bytes in front of a packet belong to the program while it owns the frame: what it writes there must
/// neither be believed later, nor keep the XDP program from noting what is true.
#[test]
fn old_bytes_in_a_frame_are_not_read_as_metadata() {
    let lab = lab!();
    let mut left = open_port(lab.left());
    let few = |builder: PortBuilder| {
        builder.mode(Mode::XdpCopyNative).receive_metadata(true).frame_count(4, 4).ring_sizes(4, 4)
    };
    let mut right = open_port_with(lab.right(), few).unwrap();
    let flow = lab_flow(&lab, UdpChecksum::Computed);
    let mut arrive = |right: &mut Port, number: u16| {
        let flow = UdpFrame { source_port: number, ..flow };
        let frame = frame_with(&mut left, &flow, &[0; 32]);
        let sent = frame.to_vec();
        left.sender().send(frame).unwrap();
        left.sender().flush().unwrap();
        let mut batch = right.receiver().receive_timeout(PATIENCE).unwrap();
        let packet = batch.next().expect("a packet");
        assert_eq!(packet[..], sent[..], "what was sent");
        (packet.arrival().hash.expect("a flow's hash"), packet.take())
    };
    let mut notes = Vec::new();
    for number in 1..=4 {
        let (hash, mut frame) = arrive(&mut right, number);
        let mut note = frame.prepend(32).expect("headroom").to_vec();
        assert_eq!(note[8..12], hash.to_ne_bytes(), "where the note is");
        note[8..12].copy_from_slice(&FORGED.to_ne_bytes());
        notes.push(note);
        right.receiver().recycle(frame);
    }
    for number in 1..=40 {
        let (hash, mut frame) = arrive(&mut right, number);
        frame.prepend(32).expect("headroom").copy_from_slice(&notes[usize::from(number) % 4]);
        let (again, other) = arrive(&mut right, number);
        assert!(hash != FORGED && again != FORGED, "believed what was left in the frame");
        right.receiver().recycle(frame);
        right.receiver().recycle(other);
    }
    assert_all_frames_returned(&mut right);

    // The generator's metadata is removed to make room for the note, which reports that there is no hash.
    let generator = lab.left().namespace().run(|| Generator::new(lab.left().interface()).unwrap());
    let sent = numbered_packet(lab.right(), 7, 64);
    for _ in 0..20 {
        lab.left().namespace().run(|| generator.send(&sent, 1).unwrap());
        let mut batch = right.receiver().receive_timeout(PATIENCE).unwrap();
        let arrived = batch.next().expect("a packet");
        assert_eq!((arrived[..] == sent[..], arrived.arrival().hash), (true, Err(Unsupported::Absent)));
    }
}

#[test]
fn drafts_are_checksummed_in_place() {
    let lab = lab!();
    let mut right = open_port(lab.right());
    let flow = lab_flow(&lab, UdpChecksum::Offloaded);
    for asks in [true, false] {
        let native = |builder: PortBuilder| builder.mode(Mode::XdpCopyNative).send_metadata(asks);
        let mut left = open_port_with(lab.left(), native).unwrap();
        let mut drafts = left.sender().drafts(20, 1000).unwrap();
        for bytes in 0..20 {
            let mut draft = drafts.next_draft().expect("frames are free");
            let (headers, rest) = draft.split_at_mut(flow.header_bytes());
            rest[..bytes].copy_from_slice(&patterned_payload(bytes));
            flow.emit_headers(headers, &rest[..bytes]).unwrap();
            draft.truncate(flow.header_bytes() + bytes);
            draft.queue_checksummed(flow.checksum_field()).unwrap();
        }
        drop(drafts);
        let mut drafts = left.sender().drafts(1, 41).unwrap();
        let short = drafts.next_draft().expect("a frame is free");
        assert!(short.queue_checksummed(flow.checksum_field()).is_err(), "the field is cut off");
        drop(drafts);
        left.sender().flush().unwrap();
        for (bytes, packet) in receive_packets(&mut right, 20).iter().enumerate() {
            assert_eq!(checksum_integrity(&flow, packet), ChecksumStatus::Verified, "{bytes} B");
        }
        assert_all_frames_returned(&mut left);
    }
}

#[test]
fn a_packet_ring_reports_time_and_hash_of_packets() {
    let lab = lab!();
    let mut left = open_port(lab.left());
    let ring = |builder: PortBuilder| {
        builder
            .mode(Mode::PacketRing)
            .receive_metadata(true)
            .tuning(PortTuning { block_timeout: Some(Duration::from_millis(1)), ..PortTuning::default() })
    };
    let mut right = open_port_with(lab.right(), ring).unwrap();
    let flow = lab_flow(&lab, UdpChecksum::Computed);
    let mut last = 0;
    for _ in 0..50 {
        for _ in 0..3 {
            let frame = frame_with(&mut left, &flow, b"one flow");
            left.sender().send(frame).unwrap();
        }
        left.sender().flush().unwrap();
        let mut seen = 0;
        while seen < 3 {
            let batch = right.receiver().receive_timeout(PATIENCE).unwrap();
            let before = seen;
            for packet in batch {
                let arrival = packet.arrival();
                let at = arrival.timestamp.expect("always there");
                assert_eq!(at.clock, Clock::Realtime);
                assert!(at.ns >= last, "{} came after {last}", at.ns);
                assert!(
                    at.ns.abs_diff(realtime_now_ns()) < CLOSE_NS,
                    "{} is not near {}",
                    at.ns,
                    realtime_now_ns()
                );
                last = at.ns;
                assert!(arrival.hash.is_ok(), "the kernel makes one up");
                assert_eq!(arrival.vlan, Err(Unsupported::Absent));
                seen += 1;
            }
            assert!(seen > before, "a packet is missing");
        }
    }
    assert_all_frames_returned(&mut right);
}

#[test]
fn a_packet_ring_has_hashes_only_on_request() {
    let lab = lab!();
    let mut left = open_port(lab.left());
    let mut right = open_port_with(lab.right(), |builder| builder.mode(Mode::PacketRing)).unwrap();
    let frame = frame_with(&mut left, &lab_flow(&lab, UdpChecksum::Computed), b"one flow");
    left.sender().send(frame).unwrap();
    left.sender().flush().unwrap();
    let mut batch = right.receiver().receive_timeout(PATIENCE).unwrap();
    let arrival = batch.next().expect("a packet").arrival();
    assert_eq!((arrival.hash, arrival.timestamp.is_ok()), (Err(Unsupported::NotRequested), true));
}
