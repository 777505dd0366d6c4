//! UDP sockets under faults: the right error, and every byte accounted for.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use nocopy::udp::{Message, Method, SendError, Socket};
use nocopy::{Buffer, BufferMut, Cause, Evidence, Pool};
use nocopy_lab::patience::uninterrupted;
use nocopy_lab::{End, Lab};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::common::lab;
use crate::common::methods::available_methods;
use crate::common::{PATIENCE, SECOND};

const METHODS: [Method; 7] = [
    Method::Socket,
    Method::SendMmsg,
    Method::Gso,
    Method::ZeroCopy,
    Method::ZeroCopyGso,
    Method::UringZeroCopy,
    Method::UringZeroCopyGso,
];

fn kernel_receiver(end: &End) -> UdpSocket {
    let address = SocketAddr::new(end.ipv4().into(), 0);
    let socket = end.namespace().run(|| UdpSocket::bind(address)).unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn connected_socket(end: &End, method: Method, to: &UdpSocket) -> Socket {
    let address = SocketAddr::new(end.ipv4().into(), 0);
    end.namespace().run(|| {
        let mut socket = Socket::builder().method(method).bind(address).unwrap();
        socket.connect(to.local_addr().unwrap()).unwrap();
        socket
    })
}

fn numbered_pattern(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (number * 31 + place * 7) as u8).collect()
}

/// Sends twenty datagrams of 1,400 bytes from one buffer, and checks each where it arrives.
fn send_and_check_segments(socket: &mut Socket, receiver: &UdpSocket, round: usize) {
    let mut buffer = socket.sender().buffer().unwrap();
    buffer.fill(&numbered_pattern(round, 20 * 1400)).unwrap();
    socket.sender().send(Message::segments(buffer, 1400)).unwrap();
    socket.sender().flush().unwrap();
    let mut bytes = [0; 2000];
    for datagram in numbered_pattern(round, 20 * 1400).chunks(1400) {
        let length = uninterrupted(|| receiver.recv(&mut bytes)).expect("it arrived");
        assert!(&bytes[..length] == datagram);
    }
}

#[test]
fn a_lowered_mtu_loses_no_datagram() {
    for method in available_methods(METHODS) {
        let lab = lab!();
        let receiver = kernel_receiver(lab.right());
        let mut socket = connected_socket(lab.left(), method, &receiver);
        for (round, mtu) in [1500, 1000, 1500, 600].into_iter().enumerate() {
            lab.left().set_mtu(mtu).unwrap();
            send_and_check_segments(&mut socket, &receiver, round);
        }
        assert!(socket.sender().drain(PATIENCE).unwrap(), "{method}: {}", socket.sender().in_flight());
        let (tally, counters) = (socket.sender().ledger(), socket.sender().stats());
        assert_eq!((tally.datagrams(), tally.bytes()), (80, 80 * 1400), "{method}: {tally}");
        assert_eq!((counters.moved, counters.get("refused").unwrap()), (80, 0), "{method}");
    }
}

#[test]
fn an_interface_down_is_reported_and_the_socket_recovers() {
    for method in available_methods(METHODS) {
        let lab = lab!();
        let receiver = kernel_receiver(lab.right());
        let mut socket = connected_socket(lab.left(), method, &receiver);
        send_and_check_segments(&mut socket, &receiver, 0);
        lab.left().set_down().unwrap();
        socket.sender().send(Buffer::from(vec![1; 100])).unwrap();
        let error: SendError = socket.sender().flush().unwrap_err().downcast().unwrap();
        assert_eq!(
            (error.refused, socket.sender().stats().get("refused").unwrap()),
            (1, 1),
            "{method}: {error}"
        );
        lab.left().bring_interface_up().unwrap();
        lab.wait_for_carrier().unwrap();
        send_and_check_segments(&mut socket, &receiver, 1);
        assert!(socket.sender().drain(PATIENCE).unwrap());
        assert_eq!(socket.sender().ledger().datagrams(), 40, "{method}");
    }
}

fn run_ip_command(end: &End, arguments: &str) {
    let done = end.namespace().run(|| Command::new("ip").args(arguments.split(' ')).output().unwrap());
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn each_datagram_of_a_refused_burst_is_counted_once() {
    for method in available_methods(METHODS) {
        let lab = lab!();
        let receiver = kernel_receiver(lab.right());
        let mut socket = connected_socket(lab.left(), method, &receiver);
        send_and_check_segments(&mut socket, &receiver, 0);
        for (kind, bytes) in [("prohibit", 30 * 1400), ("unreachable", 45 * 1400 + 7)] {
            run_ip_command(lab.left(), &format!("route add {kind} 10.77.0.2"));
            socket.sender().send(Message::segments(Buffer::from(vec![1; bytes]), 1400)).unwrap();
            // A ring reports some of them later.
            let refused = [socket.sender().flush(), socket.sender().drain(PATIENCE).map(drop)];
            let refused =
                refused.into_iter().filter_map(|done| Some(done.err()?.downcast::<SendError>().unwrap()));
            let refused: u64 = refused.map(|error| error.refused).sum();
            assert_eq!(refused, bytes.div_ceil(1400) as u64, "{method}");
            run_ip_command(lab.left(), &format!("route del {kind} 10.77.0.2"));
            send_and_check_segments(&mut socket, &receiver, 1);
        }
        assert!(socket.sender().drain(PATIENCE).unwrap());
        let (tally, counters) = (socket.sender().ledger(), socket.sender().stats());
        assert_eq!((tally.datagrams(), tally.bytes()), (60, 60 * 1400), "{method}: {tally}");
        assert_eq!(
            (counters.moved, counters.bytes, counters.get("refused").unwrap()),
            (60, 60 * 1400, 76),
            "{method}"
        );
        let by_error =
            (counters.get("refused_EACCES").unwrap(), counters.get("refused_EHOSTUNREACH").unwrap());
        assert_eq!((by_error, counters.dropped), ((30, 46), 76), "{method}");
    }
}

#[test]
fn without_pinned_memory_sends_are_copied_and_counted() {
    // Capabilities belong to a thread; the limit belongs to the process, but applies only to threads without
    // this capability.
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    let limit = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: Some(64 << 10), ..limit }).unwrap();
    let lab: Lab = lab!();
    let receiver = kernel_receiver(lab.right());
    let mut socket = connected_socket(lab.left(), Method::ZeroCopy, &receiver);
    let bytes = numbered_pattern(1, 60_000);
    for _ in 0..20 {
        socket.sender().send(Buffer::from(bytes.clone())).unwrap();
    }
    socket.sender().flush().unwrap();
    let mut got = vec![0; 65_536];
    for _ in 0..20 {
        let length = uninterrupted(|| receiver.recv(&mut got)).expect("it arrived");
        assert!(got[..length] == bytes);
    }
    assert!(socket.sender().drain(PATIENCE).unwrap());
    setrlimit(Resource::Memlock, limit).unwrap();
    let (tally, counters) = (socket.sender().ledger(), socket.sender().stats());
    assert_eq!(tally.bytes(), 20 * 60_000, "{tally}");
    assert!(counters.get("no_buffers").unwrap() > 0, "{counters}");
    assert_eq!(
        tally.bytes_of(Evidence::Copied(Cause::NoBuffers)),
        counters.get("no_buffers").unwrap() * 60_000
    );
    let why = socket.sender().explain().to_string();
    assert!(why.contains("ulimit -l"), "{why}");
}

#[test]
fn buffers_return_after_all_were_queued() {
    let lab = lab!();
    let receiver = kernel_receiver(lab.right());
    let pool = Pool::new(2, 4096).unwrap();
    let builder = Socket::builder().send_pool(&pool);
    let address = SocketAddr::new(lab.left().ipv4().into(), 0);
    let mut socket = lab.left().namespace().run(|| builder.bind(address)).unwrap();
    let to = receiver.local_addr().unwrap();
    for _ in 0..2 {
        let mut buffer = socket.sender().buffer().unwrap();
        buffer.resize(100);
        socket.sender().send_to(buffer, to).unwrap();
    }
    assert!(socket.sender().buffer().is_none(), "all are queued");
    socket.sender().flush().unwrap();
    let free: Vec<BufferMut> = std::iter::from_fn(|| socket.sender().buffer()).collect();
    assert_eq!(free.len(), 2);
}

#[test]
fn ten_thousand_opened_sockets_leak_nothing() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = receiver.local_addr().unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (pool, before) = (Pool::new(8, 64 << 10).unwrap(), open());
    let methods: Vec<Method> = available_methods(METHODS).collect();
    for number in 0..10_000_u32 {
        let method = methods[number as usize % methods.len()];
        let builder = Socket::builder().method(method).send_pool(&pool).receive_pool(&pool);
        let mut socket = builder.bind("127.0.0.1:0").unwrap();
        let mut buffer = socket.sender().buffer().unwrap();
        buffer.fill(&number.to_be_bytes()).unwrap();
        socket.sender().send_to(buffer, to).unwrap();
        socket.sender().flush().unwrap();
        let mut bytes = [0; 8];
        assert_eq!(uninterrupted(|| receiver.recv(&mut bytes)).unwrap(), 4);
        assert_eq!(bytes[..4], number.to_be_bytes());
    }
    // The reaper keeps those without a completion for some milliseconds; and other tests have descriptors.
    let give_up = std::time::Instant::now() + PATIENCE;
    while open() > before + 50 || pool.available() < pool.total() {
        assert!(std::time::Instant::now() < give_up, "{} descriptors, {} before", open(), before);
        std::thread::sleep(SECOND / 100);
    }
}
