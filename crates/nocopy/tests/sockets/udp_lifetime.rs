//! Memory that the kernel still reads when a socket is closed, dropped, or out of buffers: on an interface
//! that delays packets.

use std::io::ErrorKind;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::process::Command;
use std::time::{Duration, Instant};

use nocopy::udp::{Message, Method, SendError, Socket};
use nocopy::{Buffer, Cause, Evidence, Pool, Reason, process_stats};
use nocopy_lab::Lab;
use nocopy_lab::patience::{uninterrupted, wait_until};

use crate::common::forks::ForkedChild;
use crate::common::lab;
use crate::common::methods::available_methods;
use crate::common::{PATIENCE, overwrite_free_buffers};

const ZERO_COPY: [Method; 4] =
    [Method::ZeroCopy, Method::ZeroCopyGso, Method::UringZeroCopy, Method::UringZeroCopyGso];

pub(crate) const SLOW: &str = "1kbit";
pub(crate) const FAST: &str = "8mbit";

pub(crate) const DATAGRAM_BYTES: usize = 1000;
pub(crate) const COUNT: usize = 40;

/// Makes packets leave the left end so slowly that they are seen waiting even after a stall of minutes: one
/// in eight seconds, the first two at once.
pub(crate) fn delay_packets(lab: &Lab) {
    limit_packet_rate(lab, "replace", SLOW, 10_000_000);
}

/// Lets delayed packets leave, at some 1 MB/s.
pub(crate) fn release_packets(lab: &Lab) {
    limit_packet_rate(lab, "change", FAST, 10_000_000);
    apply_new_rate_now(lab);
}

/// Makes the shaper use its new rate at once: by itself it waits until the next packet's time by the old
/// rate. The packet sent for that reaches no socket.
pub(crate) fn apply_new_rate_now(lab: &Lab) {
    let left = lab.left();
    let socket = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
    socket.send_to(&[0], (lab.right().ipv4(), 9)).unwrap();
}

/// Limits the rate at which packets leave the left end; of waiting packets, `bytes` are kept, and others
/// dropped.
pub(crate) fn limit_packet_rate(lab: &Lab, what: &str, rate: &str, bytes: usize) {
    let interface = lab.left().interface();
    let shaper = ["rate", rate, "burst", "2kb", "limit", &bytes.to_string()];
    let arguments = [&["qdisc", what, "dev", interface, "root", "tbf"], &shaper[..]].concat();
    let done =
        lab.left().namespace().run(|| Command::new("tc").args(arguments).status().expect("tc is there"));
    assert!(done.success(), "a shaper on {interface}");
}

/// Waits until all delayed packets have left.
pub(crate) fn wait_until_packets_have_left(lab: &Lab) {
    let show = ["-s", "qdisc", "show", "dev", lab.left().interface()];
    let give_up = Instant::now() + PATIENCE;
    loop {
        let shown =
            lab.left().namespace().run(|| Command::new("tc").args(show).output().expect("tc is there"));
        let shown = String::from_utf8(shown.stdout).unwrap();
        if shown.contains("backlog 0b 0p") {
            return;
        }
        assert!(Instant::now() < give_up, "{shown}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn receiver_in_lab(lab: &Lab) -> UdpSocket {
    let address = SocketAddr::new(lab.right().ipv4().into(), 0);
    let socket = lab.right().namespace().run(|| UdpSocket::bind(address)).unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

pub(crate) fn sender_in_lab(lab: &Lab, method: Method, pool: &Pool, to: &UdpSocket) -> Socket {
    let address = SocketAddr::new(lab.left().ipv4().into(), 0);
    // Enough for all of them: the send buffer must not run out.
    let builder = Socket::builder().method(method).send_pool(pool).send_buffer(4 << 20);
    let mut socket = lab.left().namespace().run(|| builder.bind(address)).unwrap();
    lab.left().namespace().run(|| socket.connect(to.local_addr().unwrap())).unwrap();
    socket
}

pub(crate) fn numbered_pattern(number: usize) -> Vec<u8> {
    (0..DATAGRAM_BYTES).map(|place| (number * 31 + place * 7) as u8).collect()
}

fn send_all_datagrams(socket: &mut Socket) {
    send_numbered(socket, 0..COUNT);
}

/// Sends some messages, one in three from memory of the program.
pub(crate) fn send_numbered(socket: &mut Socket, numbers: Range<usize>) {
    for number in numbers {
        let buffer = match number % 3 {
            0 => Buffer::from(numbered_pattern(number)),
            _ => {
                let mut buffer = socket.sender().buffer().expect("a free buffer");
                buffer.fill(&numbered_pattern(number)).unwrap();
                buffer.freeze()
            }
        };
        socket.sender().send(Message::from(buffer)).unwrap();
    }
    socket.sender().flush().unwrap();
}

pub(crate) fn receive_one(receiver: &UdpSocket, bytes: &mut [u8]) -> usize {
    loop {
        match receiver.recv(bytes) {
            // A completion of io_uring, for this thread.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => return received.expect("it arrived"),
        }
    }
}

pub(crate) fn assert_all_arrive(receiver: &UdpSocket) {
    let mut bytes = [0; 2 * DATAGRAM_BYTES];
    for number in 0..COUNT {
        let length = receive_one(receiver, &mut bytes);
        assert!(bytes[..length] == numbered_pattern(number), "datagram {number} is as it was sent");
    }
}

#[test]
fn memory_is_reused_after_a_forced_close_and_data_arrives() {
    for method in available_methods(ZERO_COPY) {
        let lab = lab!();
        delay_packets(&lab);
        let (receiver, pool, leaked_before) = (
            receiver_in_lab(&lab),
            Pool::new(64, 4096).unwrap(),
            process_stats().get("leaked_bytes").unwrap(),
        );
        let mut socket = sender_in_lab(&lab, method, &pool, &receiver);
        send_all_datagrams(&mut socket);
        let (_receiver, mut sender) = socket.split();
        let is_all = sender.close(Duration::ZERO).unwrap();
        let closed = sender.stats();
        assert!(!is_all && closed.get("abandoned_calls").unwrap() > 0, "{method}: {closed}");
        assert!(closed.get("leaked_bytes").unwrap() > 0, "foreign memory among it: {closed}");
        assert_eq!(closed.get("leaked_bytes").unwrap() % DATAGRAM_BYTES as u64, 0);
        assert!(
            process_stats().get("leaked_bytes").unwrap() - leaked_before
                >= closed.get("leaked_bytes").unwrap()
        );
        assert!(matches!(sender.send_copy(b"more"), Err(Reason::Finished)), "{method}");
        drop(sender);
        assert_eq!(
            overwrite_free_buffers(&pool),
            pool.total(),
            "{method}: every buffer of the pool is to be had again"
        );
        release_packets(&lab);
        assert_all_arrive(&receiver);
    }
}

#[test]
fn a_dropped_socket_holds_its_memory_until_completion() {
    for method in available_methods(ZERO_COPY) {
        let lab = lab!();
        delay_packets(&lab);
        let (receiver, pool) = (receiver_in_lab(&lab), Pool::new(64, 4096).unwrap());
        let mut socket = sender_in_lab(&lab, method, &pool, &receiver);
        send_all_datagrams(&mut socket);
        drop(socket);
        assert!(overwrite_free_buffers(&pool) < pool.total(), "{method}: some are still read");
        release_packets(&lab);
        assert_all_arrive(&receiver);
        let give_up = Instant::now() + PATIENCE;
        while pool.available() < pool.total() {
            assert!(Instant::now() < give_up, "{method}: {} of {} are home", pool.available(), pool.total());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Memory of the program whose `Drop` panics.
struct PanicsWhenDropped(Vec<u8>);

impl AsRef<[u8]> for PanicsWhenDropped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("on purpose: the drop of an owner");
    }
}

#[test]
fn a_panic_in_an_owners_drop_loses_no_other_buffer() {
    for method in available_methods(ZERO_COPY) {
        // Packets leave the first lab before they leave the other.
        let (lab, other) = (lab!(), lab!());
        delay_packets(&lab);
        delay_packets(&other);
        let (pool, other_pool) = (Pool::new(64, 4096).unwrap(), Pool::new(64, 4096).unwrap());
        let (receiver, other_receiver) = (receiver_in_lab(&lab), receiver_in_lab(&other));
        let mut other_socket = sender_in_lab(&other, method, &other_pool, &other_receiver);
        send_all_datagrams(&mut other_socket);
        drop(other_socket);
        let send_with_owners = || {
            let mut socket = sender_in_lab(&lab, method, &pool, &receiver);
            for number in 0..COUNT {
                let mut buffer = Buffer::from_owner(PanicsWhenDropped(numbered_pattern(number)));
                if number % 3 > 0 {
                    let mut free = socket.sender().buffer().expect("a free buffer");
                    free.fill(&numbered_pattern(number)).unwrap();
                    buffer = free.freeze();
                }
                socket.sender().send(buffer).unwrap();
            }
            socket.sender().flush().unwrap();
            socket
        };
        drop(send_with_owners());
        release_packets(&lab);
        assert_all_arrive(&receiver);
        wait_until("home", || pool.available() == pool.total());
        let mut socket = send_with_owners();
        assert!(socket.sender().drain(PATIENCE).unwrap(), "{method}");
        drop(socket);
        assert_eq!(pool.available(), pool.total(), "{method}");
        assert!(
            overwrite_free_buffers(&other_pool) < other_pool.total(),
            "{method}: the other socket's are still read"
        );
        release_packets(&other);
        assert_all_arrive(&other_receiver);
        wait_until("home", || other_pool.available() == other_pool.total());
    }
}

/// The child has the same socket, and a copy of its state.
#[test]
fn a_forked_child_takes_no_completions_of_its_parent() {
    for method in available_methods(ZERO_COPY) {
        let lab = lab!();
        delay_packets(&lab);
        let (receiver, pool) = (receiver_in_lab(&lab), Pool::new(64, 4096).unwrap());
        let mut socket = sender_in_lab(&lab, method, &pool, &receiver);
        send_all_datagrams(&mut socket);
        let in_flight = socket.sender().in_flight();
        assert!(in_flight > 0, "{method}");
        release_packets(&lab);
        assert_all_arrive(&receiver);
        // Everything has arrived, so completions wait for the first reader.
        let child = ForkedChild::start(|| {
            assert_eq!(socket.sender().reap(), 0, "completions are the parent's");
            for _ in 0..3 {
                socket.sender().send(Buffer::from(numbered_pattern(COUNT))).unwrap();
                socket.sender().flush().unwrap();
            }
            assert_eq!(socket.sender().in_flight(), in_flight, "what a child sends is copied");
        });
        child.join();
        let mut bytes = [0; 2 * DATAGRAM_BYTES];
        for _ in 0..3 {
            let length = receive_one(&receiver, &mut bytes);
            assert!(bytes[..length] == numbered_pattern(COUNT), "{method}: as the child sent it");
        }
        for _ in 0..2 {
            assert!(socket.sender().drain(PATIENCE).unwrap(), "{method}: {}", socket.sender().in_flight());
            send_all_datagrams(&mut socket);
            assert_all_arrive(&receiver);
        }
        assert!(socket.sender().drain(PATIENCE).unwrap(), "{method}: {}", socket.sender().in_flight());
        assert_eq!(socket.sender().stats().get("unknown_completions").unwrap(), 0, "{method}");
        drop(socket);
        assert_eq!(pool.available(), pool.total(), "{method}");
    }
}

/// Memory that a forked child does not have must not be unmapped there: something else may be at its address.
#[test]
fn a_forked_child_drops_its_parents_sockets_safely() {
    for method in available_methods(ZERO_COPY) {
        let lab = lab!();
        delay_packets(&lab);
        let (receiver, pool) = (receiver_in_lab(&lab), Pool::new(64, 4096).unwrap());
        let mut socket = sender_in_lab(&lab, method, &pool, &receiver);
        send_all_datagrams(&mut socket);
        let mut parents = ManuallyDrop::new((socket, pool));
        ForkedChild::start(|| {
            // As large as the parent's, so it is placed at that address, or close to it.
            let pools: Vec<Pool> = (0..4).map(|_| Pool::new(64, 4096).unwrap()).collect();
            drop_value_in_child(&mut parents);
            pools.iter().for_each(|pool| assert_eq!(overwrite_free_buffers(pool), pool.total()));
        })
        .join();
        let (mut socket, pool) = ManuallyDrop::into_inner(parents);
        release_packets(&lab);
        assert_all_arrive(&receiver);
        assert!(socket.sender().drain(PATIENCE).unwrap(), "{method}");
        drop(socket);
        assert_eq!(pool.available(), pool.total(), "{method}");
    }
}

/// Drops copies of the parent's values, and then its own.
#[allow(unsafe_code)]
fn drop_value_in_child<T>(parents: &mut ManuallyDrop<T>) {
    // SAFETY: the child ends without looking at it again.
    unsafe { ManuallyDrop::drop(parents) }
}

#[test]
fn without_memory_for_completions_datagrams_are_copied() {
    const MANY: usize = 2000;
    let lab = lab!();
    // No completion returns while they are sent, however slow this thread is.
    delay_packets(&lab);
    let (receiver, pool) = (receiver_in_lab(&lab), Pool::new(1, 4096).unwrap());
    let mut socket = sender_in_lab(&lab, Method::ZeroCopy, &pool, &receiver);
    for number in 0..MANY {
        socket.sender().send(Buffer::from((number as u32).to_be_bytes().to_vec())).unwrap();
        if number % 50 == 49 {
            socket.sender().flush().unwrap();
        }
    }
    release_packets(&lab);
    assert!(socket.sender().drain(PATIENCE).unwrap(), "never stuck");
    let (tally, counters) = (socket.sender().ledger(), socket.sender().stats());
    assert!(counters.get("no_buffers").unwrap() > 0, "{counters}");
    assert_eq!(tally.bytes_of(Evidence::Copied(Cause::NoBuffers)), counters.get("no_buffers").unwrap() * 4);
    assert_eq!(
        (tally.datagrams(), tally.bytes()),
        (MANY as u64, 4 * MANY as u64),
        "every byte is accounted for"
    );
    let mut bytes = [0; 16];
    for number in 0..MANY {
        assert_eq!(uninterrupted(|| receiver.recv(&mut bytes)).unwrap(), 4);
        assert_eq!(bytes[..4], (number as u32).to_be_bytes());
    }
}

/// Keeps this thread, and those that it starts, on its present processor. Packets that two processors pass to
/// a veth pair may overtake each other.
fn stay_on_this_processor() {
    let mut here = rustix::thread::CpuSet::new();
    here.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &here).unwrap();
}

#[test]
fn datagrams_stay_in_order_with_a_full_send_buffer() {
    const MANY: usize = 300;
    stay_on_this_processor();
    for method in available_methods(ZERO_COPY) {
        let lab = lab!();
        limit_packet_rate(&lab, "replace", FAST, 10_000_000);
        let (receiver, pool) = (receiver_in_lab(&lab), Pool::new(64, 4096).unwrap());
        let address = SocketAddr::new(lab.left().ipv4().into(), 0);
        let builder = Socket::builder().method(method).send_pool(&pool).send_buffer(32 << 10);
        let mut socket = lab.left().namespace().run(|| builder.bind(address)).unwrap();
        lab.left().namespace().run(|| socket.connect(receiver.local_addr().unwrap())).unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 2 * DATAGRAM_BYTES];
            (0..MANY).map(|_| (receive_one(&receiver, &mut bytes), bytes[0], bytes[1])).collect::<Vec<_>>()
        });
        for number in 0..MANY {
            let mut bytes = vec![7; 500];
            bytes[..2].copy_from_slice(&(number as u16).to_be_bytes());
            socket.sender().send(Buffer::from(bytes)).unwrap();
            if number % 30 == 29 {
                socket.sender().flush().unwrap();
            }
        }
        assert!(socket.sender().drain(PATIENCE).unwrap(), "{method}");
        let numbers =
            reader.join().unwrap().into_iter().map(|(_, high, low)| u16::from_be_bytes([high, low]));
        assert!(numbers.eq(0..MANY as u16), "{method}: in order");
    }
}

#[test]
fn a_partly_sent_datagram_shifts_no_completion() {
    const LONG_BYTES: usize = 20_000;
    for method in [Method::ZeroCopy, Method::ZeroCopyGso] {
        let lab = lab!();
        limit_packet_rate(&lab, "replace", FAST, 10_000);
        // The other end waits this long for the missing fragments, and both ends are one machine: the memory
        // is read until then.
        let waits = || std::fs::write("/proc/sys/net/ipv4/ipfrag_time", "1");
        lab.right().namespace().run(waits).unwrap();
        let (receiver, pool) = (receiver_in_lab(&lab), Pool::new(8, 32 << 10).unwrap());
        let mut socket = sender_in_lab(&lab, method, &pool, &receiver);
        let sender = socket.sender();
        let mut bytes = [0; DATAGRAM_BYTES];
        for number in 0..3 {
            // Room for some fragments of a long one, and not for all, even if its sender stalls in between.
            limit_packet_rate(&lab, "change", SLOW, 10_000);
            sender.send(Buffer::from(vec![0xaa; LONG_BYTES])).unwrap();
            let error: SendError = sender.flush().unwrap_err().downcast().unwrap();
            assert_eq!((error.refused, error.source.raw_os_error()), (1, Some(libc::ENOBUFS)), "{method}");
            // The fragments leave, and make room.
            limit_packet_rate(&lab, "change", FAST, 10_000);
            apply_new_rate_now(&lab);
            wait_until_packets_have_left(&lab);
            let mut buffer = sender.buffer().expect("a free buffer");
            buffer.fill(&numbered_pattern(number)).unwrap();
            sender.send(buffer).unwrap();
            sender.flush().unwrap();
            assert_eq!(receive_one(&receiver, &mut bytes), DATAGRAM_BYTES);
            assert!(bytes == *numbered_pattern(number), "{method}: datagram {number} is as it was sent");
        }
        assert!(sender.drain(PATIENCE).unwrap(), "{method}: {} calls never came back", sender.in_flight());
        let (tally, counters) = (sender.ledger(), sender.stats());
        assert_eq!(
            (counters.moved, counters.get("refused").unwrap(), counters.get("unknown_completions").unwrap()),
            (3, 3, 0),
            "{method}"
        );
        assert_eq!((tally.datagrams(), tally.bytes()), (3, 3 * DATAGRAM_BYTES as u64), "{method}: {tally}");
        drop(socket);
        assert_eq!(pool.available(), pool.total(), "{method}");
    }
}

#[test]
fn data_given_to_io_uring_arrives_after_a_forced_close() {
    /// Fewer than fit at a time, and more than leave at once.
    const LAST: usize = 8;
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let lab = lab!();
    limit_packet_rate(&lab, "replace", "800kbit", 10_000_000);
    let (receiver, pool) = (receiver_in_lab(&lab), Pool::new(64, 4096).unwrap());
    let address = SocketAddr::new(lab.left().ipv4().into(), 0);
    // Room for some of them at a time: none may wait in the ring, because its memory would be gone.
    let builder = Socket::builder().method(Method::UringZeroCopy).send_pool(&pool).send_buffer(32 << 10);
    let mut socket = lab.left().namespace().run(|| builder.bind(address)).unwrap();
    socket.connect(receiver.local_addr().unwrap()).unwrap();
    send_numbered(&mut socket, 0..COUNT - LAST);
    assert!(socket.sender().drain(PATIENCE).unwrap());
    limit_packet_rate(&lab, "change", SLOW, 10_000_000);
    send_numbered(&mut socket, COUNT - LAST..COUNT);
    let (_other_half, mut sender) = socket.split();
    assert!(!sender.close(Duration::ZERO).unwrap());
    assert!(sender.stats().get("abandoned_calls").unwrap() > 0);
    drop(sender);
    assert_eq!(overwrite_free_buffers(&pool), pool.total());
    release_packets(&lab);
    let patterns: Vec<Vec<u8>> = (0..COUNT).map(numbered_pattern).collect();
    let mut bytes = [0; DATAGRAM_BYTES];
    for count in 0..COUNT {
        let length = receive_one(&receiver, &mut bytes);
        assert!(
            patterns.iter().any(|pattern| *pattern == bytes[..length]),
            "datagram {count} is as it was sent"
        );
    }
}

#[test]
fn sends_over_veth_are_recorded_as_delivered_locally() {
    let lab = lab!();
    let (receiver, pool) = (receiver_in_lab(&lab), Pool::new(64, 4096).unwrap());
    // A receiver's socket gets a copy, so the kernel reports a copy; without one, the packet is dropped in
    // the other namespace without one.
    let mut socket = sender_in_lab(&lab, Method::ZeroCopyGso, &pool, &receiver);
    send_all_datagrams(&mut socket);
    assert!(socket.sender().drain(PATIENCE).unwrap());
    let tally = socket.sender().ledger();
    assert_eq!(
        tally.bytes_of(Evidence::Copied(Cause::DeliveredLocally)),
        (COUNT * DATAGRAM_BYTES) as u64,
        "{tally}"
    );
    assert_eq!(tally.bytes_of(Evidence::ZeroCopy), 0, "{tally}");
}

/// After closing gave everything up, later calls find nothing, and are refused.
#[test]
fn closed_senders_have_nothing_in_flight_and_refuse_sends() {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let peer = UdpSocket::bind(any).unwrap();
    let mut socket = Socket::bind(any).unwrap();
    let sender = socket.sender();
    for _ in 0..3 {
        sender.send_to(vec![1; 100], peer.local_addr().unwrap()).unwrap();
    }
    assert!(sender.close(PATIENCE).unwrap());
    let listener = nocopy::tcp::Listener::bind(any).unwrap();
    let mut stream = nocopy::tcp::Stream::connect(listener.local_addr().unwrap()).unwrap();
    let streaming = stream.sender();
    streaming.send(vec![1; 100]).unwrap();
    assert!(streaming.close(PATIENCE).unwrap());
    assert_eq!((sender.stats().moved, sender.in_flight()), (3, 0));
    assert_eq!((streaming.stats().moved, streaming.in_flight()), (1, 0));
    sender.flush().unwrap();
    assert!(sender.drain(PATIENCE).unwrap() && sender.close(PATIENCE).unwrap());
    assert!(streaming.close(PATIENCE).unwrap());
    let refused = sender.send_to(vec![1], peer.local_addr().unwrap()).unwrap_err();
    assert!(matches!(refused.reason, Reason::Finished), "{refused}");
    let refused = streaming.send(vec![1]).unwrap_err();
    assert!(matches!(refused.reason, Reason::Finished), "{refused}");
    assert_eq!((sender.stats().moved, streaming.stats().moved), (3, 1));
}

#[test]
fn datagrams_of_a_forgotten_batch_are_not_received_again() {
    let mut socket = Socket::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(b"first", to).unwrap();
    let mut batch = socket.receiver().receive_timeout(PATIENCE).unwrap();
    assert_eq!(&batch.next().unwrap().take()[..], b"first");
    std::mem::forget(batch);
    sender.send_to(b"second", to).unwrap();
    let batch = socket.receiver().receive_timeout(PATIENCE).unwrap();
    let all: Vec<Vec<u8>> = batch.map(|datagram| datagram.take().to_vec()).collect();
    assert_eq!(all, [b"second"]);
}
