//! Random messages by every method: each datagram arrives unchanged, each message returns once, and the
//! ledger balances.

use nocopy_lab::patience::PATIENCE;
use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};

use nocopy::udp::{Message, Method, Sender, Socket};
use nocopy::{Buffer, Evidence, Pool, Ticket};

use crate::common::methods::available_methods;

const LOOPBACK: &str = "127.0.0.1:0";
const ROUNDS: usize = 250;
/// The bytes of one round that fit the receivers' buffers, however small the datagrams are.
const ROUND_BYTES: usize = 100_000;
const ROUND_DATAGRAMS: usize = 120;

/// The policy's choice, and every method alone.
const METHODS: [Option<Method>; 8] = [
    None,
    Some(Method::Socket),
    Some(Method::SendMmsg),
    Some(Method::Gso),
    Some(Method::ZeroCopy),
    Some(Method::ZeroCopyGso),
    Some(Method::UringZeroCopy),
    Some(Method::UringZeroCopyGso),
];

/// xorshift64*.
struct RandomNumbers(u64);

impl RandomNumbers {
    fn next_random(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn random_below(&mut self, end: usize) -> usize {
        (self.next_random() % end as u64) as usize
    }

    fn random_bytes(&mut self, count: usize) -> Vec<u8> {
        let first = self.next_random();
        (0..count as u64).map(|place| (first + place * 7 + (place >> 8)) as u8).collect()
    }

    /// Short ones, those of a full packet, and sometimes the longest.
    fn random_datagram_bytes(&mut self) -> usize {
        match self.random_below(40) {
            0 => 0,
            1 => 65_507,
            2..12 => self.random_below(100),
            12..20 => self.random_below(9000),
            _ => 1 + self.random_below(1472),
        }
    }
}

struct SendModel {
    random: RandomNumbers,
    pool: Pool,
    receivers: Vec<UdpSocket>,
    expected: Vec<Vec<Vec<u8>>>,
    /// The bytes of each message that has not returned.
    away: HashMap<Ticket, Vec<u8>>,
    datagrams: u64,
    bytes: u64,
}

impl SendModel {
    fn new(seed: u64) -> Self {
        let receiver = |_| {
            let receiver = UdpSocket::bind(LOOPBACK).unwrap();
            socket2::SockRef::from(&receiver).set_recv_buffer_size(4 << 20).unwrap();
            receiver.set_read_timeout(Some(PATIENCE)).unwrap();
            receiver
        };
        Self {
            random: RandomNumbers(seed),
            // Less than a huge page. For registered memory on huge pages the kernel charges each datagram of
            // a ring with up to 2 MiB (`io_sg_from_iter`), and three would fill a receiver's buffer.
            pool: Pool::new(24, 64 << 10).unwrap(),
            receivers: (0..3).map(receiver).collect(),
            expected: vec![Vec::new(); 3],
            away: HashMap::new(),
            datagrams: 0,
            bytes: 0,
        }
    }

    fn pool_or_own_buffer(&mut self, sender: &mut Sender, bytes: &[u8]) -> Buffer {
        let own = self.random.random_below(3) > 0;
        match sender.buffer().filter(|_| own) {
            Some(mut buffer) => {
                buffer.fill(bytes).expect("fits");
                buffer.freeze()
            }
            None => bytes.to_vec().into(),
        }
    }

    fn random_message(&mut self, sender: &mut Sender, room: usize) -> (Message, Vec<u8>, usize) {
        let datagram_bytes = self.random.random_datagram_bytes().min(room);
        match self.random.random_below(3) {
            0 if (1..=room / 2).contains(&datagram_bytes) => {
                let most = (room / datagram_bytes).min(ROUND_DATAGRAMS / 2) * datagram_bytes;
                let total = (1 + self.random.random_below(most)).min(64 << 10);
                let bytes = self.random.random_bytes(total);
                (
                    Message::segments(self.pool_or_own_buffer(sender, &bytes), datagram_bytes),
                    bytes,
                    datagram_bytes,
                )
            }
            1 => {
                let bytes = self.random.random_bytes(datagram_bytes);
                let (head, tail) = bytes.split_at(self.random.random_below(datagram_bytes + 1));
                let pieces = [self.pool_or_own_buffer(sender, head), self.pool_or_own_buffer(sender, tail)];
                (Message::from_iter(pieces), bytes, datagram_bytes)
            }
            _ => {
                let bytes = self.random.random_bytes(datagram_bytes);
                (self.pool_or_own_buffer(sender, &bytes).into(), bytes, datagram_bytes)
            }
        }
    }

    fn queue_random_messages(&mut self, sender: &mut Sender) {
        let (mut room, mut left) = (ROUND_BYTES, ROUND_DATAGRAMS);
        let like_the_last = self.random.random_below(2) == 0;
        let mut to = self.random.random_below(self.receivers.len());
        for _ in 0..=self.random.random_below(24) {
            if !like_the_last {
                to = self.random.random_below(self.receivers.len());
            }
            let (message, bytes, datagram_bytes) = self.random_message(sender, room);
            let datagrams = bytes.len().div_ceil(datagram_bytes.max(1)).max(1);
            if datagrams > left {
                break;
            }
            (room, left) = (room - bytes.len(), left - datagrams);
            (self.datagrams, self.bytes) =
                (self.datagrams + datagrams as u64, self.bytes + bytes.len() as u64);
            match datagrams {
                1 => self.expected[to].push(bytes.clone()),
                _ => self.expected[to].extend(bytes.chunks(datagram_bytes).map(<[u8]>::to_vec)),
            }
            let ticket = sender.send_to(message, self.receivers[to].local_addr().unwrap()).unwrap();
            assert!(self.away.insert(ticket, bytes).is_none());
        }
    }

    /// In the order of sending, except that with a ring some may overtake others.
    fn receive_and_check(&mut self, method: Option<Method>) {
        let in_order = !matches!(method, None | Some(Method::UringZeroCopy | Method::UringZeroCopyGso));
        let mut room = vec![0; 1 << 16];
        for (receiver, expected) in self.receivers.iter().zip(&mut self.expected) {
            let mut got = Vec::new();
            while got.len() < expected.len() {
                match receiver.recv(&mut room) {
                    Ok(bytes) => got.push(room[..bytes].to_vec()),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => panic!("{method:?}: {} of {} ({error})", got.len(), expected.len()),
                }
            }
            if !in_order {
                got.sort_unstable();
                expected.sort_unstable();
            }
            assert!(got == *expected, "{method:?}: as they were sent");
            expected.clear();
        }
    }

    fn take_back_completed(&mut self, sender: &mut Sender) {
        while let Some(done) = sender.completed() {
            let bytes = self.away.remove(&done.ticket).expect("comes back once");
            let back: Vec<u8> = done.item.pieces().iter().flat_map(|piece| piece.iter().copied()).collect();
            assert!(back == bytes, "untouched");
            done.item.into_iter().for_each(|buffer| sender.recycle(buffer));
        }
    }
}

#[test]
fn every_send_arrives_returns_and_is_recorded_once() {
    for (number, method) in available_methods(METHODS).enumerate() {
        let mut model = SendModel::new(0x9e37_79b9 + number as u64);
        let builder = Socket::builder().send_pool(&model.pool).receive_pool(&model.pool).return_buffers(true);
        let builder = method.map_or(builder.clone(), |method| builder.method(method));
        let mut socket = builder.bind(LOOPBACK.parse::<SocketAddr>().unwrap()).unwrap();
        let sender = socket.sender();
        for _ in 0..ROUNDS {
            model.queue_random_messages(sender);
            if model.random.random_below(2) == 0 {
                let _ = sender.try_flush().unwrap();
            }
            sender.flush().unwrap();
            model.receive_and_check(method);
            model.take_back_completed(sender);
        }
        assert!(sender.drain(PATIENCE).unwrap(), "{method:?}: {} in flight", sender.in_flight());
        model.take_back_completed(sender);
        assert!(model.away.is_empty(), "{method:?}: {} never came back", model.away.len());
        let (tally, counters) = (sender.ledger(), sender.stats());
        assert_eq!((tally.datagrams(), tally.bytes()), (model.datagrams, model.bytes), "{method:?}: {tally}");
        assert_eq!(
            (counters.moved, counters.get("refused").unwrap(), counters.get("unknown_completions").unwrap()),
            (model.datagrams, 0, 0),
            "{method:?}"
        );
        assert_eq!(tally.bytes_of(Evidence::ZeroCopy), 0, "{method:?}: over loopback all is copied: {tally}");
        drop(socket);
        assert_eq!(model.pool.available(), model.pool.total(), "{method:?}");
    }
}
