//! What a message costs the program, counted in instructions: `cargo xtask instructions` runs this under callgrind with collection on only
//! inside the functions named `measured_*`, and divides by the messages. All of a message is in it, sending, receiving and
//! acknowledging at both ends, but what the kernel does.
#![allow(missing_docs)]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;

use nocopy::Buffer;
use nocopy::message::{Endpoint, Event, Payload, Peer};

/// Messages in a batch.
const BATCH: u32 = 64;
const MESSAGE: [u8; 64] = [7; 64];
/// A long message, sent in place.
static BULK: [u8; 1 << 20] = [7; 1 << 20];

/// The number of peers in the test with many.
const MANY: usize = 10_000;

struct Pair {
    endpoints: [Endpoint; 2],
    /// What each endpoint calls the other, for each connection between the two.
    peers: Vec<[Peer; 2]>,
    /// The connection whose turn it is.
    turn: usize,
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let which = arguments.next().unwrap_or_else(|| "all".into());
    let batches: u32 = arguments.next().map_or(100, |count| count.parse().expect("a number of batches"));
    for (name, work, peers) in [
        ("message-alone", measured_conversation as fn(&mut Pair), 1),
        ("message-many-peers", measured_conversation, MANY),
        ("message-packed", measured_stream, 1),
        ("message-bulk", measured_bulk, 1),
    ] {
        if which == name || which == "all" {
            let mut pair = connect(peers);
            let before = pair.received();
            for _ in 0..batches {
                work(&mut pair);
            }
            let received = pair.received() - before;
            assert_eq!(received, u64::from(batches * BATCH), "{name} did not do the work");
            println!("{name}: {received} messages");
        }
    }
}

impl Pair {
    fn received(&self) -> u64 {
        self.endpoints.iter().map(|endpoint| endpoint.stats().expect("counted")["messages_received"]).sum()
    }
}

fn connect(peers: usize) -> Pair {
    let bind = || Endpoint::builder().bind((Ipv4Addr::LOCALHOST, 0).into()).expect("an address of this host");
    let (mut client, mut server) = (bind(), bind());
    let mut pairs = Vec::new();
    for _ in 0..peers {
        let to_server = client.start_connect(server.local_address()).expect("a place");
        let (mut to_client, mut is_told) = (None, false);
        for _ in 0..1000 {
            // Events that were left would end a wait for a message.
            is_told |= matches!(client.poll_event(), Some(Event::Connected(..)));
            if let Some(Event::Accepted(peer, _)) = server.poll_event() {
                to_client = Some(peer);
            }
            if is_told && to_client.is_some() {
                break;
            }
            client.wait(Duration::from_millis(1)).expect("a working network");
            server.wait(Duration::from_millis(1)).expect("a working network");
        }
        assert!(is_told, "connected within a second");
        pairs.push([to_server, to_client.expect("accepted within a second")]);
    }
    Pair { endpoints: [client, server], peers: pairs, turn: 0 }
}

/// There and back, one at a time, to one peer after the other.
#[inline(never)]
fn measured_conversation(pair: &mut Pair) {
    for _ in 0..BATCH / 2 {
        let peers = pair.peers[pair.turn];
        pair.turn = (pair.turn + 1) % pair.peers.len();
        for (from, to) in [(0, 1), (1, 0)] {
            let peer = peers[from];
            pair.endpoints[from].send_copy(black_box(&MESSAGE), peer).expect("room");
            pair.endpoints[from].flush().expect("a working network");
            let message =
                pair.endpoints[to].receive_timeout(Duration::from_secs(1)).expect("a working network");
            assert_eq!(message.expect("it came").as_slice(), Some(&MESSAGE[..]));
        }
    }
}

/// One way, as many messages as fit in a packet.
#[inline(never)]
fn measured_stream(pair: &mut Pair) {
    let [client, server] = &mut pair.endpoints;
    let peer = pair.peers[0][0];
    for _ in 0..BATCH {
        client.send_copy(black_box(&MESSAGE), peer).expect("room");
    }
    client.flush().expect("a working network");
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
fn measured_bulk(pair: &mut Pair) {
    let [client, server] = &mut pair.endpoints;
    let (mut sent, mut received) = (0, 0);
    let mut message = Payload::from(Buffer::from_owner(BULK));
    while received < BATCH {
        if sent < BATCH {
            let Err(rejected) = client.send(message, pair.peers[0][0]) else {
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
