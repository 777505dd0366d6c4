//! Endpoints in tokio programs, and in programs that wait on their descriptors.
#![cfg(feature = "tokio")]

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::common::message::{any, connect, pattern};
use crate::common::{PATIENCE, SECOND, lab};
use nocopy::Port;
use nocopy::integration::{Wakeup, poll};
use nocopy::message::{AsyncEndpoint, Builder, Endpoint, Error, Event, Kind, LostReason, Peer};
use nocopy_lab::End;
use nocopy_lab::patience::wait_until;
use rustix::event::{PollFd, PollFlags};

fn pair(set: impl Fn(Builder) -> Builder) -> (Endpoint, Peer, Endpoint) {
    let bind = || set(Endpoint::builder()).bind(any(0)).expect("bound");
    let (mut left, mut right) = (bind(), bind());
    let (to_right, _) = connect(&mut left, &mut right);
    (left, to_right, right)
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

/// Returns every plain message, until the peer has sent its last.
async fn echo(mut endpoint: AsyncEndpoint) {
    loop {
        while let Some(event) = endpoint.poll_event() {
            match event {
                Event::Finished(peer) => {
                    endpoint.finish(peer).unwrap();
                    endpoint.flush().await.unwrap();
                    return;
                }
                Event::Lost(_, reason) => panic!("{reason}"),
                _ => {}
            }
        }
        // None: an event.
        let Some(message) = endpoint.receive().await.unwrap() else { continue };
        let (peer, message) = (message.peer(), message.take());
        endpoint.send_to(message, peer).unwrap();
    }
}

/// The next message, skipping events.
async fn message(endpoint: &mut AsyncEndpoint) -> (Kind, Vec<u8>) {
    loop {
        if let Some(message) = within(endpoint.receive()).await.unwrap() {
            return (message.kind(), message.to_vec());
        }
        while let Some(event) = endpoint.poll_event() {
            assert!(!matches!(event, Event::Lost(..)), "{event:?}");
        }
    }
}

async fn exchange(left: Endpoint, to_right: Peer, right: Endpoint) {
    let (mut left, right) = (left.into_async().unwrap(), right.into_async().unwrap());
    let echo = tokio::spawn(echo(right));
    for (number, bytes) in [0, 1, 64, 1400, 3000, 100_000, 64].into_iter().enumerate() {
        left.send_to(pattern(number, bytes), to_right).unwrap();
        left.flush().await.unwrap();
        assert!(message(&mut left).await == (Kind::Plain, pattern(number, bytes)), "{bytes} bytes");
    }
    left.finish(to_right).unwrap();
    left.flush().await.unwrap();
    while !echo.is_finished() {
        let _ = tokio::time::timeout(Duration::from_millis(10), left.receive()).await;
    }
    within(echo).await.unwrap();
}

#[tokio::test]
async fn messages_go_there_and_back() {
    let (left, to_right, right) = pair(|builder| builder);
    exchange(left, to_right, right).await;
}

#[tokio::test]
async fn an_endpoint_over_ports_is_woken_by_every_queue() {
    for queues in [1, 2] {
        let lab = lab!(nocopy_lab::Lab::builder().queues(queues));
        let open = |end: &End| {
            let address = SocketAddr::new(end.ipv4().into(), 0);
            let builder = Endpoint::builder().port(Port::builder(end.interface()));
            end.namespace().run(|| builder.bind(address)).expect("opened")
        };
        let (mut left, mut right) = (open(lab.left()), open(lab.right()));
        let (to_right, _) = connect(&mut left, &mut right);
        exchange(left, to_right, right).await;
    }
}

/// A message that is not read neither ends nor delays the wait for a connection.
#[tokio::test]
async fn endpoints_connect_beside_unread_messages() {
    let silent = |builder: Builder| builder.keep_alive(10 * PATIENCE).dead_after(20 * PATIENCE);
    let (mut right, to_left, mut left) = pair(silent);
    right.send_copy_to(b"unread", to_left).unwrap();
    right.flush().unwrap();
    assert!(left.wait(PATIENCE).unwrap());
    let other = silent(Endpoint::builder()).bind(any(0)).unwrap().into_async().unwrap();
    let (mut left, address) = (left.into_async().unwrap(), other.local_addr());
    let echo = tokio::spawn(echo(other));
    let to_other = within(left.connect(address)).await.unwrap();
    left.send_copy_to(b"to another", to_other).unwrap();
    left.flush().await.unwrap();
    assert_eq!(message(&mut left).await.1, b"unread");
    assert_eq!(message(&mut left).await.1, b"to another");
    echo.abort();
}

#[tokio::test]
async fn connecting_tries_the_next_address_when_one_is_silent() {
    let bind = |builder: Builder| builder.bind(any(0)).unwrap().into_async().unwrap();
    let mut left = bind(Endpoint::builder().keep_alive(SECOND / 5).dead_after(SECOND));
    let (silent, other) = (UdpSocket::bind(any(0)).unwrap(), bind(Endpoint::builder()));
    let (silent, address) = (silent.local_addr().unwrap(), other.local_addr());
    let echo = tokio::spawn(echo(other));
    let peer = within(left.connect(&[silent, address][..])).await.unwrap();
    assert_eq!((left.peer_stats(peer).unwrap().address, left.poll_event()), (address, None));
    let error = within(left.connect(silent)).await.unwrap_err();
    let expected = (silent, LostReason::NoAnswer);
    assert!(matches!(error, Error::NotConnected { address, reason } if (address, reason) == expected));
    echo.abort();
}

/// Only timers end a wait on this connection, for longer than a silent peer is kept.
#[tokio::test]
async fn an_idle_connection_stays() {
    let (left, to_right, right) = pair(|builder| builder.keep_alive(SECOND / 5).dead_after(4 * SECOND));
    let (mut left, right) = (left.into_async().unwrap(), right.into_async().unwrap());
    let echo = tokio::spawn(echo(right));
    let idle = tokio::time::timeout(6 * SECOND, async {
        loop {
            assert!(left.receive().await.unwrap().is_none());
            while let Some(event) = left.poll_event() {
                assert!(!matches!(event, Event::Lost(..)), "{event:?}");
            }
        }
    });
    assert!(idle.await.is_err());
    left.send_copy_to(b"still there?", to_right).unwrap();
    left.flush().await.unwrap();
    assert_eq!(message(&mut left).await.1, b"still there?");
    echo.abort();
}

#[tokio::test]
async fn what_was_sent_is_drained() {
    let (left, to_right, right) = pair(|builder| builder);
    let mut right = right.into_async().unwrap();
    let reads = tokio::spawn(async move {
        for number in 0..20 {
            assert!(message(&mut right).await.1 == pattern(number, 20_000));
        }
        right
    });
    let mut left = left.into_async().unwrap();
    for number in 0..20 {
        let mut buffer = within(left.buffer()).await.unwrap();
        buffer.fill(&pattern(number, 20_000)).unwrap();
        left.send_to(buffer, to_right).unwrap();
        within(left.flush()).await.unwrap();
    }
    let mut right = within(async {
        tokio::join!(left.drain(), async {
            let mut right = reads.await.unwrap();
            // The last acknowledgement may wait for its timer.
            let _ = tokio::time::timeout(SECOND, right.receive()).await;
            right
        })
        .1
    })
    .await;
    assert_eq!(left.in_flight(), 0);
    assert!(right.try_receive().unwrap().is_none());
}

/// Also if nothing but the end is on its way.
#[tokio::test]
async fn close_resolves_when_everything_has_arrived() {
    let silent = |builder: Builder| builder.keep_alive(10 * PATIENCE).dead_after(20 * PATIENCE);
    for last in [&[&b"the last"[..]][..], &[]] {
        let (mut left, to_right, mut right) = pair(silent);
        wait_until("acknowledged", || {
            let _ = (right.wait(Duration::ZERO).unwrap(), left.wait(Duration::ZERO).unwrap());
            left.in_flight() == 0
        });
        let (mut left, mut right) = (left.into_async().unwrap(), right.into_async().unwrap());
        let received = tokio::spawn(async move {
            let mut received = Vec::new();
            loop {
                match right.poll_event() {
                    Some(Event::Finished(_)) => return (received, right),
                    Some(event) => assert!(!matches!(event, Event::Lost(..)), "{event:?}"),
                    None => received.extend(right.receive().await.unwrap().map(|message| message.to_vec())),
                }
            }
        });
        for message in last {
            left.send_copy_to(message, to_right).unwrap();
        }
        within(left.close()).await.unwrap();
        assert_eq!(within(received).await.unwrap().0, last);
    }
}

#[test]
fn the_descriptor_is_readable_only_for_datagrams_and_timers() {
    let silent = |builder: Builder| builder.keep_alive(10 * PATIENCE).dead_after(20 * PATIENCE);
    let (mut left, to_right, mut right) = pair(silent);
    let wait = |endpoint: &Endpoint, timeout| {
        poll(&mut [PollFd::from_borrowed_fd(endpoint.as_fd(), PollFlags::IN)], Some(timeout)).unwrap()
    };
    let give_up = Instant::now() + PATIENCE;
    for number in 0..3 {
        // Until both have acknowledged everything.
        loop {
            assert!(Instant::now() < give_up, "never silent");
            assert!(!left.arm().unwrap() && !right.arm().unwrap());
            if wait(&right, Duration::from_millis(20)) == Wakeup::TimedOut {
                break;
            }
        }
        left.send_copy_to(&pattern(number, 64), to_right).unwrap();
        left.flush().unwrap();
        assert_eq!(wait(&right, PATIENCE), Wakeup::Ready);
        assert!(right.arm().unwrap());
        assert_eq!(right.try_receive().unwrap().unwrap().to_vec(), pattern(number, 64));
        // The acknowledgement waits for a timer, whose expiry makes the descriptor readable.
        while left.in_flight() > 0 {
            assert!(Instant::now() < give_up);
            // The acknowledgement may have come while the two were armed: then nothing else will.
            if !right.arm().unwrap() && !left.arm().unwrap() && left.in_flight() > 0 {
                let mut ends =
                    [&left, &right].map(|end| PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN));
                assert_eq!(poll(&mut ends, Some(PATIENCE)).unwrap(), Wakeup::Ready);
            }
        }
    }
}
