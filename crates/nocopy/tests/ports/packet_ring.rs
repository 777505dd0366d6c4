//! Ports in packet ring mode on real traffic: veth pairs in private namespaces.

use std::collections::HashSet;
use std::net::UdpSocket;
use std::time::Duration;

use crate::common::{
    PATIENCE, area_with_frames_of, assert_all_frames_returned, lab, numbered_packet, open_port,
    open_port_with, packets_of_many_lengths, receive_from_any, receive_packets, send_packets,
};
use nocopy::integration::{Fanout, PortTuning};
use nocopy::port::{OpenError, PortBuilder, Purpose};
use nocopy::{Cause, Evidence, Frame, Mode, Port};
use nocopy_lab::patience::{uninterrupted, wait_until};
use nocopy_lab::{End, Lab};

fn open_packet_ring(end: &End) -> Port {
    open_port_with(end, |builder| builder.mode(Mode::PacketRing)).expect("opened")
}

/// A ring of 32 blocks, because a slow sender's packets may use one each: the kernel hands over a partly
/// filled one after a millisecond.
fn open_packet_ring_of_32_blocks(end: &End) -> Port {
    open_port_with(end, |builder| builder.mode(Mode::PacketRing).ring_sizes(16_384, 256)).expect("opened")
}

#[test]
fn packets_cross_both_ways_across_many_blocks() {
    let lab = lab!();
    let (mut left, mut right) = (open_packet_ring(lab.left()), open_packet_ring_of_32_blocks(lab.right()));
    assert_eq!(
        (right.mode(), right.explain().evidence),
        (Mode::PacketRing, Evidence::Copied(Cause::PacketRing))
    );
    for round in 0..100 {
        for packets in packets_of_many_lengths(lab.right(), round).chunks(25) {
            send_packets(&mut left, packets);
            assert_eq!(receive_packets(&mut right, packets.len()), packets);
        }
    }
    send_packets(&mut right, &[numbered_packet(lab.left(), 1, 64)]);
    assert_eq!(receive_packets(&mut left, 1), [numbered_packet(lab.left(), 1, 64)]);
    for mut port in [left, right] {
        assert_all_frames_returned(&mut port);
        assert_eq!(
            (port.receiver().stats().dropped, port.receiver().stats().get("rx_copied_out").unwrap()),
            (0, 0)
        );
        let area = port.area().clone();
        drop(port);
        assert_eq!(area.balance().free, u64::from(area.config().frame_count));
    }
}

#[test]
fn a_taken_packet_is_a_frame_and_counts_as_copied() {
    let lab = lab!();
    let (mut left, mut right) = (open_port(lab.left()), open_packet_ring(lab.right()));
    for number in 0..100 {
        send_packets(&mut left, &[numbered_packet(lab.right(), number, 64)]);
        let (receiver, sender) = right.halves();
        for mut packet in receiver.receive_timeout(PATIENCE).unwrap() {
            let (to, from) = packet[..12].split_at_mut(6);
            to.swap_with_slice(from);
            let mut frame = packet.take();
            frame.prepend(4).expect("headroom").fill(0);
            frame.trim_front(4);
            sender.send(frame).unwrap();
        }
        sender.flush().unwrap();
        assert_eq!(receive_packets(&mut left, 1)[0][14..18], number.to_be_bytes());
    }
    assert_eq!(right.receiver().stats().get("rx_copied_out").unwrap(), 100);
    assert_all_frames_returned(&mut right);
}

#[test]
fn packets_wait_in_blocks_while_no_frame_is_free() {
    let lab = lab!();
    let small = |builder: PortBuilder| builder.mode(Mode::PacketRing).frame_count(8, 8).ring_sizes(64, 8);
    let (mut left, mut right) = (open_port(lab.left()), open_port_with(lab.right(), small).unwrap());
    let packets: Vec<_> = (0..20).map(|number| numbered_packet(lab.right(), number, 100)).collect();
    send_packets(&mut left, &packets);
    let mut taken: Vec<Frame> = Vec::new();
    while taken.len() < 8 {
        taken.extend(right.receiver().receive_timeout(PATIENCE).unwrap().map(|packet| packet.take()));
    }
    assert!(right.receiver().receive_timeout(Duration::from_millis(20)).unwrap().is_empty());
    assert_eq!(right.balance().in_use, 8);
    let mut bytes: Vec<Vec<u8>> = taken.drain(..).map(|frame| frame.to_vec()).collect();
    bytes.extend(receive_packets(&mut right, 12));
    assert_eq!(bytes, packets, "none lost, none twice");
    assert_all_frames_returned(&mut right);
}

#[test]
fn packets_on_a_packet_ring_also_reach_the_host() {
    let lab = lab!();
    let (left, right) = (lab.left(), lab.right());
    let mut port = open_packet_ring(right);
    let receiver = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 9001)).unwrap());
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let sender = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
    sender.send_to(b"for both", (right.ipv4(), 9001)).unwrap();
    assert_eq!(uninterrupted(|| receiver.recv(&mut [0; 64])).unwrap(), 8);
    assert!(receive_packets(&mut port, 1)[0].ends_with(b"for both"));
}

#[test]
fn outgoing_packets_of_the_host_are_received_on_request() {
    let lab = lab!();
    let (left, right) = (lab.left(), lab.right());
    let mut deaf = open_packet_ring(left);
    let mut port = open_port_with(left, |builder| {
        builder.mode(Mode::PacketRing).tuning(PortTuning { outgoing: true, ..PortTuning::default() })
    })
    .unwrap();
    let _receiver = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 9001)).unwrap()); // no ICMP comes back
    let sender = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
    sender.send_to(b"outwards", (right.ipv4(), 9001)).unwrap();
    assert!(receive_packets(&mut port, 1)[0].ends_with(b"outwards"));
    // The first packet that the non-receiving port sees is one sent later from the other side.
    let behind = numbered_packet(left, 1, 100);
    send_packets(&mut open_port(right), std::slice::from_ref(&behind));
    assert_eq!(receive_packets(&mut deaf, 1), [behind]);
}

#[test]
fn every_packet_reaches_one_port_of_a_fanout_group() {
    const PACKETS: u32 = 200;
    let lab = lab!();
    for (group, fanout) in (1..).zip([Fanout::Hash, Fanout::Cpu, Fanout::Rollover]) {
        // Few blocks, each with many packets, however slowly those are sent.
        let (fanout_of, block_timeout) = (Some((group, fanout)), Some(Duration::from_millis(100)));
        let member = |builder: PortBuilder| {
            let tuning = PortTuning { fanout: fanout_of, block_timeout, ..PortTuning::default() };
            builder.mode(Mode::PacketRing).tuning(tuning)
        };
        let mut members =
            [open_port_with(lab.right(), member).unwrap(), open_port_with(lab.right(), member).unwrap()];
        let mut left = open_port(lab.left());
        let packets: Vec<_> = (0..PACKETS).map(|number| numbered_packet(lab.right(), number, 80)).collect();
        send_packets(&mut left, &packets);
        assert!(left.sender().drain(PATIENCE).unwrap());
        let came = receive_from_any(&mut members, packets.len());
        assert_eq!(came.len(), packets.len(), "{fanout:?}: each once");
        assert!(packets.iter().collect::<HashSet<_>>() == came.iter().collect(), "{fanout:?}");
    }
}

#[test]
fn every_packet_belongs_to_exactly_one_queue() {
    let lab = lab!(Lab::builder().queues(3)); // veth notes no queue (Linux 6.18)
    let ring =
        |queue| open_port_with(lab.right(), |builder| builder.mode(Mode::PacketRing).queue(queue)).unwrap();
    let mut ports = [ring(0), ring(1), ring(2)];
    let mut packets = Vec::new();
    for queue in 0..3 {
        let mut left = open_port_with(lab.left(), |builder| builder.queue(queue)).unwrap();
        let batch: Vec<_> =
            (0..20).map(|number| numbered_packet(lab.right(), queue * 20 + number, 80)).collect();
        send_packets(&mut left, &batch);
        assert!(left.sender().drain(PATIENCE).unwrap());
        packets.extend(batch);
    }
    let came = receive_from_any(&mut ports, packets.len());
    assert_eq!(came.len(), packets.len(), "each once");
    assert!(packets.iter().collect::<HashSet<_>>() == came.iter().collect());
}

#[test]
fn the_mode_order_depends_on_interface_and_purpose() {
    let lab = lab!();
    let modes = |purpose| {
        let port = open_port_with(lab.right(), |builder| builder.purpose(purpose)).unwrap();
        (port.mode(), port.explain().to_string())
    };
    assert_eq!(modes(Purpose::Exchange).0, Mode::XdpCopyNative);
    assert_eq!(modes(Purpose::Send).0, Mode::XdpCopyNative);
    let (mode, report) = modes(Purpose::Capture);
    assert_eq!(mode, Mode::PacketRing);
    for said in [
        "packet ring, copied (packet ring)",
        "packets come from sockets on this machine",
        "the host     also gets",
    ] {
        let said = said.replace("the host", "host");
        assert!(report.contains(&said), "{said}: {report}");
    }
}

#[test]
fn missing_capabilities_use_the_next_mode_or_are_named() {
    use rustix::thread::CapabilitySet as Capabilities;
    let lab = lab!();
    let end = lab.right();
    let open_without = |dropped: Capabilities, mode: Option<Mode>| {
        end.namespace().run(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(dropped);
            rustix::thread::set_capabilities(None, sets).unwrap(); // of this thread only
            let builder = Port::builder(end.interface());
            mode.map_or(builder.clone(), |mode| builder.mode(mode)).open()
        })
    };
    let mut port = open_without(Capabilities::BPF | Capabilities::SYS_ADMIN, None).unwrap();
    assert_eq!(port.mode(), Mode::PacketRing);
    assert!(port.explain().to_string().contains("CAP_BPF"), "{}", port.explain());
    send_packets(&mut open_port(lab.left()), &[numbered_packet(end, 1, 64)]);
    assert_eq!(receive_packets(&mut port, 1), [numbered_packet(end, 1, 64)]);
    let error = open_without(Capabilities::NET_RAW, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nc1: a port cannot be opened; this process lacks CAP_NET_RAW; run as root, or grant it with 'setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM'"
    );
    let error = open_without(Capabilities::NET_RAW, Some(Mode::PacketRing)).unwrap_err();
    assert!(error.to_string().contains("grant CAP_NET_RAW"), "{error}");
}

#[test]
fn a_large_mtu_packet_fits_one_frame_of_the_packet_ring() {
    let lab = lab!(Lab::builder().mtu(9000));
    let (mut left, mut right) = (open_packet_ring(lab.left()), open_packet_ring(lab.right()));
    let jumbo = numbered_packet(lab.right(), 1, 9014);
    send_packets(&mut left, std::slice::from_ref(&jumbo));
    assert_eq!(receive_packets(&mut right, 1), [jumbo]);
    assert_all_frames_returned(&mut left);
    // Also if AF_XDP might have come first, with frames it can use; not if they were asked for.
    let capturing = |builder: PortBuilder| builder.purpose(Purpose::Capture).multi_buffer(true);
    let stepped_down = open_port_with(lab.left(), capturing).unwrap();
    assert_eq!((stepped_down.mode(), stepped_down.area().config().frame_bytes), (Mode::PacketRing, 16_384));
    let asked_for =
        open_port_with(lab.left(), |builder| capturing(builder).area(&area_with_frames_of(4096))).unwrap();
    assert_eq!((asked_for.mode(), asked_for.area().config().frame_bytes), (Mode::PacketRing, 4096));
    let too_large =
        open_port_with(lab.left(), |builder| builder.area(&area_with_frames_of(8192))).unwrap_err();
    assert!(matches!(too_large, OpenError::FrameSize { frame_bytes: 8192 }), "{too_large}");
}

#[test]
fn a_vlan_tag_keeps_its_position_in_the_frame() {
    let lab = lab!();
    let (mut left, mut right) = (open_port(lab.left()), open_packet_ring(lab.right()));
    let mut tagged = numbered_packet(lab.right(), 1, 100);
    tagged.splice(12..12, [0x81, 0x00, 0x01, 0x23]);
    send_packets(&mut left, std::slice::from_ref(&tagged));
    assert_eq!(receive_packets(&mut right, 1), [tagged]);
}

#[test]
fn arming_reports_an_interface_that_is_down_or_removed() {
    let lab = lab!();
    let (mut left, mut right) = (open_packet_ring(lab.left()), open_packet_ring(lab.right()));
    send_packets(&mut left, &[numbered_packet(lab.right(), 1, 100)]);
    std::mem::forget(right.receiver().receive_timeout(PATIENCE).unwrap());
    send_packets(&mut left, &[numbered_packet(lab.right(), 2, 100)]);
    wait_until("a packet behind a forgotten batch", || right.receiver().arm().unwrap());
    assert_eq!(receive_packets(&mut right, 1), [numbered_packet(lab.right(), 2, 100)]);
    lab.right().set_down().unwrap();
    assert_eq!(right.receiver().arm().unwrap_err().kind(), std::io::ErrorKind::NetworkDown);
    lab.right().bring_interface_up().unwrap();
    lab.wait_for_carrier().unwrap();
    assert!(!right.receiver().arm().unwrap(), "it goes on");
    lab.delete_pair().unwrap();
    assert_eq!(right.receiver().arm().unwrap_err().kind(), std::io::ErrorKind::NotConnected);
}
