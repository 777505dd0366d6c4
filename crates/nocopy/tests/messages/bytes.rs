//! Received memory as `Bytes`, of datagrams, streams and messages, and `Bytes` that are sent.
#![cfg(feature = "bytes")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use nocopy::message::{Endpoint, Message};
use nocopy::{Buffer, Cause, Evidence, Ledger, Pool, tcp, udp};
use nocopy_lab::patience::wait_until;

use crate::common::PATIENCE;
use crate::common::message::{any, connect, pattern};
use crate::memory::ALLOCATIONS;

const BUFFER_BYTES: usize = 64 << 10;
/// Datagrams of one burst.
const DATAGRAMS: usize = 20;
const DATAGRAM_BYTES: usize = 1000;

fn gathered(ledger: Ledger) -> u64 {
    ledger.bytes_of(Evidence::Copied(Cause::Gathered))
}

/// Drops on another thread.
fn drop_elsewhere(bytes: impl Send + 'static) {
    thread::spawn(move || drop(bytes)).join().unwrap();
}

/// A burst in one buffer of the receiver.
fn take_burst(socket: &mut udp::Socket) -> Vec<udp::OwnedDatagram> {
    let to = socket.local_addr().unwrap();
    let builder = udp::Socket::builder().method(udp::Method::Gso);
    let mut peer = builder.bind(any(0)).unwrap();
    let burst = udp::Message::segments(pattern(1, DATAGRAMS * DATAGRAM_BYTES), DATAGRAM_BYTES);
    peer.sender().send_to(burst, to).unwrap();
    peer.sender().flush().unwrap();
    let taken: Vec<_> =
        socket.receiver().receive_timeout(PATIENCE).unwrap().map(udp::Datagram::take).collect();
    assert_eq!(taken.len(), DATAGRAMS, "coalesced over lo");
    taken
}

#[test]
fn datagrams_of_a_burst_become_slices_of_one_allocation() {
    let pool = Pool::new(2, BUFFER_BYTES).unwrap();
    let mut socket = udp::Socket::builder().receive_pool(&pool).bind(any(0)).unwrap();
    let taken = take_burst(&mut socket);
    let addresses: Vec<_> = taken.iter().map(|datagram| datagram.as_ptr()).collect();
    let mut all = Vec::with_capacity(DATAGRAMS);
    let before = ALLOCATIONS.get();
    all.extend(taken.into_iter().map(Bytes::from));
    assert_eq!(ALLOCATIONS.get() - before, 1);
    assert!(all.iter().map(|bytes| bytes.as_ptr()).eq(addresses));
    assert_eq!(all.concat(), pattern(1, DATAGRAMS * DATAGRAM_BYTES));
    drop(socket);
    assert_eq!(pool.available(), 1);
    let last = all.pop().unwrap();
    drop(all);
    assert_eq!((pool.available(), last.len()), (1, DATAGRAM_BYTES));
    let clone = last.slice(10..20);
    drop(last);
    drop_elsewhere(clone);
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_burst_that_is_partly_bytes_keeps_its_memory_for_the_rest() {
    let pool = Pool::new(2, BUFFER_BYTES).unwrap();
    let mut socket = udp::Socket::builder().receive_pool(&pool).bind(any(0)).unwrap();
    for converts in [true, false] {
        let mut taken = take_burst(&mut socket);
        let last = taken.pop().unwrap();
        let expected = &pattern(1, DATAGRAMS * DATAGRAM_BYTES)[(DATAGRAMS - 1) * DATAGRAM_BYTES..];
        if converts {
            drop(taken.into_iter().map(Bytes::from).collect::<Vec<_>>());
        } else {
            drop(taken);
        }
        assert_eq!(&last[..], expected);
        // The receiver goes on with its other buffer.
        drop(take_burst(&mut socket));
        assert_eq!(&last[..], expected);
    }
    drop(socket);
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_pool_emptied_by_kept_datagrams_is_counted_and_does_not_grow() {
    let pool = Pool::new(1, BUFFER_BYTES).unwrap();
    let mut socket = udp::Socket::builder().receive_pool(&pool).bind(any(0)).unwrap();
    let (peer, to) = (UdpSocket::bind(any(0)).unwrap(), socket.local_addr().unwrap());
    peer.send_to(b"first", to).unwrap();
    let datagram = socket.receiver().receive_timeout(PATIENCE).unwrap().next().expect("one").take();
    let address = datagram.as_ptr();
    let bytes = Bytes::from(datagram);
    assert_eq!((bytes.as_ptr(), &bytes[..]), (address, &b"first"[..]));
    peer.send_to(b"second", to).unwrap();
    let error = socket.receiver().try_receive().unwrap_err();
    assert_eq!((error.kind(), pool.total()), (ErrorKind::OutOfMemory, 1));
    assert_eq!(socket.receiver().stats().get("no_buffers").unwrap(), 1);
    drop_elsewhere(bytes);
    let second = socket.receiver().receive_timeout(PATIENCE).unwrap().next().expect("it waited").take();
    assert_eq!((second.as_ptr(), &second[..]), (address, &b"second"[..]));
}

#[test]
fn copied_chunks_keep_their_address_and_their_pool_does_not_grow() {
    let pool = Pool::new(1, BUFFER_BYTES).unwrap();
    let listener = TcpListener::bind(any(0)).unwrap();
    let builder = tcp::Stream::builder().receive_pool(&pool);
    let mut stream = builder.connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(b"first").unwrap();
    let chunk = stream.receiver().receive_timeout(PATIENCE).unwrap().expect("not the end");
    let address = chunk.copied().as_ptr();
    let bytes = Bytes::from(chunk);
    assert_eq!((bytes.as_ptr(), &bytes[..]), (address, &b"first"[..]));
    assert_eq!(gathered(stream.receiver().ledger()), 0);
    peer.write_all(b"second").unwrap();
    let clone = bytes.clone();
    drop(bytes);
    let error = stream.receiver().receive_timeout(PATIENCE).unwrap_err();
    assert_eq!((error.kind(), pool.total()), (ErrorKind::OutOfMemory, 1));
    assert_eq!(stream.receiver().stats().get("no_buffers").unwrap(), 1);
    drop_elsewhere(clone);
    let chunk = stream.receiver().receive_timeout(PATIENCE).unwrap().expect("it waited");
    assert_eq!((chunk.copied(), pool.total()), (&b"second"[..], 1));
}

#[test]
fn senders_get_no_more_buffers_than_their_pool_has() {
    let pool = Pool::new(1, BUFFER_BYTES).unwrap();
    let listener = TcpListener::bind(any(0)).unwrap();
    let mut stream = tcp::Stream::builder().send_pool(&pool).connect(listener.local_addr().unwrap()).unwrap();
    let mut buffer = stream.sender().buffer().unwrap();
    buffer.fill(b"kept").unwrap();
    let address = buffer.as_ptr();
    let bytes = Bytes::from(buffer);
    assert_eq!((bytes.as_ptr(), &bytes[..]), (address, &b"kept"[..]));
    assert!(stream.sender().buffer().is_none());
    let error = stream.sender().wait_buffer(PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "nothing would end the wait");
    drop_elsewhere(bytes);
    let buffer = stream.sender().wait_buffer(PATIENCE).unwrap().expect("it has returned");
    assert_eq!((buffer.as_ptr(), pool.total()), (address, 1));
}

/// Sends one message, and returns it as it is received.
fn one_message(streams: bool, bytes: usize, posts: Option<&Pool>) -> (Endpoint, Message<'static>) {
    let bind = || Endpoint::builder().streams(streams).bind(any(0)).unwrap();
    let (mut left, mut right) = (bind(), bind());
    let (to_right, _) = connect(&mut left, &mut right);
    if let Some(pool) = posts {
        right.post(pool.take().unwrap()).unwrap();
    }
    left.send_to(pattern(2, bytes), to_right).unwrap();
    let mut came = None;
    wait_until("the message", || {
        left.wait(Duration::ZERO).unwrap();
        came = right.try_receive().unwrap().map(Message::take);
        came.is_some()
    });
    (right, came.unwrap())
}

#[test]
fn messages_in_one_piece_keep_their_address() {
    let pool = Pool::new(1, 1 << 20).unwrap();
    for (streams, bytes, posts) in
        [(false, 0, None), (false, 1000, None), (true, 1000, None), (true, 100_000, Some(&pool))]
    {
        let (right, message) = one_message(streams, bytes, posts);
        let address = message.as_slice().expect("one piece").as_ptr();
        let before = gathered(right.ledger());
        let bytes_of = Bytes::from(message);
        assert!(bytes == 0 || bytes_of.as_ptr() == address, "{bytes} bytes");
        assert!(bytes_of == pattern(2, bytes));
        assert_eq!(gathered(right.ledger()), before, "not copied");
        if posts.is_some() {
            assert_eq!(pool.available(), 0);
            drop(right);
            drop_elsewhere(bytes_of);
            assert_eq!(pool.available(), 1);
        }
    }
}

#[test]
fn messages_in_pieces_are_copied_once_and_counted() {
    let (right, message) = one_message(false, 20_000, None);
    assert!(message.as_slice().is_none());
    let (before, all) = (gathered(right.ledger()), right.ledger().bytes());
    let bytes = Bytes::from(message);
    assert!(bytes == pattern(2, 20_000));
    assert_eq!((gathered(right.ledger()) - before, right.ledger().bytes()), (20_000, all));
    // The same if the endpoint has it still.
    let bind = || Endpoint::builder().streams(false).bind(any(0)).unwrap();
    let (mut left, mut right) = (bind(), bind());
    let (to_right, _) = connect(&mut left, &mut right);
    left.send_to(pattern(3, 20_000), to_right).unwrap();
    let mut bytes = None;
    wait_until("the message", || {
        left.wait(Duration::ZERO).unwrap();
        bytes = right.try_receive().unwrap().map(Bytes::from);
        bytes.is_some()
    });
    assert!(bytes.unwrap() == pattern(3, 20_000));
    assert_eq!(gathered(right.ledger()), 20_000);
}

#[test]
fn bytes_are_sent_without_a_copy() {
    let listener = TcpListener::bind(any(0)).unwrap();
    let mut stream = tcp::Stream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let bytes = Bytes::from(pattern(4, 3000)).slice(1000..2000);
    let buffer = Buffer::from(bytes.clone());
    assert_eq!((buffer.as_ptr(), buffer.len()), (bytes.as_ptr(), 1000));
    let buffer = buffer.try_into_mut().unwrap_err(); // others may read them
    stream.sender().send(buffer).unwrap();
    stream.sender().send(Bytes::from_static(b"the end")).unwrap();
    stream.sender().finish().unwrap();
    let mut came = Vec::new();
    peer.read_to_end(&mut came).unwrap();
    assert!(came == [&bytes[..], b"the end"].concat());
    let rejected = stream.sender().send(bytes.clone()).unwrap_err();
    let again = Bytes::from(rejected.item);
    assert_eq!(again.as_ptr(), bytes.as_ptr());
}

#[test]
fn vectors_become_bytes_with_their_address() {
    let vector = pattern(5, 100);
    let address = vector.as_ptr();
    let bytes = Bytes::from(Buffer::from(vector));
    assert_eq!((bytes.as_ptr(), bytes.len()), (address, 100));
}

#[test]
fn buffers_are_written_as_buf_mut() {
    let mut buffer = Pool::new(1, 4096).unwrap().take().unwrap();
    buffer.put_u32(0x0102_0304);
    buffer.put_slice(b"more");
    assert_eq!((&buffer[..], buffer.remaining_mut()), (&b"\x01\x02\x03\x04more"[..], 4088));
    buffer.put_bytes(7, 4088);
    assert_eq!((buffer.len(), buffer[4095], buffer.chunk_mut().len()), (4096, 7, 0));
    let overflow = catch_unwind(AssertUnwindSafe(|| buffer.put_u8(1)));
    assert!(overflow.is_err() && buffer.len() == 4096);
}
