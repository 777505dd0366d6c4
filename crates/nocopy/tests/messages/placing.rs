//! Messages in posted buffers, and bytes in registered ones, between two endpoints over lo; and a peer that
//! puts nonsense.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use nocopy::message::{Endpoint, Event, PutRefusal, Region};
use nocopy::{Buffer, Pool, Reason};
use nocopy_lab::patience::wait_until;
use nocopy_proto::message as protocol;
use nocopy_proto::message::framing::{chunks, put_whole_header};

use crate::common::message::{any, connect, pattern, receive};
use crate::common::raw_memory::RawMemory;

const BYTES: usize = 1 << 20;

fn bind(streams: bool) -> Endpoint {
    Endpoint::builder().streams(streams).bind(any(0)).unwrap()
}

/// Messages of all lengths in both directions, the long ones of one of them into posted buffers.
#[test]
fn long_messages_lie_in_posted_buffers() {
    for streams in [true, false] {
        let (mut left, mut right) = (bind(streams), bind(streams));
        let (to_right, _) = connect(&mut left, &mut right);
        let pool = Pool::new(4, BYTES).unwrap();
        let lengths = [100, 10_000, BYTES, 0, 64 << 10, 300_000];
        let (mut sent, mut received, mut placed) = (0, 0, 0);
        wait_until("all messages", || {
            for _ in 0..20 {
                while let Some(buffer) = pool.take() {
                    right.post(buffer).unwrap();
                }
                while sent < 60 {
                    let message = pattern(sent, lengths[sent % lengths.len()]);
                    match left.send_to(message, to_right) {
                        Ok(()) => sent += 1,
                        Err(rejected) => {
                            assert!(matches!(rejected.reason, Reason::Full), "{rejected}");
                            break;
                        }
                    }
                }
                left.wait(Duration::ZERO).unwrap();
                while let Some(message) = right.try_receive().unwrap() {
                    let expected = pattern(received, lengths[received % lengths.len()]);
                    assert!(message.to_vec() == expected, "message {received}");
                    match Buffer::try_from(message) {
                        Ok(buffer) => {
                            assert!(buffer[..] == expected[..] && buffer.capacity() == BYTES);
                            placed += 1;
                        }
                        Err(message) => drop(message),
                    }
                    received += 1;
                }
            }
            received == 60
        });
        assert!(placed > 10, "{}", right.stats());
        drop(right);
        assert_eq!(pool.available(), 4);
    }
}

/// The bytes are changed behind the library's back after `send`, where they are not copied: the peer gets the
/// new ones. They are received into memory of the same kind.
#[test]
fn messages_are_sent_from_and_received_into_raw_memory() {
    const LONG: usize = 10_000; // few enough packets that `send` hands none to the kernel
    for streams in [true, false] {
        let (mut left, mut right) = (bind(streams), bind(streams));
        let (to_right, to_left) = connect(&mut left, &mut right);
        let (sent, mut buffer) = RawMemory::map(LONG);
        buffer.fill(&[1; LONG]).unwrap();
        let (posted, room) = RawMemory::map(BYTES);
        right.post(room).unwrap();
        left.send_to(buffer, to_right).unwrap();
        sent.write(2);
        let mut came = None;
        wait_until("the message", || {
            left.wait(Duration::ZERO).unwrap();
            if let Some(message) = right.try_receive().unwrap() {
                came = Some(message.take());
            }
            came.is_some()
        });
        let message = came.unwrap();
        assert_eq!(message.as_slice().map(<[u8]>::as_ptr), Some(posted.address()));
        assert!(message.to_vec() == [2; LONG], "sent from where it lies");
        assert_eq!((posted.read(0), posted.read(LONG - 1), posted.read(LONG)), (2, 2, 0));
        let buffer = Buffer::try_from(message).unwrap();
        assert_eq!((buffer.as_ptr(), buffer.len()), (posted.address(), LONG));
        // And back, from there.
        right.send_to(buffer, to_left).unwrap();
        assert!(receive(&mut right, &mut left).2 == [2; LONG]);
        wait_until("that both are acknowledged", || {
            left.wait(Duration::ZERO).unwrap();
            right.wait(Duration::ZERO).unwrap();
            sent.is_returned() && posted.is_returned()
        });
    }
}

#[test]
fn puts_are_written_to_registered_raw_memory() {
    for streams in [true, false] {
        let (mut left, mut right) = (bind(streams), bind(streams));
        let (to_right, to_left) = connect(&mut left, &mut right);
        let (memory, buffer) = RawMemory::map(BYTES);
        let region = right.register(buffer, to_left).unwrap();
        let (mut bytes, mut is_placed) = (Some(vec![7; 50_000]), false);
        wait_until("the put", || {
            if let Some(rest) = bytes.take()
                && let Err(rejected) = left.put(rest, to_right, region, 100)
            {
                bytes = Some(rejected.item.into_iter().next().unwrap().to_vec());
            }
            left.wait(Duration::ZERO).unwrap();
            right.wait(Duration::ZERO).unwrap();
            while left.poll_event().is_some() {}
            is_placed |= matches!(right.poll_event(), Some(Event::Placed { .. }));
            is_placed
        });
        let values = [99, 100, 50_099, 50_100].map(|index| memory.read(index));
        assert_eq!(values, [0, 7, 7, 0]);
        assert_eq!(right.read_region(region, <[u8]>::as_ptr), Some(memory.address()));
        assert_eq!(right.withdraw(region).unwrap().as_ptr(), memory.address());
        assert!(memory.is_returned());
    }
}

/// No length is cut to 32 bits: what cannot be sent comes back, and any memory can be received into.
#[test]
fn lengths_of_more_than_4_gib_are_refused_or_used_whole() {
    const LONG: usize = (4 << 30) + 10_000;
    let (Some((memory, buffer)), Some((posted, room))) =
        (RawMemory::map_if_allowed(LONG), RawMemory::map_if_allowed(LONG))
    else {
        return;
    };
    let (mut left, mut right) = (bind(true), bind(true));
    let (to_right, to_left) = connect(&mut left, &mut right);
    let reason = left.send_copy_to(&buffer, to_right).unwrap_err();
    assert!(matches!(reason, Reason::TooLong { .. }), "{reason}");
    let rejected = left.send_to(buffer, to_right).unwrap_err();
    assert!(matches!(rejected.reason, Reason::TooLong { .. }), "{rejected}");
    let buffer = rejected.item.into_iter().next().unwrap();
    assert_eq!((buffer.as_ptr(), buffer.len()), (memory.address(), LONG));
    right.post(room).unwrap();
    left.send_to(pattern(1, 10_000), to_right).unwrap();
    let region = right.register(buffer.try_into_mut().unwrap(), to_left).unwrap();
    // Behind the fourth GiB.
    let offset = (4 << 30) + 5_000;
    let (mut bytes, mut is_placed) = (Some(vec![7; 5_000]), false);
    let mut came = None;
    wait_until("a message and a put", || {
        if let Some(rest) = bytes.take()
            && let Err(rejected) = left.put(rest, to_right, region, offset)
        {
            bytes = Some(rejected.item.into_iter().next().unwrap().to_vec());
        }
        left.wait(Duration::ZERO).unwrap();
        if let Some(message) = right.try_receive().unwrap() {
            came = Some(message.take());
        }
        while left.poll_event().is_some() {}
        is_placed |= matches!(right.poll_event(), Some(Event::Placed { bytes: 5_000, .. }));
        is_placed && came.is_some()
    });
    assert_eq!(came.unwrap().as_slice().map(<[u8]>::as_ptr), Some(posted.address()));
    assert_eq!([offset as usize - 1, offset as usize, LONG - 1].map(|index| memory.read(index)), [0, 7, 7]);
    let rejected = left.put(vec![7; 2], to_right, region, LONG as u64 - 1).unwrap_err();
    assert!(matches!(rejected.reason, Reason::OutOfRange { .. }), "{rejected}");
}

/// A peer that speaks the protocol by a socket of its own, and says there what it likes.
struct Raw {
    socket: UdpSocket,
    endpoint: protocol::Endpoint<Vec<u8>, Vec<u8>>,
    start: Instant,
}

impl Raw {
    fn new() -> Self {
        let socket = UdpSocket::bind(any(0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut settings = protocol::Settings::default();
        settings.placement = true;
        let mut endpoint = protocol::Endpoint::new(settings, [7; 32]);
        endpoint.set_free(4_096);
        Self { socket, endpoint, start: Instant::now() }
    }

    fn now(&self) -> protocol::Time {
        protocol::Time::from_ns(self.start.elapsed().as_nanos() as u64)
    }

    fn work(&mut self) {
        let mut datagram = [0; 2048];
        while let Ok((bytes, from)) = self.socket.recv_from(&mut datagram) {
            let now = self.now();
            self.endpoint.handle_datagram(now, from, false, datagram[..bytes].to_vec());
        }
        let now = self.now();
        if self.endpoint.poll_timeout().is_some_and(|due| due <= now) {
            self.endpoint.handle_timeout(now);
        }
        while let Some(transmit) = self.endpoint.poll_transmit(now) {
            let (to, datagram) = match transmit {
                protocol::Transmit::Packet { to, packet, header, .. } => (to, [&header[..], packet].concat()),
                protocol::Transmit::Control { to, datagram } => (to, datagram.to_vec()),
                protocol::Transmit::Unit { .. } => unreachable!("it has no stream"),
            };
            self.socket.send_to(&datagram, to.remote).unwrap();
        }
        while self.endpoint.acknowledged().is_some() || self.endpoint.released().is_some() {}
    }

    fn send(&mut self, peer: protocol::Peer, kind: protocol::Kind, message: &[u8]) {
        let payload_bytes_max = self.endpoint.payload_bytes_max(peer).unwrap();
        let mut packets: Vec<Vec<u8>> = chunks(kind, message.len(), 0, payload_bytes_max)
            .map(|chunk| [chunk.header(), &message[chunk.range.clone()]].concat())
            .collect();
        self.endpoint.queue_all(peer, &mut packets).unwrap();
    }
}

/// What is said on a connection for puts is looked at: nothing is written that is no put to that region,
/// every put is answered, and the connections live on.
#[test]
fn a_peer_that_puts_nonsense_writes_nothing() {
    let (mut raw, mut endpoint) = (Raw::new(), bind(true));
    let now = raw.now();
    let main = raw.endpoint.connect(now, endpoint.local_addr()).unwrap();
    let mut peer = None;
    wait_until("a connection", || {
        raw.work();
        endpoint.wait(Duration::ZERO).unwrap();
        if let Some(Event::Accepted(accepted, _)) = endpoint.poll_event() {
            peer = Some(accepted);
        }
        peer.is_some() && raw.endpoint.poll_event().is_some()
    });
    let peer = peer.unwrap();
    let pool = Pool::new(2, 4096).unwrap();
    let former = endpoint.register(pool.take().unwrap(), peer).unwrap();
    assert!(endpoint.withdraw(former).is_some());
    let region = endpoint.register(pool.take().unwrap(), peer).unwrap();
    let now = raw.now();
    let beside = raw.endpoint.connect_beside(now, main).unwrap();
    wait_until("a connection for puts", || {
        raw.work();
        endpoint.wait(Duration::ZERO).unwrap();
        raw.endpoint.payload_bytes_max(beside).is_ok_and(|bytes| bytes > 0)
    });
    let put = |region: Region, offset: u64, bytes: &[u8]| {
        [&protocol::PutHeader::new(region, offset).bytes()[..], bytes].concat()
    };
    let mut puts = 0;
    let mut request = |raw: &mut Raw, message: &[u8]| {
        raw.send(beside, protocol::Kind::Request(puts), message);
        puts += 1;
    };
    for round in 0..40_u32 {
        let garbage = pattern(round as usize, round as usize * 97 % 3_000);
        raw.send(beside, protocol::Kind::Plain, &garbage);
        raw.send(beside, protocol::Kind::Response(round), &garbage);
        request(&mut raw, &garbage[..garbage.len().min(15)]);
        request(&mut raw, &[&[255; 4], &garbage[..]].concat());
        request(&mut raw, &put(former, 0, &[9; 100]));
        request(&mut raw, &put(region, 4_000, &[9; 97]));
        request(&mut raw, &put(region, u64::MAX - 50, &[9; 100]));
        request(&mut raw, &put(region, 4_097, &[]));
        let mut answers = 0;
        wait_until("the answers", || {
            raw.work();
            endpoint.wait(Duration::ZERO).unwrap();
            while let Some(next) = raw.endpoint.peek_beside(|_| true) {
                let answer: Vec<u8> = raw.endpoint.receive_next(next).pieces().flatten().copied().collect();
                let refusal = protocol::parse_put_answer(&answer).unwrap_err();
                assert!(matches!(refusal, PutRefusal::NoRegion | PutRefusal::OutOfRange));
                answers += 1;
            }
            answers == 6
        });
    }
    assert_eq!(endpoint.poll_event(), None, "nothing of that is told");
    assert!(endpoint.try_receive().unwrap().is_none());
    assert!(endpoint.read_region(region, |bytes| bytes == [0; 4096]).unwrap());
    raw.send(beside, protocol::Kind::Request(1_000), &put(region, 4_000, &[9; 96]));
    let mut hello = vec![0; 4];
    put_whole_header(protocol::Kind::Plain, 5, &mut hello);
    raw.endpoint.queue(main, [&hello[..], b"hello"].concat()).unwrap();
    let mut has_come = (false, false);
    wait_until("a message, and a put that is none of that", || {
        raw.work();
        has_come.0 |= endpoint.try_receive().unwrap().is_some_and(|message| message.to_vec() == b"hello");
        let placed = Event::Placed { from: peer, region, offset: 4_000, bytes: 96 };
        has_come.1 |= endpoint.poll_event() == Some(placed);
        has_come == (true, true)
    });
    assert_eq!(endpoint.stats().get("puts_refused").unwrap(), 240);
}
