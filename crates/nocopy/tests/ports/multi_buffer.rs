//! Packets longer than a frame, as chains of several, in every available mode.

use std::net::UdpSocket;

use crate::common::{
    PATIENCE, area_with_frames_of, assert_all_frames_returned, lab, numbered_packet, open_port_with,
};
use nocopy::Reason;
use nocopy::port::{OpenError, PortBuilder};
use nocopy::{Chain, Frame, Mode, Packet, Port};
use nocopy_lab::{End, Lab};

const MODES: [Mode; 3] = [Mode::XdpCopyNative, Mode::XdpCopyGeneric, Mode::PacketRing];

fn open_in_mode(end: &End, mode: Mode) -> Port {
    open_port_with(end, |builder| builder.mode(mode).multi_buffer(true)).expect("opened")
}

fn send_copies(port: &mut Port, packets: &[Vec<u8>]) {
    for packet in packets {
        port.sender().send_copy(packet).expect("sent");
    }
    port.sender().flush().expect("flushed");
}

fn receive_chains(port: &mut Port, count: usize) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    while received.len() < count {
        let before = received.len();
        let mut batch = port.receiver().receive_timeout(PATIENCE).expect("received");
        while let Some(packet) = batch.next_chain() {
            received.push(packet.to_vec());
        }
        assert!(received.len() > before, "only {before} of {count} packets came");
    }
    received
}

/// Packet lengths around the multiples of a frame's length.
fn lengths_around_frames(longest: usize) -> Vec<usize> {
    let around = |edge: usize| [edge - 1, edge, edge + 1];
    let edges = (1..).map(|frames| frames * 3840).take_while(|edge| edge + 1 < longest);
    edges.flat_map(around).chain([60, 1514, longest]).collect()
}

#[test]
fn packets_of_any_length_arrive_complete_in_every_mode() {
    for mtu in [9000, 32_000, 65_000] {
        for mode in MODES {
            let lab = lab!(Lab::builder().mtu(mtu));
            let (mut left, mut right) = (open_in_mode(lab.left(), mode), open_in_mode(lab.right(), mode));
            for round in 0..10 {
                let packets: Vec<_> = (round..)
                    .zip(lengths_around_frames(mtu as usize + 14))
                    .map(|(number, bytes)| numbered_packet(lab.right(), number, bytes))
                    .collect();
                for some in packets.chunks(8) {
                    send_copies(&mut left, some);
                    assert_eq!(receive_chains(&mut right, some.len()), some, "{mode} MTU {mtu}");
                }
            }
            assert_all_frames_returned(&mut left);
            assert_all_frames_returned(&mut right);
            assert_eq!(right.receiver().stats().dropped, 0, "{mode}");
        }
    }
}

#[test]
fn a_jumbo_packet_is_received_edited_and_sent_back() {
    for mode in MODES {
        let lab = lab!(Lab::builder().mtu(9000));
        let (mut left, mut right) = (open_in_mode(lab.left(), mode), open_in_mode(lab.right(), mode));
        let sent = numbered_packet(lab.right(), 1, 9014);
        send_copies(&mut left, std::slice::from_ref(&sent));
        let (receiver, sender) = right.halves();
        let mut batch = receiver.receive_timeout(PATIENCE).unwrap();
        let mut chain = batch.next_chain().expect("a packet");
        assert!(chain.as_ref().len() > 1 || mode == Mode::PacketRing, "{mode}");
        let mut write_at = |offset: usize, bytes: &[u8]| {
            let old = chain.as_mut().iter_mut().flat_map(|buffer| buffer.iter_mut());
            old.skip(offset).zip(bytes).for_each(|(old, new)| *old = *new);
        };
        write_at(0, &lab.left().mac());
        write_at(3838, b"across the edge");
        sender.send_chain(chain.into_iter().map(Packet::take).collect()).unwrap();
        drop(batch);
        sender.flush().unwrap();
        let mut expected = sent;
        expected[..6].copy_from_slice(&lab.left().mac());
        expected[3838..3853].copy_from_slice(b"across the edge");
        assert_eq!(receive_chains(&mut left, 1), [expected], "{mode}");
        assert_all_frames_returned(&mut right);
    }
}

#[test]
fn a_batch_never_ends_in_the_middle_of_a_packet() {
    for mode in MODES {
        let lab = lab!(Lab::builder().mtu(9000));
        let mut left = open_in_mode(lab.left(), mode);
        let one = |builder: PortBuilder| {
            builder.mode(mode).multi_buffer(true).batch(1).area(&area_with_frames_of(2048))
        };
        let mut right = open_port_with(lab.right(), one).unwrap();
        let packets: Vec<_> = (0..20).map(|number| numbered_packet(lab.right(), number, 9014)).collect();
        send_copies(&mut left, &packets);
        assert_eq!(receive_chains(&mut right, 20), packets, "{mode}");
        assert_all_frames_returned(&mut right);
    }
}

#[test]
fn chains_left_in_a_batch_are_received_later() {
    let lab = lab!(Lab::builder().mtu(9000));
    let (mut left, mut right) =
        (open_in_mode(lab.left(), Mode::XdpCopyNative), open_in_mode(lab.right(), Mode::XdpCopyNative));
    let packets: Vec<_> = (0..4).map(|number| numbered_packet(lab.right(), number, 9014)).collect();
    send_copies(&mut left, &packets);
    let mut kept: Vec<Chain<Frame>> = Vec::new();
    while kept.len() < 2 {
        let mut batch = right.receiver().receive_timeout(PATIENCE).unwrap();
        let chain = batch.next_chain(); // and no other of this batch
        kept.extend(chain.map(|chain| chain.into_iter().map(Packet::take).collect()));
    }
    let kept: Vec<_> = kept.into_iter().map(|chain| chain.to_vec()).collect();
    assert_eq!(kept, packets[..2]);
    assert_eq!(receive_chains(&mut right, 2), packets[2..]);
    assert_all_frames_returned(&mut right);
}

#[test]
fn the_kernels_sockets_send_and_receive_jumbo_datagrams() {
    for mode in MODES {
        let lab = lab!(Lab::builder().mtu(9000));
        let (left, right) = (lab.left(), lab.right());
        let mut port = open_in_mode(right, mode);
        let socket = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
        let payload: Vec<u8> = (0..8900).map(|i| (i * 7) as u8).collect();
        socket.send_to(&payload, (right.ipv4(), 9000)).unwrap();
        let received = receive_chains(&mut port, 1).remove(0);
        assert_eq!(received.len(), 14 + 20 + 8 + payload.len(), "{mode}");
        assert!(received.ends_with(&payload), "{mode}");
    }
}

#[test]
fn refused_sends_return_the_frame_and_the_reason() {
    let lab = lab!(Lab::builder().mtu(9000));
    let mut port = open_in_mode(lab.left(), Mode::XdpCopyNative);
    let small = |port: &mut Port| {
        let mut frame = port.sender().buffer().unwrap();
        frame.fill(&[1; 64]).unwrap();
        frame
    };
    let chain: Chain<Frame> = (0..18).map(|_| small(&mut port)).collect();
    let rejected = port.sender().send_chain(chain).unwrap_err();
    assert!(matches!(rejected.reason, Reason::TooManyBuffers { buffers_max: 17 }));
    assert_eq!(rejected.item.len(), 18 * 64);
    drop(rejected);
    let longer = |mut frame: Frame| {
        assert!(frame.append(1441).is_some());
        frame
    };
    let long: Chain<Frame> = (0..6).map(|_| longer(small(&mut port))).collect();
    let rejected = port.sender().send_chain(long).unwrap_err();
    assert!(matches!(rejected.reason, Reason::TooLong { bytes_max: 9018 }));
    drop(rejected);
    assert!(matches!(port.sender().send_copy(&[0; 9019]), Err(Reason::TooLong { bytes_max: 9018 })));
    assert!(matches!(port.sender().send_copy(&[]), Err(Reason::Empty)));
    let rejected = port.sender().send_chain(Chain::from_iter([])).unwrap_err();
    assert!(matches!(rejected.reason, Reason::Empty) && rejected.item.is_empty());
    let single = lab!();
    let mut plain = open_port_with(single.left(), |builder| builder).unwrap();
    let foreign: Chain<Frame> = small(&mut port).into();
    assert!(matches!(plain.sender().send_chain(foreign).unwrap_err().reason, Reason::ForeignArea));
    let two: Chain<Frame> = (0..2).map(|_| small(&mut plain)).collect();
    let rejected = plain.sender().send_chain(two).unwrap_err();
    assert!(matches!(rejected.reason, Reason::TooManyBuffers { buffers_max: 1 }));
    drop(rejected);
    let ring = |builder: PortBuilder| builder.multi_buffer(true).ring_sizes(64, 2);
    let mut narrow = open_port_with(single.right(), ring).unwrap();
    let some = |port: &mut Port, count| (0..count).map(|_| small(port)).collect::<Chain<Frame>>();
    let three = some(&mut narrow, 3);
    let reason = narrow.sender().send_chain(three).unwrap_err().reason;
    assert!(matches!(reason, Reason::TooManyBuffers { buffers_max: 2 }), "the ring has no more");
    let (two, one) = (some(&mut narrow, 2), some(&mut narrow, 1));
    narrow.sender().send_chain(two).unwrap();
    assert!(matches!(narrow.sender().send_chain(one).unwrap_err().reason, Reason::Full));
    assert_all_frames_returned(&mut narrow);
    assert_all_frames_returned(&mut plain);
    assert_all_frames_returned(&mut port);
}

#[test]
fn a_large_mtu_without_multi_buffer_names_the_setting() {
    let lab = lab!(Lab::builder().mtu(9000));
    let error = open_port_with(lab.left(), |builder| builder).unwrap_err();
    assert!(matches!(error, OpenError::Mtu { mtu_bytes: 9000, .. }), "{error}");
    assert!(error.to_string().contains("multi_buffer"), "{error}");
}

#[test]
fn the_packet_ring_counts_packets_longer_than_a_frame() {
    let lab = lab!(Lab::builder().mtu(9000));
    // An area with larger frames than AF_XDP could use would hold it; one with small frames does not.
    let mut left = open_in_mode(lab.left(), Mode::PacketRing);
    lab.right().set_mtu(1500).unwrap();
    let mut right = open_port_with(lab.right(), |builder| builder.mode(Mode::PacketRing)).unwrap();
    lab.right().set_mtu(9000).unwrap();
    send_copies(&mut left, &[numbered_packet(lab.right(), 1, 5000), numbered_packet(lab.right(), 2, 100)]);
    assert_eq!(receive_chains(&mut right, 1), [numbered_packet(lab.right(), 2, 100)]);
    assert_eq!(right.receiver().stats().dropped, 1);
}

#[test]
fn memory_ports_carry_complete_chains_or_none() {
    let (mut left, mut right) = Port::memory_builder().multi_buffer(true).memory_pair().unwrap();
    let packets: Vec<Vec<u8>> = (0..50).map(|i| vec![i as u8; 1 + i * 997]).collect();
    for some in packets.chunks(10) {
        send_copies(&mut left, some);
        assert_eq!(receive_chains(&mut right, some.len()), some);
    }
    // Frames with less room than the packet's: this loses no part of a packet, and no frame of the other end.
    let wide = |port: &mut Port| {
        let mut frame = port.sender().buffer().unwrap();
        frame.fill(&[7; 1700]).unwrap();
        frame.prepend(200).unwrap().fill(8);
        Chain::from(frame)
    };
    for _ in 0..20 {
        let chain = wide(&mut left);
        left.sender().send_chain(chain).unwrap();
    }
    left.sender().flush().unwrap();
    assert_eq!(right.receiver().stats().dropped, 20);
    send_copies(&mut left, &[vec![3; 100]]);
    assert_eq!(receive_chains(&mut right, 1), [vec![3; 100]]);
    let few = Port::memory_builder().multi_buffer(true).frame_count(4, 64).memory_pair();
    let (mut left, mut right) = few.unwrap();
    // Six frames, of which there are four; then three.
    send_copies(&mut left, &[vec![1; 10_000], vec![2; 5000]]);
    assert_eq!(receive_chains(&mut right, 1), [vec![2; 5000]]);
    assert_eq!(right.receiver().stats().dropped, 1);
}

#[test]
fn a_packet_with_too_many_pieces_is_counted_and_skipped() {
    let lab = lab!(Lab::builder().mtu(9000));
    let mut left = open_in_mode(lab.left(), Mode::PacketRing);
    let few = |builder: PortBuilder| {
        builder
            .mode(Mode::PacketRing)
            .multi_buffer(true)
            .area(&area_with_frames_of(2048))
            .frame_count(4, 4)
            .ring_sizes(64, 4)
    };
    let mut right = open_port_with(lab.right(), few).unwrap();
    send_copies(&mut left, &[numbered_packet(lab.right(), 1, 9014), numbered_packet(lab.right(), 2, 5000)]);
    assert_eq!(receive_chains(&mut right, 1), [numbered_packet(lab.right(), 2, 5000)]);
    assert_eq!(right.receiver().stats().dropped, 1);
    assert_all_frames_returned(&mut right);
}

#[test]
fn multi_buffer_beside_a_port_without_it_is_refused() {
    let lab = lab!(Lab::builder().queues(2));
    let first = open_port_with(lab.left(), |builder| builder).unwrap();
    let error = open_port_with(lab.left(), |builder| builder.queue(1).multi_buffer(true)).unwrap_err();
    assert!(error.to_string().contains("open that port with multi_buffer"), "{error}");
    drop(first);
}
