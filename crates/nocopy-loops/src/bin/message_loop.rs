//! Counts the instructions of a message. `cargo xtask instructions` runs this under callgrind, collects only
//! inside the functions named `measured_*`, and divides by the messages. The count includes sending,
//! receiving and acknowledging at both ends, and no work of the kernel.
//!
//! The loops by hand are the lower limit: they move the same bytes by the same socket, find the connection,
//! and check that the packet is the next one. They keep nothing for retransmission, measure no time, have no
//! window, and expect packets from one peer only.
#![allow(missing_docs)]
#![expect(unsafe_code, reason = "a clock in place of the C library's")]

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nocopy::Buffer;
use nocopy::message::{Endpoint, Event, Message, Payload, Peer};

const BATCH: u32 = 64;
const MESSAGE: [u8; 64] = [7; 64];
/// A long message, sent in place.
static BULK: [u8; 1 << 20] = [7; 1 << 20];

/// The number of peers in the loop with many, and in the one that it is compared with.
const MANY: usize = 10_000;
const FEW: usize = 10;

/// Longer than any loop takes.
const SILENCE: Duration = Duration::from_secs(100_000);

/// How long a connection may take to be made.
const PATIENCE: Duration = Duration::from_secs(60);

struct EndpointPair {
    endpoints: [Endpoint; 2],
    /// What each endpoint calls the other, for each connection between the two.
    peers: Vec<[Peer; 2]>,
    /// The connection whose turn it is.
    turn: usize,
}

/// A connection of a loop by hand.
#[derive(Clone, Copy)]
struct HandWrittenConnection {
    id: u64,
    to: SocketAddr,
    next_sent: u32,
    next_received: u32,
}

/// Two sockets, and a connection between them for each peer.
struct HandWrittenSocketPair {
    sockets: [UdpSocket; 2],
    connections: [Vec<HandWrittenConnection>; 2],
    packet: [u8; 2048],
}

/// How far time goes on with each look at the clock: about as far as it does under callgrind, so that answers
/// of peers who have nothing more to say are acknowledged by packets of their own.
const CLOCK_STEP_NS: i64 = 20_000;

/// The clock of this program in place of the C library's: what is due is due at the same message in each run,
/// however long the machine takes.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(_clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    static CLOCK_READS: AtomicI64 = AtomicI64::new(0);
    let ns = 1_000_000_000 + CLOCK_READS.fetch_add(1, Relaxed) * CLOCK_STEP_NS;
    // SAFETY: who looks at the clock gives a place for the time.
    unsafe { time.write(libc::timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 }) };
    0
}

const HEADER_BYTES: usize = 32;
const PREFIX_BYTES: usize = 4;

impl HandWrittenSocketPair {
    fn new() -> Self {
        let sockets =
            [0, 1].map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("an address of this host"));
        let connection = |other: usize| {
            let to = sockets[other].local_addr().expect("bound");
            vec![HandWrittenConnection { id: 7 << 20, to, next_sent: 1, next_received: 1 }]
        };
        Self { connections: [connection(1), connection(0)], sockets, packet: [0; 2048] }
    }

    #[inline]
    fn send_packet(&mut self, from: usize, messages: usize) {
        let connection = &mut self.connections[from][0];
        let (header, mut room) = self.packet.split_at_mut(HEADER_BYTES);
        header[0] = 1;
        header[4..12].copy_from_slice(&connection.id.to_be_bytes());
        header[12..16].copy_from_slice(&connection.next_sent.to_be_bytes());
        header[16..20].copy_from_slice(&connection.next_received.to_be_bytes());
        connection.next_sent += 1;
        for _ in 0..messages {
            let (message, behind) = room.split_at_mut(PREFIX_BYTES + MESSAGE.len());
            message[..PREFIX_BYTES].copy_from_slice(&(MESSAGE.len() as u32).to_be_bytes());
            message[PREFIX_BYTES..].copy_from_slice(black_box(&MESSAGE));
            room = behind;
        }
        let bytes = HEADER_BYTES + messages * (PREFIX_BYTES + MESSAGE.len());
        let sent = self.sockets[from].send_to(&self.packet[..bytes], connection.to);
        assert_eq!(sent.expect("a working network"), bytes);
    }

    /// Receives a packet, and returns how many messages it holds.
    #[inline]
    fn receive_packet(&mut self, at: usize) -> usize {
        let (bytes, from) = self.sockets[at].recv_from(&mut self.packet).expect("a working network");
        let packet = &self.packet[..bytes];
        let number = |place: usize| u32::from_be_bytes(*packet[place..].first_chunk().expect("long enough"));
        let id = u64::from_be_bytes(*packet[4..].first_chunk().expect("long enough"));
        let connection = &mut self.connections[at][id as usize & 0xf_ffff];
        assert!(connection.id == id && connection.to == from && packet[0] == 1, "of the connection");
        assert!(number(12) == connection.next_received && number(16) <= connection.next_sent, "the next");
        connection.next_received += 1;
        let (mut rest, mut messages) = (&packet[HEADER_BYTES..], 0);
        while let Some((prefix, behind)) = rest.split_first_chunk() {
            let (message, behind) = behind.split_at(u32::from_be_bytes(*prefix) as usize);
            assert_eq!(message, MESSAGE);
            (rest, messages) = (behind, messages + 1);
        }
        messages
    }
}

/// Sends one message back and forth at a time.
#[inline(never)]
fn measured_round_trips_by_hand(pair: &mut HandWrittenSocketPair) {
    for _ in 0..BATCH / 2 {
        for (from, to) in [(0, 1), (1, 0)] {
            pair.send_packet(from, 1);
            assert_eq!(pair.receive_packet(to), 1);
        }
    }
}

/// One way, with as many messages in a packet as fit.
#[inline(never)]
fn measured_one_way_messages_by_hand(pair: &mut HandWrittenSocketPair) {
    let mut left = BATCH as usize;
    while left > 0 {
        let messages = left.min(20);
        pair.send_packet(0, messages);
        assert_eq!(pair.receive_packet(1), messages);
        left -= messages;
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let which = arguments.next().unwrap_or_else(|| "all".into());
    let batches: u32 = arguments.next().map_or(100, |count| count.parse().expect("a number of batches"));
    for (name, work) in [
        ("message-alone-by-hand", measured_round_trips_by_hand as fn(&mut HandWrittenSocketPair)),
        ("message-packed-by-hand", measured_one_way_messages_by_hand),
    ] {
        if which == name || which == "all" {
            let mut pair = HandWrittenSocketPair::new();
            (0..batches).for_each(|_| work(&mut pair));
            println!("{name}: {} messages", batches * BATCH);
        }
    }
    for (name, work, peers) in [
        ("message-alone", measured_round_trips as fn(&mut EndpointPair), 1),
        ("message-many-peers", measured_round_trips, MANY),
        ("message-few-peers", measured_round_trips, FEW),
        ("message-packed", measured_one_way_messages, 1),
        ("message-packed-single", measured_messages_received_singly, 1),
        ("message-bulk", measured_long_messages, 1),
    ] {
        if which == name || which == "all" {
            let mut pair = connect_endpoints(peers);
            let before = pair.messages_received();
            for _ in 0..batches {
                work(&mut pair);
            }
            let received = pair.messages_received() - before;
            assert_eq!(received, u64::from(batches * BATCH), "{name} did not do the work");
            println!("{name}: {received} messages");
        }
    }
}

impl EndpointPair {
    fn messages_received(&self) -> u64 {
        self.endpoints.iter().map(|endpoint| endpoint.stats().get("messages_received").unwrap()).sum()
    }
}

fn connect_endpoints(peers: usize) -> EndpointPair {
    // How often silent peers are asked would depend on how long the machine takes for the loop.
    let builder = || Endpoint::builder().keep_alive(SILENCE).dead_after(2 * SILENCE);
    let bind = || builder().bind((Ipv4Addr::LOCALHOST, 0)).expect("an address of this host");
    let (mut client, mut server) = (bind(), bind());
    let mut pairs = Vec::new();
    for _ in 0..peers {
        let to_server = client.start_connect(server.local_addr()).expect("a place");
        let (mut to_client, mut is_told) = (None, false);
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            // Events that were left would end a wait for a message.
            is_told |= matches!(client.poll_event(), Some(Event::Connected(..)));
            if let Some(Event::Accepted(peer, _)) = server.poll_event() {
                to_client = Some(peer);
            }
            if is_told && to_client.is_some() {
                break;
            }
            client.wait(Duration::ZERO).expect("a working network");
            server.wait(Duration::ZERO).expect("a working network");
        }
        assert!(is_told, "connected in time");
        pairs.push([to_server, to_client.expect("accepted in time")]);
    }
    let mut pair = EndpointPair { endpoints: [client, server], peers: pairs, turn: 0 };
    // With the first messages memory is taken and the way is measured, once for each connection; the loop may
    // be too short to come to a connection twice.
    (0..peers).for_each(|_| exchange_message_and_answer(&mut pair));
    pair
}

/// There and back, one at a time, to one peer after the other.
#[inline(never)]
fn measured_round_trips(pair: &mut EndpointPair) {
    (0..BATCH / 2).for_each(|_| exchange_message_and_answer(pair));
}

/// There and back, to the peer whose turn it is.
#[inline(always)] // or it would be counted where it is not to be, too
fn exchange_message_and_answer(pair: &mut EndpointPair) {
    let peers = pair.peers[pair.turn];
    pair.turn = (pair.turn + 1) % pair.peers.len();
    for (from, to) in [(0, 1), (1, 0)] {
        let peer = peers[from];
        pair.endpoints[from].send_copy_to(black_box(&MESSAGE), peer).expect("room");
        pair.endpoints[from].flush().expect("a working network");
        let message = pair.endpoints[to].receive_timeout(Duration::from_secs(1)).expect("a working network");
        assert_eq!(message.expect("it came").as_slice(), Some(&MESSAGE[..]));
    }
}

/// One way, as many messages as fit in a packet.
#[inline(never)]
fn measured_one_way_messages(pair: &mut EndpointPair) {
    send_batch(pair);
    let [client, server] = &mut pair.endpoints;
    let mut left = BATCH as usize;
    while left > 0 {
        // One thread for both: while the one waits, the other would not hear that it may go on.
        assert!(
            client.try_receive().expect("a working network").is_none(),
            "it has only acknowledgements to take"
        );
        let read = |message: Message<'_>| assert_eq!(message.as_slice(), Some(&MESSAGE[..]));
        left -= server.try_receive_each(read).expect("a working network");
    }
}

#[inline]
fn send_batch(pair: &mut EndpointPair) {
    let (client, peer) = (&mut pair.endpoints[0], pair.peers[0][0]);
    for _ in 0..BATCH {
        client.send_copy_to(black_box(&MESSAGE), peer).expect("room");
    }
    client.flush().expect("a working network");
}

#[inline(never)]
fn measured_messages_received_singly(pair: &mut EndpointPair) {
    send_batch(pair);
    let [client, server] = &mut pair.endpoints;
    let mut left = BATCH;
    while left > 0 {
        // One thread for both: while one end waits, the other could not be woken.
        assert!(
            client.try_receive().expect("a working network").is_none(),
            "it has only acknowledgements to take"
        );
        while let Some(message) = server.try_receive().expect("a working network") {
            assert_eq!(message.as_slice(), Some(&MESSAGE[..]));
            left -= 1;
        }
    }
}

/// One way, long messages that are sent in place.
#[inline(never)]
fn measured_long_messages(pair: &mut EndpointPair) {
    let [client, server] = &mut pair.endpoints;
    let (mut sent, mut received) = (0, 0);
    let mut message = Payload::from(Buffer::from_owner(BULK));
    while received < BATCH {
        if sent < BATCH {
            let Err(rejected) = client.send_to(message, pair.peers[0][0]) else {
                sent += 1;
                message = Buffer::from_owner(BULK).into();
                continue;
            };
            message = rejected.item;
        }
        assert!(client.try_receive().expect("a working network").is_none());
        while let Some(message) = server.try_receive().expect("a working network") {
            assert_eq!(message.pieces().map(|piece| black_box(piece).len()).sum::<usize>(), BULK.len());
            received += 1;
        }
    }
}
