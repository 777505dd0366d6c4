//! Stats and ledgers of the halves agree with what was sent and received.

use std::time::Instant;

use crate::common::{PATIENCE, lab, numbered_packet, open_port_with, open_queues};
use nocopy::filter::Program;
use nocopy::integration::poll;
use nocopy::{Cause, Chain, Evidence, Frame, Port, Reason, ReceiverHalf, SenderHalf};
use rustix::event::{PollFd, PollFlags};

fn filled_frame(port: &mut Port, bytes: usize) -> Frame {
    let mut frame = port.sender().buffer().expect("a free frame");
    frame.append(bytes).expect("fits").fill(7);
    frame
}

fn sent_and_received_counts(port: &mut Port) -> ((u64, u64), (u64, u64)) {
    let (sent, received) = (port.sender().stats(), port.receiver().stats());
    ((sent.moved, sent.bytes), (received.moved, received.bytes))
}

#[test]
fn stats_agree_with_what_was_sent_and_received() {
    let (mut left, mut right) = Port::memory_builder().multi_buffer(true).memory_pair().unwrap();
    let frame = filled_frame(&mut left, 100);
    left.sender().send(frame).unwrap();
    left.sender().send_copy(&[1; 10]).unwrap();
    let chain: Chain<Frame> = (0..3).map(|_| filled_frame(&mut left, 50)).collect();
    left.sender().send_chain(chain).unwrap();
    assert_eq!(sent_and_received_counts(&mut left), ((0, 0), (0, 0)), "the kernel has taken nothing yet");
    let mut drafts = left.sender().drafts(2, 30).unwrap();
    while let Some(mut draft) = drafts.next_draft() {
        draft.truncate(20);
        draft.queue();
    }
    drop(drafts);
    left.sender().flush().unwrap();
    left.sender().flush().unwrap(); // of nothing
    let bytes = 100 + 10 + 150 + 40;
    assert_eq!(sent_and_received_counts(&mut left), ((5, bytes), (0, 0)));
    let mut count = 0;
    let mut batch = right.receiver().receive().unwrap();
    assert_eq!(batch.queue(), 0);
    while batch.next_chain().is_some() {
        count += 1;
    }
    drop(batch);
    assert_eq!((count, sent_and_received_counts(&mut right)), (5, ((0, 0), (5, bytes))));

    let stats = left.sender().stats();
    assert_eq!((stats.dropped, stats.faults, stats.flushes), (0, 0, 1));
    let ledger = left.sender().ledger();
    assert_eq!((ledger.datagrams(), ledger.bytes()), (5, bytes));
    let expected = [(Evidence::Copied(Cause::MemoryPort), bytes - 10), (Evidence::Copied(Cause::Slice), 10)];
    assert!(ledger.into_iter().eq(expected), "{ledger}");
    assert_eq!(right.receiver().ledger().bytes_of(Evidence::Copied(Cause::MemoryPort)), bytes);
}

#[test]
fn unread_packets_do_not_count_as_received() {
    let (mut left, mut right) = Port::memory_pair().unwrap();
    for _ in 0..10 {
        left.sender().send_copy(b"packet").unwrap();
    }
    left.sender().flush().unwrap();
    let mut batch = right.receiver().receive().unwrap();
    let taken: Vec<Frame> = batch.by_ref().take(3).map(|packet| packet.take()).collect();
    drop(batch);
    assert_eq!((taken.len(), sent_and_received_counts(&mut right).1), (3, (3, 18)));
    assert_eq!(right.receiver().receive().unwrap().count(), 7);
    assert_eq!(sent_and_received_counts(&mut right).1, (10, 60));
}

#[test]
fn a_refused_send_copy_queues_nothing() {
    let builder = Port::memory_builder().multi_buffer(true).frame_count(64, 4).ring_sizes(64, 64);
    let (mut left, mut right) = builder.memory_pair().unwrap();
    left.sender().send_copy(&[1; 4000]).unwrap(); // three of four frames
    assert!(matches!(left.sender().send_copy(&[2; 4000]), Err(Reason::Full)));
    assert!(matches!(left.sender().send_copy(&[]), Err(Reason::Empty)));
    assert!(matches!(left.sender().send_copy(&vec![0; 1 << 20]), Err(Reason::TooLong { .. })));
    left.sender().flush().unwrap();
    left.sender().send_copy(&[2; 4000]).unwrap(); // frames came back
    assert!(left.sender().drain(PATIENCE).unwrap());
    let mut batch = right.receiver().receive().unwrap();
    let received: Vec<Vec<u8>> =
        std::iter::from_fn(|| batch.next_chain()).map(|packet| packet.to_vec()).collect();
    assert_eq!(received, [vec![1; 4000], vec![2; 4000]]);
    let balance = left.balance();
    assert!(balance.is_balanced() && balance.in_use == 0, "{balance}");
    assert_eq!(left.sender().ledger().bytes_of(Evidence::Copied(Cause::Slice)), 8000);
}

#[test]
fn losses_by_a_full_ring_and_by_the_filter_are_counted_apart() {
    // ldb [0]; jeq #1; ret #-1; ret #0
    let filter = Program::parse("4\n48 0 0 0\n21 0 1 1\n6 0 0 4294967295\n6 0 0 0\n").unwrap();
    let builder = Port::memory_builder().ring_sizes(8, 64).frame_count(64, 64).filter(&filter);
    let (mut left, mut right) = builder.memory_pair().unwrap();
    for kind in [0, 1, 0, 1, 1, 0, 1, 1, 1, 1] {
        left.sender().send_copy(&[kind; 60]).unwrap(); // two more than the ring has room for
    }
    left.sender().flush().unwrap();
    let mut received = 0;
    while received < 5 {
        received += right.receiver().receive_timeout(PATIENCE).unwrap().count();
    }
    let stats = right.receiver().stats();
    assert_eq!((stats.moved, stats.bytes), (5, 300), "{stats}");
    assert_eq!(
        (stats.get("rx_ring_full").unwrap(), stats.get("filter_lost").unwrap(), stats.dropped),
        (2, 3, 5),
        "{stats}"
    );
}

/// Receives that many packets from any half whose batches are iterators.
fn receive_with_any_half<R>(half: &mut R, count: usize) -> usize
where
    R: ReceiverHalf,
    for<'half> R::Received<'half>: Iterator,
{
    let mut received = 0;
    let deadline = Instant::now() + PATIENCE;
    while received < count {
        assert!(Instant::now() < deadline, "{received} of {count} packets");
        if !half.arm().unwrap() {
            poll(&mut [PollFd::new(half, PollFlags::IN)], Some(PATIENCE)).unwrap();
        }
        received += half.try_receive().unwrap().count();
    }
    assert_eq!(half.try_receive().unwrap().count(), 0);
    received
}

fn flush_any_half(half: &mut impl SenderHalf<Buffer = Frame>) {
    let deadline = Instant::now() + PATIENCE;
    while !half.try_flush().unwrap() || half.in_flight() > 0 {
        assert!(Instant::now() < deadline, "{} frames are away", half.in_flight());
        if !half.arm().unwrap() {
            poll(&mut [PollFd::new(half, PollFlags::IN)], Some(PATIENCE)).unwrap();
        }
        half.reap();
    }
}

#[test]
fn queues_and_ports_implement_the_half_traits() {
    let lab = lab!(nocopy_lab::Lab::builder().queues(2));
    let mut queues = open_queues(lab.right(), |builder| builder);
    let mut left = open_port_with(lab.left(), |builder| builder).unwrap();
    for number in 0..20 {
        left.sender().send_copy(&numbered_packet(lab.right(), number, 100)).unwrap();
    }
    flush_any_half(&mut **left.sender());
    assert_eq!(receive_with_any_half(&mut *queues, 20), 20);
    let (ledger, stats) = (queues.ledger(), queues.stats());
    assert_eq!((ledger.datagrams(), ledger.bytes()), (20, 2000));
    assert_eq!((stats.moved, stats.bytes, stats.faults), (20, 2000, 0), "{stats}");
    let sent = left.sender().stats();
    assert_eq!((sent.moved, sent.bytes, sent.dropped), (20, 2000, 0), "{sent}");
}
