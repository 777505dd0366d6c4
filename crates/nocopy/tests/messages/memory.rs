//! The memory that messages use: no heap allocation per message, and no more than allowed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::common::PATIENCE;
use crate::common::message::{connect, pattern, receive};
use nocopy::message::{Builder, Endpoint, Event, OpenError, Peer};
use nocopy::{Buffer, Reason, udp};

struct Counting;

thread_local! {
    /// Per thread, because the thread that prints earlier results may be late.
    pub(crate) static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: hands everything on to the system's.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Series of messages of which at least one must need no allocation.
const SERIES_MAX: usize = 5;

/// Consecutive refusals, with both ends run in between, after which a sender counts as stopped.
const REFUSALS: u32 = 500;

fn endpoint(set: impl FnOnce(Builder) -> Builder) -> Endpoint {
    set(Endpoint::builder()).bind("127.0.0.1:0").expect("bound")
}

fn one_round(left: &mut Endpoint, to_right: Peer, right: &mut Endpoint, messages: &[Vec<u8>]) {
    for message in messages {
        while let Err(error) = left.send_copy_to(message, to_right) {
            assert!(matches!(error, Reason::Full), "{error}");
            left.wait(Duration::ZERO).unwrap();
            right.wait(Duration::ZERO).unwrap();
        }
    }
    left.flush().unwrap();
    let give_up = Instant::now() + PATIENCE;
    for message in messages {
        loop {
            assert!(Instant::now() < give_up);
            if let Some(came) = right.try_receive().unwrap() {
                let same = came.pieces().flatten().eq(message);
                assert!(same, "{} B", message.len());
                break;
            }
            left.wait(Duration::ZERO).unwrap();
        }
    }
}

#[test]
fn messages_flow_without_allocations() {
    let (mut left, mut right) = (endpoint(|builder| builder), endpoint(|builder| builder));
    let (to_right, _) = connect(&mut left, &mut right);
    let messages: Vec<Vec<u8>> = [64, 64, 64, 1000, 64, 3000, 1, 0, 20_000, 1400, 64]
        .into_iter()
        .map(|bytes| pattern(bytes, bytes))
        .collect();
    // Until every list has its final length. Growing lists double, so that ends; but after a stall of the
    // machine one may grow late. The cost of a message would appear in every series.
    let mut allocations = Vec::new();
    let series = std::iter::from_fn(|| {
        let before = ALLOCATIONS.get();
        for _ in 0..300 {
            one_round(&mut left, to_right, &mut right, &messages);
        }
        Some(ALLOCATIONS.get() - before)
    });
    for count in series.take(SERIES_MAX) {
        allocations.push(count);
        if count == 0 {
            return;
        }
    }
    panic!("allocations in each series of {} messages: {allocations:?}", 300 * messages.len());
}

#[test]
fn datagrams_of_header_and_payload_flow_without_allocations() {
    let (header, payload) = (pattern(1, 16), pattern(2, 1000));
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let builder = udp::Socket::builder().method(udp::Method::SendMmsg);
    let mut socket = builder.bind("127.0.0.1:0").unwrap();
    socket.connect(peer.local_addr().unwrap()).unwrap();
    let mut received = [0; 2000];
    let mut send = |times: u32| {
        for _ in 0..times {
            let sender = socket.sender();
            let pieces = [&header, &payload].map(|bytes| {
                let mut buffer = sender.buffer().expect("one is free");
                buffer.fill(bytes).unwrap();
                buffer.freeze()
            });
            sender.send(udp::Message::from_iter(pieces)).unwrap();
            sender.flush().unwrap();
            let bytes = peer.recv(&mut received).unwrap();
            assert!(received[..bytes].iter().eq(header.iter().chain(&payload)));
        }
    };
    send(100); // until every list has its final length
    let before = ALLOCATIONS.get();
    send(100);
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

#[test]
fn memory_stays_within_the_limit_if_a_receiver_reads_nothing() {
    let error = Endpoint::builder().memory(1 << 20).bind("127.0.0.1:0").unwrap_err();
    assert!(matches!(error, OpenError::TooLittleMemory { .. }), "{error}");
    let (mut left, mut right) = (endpoint(|builder| builder), endpoint(|builder| builder));
    let (to_right, _) = connect(&mut left, &mut right);
    let message = pattern(1, 1000);
    let (mut sent, mut refusals) = (0, 0);
    while refusals < REFUSALS {
        match left.send_copy_to(&message, to_right) {
            Ok(()) => (sent, refusals) = (sent + 1, 0),
            Err(Reason::Full) => {
                refusals += 1;
                left.wait(Duration::from_millis(1)).unwrap();
                right.arm().unwrap();
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 10_000, "nothing stops the sender");
    }
    let mut read = 0;
    let give_up = Instant::now() + PATIENCE;
    while read < sent {
        assert!(Instant::now() < give_up, "{read} of {sent}");
        if let Some(came) = right.try_receive().unwrap() {
            assert!(came.pieces().flatten().eq(&message));
            read += 1;
        } else {
            left.wait(Duration::ZERO).unwrap();
        }
    }
    let mut writable = false;
    while let Some(event) = left.poll_event() {
        writable |= event == Event::Writable(to_right);
    }
    assert!(writable, "who was refused is told of room");
}

#[test]
fn who_acknowledges_nothing_leaves_packets_for_others() {
    let mut server = endpoint(|builder| builder);
    let (message, long) = (pattern(1, 1400), pattern(2, 100_000));
    // Each may have a window of 1,024 packets in flight, of some 8,000 in all. They are not run once they are
    // connected.
    let silent: Vec<_> = (0..8)
        .map(|_| {
            let mut client = endpoint(|builder| builder);
            let (_, peer) = connect(&mut client, &mut server);
            while server.send_copy_to(&message, peer).is_ok() {}
            client
        })
        .collect();
    let mut client = Endpoint::builder().bind("127.0.0.2:0").unwrap();
    let (_, peer) = connect(&mut client, &mut server);
    server.send_copy_to(&long, peer).expect("a part of the packets is left");
    assert_eq!(receive(&mut server, &mut client).2, long);
    drop(silent);
}

/// Connections of one address that acknowledge nothing leave as many packets to other addresses as one
/// connection does.
#[test]
fn an_address_that_acknowledges_nothing_leaves_packets_for_others() {
    const PACKETS: usize = 500;
    let mut server = endpoint(|builder| builder.streams(false));
    let message = pattern(1, 1400);
    let silent: Vec<_> = (0..16)
        .map(|_| {
            let mut client = Endpoint::builder().bind("127.0.0.2:0").unwrap();
            let (_, peer) = connect(&mut client, &mut server);
            (client, peer)
        })
        .collect();
    let owned = || [Buffer::from(message.clone())];
    for (_, peer) in silent.iter().chain(&silent) {
        while server.send_copy_to(&message, *peer).is_ok() {}
        while server.send_to(owned(), *peer).is_ok() {}
    }
    let mut client = endpoint(|builder| builder);
    let (_, peer) = connect(&mut client, &mut server);
    (0..PACKETS).for_each(|number| {
        server.send_copy_to(&message, peer).unwrap_or_else(|error| panic!("{number}: {error}"))
    });
    server.send_to(owned(), peer).expect("a part of those for owned messages is left");
    drop(silent);
}

/// As the test above, for owned messages, which have fewer packets.
#[test]
fn unacknowledged_messages_leave_packets_for_other_peers() {
    let mut server = endpoint(|builder| builder);
    let message = pattern(1, 1400);
    let owned = || [Buffer::from(message.clone())];
    let silent: Vec<_> = (0..3)
        .map(|_| {
            let mut client = endpoint(|builder| builder);
            let (_, peer) = connect(&mut client, &mut server);
            while server.send_to(owned(), peer).is_ok() {}
            client
        })
        .collect();
    let mut client = endpoint(|builder| builder);
    let (_, peer) = connect(&mut client, &mut server);
    server.send_to(owned(), peer).expect("a part of the packets is left");
    assert_eq!(receive(&mut server, &mut client).2, message);
    drop(silent);
}

#[test]
fn an_endpoint_has_ten_thousand_peers() {
    const PEERS: usize = 10_000;
    let (mut left, mut right) = (endpoint(|builder| builder), endpoint(|builder| builder));
    let to = right.local_addr();
    let give_up = Instant::now() + PATIENCE;
    let (mut begun, mut peers, mut answered) = (0, Vec::new(), 0);
    while answered < PEERS {
        assert!(Instant::now() < give_up, "{begun} begun, {} connected, {answered} answered", peers.len());
        while begun < PEERS && begun < peers.len() + 100 {
            left.start_connect(to).unwrap();
            begun += 1;
        }
        left.wait(Duration::ZERO).unwrap();
        while let Some(event) = left.poll_event() {
            match event {
                Event::Connected(peer, _) => {
                    left.send_copy_to(&(peers.len() as u32).to_be_bytes(), peer).unwrap();
                    peers.push(peer);
                }
                event => panic!("{event:?}"),
            }
        }
        loop {
            let Some(message) = right.try_receive().unwrap() else { break };
            let (peer, bytes) = (message.peer(), message.to_vec());
            drop(message);
            right.send_copy_to(&bytes, peer).unwrap();
        }
        while let Some(message) = left.try_receive().unwrap() {
            let number = u32::from_be_bytes(message.as_slice().unwrap().try_into().unwrap());
            assert_eq!(message.peer(), peers[number as usize]);
            answered += 1;
        }
    }
    assert!(peers.iter().all(|peer| left.peer_stats(*peer).is_some()));
}

/// A message that is longer than all packets of a peer may be has room while nothing else is on its way.
#[test]
fn a_message_of_more_packets_than_a_peer_has_goes_alone() {
    let mut left = endpoint(|builder| builder);
    let mut right = endpoint(|builder| builder.max_message_bytes(4 << 20).streams(false));
    let (to_right, _) = connect(&mut left, &mut right);
    let message = pattern(3, 2 << 20); // some 1,500 packets
    for _ in 0..3 {
        let give_up = Instant::now() + PATIENCE;
        while let Err(reason) = left.send_copy_to(&message, to_right) {
            assert!(matches!(reason, Reason::Full), "{reason}");
            assert!(Instant::now() < give_up, "there is never room");
            left.wait(Duration::ZERO).unwrap();
            right.wait(Duration::ZERO).unwrap();
        }
        assert!(receive(&mut left, &mut right).2 == message);
    }
}
