//! Streams received by every method, over loopback and veth.

use std::fs::File;
use std::io::{BufRead, Read, Seek, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nocopy_lab::{End, Lab};
use socket2::SockRef;

use super::*;
use crate::engine::calls::{RECEIVE, this_thread_id, wait_until_thread_is_in_call};
use crate::facts::features;
use crate::sys::tcp_receive::local_sender::RingPages;
use crate::sys::udp_send;
use crate::tcp::Stream;
use crate::tcp::diagnosis::MappingDiagnosis;

const LONGEST: Duration = Duration::from_secs(60);

/// Not a multiple of any size in use.
const PERIOD: usize = 1_000_003;

/// The data that is sent: two equal periods, so that a write of one period can begin anywhere.
fn periodic_pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut state = 1_u64;
        let mut bytes: Vec<u8> = (0..PERIOD)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        bytes.extend_from_within(..);
        bytes
    })
}

#[derive(Debug, Default)]
struct ExpectedBytes {
    at: usize,
}

impl ExpectedBytes {
    fn check_bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let phase = self.at % PERIOD;
            let count = bytes.len().min(PERIOD - phase);
            assert!(
                bytes[..count] == periodic_pattern()[phase..phase + count],
                "damaged at or behind byte {}",
                self.at
            );
            self.at += count;
            bytes = &bytes[count..];
        }
    }

    fn check_chunk(&mut self, chunk: &Chunk) {
        let end = self.at + chunk.len();
        chunk.for_each_part(|part| {
            assert!(!part.is_empty());
            self.check_bytes(part);
        });
        assert_eq!(self.at, end);
    }
}

#[derive(Debug, Clone, Copy)]
struct SendPlan {
    bytes: usize,
    write_bytes: usize,
    zero_copy: bool,
}

/// Bytes waiting in the kernel.
fn queued_bytes(receiver: &Receiver) -> usize {
    tcp_receive::queued_bytes(receiver.socket.as_fd()).unwrap() as usize
}

/// Sends the pattern, and then the end.
fn send_pattern(stream: &mut TcpStream, what: SendPlan) {
    let flags = if what.zero_copy { libc::MSG_ZEROCOPY } else { 0 };
    let mut at = 0;
    while at < what.bytes {
        let phase = at % PERIOD;
        let count = what.write_bytes.min(what.bytes - at);
        match SockRef::from(&*stream).send_with_flags(&periodic_pattern()[phase..phase + count], flags) {
            Ok(sent) => at += sent,
            // Too many unread notifications.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                thread::sleep(Duration::from_millis(1))
            }
            Err(error) => panic!("{error} after {at} bytes"),
        }
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

fn connected_pair(to: Ipv4Addr, of: impl FnOnce(Ipv4Addr, u16) -> TcpStream) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((to, 0)).unwrap();
    let sender = of(to, listener.local_addr().unwrap().port());
    let receiver = listener.accept().unwrap().0;
    for stream in [&sender, &receiver] {
        rustix::net::sockopt::set_tcp_congestion(stream, "cubic").unwrap();
        stream.set_nodelay(true).unwrap();
    }
    option::allow_zero_copy(&sender).unwrap();
    (sender, receiver)
}

fn loopback_pair() -> (TcpStream, TcpStream) {
    connected_pair(Ipv4Addr::LOCALHOST, |to, port| TcpStream::connect((to, port)).unwrap())
}

/// From the right end to the left one.
fn veth_pair(lab: &Lab) -> (TcpStream, TcpStream) {
    lab.left().namespace().run(|| {
        connected_pair(lab.left().ipv4(), |to, port| {
            lab.right().namespace().run(|| TcpStream::connect((to, port)).unwrap())
        })
    })
}

fn receiver_of(stream: TcpStream, receiving: Option<ReceiveMethod>) -> Receiver {
    receiver_with_pool(stream, receiving, &default_receive_pool().unwrap())
}

fn receiver_with_pool(stream: TcpStream, receiving: Option<ReceiveMethod>, pool: &Pool) -> Receiver {
    let buffers = BufferCache::new(pool.clone());
    Receiver(NonblockingReceiver::new(Arc::new(stream.into()), receiving, buffers).unwrap())
}

fn send_in_thread(mut stream: TcpStream, what: SendPlan) -> JoinHandle<TcpStream> {
    thread::spawn(move || {
        send_pattern(&mut stream, what);
        stream
    })
}

/// The next chunk. A wait with a time limit also ends if the process is stopped and continued (SIGSTOP,
/// SIGCONT): it is then repeated.
fn next_chunk(receiver: &mut Receiver) -> io::Result<Option<Chunk>> {
    let give_up = Instant::now() + LONGEST;
    loop {
        match receiver.receive_timeout(LONGEST)? {
            None if !receiver.is_finished() && Instant::now() < give_up => {}
            received => return Ok(received),
        }
    }
}

fn receive_all(
    (sender, receiver): (TcpStream, TcpStream),
    receiving: Option<ReceiveMethod>,
    what: SendPlan,
) -> Receiver {
    let sender = send_in_thread(sender, what);
    let mut receiver = receiver_of(receiver, receiving);
    let mut expected = ExpectedBytes::default();
    while let Some(chunk) = next_chunk(&mut receiver).unwrap() {
        expected.check_chunk(&chunk);
    }
    assert_eq!(expected.at, what.bytes, "{receiving:?} {what:?}");
    assert!(receiver.receive().unwrap().is_none(), "the end stays the end");
    assert_eq!(receiver.ledger().bytes(), what.bytes as u64);
    sender.join().unwrap();
    receiver
}

const WAYS: [Option<ReceiveMethod>; 7] = [
    None,
    Some(ReceiveMethod::Mapped),
    Some(ReceiveMethod::Recv { bytes: 1 }),
    Some(ReceiveMethod::Recv { bytes: 4096 }),
    Some(ReceiveMethod::Recv { bytes: 65_536 }),
    Some(ReceiveMethod::Recv { bytes: 99_991 }),
    Some(ReceiveMethod::Recv { bytes: 1 << 20 }),
];

#[test]
fn streams_arrive_unchanged_by_every_receive_method() {
    for receiving in WAYS {
        for (write_bytes, zero_copy) in
            [(1447, false), (4096, true), (61_440, true), (65_536, false), (999_999, true)]
        {
            // A byte a call takes its time.
            let bytes =
                if receiving == (Some(ReceiveMethod::Recv { bytes: 1 })) { 30_001 } else { 7_654_321 };
            receive_all(loopback_pair(), receiving, SendPlan { bytes, write_bytes, zero_copy });
        }
        receive_all(loopback_pair(), receiving, SendPlan { bytes: 2001, write_bytes: 1, zero_copy: false });
        receive_all(loopback_pair(), receiving, SendPlan { bytes: 0, write_bytes: 1, zero_copy: false });
    }
}

/// Receives the pattern by [`io::BufRead`], [`io::Read`] and chunks in turn, and leaves parts of chunks
/// behind.
fn read_in_turns(receiving: Option<ReceiveMethod>, what: SendPlan) -> Receiver {
    let (sender, receiver) = loopback_pair();
    let sender = send_in_thread(sender, what);
    let mut receiver = receiver_of(receiver, receiving);
    let mut expected = ExpectedBytes::default();
    for turn in 0.. {
        let lent = receiver.fill_buf().unwrap();
        if lent.is_empty() {
            break;
        }
        let part = lent.len().div_ceil(1 + turn % 3);
        expected.check_bytes(&lent[..part]);
        let left = lent.len() - part;
        receiver.consume(part);
        assert!(left == 0 || receiver.arm().unwrap() && receiver.fill_buf().unwrap().len() == left);
        match turn % 5 {
            0 => {
                let mut room = [0; 1000];
                let bytes = receiver.read(&mut room).unwrap();
                assert!(left == 0 || bytes == left.min(1000));
                expected.check_bytes(&room[..bytes]);
            }
            1 | 2 => {
                if let Some(chunk) = receiver.try_receive().unwrap() {
                    assert!(left == 0 || chunk.len() == left && chunk.copied().len() == left);
                    expected.check_chunk(&chunk);
                } else {
                    assert_eq!(left, 0);
                }
            }
            3 if left > 0 => expected.check_bytes(&receiver.receive().unwrap().unwrap().take()),
            _ => {}
        }
    }
    assert_eq!(expected.at, what.bytes, "{receiving:?} {what:?}");
    assert!(receiver.is_finished() && receiver.fill_buf().unwrap().is_empty(), "the end stays the end");
    assert_eq!(receiver.ledger().bytes(), what.bytes as u64, "each byte is counted once");
    sender.join().unwrap();
    receiver
}

#[test]
fn bytes_left_by_buffered_reads_come_next_by_every_method() {
    for receiving in WAYS {
        for (write_bytes, zero_copy) in [(1447, false), (61_440, true), (65_536, false)] {
            let bytes = if receiving == (Some(ReceiveMethod::Recv { bytes: 1 })) { 3001 } else { 3_654_321 };
            read_in_turns(receiving, SendPlan { bytes, write_bytes, zero_copy });
        }
    }
}

#[test]
fn what_buffered_reads_leave_of_a_buffer_is_kept_without_a_copy() {
    let (mut peer, stream) = loopback_pair();
    let mut receiver = receiver_of(stream, None);
    peer.write_all(b"header, body").unwrap();
    wait_until_queued(&receiver, 12);
    let first_byte = receiver.fill_buf().unwrap().as_ptr();
    receiver.consume(8);
    let body = Buffer::from(next_chunk(&mut receiver).unwrap().unwrap());
    assert_eq!((&body[..], body.as_ptr().addr()), (&b"body"[..], first_byte.addr() + 8));
}

/// Receives 300 KB by [`io::BufRead`], and returns the lengths of the slices and where each begins.
fn read_slices(receiving: Option<ReceiveMethod>) -> (Receiver, Vec<(usize, usize)>) {
    let sent = SendPlan { bytes: 300_000, write_bytes: 15 * PAGE_BYTES, zero_copy: true };
    let (sender, stream) = loopback_pair();
    let sender = send_in_thread(sender, sent);
    let mut receiver = receiver_of(stream, receiving);
    let (mut expected, mut slices) = (ExpectedBytes::default(), Vec::new());
    loop {
        let slice = receiver.fill_buf().unwrap();
        if slice.is_empty() {
            break;
        }
        expected.check_bytes(slice);
        let bytes = slice.len();
        slices.push((slice.as_ptr().addr(), bytes));
        receiver.consume(bytes);
    }
    assert_eq!(expected.at, sent.bytes);
    sender.join().unwrap();
    (receiver, slices)
}

#[test]
fn slices_are_copied_into_the_memory_that_was_consumed_last() {
    for (receiving, bytes_max) in [
        (None, 64 << 10),
        (Some(ReceiveMethod::Mapped), 64 << 10),
        (Some(ReceiveMethod::Recv { bytes: 10_000 }), 10_000),
    ] {
        let (receiver, slices) = read_slices(receiving);
        assert!(slices.iter().all(|&(at, bytes)| at == slices[0].0 && bytes <= bytes_max), "{slices:?}");
        let ledger = receiver.ledger();
        assert_eq!(ledger.bytes_of(Evidence::Copied(Cause::SocketCall)), 300_000, "{receiving:?} {ledger}");
    }
}

#[test]
fn pages_behind_a_slice_are_mapped_for_chunks() {
    let (mut peer, stream) = loopback_pair();
    let mut receiver = receiver_of(stream, Some(ReceiveMethod::Mapped));
    peer.write_all(b"header").unwrap();
    assert_eq!(receiver.fill_buf().unwrap(), b"header");
    receiver.consume(6);
    // Less than a first segment over loopback (32741 bytes).
    let sent = SendPlan { bytes: 7 * PAGE_BYTES, write_bytes: 7 * PAGE_BYTES, zero_copy: true };
    send_pattern(&mut peer, sent);
    wait_until_queued(&receiver, sent.bytes);
    let mut mapped_bytes = 0;
    while let Some(chunk) = next_chunk(&mut receiver).unwrap() {
        mapped_bytes += chunk.mapped().len() as u64;
    }
    let all = receiver.ledger();
    assert_eq!(
        (all.bytes(), all.bytes_of(Evidence::ZeroCopy)),
        (6 + sent.bytes as u64, mapped_bytes),
        "{all}"
    );
    assert!(mapped_bytes > 0, "pages sent without a copy are mapped: {all}");
}

#[test]
fn short_messages_are_received_without_waiting_for_more() {
    for receiving in WAYS {
        let (mut peer, receiver) = loopback_pair();
        let mut receiver = receiver_of(receiver, receiving);
        for bytes in (1..200).chain([4095, 4096, 4097, 8192, 20_000]) {
            peer.write_all(&periodic_pattern()[..bytes]).unwrap();
            let mut expected = ExpectedBytes::default();
            while expected.at < bytes {
                expected.check_chunk(&next_chunk(&mut receiver).unwrap().unwrap());
            }
            assert_eq!(expected.at, bytes);
        }
    }
}

/// Full packets whose bytes are there with the fifth part of 10,000 bytes, and not with the fourth.
const PACKETS: u32 = 34;

/// Sends 60,000 bytes in parts, each of the first five when the receiver is seen to wait for five. `None`:
/// the wait ended early, as after a stop of the whole process.
fn observe_coalesced_wait(receiving: Option<ReceiveMethod>) -> Option<(TcpStream, Receiver, ExpectedBytes)> {
    const PART_BYTES: usize = 10_000;
    let (mut sender, stream) = loopback_pair();
    let mut receiver = receiver_of(stream, receiving);
    receiver.set_wait(Wait::Coalesced { packets: PACKETS, delay: 2 * LONGEST });
    let waiting = this_thread_id();
    let sending = thread::spawn(move || {
        for part in 0..6 {
            assert!(part >= 5 || wait_until_thread_is_in_call(waiting, RECEIVE), "it waits for more");
            sender.write_all(&periodic_pattern()[part * PART_BYTES..][..PART_BYTES]).unwrap();
        }
        sender
    });
    let (mut expected, mut is_enough) = (ExpectedBytes::default(), true);
    while expected.at < 5 * PART_BYTES {
        let chunk = receiver.receive().unwrap().expect("more is to come");
        // What was there at once may be more than one chunk.
        is_enough &= expected.at > 0 || queued_bytes(&receiver) + chunk.len() >= 5 * PART_BYTES;
        expected.check_chunk(&chunk);
    }
    let sender = sending.join().unwrap();
    is_enough.then_some((sender, receiver, expected))
}

#[test]
fn a_coalesced_wait_ends_by_amount_delay_or_end_of_stream() {
    for receiving in [Some(ReceiveMethod::Recv { bytes: 64 << 10 }), Some(ReceiveMethod::Mapped), None] {
        let waited = (0..5).find_map(|_| observe_coalesced_wait(receiving));
        let (mut sender, mut receiver, mut expected) = waited.expect("woken for less");
        // Less than that: when it has waited for long enough.
        receiver.set_wait(Wait::Coalesced { packets: PACKETS, delay: Duration::from_millis(30) });
        while expected.at < 60_000 {
            expected.check_chunk(&receiver.receive().unwrap().expect("the rest"));
        }
        // And at the end, without waiting.
        let started = Instant::now();
        receiver.set_wait(Wait::Coalesced { packets: PACKETS, delay: 2 * LONGEST });
        sender.write_all(&periodic_pattern()[60_000..60_100]).unwrap();
        drop(sender);
        expected.check_chunk(&receiver.receive().unwrap().expect("the last bytes"));
        assert_eq!(expected.at, 60_100);
        assert!(receiver.receive().unwrap().is_none());
        assert!(started.elapsed() < LONGEST, "the end was waited for");
    }
}

#[test]
fn every_wait_receives_and_times_out() {
    let (spin, delay) = (Duration::from_millis(5), Duration::from_millis(20));
    let waits =
        [Wait::Spin, Wait::Interrupt, Wait::Adaptive { spin }, Wait::Coalesced { packets: 100, delay }];
    for (wait, method) in waits.into_iter().flat_map(|wait| [(wait, None), (wait, WAYS[1])]) {
        let (mut peer, stream) = loopback_pair();
        let mut receiver = receiver_of(stream, method);
        receiver.set_wait(wait);
        for timeout in [Duration::from_millis(2), Duration::from_millis(20)] {
            let started = Instant::now();
            assert!(receiver.receive_timeout(timeout).unwrap().is_none() && !receiver.is_finished());
            assert!(started.elapsed() >= timeout / 2, "{wait:?}");
        }
        let later = thread::spawn(move || {
            thread::sleep(3 * delay);
            peer.write_all(b"x").unwrap();
            peer
        });
        assert_eq!(receiver.receive().unwrap().unwrap().to_vec(), b"x", "{wait:?}");
        assert!(!receiver.arm().unwrap());
        drop(later.join().unwrap());
        assert!(receiver.receive_timeout(LONGEST).unwrap().is_none() && receiver.is_finished(), "{wait:?}");
        assert!(receiver.arm().unwrap(), "the end is there");
        let stats = receiver.stats();
        assert_eq!((stats.moved, stats.bytes, stats.dropped), (1, 1, 0), "{wait:?}: {stats}");
    }
}

#[test]
fn a_nonblocking_receive_without_data_returns_none() {
    for receiving in WAYS {
        let (mut peer, receiver) = loopback_pair();
        receiver.set_nonblocking(true).unwrap();
        let mut receiver = receiver_of(receiver, receiving);
        assert!(receiver.try_receive().unwrap().is_none() && !receiver.is_finished());
        let (started, timeout, mut waits) = (Instant::now(), Duration::from_millis(30), 0);
        while started.elapsed() < timeout {
            assert!(receiver.receive_timeout(timeout).unwrap().is_none() && !receiver.is_finished());
            waits += 1;
        }
        // One, and one for a stop of the whole process.
        assert!(waits < 5, "it returned {waits} times in the time it was to wait");
        let waiting = this_thread_id();
        let later = thread::spawn(move || {
            assert!(wait_until_thread_is_in_call(waiting, RECEIVE), "it waits");
            peer.write_all(b"x").unwrap();
            peer
        });
        assert_eq!(receiver.receive().unwrap().unwrap().to_vec(), b"x");
        drop(later.join().unwrap());
        assert!(receiver.receive().unwrap().is_none() && receiver.try_receive().unwrap().is_none());
    }
}

fn wait_until_queued(receiver: &Receiver, bytes: usize) {
    let started = Instant::now();
    while rustix::io::ioctl_fionread(&receiver.socket).unwrap() < bytes as u64 {
        assert!(started.elapsed() < LONGEST, "not queued");
        thread::sleep(Duration::from_millis(1));
    }
}

fn is_broken_before_error(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(ReceiveError::BrokenBefore))
}

#[test]
fn a_reset_is_an_error_after_all_received_bytes() {
    const BYTES: usize = 90_001;
    for (receiving, told_before) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let (peer, receiver) = loopback_pair();
        let mut receiver = receiver_of(receiver, receiving);
        let mut sent = 0;
        while sent < BYTES {
            sent += SockRef::from(&peer)
                .send_with_flags(&periodic_pattern()[sent..BYTES], libc::MSG_ZEROCOPY)
                .unwrap();
        }
        wait_until_queued(&receiver, BYTES);
        SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
        drop(peer);
        if told_before {
            let started = Instant::now();
            let told = loop {
                if let Some(error) = SockRef::from(&receiver.socket).take_error().unwrap() {
                    break error;
                }
                assert!(started.elapsed() < LONGEST, "no reset");
            };
            assert_eq!(told.raw_os_error(), Some(libc::ECONNRESET));
        }
        let mut expected = ExpectedBytes::default();
        let end = loop {
            match next_chunk(&mut receiver) {
                Ok(Some(chunk)) => expected.check_chunk(&chunk),
                end => break end,
            }
        };
        assert_eq!(expected.at, BYTES, "{receiving:?}");
        match end {
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
                assert_eq!(is_broken_before_error(&error), told_before, "{error}");
            }
            Ok(other) => panic!("{receiving:?}: {other:?}"),
        }
        assert!(is_broken_before_error(&receiver.receive().unwrap_err()), "never a proper end");
        assert!(!receiver.is_finished());
    }
}

#[test]
fn a_shut_receiving_side_is_the_end_of_the_stream() {
    let (_peer, receiver) = loopback_pair();
    let mut receiver = receiver_of(receiver, None);
    SockRef::from(&receiver.socket).shutdown(Shutdown::Read).unwrap();
    assert!(receiver.receive().unwrap().is_none());
}

#[test]
fn urgent_data_does_not_block_receiving() {
    for receiving in WAYS {
        let (mut peer, receiver) = loopback_pair();
        let mut receiver = receiver_of(receiver, receiving);
        let mut expected = ExpectedBytes::default();
        peer.write_all(&periodic_pattern()[..5000]).unwrap();
        SockRef::from(&peer).send_out_of_band(b"!").unwrap();
        peer.write_all(&periodic_pattern()[5000..15_000]).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        while let Some(chunk) = next_chunk(&mut receiver).unwrap() {
            expected.check_chunk(&chunk);
        }
        assert_eq!(expected.at, 15_000, "{receiving:?}");
    }
}

#[test]
fn an_urgent_byte_after_mapped_pages_is_skipped() {
    // Less than a first segment over loopback (32741 bytes).
    const WHOLE_BYTES: usize = 7 * PAGE_BYTES;
    for receiving in WAYS {
        let (peer, receiver) = loopback_pair();
        let mut receiver = receiver_of(receiver, receiving);
        let sending = SockRef::from(&peer);
        let sent = sending.send_with_flags(&periodic_pattern()[..WHOLE_BYTES], libc::MSG_ZEROCOPY).unwrap();
        assert_eq!(sent, WHOLE_BYTES);
        sending.send(&periodic_pattern()[WHOLE_BYTES..WHOLE_BYTES + 3]).unwrap();
        sending.send_out_of_band(b"!").unwrap();
        sending.send(&periodic_pattern()[WHOLE_BYTES + 3..WHOLE_BYTES + 1000]).unwrap();
        wait_until_queued(&receiver, WHOLE_BYTES + 3);
        // Data after the mark is not counted there, but acknowledged.
        let started = Instant::now();
        while udp_send::unsent_bytes(&peer).unwrap() > 0 {
            assert!(started.elapsed() < LONGEST, "not acknowledged");
            thread::sleep(Duration::from_millis(1));
        }
        let mut expected = ExpectedBytes::default();
        while expected.at < WHOLE_BYTES + 1000 {
            expected.check_chunk(&next_chunk(&mut receiver).unwrap().unwrap());
        }
        assert_eq!(expected.at, WHOLE_BYTES + 1000, "{receiving:?}");
    }
}

#[test]
fn an_earlier_timeout_of_the_socket_is_cleared() {
    let (mut peer, receiver) = loopback_pair();
    receiver.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut receiver = receiver_of(receiver, None);
    let waiting = this_thread_id();
    let later = thread::spawn(move || {
        assert!(wait_until_thread_is_in_call(waiting, RECEIVE), "it waits");
        thread::sleep(Duration::from_millis(50));
        peer.write_all(b"x").unwrap();
    });
    assert_eq!(receiver.receive().unwrap().unwrap().len(), 1);
    later.join().unwrap();
}

#[test]
fn a_listener_serves_more_connections_than_a_pool_has_buffers() {
    let shared = Pool::new(BUFFERS, 4096).unwrap();
    for builder in [Stream::builder(), Stream::builder().receive_pool(&shared)] {
        let listener = builder.listen((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let connections: Vec<_> = (0..3 * BUFFERS)
            .map(|_| {
                let mut peer = TcpStream::connect(address).unwrap();
                peer.write_all(b"x").unwrap();
                let mut socket = listener.accept().unwrap().0;
                let chunk = socket.receiver().receive().unwrap().unwrap();
                socket.receiver().recycle(chunk);
                (peer, socket)
            })
            .collect();
        assert_eq!(connections.len(), 3 * BUFFERS as usize);
    }
}

#[test]
fn chunks_outlive_the_connection_and_do_not_hold_it() {
    const BYTES: usize = 1 << 20;
    let (sender, receiver) = loopback_pair();
    let sender = send_in_thread(sender, SendPlan { bytes: BYTES, write_bytes: 61_440, zero_copy: true });
    let mut receiver = receiver_of(receiver, Some(ReceiveMethod::Mapped));
    let mut kept = Vec::new();
    while let Some(chunk) = next_chunk(&mut receiver).unwrap() {
        kept.push(chunk);
        if kept.len() == BUFFERS as usize - 1 {
            break;
        }
    }
    let rest: usize = {
        let mut bytes = Vec::new();
        receiver.read_to_end(&mut bytes).unwrap()
    };
    assert!(kept.iter().any(|chunk| !chunk.mapped().is_empty()), "pages are kept");
    drop(receiver);
    let mut peer = sender.join().unwrap();
    peer.set_read_timeout(Some(LONGEST)).unwrap();
    let read = peer.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(read, 0, "the other side sees the end while chunks are kept");
    drop(peer);
    let checked = thread::spawn(move || {
        let mut expected = ExpectedBytes::default();
        kept.iter().for_each(|chunk| expected.check_chunk(chunk));
        expected.at
    });
    assert_eq!(checked.join().unwrap() + rest, BYTES);
}

#[test]
fn pages_are_copied_while_all_map_slots_are_in_use() {
    const BYTES: usize = 24 << 20;
    let (sender, receiver) = loopback_pair();
    let sender = send_in_thread(sender, SendPlan { bytes: BYTES, write_bytes: 61_440, zero_copy: true });
    let pool = Pool::new(4096, 64 << 10).unwrap();
    let mut receiver = receiver_with_pool(receiver, Some(ReceiveMethod::Mapped), &pool);
    let (mut kept, mut expected) = (Vec::new(), ExpectedBytes::default());
    let mut mapped_again = 0;
    while let Some(chunk) = next_chunk(&mut receiver).unwrap() {
        expected.check_chunk(&chunk);
        let is_enough = receiver.ledger().bytes_of(Evidence::Copied(Cause::NoSlot)) > 1 << 20;
        if is_enough {
            // From here on they are dropped at once.
            let mut again = ExpectedBytes::default();
            kept.drain(..).for_each(|chunk: Chunk| again.check_chunk(&chunk));
            mapped_again += chunk.mapped().len();
        } else {
            kept.push(chunk);
        }
    }
    sender.join().unwrap();
    assert_eq!(expected.at, BYTES);
    assert!(mapped_again > 1 << 20, "{}", receiver.ledger());
    let diagnosis = receiver.diagnosis().to_string();
    assert!(diagnosis.contains("there was no room for more"), "{diagnosis}");
    drop(receiver);
    assert_eq!(pool.available(), pool.total());
}

#[test]
fn no_data_is_lost_while_all_buffers_are_in_use() {
    for receiving in [Some(ReceiveMethod::Recv { bytes: 4096 }), Some(ReceiveMethod::Mapped)] {
        let (sender, receiver) = loopback_pair();
        let what = SendPlan { bytes: 100_000, write_bytes: 10_000, zero_copy: false };
        let sender = send_in_thread(sender, what);
        let pool = Pool::new(2, 4096).unwrap();
        let mut receiver = receiver_with_pool(receiver, receiving, &pool);
        let (mut kept, mut expected, mut refused) = (Vec::new(), ExpectedBytes::default(), 0);
        loop {
            match next_chunk(&mut receiver) {
                Ok(Some(chunk)) => kept.push(chunk),
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                    refused += 1;
                    for chunk in kept.drain(..) {
                        expected.check_chunk(&chunk);
                        receiver.recycle(chunk);
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        kept.iter().for_each(|chunk| expected.check_chunk(chunk));
        assert_eq!(expected.at, what.bytes);
        assert!(refused > 5, "{refused}");
        sender.join().unwrap();
    }
}

/// Pages of a sender on this host, filled with that byte and received as a chunk that has them mapped.
/// `None`, with a message, if the machine lacks a feature.
fn rewritable_chunk(byte: u8) -> Option<(RingPages, TcpStream, Receiver, Chunk)> {
    let pages = match RingPages::new(RING_PAGES) {
        Ok(pages) => pages,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_NET_RAW"));
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let (sender, receiver) = loopback_pair();
    let mut receiver = receiver_of(receiver, Some(ReceiveMethod::Mapped));
    pages.fill_bytes(byte);
    pages.send_by_reference(sender.as_fd());
    wait_until_queued(&receiver, RING_PAGES as usize * PAGE_BYTES);
    let chunk = next_chunk(&mut receiver).unwrap().unwrap();
    assert!(!chunk.mapped().is_empty(), "{chunk:?}: {}", receiver.diagnosis());
    Some((pages, sender, receiver, chunk))
}

const RING_PAGES: u32 = 8;

fn empty_memory_file() -> File {
    rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
}

#[test]
fn a_local_sender_can_change_what_is_mapped_but_no_copy_of_it() {
    let Some((pages, mut sender, mut receiver, chunk)) = rewritable_chunk(1) else { return };
    let (mapped, bytes) = (chunk.mapped(), chunk.mapped().len());
    let before = chunk.to_vec();
    pages.fill_bytes(2);
    assert!(mapped.to_vec().iter().all(|&byte| byte == 2), "these are the sender's own pages");
    assert!(before.iter().all(|&byte| byte == 1), "a copy stays what it is");
    // Each way to read, by what is there now.
    let (mut room, mut parts, mut file) = ([0; 100], Vec::new(), empty_memory_file());
    assert_eq!((mapped.copy_to(&mut room), room), (100, [2; 100]));
    chunk.for_each_part(|part| parts.extend_from_slice(part));
    assert_eq!((parts.len(), &parts[..bytes]), (chunk.len(), &vec![2; bytes][..]));
    assert_eq!(mapped.write_to(&file, None).unwrap(), bytes);
    file.rewind().unwrap();
    let mut written = Vec::new();
    file.read_to_end(&mut written).unwrap();
    assert_eq!(written, parts[..bytes]);
    // The stream goes on behind it.
    let received = chunk.len();
    receiver.recycle(chunk);
    sender.write_all(b"end").unwrap();
    drop(sender);
    let mut rest = Vec::new();
    receiver.read_to_end(&mut rest).unwrap();
    assert_eq!(received + rest.len(), RING_PAGES as usize * PAGE_BYTES + 3);
    assert!(rest.ends_with(b"end"));
}

#[test]
fn mapped_bytes_are_copied_while_their_sender_changes_them() {
    let Some((pages, _sender, _receiver, chunk)) = rewritable_chunk(1) else { return };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: it says nothing about other memory.
            for byte in (1..=2).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                pages.fill_bytes(byte);
            }
        });
        for _ in 0..1000 {
            let copy = chunk.mapped().to_vec();
            // What was decided by the copy still holds: the pages are not read again.
            let ones = copy.iter().filter(|&&byte| byte == 1).count();
            let twos = copy.iter().filter(|&&byte| byte == 2).count();
            assert_eq!(ones + twos, copy.len());
            chunk.for_each_part(|part| assert!(part.iter().all(|byte| (1..=2).contains(byte))));
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_chunk_of_a_buffer_can_be_changed_and_one_of_pages_cannot() {
    let (sender, receiver) = loopback_pair();
    let what = SendPlan { bytes: 5 * 61_440, write_bytes: 61_440, zero_copy: true };
    let sender = send_in_thread(sender, what);
    let mut receiver = receiver_of(receiver, Some(ReceiveMethod::Mapped));
    let mut mapped = 0;
    while let Some(chunk) = next_chunk(&mut receiver).unwrap() {
        let (bytes, place) = (chunk.to_vec(), chunk.copied().as_ptr());
        let mapped_bytes = chunk.mapped().len();
        let buffer = Buffer::from(chunk);
        assert_eq!((&buffer[..], buffer.as_ptr() != place), (&bytes[..], mapped_bytes > 0));
        mapped += mapped_bytes as u64;
    }
    let ledger = receiver.ledger();
    assert_eq!(
        (mapped, 0),
        (ledger.bytes_of(Evidence::Copied(Cause::Gathered)), ledger.bytes_of(Evidence::ZeroCopy))
    );
    assert_eq!(ledger.bytes(), what.bytes as u64);
    sender.join().unwrap();
}

/// Bytes of chunks on pages are copied, and those of others are not.
#[cfg(feature = "bytes")]
#[test]
fn bytes_of_mapped_pages_are_copied_once_and_counted() {
    let (sender, receiver) = loopback_pair();
    let what = SendPlan { bytes: 5 * 61_440, write_bytes: 61_440, zero_copy: true };
    let sender = send_in_thread(sender, what);
    let mut receiver = receiver_of(receiver, Some(ReceiveMethod::Mapped));
    let (mut mapped, mut all) = (0, Vec::new());
    while let Some(chunk) = next_chunk(&mut receiver).unwrap() {
        let (place, pages) = (chunk.copied().as_ptr(), chunk.mapped().len());
        let bytes = bytes::Bytes::from(chunk);
        assert_eq!(bytes.as_ptr() != place, pages > 0);
        mapped += pages as u64;
        all.extend_from_slice(&bytes);
        assert_eq!(receiver.ledger().bytes_of(Evidence::Copied(Cause::Gathered)), mapped);
    }
    ExpectedBytes::default().check_bytes(&all);
    assert_eq!(all.len(), what.bytes);
    sender.join().unwrap();
}

#[test]
fn io_read_copies_into_the_callers_slice() {
    let (sender, receiver) = loopback_pair();
    let what = SendPlan { bytes: 1_234_567, write_bytes: 65_536, zero_copy: false };
    let sender = send_in_thread(sender, what);
    let mut receiver = receiver_of(receiver, None);
    let mut bytes = Vec::new();
    receiver.read_to_end(&mut bytes).unwrap();
    ExpectedBytes::default().check_bytes(&bytes);
    assert_eq!(receiver.ledger().bytes_of(Evidence::Copied(Cause::Slice)), what.bytes as u64);
    sender.join().unwrap();
}

#[test]
fn chunks_longer_than_buffers_are_refused() {
    let (_peer, receiver) = loopback_pair();
    let socket: Arc<OwnedFd> = Arc::new(receiver.into());
    let pool = Pool::new(1, 4096).unwrap();
    let of = |bytes| {
        NonblockingReceiver::new(
            Arc::clone(&socket),
            Some(ReceiveMethod::Recv { bytes }),
            BufferCache::new(pool.clone()),
        )
    };
    for refused in [0, 4097] {
        let error = of(refused).unwrap_err();
        assert!(matches!(error, OpenError::ChunkLength { bytes, buffer_bytes: 4096 } if bytes == refused));
    }
    assert!(of(4096).is_ok());
}

const MUCH: SendPlan = SendPlan { bytes: 32 << 20, write_bytes: 256 << 10, zero_copy: true };

fn run_ip_command(end: &End, arguments: &str) {
    let done = end.namespace().run(|| Command::new("ip").args(arguments.split(' ')).output().unwrap());
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// One transfer of a few suffices: if a packet is lost, as on a slow machine, retransmitted data ends between
/// pages.
#[test]
fn segments_of_whole_pages_are_mapped() {
    for mtu in [4148, 8244] {
        let Some(lab) = Lab::builder().mtu(mtu).build_or_skip() else { return };
        let map = || receive_all(veth_pair(&lab), Some(ReceiveMethod::Mapped), MUCH).diagnosis();
        let is_mapped = |diagnosis: &MappingDiagnosis| diagnosis.mapped_fraction() >= Some(0.99);
        let diagnosis = (0..4).map(|_| map()).find(is_mapped).unwrap_or_else(map);
        assert!(diagnosis.mapped_fraction() >= Some(0.99), "MTU {mtu}: {diagnosis}");
        assert_eq!(diagnosis.facts.segment_bytes, mtu - 52);
        assert_eq!(diagnosis.findings, ["pages are mapped; no change is needed"]);
    }
}

#[test]
fn segments_of_other_lengths_are_copied_and_the_cause_named() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    // Packets as on a wire; otherwise veth carries them joined.
    run_ip_command(lab.right(), "link set dev nc1 gso_max_segs 1");
    let diagnosis = receive_all(veth_pair(&lab), Some(ReceiveMethod::Mapped), MUCH).diagnosis();
    assert_eq!(diagnosis.mapped_bytes, 0, "{diagnosis}");
    assert!(diagnosis.to_string().contains("segments of 1448 bytes"), "{diagnosis}");
}

#[test]
fn pages_of_local_plain_sends_are_not_mapped() {
    let plain = SendPlan { zero_copy: false, ..MUCH };
    let receiver = receive_all(loopback_pair(), Some(ReceiveMethod::Mapped), plain);
    let diagnosis = receiver.diagnosis();
    if diagnosis.facts.high_order_pages == Some(false) {
        assert!(diagnosis.mapped_bytes > 0, "set so, it does: {diagnosis}");
        return;
    }
    assert_eq!(diagnosis.mapped_bytes, 0, "{diagnosis}");
    assert_eq!(diagnosis.findings.len(), 1, "{diagnosis}");
    assert!(diagnosis.findings[0].starts_with("the sender is on this machine"), "{diagnosis}");
    assert!(
        receiver.ledger().bytes_of(Evidence::Copied(Cause::LocalPages)) > plain.bytes as u64 / 2,
        "{}",
        receiver.ledger()
    );
}

#[test]
fn the_default_receiver_stops_mapping_where_nothing_maps() {
    let plain = SendPlan { bytes: 256 << 20, zero_copy: false, ..MUCH };
    let receiver = receive_all(loopback_pair(), None, plain);
    let explanation = receiver.chooser.explain();
    assert_ne!(explanation.classes[0].method, ReceiveMethod::Mapped, "{explanation}");
    assert_eq!(receiver.ledger().bytes_of(Evidence::ZeroCopy), 0);
    assert!(
        receiver.ledger().bytes_of(Evidence::Copied(Cause::CopyingIsFaster)) > plain.bytes as u64 / 2,
        "{}",
        receiver.ledger()
    );
}

#[test]
fn a_kernel_without_mapping_is_named_with_the_one_that_has_it() {
    let why = mapping_exclusion(&io::Error::from_raw_os_error(libc::ENOPROTOOPT)).to_string();
    assert!(why.contains(&format!("Linux {} or newer", features::TCP_MAPPED.kernel)), "{why}");
}
