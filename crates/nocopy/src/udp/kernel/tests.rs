use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use nocopy_lab::patience::{PATIENCE, wait_until};
use nocopy_lab::{End, Lab};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::super::run::DatagramInfo;
use super::super::{Ancillary, Builder, Ecn, Method, Socket, batch};
use super::*;
use crate::engine::calls::{
    RECEIVE, SyscallCounter, count_calls, this_thread_id, wait_until_thread_is_in_call,
};
use crate::facts::mode::Mode;
use crate::facts::rejected::Reason;
use crate::port::Port;
use crate::sys::udp_receive::{LocalAddress, report_traffic_class};
use crate::sys::udp_send;

struct ReceivedDatagram<'a> {
    from: SocketAddr,
    local: Option<LocalAddress>,
    bytes: &'a [u8],
    truncated: bool,
}

/// The runs of one call.
#[derive(Debug)]
struct RunBatch<'a> {
    receiver: &'a mut Receiver,
}

impl Receiver {
    fn receive(&mut self) -> io::Result<RunBatch<'_>> {
        self.wait_for_runs(None, None)?;
        Ok(RunBatch { receiver: self })
    }

    fn receive_timeout(&mut self, timeout: Duration) -> io::Result<RunBatch<'_>> {
        self.wait_for_runs(Some(timeout), None)?;
        Ok(RunBatch { receiver: self })
    }

    fn dropped_datagram_count(&self) -> io::Result<u64> {
        self.drops.read_total(&self.socket)
    }
}

impl<'a> RunBatch<'a> {
    fn into_datagrams(self) -> batch::Batch<'a> {
        self.receiver.batch_of_runs()
    }

    fn runs(&self) -> &[Run] {
        &self.receiver.runs
    }

    fn len(&self) -> usize {
        self.runs().iter().map(Run::len).sum()
    }

    fn is_empty(&self) -> bool {
        self.runs().is_empty()
    }

    /// Takes the runs with their buffers. The receiver continues with others of the pool.
    fn take(self) -> impl Iterator<Item = Run> + 'a {
        self.receiver.runs.drain(..)
    }

    fn datagrams(&self) -> impl Iterator<Item = ReceivedDatagram<'_>> {
        self.runs().iter().flat_map(|run| {
            run.datagrams().map(|bytes| {
                let DatagramInfo { from, local, truncated, .. } = run.info(run.range_of(bytes).end);
                ReceivedDatagram { from, local, bytes, truncated }
            })
        })
    }
}

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn receiver_at(at: SocketAddr, pool: &Pool) -> (Receiver, SocketAddr) {
    let socket = UdpSocket::bind(at).expect("a free port");
    let address = socket.local_addr().unwrap();
    (receiver_of_socket(socket, pool), address)
}

fn receiver_of_socket(socket: UdpSocket, pool: &Pool) -> Receiver {
    Receiver::new(Arc::new(socket.into()), pool.clone(), Receiver::BATCH).unwrap()
}

fn pool_of_64_kib_buffers(buffers: u32) -> Pool {
    Pool::new(buffers, 1 << 16).unwrap()
}

fn sender_to(to: SocketAddr) -> UdpSocket {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect(to).unwrap();
    socket
}

fn numbered_pattern(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (number * 31 + i + (i >> 8)) as u8).collect()
}

/// Waits until there is something to receive. (A receive with a time limit would also end if the process is
/// stopped and continued.)
fn wait_for_any(receiver: &Receiver) {
    let mut polled = [PollFd::new(receiver, PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&PATIENCE.try_into().unwrap())).unwrap(), 1, "nothing comes");
}

fn receive_datagrams(receiver: &mut Receiver, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut all = Vec::new();
    while all.len() < count {
        wait_for_any(receiver);
        let batch = receiver.receive_timeout(PATIENCE).expect("received");
        assert!(!batch.is_empty(), "only {} of {count} datagrams came", all.len());
        assert_eq!(batch.len(), batch.datagrams().count());
        assert!(batch.datagrams().all(|datagram| !datagram.truncated));
        all.extend(batch.datagrams().map(|datagram| (datagram.from, datagram.bytes.to_vec())));
    }
    all
}

/// Sends runs cut by the kernel, with shorter last datagrams, and compares the received data.
fn assert_runs_arrive(receiver: &mut Receiver, sender: &UdpSocket) -> usize {
    let (mut runs, mut total) = (0, 0);
    for (number, (segment_bytes, segments, last)) in
        [(1400, 20, 77), (1400, 40, 1), (1000, 1, 0), (64, 60, 63), (1, 50, 0), (1452, 44, 1000)]
            .into_iter()
            .enumerate()
    {
        udp_receive::set_segment_bytes(sender, segment_bytes);
        let segment_bytes = usize::from(segment_bytes);
        let bytes = numbered_pattern(number, segment_bytes * segments + last);
        assert_eq!(sender.send(&bytes).unwrap(), bytes.len());
        let expected: Vec<&[u8]> = bytes.chunks(segment_bytes).collect();
        let mut received: Vec<Vec<u8>> = Vec::new();
        while received.len() < expected.len() {
            wait_for_any(receiver);
            let batch = receiver.receive_timeout(PATIENCE).unwrap();
            assert!(!batch.is_empty(), "only {} of {} came", received.len(), expected.len());
            runs += batch.runs().len();
            assert!(batch.datagrams().all(|datagram| datagram.from == sender.local_addr().unwrap()));
            received.extend(batch.datagrams().map(|datagram| datagram.bytes.to_vec()));
        }
        assert!(received == expected, "run {number}: bytes or boundaries differ");
        total += expected.len();
    }
    assert_eq!(receiver.ledger().datagrams(), total as u64);
    assert_eq!(receiver.ledger().bytes(), receiver.ledger().bytes_of(Evidence::Copied(Cause::SocketCall)));
    assert_eq!(receiver.counters.truncated, 0);
    runs
}

#[test]
fn runs_arrive_complete_and_are_split_in_place() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    for at in [LOOPBACK, (Ipv6Addr::LOCALHOST, 0).into()] {
        let (mut receiver, address) = receiver_at(at, &pool_of_64_kib_buffers(16));
        let socket = UdpSocket::bind(at).unwrap();
        socket.connect(address).unwrap();
        // Six messages in six buffers: nothing was cut on the way.
        assert_eq!(assert_runs_arrive(&mut receiver, &socket), 6);
    }
}

#[test]
fn a_burst_has_the_datagrams_that_were_not_read() {
    let (mut receiver, address) = receiver_at(LOOPBACK, &pool_of_64_kib_buffers(4));
    let sender = sender_to(address);
    let bytes = numbered_pattern(1, 2 * 1000 + 7);
    udp_receive::set_segment_bytes(&sender, 1000);
    sender.send(&bytes).unwrap();
    sender.send(&bytes).unwrap();
    wait_for_any(&receiver);
    let first = receiver.receive_timeout(PATIENCE).unwrap().into_datagrams().next().unwrap().take();
    assert_eq!(first[..], bytes[..1000]);
    let mut batch = receiver.receive_timeout(PATIENCE).unwrap().into_datagrams();
    let (rest, whole) = (batch.next_burst().expect("the rest"), batch.next_burst().expect("the second run"));
    assert_eq!((&rest[..], rest.metadata().segment_bytes), (&bytes[1000..], 1000));
    assert_eq!(rest.as_ptr(), first[1000..].as_ptr(), "it was copied");
    assert_eq!(whole.datagrams().map(<[u8]>::len).collect::<Vec<_>>(), [1000, 1000, 7]);
    assert_eq!((&whole[..], whole.source()), (&bytes[..], sender.local_addr().unwrap()));
    assert!(batch.next_burst().is_none() && !whole.is_truncated());
}

#[test]
fn single_datagrams_of_any_length_arrive() {
    let (mut receiver, address) = receiver_at(LOOPBACK, &pool_of_64_kib_buffers(4));
    let sender = sender_to(address);
    for (number, bytes) in [0, 1, 0, 0, 1472, 9000, 65_507, 0, 65_507, 3].into_iter().enumerate() {
        sender.send(&numbered_pattern(number, bytes)).unwrap();
        let received = receive_datagrams(&mut receiver, 1);
        assert!(
            received == [(received[0].0, numbered_pattern(number, bytes))],
            "datagram {number} of {bytes} bytes"
        );
    }
    assert_eq!((receiver.ledger().datagrams(), receiver.counters.truncated), (10, 0));
}

#[test]
fn each_empty_datagram_of_a_batch_is_returned() {
    let (mut receiver, address) = receiver_at(LOOPBACK, &pool_of_64_kib_buffers(8));
    let sender = sender_to(address);
    for _ in 0..3 {
        sender.send(&[]).unwrap();
    }
    let batch = receiver.receive().unwrap();
    assert_eq!((batch.len(), batch.is_empty()), (3, false));
    assert!(batch.datagrams().all(|datagram| datagram.bytes.is_empty()));
}

#[test]
fn a_single_message_is_expected_after_one_and_a_pause() {
    let mut rhythm = ArrivalPattern::default();
    let steps = [
        (16, false),
        (0, false),
        (1, false),
        (0, true),
        (0, true),
        (1, false), // more may have come meanwhile
        (0, true),
        (1, false),
        (1, false),
        (0, true),
        (1, false),
        (2, false),
        (0, false),
        (0, false),
        (3, false),
        (0, false),
    ];
    for (step, (messages, expects_one)) in steps.into_iter().enumerate() {
        rhythm.note_call(messages);
        assert_eq!(rhythm.expects_single_message(), expects_one, "step {step}: {messages} messages");
    }
}

/// Proves that nothing is lost or out of order when calls for one message and for several take turns.
#[test]
fn datagrams_arrive_in_order_with_any_pauses() {
    let pool = pool_of_64_kib_buffers(16);
    let (mut receiver, at) = receiver_at("127.0.0.1:0".parse().unwrap(), &pool);
    report_traffic_class(&receiver.socket, false).unwrap();
    let sender = sender_to(at);
    let (mut sent, mut received) = (0_u32, Vec::new());
    for burst in [1, 0, 1, 0, 0, 5, 0, 1, 0, 1, 2, 0, 40, 0, 1, 0, 1] {
        for _ in 0..burst {
            // Of different lengths, so that none are joined.
            let datagram = [&sent.to_be_bytes()[..], &vec![7; 4 + sent as usize % 50 * 20]].concat();
            assert_eq!(sender.send(&datagram).unwrap(), datagram.len());
            sent += 1;
        }
        wait_until("the burst", || {
            let mut take = |bytes: &[u8]| {
                assert_eq!(bytes.len(), 8 + received.len() % 50 * 20);
                received.push(u32::from_be_bytes(*bytes.first_chunk().unwrap()));
            };
            let datagrams = receiver.receive_in_place(false, |message| match message {
                ArrivedInPlace::Last(_, _, bytes) | ArrivedInPlace::Lone(_, _, bytes) => take(bytes),
                ArrivedInPlace::Run(run) => take(run.bytes()),
            });
            datagrams.unwrap() == 0 && received.len() == sent as usize
        });
    }
    assert_eq!(received, (0..sent).collect::<Vec<_>>());
}

#[test]
fn datagrams_of_many_senders_do_not_mix() {
    const SENDERS: usize = 8;
    const RUNS: usize = 10;
    let (mut receiver, address) = receiver_at(LOOPBACK, &pool_of_64_kib_buffers(32));
    let senders: Vec<UdpSocket> = (0..SENDERS).map(|_| sender_to(address)).collect();
    senders.iter().for_each(|sender| udp_receive::set_segment_bytes(sender, 300));
    let mut received: HashMap<SocketAddr, Vec<Vec<u8>>> = HashMap::new();
    for run in 0..RUNS {
        for (number, sender) in senders.iter().enumerate() {
            sender.send(&numbered_pattern(run * SENDERS + number, 7 * 300 + number)).unwrap();
        }
        // Sender 0's last datagram is whole.
        for (from, bytes) in receive_datagrams(&mut receiver, SENDERS * 8 - 1) {
            received.entry(from).or_default().push(bytes);
        }
    }
    for (number, sender) in senders.iter().enumerate() {
        let sent: Vec<Vec<u8>> = (0..RUNS)
            .flat_map(|run| {
                let bytes = numbered_pattern(run * SENDERS + number, 7 * 300 + number);
                bytes.chunks(300).map(<[u8]>::to_vec).collect::<Vec<_>>()
            })
            .collect();
        let from: SocketAddr = (Ipv4Addr::LOCALHOST, sender.local_addr().unwrap().port()).into();
        assert!(received.remove(&from) == Some(sent), "sender {number}");
    }
    assert!(received.is_empty());
}

#[test]
fn small_buffers_receive_one_datagram_each_and_mark_truncation() {
    let small = Pool::new(8, 4096).unwrap();
    let (mut receiver, address) = receiver_at(LOOPBACK, &small);
    let sender = sender_to(address);
    udp_receive::set_segment_bytes(&sender, 1400);
    let bytes = numbered_pattern(1, 30 * 1400 + 5);
    sender.send(&bytes).unwrap();
    let received = receive_datagrams(&mut receiver, 31);
    assert!(received.iter().map(|(_, bytes)| &bytes[..]).eq(bytes.chunks(1400)));
    assert_eq!(receiver.counters.truncated, 0);

    udp_receive::set_segment_bytes(&sender, 0);
    let long = numbered_pattern(2, 5000);
    sender.send(&long).unwrap();
    let batch = receiver.receive().unwrap();
    let datagram = batch.datagrams().next().unwrap();
    assert!(datagram.truncated && datagram.bytes == &long[..4096]);
    assert_eq!((batch.len(), receiver.counters.truncated), (1, 1));
}

#[test]
fn a_taken_buffer_returns_with_its_last_datagram() {
    let pool = pool_of_64_kib_buffers(4);
    let (mut receiver, address) = receiver_at(LOOPBACK, &pool);
    let sender = sender_to(address);
    udp_receive::set_segment_bytes(&sender, 500);
    let sent = numbered_pattern(1, 1700);
    sender.send(&sent).unwrap();
    let batch = receiver.receive().unwrap();
    let run = &batch.runs()[0];
    assert_eq!((run.len(), run.segment_bytes(), run.bytes().len()), (4, 500, 1700));
    assert_eq!(run.source().port(), sender.local_addr().unwrap().port());
    let mut datagrams: Vec<_> = batch.into_datagrams().map(batch::Datagram::take).collect();
    drop(receiver);
    assert_eq!(pool.available(), 3, "one buffer is away");
    let last = datagrams.pop().unwrap();
    thread::spawn(move || drop(datagrams)).join().unwrap();
    assert_eq!(&*last, &sent[1500..]);
    assert_eq!(last.source().port(), sender.local_addr().unwrap().port());
    let last = Buffer::from(last);
    assert_eq!(&*last, &sent[1500..]);
    drop(last);
    assert_eq!(pool.available(), 4);
}

#[test]
fn datagrams_wait_in_the_kernel_while_no_buffer_is_free() {
    let pool = pool_of_64_kib_buffers(2);
    let (mut receiver, address) = receiver_at(LOOPBACK, &pool);
    let sender = sender_to(address);
    for number in 0..5 {
        sender.send(&numbered_pattern(number, 100)).unwrap();
    }
    let mut taken: Vec<Run> = receiver.receive().unwrap().take().collect();
    assert_eq!(taken.len(), 2, "as many as there are buffers");
    assert_eq!(receiver.receive().unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    assert!(receiver.try_receive().unwrap_err().to_string().contains("all 2 of the pool"));
    taken.truncate(1);
    taken.extend(receiver.receive().unwrap().take());
    taken.remove(0);
    taken.extend(receiver.receive().unwrap().take());
    assert!(taken.iter().map(Run::bytes).eq([&numbered_pattern(2, 100)[..], &numbered_pattern(3, 100)]));
    drop(taken);
    assert_eq!(receive_datagrams(&mut receiver, 1)[0].1, numbered_pattern(4, 100));
    assert_eq!(receiver.dropped_datagram_count().unwrap(), 0);
}

#[test]
fn every_datagram_is_received_or_counted_as_dropped() {
    for segments in [1, 40] {
        let (mut receiver, address) = receiver_at(LOOPBACK, &pool_of_64_kib_buffers(16));
        sockopt::set_socket_recv_buffer_size(receiver.socket(), 200_000).unwrap();
        let sender = sender_to(address);
        udp_receive::set_segment_bytes(&sender, 1000);
        assert_eq!(receiver.dropped_datagram_count().unwrap(), 0);
        const SENT: u64 = 2000;
        let bytes = numbered_pattern(0, 1000 * segments);
        for _ in 0..SENT {
            sender.send(&bytes).unwrap();
        }
        // Over lo a message stays whole, so a packet is everything sent by one call.
        let (all, give_up) = (SENT * segments as u64, Instant::now() + PATIENCE);
        let (mut received, mut accounted) = (0, 0);
        while accounted < all {
            assert!(Instant::now() < give_up, "{accounted} of {all} came or were counted");
            received += receiver.try_receive().unwrap().count() as u64;
            accounted = received + receiver.dropped_datagram_count().unwrap() * segments as u64;
        }
        assert_eq!((accounted, receiver.try_receive().unwrap().count()), (all, 0));
        let dropped = receiver.dropped_datagram_count().unwrap();
        assert!(dropped > 0, "the buffer holds fewer");
        assert_eq!(receiver.stats().get("sk_drops").unwrap(), dropped);
        assert_eq!(receiver.dropped_datagram_count().unwrap(), dropped, "counted once");
    }
}

#[test]
fn an_error_of_the_network_does_not_end_receiving() {
    // With and without the error queue that the sending half reads.
    for queued in [false, true] {
        assert_error_is_kept(queued);
    }
}

fn assert_error_is_kept(queued: bool) {
    let peer = UdpSocket::bind(LOOPBACK).unwrap();
    let peer_addr = peer.local_addr().unwrap();
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    let address = socket.local_addr().unwrap();
    socket.connect(peer_addr).unwrap();
    if queued {
        udp_send::enable_error_queue(&socket, false).unwrap();
    }
    let mut receiver = receiver_of_socket(socket.try_clone().unwrap(), &pool_of_64_kib_buffers(4));
    let kernel = KernelSocket::new(Arc::new(socket.try_clone().unwrap().into()));
    receiver.store_errors_for_sender(Arc::clone(&kernel));
    for number in 0..3 {
        peer.send_to(&numbered_pattern(number, 10), address).unwrap();
    }
    drop(peer); // nobody there any more
    socket.send(b"lost").unwrap();
    wait_for_any(&receiver);
    // What was there stays, and more comes.
    let mut received = receive_datagrams(&mut receiver, 3);
    let peer = UdpSocket::bind(peer_addr).unwrap();
    peer.send_to(&numbered_pattern(3, 10), address).unwrap();
    received.extend(receive_datagrams(&mut receiver, 1));
    let errors: Vec<_> = kernel.take_errors().into_iter().map(|error| error.errno).collect();
    assert_eq!(errors, if queued { vec![libc::ECONNREFUSED] } else { vec![] });
    assert!(
        received.into_iter().map(|(_, bytes)| bytes).eq((0..4).map(|number| numbered_pattern(number, 10)))
    );
}

#[test]
fn unread_completions_do_not_make_a_waiting_receiver_spin() {
    const WAIT: Duration = Duration::from_millis(400);
    const COMPLETIONS: u64 = 50;
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    let address = socket.local_addr().unwrap();
    let sink = UdpSocket::bind(LOOPBACK).unwrap();
    crate::sys::option::allow_zero_copy(&socket).unwrap();
    let mut receiver = receiver_of_socket(socket.try_clone().unwrap(), &pool_of_64_kib_buffers(4));
    let complete_one = || {
        let flags = rustix::net::SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as u32);
        rustix::net::sendto(&socket, &[1; 30_000], flags, &sink.local_addr().unwrap()).unwrap();
        sink.recv(&mut [0; 1 << 16]).unwrap();
    };
    complete_one();
    let mut polled = [PollFd::new(&receiver, PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&PATIENCE.try_into().unwrap())).unwrap(), 1);
    assert_eq!(polled[0].revents(), PollFlags::IN, "a poll does not wait");

    // One wait, and another after each stop of the whole process, which ends one early.
    let ((), calls) = count_calls(|| {
        let start = Instant::now();
        while start.elapsed() < WAIT {
            assert!(receiver.receive_timeout(WAIT).unwrap().is_empty());
        }
    });
    assert!((1..10).contains(&calls.count_of(RECEIVE)), "woken early: {} calls", calls.count_of(RECEIVE));
    assert!(calls.total() < 40, "spinning: {} system calls", calls.total());

    // While it waits, more completions arrive, and then a datagram.
    let calls = SyscallCounter::new();
    let (counting, (tell, told)) = (calls.clone(), mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(move || {
            tell.send(this_thread_id()).unwrap();
            counting.count_this_thread();
            let batch = receiver.receive().unwrap();
            assert_eq!(batch.datagrams().next().unwrap().bytes, b"at last");
        });
        let waiting = told.recv().unwrap();
        for _ in 0..COMPLETIONS {
            assert!(wait_until_thread_is_in_call(waiting, RECEIVE), "it waits for a datagram");
            complete_one();
        }
        assert!(wait_until_thread_is_in_call(waiting, RECEIVE), "it waits for a datagram");
        sender_to(address).send(b"at last").unwrap();
    });
    // One wait, and another after each stop of the whole process. Completions that come before the thread
    // sleeps would end no wait, but those are few.
    assert!(calls.count_of(RECEIVE) < 10, "completions end waits: {} calls", calls.count_of(RECEIVE));
    assert!(calls.total() < 40, "completions are looked for: {} system calls", calls.total());
}

#[test]
fn each_call_has_its_own_timeout() {
    let (mut receiver, address) = receiver_at(LOOPBACK, &pool_of_64_kib_buffers(4));
    let ten = Duration::from_millis(10);
    assert_eq!(receiver.try_receive().unwrap().count(), 0);
    assert!(receiver.receive_timeout(Duration::ZERO).unwrap().is_empty());
    for _ in 0..2 {
        assert!(receiver.receive_timeout(Duration::from_nanos(1)).unwrap().is_empty());
        assert!(receiver.receive_timeout(ten).unwrap().is_empty());
    }
    let waiting = this_thread_id();
    let late = thread::spawn(move || {
        assert!(wait_until_thread_is_in_call(waiting, RECEIVE));
        thread::sleep(5 * ten);
        sender_to(address).send(b"late").unwrap();
    });
    assert_eq!(receiver.receive().unwrap().len(), 1, "waited for longer than the timeout before");
    late.join().unwrap();
}

#[test]
fn the_descriptor_is_readable_while_datagrams_wait() {
    let (mut receiver, address) = receiver_at(LOOPBACK, &pool_of_64_kib_buffers(4));
    let readable = |receiver: &Receiver| {
        let mut polled = [PollFd::new(receiver, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    assert!(!readable(&receiver));
    sender_to(address).send(b"one").unwrap();
    assert!(readable(&receiver));
    assert_eq!(receive_datagrams(&mut receiver, 1)[0].1, b"one");
    assert!(!readable(&receiver));
}

#[test]
fn the_local_address_is_reported_on_request() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    for (at, ipv6) in [((Ipv4Addr::UNSPECIFIED, 0).into(), false), ((Ipv6Addr::UNSPECIFIED, 0).into(), true)]
    {
        let (mut receiver, address) = receiver_at(at, &pool_of_64_kib_buffers(4));
        let port = address.port();
        sender_to((Ipv4Addr::new(127, 0, 0, 2), port).into()).send(b"before").unwrap();
        assert_eq!(receiver.receive().unwrap().datagrams().next().unwrap().local, None);
        udp_receive::report_local_address(&receiver.socket(), ipv6).unwrap();
        let to = Ipv4Addr::new(127, 0, 0, 3);
        sender_to((to, port).into()).send(b"after").unwrap();
        let batch = receiver.receive().unwrap();
        let local = batch.datagrams().next().unwrap().local.unwrap();
        assert_eq!(local, LocalAddress::new(to.into(), 1));
        if ipv6 {
            sender_to((Ipv6Addr::LOCALHOST, port).into()).send(b"after").unwrap();
            let batch = receiver.receive().unwrap();
            assert_eq!(batch.datagrams().next().unwrap().local.unwrap().address, Ipv6Addr::LOCALHOST);
        }
    }
}

/// Receives a datagram that the socket sends there, and returns its ECN.
fn ecn_of_sent(sender: &mut Socket, receiver: &mut Socket, to: SocketAddr) -> Option<Ecn> {
    sender.sender().send_copy_to(b"hello", to).unwrap();
    sender.sender().flush().unwrap();
    let datagram = receiver.receiver().receive_timeout(PATIENCE).unwrap().next();
    datagram.expect("it came").metadata().ecn
}

/// The setting of the carrier of messages.
#[test]
fn datagrams_of_a_socket_that_heeds_marks_may_be_marked() {
    for ip in nocopy_lab::without_missing_ipv6(["127.0.0.1", "::1"], |ip| ip.contains(':')) {
        let at = SocketAddr::new(ip.parse().unwrap(), 0);
        let mut receiver = Socket::builder().receive_metadata(true).bind(at).unwrap();
        let to = receiver.local_addr().unwrap();
        for (on, ecn) in [(false, Ecn::NotEct), (true, Ecn::Ect0)] {
            let mut sender = Socket::builder().congestion_marks(on).bind(at).unwrap();
            assert_eq!(ecn_of_sent(&mut sender, &mut receiver, to), Some(ecn), "{ip}");
        }
    }
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let mut receiver = socket_in_namespace(lab.right(), (lab.right().ipv4(), 0).into(), |builder| builder);
    let to = receiver.local_addr().unwrap();
    for (on, ecn) in [(false, Ecn::NotEct), (true, Ecn::Ect0)] {
        let port = Port::builder(lab.left().interface()).mode(Mode::XdpCopyNative);
        let set = |builder: Builder| builder.port(port).method(Method::Xdp).congestion_marks(on);
        let mut sender = socket_in_namespace(lab.left(), (lab.left().ipv4(), 0).into(), set);
        // The first one may go through the kernel, which looks for the neighbour.
        for _ in 0..2 {
            assert_eq!(ecn_of_sent(&mut sender, &mut receiver, to), Some(ecn), "over a port");
        }
        assert!(sender.sender().stats().get("over_port").unwrap() > 0);
    }
}

fn receiver_in_namespace(end: &End) -> (Receiver, u16) {
    end.namespace().run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        (receiver_of_socket(socket, &pool_of_64_kib_buffers(32)), port)
    })
}

#[test]
fn runs_arrive_with_and_without_coalescing_at_the_peer() {
    for coalesced in [false, true] {
        let Some(lab) = Lab::builder().gro_right(coalesced).build_or_skip() else { return };
        let (mut receiver, port) = receiver_in_namespace(lab.right());
        let to = (lab.right().ipv4(), port).into();
        let sender = lab.left().namespace().run(|| sender_to(to));
        assert_runs_arrive(&mut receiver, &sender);
        assert_eq!(receiver.dropped_datagram_count().unwrap(), 0);
    }
}

fn socket_in_namespace(end: &End, at: SocketAddr, set: impl FnOnce(Builder) -> Builder + Send) -> Socket {
    let builder = Socket::builder().receive_pool(&pool_of_64_kib_buffers(16)).receive_metadata(true);
    end.namespace().run(|| set(builder).bind(at)).unwrap()
}

/// Gives an end of a lab a link-local IPv6 address, unchecked for duplicates, and waits until it can be used.
fn add_link_local_address(end: &End) {
    const TENTATIVE: u8 = 0x40; // IFA_F_TENTATIVE
    let is_usable = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[5] == end.interface() && u8::from_str_radix(fields[4], 16).unwrap() & TENTATIVE == 0
    };
    end.namespace().run(|| {
        for (setting, value) in [("accept_dad", "0"), ("disable_ipv6", "0")] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/{setting}", end.interface()), value).unwrap();
        }
        wait_until("a usable IPv6 address", || {
            std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap().lines().any(is_usable)
        });
    });
}

/// The only IPv6 address of an end of a lab.
fn link_local_address(end: &End) -> Ipv6Addr {
    let list = end.namespace().run(|| std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap());
    let line = list.lines().find(|line| line.split_whitespace().last() == Some(end.interface())).unwrap();
    Ipv6Addr::from_bits(u128::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap())
}

#[test]
fn a_link_local_source_is_of_the_destinations_interface() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    [lab.left(), lab.right()].into_iter().for_each(add_link_local_address);
    let (left, right) = (link_local_address(lab.left()), link_local_address(lab.right()));
    let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, 0).into();
    let mut asking = socket_in_namespace(lab.left(), any, |builder| builder);
    let mut answering = socket_in_namespace(lab.right(), any, |builder| builder);
    let to = |address, port, interface| std::net::SocketAddrV6::new(address, port, 0, interface);
    let to = to(right, answering.local_addr().unwrap().port(), lab.left().index());
    let source = |address| Ancillary { source: Some(address), ..Ancillary::default() };
    asking.sender().send_with(vec![1; 10], to, source(left.into())).unwrap();
    asking.sender().flush().unwrap();
    let question = answering.receiver().receive_timeout(PATIENCE).unwrap().next().expect("it came").take();
    assert_eq!(question.source().ip(), IpAddr::V6(left));
    let metadata = question.metadata();
    assert_eq!((metadata.reply_from, metadata.interface), (Some(right.into()), Some(lab.right().index())));
    let from = question.source();
    answering.sender().send_with(question, from, source(metadata.reply_from.unwrap())).unwrap();
    answering.sender().flush().unwrap();
    let answer = asking.receiver().receive_timeout(PATIENCE).unwrap().next().expect("it came").take();
    assert_eq!(answer.source().ip(), IpAddr::V6(right));
    // Its scope is what names the interface, also of a destination that has none.
    let elsewhere = std::net::SocketAddrV6::new("2001:db8::1".parse().unwrap(), 9, 0, 0);
    let rejected = asking.sender().send_with(vec![1; 10], elsewhere, source(left.into())).unwrap_err();
    assert!(matches!(rejected.reason, Reason::ForeignSource { .. }), "{rejected}");
}

#[test]
fn multicast_is_received_only_by_sockets_that_joined_the_group() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    [lab.left(), lab.right()].into_iter().for_each(add_link_local_address);
    let (left, right) = (lab.left().index(), lab.right().index());
    let groups: [(IpAddr, SocketAddr); 2] = [
        (Ipv4Addr::new(239, 77, 0, 1).into(), (Ipv4Addr::UNSPECIFIED, 0).into()),
        ("ff02::7700".parse().unwrap(), (Ipv6Addr::UNSPECIFIED, 0).into()),
    ];
    for (group, any) in groups {
        // In another group, so that it does not get the datagrams of all.
        let another = match group {
            IpAddr::V4(_) => Ipv4Addr::new(239, 77, 0, 2).into(),
            IpAddr::V6(_) => "ff02::7701".parse().unwrap(),
        };
        let join = |at, group| {
            let set = |builder: Builder| builder.reuse_address(true).group(group).multicast(right, 1);
            socket_in_namespace(lab.right(), at, set)
        };
        let mut joined = join(any, group);
        let at = joined.local_addr().unwrap();
        let mut other = join(at, another);

        let sender = socket_in_namespace(lab.left(), any, |builder| builder.multicast(left, 3));
        let kernel = sender.sender.queue.kernel_socket();
        udp_receive::set_segment_bytes(kernel, 1400);
        let to: SocketAddr = match group {
            IpAddr::V4(group) => (group, at.port()).into(),
            IpAddr::V6(group) => std::net::SocketAddrV6::new(group, at.port(), 0, left).into(),
        };
        let bytes = numbered_pattern(1, 10 * 1400 + 3);
        rustix::net::sendto(kernel, &bytes, rustix::net::SendFlags::empty(), &to).expect("sent to the group");
        let mut received = Vec::new();
        while received.len() < bytes.len() {
            for datagram in joined.receiver().receive_timeout(PATIENCE).unwrap() {
                let metadata = datagram.metadata();
                assert_eq!((metadata.destination, metadata.interface), (Some(group), Some(right)));
                let own = group.is_ipv4().then(|| lab.right().ipv4().into());
                assert_eq!(metadata.reply_from, own, "the address to answer from");
                assert!(datagram.len() <= 1400);
                if let SocketAddr::V6(from) = datagram.source() {
                    assert_eq!(from.scope_id(), right, "a link-local sender is one of an interface");
                }
                received.extend_from_slice(&datagram);
            }
        }
        assert!(received == bytes);
        assert_eq!(other.receiver().try_receive().unwrap().count(), 0, "another's group");
    }
}

#[test]
fn remaining_datagrams_are_in_the_next_batch() {
    let (mut receiver, address) = receiver_at(LOOPBACK, &pool_of_64_kib_buffers(4));
    let sender = sender_to(address);
    let mut received = Vec::new();
    for (number, segment_bytes) in [(0, 0), (1, 100), (2, 0)] {
        udp_receive::set_segment_bytes(&sender, segment_bytes);
        sender.send(&numbered_pattern(number, 450)).unwrap();
    }
    while received.len() < 7 {
        assert!(receiver.arm().unwrap(), "only {} came", received.len());
        // Two of each batch, the first of them taken.
        let mut batch = receiver.receive().unwrap().into_datagrams();
        received.extend(batch.next().map(|datagram| datagram.take().to_vec()));
        received.extend(batch.next().map(|datagram| datagram.to_vec()));
    }
    assert!(!receiver.arm().unwrap() && receiver.try_receive().unwrap().count() == 0);
    assert!(
        received.concat()
            == [numbered_pattern(0, 450), numbered_pattern(1, 450), numbered_pattern(2, 450)].concat()
    );
    assert_eq!(receiver.ledger().datagrams(), 7);
}

#[test]
fn every_wait_ends_with_a_datagram_or_its_timeout() {
    let ten = Duration::from_millis(10);
    let waits = [
        Wait::Spin,
        Wait::Interrupt,
        Wait::Adaptive { spin: Duration::from_micros(50) },
        Wait::Coalesced { packets: 10, delay: Duration::from_millis(1) },
    ];
    for wait in waits {
        let (mut receiver, address) = receiver_at(LOOPBACK, &pool_of_64_kib_buffers(4));
        receiver.set_wait(wait);
        assert!(!receiver.arm().unwrap());
        let start = Instant::now();
        assert!(receiver.receive_timeout(ten).unwrap().is_empty(), "{wait:?}");
        assert!(start.elapsed() >= ten, "{wait:?}");
        let late = thread::spawn(move || {
            thread::sleep(2 * ten);
            sender_to(address).send(b"late").unwrap();
        });
        let received =
            std::iter::from_fn(|| Some(receiver.receive().unwrap().len())).find(|received| *received > 0);
        assert_eq!(received, Some(1), "{wait:?}");
        late.join().unwrap();
    }
}
