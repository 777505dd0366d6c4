//! A future that is dropped after any poll loses nothing, and repeats nothing: each is polled up to three
//! times at each await point that it can be made to reach, and dropped; then the work goes on.
#![cfg(feature = "tokio")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;

use nocopy::tcp::{self, AsyncStream, Listener, NonblockingSender, Stream};
use nocopy::udp::{self, Socket};
use nocopy::{Buffer, Pool};
use nocopy_lab::Namespace;
use nocopy_lab::patience::uninterrupted;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::common::methods::available_methods;
use crate::common::polled::{PolledFuture, is_pending};
use crate::common::stream::{PATIENCE, assert_same, stream_pattern};

const POLLS_MAX: usize = 3;

/// More than the kernel takes for a peer that does not read.
const QUEUED_BYTES: usize = 8 << 20;

async fn within_patience<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

/// Polls a future so many times, or until it ends; otherwise drops it.
fn poll_times<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut polled = PolledFuture::new(future);
    (0..polls).find_map(|_| polled.poll())
}

/// Polls a future that does not end, makes `event` happen, and drops it when it is woken.
async fn drop_when_woken<F: Future>(future: F, polls: usize, event: impl FnOnce()) {
    let mut polled = PolledFuture::new(future);
    assert!((0..polls).all(|_| polled.poll().is_none()), "nothing is there");
    event();
    polled.wait_until_woken().await;
}

#[tokio::test]
async fn a_dropped_udp_receive_loses_and_repeats_nothing() {
    for polls in 1..=POLLS_MAX {
        let socket = Socket::bind("127.0.0.1:0").unwrap();
        let (client, to) = (UdpSocket::bind("127.0.0.1:0").unwrap(), socket.local_addr().unwrap());
        let mut receiver = socket.split().0.into_async().unwrap();
        for number in 0..3 {
            drop_when_woken(receiver.receive(), polls, || {
                client.send_to(&[number], to).unwrap();
            })
            .await;
            let batch = within_patience(receiver.receive()).await.unwrap();
            assert_eq!(batch.map(|datagram| datagram.to_vec()).collect::<Vec<_>>(), [[number]]);
        }
        assert!(is_pending(receiver.receive()), "each came once");
        assert_eq!(receiver.stats().moved, 3);
    }
}

#[tokio::test]
async fn a_dropped_wait_for_a_udp_buffer_loses_none() {
    for polls in 1..=POLLS_MAX {
        let pool = Pool::new(1, 2048).unwrap();
        let socket = Socket::builder().send_pool(&pool).bind("127.0.0.1:0").unwrap();
        let mut sender = socket.split().1.into_async().unwrap();
        let held = within_patience(sender.buffer()).await.unwrap();
        // A timer wakes a sender whose buffers are with others.
        drop_when_woken(sender.buffer(), polls, || {}).await;
        drop(held);
        let buffer = within_patience(sender.buffer()).await.unwrap();
        assert!(udp::NonblockingSender::buffer(&mut sender).is_none(), "it is the only one");
        drop(buffer);
        assert!(poll_times(sender.buffer(), 1).is_some());
    }
}

/// The loopback of a namespace is so slow that the socket's send buffer fills.
#[tokio::test]
async fn dropped_udp_sends_lose_and_repeat_nothing() {
    let namespace = match Namespace::new() {
        Err(nocopy_lab::Error::Missing(missing)) => return nocopy_lab::skip(&missing),
        namespace => namespace.unwrap(),
    };
    let run = |program, arguments: &str| {
        let status = || Command::new(program).args(arguments.split(' ')).status().expect("it is installed");
        assert!(namespace.run(status).success(), "{program} {arguments}");
    };
    let shape = |rate| {
        run("tc", &format!("qdisc replace dev lo root tbf rate {rate} burst 1514 limit 1000000"));
    };
    run("ip", "link set lo up mtu 1500");
    for polls in 1..=POLLS_MAX {
        // The first leaves at once. Each that follows waits for over a minute.
        shape("100bit");
        let open = || {
            let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
            receiver.set_read_timeout(Some(PATIENCE)).unwrap();
            let to = receiver.local_addr().unwrap();
            let builder = Socket::builder().method(udp::Method::Socket).send_buffer(1);
            let mut socket = builder.bind("127.0.0.1:0").unwrap();
            socket.connect(to).unwrap();
            (receiver, socket.split().1)
        };
        let (receiver, sender) = namespace.run(open);
        let to = receiver.local_addr().unwrap();
        let mut sender = sender.into_async().unwrap();
        let numbered = |number: u32| [&number.to_be_bytes()[..], &[0; 1000]].concat();
        let mut sent = 0;
        while let Some(done) = poll_times(sender.send_copy(&numbered(sent)), polls) {
            done.unwrap();
            sent += 1;
            assert!(sent < 1000, "the send buffer is small");
        }
        assert!(sent > 0);
        sender.send(Buffer::from(numbered(sent))).unwrap();
        assert!(poll_times(sender.flush(), polls).is_none());
        assert!(poll_times(sender.drain(), polls).is_none());
        assert!(poll_times(sender.send_copy(&numbered(sent + 1)), polls).is_none());
        assert!(poll_times(sender.send_copy_to(&numbered(sent + 1), to), polls).is_none());
        assert_eq!(sender.stats().moved, u64::from(sent));
        shape("1gbit");
        // The queue is looked at when something is queued after it.
        let nudge = namespace.run(|| UdpSocket::bind("127.0.0.1:0").unwrap());
        nudge.send_to(&[7], nudge.local_addr().unwrap()).unwrap();
        within_patience(sender.drain()).await.unwrap();
        within_patience(sender.send_copy(&numbered(sent + 1))).await.unwrap();
        within_patience(sender.send_copy_to(&numbered(sent + 2), to)).await.unwrap();
        assert_eq!((sender.stats().moved, sender.in_flight()), (u64::from(sent) + 3, 0));
        for number in 0..sent + 3 {
            let mut bytes = [0; 2000];
            let length = uninterrupted(|| receiver.recv(&mut bytes)).unwrap();
            assert_eq!(bytes[..length], numbered(number), "{polls} polls");
        }
        receiver.set_nonblocking(true).unwrap();
        assert_eq!(receiver.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}

/// Both forms of a receiving half: of a split stream, and alone.
fn receivers() -> impl Iterator<Item = (tcp::AsyncReceiver, Box<dyn Send>, TcpStream)> {
    [true, false].into_iter().map(|is_split| {
        let (stream, peer) = connected_pair(Stream::builder());
        if is_split {
            let (receiver, sender) = stream.into_async().unwrap().into_split();
            (receiver, Box::new(sender) as Box<dyn Send>, peer)
        } else {
            let (receiver, sender) = stream.split();
            (receiver.into_async().unwrap(), Box::new(sender) as Box<dyn Send>, peer)
        }
    })
}

/// A stream, and its peer, whose receive buffer does not grow.
fn connected_pair(builder: tcp::Builder) -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = builder.connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    socket2::SockRef::from(&peer).set_recv_buffer_size(256 << 10).unwrap();
    (stream, peer)
}

#[tokio::test]
async fn dropped_reads_of_a_stream_lose_and_repeat_nothing() {
    for polls in 1..=POLLS_MAX {
        for (mut receiver, _sender, mut peer) in receivers() {
            let mut buffer = [0; 2];
            drop_when_woken(receiver.receive(), polls, || peer.write_all(b"abcde").unwrap()).await;
            assert_eq!(within_patience(receiver.read(&mut buffer)).await.unwrap(), 2);
            assert_eq!(&buffer, b"ab");
            assert_eq!(within_patience(receiver.fill_buf()).await.unwrap(), b"cde");
            receiver.consume(1);
            let chunk = within_patience(receiver.receive()).await.unwrap().expect("the rest");
            assert_eq!(chunk.to_vec(), b"de");

            drop_when_woken(receiver.read(&mut buffer), polls, || peer.write_all(b"fgh").unwrap()).await;
            assert_eq!(within_patience(receiver.fill_buf()).await.unwrap(), b"fgh");
            receiver.consume(3);

            drop_when_woken(receiver.fill_buf(), polls, || peer.write_all(b"ijk").unwrap()).await;
            let chunk = within_patience(receiver.receive()).await.unwrap().expect("what came");
            assert_eq!(chunk.to_vec(), b"ijk");
            assert!(is_pending(receiver.receive()), "each byte came once");

            drop_when_woken(receiver.read(&mut buffer), polls, || drop(peer)).await;
            assert_eq!(within_patience(receiver.read(&mut buffer)).await.unwrap(), 0);
            assert!(receiver.is_finished());
            assert_eq!(receiver.ledger().bytes(), 11);
        }
    }
}

#[tokio::test]
async fn dropped_writes_of_a_stream_lose_and_repeat_nothing() {
    let methods: Vec<_> = available_methods(tcp::Method::ALL).collect();
    for (polls, method) in (1..=POLLS_MAX).zip(methods.iter().copied().cycle()) {
        for is_split in [true, false] {
            let pool = Pool::new(1, 64 << 10).unwrap();
            let builder = Stream::builder().method(method).send_pool(&pool).send_buffer(64 << 10);
            let (stream, peer) = connected_pair(builder);
            let (_receiver, mut sender) = match is_split {
                true => {
                    let (receiver, sender) = stream.into_async().unwrap().into_split();
                    (Box::new(receiver) as Box<dyn Send>, sender)
                }
                false => {
                    let (receiver, sender) = stream.split();
                    (Box::new(receiver) as Box<dyn Send>, sender.into_async().unwrap())
                }
            };
            let pattern = stream_pattern(0, 2 * QUEUED_BYTES);
            let mut written = within_patience(sender.write(&pattern[..1])).await.unwrap();
            while let Some(bytes) = poll_times(sender.write(&pattern[written..]), polls) {
                written += bytes.unwrap();
                assert!(written < QUEUED_BYTES, "the peer does not read");
            }
            let mut buffer = within_patience(sender.buffer()).await.unwrap();
            sender.send(Buffer::from(pattern[written..written + QUEUED_BYTES].to_vec())).unwrap();
            written += QUEUED_BYTES;
            buffer.fill(&pattern[written..written + 1000]).unwrap();
            sender.send(buffer).unwrap();
            written += 1000;
            assert!(poll_times(sender.flush(), polls).is_none());
            assert!(poll_times(AsyncWriteExt::flush(&mut sender), polls).is_none());
            assert!(poll_times(sender.buffer(), polls).is_none());
            assert!(poll_times(sender.drain(), polls).is_none());
            assert!(poll_times(sender.write(b"not sent"), polls).is_none());
            assert!(poll_times(sender.shutdown(), polls).is_none());
            assert!(poll_times(sender.finish(), polls).is_none());
            let reading = thread::spawn(move || {
                let (mut peer, mut all) = (peer, Vec::new());
                peer.read_to_end(&mut all).unwrap();
                all
            });
            let buffer = within_patience(sender.buffer()).await.unwrap();
            assert!(NonblockingSender::buffer(&mut sender).is_none(), "it is the only one");
            sender.recycle(buffer);
            within_patience(sender.write_all(&pattern[written..written + 1000])).await.unwrap();
            written += 1000;
            within_patience(sender.finish()).await.unwrap();
            within_patience(sender.drain()).await.unwrap();
            assert_eq!(sender.ledger().bytes(), written as u64);
            let all = reading.join().unwrap();
            assert_same(&all, &pattern[..written], format_args!("{method}, {polls} polls"));
        }
    }
}

#[tokio::test]
async fn a_dropped_accept_loses_no_connection() {
    for polls in 1..=POLLS_MAX {
        let listener = Listener::bind("127.0.0.1:0").unwrap().into_async().unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = None;
        drop_when_woken(listener.accept(), polls, || client = TcpStream::connect(address).ok()).await;
        let (_stream, from) = within_patience(listener.accept()).await.unwrap();
        assert_eq!(from, client.expect("connected").local_addr().unwrap());
        assert!(is_pending(listener.accept()), "it came once");
    }
}

#[tokio::test]
async fn a_dropped_connect_leaves_nothing_open() {
    for polls in 1..=POLLS_MAX {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(poll_times(AsyncStream::connect(address), polls).is_none(), "the reactor has not run");
        let mut stream = within_patience(AsyncStream::connect(address)).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        drop(stream);
        for expected in [&b""[..], b"hello"] {
            let mut all = Vec::new();
            let _ = listener.accept().unwrap().0.read_to_end(&mut all); // a dropped attempt may be reset
            assert_eq!(all, expected, "{polls} polls");
        }
    }
}
