//! Sockets that send from and receive into memory of the program.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::ops::Range;

use nocopy::{Buffer, Pool, Port, Reason, tcp, udp};
use nocopy_lab::patience::PATIENCE;

use crate::common::raw_memory::RawMemory;

const BUFFER_BYTES: usize = 64 << 10;

/// A pool of memory of the program, and where that lies.
fn program_pool() -> (Pool, Range<*const u8>) {
    let memory = vec![0_u8; 4 * BUFFER_BYTES];
    let range = memory.as_ptr_range();
    (Pool::of(memory, BUFFER_BYTES).unwrap(), range)
}

#[test]
fn datagrams_are_received_into_memory_of_the_program() {
    let (pool, memory) = program_pool();
    let mut socket = udp::Socket::builder().receive_pool(&pool).bind("127.0.0.1:0").unwrap();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    for number in 0..10_u8 {
        peer.send_to(&[number; 1000], socket.local_addr().unwrap()).unwrap();
        let batch = socket.receiver().receive_timeout(PATIENCE).unwrap();
        let taken: Vec<_> = batch.map(udp::Datagram::take).collect();
        let [datagram] = &taken[..] else { panic!("{} datagrams", taken.len()) };
        assert_eq!(datagram[..], [number; 1000]);
        assert!(memory.contains(&datagram.as_ptr()));
        let buffer = Buffer::from(taken.into_iter().next().unwrap());
        assert!(memory.contains(&buffer.as_ptr()), "not a copy");
    }
}

#[test]
fn datagrams_are_sent_from_memory_of_the_program_by_every_method() {
    for method in [None, Some(udp::Method::Gso), Some(udp::Method::ZeroCopyGso)] {
        let (pool, memory) = program_pool();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let builder = udp::Socket::builder().send_pool(&pool);
        let builder = method.into_iter().fold(builder, udp::Builder::method);
        let mut socket = builder.bind("127.0.0.1:0").unwrap();
        socket.connect(peer.local_addr().unwrap()).unwrap();
        let sender = socket.sender();
        for number in 0..20_u8 {
            let mut buffer = sender.buffer().expect("each returns");
            assert!(memory.contains(&buffer.as_ptr()));
            buffer.fill(&[number; 1000]).unwrap();
            sender.send(buffer).unwrap();
            sender.flush().unwrap();
            let mut bytes = [0; 1001];
            assert_eq!(peer.recv(&mut bytes).unwrap(), 1000);
            assert_eq!(bytes[..1000], [number; 1000]);
            assert!(sender.drain(PATIENCE).unwrap());
        }
    }
}

#[test]
fn streams_are_received_into_and_sent_from_memory_of_the_program() {
    let (receive_pool, received_memory) = program_pool();
    let (send_pool, sent_memory) = program_pool();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let builder = tcp::Stream::builder().receive_pool(&receive_pool).send_pool(&send_pool);
    let mut stream = builder.connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    for number in 0..20_u8 {
        peer.write_all(&[number; 3000]).unwrap();
        let mut received = 0;
        while received < 3000 {
            let chunk = stream.receiver().receive_timeout(PATIENCE).unwrap().expect("not the end");
            received += chunk.len();
            let buffer = chunk.take();
            assert!(buffer.iter().all(|byte| *byte == number));
            assert!(received_memory.contains(&buffer.as_ptr()));
        }
        let mut buffer = stream.sender().wait_buffer(PATIENCE).unwrap().expect("one returns");
        assert!(sent_memory.contains(&buffer.as_ptr()));
        buffer.fill(&[number; 3000]).unwrap();
        stream.sender().send(buffer).unwrap();
        stream.sender().flush().unwrap();
        let mut bytes = [0; 3000];
        peer.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [number; 3000]);
    }
}

/// The bytes are changed behind the library's back after `send`: if the peer gets the new ones, they were
/// sent from where they lie.
#[test]
fn datagrams_are_sent_from_raw_memory_by_every_method() {
    use udp::Method::{Gso, SendMmsg, ZeroCopy, ZeroCopyGso};
    for method in [None, Some(SendMmsg), Some(Gso), Some(ZeroCopy), Some(ZeroCopyGso)] {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let builder = method.into_iter().fold(udp::Socket::builder(), udp::Builder::method);
        let mut socket = builder.bind("127.0.0.1:0").unwrap();
        let (memory, mut buffer) = RawMemory::map(1000);
        buffer.fill(&[1; 1000]).unwrap();
        socket.sender().send_to(buffer, peer.local_addr().unwrap()).unwrap();
        memory.write(2);
        socket.sender().flush().unwrap();
        let mut bytes = [0; 1001];
        assert_eq!(peer.recv(&mut bytes).unwrap(), 1000);
        assert_eq!(bytes[..1000], [2; 1000], "{method:?}");
        assert!(socket.sender().drain(PATIENCE).unwrap());
        assert!(memory.is_returned(), "{method:?}");
    }
}

#[test]
fn streams_are_sent_from_raw_memory_and_rejected_buffers_keep_their_address() {
    const BYTES: usize = 100_000;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = tcp::Stream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let (memory, mut buffer) = RawMemory::map(BYTES);
    buffer.fill(&[1; BYTES]).unwrap();
    stream.sender().send(buffer).unwrap();
    memory.write(2);
    stream.sender().flush().unwrap();
    let mut bytes = vec![0; BYTES];
    peer.read_exact(&mut bytes).unwrap();
    assert!(bytes == [2; BYTES]);
    assert!(stream.sender().drain(PATIENCE).unwrap());
    assert!(memory.is_returned());
    stream.sender().finish().unwrap();
    let (memory, buffer) = RawMemory::map(BYTES);
    let buffer = stream.sender().send(buffer).unwrap_err().item;
    assert_eq!(buffer.as_ptr(), memory.address());
    let buffer = buffer.try_into_mut().expect("one owner");
    assert_eq!((buffer.as_ptr(), buffer.capacity()), (memory.address(), BYTES));
    drop(buffer);
    assert!(memory.is_returned());
}

#[test]
fn datagrams_and_streams_are_received_into_raw_memory() {
    let (memory, buffer) = RawMemory::map(BUFFER_BYTES);
    let pool = Pool::of(buffer, BUFFER_BYTES).unwrap();
    let mut socket = udp::Socket::builder().receive_pool(&pool).bind("127.0.0.1:0").unwrap();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.send_to(&[7; 1000], socket.local_addr().unwrap()).unwrap();
    let datagram = socket.receiver().receive_timeout(PATIENCE).unwrap().next().expect("one").take();
    assert_eq!((datagram.as_ptr(), datagram.len()), (memory.address(), 1000));
    assert_eq!((memory.read(999), memory.read(1000)), (7, 0));
    drop((socket, datagram));
    assert!(!memory.is_returned());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let builder = tcp::Stream::builder().receive_pool(&pool);
    let mut stream = builder.connect(listener.local_addr().unwrap()).unwrap();
    listener.accept().unwrap().0.write_all(&[8; 10]).unwrap();
    let buffer = stream.receiver().receive_timeout(PATIENCE).unwrap().expect("not the end").take();
    assert!(memory.range().contains(&buffer.as_ptr()) && memory.read(0) == 8);
    drop((stream, pool));
    assert!(!memory.is_returned(), "a buffer is in use");
    drop(buffer);
    assert!(memory.is_returned());
}

/// Only bytes that the kernel takes at once are read, of memory that was never written.
#[test]
fn a_buffer_of_5_gib_is_queued_and_sent_in_parts() {
    const BYTES: usize = 5 << 30;
    let Some((memory, buffer)) = RawMemory::map_if_allowed(BYTES) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let builder = tcp::Stream::builder().method(tcp::Method::Plain);
    let mut stream = builder.connect(listener.local_addr().unwrap()).unwrap();
    let (_silent, _) = listener.accept().unwrap();
    let sender = stream.sender();
    sender.send(buffer).unwrap();
    let rejected = sender.send(vec![7; 10]).unwrap_err();
    assert!(matches!(rejected.reason, Reason::Full), "{rejected}");
    assert!(!sender.try_flush().unwrap());
    let sent = sender.stats().bytes;
    assert!((1..1 << 30).contains(&sent), "{sent}");
    let unsent = sender.take_unsent();
    assert_eq!((unsent[0].as_ptr(), unsent[0].len(), unsent.len()), (memory.address(), BYTES, 1));
    drop((unsent, stream));
    assert!(memory.is_returned());
}

#[test]
fn datagrams_and_packets_of_more_than_4_gib_are_refused() {
    const BYTES: usize = (4 << 30) + 1000;
    let Some((memory, buffer)) = RawMemory::map_if_allowed(BYTES) else { return };
    let mut socket = udp::Socket::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    assert!(matches!(socket.sender().send_copy_to(&buffer, to), Err(Reason::TooLong { .. })));
    let (mut port, _other) = Port::memory_pair().unwrap();
    assert!(matches!(port.sender().send_copy(&buffer), Err(Reason::TooLong { .. })));
    let rejected = socket.sender().send_to(buffer, to).unwrap_err();
    assert!(matches!(rejected.reason, Reason::TooLong { bytes_max: udp::DATAGRAM_BYTES_MAX }), "{rejected}");
    let buffer = rejected.item.into_iter().next().unwrap();
    assert_eq!((buffer.as_ptr(), buffer.len()), (memory.address(), BYTES));
    // Cut to 32 bits, it would be 1000 bytes.
    let message = udp::Message::segments(buffer, BYTES);
    let rejected = socket.sender().send_to(message, to).unwrap_err();
    assert!(matches!(rejected.reason, Reason::TooLong { .. }), "{rejected}");
    drop(rejected);
    assert!(memory.is_returned());
}

#[test]
fn datagrams_and_streams_are_received_into_buffers_of_5_gib() {
    const BYTES: usize = 5 << 30;
    let Some((memory, buffer)) = RawMemory::map_if_allowed(BYTES) else { return };
    let pool = Pool::of(buffer, BYTES).unwrap();
    let mut socket = udp::Socket::builder().receive_pool(&pool).bind("127.0.0.1:0").unwrap();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.send_to(&[7; 1000], socket.local_addr().unwrap()).unwrap();
    let datagram = socket.receiver().receive_timeout(PATIENCE).unwrap().next().expect("one").take();
    assert_eq!((datagram.as_ptr(), &datagram[..]), (memory.address(), &[7; 1000][..]));
    drop((datagram, socket));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for method in [None, Some(tcp::ReceiveMethod::Mapped)] {
        let builder = tcp::Stream::builder().receive_pool(&pool);
        let builder = method.into_iter().fold(builder, tcp::Builder::receive_method);
        let mut stream = builder.connect(listener.local_addr().unwrap()).unwrap();
        listener.accept().unwrap().0.write_all(&[8; 10]).unwrap();
        let buffer = stream.receiver().receive_timeout(PATIENCE).unwrap().expect("not the end").take();
        assert_eq!((buffer.as_ptr(), &buffer[..]), (memory.address(), &[8; 10][..]));
    }
}
