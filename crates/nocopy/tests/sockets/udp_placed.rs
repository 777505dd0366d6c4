//! Datagrams are placed by number, from real sockets.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nocopy::udp::{
    Builder, Field, Message, Method, NotPlaced, OpenError, PlacedChunk, PlacedReceiver, Placing, Socket,
};
use nocopy::{Buffer, Cause, Evidence, Pool, Port};
use nocopy_lab::patience::wait_until;
use rustix::event::{PollFd, PollFlags, poll};

use crate::common::{PATIENCE, lab};

/// A datagram is its number in 8 bytes, and a row that repeats the number.
const ROW_BYTES: usize = 56;
const DATAGRAM_BYTES: usize = 8 + ROW_BYTES;

fn placing(rows: usize) -> Placing {
    Placing::by_number(Field::big_endian(0, 8)).shape(rows, ROW_BYTES)
}

fn bind_and_place(builder: Builder, placing: Placing) -> (PlacedReceiver, SocketAddr) {
    let socket = builder.receive_buffer(4 << 20).bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket.split().0.place(placing).unwrap(), address)
}

fn write_datagram(number: u64, datagram: &mut [u8]) {
    datagram.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&number.to_be_bytes()));
}

fn send_numbers(socket: &UdpSocket, to: SocketAddr, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let mut datagram = [0; DATAGRAM_BYTES];
        write_datagram(number, &mut datagram);
        assert_eq!(socket.send_to(&datagram, to).unwrap(), DATAGRAM_BYTES);
    }
}

/// Each row shows its own number, or zeros if it is missing.
fn check_rows(chunk: &PlacedChunk) {
    for (number, (row, present)) in (chunk.first()..).zip(chunk.chunks(ROW_BYTES).zip(chunk.present())) {
        let expected = if *present { number.to_be_bytes() } else { [0; 8] };
        assert!(row.chunks(8).all(|part| part == expected), "row {number}: {row:?}");
    }
}

fn receive_chunk(receiver: &mut PlacedReceiver) -> PlacedChunk {
    let give_up = Instant::now() + PATIENCE;
    while Instant::now() < give_up {
        if let Some(chunk) = receiver.receive_timeout(PATIENCE).unwrap() {
            check_rows(&chunk);
            return chunk;
        }
    }
    panic!("no chunk: {}", receiver.stats());
}

/// Receives until that many rows were filled, which complete no chunk.
fn receive_rows(receiver: &mut PlacedReceiver, filled: u64) {
    wait_until("all rows arrive", || {
        assert!(receiver.try_receive().unwrap().is_none(), "a chunk is complete");
        receiver.stats().moved == filled
    });
}

#[test]
fn a_million_datagrams_fill_their_rows() {
    const COUNT: u64 = 1_000_000;
    const ROWS: usize = 4000;
    // Datagrams that the receive buffer holds in any case, in bursts and one by one.
    const AHEAD: u64 = 1500;
    let (mut receiver, to) = bind_and_place(Socket::builder(), placing(ROWS));
    let placed = AtomicU64::new(0);
    let chunks = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut socket = Socket::bind("127.0.0.1:0").unwrap();
            socket.connect(to).unwrap();
            let sender = socket.sender();
            let mut next = 0;
            while next < COUNT {
                let give_up = Instant::now() + PATIENCE;
                while next >= placed.load(Relaxed) + AHEAD {
                    assert!(Instant::now() < give_up, "the receiver has stopped at {next}");
                    std::thread::yield_now();
                }
                let Some(mut buffer) = sender.buffer() else {
                    assert!(sender.drain(PATIENCE).unwrap());
                    continue;
                };
                let count = (COUNT - next).min(100);
                buffer.resize(count as usize * DATAGRAM_BYTES);
                buffer
                    .chunks_mut(DATAGRAM_BYTES)
                    .zip(next..)
                    .for_each(|(datagram, number)| write_datagram(number, datagram));
                next += count;
                sender.send(Message::segments(buffer, DATAGRAM_BYTES)).unwrap();
                sender.flush().unwrap();
            }
        });
        let give_up = Instant::now() + PATIENCE;
        let mut chunks = 0;
        while chunks < COUNT / ROWS as u64 {
            assert!(Instant::now() < give_up, "{}", receiver.stats());
            let chunk = receiver.try_receive().unwrap();
            placed.store(receiver.stats().moved, Relaxed); // a number alone
            let Some(chunk) = chunk else {
                std::thread::yield_now();
                continue;
            };
            assert_eq!((chunk.first(), chunk.filled()), (chunks * ROWS as u64, ROWS));
            check_rows(&chunk);
            chunks += 1;
        }
        chunks
    });
    assert_eq!(chunks, 250);
    let (stats, ledger) = (receiver.stats(), receiver.ledger());
    assert_eq!((stats.moved, stats.bytes, stats.dropped), (COUNT, COUNT * ROW_BYTES as u64, 0), "{stats}");
    assert_eq!((stats.get("missing"), stats.get("double")), (Some(0), Some(0)));
    let copied = |cause| ledger.bytes_of(Evidence::Copied(cause));
    assert_eq!(copied(Cause::SocketCall), COUNT * DATAGRAM_BYTES as u64);
    assert_eq!(ledger.datagrams(), COUNT);
    // By a buffer each row is copied once more; straight, only where another one arrived.
    assert!(copied(Cause::Gathered) > 0, "{ledger}");
    assert!(receiver.finish().is_none());
}

#[test]
fn several_senders_fill_one_chunk() {
    let (mut receiver, to) = bind_and_place(Socket::builder(), placing(300));
    let senders: Vec<_> = (0..3).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    for (own, sender) in senders.iter().enumerate().rev() {
        send_numbers(sender, to, (0..300).filter(|number| number % 3 == own as u64));
    }
    let chunk = receive_chunk(&mut receiver);
    assert_eq!((chunk.first(), chunk.filled()), (0, 300));
    // All but the connected one are ignored.
    let mut socket = Socket::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    socket.connect(senders[0].local_addr().unwrap()).unwrap();
    let mut receiver = socket.split().0.place(placing(4)).unwrap();
    send_numbers(&senders[1], to, [0, 1]);
    send_numbers(&senders[0], to, [2, 3]);
    receive_rows(&mut receiver, 2);
    let chunk = receiver.finish().unwrap();
    assert_eq!(chunk.present(), [false, false, true, true]);
}

#[test]
fn with_all_chunks_in_use_the_kernel_drops_and_counts() {
    let pool = Pool::new(2, 4096).unwrap();
    let builder = Socket::builder().receive_pool(&pool);
    let (mut receiver, to) = bind_and_place(builder, placing(10).ring(3));
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut kept = Vec::new();
    let mut sent = 0;
    let error = loop {
        assert!(sent < 1000, "the ring never filled");
        send_numbers(&sender, to, sent..sent + 10);
        sent += 10;
        match receiver.try_receive() {
            Ok(chunk) => kept.extend(chunk),
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), kept.len(), sent), (ErrorKind::OutOfMemory, 3, 40));
    assert!(error.to_string().starts_with("receive: no chunk; all 3 of the ring are in use;"), "{error}");
    let dropped = |receiver: &PlacedReceiver| receiver.stats().get("sk_drops").unwrap_or(1);
    while dropped(&receiver) == 0 {
        assert!(sent < 1_000_000, "the kernel's queue never filled");
        send_numbers(&sender, to, sent..sent + 1000);
        sent += 1000;
        assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::OutOfMemory, "nothing is read");
    }
    assert_eq!(receiver.stats().moved, 30);
    kept.iter().for_each(check_rows);
    std::thread::spawn(|| drop(kept)).join().unwrap();
    // What waited, in this process and in the kernel, is not lost.
    let chunk = receive_chunk(&mut receiver);
    assert_eq!((chunk.first(), chunk.filled()), (30, 10));
    assert!(receiver.stats().get("no_chunks") > Some(0), "{}", receiver.stats());
}

#[test]
fn open_chunks_are_returned_when_the_sender_pauses() {
    let (mut receiver, to) = bind_and_place(Socket::builder(), placing(10));
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    send_numbers(&sender, to, [4, 17]);
    assert!(receiver.receive_timeout(Duration::from_millis(1)).unwrap().is_none());
    receive_rows(&mut receiver, 2);
    let chunks: Vec<_> = std::iter::from_fn(|| receiver.finish()).collect();
    chunks.iter().for_each(check_rows);
    assert_eq!(
        chunks.iter().map(|chunk| (chunk.first(), chunk.filled())).collect::<Vec<_>>(),
        [(0, 1), (10, 1)]
    );
    assert_eq!(receiver.stats().get("missing"), Some(18));
    // The sender goes on: the rest of the chunk.
    send_numbers(&sender, to, 18..20);
    receive_rows(&mut receiver, 4);
    let rest = receiver.finish().unwrap();
    assert_eq!((rest.first(), rest.present().iter().rposition(|present| !present)), (10, Some(7)));
}

#[test]
fn datagrams_received_before_are_placed() {
    let mut socket = Socket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    send_numbers(&sender, socket.local_addr().unwrap(), 0..4);
    let first = socket.receiver().receive().unwrap().next().map(|datagram| datagram[7]);
    assert_eq!(first, Some(0));
    let mut receiver = socket.split().0.place(placing(4)).unwrap();
    assert!(receiver.arm().unwrap(), "the others were received with it, or wait in the kernel");
    receive_rows(&mut receiver, 3);
    assert_eq!(receiver.finish().unwrap().present(), [false, true, true, true]);
}

#[test]
fn the_descriptor_is_readable_when_datagrams_wait() {
    let (mut receiver, to) = bind_and_place(Socket::builder(), placing(2));
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(!receiver.arm().unwrap());
    send_numbers(&sender, to, [1, 0]);
    poll(&mut [PollFd::new(&receiver.as_fd(), PollFlags::IN)], None).unwrap();
    let chunk = receive_chunk(&mut receiver);
    let address = chunk.as_ptr();
    assert_eq!((chunk.len(), chunk.filled(), address.addr() % 4096), (2 * ROW_BYTES, 2, 0));
    let buffer = Buffer::from(chunk);
    assert_eq!(
        (buffer.as_ptr(), buffer.len()),
        (address, 2 * ROW_BYTES),
        "not a copy, and without the flags"
    );
    receiver.set_wait(nocopy::Wait::Spin);
    send_numbers(&sender, to, [3, 2]);
    let chunk = receive_chunk(&mut receiver);
    receiver.recycle(chunk);
    let text = receiver.explain().to_string();
    assert!(text.starts_with("placed by number: chunks of 2 rows of 56 bytes, 4 in the ring"), "{text}");
}

#[test]
fn chunks_are_dropped_by_another_thread_while_others_are_filled() {
    const CHUNKS: u64 = 200;
    let (mut receiver, to) = bind_and_place(Socket::builder(), placing(20).ring(3));
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (give, take) = mpsc::sync_channel::<PlacedChunk>(0);
    std::thread::scope(|scope| {
        scope.spawn(move || take.into_iter().for_each(|chunk| check_rows(&chunk)));
        for number in 0..CHUNKS {
            send_numbers(&sender, to, number * 20..(number + 1) * 20);
            let chunk = loop {
                match receiver.receive_timeout(PATIENCE) {
                    Ok(chunk) => break chunk.unwrap(),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory),
                }
            };
            assert_eq!((chunk.first(), chunk.filled()), (number * 20, 20));
            give.send(chunk).unwrap();
        }
        drop(give);
    });
}

#[test]
fn a_datagram_longer_than_the_buffers_is_refused() {
    let pool = Pool::new(4, 4096).unwrap();
    let socket = Socket::builder().receive_pool(&pool).bind("127.0.0.1:0").unwrap();
    let placing = Placing::by_number(Field::big_endian(0, 8)).shape(10, 4089);
    let NotPlaced { receiver, reason } = socket.split().0.place(placing).unwrap_err();
    assert!(matches!(reason, OpenError::Placing { value: 4097, most: 4096, .. }), "{reason}");
    // The half that comes back is as good as before.
    let placing = Placing::by_number(Field::big_endian(0, 8)).shape(10, 4088);
    receiver.place(placing).unwrap();
    let socket = Socket::bind("127.0.0.1:0").unwrap();
    let refused = socket.split().0.place(placing_of_all_memory()).unwrap_err();
    assert!(matches!(refused.reason, OpenError::Memory(_)), "{refused}");
}

fn placing_of_all_memory() -> Placing {
    Placing::by_number(Field::big_endian(0, 8)).shape(u32::MAX as usize / 8, 65_000).ring(1 << 14)
}

#[test]
fn datagrams_over_a_port_are_placed() {
    let lab = lab!();
    let (left, right) = (lab.left(), lab.right());
    let to = SocketAddr::new(left.ipv4().into(), 7190);
    let bind = || Socket::builder().port(Port::builder(left.interface())).bind(to);
    let socket = left.namespace().run(bind).unwrap();
    let mut receiver = socket.split().0.place(placing(50)).unwrap();
    let sender = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 0))).unwrap();
    for first in [0, 50, 100] {
        send_numbers(&sender, to, (first..first + 50).rev());
        let chunk = receive_chunk(&mut receiver);
        assert_eq!((chunk.first(), chunk.filled()), (first, 50));
    }
    send_numbers(&sender, to, [150]);
    receive_rows(&mut receiver, 151);
    assert_eq!(receiver.finish().unwrap().filled(), 1);
    let ledger = receiver.ledger();
    assert_eq!(ledger.bytes_of(Evidence::Copied(Cause::Gathered)), 151 * ROW_BYTES as u64);
    assert_eq!(ledger.bytes() - 151 * ROW_BYTES as u64, 151 * DATAGRAM_BYTES as u64, "{ledger}");
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn chunks_are_received_in_a_tokio_program() {
    let (receiver, to) = bind_and_place(Socket::builder(), placing(3));
    let mut receiver = receiver.into_async().unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    send_numbers(&sender, to, [0, 1]);
    let receive = async {
        let sent = std::thread::spawn(move || send_numbers(&sender, to, [2]));
        loop {
            if let Some(chunk) = receiver.receive().await.unwrap() {
                sent.join().unwrap();
                return chunk;
            }
        }
    };
    let chunk = tokio::time::timeout(PATIENCE, receive).await.expect("in time");
    check_rows(&chunk);
    assert_eq!(chunk.filled(), 3);
}

/// A burst as one packet, and other datagrams one by one, in an order from a seed.
struct DisturbedSender {
    bursts: Socket,
    single: UdpSocket,
    to: SocketAddr,
    random: u64,
    next: u64,
    sent: u64,
}

impl DisturbedSender {
    fn new(to: SocketAddr, seed: u64) -> Self {
        let mut bursts = Socket::builder().method(Method::Gso).bind("127.0.0.1:0").unwrap();
        bursts.connect(to).unwrap();
        let single = UdpSocket::bind("127.0.0.1:0").unwrap();
        Self { bursts, single, to, random: seed, next: 0, sent: 0 }
    }

    /// Knuth's generator.
    fn below(&mut self, end: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % end
    }

    fn send_burst(&mut self, numbers: impl ExactSizeIterator<Item = u64>) {
        self.sent += numbers.len() as u64;
        let mut burst = vec![0; numbers.len() * DATAGRAM_BYTES];
        burst
            .chunks_mut(DATAGRAM_BYTES)
            .zip(numbers)
            .for_each(|(datagram, number)| write_datagram(number, datagram));
        self.bursts.sender().send(Message::segments(Buffer::from(burst), DATAGRAM_BYTES)).unwrap();
        self.bursts.sender().flush().unwrap();
    }

    fn send_next(&mut self, rows: u64) {
        let (count, at) = (1 + self.below(40), self.next);
        match self.below(18) {
            0 => self.next += self.below(10),
            1 => self.next -= self.below(20).min(at),
            2 => self.next += self.below(100 * rows),
            3 => self.next = 0,
            4 => {
                send_numbers(&self.single, self.to, [at + count]);
                self.sent += 1;
            }
            5 => {
                // Too short, or too long.
                let bytes = [0; 2 * DATAGRAM_BYTES];
                let length = self.below(bytes.len() as u64) as usize;
                self.single.send_to(&bytes[..length], self.to).unwrap();
                self.sent += 1;
            }
            6 => self.send_burst((0..count as usize).map(|back| at + 40 - back as u64)),
            7..13 => {
                self.send_burst((0..count as usize).map(|ahead| at + ahead as u64));
                self.next += count;
            }
            _ => {
                send_numbers(&self.single, self.to, at..at + count);
                self.next += count;
                self.sent += count;
            }
        }
    }
}

#[test]
fn every_datagram_is_placed_or_counted() {
    for seed in 0..48 {
        let (ring, rows) = (1 + seed as usize % 4, [1, 7, 64, 300][seed as usize / 4 % 4]);
        let (mut receiver, to) = bind_and_place(Socket::builder(), placing(rows).ring(ring));
        let mut sender = DisturbedSender::new(to, seed);
        let (mut kept, mut filled) = (Vec::new(), 0);
        let mut take = |chunk: PlacedChunk| {
            check_rows(&chunk);
            filled += chunk.filled() as u64;
            chunk
        };
        for _ in 0..150 {
            sender.send_next(rows as u64);
            match sender.below(12) {
                0 => kept.extend(receiver.finish().map(&mut take)),
                1 => std::iter::from_fn(|| receiver.finish()).for_each(|chunk| drop(take(chunk))),
                2..7 => match receiver.try_receive() {
                    Ok(chunk) => kept.extend(chunk.map(&mut take)),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}"),
                },
                7..10 => kept.clear(),
                _ => {}
            }
            kept.iter().for_each(check_rows);
        }
        kept.clear();
        while receiver.arm().unwrap() {
            receiver.try_receive().unwrap().map(&mut take);
        }
        std::iter::from_fn(|| receiver.finish()).for_each(|chunk| drop(take(chunk)));
        let stats = receiver.stats();
        assert_eq!(stats.moved, filled, "{stats}");
        let counted = ["late", "strays", "short", "long", "double"].map(|name| stats.get(name).unwrap());
        assert_eq!(stats.get("sk_drops").unwrap_or(0), 0, "the receive buffer was too small");
        assert_eq!(counted.iter().sum::<u64>() + filled, sender.sent, "seed {seed}: {stats}");
    }
}
