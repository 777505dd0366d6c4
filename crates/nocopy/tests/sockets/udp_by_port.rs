//! A UDP sender with a port as one more method: frames of the port, buffers of a pool and foreign memory
//! arrive by every method.

use std::net::{SocketAddr, UdpSocket};

use nocopy::udp::{Message, Method, OpenError, Sender, Socket};
use nocopy::{Area, Buffer, BufferMut, Cause, Evidence, Pool, Port};
use nocopy_lab::Lab;
use nocopy_lab::patience::{uninterrupted, wait_until};

use crate::common::waiting::InspectedSocket;
use crate::common::{PATIENCE, area_with_frames_of, lab};

const COUNT: usize = 200;

pub(crate) fn port_sender(lab: &Lab, method: Option<Method>, area: &Area) -> Sender {
    let end = lab.left();
    end.namespace().run(|| {
        let local = SocketAddr::new(end.ipv4().into(), 0);
        let builder = Socket::builder().port(Port::builder(end.interface()).area(area));
        let builder = method.map_or(builder.clone(), |method| builder.method(method));
        builder.bind(local).unwrap().split().1
    })
}

pub(crate) fn kernel_receiver(lab: &Lab) -> (UdpSocket, SocketAddr) {
    let socket = lab.right().namespace().run(|| UdpSocket::bind((lab.right().ipv4(), 0))).unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn numbered_pattern(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (number * 31 + place * 7) as u8).collect()
}

/// Memory of each kind, by number; its contents are the pattern of that number.
fn message_of_kind(sender: &mut Sender, pool: &Pool, number: usize) -> Message {
    let bytes = numbered_pattern(number, 100 + number * 6);
    let filled = |buffer: Option<BufferMut>| {
        let mut buffer = buffer?;
        buffer.fill(&bytes).unwrap();
        Some(Message::from(buffer))
    };
    let of_kind = match number % 4 {
        0 => filled(sender.buffer()),
        1 => filled(pool.take()),
        2 => Some(Message::from_iter([bytes[..8].to_vec().into(), bytes[8..].to_vec().into()])),
        _ => None,
    };
    of_kind.unwrap_or_else(|| Buffer::from(bytes).into())
}

#[test]
fn every_kind_of_memory_is_sent_by_every_method() {
    for method in [None, Some(Method::Xdp), Some(Method::Gso), Some(Method::ZeroCopyGso)] {
        let lab = lab!();
        let (receiver, to) = kernel_receiver(&lab);
        let area = area_with_frames_of(4096);
        let mut sender = port_sender(&lab, method, &area);
        let pool = Pool::new(64, 4096).unwrap();
        let mut all = 0;
        for number in 0..COUNT {
            let message = message_of_kind(&mut sender, &pool, number);
            all += message.pieces().iter().map(|piece| piece.len() as u64).sum::<u64>();
            sender.send_to(message, to).unwrap();
            if number % 20 == 19 {
                sender.flush().unwrap();
            }
        }
        assert!(sender.drain(PATIENCE).unwrap(), "{method:?}");
        let mut bytes = [0; 2000];
        // Datagrams of different methods may overtake each other.
        let mut missing: Vec<_> =
            (0..COUNT).map(|number| numbered_pattern(number, 100 + number * 6)).collect();
        for _ in 0..COUNT {
            let length = uninterrupted(|| receiver.recv(&mut bytes)).expect("it arrived");
            let found = missing.iter().position(|expected| bytes[..length] == *expected);
            missing.swap_remove(found.expect("as it was sent, and once"));
        }
        let (tally, counters) = (sender.ledger(), sender.stats());
        assert_eq!((tally.datagrams(), tally.bytes()), (COUNT as u64, all), "{method:?}: {tally}");
        assert_eq!((counters.moved, counters.get("refused").unwrap()), (COUNT as u64, 0), "{method:?}");
        if method == Some(Method::Xdp) {
            let by_kernel = tally.bytes_of(Evidence::Copied(Cause::SocketCall));
            assert!(
                tally.bytes_of(Evidence::Copied(Cause::XdpCopyMode)) > 0,
                "frames go as they are: {tally}"
            );
            assert!(
                tally.bytes_of(Evidence::Copied(Cause::Slice)) > 0,
                "the rest was copied into frames: {tally}"
            );
            assert!(by_kernel < all / 4, "only until the neighbour is known: {tally}");
        }
        drop(sender);
        let balance = area.balance();
        assert!(balance.is_balanced() && balance.free == u64::from(balance.total), "{method:?}: {balance}");
    }
}

#[test]
fn flush_sends_more_datagrams_than_the_ring_holds() {
    let lab = lab!();
    let (receiver, to) = kernel_receiver(&lab);
    let end = lab.left();
    let mut sender = end.namespace().run(|| {
        let port = Port::builder(end.interface()).ring_sizes(64, 64).frame_count(64, 64);
        let local = SocketAddr::new(end.ipv4().into(), 0);
        Socket::builder().method(Method::Xdp).port(port).bind(local).unwrap().split().1
    });
    for number in 0..1000_usize {
        sender.send_to(Buffer::from(number.to_be_bytes().to_vec()), to).unwrap();
    }
    sender.flush().unwrap();
    let mut bytes = [0; 16];
    for number in 0..1000_usize {
        assert_eq!(uninterrupted(|| receiver.recv(&mut bytes)).expect("it arrived"), 8);
        assert_eq!(bytes[..8], number.to_be_bytes());
    }
    assert!(sender.drain(PATIENCE).unwrap());
}

/// Until the neighbour is known no frame is needed.
pub(crate) fn wait_until_port_is_used(sender: &mut Sender, receiver: &UdpSocket, to: SocketAddr) {
    wait_until("the port is the way", || {
        sender.send_to(Buffer::from(vec![0; 8]), to).unwrap();
        sender.flush().unwrap();
        assert_eq!(uninterrupted(|| receiver.recv(&mut [0; 16])).expect("it arrived"), 8);
        sender.stats().get("over_port").unwrap() > 0
    });
    assert!(sender.drain(PATIENCE).unwrap());
}

#[test]
fn flush_does_not_wait_for_frames_of_the_program() {
    let lab = lab!();
    let (receiver, to) = kernel_receiver(&lab);
    let mut sender = port_sender(&lab, Some(Method::Xdp), &area_with_frames_of(4096));
    wait_until_port_is_used(&mut sender, &receiver, to);
    let held: Vec<BufferMut> = std::iter::from_fn(|| sender.buffer()).collect();
    sender.send_to(Buffer::from(vec![1; 100]), to).unwrap();
    assert!(sender.try_flush().unwrap(), "the kernel's own ways need no frame");
    sender.send_to(Buffer::from(vec![1; 100]), to).unwrap();
    sender.flush().unwrap();
    drop(held);
    for _ in 0..2 {
        assert_eq!(uninterrupted(|| receiver.recv(&mut [0; 200])).expect("it arrived"), 100);
    }
}

#[test]
fn without_a_port_method_xdp_is_refused() {
    let error = Socket::builder().method(Method::Xdp).bind("127.0.0.1:0").unwrap_err();
    assert!(matches!(error, OpenError::Method { method: Method::Xdp, .. }), "{error}");
}

/// The receiving half of the port reads the error queue that also has completions; none of them gets lost.
#[test]
fn completions_and_errors_arrive_while_the_port_receives() {
    let lab = lab!();
    let (receiver, to) = kernel_receiver(&lab);
    let end = lab.left();
    let (local, mut half, mut sender) = end.namespace().run(|| {
        let local = SocketAddr::new(end.ipv4().into(), 0);
        let builder = Socket::builder().method(Method::ZeroCopy).port(Port::builder(end.interface()));
        let socket = builder.bind(local).unwrap();
        let local = socket.local_addr().unwrap();
        let (half, sender) = socket.split();
        (local, half, sender)
    });
    // One error for each datagram, however soon after another.
    lab.right().namespace().run(|| std::fs::write("/proc/sys/net/ipv4/icmp_ratelimit", "0").unwrap());
    let at_the_socket = InspectedSocket::udp_socket(end, local);
    // Free buffers are left: without any, the sender would read completions with every call, before the half
    // does.
    let buffers: Vec<BufferMut> = std::iter::from_fn(|| sender.buffer()).collect();
    buffers.into_iter().for_each(|buffer| sender.recycle(buffer));
    let nobody = SocketAddr::new(to.ip(), 9);
    for number in 0..5 {
        for to in [to, nobody] {
            sender.send_to(Buffer::from(numbered_pattern(number, 1000)), to).unwrap();
        }
        sender.flush().unwrap();
        assert_eq!(uninterrupted(|| receiver.recv(&mut [0; 2000])).expect("it arrived"), 1000);
        // The half reads the queue when the error has arrived, with everything else that waits in it.
        wait_until("something to read", || at_the_socket.has_error());
        wait_until("read by the receiving half", || {
            assert_eq!(half.try_receive().unwrap().count(), 0);
            !at_the_socket.has_error()
        });
    }
    drop(at_the_socket);
    assert!(sender.drain(PATIENCE).unwrap(), "a completion was lost: {} in flight", sender.in_flight());
    let errors: Vec<_> = sender.errors().collect();
    assert!(!errors.is_empty() && errors.iter().all(|error| error.to == Some(nobody)), "{errors:?}");
    assert_eq!(sender.stats().get("peer_errors").unwrap(), errors.len() as u64);
}
