//! Programs that do not call their endpoint for longer than peers wait.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::lab;
use crate::common::message::{any, connect, receive};
use nocopy::Port;
use nocopy::message::{Builder, Endpoint, Event, Peer};
use nocopy_lab::End;
use nocopy_lab::patience::wait_until;

/// After how long peers ask, and count as dead.
const ASK: Duration = Duration::from_millis(20);
const DEAD: Duration = Duration::from_millis(600);

fn builder() -> Builder {
    Endpoint::builder().keep_alive(ASK).dead_after(DEAD)
}

/// The events that the right end gets about the left end, which computes while it has messages to read.
fn while_left_computes(
    mut left: Endpoint,
    mut right: Endpoint,
    check: impl Fn(&mut Endpoint, Instant),
) -> (Endpoint, Endpoint) {
    let (_, to_left) = connect(&mut left, &mut right);
    for _ in 0..10 {
        right.send_copy_to(&[7; 3000], to_left).unwrap();
    }
    check(&mut right, Instant::now());
    (left, right)
}

fn lost(endpoint: &mut Endpoint) -> Option<Peer> {
    assert!(endpoint.try_receive().unwrap().is_none());
    match endpoint.poll_event() {
        Some(Event::Lost(peer, _)) => Some(peer),
        Some(event) => panic!("{event:?}"),
        None => None,
    }
}

fn assert_waits(left: Endpoint, right: Endpoint) {
    let (mut left, mut right) = while_left_computes(left, right, |right, since| {
        wait_until("signs of life for longer than a peer waits", || {
            assert_eq!(lost(right), None, "{:?}", right.stats());
            since.elapsed() > 2 * DEAD && right.stats().get("signs_of_life").unwrap() > 10
        });
    });
    assert!(left.stats().get("signs_of_life_sent").unwrap() > 10);
    for _ in 0..10 {
        assert_eq!(receive(&mut right, &mut left).2, [7; 3000]);
    }
    assert!(left.poll_event().is_none());
}

#[test]
fn a_thread_keeps_peers_waiting_for_a_program_that_computes() {
    let with_thread = builder().keep_alive_thread(true);
    assert_waits(with_thread.bind(any(0)).unwrap(), builder().bind(any(0)).unwrap());
}

#[test]
fn a_thread_keeps_peers_waiting_over_ports_as_well() {
    let lab = lab!();
    let endpoint = |end: &End, builder: Builder| {
        let address = SocketAddr::new(end.ipv4().into(), 0);
        end.namespace().run(|| builder.port(Port::builder(end.interface())).bind(address).unwrap())
    };
    assert_waits(endpoint(lab.left(), builder().keep_alive_thread(true)), endpoint(lab.right(), builder()));
}

#[test]
fn without_a_thread_a_program_that_computes_is_lost() {
    let bind = || builder().bind(any(0)).unwrap();
    while_left_computes(bind(), bind(), |right, _| wait_until("lost", || lost(right).is_some()));
}
