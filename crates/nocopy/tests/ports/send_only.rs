//! Ports without frames to receive into, on veth and in memory. The VM lab tests zero-copy.

use std::net::UdpSocket;

use nocopy::port::{OpenError, PortBuilder};
use nocopy::{Mode, Port};
use nocopy_lab::End;
use nocopy_lab::patience::{PATIENCE, uninterrupted};

const FRAMES: u32 = 64;

fn open_port(end: &End, set: impl FnOnce(PortBuilder) -> PortBuilder + Send) -> Port {
    end.namespace().run(|| set(Port::builder(end.interface())).open()).expect("opened")
}

/// Sends more packets than the port has frames.
fn send_numbered_packets(port: &mut Port, to: [u8; 6], count: u32) {
    for number in 0..count {
        let mut frame = loop {
            match port.sender().buffer() {
                Some(frame) => break frame,
                None => assert!(port.sender().drain(PATIENCE).unwrap(), "frames stay with the kernel"),
            }
        };
        write_numbered_packet(frame.append(60).unwrap(), to, number);
        port.sender().send(frame).unwrap();
    }
    assert!(port.sender().drain(PATIENCE).unwrap());
}

fn write_numbered_packet(bytes: &mut [u8], to: [u8; 6], number: u32) {
    bytes.fill(0);
    bytes[..6].copy_from_slice(&to);
    bytes[6] = 2;
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
}

fn receive_numbers(port: &mut Port, count: usize) -> Vec<u32> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let batch = port.receiver().receive_timeout(PATIENCE).unwrap();
        let before = numbers.len();
        numbers.extend(batch.map(|packet| u32::from_be_bytes(packet[14..18].try_into().unwrap())));
        assert!(numbers.len() > before, "only {} of {count} packets came", numbers.len());
    }
    numbers
}

#[test]
fn a_send_only_port_leaves_arriving_packets_to_the_host() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (left, right) = (lab.left(), lab.right());
    for mode in [None, Some(Mode::XdpCopyNative), Some(Mode::XdpCopyGeneric), Some(Mode::PacketRing)] {
        let mut port = open_port(left, |builder| {
            let builder = builder.frame_count(0, FRAMES).ring_sizes(FRAMES, FRAMES);
            mode.iter().fold(builder, |builder, mode| builder.mode(*mode))
        });
        assert_eq!(port.area().config().frame_count, FRAMES, "in the copy modes nothing is lent");
        {
            let mut peer = open_port(right, |builder| builder);
            send_numbered_packets(&mut port, right.mac(), 3 * FRAMES);
            assert_eq!(receive_numbers(&mut peer, 3 * FRAMES as usize), (0..3 * FRAMES).collect::<Vec<_>>());
        }
        let host = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 9000)).unwrap());
        host.set_read_timeout(Some(PATIENCE)).unwrap();
        let other = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 0)).unwrap());
        other.send_to(b"to the host", (left.ipv4(), 9000)).unwrap();
        let mut bytes = [0; 32];
        let length =
            uninterrupted(|| host.recv(&mut bytes)).expect("the host hears what arrives beside the port");
        assert_eq!(&bytes[..length], b"to the host");
        assert!(port.receiver().try_receive().unwrap().is_empty());
        let area = port.area().clone();
        let balance = port.balance();
        assert!(balance.is_balanced() && balance.free == u64::from(FRAMES), "{balance}");
        drop(port);
        assert_eq!(area.balance().free, u64::from(FRAMES), "{mode:?}: {}", area.balance());
    }
}

#[test]
fn without_receive_frames_arriving_packets_count_as_lost() {
    let builder = Port::memory_builder().frame_count(0, FRAMES).ring_sizes(FRAMES, FRAMES);
    let (mut left, mut right) = builder.memory_pair().unwrap();
    send_numbered_packets(&mut left, [2; 6], 3 * FRAMES);
    assert_eq!(right.receiver().stats().dropped, u64::from(3 * FRAMES));
    assert!(left.balance().is_balanced());
}

#[test]
fn an_unattached_sender_does_not_change_the_interface() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (left, right) = (lab.left(), lab.right());
    let mut receiving = open_port(right, |builder| builder.mode(Mode::XdpCopyNative));
    let mut sender = left.namespace().run(|| {
        let settings = || Port::builder(left.interface()).frame_count(0, FRAMES).ring_sizes(FRAMES, FRAMES);
        let sender = settings().open_sender().expect("opened");
        let refused = settings().open_sender().unwrap_err();
        assert!(matches!(refused, OpenError::QueueTaken { .. }), "{refused}");
        // Another program can be attached.
        let program = nocopy::integration::xdp::Program::pass().expect("loaded");
        drop(program.attach(left.interface(), nocopy::integration::xdp::Attach::Native).expect("attached"));
        sender
    });
    let to = right.mac();
    for number in 0..10 * FRAMES {
        let mut frame = loop {
            match sender.buffer() {
                Some(frame) => break frame,
                None => assert!(sender.drain(PATIENCE).unwrap(), "frames stay with the kernel"),
            }
        };
        write_numbered_packet(frame.append(60).unwrap(), to, number);
        sender.send(frame).unwrap();
        assert!(sender.queued() > 0);
    }
    assert!(sender.drain(PATIENCE).unwrap());
    assert_eq!(sender.queued(), 0);
    assert_eq!(receive_numbers(&mut receiving, 10 * FRAMES as usize), (0..10 * FRAMES).collect::<Vec<_>>());
    let too_long = vec![0; 1519];
    let mut frame = sender.buffer().unwrap();
    frame.fill(&too_long).unwrap();
    sender.send(frame).expect_err("longer than the interface takes");
}
