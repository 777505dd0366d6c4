//! Sockets in tokio programs: messages return when their memory is free, over the kernel's socket and over a
//! port.
#![cfg(feature = "tokio")]

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use nocopy::udp::{Ancillary, AsyncReceiver, AsyncSender, Builder, Ecn, Message, Method, Socket};
use nocopy::{Buffer, Mode, Port, Reason};
use nocopy_lab::patience::uninterrupted;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::common::PATIENCE;
use crate::common::lab;
use crate::common::methods::available_methods;

const METHODS: [Method; 5] =
    [Method::Socket, Method::ZeroCopy, Method::ZeroCopyGso, Method::UringZeroCopy, Method::UringZeroCopyGso];

fn ephemeral_address() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn async_pair(builder: Builder) -> (AsyncSender, AsyncReceiver, SocketAddr) {
    let receiver = Socket::builder().receive_buffer(4 << 20).bind(ephemeral_address()).unwrap();
    let to = receiver.local_addr().unwrap();
    let mut sender = builder.bind(ephemeral_address()).unwrap();
    sender.connect(to).unwrap();
    let (sender, receiver) = (sender.split().1, receiver.split().0);
    (sender.into_async().unwrap(), receiver.into_async().unwrap(), to)
}

async fn within_patience<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

/// All messages whose memory is free, after a wait for them.
async fn drain_completed(sender: &mut AsyncSender) -> Vec<nocopy::Completed<Message>> {
    within_patience(sender.drain()).await.unwrap();
    std::iter::from_fn(|| sender.completed()).collect()
}

#[tokio::test]
async fn completed_buffers_return_with_their_tickets() {
    for method in available_methods(METHODS) {
        let (mut sender, mut receiver, _) = async_pair(Socket::builder().method(method).return_buffers(true));
        let mut tickets = Vec::new();
        for number in 0..100_u8 {
            tickets.push(sender.send(Buffer::from(vec![number; 500])).unwrap());
            within_patience(sender.flush()).await.unwrap();
        }
        let mut received = Vec::new();
        while received.len() < 100 {
            let batch = within_patience(receiver.receive()).await.unwrap();
            received.extend(batch.map(|datagram| datagram.to_vec()));
        }
        assert!(received.iter().zip(0..).all(|(bytes, number)| *bytes == [number; 500]), "{method}");
        let mut completed = drain_completed(&mut sender).await;
        completed.sort_unstable_by_key(|done| tickets.iter().position(|ticket| *ticket == done.ticket));
        assert_eq!(completed.len(), 100, "{method}");
        for (number, done) in (0_u8..).zip(completed) {
            let back = done.item.into_iter().next().unwrap().into_owner::<Vec<u8>>().unwrap();
            assert_eq!(back, [number; 500], "{method}");
        }
        assert_eq!(sender.in_flight(), 0);
    }
}

#[tokio::test]
async fn a_late_ring_completion_wakes_the_task() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let lab = lab!();
    let shape = |what, rate| {
        let arguments = ["qdisc", what, "dev", lab.left().interface(), "root", "tbf"];
        let shaper = ["rate", rate, "burst", "1514", "limit", "100000"];
        let status =
            || Command::new("tc").args(arguments.into_iter().chain(shaper)).status().expect("tc is there");
        assert!(lab.left().namespace().run(status).success());
    };
    // The first leaves at once. Each that follows waits for over a minute.
    shape("replace", "100bit");
    let address = |end: &nocopy_lab::End, port| SocketAddr::new(end.ipv4().into(), port);
    let builder = Socket::builder().method(Method::UringZeroCopy).return_buffers(true);
    let socket = lab.left().namespace().run(|| builder.bind(address(lab.left(), 0))).unwrap();
    let mut sender = socket.split().1.into_async().unwrap();
    // There is a receiver, because otherwise the network's errors would wake the task.
    let listens = || std::net::UdpSocket::bind(address(lab.right(), 0)).unwrap();
    let receiver = lab.right().namespace().run(listens);
    let to = receiver.local_addr().unwrap();
    for number in 0..5_u8 {
        sender.send_to(Buffer::from(vec![number; 1000]), to).unwrap();
        within_patience(sender.flush()).await.unwrap();
    }
    {
        let mut drained = Box::pin(sender.drain());
        let now = tokio::time::timeout(Duration::from_millis(10), &mut drained).await;
        assert!(now.is_err(), "it is held back, and waited for");
    }
    assert!(sender.in_flight() > 0);
    shape("change", "1gbit");
    // The queue is looked at when something is queued after it.
    let nudge = || std::net::UdpSocket::bind(address(lab.left(), 0)).unwrap();
    lab.left().namespace().run(nudge).send_to(&[7], to).unwrap();
    let mut completed = drain_completed(&mut sender).await;
    completed.sort_unstable_by_key(|done| done.item.pieces()[0][0]);
    for (number, done) in (0_u8..5).zip(completed) {
        assert_eq!(*done.item.pieces()[0], [number; 1000]);
    }
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    for number in 0..5_u8 {
        let mut bytes = [0; 1500];
        let length = uninterrupted(|| receiver.recv(&mut bytes)).unwrap();
        assert_eq!(bytes[..length], [number; 1000]);
    }
}

/// More than a ring holds at a time, and more messages than the queue holds.
#[tokio::test]
async fn all_messages_return_from_a_full_queue_and_a_full_ring() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let (mut sender, receiver, _) =
        async_pair(Socket::builder().method(Method::UringZeroCopy).return_buffers(true));
    drop(receiver);
    let mut back = Vec::new();
    for number in 0..1500_u32 {
        let mut buffer = Buffer::from(number.to_be_bytes().to_vec());
        while let Err(rejected) = sender.send(buffer) {
            assert!(matches!(rejected.reason, nocopy::Reason::Full));
            buffer = rejected.item.into_iter().next().unwrap();
            let _ = within_patience(sender.flush()).await; // nobody receives, and the kernel may say so
        }
    }
    while within_patience(sender.flush()).await.is_err() {}
    back.extend(drain_completed(&mut sender).await);
    back.sort_unstable_by_key(|done| u32::from_be_bytes(done.item.pieces()[0][..].try_into().unwrap()));
    assert!(back.iter().zip(0_u32..).all(|(done, number)| *done.item.pieces()[0] == number.to_be_bytes()));
    assert_eq!((back.len(), sender.in_flight()), (1500, 0));
}

#[tokio::test]
async fn an_echo_works_by_the_kernels_socket_and_over_a_port() {
    let lab = lab!();
    for port in [false, true] {
        let address = SocketAddr::new(lab.left().ipv4().into(), 7790 + u16::from(port));
        let socket = lab.left().namespace().run(|| {
            let builder = Socket::builder();
            match port {
                false => builder.bind(address),
                true => {
                    let port = Port::builder(lab.left().interface()).mode(Mode::XdpCopyNative);
                    builder.method(Method::Xdp).port(port).bind(address)
                }
            }
        });
        let (receiver, sender) = socket.unwrap().split();
        let (mut receiver, mut sender) = (receiver.into_async().unwrap(), sender.into_async().unwrap());
        let peer =
            lab.right().namespace().run(|| std::net::UdpSocket::bind((lab.right().ipv4(), 0))).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        for round in 0..20_u8 {
            peer.send_to(&[round; 100], address).unwrap();
            let mut echoed = 0;
            while echoed == 0 {
                for datagram in within_patience(receiver.receive()).await.unwrap() {
                    let from = datagram.source();
                    sender.send_to(datagram.take(), from).unwrap();
                    echoed += 1;
                }
            }
            within_patience(sender.flush()).await.unwrap();
            let mut bytes = [0; 200];
            let length = uninterrupted(|| peer.recv(&mut bytes)).unwrap();
            assert_eq!(bytes[..length], [round; 100]);
        }
        within_patience(sender.drain()).await.unwrap();
        assert_eq!(sender.stats().moved, 20);
    }
}

/// The program's own loop can wait for the same events as a half.
#[tokio::test]
#[allow(unsafe_code)]
async fn descriptors_of_halves_can_be_watched() {
    let mut socket = Socket::bind(ephemeral_address()).unwrap();
    let here = socket.local_addr().unwrap();
    let there = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let descriptor = socket.receiver().as_fd().try_clone_to_owned().unwrap();
    // SAFETY: an `OwnedFd` is the same open descriptor until it is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }.unwrap();
    for number in 0..3_u8 {
        let sent = there.send_to(&[number], here);
        let mut ready = within_patience(watched.readable()).await.unwrap();
        assert_eq!(sent.unwrap(), 1);
        assert!(socket.receiver().arm().unwrap());
        let mut batch = socket.receiver().try_receive().unwrap();
        assert_eq!(*batch.next().unwrap(), [number]);
        drop(batch);
        ready.clear_ready();
        assert!(!socket.receiver().arm().unwrap());
        assert!(tokio::time::timeout(Duration::ZERO, watched.readable()).await.is_err(), "all was received");
    }
}

#[tokio::test]
async fn a_buffer_returned_by_another_task_ends_the_wait() {
    let pool = nocopy::Pool::new(1, 2048).unwrap();
    let (mut sender, _receiver, _) = async_pair(Socket::builder().send_pool(&pool));
    let held = within_patience(sender.buffer()).await.unwrap();
    let other = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(held);
    });
    drop(within_patience(sender.buffer()).await.unwrap());
    other.await.unwrap();
}

#[tokio::test]
async fn a_returned_frame_ends_the_wait_of_a_socket_over_a_port() {
    let lab = lab!();
    let (local, remote) = (lab.left().ipv4(), lab.right().ipv4());
    let port = Port::builder(lab.left().interface()).mode(Mode::XdpCopyNative);
    let port = port.frame_count(8, 8).ring_sizes(8, 8);
    let bind = || Socket::builder().port(port).bind((local, 7301)).unwrap();
    let mut receiver = lab.left().namespace().run(bind).split().0.into_async().unwrap();
    let peer = lab.right().namespace().run(|| std::net::UdpSocket::bind((remote, 7302)).unwrap());
    let mut held = Vec::new();
    while held.len() < 8 {
        peer.send_to(b"held", (local, 7301)).unwrap();
        held.extend(within_patience(receiver.receive()).await.unwrap().map(nocopy::udp::Datagram::take));
    }
    let home = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(held);
        tokio::time::sleep(Duration::from_millis(20)).await;
        peer.send_to(b"one more", (local, 7301)).unwrap();
    });
    let mut came = 0;
    while came == 0 {
        came = within_patience(receiver.receive()).await.unwrap().count();
    }
    home.await.unwrap();
}

#[tokio::test]
async fn a_task_sends_with_ecn_and_source() {
    let receiver = Socket::builder().receive_metadata(true).bind(ephemeral_address()).unwrap();
    let to = receiver.local_addr().unwrap();
    let mut receiver = receiver.split().0.into_async().unwrap();
    let mut sender = Socket::bind("0.0.0.0:0").unwrap().split().1.into_async().unwrap();
    let ancillary = Ancillary { ecn: Some(Ecn::Ce), source: Some([127, 0, 0, 2].into()) };
    sender.send_with(vec![1; 10], to, ancillary).unwrap();
    within_patience(sender.send_copy_with(&[2; 20], to, ancillary)).await.unwrap();
    let mut received = Vec::new();
    while received.len() < 2 {
        let batch = within_patience(receiver.receive()).await.unwrap();
        received.extend(batch.map(|datagram| (datagram[0], datagram.metadata().ecn, datagram.source().ip())));
    }
    assert_eq!(received, [1, 2].map(|first| (first, ancillary.ecn, ancillary.source.unwrap())));
    let foreign = Ancillary { source: Some([192, 0, 2, 1].into()), ..ancillary };
    let reason = within_patience(sender.send_copy_with(&[3; 20], to, foreign)).await.unwrap_err();
    assert!(matches!(reason, Reason::ForeignSource { .. }), "{reason}");
}

/// Rounds of a task that always finds something to do; more than tokio's budget.
const ROUNDS: usize = 1000;

#[tokio::test]
async fn a_flooded_receiver_lets_other_tasks_run() {
    let (_, mut receiver, to) = async_pair(Socket::builder());
    let flood = std::net::UdpSocket::bind(ephemeral_address()).unwrap();
    let other = tokio::spawn(async {});
    let is_alone = async |_| {
        flood.send_to(b"one more", to).unwrap();
        assert!(receiver.receive().await.unwrap().next().is_some());
        !other.is_finished()
    };
    assert!(rounds_while(is_alone).await < ROUNDS);
}

#[tokio::test]
async fn a_sender_with_room_lets_other_tasks_run() {
    let (mut sender, _receiver, _) = async_pair(Socket::builder());
    let other = tokio::spawn(async {});
    let by_copies = async |_| {
        sender.send_copy(b"one more").await.unwrap();
        !other.is_finished()
    };
    assert!(rounds_while(by_copies).await < ROUNDS);
    let other = tokio::spawn(async {});
    let by_flushes = async |_| {
        sender.send(vec![1]).unwrap();
        sender.flush().await.unwrap();
        !other.is_finished()
    };
    assert!(rounds_while(by_flushes).await < ROUNDS);
    let other = tokio::spawn(async {});
    let by_buffers = async |_| {
        let buffer = sender.buffer().await.unwrap();
        sender.send(buffer).ok(); // empty or not
        !other.is_finished()
    };
    assert!(rounds_while(by_buffers).await < ROUNDS);
}

/// Many receivers without data do not use up what a task may do: the last one's is received.
#[tokio::test]
async fn idle_receivers_take_no_budget() {
    let mut idle: Vec<_> = (0..200).map(|_| async_pair(Socket::builder())).collect();
    let (mut sender, mut last, _) = async_pair(Socket::builder());
    sender.send_copy(b"here").await.unwrap();
    let found = std::future::poll_fn(|cx| {
        for (_, receiver, _) in &mut idle {
            assert!(std::pin::pin!(receiver.receive()).poll(cx).is_pending());
        }
        std::pin::pin!(last.receive()).poll(cx).map(|batch| batch.unwrap().count())
    });
    assert_eq!(within_patience(found).await, 1);
}

/// The number of rounds that a program makes until it returns false, at most [`ROUNDS`].
async fn rounds_while(mut round: impl AsyncFnMut(usize) -> bool) -> usize {
    for number in 0..ROUNDS {
        if !round(number).await {
            return number;
        }
    }
    ROUNDS
}
