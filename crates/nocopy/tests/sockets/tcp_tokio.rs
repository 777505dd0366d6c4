//! The halves of a stream in tokio programs: they resolve when something can continue, and cost nothing until
//! then.
#![cfg(feature = "tokio")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use nocopy::Pool;
use nocopy::tcp::{AsyncReceiver, AsyncSender, Builder, Listener, Method, NonblockingSender, Stream};
use tokio::runtime::Runtime;

use crate::common::calls::count_calls;
use crate::common::methods::available_methods;
use crate::common::stream::{PATIENCE, assert_same, stream_pattern};

const BYTES: usize = 8 << 20;

/// How long nothing happens.
const PAUSE: Duration = Duration::from_millis(300);

/// The most system calls of a waiting program during a pause, including interruptions.
const CALLS_MAX: u64 = 60;

fn single_thread_runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn within_patience<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

fn async_halves(stream: Stream) -> (AsyncReceiver, AsyncSender) {
    let (receiver, sender) = stream.split();
    (receiver.into_async().unwrap(), sender.into_async().unwrap())
}

/// A stream, and its peer, which is an ordinary one.
fn connected_pair(builder: Builder) -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = builder.connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (stream, peer)
}

fn read_all_in_thread(mut peer: TcpStream) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        all
    })
}

async fn echo_chunks(stream: Stream) {
    let (mut receiver, mut sender) = async_halves(stream);
    while let Some(chunk) = within_patience(receiver.receive()).await.unwrap() {
        sender.send(chunk).unwrap();
        within_patience(sender.flush()).await.unwrap();
    }
    assert!(receiver.is_finished());
    within_patience(sender.finish()).await.unwrap();
    within_patience(sender.drain()).await.unwrap();
}

async fn send_pattern(mut sender: AsyncSender) {
    let mut sent = 0;
    while sent < BYTES {
        let mut buffer = within_patience(sender.buffer()).await.unwrap();
        let bytes = buffer.capacity().min(BYTES - sent);
        buffer.fill(&stream_pattern(sent, bytes)).unwrap();
        sent += bytes;
        sender.send(buffer).unwrap();
    }
    within_patience(sender.finish()).await.unwrap();
    within_patience(sender.drain()).await.unwrap();
    assert_eq!((sender.in_flight(), sender.ledger().bytes()), (0, BYTES as u64));
}

#[test]
fn an_echo_in_tokio_returns_every_byte_by_every_method() {
    for method in available_methods(Method::ALL) {
        single_thread_runtime().block_on(async {
            // As many buffers for echoed data as the kernel may have in flight.
            let pool = Pool::new(256, 64 << 10).unwrap();
            let builder = Stream::builder().method(method);
            let listener: Listener = builder.clone().receive_pool(&pool).listen("127.0.0.1:0").unwrap();
            let client = builder.connect(listener.local_addr().unwrap()).unwrap();
            let server = tokio::spawn(echo_chunks(listener.accept().unwrap().0));
            let (mut receiver, sender) = async_halves(client);
            let sending = tokio::spawn(send_pattern(sender));
            let mut echoed = Vec::new();
            while let Some(chunk) = within_patience(receiver.receive()).await.unwrap() {
                echoed.extend(chunk.to_vec());
            }
            within_patience(sending).await.unwrap();
            within_patience(server).await.unwrap();
            assert!(receiver.is_finished());
            assert_same(&echoed, &stream_pattern(0, BYTES), method);
        });
    }
}

#[test]
fn a_sender_whose_peer_does_not_read_waits_without_spinning() {
    for method in available_methods(Method::ALL) {
        let (mut stream, peer) = connected_pair(Stream::builder().method(method).send_buffer(64 << 10));
        let runtime = single_thread_runtime();
        stream.sender().send(stream_pattern(0, BYTES)).unwrap();
        let (_receiver, mut sender) = runtime.block_on(async { async_halves(stream) });
        // Until the peer's kernel accepts no more.
        let mut stalled = || {
            runtime.block_on(async { tokio::time::timeout(PAUSE, sender.flush()).await }).unwrap_err();
        };
        stalled();
        let (_, calls) = count_calls(stalled);
        assert!(calls.total() < CALLS_MAX, "{method}: {} system calls", calls.total());
        let reader = read_all_in_thread(peer);
        runtime.block_on(async {
            within_patience(sender.finish()).await.unwrap();
            within_patience(sender.drain()).await.unwrap();
        });
        assert_same(&reader.join().unwrap(), &stream_pattern(0, BYTES), method);
    }
}

#[test]
fn buffers_return_when_acknowledged() {
    for method in available_methods([Method::ZeroCopy, Method::UringZeroCopy]) {
        let pool = Pool::new(8, 1 << 20).unwrap();
        let builder = Stream::builder().method(method).send_pool(&pool).send_buffer(32 << 20);
        let (stream, peer) = connected_pair(builder);
        let runtime = single_thread_runtime();
        let (_receiver, mut sender) = runtime.block_on(async { async_halves(stream) });
        while let Some(mut buffer) = NonblockingSender::buffer(&mut sender) {
            buffer.resize(1 << 20);
            sender.send(buffer).unwrap();
        }
        let stalled =
            || runtime.block_on(async { tokio::time::timeout(PAUSE, sender.buffer()).await }).map(drop);
        let (waited, calls) = count_calls(stalled);
        assert!(waited.is_err() && sender.in_flight() > 0, "{method}: the peer does not read");
        assert!(calls.total() < CALLS_MAX, "{method}: {} system calls", calls.total());
        let reader = read_all_in_thread(peer);
        let buffer = runtime.block_on(within_patience(sender.buffer())).unwrap();
        sender.recycle(buffer);
        runtime.block_on(within_patience(sender.finish())).unwrap();
        runtime.block_on(within_patience(sender.drain())).unwrap();
        assert_eq!(reader.join().unwrap().len(), 8 << 20, "{method}");
    }
}

#[test]
fn a_receiver_gets_all_bytes_and_the_end() {
    let (stream, mut peer) = connected_pair(Stream::builder());
    let runtime = single_thread_runtime();
    let (mut receiver, _sender) = runtime.block_on(async { async_halves(stream) });
    let silent = || {
        runtime.block_on(async { tokio::time::timeout(PAUSE, receiver.receive()).await }).unwrap_err();
    };
    let (_, calls) = count_calls(silent);
    assert!(calls.total() < CALLS_MAX, "{} system calls", calls.total());
    peer.write_all(b"hello").unwrap();
    let chunk = runtime.block_on(within_patience(receiver.receive())).unwrap().expect("what came");
    assert_eq!((chunk.to_vec(), receiver.is_finished()), (b"hello".to_vec(), false));
    drop(peer);
    assert!(
        runtime.block_on(within_patience(receiver.receive())).unwrap().is_none() && receiver.is_finished()
    );
    assert!(
        runtime.block_on(within_patience(receiver.receive())).unwrap().is_none(),
        "the end stays the end"
    );
}

#[test]
fn a_reset_ends_waits_with_an_error() {
    let (stream, peer) = connected_pair(Stream::builder().send_buffer(64 << 10));
    let runtime = single_thread_runtime();
    let (mut receiver, mut sender) = runtime.block_on(async { async_halves(stream) });
    sender.send(stream_pattern(0, BYTES)).unwrap();
    assert!(!sender.try_flush().unwrap());
    let resetting = thread::spawn(move || {
        thread::sleep(PAUSE);
        socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let error = runtime.block_on(within_patience(sender.flush())).unwrap_err();
    resetting.join().unwrap();
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    assert!(!sender.take_unsent().is_empty(), "what was not handed over can be sent elsewhere");
    // It is reported once, with its cause, and never as an end.
    assert!(runtime.block_on(within_patience(receiver.receive())).is_err() && !receiver.is_finished());
}
