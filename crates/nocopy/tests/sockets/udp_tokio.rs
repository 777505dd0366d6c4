//! The halves in tokio programs: sending resolves when the message is handed over, and again when its memory is free.
#![cfg(feature = "tokio")]

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nocopy::Buffer;
use nocopy::udp::tokio::{AsyncReceiver, AsyncSendError, AsyncSender};
use nocopy::udp::{Message, Method, Socket};
use nocopy_lab::patience::uninterrupted;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::common::PATIENCE;
use crate::common::lab;

const METHODS: [Method; 5] =
    [Method::Socket, Method::ZeroCopy, Method::ZeroCopyGso, Method::UringZeroCopy, Method::UringZeroCopyGso];

fn pair(method: Method) -> (AsyncSender, AsyncReceiver, SocketAddr) {
    let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let receiver = Socket::builder().receive_buffer(4 << 20).bind(local).unwrap();
    let to = receiver.local_address().unwrap();
    let mut sender = Socket::builder().method(method).bind(local).unwrap();
    sender.connect(to).unwrap();
    let (sender, receiver) = (sender.split().1, receiver.split().0);
    (AsyncSender::new(sender).unwrap(), AsyncReceiver::new(receiver).unwrap(), to)
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

#[tokio::test]
async fn buffers_come_back_with_their_evidence_once_they_are_free() {
    for method in METHODS {
        let (sender, mut receiver, _) = pair(method);
        let mut free = Vec::new();
        for number in 0..100_u8 {
            free.push(within(sender.send(Buffer::from(vec![number; 500]))).await.unwrap());
        }
        let mut received = Vec::new();
        while received.len() < 100 {
            let batch = within(receiver.receive()).await.unwrap();
            received.extend(batch.datagrams().map(|datagram| datagram.bytes.to_vec()));
        }
        assert!(received.iter().zip(0..).all(|(bytes, number)| *bytes == [number; 500]), "{method}");
        for (number, free) in (0_u8..).zip(free) {
            let completed = within(free.wait()).await.unwrap();
            let back = completed.message.into_pieces().next().unwrap().into_owner::<Vec<u8>>().unwrap();
            assert_eq!(back, [number; 500], "{method}");
        }
        assert_eq!(sender.with(|sender| sender.in_flight()), 0);
    }
}

#[tokio::test]
async fn a_late_completion_of_a_ring_wakes_the_task_that_waits() {
    let lab = lab!();
    let shape = |what, rate| {
        let arguments = ["qdisc", what, "dev", lab.left().interface(), "root", "tbf"];
        let shaper = ["rate", rate, "burst", "1514", "limit", "100000"];
        let status =
            || Command::new("tc").args(arguments.into_iter().chain(shaper)).status().expect("tc is there");
        assert!(lab.left().namespace().run(status).success());
    };
    // The first goes at once. Each that follows waits for over a minute.
    shape("replace", "100bit");
    let address = |end: &nocopy_lab::End, port| SocketAddr::new(end.ipv4().into(), port);
    let builder = Socket::builder().method(Method::UringZeroCopy);
    let socket = lab.left().namespace().run(|| builder.bind(address(lab.left(), 0))).unwrap();
    let sender = AsyncSender::new(socket.split().1).unwrap();
    // There is a receiver, or the network's errors would wake the task.
    let listens = || std::net::UdpSocket::bind(address(lab.right(), 0)).unwrap();
    let receiver = lab.right().namespace().run(listens);
    let to = receiver.local_addr().unwrap();
    let mut free = Vec::new();
    for number in 0..5_u8 {
        free.push(within(sender.send_to(Buffer::from(vec![number; 1000]), to)).await.unwrap());
    }
    let mut last = Box::pin(free.pop().unwrap().wait());
    assert!(
        tokio::time::timeout(Duration::ZERO, &mut last).await.is_err(),
        "it is held back, and waited for"
    );
    assert!(sender.with(|sender| sender.in_flight()) > 0);
    shape("change", "1gbit");
    // The queue is looked at when something comes behind it.
    let nudge = || std::net::UdpSocket::bind(address(lab.left(), 0)).unwrap();
    lab.left().namespace().run(nudge).send_to(&[7], to).unwrap();
    assert_eq!(*within(last).await.unwrap().message.pieces()[0], [4; 1000]);
    for (number, free) in (0_u8..).zip(free) {
        assert_eq!(*within(free.wait()).await.unwrap().message.pieces()[0], [number; 1000]);
    }
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    for number in 0..5_u8 {
        let mut bytes = [0; 1500];
        let length = uninterrupted(|| receiver.recv(&mut bytes)).unwrap();
        assert_eq!(bytes[..length], [number; 1000]);
    }
}

#[tokio::test]
async fn many_tasks_fill_a_ring_and_each_gets_its_own_back() {
    let (sender, receiver, _) = pair(Method::UringZeroCopy);
    drop(receiver);
    // More than the ring takes at a time, in more messages than are queued.
    let tasks: Vec<_> = (0..1500_u32)
        .map(|number| {
            let sender = sender.clone();
            tokio::spawn(async move {
                let free = loop {
                    match sender.send(Buffer::from(number.to_be_bytes().to_vec())).await {
                        Ok(free) => break free,
                        Err(AsyncSendError::Refused(_)) => {} // nobody is there
                        Err(error) => panic!("{error}"),
                    }
                };
                let done = free.wait().await.unwrap();
                assert_eq!(*done.message.pieces()[0], number.to_be_bytes());
            })
        })
        .collect();
    for task in tasks {
        within(task).await.unwrap();
    }
    assert_eq!(sender.with(|sender| (sender.queued(), sender.in_flight())), (0, 0));
}

/// Memory of a program that looks at the sender when it gets it back.
struct Curious(AsyncSender);

impl AsRef<[u8]> for Curious {
    fn as_ref(&self) -> &[u8] {
        b"curious"
    }
}

impl Drop for Curious {
    fn drop(&mut self) {
        assert_eq!(self.0.with(|sender| sender.queued()), 0);
    }
}

#[tokio::test]
async fn what_is_dropped_while_the_sender_is_locked_locks_nobody_out() {
    let (sender, _receiver, _) = pair(Method::Socket);
    let pool = sender.with(|sender| sender.pool().clone());
    let buffer = sender.with(nocopy::udp::Sender::buffer).unwrap();
    let free = within(sender.send(buffer)).await.unwrap();
    let curious = within(sender.send(Buffer::from_owner(Curious(sender.clone())))).await.unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        sender.with(|_| drop(free));
        drop(curious);
        drop(sender);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(PATIENCE).expect("a thread that waits for itself");
    assert_eq!(pool.at_home(), pool.total());
}

#[tokio::test]
async fn buffers_nobody_waits_for_go_home() {
    let (sender, _receiver, _) = pair(Method::ZeroCopyGso);
    let pool = sender.with(|sender| sender.pool().clone());
    for _ in 0..3 * pool.total() {
        let mut buffer = loop {
            match sender.with(nocopy::udp::Sender::buffer) {
                Some(buffer) => break buffer,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        buffer.resize(5000);
        drop(within(sender.send(Message::segments(buffer, 1000))).await.unwrap());
    }
    drop(sender);
    let give_up = Instant::now() + PATIENCE;
    while pool.at_home() < pool.total() {
        assert!(Instant::now() < give_up, "{} of {} are home", pool.at_home(), pool.total());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn many_tasks_share_a_sender_whose_send_buffer_is_small() {
    let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let receiver = Socket::builder().receive_buffer(4 << 20).bind(local).unwrap();
    let to = receiver.local_address().unwrap();
    let mut receiver = AsyncReceiver::new(receiver.split().0).unwrap();
    let socket = Socket::builder().method(Method::SendMmsg).send_buffer(4096).bind(local).unwrap();
    let sender = AsyncSender::new(socket.split().1).unwrap();
    // No more are under way than fit any receive buffer: the kernel drops none.
    let room = Arc::new(tokio::sync::Semaphore::new(50));
    let tasks: Vec<_> = (0..10_u8)
        .map(|task| {
            let (sender, room) = (sender.clone(), Arc::clone(&room));
            tokio::spawn(async move {
                for _ in 0..50 {
                    room.acquire().await.unwrap().forget();
                    let free = sender.send_to(Buffer::from(vec![task; 1000]), to).await.unwrap();
                    free.wait().await.unwrap();
                }
            })
        })
        .collect();
    let mut counts = [0; 10];
    while counts.iter().sum::<usize>() < 500 {
        let batch = within(receiver.receive()).await.unwrap();
        batch.datagrams().for_each(|datagram| counts[usize::from(datagram.bytes[0])] += 1);
        room.add_permits(batch.len());
    }
    assert_eq!(counts, [50; 10]);
    for task in tasks {
        within(task).await.unwrap();
    }
}

/// For programs that have a loop of their own.
#[tokio::test]
#[allow(unsafe_code)]
async fn what_a_half_is_waited_for_by_can_be_watched() {
    let mut socket = Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let here = socket.local_address().unwrap();
    let there = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let descriptor = socket.as_fd().try_clone_to_owned().unwrap();
    // SAFETY: an `OwnedFd` is the same open descriptor until it is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }.unwrap();
    for number in 0..3_u8 {
        let sent = there.send_to(&[number], here);
        let mut ready = within(watched.readable()).await.unwrap();
        assert_eq!(sent.unwrap(), 1);
        let batch = socket.receiver().try_receive().unwrap();
        assert_eq!(batch.datagrams().next().unwrap().bytes, [number]);
        ready.clear_ready();
        assert!(tokio::time::timeout(Duration::ZERO, watched.readable()).await.is_err(), "all was received");
    }
}
