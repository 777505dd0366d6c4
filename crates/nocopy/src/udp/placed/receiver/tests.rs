//! Both ways of rows into chunks, from real sockets.

use std::net::UdpSocket;

use super::super::placer::PlacedCounters;
use super::super::settings::Field;
use super::*;
use crate::sys::udp_receive::set_segment_bytes;
use crate::udp::Socket;
use crate::udp::row_method::RowMethod;

const HEADER_BYTES: usize = 8;
const ROW_BYTES: usize = 40;
const DATAGRAM_BYTES: usize = HEADER_BYTES + ROW_BYTES;

/// A receiver that always uses one method, and a socket that sends to it.
fn receiver_and_sender(method: RowMethod, rows: usize) -> (PlacedReceiver, UdpSocket) {
    let socket = Socket::builder().receive_buffer(1 << 20).bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(socket.local_addr().unwrap()).unwrap();
    let placing = Placing::by_number(Field::little_endian(0, 8)).shape(rows, ROW_BYTES);
    let mut receiver = socket.split().0.place(placing).unwrap();
    let NonblockingPlacedReceiver { source: Left(kernel), placer, .. } = &mut receiver.0 else {
        panic!("a kernel's socket")
    };
    kernel.pin(method, placer);
    (receiver, sender)
}

fn datagram(number: u64) -> [u8; DATAGRAM_BYTES] {
    let mut datagram = [0; DATAGRAM_BYTES];
    datagram.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&number.to_le_bytes()));
    datagram
}

fn send(sender: &UdpSocket, bytes: &[u8]) {
    assert_eq!(sender.send(bytes).unwrap(), bytes.len());
}

fn send_single(sender: &UdpSocket, number: u64) {
    send(sender, &datagram(number));
}

/// As one burst of the kernel.
fn send_burst(sender: &UdpSocket, numbers: impl IntoIterator<Item = u64>) {
    let burst: Vec<u8> = numbers.into_iter().flat_map(datagram).collect();
    set_segment_bytes(sender, DATAGRAM_BYTES as u16);
    assert_eq!(sender.send(&burst).unwrap(), burst.len());
    set_segment_bytes(sender, 0);
}

fn check_rows(chunk: &PlacedChunk) {
    for (number, (row, present)) in (chunk.first()..).zip(chunk.chunks(ROW_BYTES).zip(chunk.present())) {
        let expected = if *present { number.to_le_bytes() } else { [0; 8] };
        assert!(row.chunks(8).all(|part| part == expected), "row {number}: {row:?}");
    }
}

/// What is there, without waiting: loopback delivers at once.
fn receive_all(receiver: &mut PlacedReceiver) -> Vec<(u64, Vec<bool>)> {
    let chunks = std::iter::from_fn(|| receiver.try_receive().unwrap());
    chunks.inspect(check_rows).map(|chunk| (chunk.first(), chunk.present().to_vec())).collect()
}

fn gathered_rows(receiver: &PlacedReceiver) -> u64 {
    receiver.ledger().bytes_of(Evidence::Copied(Cause::Gathered)) / ROW_BYTES as u64
}

#[test]
fn single_datagrams_are_received_straight_into_their_rows() {
    let (mut receiver, sender) = receiver_and_sender(RowMethod::Straight, 50);
    let mut received = Vec::new();
    for number in 0..500 {
        send_single(&sender, number);
        if number % 7 == 0 {
            received.extend(receive_all(&mut receiver));
        }
    }
    received.extend(receive_all(&mut receiver));
    assert_eq!(received, (0..10).map(|chunk| (chunk * 50, vec![true; 50])).collect::<Vec<_>>());
    // The first datagram shows where the next ones belong; at the end of a chunk some go to a buffer.
    let copied = gathered_rows(&receiver);
    assert!((1..100).contains(&copied), "{copied} of 500 rows were copied again");
    assert_eq!(receiver.ledger().bytes_of(Evidence::Copied(Cause::SocketCall)), 500 * DATAGRAM_BYTES as u64);
}

#[test]
fn bursts_of_one_length_are_received_straight_into_their_rows() {
    let (mut receiver, sender) = receiver_and_sender(RowMethod::Straight, 1000);
    let mut received = Vec::new();
    for burst in 0..100 {
        send_burst(&sender, burst * 20..(burst + 1) * 20);
        if burst % 3 == 0 {
            received.extend(receive_all(&mut receiver));
        }
    }
    received.extend(receive_all(&mut receiver));
    assert_eq!(received, [(0, vec![true; 1000]), (1000, vec![true; 1000])]);
    // The first burst is copied from its buffer, and shows the length of the others: then all are straight,
    // except what is left of a chunk in the middle of a call.
    let copied = gathered_rows(&receiver);
    assert!((20..200).contains(&copied), "{copied} of 2000 rows were copied again");
}

/// The same datagrams by both methods, with every disturbance.
#[test]
fn both_methods_return_the_same_chunks_and_counters() {
    let mut all = PlacedCounters::default();
    for rows in [7, 64, 300] {
        let both = [RowMethod::ByBuffer, RowMethod::Straight].map(|method| {
            let (mut receiver, sender) = receiver_and_sender(method, rows);
            let mut received = Vec::new();
            let (mut state, mut next) = (rows as u64, 0_u64);
            let mut random = |below: u64| {
                // Knuth's generator.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            for _ in 0..1500 {
                let count = 1 + random(40);
                match random(16) {
                    0 => next += random(10),
                    1 => next -= random(20).min(next),
                    2 => next += random(100 * rows as u64),
                    3 => next = 0,
                    4 => send_single(&sender, next + random(30)),
                    5 => send(&sender, &datagram(next)[..random(48) as usize]),
                    6 => send(&sender, &[7; 60]),
                    7 => send_burst(&sender, (next..next + count).rev()),
                    8..12 => {
                        send_burst(&sender, next..next + count);
                        next += count;
                    }
                    _ => {
                        (next..next + count).for_each(|number| send_single(&sender, number));
                        next += count;
                    }
                }
                if random(2) == 0 {
                    received.extend(receive_all(&mut receiver));
                }
            }
            received.extend(receive_all(&mut receiver));
            let last = std::iter::from_fn(|| receiver.finish()).inspect(check_rows);
            received.extend(last.map(|chunk| (chunk.first(), chunk.present().to_vec())));
            assert_eq!(receiver.stats().get("sk_drops").unwrap_or(0), 0, "the receive buffer was too small");
            let counters = *receiver.placer.counters();
            (received, counters, receiver.stats().moved)
        });
        let [by_buffer, straight] = both;
        assert_eq!(by_buffer, straight, "{rows} rows");
        assert!(by_buffer.0.len() > 20 && by_buffer.2 > 5000, "{} rows", by_buffer.2);
        all += by_buffer.1;
    }
    let is_each_seen =
        [all.short, all.long, all.double, all.late, all.restarts].iter().all(|count| *count > 0);
    assert!(is_each_seen, "{all:?}");
}

#[test]
fn the_explanation_names_the_method() {
    let (mut receiver, sender) = receiver_and_sender(RowMethod::Straight, 10);
    (0..100).for_each(|number| send_single(&sender, number));
    assert_eq!(receive_all(&mut receiver).len(), 10);
    let text = receiver.explain().to_string();
    assert!(text.contains("straight into rows"), "{text}");
}
