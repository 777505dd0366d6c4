//! UDP sockets send owned buffers by every method, and report what was copied.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nocopy::udp::{Message, Method, SendError, Socket};
use nocopy::{Buffer, Cause, Evidence, Ledger, Pool, Reason};
use nocopy_lab::patience::{PATIENCE, uninterrupted};
use nocopy_lab::without_missing_ipv6;

use crate::common::methods::available_methods;

/// All methods except ports, which have their own tests.
const METHODS: [Method; 7] = [
    Method::Socket,
    Method::SendMmsg,
    Method::Gso,
    Method::ZeroCopy,
    Method::ZeroCopyGso,
    Method::UringZeroCopy,
    Method::UringZeroCopyGso,
];

fn ephemeral_address(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), 0)
}

fn connected_pair(ip: &str, method: Option<Method>) -> (Socket, UdpSocket) {
    let receiver = UdpSocket::bind(ephemeral_address(ip)).unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    socket2::SockRef::from(&receiver).set_recv_buffer_size(4 << 20).unwrap();
    let builder = Socket::builder().return_buffers(true);
    let builder = method.map_or(builder.clone(), |method| builder.method(method));
    let mut socket = builder.bind(ephemeral_address(ip)).unwrap();
    socket.connect(receiver.local_addr().unwrap()).unwrap();
    (socket, receiver)
}

fn receive_one(receiver: &UdpSocket) -> Vec<u8> {
    let mut bytes = vec![0; 65_536];
    let length = uninterrupted(|| receiver.recv(&mut bytes)).expect("a datagram came");
    bytes.truncate(length);
    bytes
}

fn numbered_pattern(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (number * 31 + place * 7) as u8).collect()
}

fn send_error_of(error: std::io::Error) -> SendError {
    error.downcast().expect("datagrams were refused")
}

fn drain_and_take_ledger(socket: &mut Socket) -> Ledger {
    assert!(socket.sender().drain(PATIENCE).unwrap(), "the kernel let go of the buffers");
    socket.sender().ledger()
}

#[test]
fn every_method_sends_the_given_bytes() {
    for ip in without_missing_ipv6(["127.0.0.1", "::1"], |ip| ip.contains(':')) {
        for method in available_methods(METHODS) {
            let (mut socket, receiver) = connected_pair(ip, Some(method));
            let lengths = [0, 1, 64, 1400, 1400, 1400, 900, 8192, 8192, 65_507];
            for (number, bytes) in lengths.into_iter().enumerate() {
                socket.sender().send(Buffer::from(numbered_pattern(number, bytes))).unwrap();
            }
            let tally = drain_and_take_ledger(&mut socket);
            for (number, bytes) in lengths.into_iter().enumerate() {
                assert!(
                    receive_one(&receiver) == numbered_pattern(number, bytes),
                    "{ip} {method}: datagram {number} of {bytes} bytes"
                );
            }
            assert_eq!(
                (tally.datagrams(), tally.bytes()),
                (10, lengths.iter().sum::<usize>() as u64),
                "{ip} {method}"
            );
            let counters = socket.sender().stats();
            assert_eq!(
                (
                    counters.moved,
                    counters.get("refused").unwrap(),
                    counters.get("unknown_completions").unwrap()
                ),
                (10, 0, 0),
                "{method}"
            );
        }
    }
}

#[test]
fn one_buffer_holds_many_datagrams() {
    for method in available_methods(METHODS) {
        let (mut socket, receiver) = connected_pair("127.0.0.1", Some(method));
        let mut buffer = socket.sender().buffer().unwrap();
        buffer.fill(&numbered_pattern(3, 10 * 100 + 7)).unwrap();
        socket.sender().send(Message::segments(buffer, 100)).unwrap();
        drain_and_take_ledger(&mut socket);
        let all = numbered_pattern(3, 10 * 100 + 7);
        for datagram in all.chunks(100) {
            assert!(receive_one(&receiver) == datagram, "{method}");
        }
        let done = socket.sender().completed().expect("its buffer is back");
        assert_eq!(&*done.item.pieces()[0], all);
        assert!(socket.sender().completed().is_none());
    }
}

#[test]
fn more_datagrams_than_one_call_arrive_in_order() {
    for method in available_methods(METHODS) {
        let (mut socket, receiver) = connected_pair("127.0.0.1", Some(method));
        let all = numbered_pattern(1, 16 * 200);
        let mut buffer = socket.sender().buffer().unwrap();
        buffer.fill(&all).unwrap();
        socket.sender().send(Message::segments(buffer, 16)).unwrap();
        drain_and_take_ledger(&mut socket);
        assert_eq!(socket.sender().stats().moved, 200);
        for datagram in all.chunks(16) {
            assert!(receive_one(&receiver) == datagram, "{method}");
        }
    }
}

#[test]
fn pieces_of_a_message_are_gathered_into_one_datagram() {
    for method in available_methods(METHODS) {
        let (mut socket, receiver) = connected_pair("127.0.0.1", Some(method));
        for number in 0..30 {
            let header = Buffer::from_owner([number as u8; 8]);
            let payload = Buffer::from(numbered_pattern(number, 500));
            socket.sender().send(Message::from_iter([header, payload])).unwrap();
        }
        drain_and_take_ledger(&mut socket);
        for number in 0..30 {
            let expected = [vec![number as u8; 8], numbered_pattern(number, 500)].concat();
            assert!(receive_one(&receiver) == expected, "{method}: datagram {number}");
        }
    }
}

#[test]
fn local_delivery_is_recorded_as_copied() {
    for (method, cause) in available_methods([
        (Method::ZeroCopy, Cause::DeliveredLocally),
        (Method::ZeroCopyGso, Cause::DeliveredLocally),
        (Method::UringZeroCopy, Cause::DeliveredLocally),
        (Method::UringZeroCopyGso, Cause::DeliveredLocally),
        (Method::Gso, Cause::SocketCall),
    ]) {
        let (mut socket, receiver) = connected_pair("127.0.0.1", Some(method));
        let ticket = socket.sender().send(Buffer::from(vec![1; 1000])).unwrap();
        socket.sender().flush().unwrap();
        receive_one(&receiver);
        let tally = drain_and_take_ledger(&mut socket);
        assert_eq!(tally.bytes_of(Evidence::Copied(cause)), 1000, "{method}: {tally}");
        let done = socket.sender().completed().unwrap();
        assert_eq!((done.ticket, done.evidence), (ticket, Evidence::Copied(cause)));
        let back = done.item.into_iter().next().unwrap().into_owner::<Vec<u8>>().unwrap();
        assert_eq!(back, [1; 1000]);
    }
}

#[test]
fn slices_are_copied_at_once_in_order() {
    let (mut socket, receiver) = connected_pair("127.0.0.1", None);
    socket.sender().send(Buffer::from(b"first".to_vec())).unwrap();
    socket.sender().send_copy(b"second").unwrap();
    assert_eq!((receive_one(&receiver), receive_one(&receiver)), (b"first".to_vec(), b"second".to_vec()));
    assert_eq!(socket.sender().ledger().bytes_of(Evidence::Copied(Cause::Slice)), 6);
}

#[test]
fn infinite_timeouts_are_accepted() {
    let (mut socket, receiver) = connected_pair("127.0.0.1", Some(Method::ZeroCopy));
    socket.sender().send(Buffer::from(vec![1; 100])).unwrap();
    assert!(socket.sender().drain(Duration::MAX).unwrap());
    assert_eq!(receive_one(&receiver), [1; 100]);
    let mut sender = socket.split().1;
    assert!(sender.close(Duration::MAX).unwrap() && sender.stats().get("abandoned_calls").unwrap() == 0);
}

#[test]
fn one_socket_sends_to_many_addresses() {
    let receivers: Vec<_> =
        (0..50).map(|_| UdpSocket::bind(ephemeral_address("127.0.0.1")).unwrap()).collect();
    let mut socket = Socket::bind(ephemeral_address("127.0.0.1")).unwrap();
    let sender = socket.sender();
    for round in 0..3 {
        for (number, receiver) in receivers.iter().enumerate() {
            let buffer = Buffer::from(numbered_pattern(number, 100 + round));
            sender.send_to(buffer, receiver.local_addr().unwrap()).unwrap();
        }
    }
    sender.flush().unwrap();
    for (number, receiver) in receivers.iter().enumerate() {
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        (0..3).for_each(|round| assert_eq!(receive_one(receiver), numbered_pattern(number, 100 + round)));
    }
}

#[test]
fn rejected_messages_are_returned() {
    let mut socket = Socket::bind(ephemeral_address("127.0.0.1")).unwrap();
    let rejected = socket.sender().send(Buffer::from(vec![1])).unwrap_err();
    assert!(matches!(rejected.reason, Reason::NotConnected) && rejected.item.pieces()[0].len() == 1);
    let to = SocketAddr::from(([127, 0, 0, 1], 9));
    let rejected = socket.sender().send_to(Buffer::from(vec![1; 65_508]), to).unwrap_err();
    assert!(matches!(rejected.reason, Reason::TooLong { bytes_max: 65_507 }));
    for _ in 0..1024 {
        socket.sender().send_to(Buffer::from(vec![1]), to).unwrap();
    }
    let rejected = socket.sender().send_to(Buffer::from(vec![1]), to).unwrap_err();
    assert!(matches!(rejected.reason, nocopy::Reason::Full));
}

/// An address without a socket, which no other test uses.
fn closed_port_address() -> SocketAddr {
    UdpSocket::bind(ephemeral_address("127.0.0.77")).unwrap().local_addr().unwrap()
}

#[test]
fn a_closed_port_is_reported_and_sending_continues() {
    let closed_port = closed_port_address();
    for method in available_methods(METHODS) {
        // Not connected: the kernel reports errors to a connected socket only about its peer.
        let (_, receiver) = connected_pair("127.0.0.1", Some(method));
        let mut socket = Socket::builder().method(method).bind(ephemeral_address("127.0.0.1")).unwrap();
        let somebody = receiver.local_addr().unwrap();
        for number in 0..20 {
            socket.sender().send_to(Buffer::from(vec![0; 10]), closed_port).unwrap();
            socket.sender().send_to(Buffer::from(numbered_pattern(number, 100)), somebody).unwrap();
            socket.sender().flush().unwrap();
        }
        (0..20)
            .for_each(|number| assert_eq!(receive_one(&receiver), numbered_pattern(number, 100), "{method}"));
        drain_and_take_ledger(&mut socket);
        let errors: Vec<_> = socket.sender().errors().collect();
        assert!(!errors.is_empty(), "{method}");
        for error in errors {
            assert_eq!(error.error.kind(), std::io::ErrorKind::ConnectionRefused);
            assert_eq!((error.to, error.from), (Some(closed_port), Some(closed_port.ip())), "{method}");
        }
        assert_eq!(socket.sender().stats().moved, 40, "{method}");
    }
}

#[test]
fn an_unsendable_datagram_is_counted_and_others_are_sent() {
    let (mut socket, receiver) = connected_pair("127.0.0.1", None);
    // A broadcast address, without permission.
    let all = SocketAddr::from(([255; 4], 9));
    socket.sender().send_to(Buffer::from(vec![1; 10]), all).unwrap();
    socket.sender().send(Buffer::from(b"behind".to_vec())).unwrap();
    let error = send_error_of(socket.sender().flush().unwrap_err());
    assert_eq!((error.refused, error.to), (1, Some(all)));
    assert!(error.to_string().contains("broadcasts are to be allowed"), "{error}");
    assert_eq!(receive_one(&receiver), b"behind");
    let counters = socket.sender().stats();
    assert_eq!((counters.moved, counters.get("refused").unwrap()), (1, 1));
}

#[test]
fn too_many_pieces_are_refused_and_others_are_sent() {
    for method in available_methods(METHODS) {
        let (mut socket, receiver) = connected_pair("127.0.0.1", Some(method));
        let piece = || Buffer::from(vec![1]);
        socket.sender().send(Message::from_iter((0..1024).map(|_| piece()))).unwrap();
        socket.sender().send(Message::from_iter((0..1025).map(|_| piece()))).unwrap();
        socket.sender().send(Buffer::from(b"behind".to_vec())).unwrap();
        let refused = send_error_of(match socket.sender().flush() {
            Err(refused) => refused,
            Ok(()) => socket.sender().drain(PATIENCE).unwrap_err(), // told later, by the ring
        });
        assert_eq!((refused.refused, refused.source.raw_os_error()), (1, Some(libc::EMSGSIZE)), "{method}");
        assert!(socket.sender().drain(PATIENCE).unwrap());
        let (first, second) = (receive_one(&receiver).len(), receive_one(&receiver).len());
        assert_eq!(first + second, 1024 + 6, "{method}");
        let (tally, counters) = (socket.sender().ledger(), socket.sender().stats());
        assert_eq!(
            (counters.moved, counters.get("refused").unwrap(), tally.datagrams(), tally.bytes()),
            (2, 1, 2, 1030),
            "{method}"
        );
    }
}

#[test]
fn ipv4_errors_are_reported_to_ipv6_sockets() {
    if !nocopy_lab::ipv6_sockets_or_skip() {
        return;
    }
    let closed_port = SocketAddr::new("::ffff:127.0.0.77".parse().unwrap(), closed_port_address().port());
    let mut socket = Socket::bind(ephemeral_address("::")).unwrap();
    socket.sender().send_to(Buffer::from(vec![0; 10]), closed_port).unwrap();
    socket.sender().flush().unwrap();
    let mut errors = Vec::new();
    let give_up = Instant::now() + PATIENCE;
    while errors.is_empty() {
        assert!(Instant::now() < give_up, "nothing is told");
        errors.extend(socket.sender().errors());
    }
    assert_eq!(errors.len(), 1);
    assert_eq!(
        (errors[0].to, errors[0].error.kind()),
        (Some(closed_port), std::io::ErrorKind::ConnectionRefused)
    );
}

#[test]
fn every_buffer_is_free_after_a_long_run() {
    for method in available_methods(METHODS) {
        let receiver = UdpSocket::bind(ephemeral_address("127.0.0.1")).unwrap();
        let pool = Pool::new(64, 64 << 10).unwrap();
        let builder = Socket::builder().return_buffers(true).send_pool(&pool).method(method);
        let mut socket = builder.bind(ephemeral_address("127.0.0.1")).unwrap();
        socket.connect(receiver.local_addr().unwrap()).unwrap();
        drop(receiver);
        for _ in 0..300 {
            while socket.sender().completed().is_some() {}
            let Some(mut buffer) = socket.sender().buffer() else {
                socket.sender().drain(PATIENCE).unwrap();
                continue;
            };
            buffer.resize(5000);
            socket.sender().send(Message::segments(buffer, 500)).unwrap();
            socket.sender().flush().unwrap();
        }
        drain_and_take_ledger(&mut socket);
        drop(socket);
        assert_eq!(pool.available(), pool.total(), "{method}");
    }
}
