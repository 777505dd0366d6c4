//! What a message costs the program, counted in instructions: `cargo xtask instructions` runs this under callgrind with collection on only
//! inside the functions named `measured_*`, and divides by the messages. All of a message is in it, sending, receiving and
//! acknowledging at both ends, but what the kernel does.
#![allow(missing_docs)]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;

use nocopy::Buffer;
use nocopy::message::{Endpoint, Event, Peer, Rejected};

/// Messages in a batch.
const BATCH: u32 = 64;
const MESSAGE: [u8; 64] = [7; 64];
/// A long one, sent from where it lies.
static BULK: [u8; 1 << 20] = [7; 1 << 20];

struct Pair {
    endpoints: [Endpoint; 2],
    peers: [Peer; 2],
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let which = arguments.next().unwrap_or_else(|| "all".into());
    let batches: u32 = arguments.next().map_or(100, |count| count.parse().expect("a number of batches"));
    for (name, work) in [
        ("message-alone", measured_conversation as fn(&mut Pair)),
        ("message-packed", measured_stream),
        ("message-bulk", measured_bulk),
    ] {
        if which == name || which == "all" {
            let mut pair = connect();
            for _ in 0..batches {
                work(&mut pair);
            }
            let received: u64 =
                pair.endpoints.iter().map(|endpoint| endpoint.counters().messages_received).sum();
            assert_eq!(received, u64::from(batches * BATCH), "{name} did not do the work");
            println!("{name}: {received} messages");
        }
    }
}

fn connect() -> Pair {
    let bind = || Endpoint::builder().bind((Ipv4Addr::LOCALHOST, 0).into()).expect("an address of this host");
    let (mut client, mut server) = (bind(), bind());
    let to_server = client.start_connect(server.local_address()).expect("a place");
    let mut to_client = None;
    for _ in 0..1000 {
        client.wait(Duration::from_millis(1)).expect("a working network");
        server.wait(Duration::from_millis(1)).expect("a working network");
        if let Some(Event::Accepted(peer, _)) = server.poll_event() {
            to_client = Some(peer);
            break;
        }
    }
    let peers = [to_server, to_client.expect("connected within a second")];
    Pair { endpoints: [client, server], peers }
}

/// There and back, one at a time.
#[inline(never)]
fn measured_conversation(pair: &mut Pair) {
    for _ in 0..BATCH / 2 {
        for (from, to) in [(0, 1), (1, 0)] {
            let peer = pair.peers[from];
            pair.endpoints[from].send(peer, black_box(&MESSAGE)).expect("room");
            pair.endpoints[from].flush().expect("a working network");
            let message =
                pair.endpoints[to].receive_timeout(Duration::from_secs(1)).expect("a working network");
            assert_eq!(message.expect("it came").as_slice(), Some(&MESSAGE[..]));
        }
    }
}

/// One way, as many as are at hand in a packet.
#[inline(never)]
fn measured_stream(pair: &mut Pair) {
    let [client, server] = &mut pair.endpoints;
    for _ in 0..BATCH {
        client.send(pair.peers[0], black_box(&MESSAGE)).expect("room");
    }
    client.flush().expect("a working network");
    let mut left = BATCH;
    while left > 0 {
        // One thread for both: while the one waits, the other would not hear that it may go on.
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

/// One way, long ones that are sent from where they lie.
#[inline(never)]
fn measured_bulk(pair: &mut Pair) {
    let [client, server] = &mut pair.endpoints;
    let (mut sent, mut received) = (0, 0);
    let mut message = Some(Buffer::from_owner(BULK));
    while received < BATCH {
        if sent < BATCH {
            let Err(rejected) = client.send_owned(pair.peers[0], message.take()) else {
                sent += 1;
                message = Some(Buffer::from_owner(BULK));
                continue;
            };
            message = Rejected::into_buffers(rejected).next();
        }
        assert!(client.try_receive().expect("a working network").is_none());
        while let Some(message) = server.try_receive().expect("a working network") {
            assert_eq!(message.pieces().map(|piece| black_box(piece).len()).sum::<usize>(), BULK.len());
            received += 1;
        }
    }
}
