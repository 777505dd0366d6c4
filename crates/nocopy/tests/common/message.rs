//! Shared by the tests of messages.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nocopy::Reason;
use nocopy::message::{Endpoint, Event, Kind, Payload, Peer};

use super::{PATIENCE, SECOND};

pub(crate) fn pattern(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (number * 31 + place * 7 + place / 251) as u8).collect()
}

pub(crate) fn connect(left: &mut Endpoint, right: &mut Endpoint) -> (Peer, Peer) {
    let address = right.local_addr();
    connect_to(address, left, right)
}

/// Connects to one of several addresses of the right end.
pub(crate) fn connect_to(address: SocketAddr, left: &mut Endpoint, right: &mut Endpoint) -> (Peer, Peer) {
    let to_right = left.start_connect(address).unwrap();
    let give_up = Instant::now() + PATIENCE;
    let (mut accepted, mut connected) = (None, false);
    while accepted.is_none() || !connected {
        assert!(Instant::now() < give_up, "no connection: {:?} {:?}", left.stats(), right.stats());
        left.wait(Duration::from_millis(1)).unwrap();
        right.wait(Duration::from_millis(1)).unwrap();
        match left.poll_event() {
            Some(Event::Connected(peer, to)) => {
                assert_eq!((peer, to), (to_right, address));
                connected = true;
                // A client is announced after its first message.
                left.send_copy_to(b"hello", to_right).unwrap();
            }
            Some(event) => panic!("{event:?}"),
            None => {}
        }
        if let Some(Event::Accepted(peer, _)) = right.poll_event() {
            accepted = Some(peer);
        }
    }
    assert_eq!(receive(left, right).2, b"hello");
    (to_right, accepted.unwrap())
}

/// Receives one message, while the other end works, too.
pub(crate) fn receive(from: &mut Endpoint, at: &mut Endpoint) -> (Peer, Kind, Vec<u8>) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < give_up, "nothing came: {:?}, {:?}", from.stats(), at.stats());
        if let Some(message) = at.try_receive().unwrap() {
            return (message.peer(), message.kind(), message.to_vec());
        }
        from.wait(Duration::from_micros(200)).unwrap();
    }
}

pub(crate) fn send(endpoint: &mut Endpoint, other: &mut Endpoint, peer: Peer, message: &[u8]) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < give_up, "no room: {:?}", endpoint.peer_stats(peer));
        match endpoint.send_copy_to(message, peer) {
            Ok(()) => return,
            Err(Reason::Full) => {
                endpoint.wait(Duration::from_micros(200)).unwrap();
                other.wait(Duration::ZERO).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Answers requests with their content until the last client has left, on its own thread.
pub(crate) fn echo(mut server: Endpoint, clients: usize) {
    let (mut gone, give_up) = (0, Instant::now() + 60 * SECOND);
    while gone < clients {
        assert!(Instant::now() < give_up, "clients do not go");
        while let Some(event) = server.poll_event() {
            gone += usize::from(matches!(event, Event::Lost(..) | Event::Finished(_)));
        }
        let Some(request) = server.receive_timeout(SECOND).unwrap() else { continue };
        let (peer, kind, bytes) = (request.peer(), request.kind(), request.to_vec());
        drop(request);
        let Kind::Request(call) = kind else { continue };
        let mut response = Payload::from(bytes);
        while let Err(rejected) = server.respond(response, peer, call) {
            assert!(matches!(rejected.reason, nocopy::Reason::Full), "{rejected}");
            response = rejected.item;
            server.wait(Duration::from_millis(1)).unwrap();
        }
    }
}

pub(crate) const fn any(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), port)
}
