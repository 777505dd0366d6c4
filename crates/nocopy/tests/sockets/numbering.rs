//! The kernel numbers the zero-copy calls of a socket for all its senders together: memory returns when it is
//! free, also with several senders, other descriptors, or calls that may not have been counted.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;

use nocopy::udp::{Method, SendError, Sender, Socket};
use nocopy::{Buffer, BufferMut, Cause, Evidence, Pool};
use nocopy::{tcp, udp};
use nocopy_lab::Missing;
use nocopy_lab::patience::wait_until;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::SockRef;

use crate::common::forks::ForkedChild;
use crate::common::{PATIENCE, lab};
use crate::udp_lifetime::{
    COUNT, DATAGRAM_BYTES, FAST, SLOW, apply_new_rate_now, assert_all_arrive, delay_packets,
    limit_packet_rate, numbered_pattern, receive_one, receiver_in_lab, release_packets, send_numbered,
    sender_in_lab, wait_until_packets_have_left,
};

/// Needs Linux 6.8.
const OWN_LIMIT: Missing = Missing::Kernel("a net.core.optmem_max of each network namespace");

const LOOPBACK: &str = "127.0.0.1:0";

fn bound_receiver() -> UdpSocket {
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Overwrites all of the sender's free memory.
fn overwrite_free_memory(sender: &mut Sender) {
    let free: Vec<BufferMut> = std::iter::from_fn(|| sender.buffer()).collect();
    for mut buffer in free {
        buffer.resize(buffer.capacity());
        buffer[..].fill(0xee);
        sender.recycle(buffer);
    }
}

fn count_free_buffers(sender: &mut Sender) -> usize {
    let free: Vec<BufferMut> = std::iter::from_fn(|| sender.buffer()).collect();
    let count = free.len();
    free.into_iter().for_each(|buffer| sender.recycle(buffer));
    count
}

#[test]
fn zero_copy_calls_of_the_program_free_no_memory() {
    let lab = lab!();
    delay_packets(&lab);
    let (receiver, pool) = (receiver_in_lab(&lab), Pool::new(64, 4096).unwrap());
    let mut socket = sender_in_lab(&lab, Method::ZeroCopy, &pool, &receiver);
    send_numbered(&mut socket, 0..COUNT / 2);
    assert!(socket.sender().in_flight() > 0);
    // Some sends of the program's memory, which finish at once.
    let here = lab.left().namespace().run(|| UdpSocket::bind((lab.left().ipv4(), 0)).unwrap());
    here.set_read_timeout(Some(PATIENCE)).unwrap();
    let to_here = here.local_addr().unwrap().into();
    let raw = socket.sender().kernel_socket().unwrap();
    for _ in 0..COUNT {
        SockRef::from(&raw).send_to_with_flags(&[1; 10], &to_here, libc::MSG_ZEROCOPY).unwrap();
        assert_eq!(receive_one(&here, &mut [0; 20]), 10);
    }
    send_numbered(&mut socket, COUNT / 2..COUNT);
    socket.sender().reap();
    overwrite_free_memory(socket.sender());
    release_packets(&lab);
    assert_all_arrive(&receiver);
    let sender = socket.sender();
    assert!(sender.drain(PATIENCE).unwrap(), "{}", sender.in_flight());
    assert_eq!(sender.stats().get("unknown_completions").unwrap(), 0);
    assert_eq!(sender.ledger().bytes(), (COUNT * DATAGRAM_BYTES) as u64);
    assert!(sender.explain().to_string().contains("other descriptors"), "{}", sender.explain());
}

#[test]
fn an_uncertain_failed_call_holds_its_memory() {
    const LONG_BYTES: usize = 20_000;
    let lab = lab!();
    // Memory to record one call, and not a second one to find out whether the first was counted.
    let allow =
        |bytes: &str| lab.left().namespace().run(|| std::fs::write("/proc/sys/net/core/optmem_max", bytes));
    if allow("1000").is_err() {
        nocopy_lab::skip(&OWN_LIMIT);
        return;
    }
    lab.right().namespace().run(|| std::fs::write("/proc/sys/net/ipv4/ipfrag_time", "1")).unwrap();
    // Room for some fragments of a long datagram, and not for all.
    limit_packet_rate(&lab, "replace", SLOW, 10_000);
    let (receiver, pool) = (receiver_in_lab(&lab), Pool::new(8, 32 << 10).unwrap());
    let mut socket = sender_in_lab(&lab, Method::ZeroCopy, &pool, &receiver);
    let sender = socket.sender();
    let mut buffer = sender.buffer().unwrap();
    buffer.resize(LONG_BYTES);
    sender.send(buffer).unwrap();
    let error: SendError = sender.flush().unwrap_err().downcast().unwrap();
    assert_eq!((error.refused, error.source.raw_os_error()), (1, Some(libc::ENOBUFS)), "{error}");
    sender.reap();
    assert_eq!((sender.in_flight(), count_free_buffers(sender)), (1, 7), "its fragments are under way");
    // They leave, and the other end drops them.
    limit_packet_rate(&lab, "change", FAST, 10_000);
    apply_new_rate_now(&lab);
    wait_until_packets_have_left(&lab);
    assert!(sender.drain(PATIENCE).unwrap());
    assert_eq!(count_free_buffers(sender), 8);
    allow("100000").unwrap();
    send_numbered(&mut socket, 0..5);
    for number in 0..5 {
        let mut bytes = [0; DATAGRAM_BYTES];
        assert_eq!(receive_one(&receiver, &mut bytes), DATAGRAM_BYTES);
        assert!(bytes == *numbered_pattern(number), "as it was sent");
    }
    assert!(socket.sender().drain(PATIENCE).unwrap(), "{}", socket.sender().in_flight());
    assert_eq!(socket.sender().stats().get("unknown_completions").unwrap(), 0);
}

#[test]
fn an_unrecorded_call_holds_no_memory() {
    let lab = lab!();
    if lab.left().namespace().run(|| std::fs::write("/proc/sys/net/core/optmem_max", "1")).is_err() {
        nocopy_lab::skip(&OWN_LIMIT);
        return;
    }
    let (receiver, pool) = (receiver_in_lab(&lab), Pool::new(64, 4096).unwrap());
    let mut socket = sender_in_lab(&lab, Method::ZeroCopy, &pool, &receiver);
    send_numbered(&mut socket, 0..COUNT);
    let sender = socket.sender();
    assert_eq!((sender.in_flight(), sender.stats().get("no_buffers").unwrap()), (0, COUNT as u64));
    assert_all_arrive(&receiver);
}

fn is_readable(descriptor: impl AsFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut polled, Some(&now))).unwrap() > 0
}

/// Whether a descriptor cannot be sent on.
fn cannot_be_sent_on(descriptor: impl AsFd) -> bool {
    let sent = SockRef::from(&descriptor).send_with_flags(b"from outside", libc::MSG_ZEROCOPY);
    sent.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::NOTSOCK))
}

#[test]
fn descriptors_of_udp_halves_cannot_send() {
    let there = bound_receiver();
    let mut socket = Socket::builder().method(Method::ZeroCopy).bind(LOOPBACK).unwrap();
    let here = socket.local_addr().unwrap();
    socket.connect(there.local_addr().unwrap()).unwrap();
    let (mut receiver, mut sender): (udp::Receiver, udp::Sender) = socket.split();
    assert!(cannot_be_sent_on(&receiver) && cannot_be_sent_on(&sender));
    assert!(!is_readable(&receiver) && !is_readable(&sender));
    there.send_to(b"datagram", here).unwrap();
    wait_until("readable", || is_readable(&receiver));
    assert!(!is_readable(&sender), "nothing of its own");
    assert_eq!(receiver.try_receive().unwrap().count(), 1);
    assert!(!is_readable(&receiver));
    // A free buffer is left: otherwise every flush would read completions.
    let buffer = sender.buffer().unwrap();
    sender.recycle(buffer);
    sender.send(Buffer::from(vec![1; 1000])).unwrap();
    sender.flush().unwrap();
    assert_eq!(receive_one(&there, &mut [0; 2000]), 1000);
    wait_until("completed", || is_readable(&sender));
    assert_eq!(sender.reap(), 1);
    assert!(!is_readable(&sender));
}

/// A flush of a single message skips the queue's bookkeeping.
#[test]
fn a_sender_is_not_readable_after_its_queue_was_sent() {
    let lab = lab!();
    delay_packets(&lab);
    let (receiver, address) = (receiver_in_lab(&lab), SocketAddr::new(lab.left().ipv4().into(), 0));
    let builder = Socket::builder().send_buffer(4096);
    let mut socket = lab.left().namespace().run(|| builder.bind(address)).unwrap();
    socket.connect(receiver.local_addr().unwrap()).unwrap();
    let sender = socket.sender();
    assert!(!is_readable(&sender));
    let mut given = 0;
    loop {
        sender.send(Buffer::from(vec![1; 1000])).unwrap();
        given += 1;
        if !sender.try_flush().unwrap() {
            break;
        }
    }
    release_packets(&lab);
    wait_until("room", || is_readable(&sender));
    assert_eq!(sender.stats().moved, given - 1, "one waits for room");
    sender.flush().unwrap();
    assert_eq!(sender.stats().moved, given);
    for _ in 0..given {
        assert_eq!(receive_one(&receiver, &mut [0; 2000]), 1000);
    }
    assert!(!is_readable(&sender), "there is room, and nothing is queued");
}

/// The parent would continue to number its calls without knowing of the child's.
#[test]
fn the_kernels_socket_is_refused_in_a_forked_child() {
    let there = bound_receiver();
    let mut socket = Socket::builder().method(Method::ZeroCopy).bind(LOOPBACK).unwrap();
    socket.connect(there.local_addr().unwrap()).unwrap();
    let (mut stream, _peer) = connected_pair(tcp::Stream::builder());
    let (mut given, _other_peer) = connected_pair(tcp::Stream::builder());
    given.sender().kernel_socket().unwrap();
    ForkedChild::start(|| {
        let refused = [socket.sender().kernel_socket().err(), stream.sender().kernel_socket().err()];
        for error in refused {
            let error = error.expect("refused");
            assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
            assert!(error.to_string().contains("ask in the parent, before the fork"), "{error}");
        }
        given.sender().kernel_socket().expect("as in the parent");
    })
    .join();
    socket.sender().kernel_socket().unwrap();
    stream.sender().kernel_socket().unwrap();
}

#[test]
fn a_sender_is_not_readable_after_take_unsent() {
    let (mut socket, mut peer) = connected_pair(tcp::Stream::builder().send_buffer(64 << 10));
    let sender = socket.sender();
    sender.send(vec![1; 8 << 20]).unwrap();
    flush_until_full(sender);
    sender.take_unsent();
    let handed_over = sender.stats().bytes as usize;
    std::io::Read::read_exact(&mut peer, &mut vec![0; handed_over]).unwrap();
    wait_until("nothing to tell", || {
        sender.reap();
        !is_readable(&sender)
    });
}

/// Flushes until nothing is accepted any more: acknowledgements of what was sent may make room for a while.
fn flush_until_full(sender: &mut tcp::Sender) {
    wait_until("full", || {
        sender.reap();
        !sender.try_flush().unwrap() && !is_readable(&*sender)
    });
}

fn connected_pair(builder: tcp::Builder) -> (tcp::Stream, TcpStream) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let socket = builder.connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (socket, peer)
}

#[test]
fn descriptors_of_stream_halves_cannot_send() {
    use std::io::Write as _;
    let (socket, mut peer) = connected_pair(tcp::Stream::builder().send_buffer(64 << 10));
    assert!(cannot_be_sent_on(&socket));
    let (mut receiver, mut sender) = socket.split();
    assert!(cannot_be_sent_on(&receiver) && cannot_be_sent_on(&sender));
    assert!(!is_readable(&receiver) && !is_readable(&sender));
    peer.write_all(b"bytes").unwrap();
    wait_until("readable", || is_readable(&receiver));
    drop(receiver.receive().unwrap());
    assert!(!is_readable(&receiver));
    // Room is reported while something waits for it.
    sender.send(vec![1; 64 << 20]).unwrap();
    flush_until_full(&mut sender);
    let reader = std::thread::spawn(move || std::io::copy(&mut peer, &mut std::io::sink()).unwrap());
    while !sender.try_flush().unwrap() {
        wait_until("room", || is_readable(&sender));
    }
    wait_until("over", || {
        sender.reap();
        !is_readable(&sender)
    });
    sender.finish().unwrap();
    reader.join().unwrap();
}

/// Sends something by `MSG_ZEROCOPY`, if allowed, and returns whether it was.
fn is_sent_without_copy(socket: &mut tcp::Stream, peer: &mut impl std::io::Read) -> bool {
    const BYTES: usize = 64 << 10;
    let sender = socket.sender();
    let before = sender.ledger().bytes_of(Evidence::Copied(Cause::SocketCall));
    sender.send(vec![1; BYTES]).unwrap();
    sender.flush().unwrap();
    peer.read_exact(&mut [0; BYTES]).unwrap();
    assert!(sender.drain(PATIENCE).unwrap());
    sender.ledger().bytes_of(Evidence::Copied(Cause::SocketCall)) == before
}

#[test]
fn a_stream_with_other_descriptors_sends_copies() {
    let builder = || tcp::Stream::builder().method(tcp::Method::ZeroCopy);
    let (mut socket, mut peer) = connected_pair(builder());
    assert!(is_sent_without_copy(&mut socket, &mut peer));
    socket.sender().kernel_socket().unwrap();
    assert!(!is_sent_without_copy(&mut socket, &mut peer));

    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut peer = listener.accept().unwrap().0;
    let other = stream.try_clone().unwrap();
    let refused = builder().wrap(other).unwrap_err().to_string();
    assert!(refused.contains("other descriptors"), "{refused}");
    // SAFETY: the other descriptor was closed.
    #[allow(unsafe_code)]
    let mut socket = unsafe { builder().wrap_unshared(stream).unwrap() };
    assert!(is_sent_without_copy(&mut socket, &mut peer));
}
