//! Messages in posted buffers, and bytes in registered ones, between two endpoints over lo; and a peer that
//! puts nonsense.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use nocopy::message::{Endpoint, Event, PutRefusal, Region};
use nocopy::{Buffer, Pool, Reason};
use nocopy_lab::patience::wait_until;
use nocopy_proto::message as protocol;
use nocopy_proto::message::framing::{chunks, put_whole_header};

use crate::common::message::{any, connect, pattern};

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
                    match left.send(message, to_right) {
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
        assert!(placed > 10, "{}", right.stats().unwrap());
        drop(right);
        assert_eq!(pool.available(), 4);
    }
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
    let main = raw.endpoint.connect(now, endpoint.local_address()).unwrap();
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
    assert_eq!(endpoint.stats().unwrap()["puts_refused"], 240);
}
