//! Streams of owned buffers arrive whole and in order by every method, and their memory is free when the
//! kernel no longer reads it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use nocopy::tcp::{Builder, Listener, Method, Published, Sender, Stream};
use nocopy::{Buffer, BufferMut, Cause, Evidence, Pool, Reason};
use nocopy_lab::patience::wait_until;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::common::methods::available_methods;
use crate::common::stream::{PATIENCE, assert_same, count_free_buffers, read_all_in_thread, stream_pattern};

/// A thread that reads everything from one connection, and returns it.
fn listener_with_reader() -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_to_end(&mut all).unwrap();
        all
    });
    (address, reader)
}

fn builder_for_method(method: Method) -> Builder {
    Stream::builder().method(method)
}

#[test]
fn every_method_sends_every_byte_once_and_in_order() {
    for method in available_methods(Method::ALL) {
        let (address, reader) = listener_with_reader();
        let mut socket = builder_for_method(method).connect(address).unwrap();
        let sender = socket.sender();
        let (mut sent, sizes) = (Vec::new(), [1, 4095, 4096, 65_536, 0, 10_000, 3]);
        for round in 0..40 {
            for bytes in sizes {
                let mut buffer = sender.wait_buffer(PATIENCE).unwrap().expect("a buffer");
                buffer.fill(&stream_pattern(sent.len(), bytes)).unwrap();
                sent.extend_from_slice(&buffer);
                sender.send(buffer).unwrap();
            }
            if round % 3 == 0 {
                sender.flush().unwrap();
            }
        }
        sender.finish().unwrap();
        assert!(sender.drain(PATIENCE).unwrap(), "{method}: everything was acknowledged");
        assert_eq!((count_free_buffers(sender), sender.in_flight()), (64, 0), "{method}");
        let (ledger, stats) = (sender.ledger(), sender.stats());
        assert_eq!(
            (ledger.bytes(), stats.bytes),
            (sent.len() as u64, sent.len() as u64),
            "{method}: {ledger}"
        );
        assert_eq!(stats.faults, 0, "{method}");
        let cause = if method == Method::Plain { Cause::SocketCall } else { Cause::DeliveredLocally };
        assert_eq!(ledger.bytes_of(Evidence::Copied(cause)), sent.len() as u64, "{method}: {ledger}");
        assert_same(&reader.join().unwrap(), &sent, method);
    }
}

#[test]
fn memory_of_the_program_is_sent_in_place_and_returned() {
    for method in available_methods(Method::ALL) {
        let (address, reader) = listener_with_reader();
        let mut socket = builder_for_method(method).return_buffers(true).connect(address).unwrap();
        let sender = socket.sender();
        let bytes = stream_pattern(0, 9_000_001); // longer than any call takes
        let place = bytes.as_ptr();
        let ticket = sender.send(Buffer::from_owner(bytes)).unwrap();
        sender.finish().unwrap();
        assert!(sender.drain(PATIENCE).unwrap(), "{method}");
        let completed = sender.completed().expect("all of it is free");
        assert_eq!(completed.ticket, ticket);
        let back: Vec<u8> = completed.item.into_owner().unwrap();
        assert_eq!(back.as_ptr(), place);
        assert_same(&reader.join().unwrap(), &back, method);
    }
}

#[test]
fn copying_is_chosen_where_the_kernel_copies_zero_copy_sends() {
    let (address, reader) = listener_with_reader();
    let mut socket = Stream::connect(address).unwrap();
    let sender = socket.sender();
    let mut sent = 0;
    for _ in 0..2000 {
        let mut buffer = sender.wait_buffer(PATIENCE).unwrap().expect("a buffer");
        buffer.fill(&stream_pattern(sent, 65_536)).unwrap();
        sent += 65_536;
        sender.send(buffer).unwrap();
        sender.flush().unwrap();
    }
    sender.send_copy(b"the end").unwrap();
    sender.finish().unwrap();
    assert!(sender.drain(PATIENCE).unwrap());
    let (ledger, explained) = (sender.ledger(), sender.explain().to_string());
    assert_eq!(ledger.bytes(), sent as u64 + 7);
    assert_eq!(ledger.bytes_of(Evidence::Copied(Cause::Slice)), 7);
    assert!(
        ledger.bytes_of(Evidence::Copied(Cause::CopyingIsFaster)) > sent as u64 / 2,
        "{ledger}; {explained}"
    );
    assert!(explained.contains("zerocopy"), "{explained}");
    assert_eq!(reader.join().unwrap().len(), sent + 7);
}

#[test]
fn short_writes_are_always_copied() {
    let (address, reader) = listener_with_reader();
    let mut socket = Stream::connect(address).unwrap();
    for _ in 0..100 {
        let mut buffer = socket.sender().wait_buffer(PATIENCE).unwrap().expect("a buffer");
        buffer.fill(&[7; 100]).unwrap();
        socket.sender().send(buffer).unwrap();
        socket.sender().flush().unwrap();
    }
    assert_eq!(socket.sender().ledger().bytes_of(Evidence::Copied(Cause::BelowThreshold)), 10_000);
    drop(socket);
    assert_eq!(reader.join().unwrap(), [7; 10_000]);
}

#[test]
fn unsent_bytes_stay_queued_until_the_peer_reads() {
    for method in available_methods(Method::ALL) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket =
            builder_for_method(method).send_buffer(64 << 10).connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let sender = socket.sender();
        let bytes = stream_pattern(0, 16 << 20);
        sender.send(Buffer::from_owner(bytes.clone())).unwrap();
        assert!(!sender.try_flush().unwrap(), "{method}: nobody reads");
        assert!((1..16 << 20).contains(&sender.stats().bytes), "{method}");
        let reader = thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        });
        sender.finish().unwrap();
        assert!(sender.drain(PATIENCE).unwrap(), "{method}");
        assert_same(&reader.join().unwrap(), &bytes, method);
    }
}

#[test]
fn a_stream_dropped_with_unsent_data_ends_with_a_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    socket.sender().send_copy(b"a part").unwrap();
    socket.sender().send(vec![1; 100]).unwrap();
    let mut part = [0; 6];
    peer.read_exact(&mut part).unwrap();
    drop(socket);
    assert_eq!(peer.read(&mut part).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn sends_after_finish_are_refused_and_receiving_works() {
    let (listener, bytes) = (TcpListener::bind("127.0.0.1:0").unwrap(), b"still here");
    let mut socket = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    socket.sender().finish().unwrap();
    let rejected = socket.sender().send(vec![1]).unwrap_err();
    assert!(matches!(rejected.reason, Reason::Finished));
    assert_eq!(*rejected.item, [1]);
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0);
    peer.write_all(bytes).unwrap();
    let mut received = [0; 10];
    socket.receiver().read_exact(&mut received).unwrap();
    assert_eq!(&received, bytes);
}

#[test]
fn a_broken_connection_returns_unsent_buffers() {
    for method in available_methods(Method::ALL) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket =
            builder_for_method(method).send_buffer(64 << 10).connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let sender = socket.sender();
        for number in 0..8 {
            sender.send(vec![number; 1 << 20]).unwrap();
        }
        assert!(!sender.try_flush().unwrap());
        drop(peer); // with unread bytes: a reset
        let error = sender.flush().unwrap_err();
        assert!(error.to_string().contains("were not sent"), "{method}: {error}");
        let unsent = sender.take_unsent();
        assert!((1..=8).contains(&unsent.len()), "{method}: {} buffers", unsent.len());
        assert_eq!(unsent.last().unwrap()[0], 7);
        assert!(sender.drain(PATIENCE).unwrap(), "{method}: the kernel has let go of the rest");
    }
}

#[test]
fn wait_buffer_fails_when_the_program_holds_all_buffers() {
    let (address, _reader) = listener_with_reader();
    let pool = Pool::new(2, 4096).unwrap();
    let mut socket = Stream::builder().send_pool(&pool).connect(address).unwrap();
    let _held = [
        socket.sender().wait_buffer(PATIENCE).unwrap().expect("a buffer"),
        socket.sender().wait_buffer(PATIENCE).unwrap().expect("a buffer"),
    ];
    let error = socket.sender().wait_buffer(PATIENCE).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_listener_shares_its_pool_among_its_streams() {
    let pool = Pool::new(4, 4096).unwrap();
    let listener = Stream::builder().send_pool(&pool).listen("127.0.0.1:0").unwrap();
    let clients: Vec<TcpStream> =
        (0..3).map(|_| TcpStream::connect(listener.local_addr().unwrap()).unwrap()).collect();
    for mut client in clients {
        let (mut socket, from) = listener.accept().unwrap();
        assert_eq!((from, socket.peer_addr().unwrap()), (client.local_addr().unwrap(), from));
        let mut buffer = socket.sender().buffer().unwrap();
        buffer.fill(b"hello").unwrap();
        socket.sender().send(buffer).unwrap();
        socket.sender().flush().unwrap();
        drop(socket);
        let mut received = String::new();
        client.read_to_string(&mut received).unwrap();
        assert_eq!(received, "hello");
    }
    assert_eq!(pool.available(), 4);
}

/// An accepted stream that uses only zero-copy calls, and its peer, whose kernel buffers little.
fn accept_from_slow_reader(listener: &Listener) -> (Sender, TcpStream) {
    let peer = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    peer.set_recv_buffer_size(4096).unwrap();
    peer.connect(&listener.local_addr().unwrap().into()).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (listener.accept().unwrap().0.split().1, peer.into())
}

/// The send buffer holds all of the pool.
fn listener_by_zero_copy(pool: &Pool) -> Listener {
    let builder = Stream::builder().method(Method::ZeroCopy).send_pool(pool).send_buffer(4 << 20);
    builder.listen("127.0.0.1:0").unwrap()
}

/// Hands over buffers of the pool until the kernel accepts no more, or none is left.
fn fill_send_buffer(sender: &mut Sender) {
    while let Some(mut buffer) = sender.buffer() {
        buffer.resize(buffer.capacity());
        sender.send(buffer).unwrap();
        if !sender.try_flush().unwrap() {
            return;
        }
    }
}

/// Sends numbered buffers, several of which are filled at a time, and reads them.
fn assert_numbered_buffers_arrive(sender: &mut Sender, peer: TcpStream) {
    let reader = read_all_in_thread(peer);
    let mut sent = Vec::new();
    for round in 0..50 {
        let buffers: Vec<BufferMut> =
            (0..2).map(|_| sender.wait_buffer(PATIENCE).unwrap().expect("a buffer")).collect();
        for mut buffer in buffers {
            buffer.fill(&[round; 15_000]).unwrap();
            sent.extend_from_slice(&buffer);
            sender.send(buffer).unwrap();
        }
        sender.flush().unwrap();
    }
    sender.finish().unwrap();
    assert!(reader.join().unwrap() == sent, "as it was sent");
    assert!(sender.drain(PATIENCE).unwrap());
}

#[test]
fn a_peer_that_never_reads_stops_no_other_stream() {
    let pool = Pool::new(16, 16 << 10).unwrap();
    let listener = listener_by_zero_copy(&pool);
    let ((mut stalled, _silent), (mut other, peer)) =
        (accept_from_slow_reader(&listener), accept_from_slow_reader(&listener));
    fill_send_buffer(&mut stalled);
    let ledger = stalled.ledger();
    assert!(ledger.bytes_of(Evidence::Copied(Cause::ShareInFlight)) > 0, "{ledger}");
    assert!(pool.available() >= pool.total() / 3, "{} buffers are left", pool.available());
    assert_numbered_buffers_arrive(&mut other, peer);
}

/// A stream may use all of the pool while it is the only one.
#[test]
fn a_stream_gets_buffers_while_a_stalled_one_uses_its_pool() {
    let pool = Pool::new(8, 16 << 10).unwrap();
    let listener = listener_by_zero_copy(&pool);
    let (mut stalled, silent) = accept_from_slow_reader(&listener);
    fill_send_buffer(&mut stalled);
    assert_eq!((pool.available(), stalled.ledger().bytes_of(Evidence::Copied(Cause::ShareInFlight))), (0, 0));
    assert!(stalled.buffer().is_none(), "its own come back");
    let (mut other, peer) = accept_from_slow_reader(&listener);
    assert!(stalled.buffer().is_none(), "its own come back");
    assert_numbered_buffers_arrive(&mut other, peer);
    // The same after a drop, as long as the peer acknowledges nothing.
    drop(stalled);
    let (mut third, peer) = accept_from_slow_reader(&listener);
    assert_numbered_buffers_arrive(&mut third, peer);
    drop(silent);
    wait_until("home", || pool.available() == pool.total());
}

#[test]
fn ranges_outside_published_data_are_refused() {
    let (address, _reader) = listener_with_reader();
    let mut socket = Stream::connect(address).unwrap();
    let data = Published::written(5, |memory| memory.fill(7)).unwrap();
    let refused = socket.sender().send_published(&data, 3..6).unwrap_err();
    assert!(matches!(refused, Reason::OutOfRange { start: 3, end: 6, bytes: 5 }), "{refused}");
    socket.sender().finish().unwrap();
    let refused = socket.sender().send_published(&data, 0..5).unwrap_err();
    assert!(matches!(refused, Reason::Finished), "{refused}");
}

#[derive(Debug, Clone)]
enum StreamCall {
    Send(usize),
    Foreign(usize),
    Slice(usize),
    Published(usize),
    File(usize),
    TryFlush,
    Flush,
    Reap,
}

fn any_stream_calls() -> impl Strategy<Value = Vec<StreamCall>> {
    let step = prop_oneof![
        4 => (0..=65_536_usize).prop_map(StreamCall::Send),
        2 => (0..300_000_usize).prop_map(StreamCall::Foreign),
        1 => (0..20_000_usize).prop_map(StreamCall::Slice),
        2 => (0..300_000_usize).prop_map(StreamCall::Published),
        1 => (0..300_000_usize).prop_map(StreamCall::File),
        2 => Just(StreamCall::TryFlush),
        2 => Just(StreamCall::Flush),
        1 => Just(StreamCall::Reap),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_sends_all_bytes_in_order(
        steps in any_stream_calls(),
        method in prop::option::of(prop::sample::select(available_methods(Method::ALL).collect::<Vec<_>>())),
        send_buffer in prop::sample::select(vec![8 << 10, 256 << 10]),
    ) {
        let (address, reader) = listener_with_reader();
        let builder = Stream::builder().send_buffer(send_buffer);
        let builder = match method {
            Some(method) => builder.method(method),
            None => builder,
        };
        let mut socket = builder.connect(address).unwrap();
        let (sender, mut sent) = (socket.sender(), Vec::new());
        for step in steps {
            match step {
                StreamCall::Send(bytes) => {
                    let mut buffer = sender.wait_buffer(PATIENCE).unwrap().expect("a buffer");
                    buffer.fill(&stream_pattern(sent.len(), bytes)).unwrap();
                    sent.extend_from_slice(&buffer);
                    sender.send(buffer).unwrap();
                }
                StreamCall::Foreign(bytes) => {
                    let bytes = stream_pattern(sent.len(), bytes);
                    sent.extend_from_slice(&bytes);
                    sender.send(bytes).unwrap();
                }
                StreamCall::Slice(bytes) => {
                    let bytes = stream_pattern(sent.len(), bytes);
                    sender.send_copy(&bytes).unwrap();
                    sent.extend(bytes);
                }
                StreamCall::Published(bytes) => {
                    let bytes = stream_pattern(sent.len(), bytes);
                    let data = Published::written(bytes.len(), |memory| memory.copy_from_slice(&bytes)).unwrap();
                    sender.send_published(&data, 0..bytes.len() as u64).unwrap();
                    sent.extend(bytes);
                }
                StreamCall::File(bytes) => {
                    let bytes = stream_pattern(sent.len(), bytes);
                    let name = "nocopy-test";
                    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC).unwrap());
                    file.write_all(&bytes).unwrap();
                    sender.send_file(Arc::new(file), 0..bytes.len() as u64).unwrap();
                    sent.extend(bytes);
                }
                StreamCall::TryFlush => _ = sender.try_flush().unwrap(),
                StreamCall::Flush => sender.flush().unwrap(),
                StreamCall::Reap => _ = sender.reap(),
            }
        }
        sender.finish().unwrap();
        prop_assert!(sender.drain(PATIENCE).unwrap());
        prop_assert_eq!(sender.ledger().bytes(), sent.len() as u64);
        assert_same(&reader.join().unwrap(), &sent, "the stream");
    }
}
