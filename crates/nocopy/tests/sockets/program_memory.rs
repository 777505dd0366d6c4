//! Sockets that send from and receive into memory of the program.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::ops::Range;

use nocopy::{Buffer, Pool, tcp, udp};
use nocopy_lab::patience::PATIENCE;

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
    let mut socket = udp::Socket::builder().receive_pool(&pool).bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    for number in 0..10_u8 {
        peer.send_to(&[number; 1000], socket.local_address().unwrap()).unwrap();
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
        let mut socket = builder.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        socket.connect(peer.local_addr().unwrap()).unwrap();
        let sender = socket.sender();
        for number in 0..20_u8 {
            let mut buffer = sender.buffer().expect("each returns");
            assert!(memory.contains(&buffer.as_ptr()));
            buffer.fill(&[number; 1000]).unwrap();
            sender.send(buffer, None).unwrap();
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
