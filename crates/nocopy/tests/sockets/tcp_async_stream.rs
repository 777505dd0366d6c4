//! Streams in tokio programs: read and written through tokio's traits, whole and in halves.
#![cfg(feature = "tokio")]

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nocopy::tcp::{AsyncReceiver, AsyncSender, AsyncStream, Builder, Listener, Method, OpenError, Stream};
use nocopy::{Cause, Evidence};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::Runtime;

use crate::common::calls::count_calls;
use crate::common::polled::PolledFuture;
use crate::common::stream::{PATIENCE, assert_same, read_all_in_thread, stream_pattern};

const SLICES: Evidence = Evidence::Copied(Cause::Slice);

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

/// A stream, and its peer, which is an ordinary one, with a receive buffer that does not grow.
fn connected_pair(builder: Builder) -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = builder.connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    socket2::SockRef::from(&peer).set_recv_buffer_size(256 << 10).unwrap();
    (stream, peer)
}

/// Writes until the socket accepts no more, and returns how many bytes it accepted. `pattern` is more than it
/// ever does.
async fn fill_socket(stream: &mut (impl AsyncWrite + Unpin), pattern: &[u8]) -> usize {
    let mut written = within_patience(stream.write(&pattern[..1])).await.unwrap();
    while let Ok(bytes) = tokio::time::timeout(PAUSE, stream.write(&pattern[written..])).await {
        written += bytes.unwrap();
        assert!(written < pattern.len(), "the peer does not read");
    }
    written
}

#[tokio::test]
async fn an_end_that_comes_with_the_last_bytes_is_read() {
    for is_split in [true, false] {
        for by_slice in [true, false] {
            let (stream, mut peer) = connected_pair(Stream::builder());
            let mut receiver: AsyncReceiver = match is_split {
                true => stream.into_async().unwrap().into_split().0,
                false => stream.split().0.into_async().unwrap(),
            };
            peer.write_all(b"hello").unwrap();
            drop(peer);
            let mut buffer = [0; 100];
            if by_slice {
                assert_eq!(within_patience(receiver.read(&mut buffer)).await.unwrap(), 5);
            } else {
                assert_eq!(within_patience(receiver.fill_buf()).await.unwrap(), b"hello");
                receiver.consume(5);
            }
            assert_eq!(within_patience(receiver.read(&mut buffer)).await.unwrap(), 0);
            assert_eq!(within_patience(receiver.fill_buf()).await.unwrap(), b"");
            assert!(receiver.is_finished());
        }
    }
}

#[tokio::test]
async fn slices_are_copies_and_chunks_are_read_in_place() {
    let (stream, mut peer) = connected_pair(Stream::builder());
    let mut stream = stream.into_async().unwrap();
    let mut buffer = [0; 4];
    peer.write_all(b"0123").unwrap();
    within_patience(stream.read_exact(&mut buffer)).await.unwrap();
    peer.write_all(b"456789").unwrap();
    let first = within_patience(stream.fill_buf()).await.unwrap().as_ptr();
    stream.consume(2);
    let rest = within_patience(stream.fill_buf()).await.unwrap();
    assert_eq!((rest.as_ptr(), rest), (first.wrapping_add(2), &b"6789"[..]));
    within_patience(stream.write_all(b"hello")).await.unwrap();
    let (mut receiver, sender) = stream.into_split();
    assert_eq!((receiver.ledger().bytes(), receiver.ledger().bytes_of(SLICES)), (10, 4));
    assert_eq!((sender.ledger().bytes(), sender.ledger().bytes_of(SLICES), sender.stats().moved), (5, 5, 1));
    let chunk = within_patience(receiver.receive()).await.unwrap().expect("the rest of the chunk");
    assert_eq!((chunk.to_vec(), receiver.ledger().bytes()), (b"6789".to_vec(), 10));
}

/// Also of more pieces than a call takes.
#[tokio::test]
async fn a_vectored_write_gathers_the_pieces() {
    for count in [1, 3, 1024, 3000] {
        let (stream, peer) = connected_pair(Stream::builder());
        let mut stream = stream.into_async().unwrap();
        assert!(stream.is_write_vectored());
        let pattern = stream_pattern(0, 10 * count);
        let mut left: Vec<IoSlice<'_>> = pattern.chunks(10).map(IoSlice::new).collect();
        let (mut left, mut calls) = (&mut left[..], 0);
        while !left.is_empty() {
            let bytes = within_patience(stream.write_vectored(left)).await.unwrap();
            IoSlice::advance_slices(&mut left, bytes);
            calls += 1;
        }
        assert!(calls >= count.div_ceil(1024), "{count}: {calls} calls");
        let (_receiver, sender) = stream.into_split();
        assert_eq!(
            (sender.ledger().bytes_of(SLICES), sender.stats().moved),
            (10 * count as u64, calls as u64)
        );
        drop(sender);
        assert_same(&read_all_in_thread(peer).join().unwrap(), &pattern, count);
    }
}

#[tokio::test]
async fn what_was_queued_before_is_sent_before() {
    let (mut stream, mut peer) = connected_pair(Stream::builder());
    stream.sender().send(b"first, ".to_vec()).unwrap();
    let mut stream = stream.into_async().unwrap();
    within_patience(stream.write_all(b"second")).await.unwrap();
    within_patience(stream.shutdown()).await.unwrap();
    let mut text = String::new();
    peer.read_to_string(&mut text).unwrap();
    assert_eq!(text, "first, second");
}

/// The thread that runs the runtime is the only one, and the socket's descriptor the only one.
#[test]
fn a_stream_needs_no_thread_and_no_other_descriptor() {
    fn count_entries(directory: &str) -> usize {
        std::fs::read_dir(directory).unwrap().count()
    }

    let (stream, mut peer) = connected_pair(Stream::builder());
    let runtime = single_thread_runtime();
    let before = (count_entries("/proc/self/fd"), count_entries("/proc/self/task"));
    let (_receiver, _sender) = runtime.block_on(async {
        let mut stream = stream.into_async().unwrap();
        within_patience(stream.write_all(b"hello")).await.unwrap();
        peer.read_exact(&mut [0; 5]).unwrap();
        peer.write_all(b"hello").unwrap();
        within_patience(stream.read_exact(&mut [0; 5])).await.unwrap();
        let (mut receiver, mut sender) = stream.into_split();
        within_patience(sender.write_all(b"hello")).await.unwrap();
        peer.write_all(b"hello").unwrap();
        let _ = within_patience(receiver.receive()).await.unwrap().expect("bytes");
        (receiver, sender)
    });
    let after = (count_entries("/proc/self/fd"), count_entries("/proc/self/task"));
    assert_eq!(before, after, "descriptors, threads");
}

/// Sends bytes by the stream's method, and returns when the peer has received them and the completions were
/// read, while the task waited.
async fn send_to_reading_peer(sender: &mut AsyncSender, peer: TcpStream, bytes: &[u8]) -> TcpStream {
    let (count, sent) = (bytes.len(), bytes.to_vec());
    let reading = thread::spawn(move || {
        let (mut peer, mut received) = (peer, vec![0; count]);
        peer.read_exact(&mut received).unwrap();
        (peer, received)
    });
    sender.send(bytes.to_vec()).unwrap();
    within_patience(sender.drain()).await.unwrap();
    let (peer, received) = reading.join().unwrap();
    assert_same(&received, &sent, "before");
    peer
}

/// Writes that find no room sleep until there is some, whole or in halves, also after zero-copy sends, whose
/// completions tokio takes for an end of the connection.
#[test]
fn a_blocked_write_waits_without_spinning() {
    let pattern = stream_pattern(0, 8 << 20);
    for (method, is_split) in [(Method::Plain, false), (Method::Plain, true), (Method::ZeroCopy, true)] {
        let (stream, mut peer) = connected_pair(Stream::builder().method(method).send_buffer(64 << 10));
        let runtime = single_thread_runtime();
        let stream = runtime.block_on(async { stream.into_async().unwrap() });
        let mut writer: Box<dyn AsyncWrite + Send + Unpin> = if is_split {
            let mut sender = stream.into_split().1;
            peer = runtime.block_on(send_to_reading_peer(&mut sender, peer, &pattern[..2 << 20]));
            Box::new(sender)
        } else {
            Box::new(stream)
        };
        let written = runtime.block_on(fill_socket(&mut writer, &pattern));
        let mut stalled = || {
            let blocked = async { tokio::time::timeout(PAUSE, writer.write(b"not sent")).await };
            runtime.block_on(blocked).unwrap_err();
        };
        stalled();
        let (_, calls) = count_calls(stalled);
        assert!(calls.total() < CALLS_MAX, "{method}, {is_split}: {} system calls", calls.total());
        let reader: JoinHandle<Vec<u8>> = read_all_in_thread(peer);
        runtime.block_on(async {
            within_patience(writer.write_all(&pattern[written..])).await.unwrap();
            within_patience(writer.shutdown()).await.unwrap();
        });
        assert_same(&reader.join().unwrap(), &pattern, method);
    }
}

/// A task that is suspended in a write is woken when there is room, also after zero-copy sends.
#[tokio::test]
async fn a_blocked_write_is_woken_when_there_is_room() {
    let pattern = stream_pattern(0, 8 << 20);
    for method in [Method::Plain, Method::ZeroCopy] {
        let (stream, peer) = connected_pair(Stream::builder().method(method).send_buffer(64 << 10));
        let (_receiver, mut sender) = stream.into_async().unwrap().into_split();
        let peer = send_to_reading_peer(&mut sender, peer, &pattern[..2 << 20]).await;
        let written = fill_socket(&mut sender, &pattern).await;
        let mut blocked = PolledFuture::new(sender.write_all(&pattern[written..]));
        assert!(blocked.poll().is_none());
        let reader = read_all_in_thread(peer);
        while blocked.poll().is_none() {
            blocked.wait_until_woken().await;
        }
        drop(blocked);
        drop(sender);
        assert_same(&reader.join().unwrap(), &pattern, method);
    }
}

#[tokio::test]
async fn all_addresses_of_a_name_are_tried() {
    let listener = Listener::bind("127.0.0.1:0").unwrap().into_async().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let addresses = [closed, listener.local_addr().unwrap()];
    let stream = within_patience(AsyncStream::connect(&addresses[..])).await.unwrap();
    assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
    let (_, from) = within_patience(listener.accept()).await.unwrap();
    assert_eq!(from, stream.local_addr().unwrap());

    let refused = within_patience(AsyncStream::connect(closed)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let inner = refused.get_ref().and_then(|error| error.downcast_ref::<OpenError>());
    assert!(matches!(inner, Some(OpenError::Connect { address, .. }) if *address == closed), "{inner:?}");
    let none: [SocketAddr; 0] = [];
    let missing = within_patience(AsyncStream::connect(&none[..])).await.unwrap_err();
    let inner = missing.get_ref().and_then(|error| error.downcast_ref::<OpenError>());
    assert!(matches!(inner, Some(OpenError::Lookup(_))), "{inner:?}");
}

#[tokio::test]
async fn several_tasks_accept_from_one_listener() {
    const TASKS: usize = 4;
    let listener = std::sync::Arc::new(Listener::bind("127.0.0.1:0").unwrap().into_async().unwrap());
    let address = listener.local_addr().unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let listener = std::sync::Arc::clone(&listener);
            tokio::spawn(async move { listener.accept().await.unwrap().1 })
        })
        .collect();
    tokio::task::yield_now().await;
    let clients: Vec<_> = (0..TASKS).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut accepted = Vec::new();
    for task in tasks {
        accepted.push(within_patience(task).await.unwrap());
    }
    let mut connected: Vec<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
    accepted.sort();
    connected.sort();
    assert_eq!(accepted, connected);
}

/// Both directions of one stream at once, in one task and in two.
#[tokio::test]
async fn both_directions_are_used_at_once() {
    const BYTES: usize = 8 << 20;
    let listener = Listener::bind("127.0.0.1:0").unwrap().into_async().unwrap();
    let address = listener.local_addr().unwrap();
    let pattern = std::sync::Arc::new(stream_pattern(0, BYTES));
    let echoing = tokio::spawn(async move {
        let (mut reader, mut writer) = tokio::io::split(listener.accept().await.unwrap().0);
        tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let (mut receiver, mut sender) = AsyncStream::connect(address).await.unwrap().into_split();
    let sent = std::sync::Arc::clone(&pattern);
    let sending = tokio::spawn(async move {
        sender.write_all(&sent).await.unwrap();
        sender.finish().await.unwrap();
    });
    let mut echo = Vec::new();
    let bytes = within_patience(tokio::io::copy_buf(&mut receiver, &mut echo)).await.unwrap();
    assert_eq!(bytes, BYTES as u64);
    assert_same(&echo, &pattern, "echo");
    within_patience(sending).await.unwrap();
    within_patience(echoing).await.unwrap();
}
