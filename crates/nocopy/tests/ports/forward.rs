//! Packets forwarded whose senders left the checksum to a device: on memory ports, and between hosts in a
//! lab.

use nocopy::integration::PortTuning;
use nocopy::port::PortBuilder;
use nocopy::{Mode, Port, Reason};
use nocopy_proto::wire::tcp;
use nocopy_proto::wire::unfinished::UnfinishedChecksum;
use nocopy_proto::wire::vlan::TagControl;
use nocopy_proto::{IpAddresses, MacAddress, UdpChecksum, UdpFrame, UdpPacket};

use crate::common::{
    PATIENCE, assert_all_frames_returned, lab, open_port_with, receive_packets, send_packets,
};

const FLOW: UdpFrame = UdpFrame {
    source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
    destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
    vlan: None,
    addresses: IpAddresses::V4 {
        source: std::net::Ipv4Addr::new(10, 77, 0, 1),
        destination: std::net::Ipv4Addr::new(10, 77, 0, 2),
    },
    traffic_class: 0,
    hop_limit: 64,
    source_port: 7000,
    destination_port: 7100,
    checksum: UdpChecksum::Offloaded,
};

fn udp_packet(flow: &UdpFrame, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; flow.header_bytes()];
    flow.emit_headers(&mut packet, payload).unwrap();
    packet.extend_from_slice(payload);
    packet
}

/// Memory ports, whose packets may lack a checksum.
fn memory_pair_without_wire(set: impl FnOnce(PortBuilder) -> PortBuilder) -> (Port, Port) {
    let tuning = PortTuning { wireless: true, ..PortTuning::default() };
    set(Port::memory_builder().tuning(tuning)).memory_pair().unwrap()
}

/// Sends a packet to a port that forwards it, and returns what comes back.
fn forward_one(host: &mut Port, port: &mut Port, packet: &[u8]) -> Vec<u8> {
    send_packets(host, &[packet.to_vec()]);
    let (receiver, sender) = port.halves();
    for packet in receiver.receive_timeout(PATIENCE).unwrap() {
        sender.forward(packet).unwrap();
    }
    sender.flush().unwrap();
    receive_packets(host, 1).remove(0)
}

#[test]
fn forward_finishes_unfinished_checksums_and_changes_no_others() {
    let (mut host, mut port) = memory_pair_without_wire(|builder| builder);
    for bytes in [0, 1, 7, 100, 1471, 1472] {
        let finished = udp_packet(&UdpFrame { checksum: UdpChecksum::Computed, ..FLOW }, &vec![7; bytes]);
        let unfinished = udp_packet(&FLOW, &vec![7; bytes]);
        assert!(forward_one(&mut host, &mut port, &unfinished) == finished);
        assert!(forward_one(&mut host, &mut port, &finished) == finished);
        let mut wrong = finished.clone();
        wrong[40] ^= 1;
        assert!(forward_one(&mut host, &mut port, &wrong) == wrong, "damage must stay visible");
        let padded = [&unfinished[..], &[0xee; 9]].concat();
        assert!(forward_one(&mut host, &mut port, &padded) == finished);
        let tag = Some(TagControl::new(5, 0, false).unwrap());
        let tagged = UdpFrame { vlan: tag, ..FLOW };
        let expected = udp_packet(&UdpFrame { checksum: UdpChecksum::Computed, ..tagged }, &vec![7; bytes]);
        assert!(forward_one(&mut host, &mut port, &udp_packet(&tagged, &vec![7; bytes])) == expected);
    }
    for packet in [&b"short"[..], &[0x45; 64], &[0; 14]] {
        assert_eq!(forward_one(&mut host, &mut port, packet), packet);
    }
    assert_all_frames_returned(&mut port);
}

#[test]
fn packets_that_came_by_wire_are_forwarded_unchanged() {
    let (mut host, mut port) = Port::memory_pair().unwrap();
    let packet = udp_packet(&FLOW, b"looks unfinished");
    assert!(forward_one(&mut host, &mut port, &packet) == packet);
}

#[test]
fn a_packet_refused_by_a_full_ring_returns_with_its_checksum_finished() {
    let (mut host, mut port) = memory_pair_without_wire(|builder| builder.ring_sizes(64, 4));
    for _ in 0..3 {
        send_packets(&mut host, &vec![udp_packet(&FLOW, b"unfinished"); 4]);
    }
    let (receiver, sender) = port.halves();
    let (mut forwarded, mut refused) = (0, 0);
    while forwarded < 12 {
        for packet in receiver.receive_timeout(PATIENCE).unwrap() {
            if let Err(rejected) = sender.forward(packet) {
                assert!(matches!(rejected.reason, Reason::Full), "{rejected}");
                sender.flush().unwrap();
                sender.send(rejected.item).unwrap();
                refused += 1;
            }
            forwarded += 1;
        }
        sender.flush().unwrap();
    }
    assert!(refused > 0, "there was always room");
    for packet in receive_packets(&mut host, 12) {
        assert!(UdpPacket::parse(&packet).unwrap().verify_checksum().is_ok());
    }
    assert_all_frames_returned(&mut port);
}

#[test]
fn a_checksum_over_several_frames_is_finished() {
    let (mut host, mut port) = memory_pair_without_wire(|builder| builder.multi_buffer(true));
    for bytes in [100, 1751, 5000, 8961] {
        let payload: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        host.sender().send_copy(&udp_packet(&FLOW, &payload)).unwrap();
        host.sender().flush().unwrap();
        let (receiver, sender) = port.halves();
        let packet = receiver.receive().unwrap().next_chain().expect("one packet");
        sender.forward_chain(packet).unwrap();
        sender.flush().unwrap();
        let arrived = host.receiver().receive().unwrap().next_chain().expect("one packet").to_vec();
        let finished = UdpFrame { checksum: UdpChecksum::Computed, ..FLOW };
        assert!(arrived == udp_packet(&finished, &payload), "{bytes}");
    }
    assert_all_frames_returned(&mut port);
}

/// The kernel finishes it while it copies, on a port that takes requests; otherwise it is finished here.
#[test]
fn forward_finishes_checksums_in_every_mode() {
    for (mode, requests) in [
        (Mode::XdpCopyNative, true),
        (Mode::XdpCopyNative, false),
        (Mode::XdpCopyGeneric, true),
        (Mode::PacketRing, true),
    ] {
        let lab = lab!();
        let mut host = open_port_with(lab.left(), |builder| builder.mode(Mode::XdpCopyNative)).unwrap();
        let mut port =
            open_port_with(lab.right(), |builder| builder.mode(mode).send_metadata(requests)).unwrap();
        for bytes in [0, 1, 100, 1400] {
            let finished = udp_packet(&UdpFrame { checksum: UdpChecksum::Computed, ..FLOW }, &vec![7; bytes]);
            let packet = udp_packet(&FLOW, &vec![7; bytes]);
            assert!(forward_one(&mut host, &mut port, &packet) == finished, "{mode} {requests} {bytes}");
        }
        assert_all_frames_returned(&mut port);
    }
}

/// What a host sends, with its checksum as the host leaves it: unfinished as its bytes and the packet ring
/// say, or finished.
#[test]
fn checksums_left_to_a_device_are_recognised() {
    let lab = lab!();
    let ring = |builder: PortBuilder| builder.mode(Mode::PacketRing).multi_buffer(true);
    let mut port = open_port_with(lab.right(), ring).unwrap();
    for offload in [true, false] {
        lab.left().set_tx_checksum(offload).unwrap();
        lab.left().namespace().run(|| {
            let socket = std::net::UdpSocket::bind((lab.left().ipv4(), 0)).unwrap();
            socket.send_to(b"to a host", (lab.right().ipv4(), 7100)).unwrap();
            // No program listens: a SYN is enough.
            let _ = std::net::TcpStream::connect((lab.right().ipv4(), 7100));
        });
        let (mut datagrams, mut segments) = (0, 0);
        while datagrams == 0 || segments == 0 {
            for packet in port.receiver().receive_timeout(PATIENCE).unwrap() {
                let is_unfinished = UnfinishedChecksum::find_in_frame(&packet).is_some();
                match packet.get(23) {
                    Some(17) => datagrams += 1,
                    Some(6) if packet.len() >= 34 + tcp::HEADER_BYTES => segments += 1,
                    _ => continue,
                }
                assert_eq!((is_unfinished, packet.arrival().checksum_unfinished), (offload, Ok(offload)));
            }
        }
    }
}
