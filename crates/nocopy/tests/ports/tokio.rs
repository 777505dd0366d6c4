//! The halves of ports in tokio programs.

use std::time::Duration;

use crate::common::polled::{is_pending, poll_and_drop};
use crate::common::{PATIENCE, lab, numbered_packet, open_port, open_queues, send_packets};
use nocopy::port::{NonblockingReceiver, NonblockingSender};
use nocopy::{AsyncReceiver, AsyncSender, Frame, Port};

async fn within_patience<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

fn async_halves(port: Port) -> (AsyncReceiver<NonblockingReceiver>, AsyncSender<NonblockingSender>) {
    let (receiver, sender) = port.split();
    (receiver.into_async().unwrap(), sender.into_async().unwrap())
}

/// Sends single packets, each in its own frame, more than there are frames.
async fn send_all(sender: &mut AsyncSender<NonblockingSender>, packets: &[Vec<u8>]) {
    for packet in packets {
        let mut frame = within_patience(sender.buffer()).await.unwrap();
        frame.fill(packet).expect("fits");
        while let Err(rejected) = sender.send(frame) {
            assert!(matches!(rejected.reason, nocopy::Reason::Full), "{rejected}");
            frame = rejected.item;
            within_patience(sender.flush()).await.unwrap();
        }
    }
    within_patience(sender.drain()).await.unwrap();
}

async fn receive_all(receiver: &mut AsyncReceiver<NonblockingReceiver>, count: usize) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    while received.len() < count {
        let batch = within_patience(receiver.receive()).await.unwrap();
        received.extend(batch.map(|packet| packet.to_vec()));
    }
    received
}

#[tokio::test]
async fn async_memory_ports_echo_packets() {
    let (left, right) = Port::memory_builder().frame_count(64, 16).ring_sizes(64, 16).memory_pair().unwrap();
    let ((mut left_in, mut left_out), (mut right_in, mut right_out)) =
        (async_halves(left), async_halves(right));
    tokio::spawn(async move {
        loop {
            let batch = right_in.receive().await.unwrap();
            batch.for_each(|packet| right_out.send(packet.take()).unwrap());
            right_out.flush().await.unwrap();
        }
    });
    for number in 0..200_u32 {
        send_all(&mut left_out, &[number.to_le_bytes().to_vec()]).await;
        assert_eq!(receive_all(&mut left_in, 1).await, [number.to_le_bytes()]);
    }
}

#[tokio::test]
async fn a_port_sends_more_packets_than_it_has_frames() {
    let lab = lab!();
    let mut right = async_halves(open_port(lab.right()));
    let left =
        crate::common::open_port_with(lab.left(), |builder| builder.frame_count(64, 16).ring_sizes(64, 16));
    let mut left = async_halves(left.unwrap());
    let packets: Vec<_> = (0..300).map(|number| numbered_packet(lab.right(), number, 200)).collect();
    let (received, ()) = tokio::join!(receive_all(&mut right.0, 300), send_all(&mut left.1, &packets));
    assert_eq!(received, packets);
    assert_eq!((left.1.stats().moved, right.0.stats().moved), (300, 300));
}

#[tokio::test]
async fn a_waiting_receiver_without_frames_uses_returned_ones() {
    let lab = lab!();
    let right =
        crate::common::open_port_with(lab.right(), |builder| builder.frame_count(8, 8).ring_sizes(8, 8));
    let (mut receiver, _sender) = async_halves(right.unwrap());
    let mut left = async_halves(open_port(lab.left())).1;
    let packets: Vec<_> = (0..8).map(|number| numbered_packet(lab.right(), number, 200)).collect();
    send_all(&mut left, &packets).await;
    let mut held: Vec<Frame> = Vec::new();
    while held.len() < 8 {
        held.extend(within_patience(receiver.receive()).await.unwrap().map(|packet| packet.take()));
    }
    let home = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(held);
        tokio::time::sleep(Duration::from_millis(20)).await;
        send_all(&mut left, &packets[..1]).await;
    });
    assert_eq!(within_patience(receiver.receive()).await.unwrap().count(), 1);
    home.await.unwrap();
}

#[tokio::test]
async fn all_queues_are_one_async_receiver() {
    let lab = lab!(nocopy_lab::Lab::builder().queues(2));
    let mut queues = open_queues(lab.right(), |builder| builder).into_async().unwrap();
    let (mut left_in, mut left) = async_halves(open_port(lab.left()));
    let packets: Vec<_> = (0..50).map(|number| numbered_packet(lab.right(), number, 200)).collect();
    send_all(&mut left, &packets).await;
    let mut received = 0;
    while received < 50 {
        let batch = within_patience(queues.receive()).await.unwrap();
        assert!(batch.queue() < 2);
        received += batch.count();
    }
    assert_eq!(queues.stats().moved, 50);
    // Its sending halves send what it received.
    send_all(&mut left, &packets[..1]).await;
    let frame = within_patience(queues.receive()).await.unwrap().next().expect("a packet").take();
    let first = queues.senders().next().expect("a queue");
    first.send(frame).unwrap();
    while !first.try_flush().unwrap() {
        tokio::task::yield_now().await;
    }
    assert_eq!(receive_all(&mut left_in, 1).await, packets[..1]);
}

#[tokio::test]
async fn a_dropped_receive_loses_and_repeats_no_packet() {
    for polls in 1..=4 {
        let builder = Port::memory_builder().frame_count(8, 8).ring_sizes(8, 8);
        let (mut left, right) = builder.memory_pair().unwrap();
        let (mut receiver, _sender) = async_halves(right);
        let packets: Vec<_> = (0..9_u32).map(|number| number.to_le_bytes().to_vec()).collect();
        assert!(is_pending(receiver.receive()));
        send_packets(&mut left, &packets[..8]);
        let held: Vec<Frame> =
            within_patience(receiver.receive()).await.unwrap().map(|packet| packet.take()).collect();
        assert_eq!(held.len(), 8);
        // A timer wakes a receiver without frames.
        poll_and_drop(receiver.receive(), polls, || {}).await;
        drop(held);
        poll_and_drop(receiver.receive(), 1, || send_packets(&mut left, &packets[8..])).await;
        assert_eq!(receive_all(&mut receiver, 1).await, packets[8..]);
        assert!(is_pending(receiver.receive()), "each came once");
        assert_eq!((receiver.stats().moved, receiver.stats().dropped), (9, 0));
    }
}

#[tokio::test]
async fn a_dropped_receive_of_queues_loses_and_repeats_no_packet() {
    for polls in 1..=4 {
        let lab = lab!(nocopy_lab::Lab::builder().queues(2));
        let queues = open_queues(lab.right(), |builder| builder.frame_count(8, 8).ring_sizes(8, 8));
        let mut queues = queues.into_async().unwrap();
        let mut left = open_port(lab.left());
        let packets: Vec<_> = (0..9).map(|number| numbered_packet(lab.right(), number, 200)).collect();
        assert!(is_pending(queues.receive()));
        send_packets(&mut left, &packets[..8]);
        let mut held: Vec<Frame> = Vec::new();
        while held.len() < 8 {
            held.extend(within_patience(queues.receive()).await.unwrap().map(|packet| packet.take()));
        }
        // A timer wakes a receiver without frames.
        poll_and_drop(queues.receive(), polls, || {}).await;
        drop(held);
        poll_and_drop(queues.receive(), 1, || send_packets(&mut left, &packets[8..])).await;
        let batch = within_patience(queues.receive()).await.unwrap();
        assert_eq!(batch.map(|packet| packet.to_vec()).collect::<Vec<_>>(), packets[8..]);
        assert!(is_pending(queues.receive()), "each came once");
        assert_eq!((queues.stats().moved, queues.stats().dropped), (9, 0));
    }
}
