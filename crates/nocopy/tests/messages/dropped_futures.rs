//! Futures of an endpoint that are dropped at any of their await points: nothing is lost, and nothing comes
//! twice.
#![cfg(feature = "tokio")]

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use tokio::task::JoinHandle;

use crate::common::PATIENCE;
use crate::common::message::{any, connect};
use crate::common::polled::{is_pending, poll_and_drop};
use nocopy::BufferMut;
use nocopy::message::{AsyncEndpoint, Endpoint, Event, Kind, LostReason, NonblockingEndpoint, Peer};

/// How often a future is polled before it is dropped.
const POLLS: std::ops::RangeInclusive<usize> = 1..=3;

/// An endpoint that nothing but datagrams wakes for the time of a test.
fn bind() -> Endpoint {
    Endpoint::builder().keep_alive(10 * PATIENCE).dead_after(20 * PATIENCE).bind(any(0)).expect("bound")
}

/// An endpoint that is connected to another one, which works only when the test calls it.
fn pair() -> (AsyncEndpoint, Peer, Endpoint, Peer) {
    let (mut left, mut right) = (bind(), bind());
    let (to_right, to_left) = connect(&mut left, &mut right);
    (left.into_async().unwrap(), to_right, right, to_left)
}

/// Sends datagrams that wake an endpoint, and that it ignores.
fn disturb(endpoint: &NonblockingEndpoint) -> impl FnMut() + use<> {
    let (socket, to) = (UdpSocket::bind(any(0)).unwrap(), endpoint.local_addr());
    move || assert_eq!(socket.send_to(b"noise", to).unwrap(), 5)
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

/// The messages that an endpoint received, and events that are not of a connection's begin.
#[derive(Debug, Default)]
struct Log {
    messages: Vec<Vec<u8>>,
    events: Vec<Event>,
}

/// Works for an endpoint: answers each request with its content.
fn serve(endpoint: Endpoint) -> (JoinHandle<()>, Arc<Mutex<Log>>) {
    let (mut endpoint, log) = (endpoint.into_async().unwrap(), Arc::<Mutex<Log>>::default());
    let noted = Arc::clone(&log);
    let task = tokio::spawn(async move {
        loop {
            while let Some(event) = endpoint.poll_event() {
                if !matches!(event, Event::Connected(..) | Event::Accepted(..)) {
                    noted.lock().unwrap().events.push(event);
                }
            }
            let Some(message) = endpoint.receive().await.unwrap() else { continue }; // an event
            let (peer, kind, bytes) = (message.peer(), message.kind(), message.to_vec());
            drop(message);
            noted.lock().unwrap().messages.push(bytes.clone());
            if let Kind::Request(call) = kind {
                endpoint.respond(bytes, peer, call).unwrap();
            }
        }
    });
    (task, log)
}

/// The next message; no event comes before it.
async fn next_message(endpoint: &mut AsyncEndpoint) -> (Kind, Vec<u8>) {
    let message = within(endpoint.receive()).await.unwrap().expect("a message");
    (message.kind(), message.to_vec())
}

/// A runtime of several threads moves tasks between them.
#[expect(dead_code, reason = "it is enough that it compiles")]
fn futures_may_move_to_other_threads(endpoint: &mut AsyncEndpoint, peer: Peer, to: SocketAddr) {
    fn check(_: impl Send) {}
    check(endpoint.receive());
    check(endpoint.wait());
    check(endpoint.connect(to));
    check(endpoint.call(Vec::<u8>::new(), peer));
    check(endpoint.buffer());
    check(endpoint.drain());
}

#[tokio::test]
async fn a_dropped_receive_loses_and_repeats_no_message() {
    for polls in POLLS {
        let (mut left, _, mut right, to_left) = pair();
        let disturb = disturb(&left);
        poll_and_drop(left.receive(), polls, disturb).await;
        for number in 0..3 {
            let send = || {
                right.send_copy_to(&[number], to_left).unwrap();
                right.flush().unwrap();
            };
            poll_and_drop(left.receive(), 1, send).await;
            assert_eq!(next_message(&mut left).await, (Kind::Plain, vec![number]));
        }
        assert!(is_pending(left.receive()), "each came once");
    }
}

#[tokio::test]
async fn a_dropped_wait_loses_and_repeats_no_event() {
    for polls in POLLS {
        let (mut left, to_right, right, _) = pair();
        let (mut disturb, mut right) = (disturb(&left), Some(right));
        poll_and_drop(left.wait(), polls, &mut disturb).await;
        poll_and_drop(left.wait(), 1, || drop(right.take())).await;
        within(left.wait()).await.unwrap();
        assert!(is_pending(left.wait()), "an event ends one wait");
        let lost = Event::Lost(to_right, LostReason::Aborted { code: 1 }); // docs/protocol.md §11
        assert_eq!([left.poll_event(), left.poll_event()], [Some(lost), None]);
    }
}

#[tokio::test]
async fn a_connection_attempt_outlives_its_dropped_future() {
    for polls in POLLS {
        let (mut left, right) = (bind().into_async().unwrap(), bind());
        let (disturb, address) = (disturb(&left), right.local_addr());
        poll_and_drop(left.connect(address), polls, disturb).await;
        let (server, log) = serve(right);
        assert!(within(left.receive()).await.unwrap().is_none(), "an event");
        let Some(Event::Connected(first, to)) = left.poll_event() else { panic!("not connected") };
        assert_eq!((to, left.poll_event()), (address, None));
        // The event of an attempt that was awaited is not returned.
        let second = within(left.connect(address)).await.unwrap();
        assert!(second != first && left.poll_event().is_none());
        for (number, peer) in [(1_u8, first), (2, second)] {
            assert_eq!(within(left.call(vec![number], peer)).await.unwrap().to_vec(), [number]);
        }
        assert_eq!(log.lock().unwrap().messages, [[1], [2]]);
        server.abort();
    }
}

#[tokio::test]
async fn the_response_to_a_dropped_call_is_received_once() {
    for polls in POLLS {
        let (mut left, to_right, right, _) = pair();
        let disturb = disturb(&left);
        poll_and_drop(left.call(b"first".to_vec(), to_right), polls, disturb).await;
        let (server, log) = serve(right);
        assert_eq!(within(left.call(b"second".to_vec(), to_right)).await.unwrap().to_vec(), b"second");
        let (kind, response) = next_message(&mut left).await;
        assert!(matches!(kind, Kind::Response(_)) && response == b"first", "{kind:?} {response:?}");
        assert!(is_pending(left.receive()), "each came once");
        assert_eq!(log.lock().unwrap().messages, [&b"first"[..], b"second"]);
        server.abort();
    }
}

#[tokio::test]
async fn a_call_dropped_before_there_was_room_sends_nothing() {
    for polls in POLLS {
        let (mut left, right) = (bind().into_async().unwrap(), bind());
        let to_right = left.start_connect(right.local_addr()).unwrap(); // no room until it is connected
        let disturb = disturb(&left);
        poll_and_drop(left.call(b"dropped".to_vec(), to_right), polls, disturb).await;
        let (server, log) = serve(right);
        assert_eq!(within(left.call(b"sent".to_vec(), to_right)).await.unwrap().to_vec(), b"sent");
        assert_eq!(log.lock().unwrap().messages, [b"sent"]);
        server.abort();
    }
}

fn all_buffers(endpoint: &mut NonblockingEndpoint) -> Vec<BufferMut> {
    std::iter::from_fn(|| endpoint.buffer()).collect()
}

#[tokio::test]
async fn a_dropped_buffer_future_loses_no_buffer() {
    for polls in POLLS {
        let mut left = bind().into_async().unwrap();
        let mut held = all_buffers(&mut left);
        let all = held.len();
        poll_and_drop(left.buffer(), polls, || {}).await; // a timer wakes it
        poll_and_drop(left.buffer(), 1, || drop(held.pop())).await;
        held.push(within(left.buffer()).await.unwrap());
        assert!(is_pending(left.buffer()), "only one is free");
        drop(held);
        assert_eq!(all_buffers(&mut left).len(), all);
    }
}

#[tokio::test]
async fn dropped_flushes_and_drains_lose_and_repeat_no_message() {
    for polls in POLLS {
        let (mut left, to_right, right, _) = pair();
        let mut disturb = disturb(&left);
        for number in 0..3 {
            left.send_copy_to(&[number], to_right).unwrap();
            assert!(!is_pending(left.flush()), "the kernel has room");
            poll_and_drop(left.drain(), polls, &mut disturb).await;
        }
        let (server, log) = serve(right);
        within(left.drain()).await.unwrap();
        assert_eq!(left.in_flight(), 0);
        assert_eq!(log.lock().unwrap().messages, [[0], [1], [2]]);
        server.abort();
    }
}

#[tokio::test]
async fn a_dropped_close_ends_the_connection_at_once() {
    for polls in POLLS {
        let (mut left, to_right, mut right, to_left) = pair();
        left.send_copy_to(b"given up", to_right).unwrap();
        let disturb = disturb(&left);
        poll_and_drop(left.close(), polls, disturb).await;
        let (mut messages, mut events) = (0, Vec::new());
        while !events.contains(&Event::Lost(to_left, LostReason::Aborted { code: 1 })) {
            assert!(right.wait(PATIENCE).unwrap(), "not lost: {events:?}");
            messages += usize::from(right.try_receive().unwrap().is_some());
            events.extend(std::iter::from_fn(|| right.poll_event()));
        }
        assert!(messages <= 1, "it may have come before the end, and not twice");
    }
}
