//! Both ways of datagrams into rows, from real sockets.

use std::net::UdpSocket;

use super::*;
use crate::memory::pool::Pool;
use crate::sys::udp_receive::set_segment_bytes;
use crate::udp::{Receiver, Socket};

const ROW_BYTES: usize = 50;
const ROWS: usize = 100;

/// Datagrams of different lengths, each with its number in every byte.
#[derive(Default)]
struct Sent {
    datagrams: Vec<Vec<u8>>,
    next: u8,
}

impl Sent {
    fn next_datagram(&mut self, bytes: usize) -> Vec<u8> {
        self.next = self.next.wrapping_add(1);
        let datagram = vec![self.next; bytes];
        self.datagrams.push(datagram.clone());
        datagram
    }

    fn send_single(&mut self, to: &UdpSocket, bytes: usize) {
        assert_eq!(to.send(&self.next_datagram(bytes)).unwrap(), bytes);
    }

    /// So many datagrams as one burst of the kernel, and a last one that may be shorter.
    fn send_burst(&mut self, to: &UdpSocket, count: usize, bytes: usize, last: usize) {
        let mut burst: Vec<u8> = (0..count).flat_map(|_| self.next_datagram(bytes)).collect();
        if last > 0 {
            burst.extend(self.next_datagram(last));
        }
        set_segment_bytes(to, bytes as u16);
        assert_eq!(to.send(&burst).unwrap(), burst.len());
        set_segment_bytes(to, 0);
    }
}

struct Rig {
    receiver: Receiver,
    sender: UdpSocket,
    memory: BufferMut,
    rows: RowFiller,
    stride: usize,
    copied: usize,
}

impl Rig {
    fn new(method: RowMethod, stride: usize) -> Self {
        let socket = Socket::builder().receive_buffer(1 << 20).bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(socket.local_addr().unwrap()).unwrap();
        let mut memory = Pool::new(1, ROWS * stride).unwrap().take().unwrap();
        memory.resize(ROWS * stride - (stride - ROW_BYTES)); // nothing lies behind the last row
        let mut rows = RowFiller::with_stride(ROW_BYTES, stride);
        rows.chooser = RowMethodChooser::new(ROW_BYTES, &[method]);
        Self { receiver: socket.split().0, sender, memory, rows, stride, copied: 0 }
    }

    /// Everything that waits: of each datagram its length, and what of it a row has.
    fn receive_all(&mut self) -> Vec<(usize, Vec<u8>)> {
        let mut all = Vec::new();
        while self.receiver.receive_into(&mut self.memory, &mut self.rows, Some(Duration::ZERO)).unwrap() > 0
        {
            self.copied += self.rows.copied_bytes();
            for (row, filled) in self.rows.filled().iter().enumerate() {
                assert_eq!(filled.source, self.sender.local_addr().unwrap());
                let bytes = &self.memory[row * self.stride..][..filled.bytes.min(ROW_BYTES)];
                all.push((filled.bytes, bytes.to_vec()));
            }
        }
        assert_eq!(self.receiver.stats().get("sk_drops").unwrap_or(0), 0, "the receive buffer was too small");
        all
    }
}

/// What rows have of datagrams.
fn expected(sent: &Sent) -> Vec<(usize, Vec<u8>)> {
    let row = |datagram: &Vec<u8>| (datagram.len(), datagram[..datagram.len().min(ROW_BYTES)].to_vec());
    sent.datagrams.iter().map(row).collect()
}

#[test]
fn bursts_of_rows_are_received_straight_into_them() {
    let mut rig = Rig::new(RowMethod::Straight, ROW_BYTES);
    let (mut sent, mut received) = (Sent::default(), Vec::new());
    for _ in 0..50 {
        (0..5).for_each(|_| sent.send_burst(&rig.sender, 20, ROW_BYTES, 0));
        received.extend(rig.receive_all());
    }
    assert!(received == expected(&sent), "{} of {}", received.len(), sent.datagrams.len());
    // The first call does not know how long bursts are, and some are copied back and forth.
    assert!(rig.copied <= 2 * 5 * 20 * ROW_BYTES, "{} bytes were copied again", rig.copied);
}

#[test]
fn single_datagrams_are_received_straight_into_rows() {
    for stride in [ROW_BYTES, ROW_BYTES + 7] {
        let mut rig = Rig::new(RowMethod::Straight, stride);
        let (mut sent, mut received) = (Sent::default(), Vec::new());
        for length in 0..2 * ROW_BYTES {
            sent.send_single(&rig.sender, length);
            if length % 10 == 0 {
                received.extend(rig.receive_all());
            }
        }
        received.extend(rig.receive_all());
        assert!(received == expected(&sent), "stride {stride}");
        assert_eq!(rig.copied, 0, "stride {stride}");
    }
}

/// The same datagrams by both methods: bursts of all lengths, datagrams shorter and longer than rows, and
/// more of them than there are rows.
#[test]
fn both_methods_fill_the_same_rows() {
    for (method, stride) in [
        (RowMethod::ByBuffer, ROW_BYTES),
        (RowMethod::Straight, ROW_BYTES),
        (RowMethod::Straight, ROW_BYTES + 7),
    ] {
        let mut rig = Rig::new(method, stride);
        let (mut sent, mut received) = (Sent::default(), Vec::new());
        let mut state = stride as u64;
        let mut random = |below: u64| {
            // Knuth's generator.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % below) as usize
        };
        for _ in 0..1500 {
            let count = 1 + random(40);
            match random(8) {
                0 => sent.send_single(&rig.sender, random(3 * ROW_BYTES as u64)),
                1 => sent.send_burst(&rig.sender, count, 1 + random(3 * ROW_BYTES as u64), 0),
                2 => (0..count).for_each(|_| sent.send_single(&rig.sender, ROW_BYTES)),
                3 => sent.send_burst(&rig.sender, count, ROW_BYTES, random(ROW_BYTES as u64)),
                _ => sent.send_burst(&rig.sender, 20, ROW_BYTES, 0),
            }
            if random(3) == 0 {
                received.extend(rig.receive_all());
            }
        }
        received.extend(rig.receive_all());
        assert_eq!(received.len(), sent.datagrams.len(), "{method}, stride {stride}");
        assert!(received == expected(&sent), "{method}, stride {stride}");
        assert!(rig.copied > 0);
    }
}

#[test]
fn gaps_between_rows_are_not_written() {
    let stride = ROW_BYTES + 7;
    let mut rig = Rig::new(RowMethod::Straight, stride);
    rig.memory[..].fill(0xee);
    let mut sent = Sent::default();
    for _ in 0..10 {
        sent.send_burst(&rig.sender, 20, ROW_BYTES, 0);
        sent.send_burst(&rig.sender, 3, ROW_BYTES + 5, 0);
        rig.receive_all();
    }
    let gaps = rig.memory.chunks(stride).filter_map(|row| row.get(ROW_BYTES..));
    assert!(gaps.flatten().all(|byte| *byte == 0xee));
}

#[test]
fn datagrams_beyond_the_rows_come_with_the_next_call() {
    let mut rig = Rig::new(RowMethod::Straight, ROW_BYTES);
    rig.memory.resize(3 * ROW_BYTES + ROW_BYTES / 2); // a half row is none
    let mut sent = Sent::default();
    sent.send_burst(&rig.sender, 10, ROW_BYTES, 5);
    assert!(rig.receive_all() == expected(&sent));
    rig.memory.resize(0);
    assert_eq!(rig.receiver.receive_into(&mut rig.memory, &mut rig.rows, None).unwrap(), 0);
}
