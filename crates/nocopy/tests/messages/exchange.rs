//! Messages between endpoints over sockets of this machine.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, SECOND};
use nocopy::Reason;
use nocopy::message::{Builder, Endpoint, Event, Kind, Peer};
use nocopy::port::Wait;
use nocopy_lab::patience::wait_until;

const LO: &str = "127.0.0.1:0";

fn endpoint(set: impl FnOnce(Builder) -> Builder) -> Endpoint {
    set(Endpoint::builder()).bind(LO).expect("bound")
}

fn pattern(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (number * 31 + place * 7 + place / 251) as u8).collect()
}

fn pair(set: impl Fn(Builder) -> Builder) -> (Endpoint, Peer, Endpoint, Peer) {
    let (mut left, mut right) = (endpoint(&set), endpoint(&set));
    let to_right = left.start_connect(right.local_addr()).unwrap();
    let to_left = accepted(&mut left, &mut right);
    (left, to_right, right, to_left)
}

/// Without a timer that expires during a test.
fn silent(builder: Builder) -> Builder {
    builder.keep_alive(10 * PATIENCE).dead_after(20 * PATIENCE)
}

/// Works on both until the right one has a new peer, and the left one knows.
fn accepted(left: &mut Endpoint, right: &mut Endpoint) -> Peer {
    let give_up = Instant::now() + PATIENCE;
    let (mut accepted, mut connected) = (None, false);
    while accepted.is_none() || !connected {
        assert!(Instant::now() < give_up, "no connection");
        left.wait(Duration::from_millis(1)).unwrap();
        right.wait(Duration::from_millis(1)).unwrap();
        if let Some(Event::Accepted(peer, from)) = right.poll_event() {
            assert_eq!(from, left.local_addr());
            accepted = Some(peer);
        }
        connected |= matches!(left.poll_event(), Some(Event::Connected(..)));
    }
    accepted.unwrap()
}

fn receive(from: &mut Endpoint, at: &mut Endpoint) -> (Peer, Kind, Vec<u8>) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < give_up, "nothing came: {:?} {:?}", from.stats(), at.stats());
        from.flush().unwrap();
        if let Some(message) = at.receive_timeout(Duration::from_millis(1)).unwrap() {
            return (message.peer(), message.kind(), message.to_vec());
        }
        from.wait(Duration::ZERO).unwrap();
    }
}

#[test]
fn a_message_goes_and_its_answer_comes_back() {
    let coalesced = Wait::Coalesced { packets: 4, delay: Duration::from_millis(1) };
    for wait in [Wait::Spin, Wait::Interrupt, Wait::Adaptive { spin: Duration::from_micros(50) }, coalesced] {
        let (mut left, to_right, mut right, to_left) = pair(|builder| builder.wait(wait));
        for number in 0..100 {
            left.send_copy_to(&pattern(number, number), to_right).unwrap();
            assert_eq!(receive(&mut left, &mut right), (to_left, Kind::Plain, pattern(number, number)));
            right.send_copy_to(b"yes", to_left).unwrap();
            assert_eq!(receive(&mut right, &mut left), (to_right, Kind::Plain, b"yes".to_vec()));
        }
        let ledger = left.ledger();
        assert_eq!(
            ledger.bytes_of(nocopy::Evidence::Copied(nocopy::Cause::Slice)),
            (0..100).sum::<usize>() as u64
        );
    }
}

#[test]
fn endpoints_that_connect_to_each_other_have_one_connection() {
    let mut ends = [endpoint(|builder| builder), endpoint(|builder| builder.accept(false))];
    let addresses = ends.each_ref().map(|end| end.local_addr());
    let peers = [0, 1].map(|end| ends[end].start_connect(addresses[1 - end]).unwrap());
    let mut events = [None, None];
    wait_until("both are connected", || {
        for (end, event) in ends.iter_mut().zip(&mut events) {
            end.wait(Duration::from_millis(1)).unwrap();
            *event = event.or_else(|| end.poll_event());
        }
        events.iter().all(Option::is_some)
    });
    assert_eq!(events, [0, 1].map(|end| Some(Event::Connected(peers[end], addresses[1 - end]))));
    let [left, right] = &mut ends;
    left.send_copy_to(b"to the right", peers[0]).unwrap();
    assert_eq!(receive(left, right), (peers[1], Kind::Plain, b"to the right".to_vec()));
    right.send_copy_to(b"to the left", peers[1]).unwrap();
    assert_eq!(receive(right, left), (peers[0], Kind::Plain, b"to the left".to_vec()));
    assert_eq!(ends.each_mut().map(|end| end.poll_event()), [None, None]);
}

#[test]
fn messages_of_every_length_arrive_in_order() {
    let (mut left, to_right, mut right, to_left) = pair(|builder| builder.max_message_bytes(1 << 20));
    let lengths = [0, 1, 63, 1424, 1428, 1436, 1437, 1440, 1441, 2860, 3000, 65_507, 100_000, 1 << 20];
    for (number, bytes) in lengths.into_iter().enumerate() {
        for owned in [false, true] {
            let message = pattern(number, bytes);
            let give_up = Instant::now() + PATIENCE;
            loop {
                assert!(Instant::now() < give_up);
                let sent = match owned {
                    false => left.send_copy_to(&message, to_right),
                    true => {
                        let (front, back) = message.split_at(bytes / 3);
                        let buffers = [front, back].map(|part| nocopy::Buffer::from(part.to_vec()));
                        left.send_to(buffers, to_right).map_err(|rejected| rejected.reason)
                    }
                };
                match sent {
                    Ok(()) => break,
                    Err(Reason::Full) => drop(left.wait(Duration::from_millis(1)).unwrap()),
                    Err(error) => panic!("{error}"),
                }
            }
            let (peer, _, came) = receive(&mut left, &mut right);
            assert!(peer == to_left && came == message, "{bytes} bytes, owned: {owned}");
        }
    }
    let error = left.send_copy_to(&vec![0; (1 << 20) + 1], to_right).unwrap_err();
    assert!(matches!(error, Reason::TooLong { bytes_max: 1_048_576 }), "{error}");
}

#[test]
fn small_messages_share_a_packet() {
    let (mut left, to_right, mut right, _) = pair(|builder| builder);
    let before = left.stats().get("packets_sent").unwrap();
    for number in 0..20 {
        left.send_copy_to(&pattern(number, 64), to_right).unwrap();
    }
    for number in 0..20 {
        assert_eq!(receive(&mut left, &mut right).2, pattern(number, 64));
    }
    assert_eq!(left.stats().get("packets_sent").unwrap() - before, 1);
}

#[test]
fn a_call_has_its_response_and_others_wait_meanwhile() {
    let mut server = endpoint(|builder| builder);
    let address: SocketAddr = server.local_addr();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut served = 0;
            while served < 50 {
                let Some(request) = server.receive_timeout(PATIENCE).unwrap() else { continue };
                let (peer, kind, bytes) = (request.peer(), request.kind(), request.to_vec());
                drop(request);
                let Kind::Request(call) = kind else { panic!("{kind:?}") };
                server.send_copy_to(b"by the way", peer).unwrap();
                server.respond(bytes, peer, call).unwrap();
                served += 1;
            }
            assert!(server.close(PATIENCE).unwrap());
        });
        let mut client = endpoint(|builder| builder);
        let peer = client.connect(address, PATIENCE).unwrap();
        for number in 0..50 {
            let response = client.call(pattern(number, number * 50), peer, PATIENCE).unwrap();
            assert_eq!(response.to_vec(), pattern(number, number * 50));
        }
        for _ in 0..50 {
            let other = client.receive_timeout(PATIENCE).unwrap().unwrap();
            assert_eq!(other.as_slice(), Some(&b"by the way"[..]));
        }
    });
}

/// More messages than are given out at once wait, and the next one comes alone.
#[test]
fn messages_that_waited_for_a_call_come_first() {
    const WAITING: usize = 40;
    let (mut client, peer, mut server, to_client) = pair(silent);
    std::thread::scope(|scope| {
        let (go_on, goes_on) = std::sync::mpsc::channel();
        let (sent, is_sent) = std::sync::mpsc::channel();
        scope.spawn(move || {
            let call = loop {
                let Some(request) = server.receive_timeout(PATIENCE).unwrap() else { continue };
                let Kind::Request(call) = request.kind() else { panic!("{:?}", request.kind()) };
                break call;
            };
            for number in 0..WAITING {
                server.send_copy_to(&pattern(number, 64), to_client).unwrap();
            }
            server.respond(b"done".to_vec(), to_client, call).unwrap();
            server.flush().unwrap();
            goes_on.recv().unwrap();
            server.send_copy_to(&pattern(WAITING, 64), to_client).unwrap();
            server.flush().unwrap();
            sent.send(server).unwrap();
        });
        client.call(b"hello".to_vec(), peer, PATIENCE).unwrap();
        let mut received = Vec::new();
        client.try_receive_each(|message| received.push(message.to_vec())).unwrap();
        assert!((1..WAITING).contains(&received.len()), "{}", received.len());
        go_on.send(()).unwrap();
        let _server = is_sent.recv().unwrap();
        wait_until("the last one", || {
            client.try_receive_each(|message| received.push(message.to_vec())).unwrap();
            received.len() > WAITING
        });
        let expected: Vec<_> = (0..=WAITING).map(|number| pattern(number, 64)).collect();
        assert!(received == expected, "in another order");
    });
}

#[test]
fn the_end_behind_the_last_message_ends_the_next_wait() {
    // Only the end of the connection can end the wait.
    let (mut left, to_right, mut right, _) = pair(silent);
    for number in 0..2 {
        left.send_copy_to(&pattern(number, 64), to_right).unwrap();
    }
    left.finish(to_right).unwrap();
    assert_eq!(receive(&mut left, &mut right).2, pattern(0, 64));
    wait_until("acknowledged by the right one", || {
        left.wait(Duration::ZERO).unwrap();
        right.arm().unwrap();
        left.in_flight() == 0
    });
    assert_eq!(right.try_receive().unwrap().expect("the second one").to_vec(), pattern(1, 64));
    let start = Instant::now();
    assert!(right.receive_timeout(PATIENCE).unwrap().is_none());
    assert!(start.elapsed() < PATIENCE - SECOND, "slept over the end");
    assert!(matches!(right.poll_event(), Some(Event::Finished(_))));
}

#[test]
fn a_wait_tells_of_events_behind_those_that_nobody_took() {
    let (mut left, mut right) = (endpoint(|builder| builder), endpoint(|builder| builder));
    let to_right = left.start_connect(right.local_addr()).unwrap();
    let give_up = Instant::now() + PATIENCE;
    while !right.wait(Duration::from_millis(1)).unwrap() {
        assert!(Instant::now() < give_up, "nobody came");
        left.wait(Duration::from_millis(1)).unwrap();
    }
    left.finish(to_right).unwrap();
    left.flush().unwrap();
    assert!(right.wait(PATIENCE).unwrap(), "the end");
    assert!(matches!(right.poll_event(), Some(Event::Accepted(..))));
    assert!(matches!(right.poll_event(), Some(Event::Finished(_))));
    assert_eq!(right.poll_event(), None);
}

#[test]
fn a_call_to_a_peer_that_has_left_is_lost() {
    let (mut left, to_right, mut right, to_left) = pair(silent);
    right.send_copy_to(b"the last one", to_left).unwrap();
    right.finish(to_left).unwrap();
    right.flush().unwrap();
    drop(right);
    let error = left.call(b"hello".to_vec(), to_right, PATIENCE).unwrap_err();
    assert_eq!(
        error.to_string(),
        "request: no response; the connection ended before; its event 'Lost' has the reason: connect again"
    );
    assert_eq!(left.try_receive().unwrap().expect("kept").to_vec(), b"the last one");
}

#[test]
fn an_event_reported_by_arm_ends_the_next_wait() {
    let (left, _, mut right, _) = pair(silent);
    drop(left);
    wait_until("the end", || right.arm().unwrap());
    assert!(right.wait(Duration::ZERO).unwrap(), "would wait without an end");
    assert!(matches!(right.poll_event(), Some(Event::Lost(..))));
    assert!(!right.wait(Duration::ZERO).unwrap(), "the event was taken");
}

#[test]
fn a_message_that_nobody_reads_does_not_stop_the_clock() {
    let (mut left, to_right, mut right, to_left) = pair(|builder| builder);
    right.send_copy_to(b"unread", to_left).unwrap();
    let give_up = Instant::now() + PATIENCE;
    while !left.wait(SECOND).unwrap() || left.poll_event().is_some() {
        assert!(Instant::now() < give_up, "nothing came");
        right.flush().unwrap();
    }
    left.send_copy_to(b"never acknowledged", to_right).unwrap();
    while left.stats().get("probes").unwrap() == 0 {
        assert!(Instant::now() < give_up, "no probe: {:?}", left.stats());
        assert!(left.wait(Duration::from_millis(1)).unwrap(), "there is a message all the time");
    }
    assert_eq!(&*left.try_receive().unwrap().unwrap().to_vec(), b"unread");
}

#[test]
fn what_was_taken_is_sent_on_and_drains() {
    let (mut left, to_right, mut right, to_left) = pair(|builder| builder);
    for bytes in [10, 3000, 100_000] {
        left.send_to(pattern(bytes, bytes), to_right).unwrap();
        let give_up = Instant::now() + PATIENCE;
        let taken = loop {
            assert!(Instant::now() < give_up, "nothing came: {:?}", right.stats());
            left.wait(Duration::ZERO).unwrap();
            if let Some(message) = right.try_receive().unwrap() {
                break message.take();
            }
        };
        assert_eq!((taken.peer(), taken.len()), (to_left, bytes));
        right.send_to(taken, to_left).unwrap();
        assert!(right.in_flight() > 0);
        assert_eq!(receive(&mut right, &mut left).2, pattern(bytes, bytes));
        let reaped = std::thread::scope(|scope| {
            let drained = scope.spawn(|| right.drain(PATIENCE).unwrap());
            while !drained.is_finished() {
                left.wait(Duration::from_millis(1)).unwrap();
            }
            drained.join().unwrap()
        });
        assert!(reaped, "acknowledged");
        assert_eq!(right.in_flight(), 0);
    }
    let stats = right.stats();
    assert_eq!(
        (stats.moved, stats.get("messages_sent").unwrap(), stats.get("messages_received").unwrap()),
        (6, 3, 3)
    );
    assert_eq!(stats.get("message_bytes_sent").unwrap(), stats.get("message_bytes_received").unwrap());
    assert!(right.explain().to_string().contains("UDP socket 127.0.0.1"), "{}", right.explain());
}

#[test]
fn a_refused_message_comes_back_whole() {
    let mut left = endpoint(|builder| builder);
    let peer = left.start_connect("127.0.0.1:9").unwrap();
    let parts = [pattern(1, 500), pattern(2, 700)].map(nocopy::Buffer::from);
    let rejected = left.send_to(parts, peer).unwrap_err();
    assert!(matches!(rejected.reason, nocopy::Reason::Full), "{rejected}");
    let lengths: Vec<_> = rejected.item.into_iter().map(|buffer| buffer.len()).collect();
    assert_eq!(lengths, [500, 700]);
    left.abort(peer);
    assert!(matches!(left.send_to(pattern(3, 3), peer).unwrap_err().reason, Reason::Gone));
}
