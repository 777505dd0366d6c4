use std::os::fd::AsFd;

use nocopy_lab::patience::{PATIENCE, wait_until};

mod shares;

use super::*;
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::message::{Endpoint, Event, tests};
use crate::sys::poll::wait_readable;

fn bind(streams: bool) -> Endpoint {
    Endpoint::builder().streams(streams).bind("127.0.0.1:0").unwrap()
}

fn connected(streams: [bool; 2]) -> (Endpoint, Peer, Endpoint) {
    tests::connected(streams.map(|on| Endpoint::builder().streams(on)))
}

fn counter(endpoint: &Endpoint, name: &str) -> u64 {
    endpoint.stats().get(name).unwrap()
}

/// A message whose length and bytes depend on `number`.
fn message(number: usize) -> Vec<u8> {
    let bytes = match number % 8 {
        0 => 9_000,
        1 => 10,
        2 => 70_000,
        3 => 1_400,
        4 => 300_000,
        5 => 0,
        6 => 20_000,
        _ => 3_000,
    };
    (0..bytes + number % 3).map(|at: usize| (at.wrapping_mul(31) ^ number) as u8).collect()
}

/// Sends messages until all have arrived, and checks that they arrive once and in order; does `meanwhile`
/// before each.
fn converse(
    left: &mut Endpoint,
    to_right: Peer,
    right: &mut Endpoint,
    messages: usize,
    mut meanwhile: impl FnMut(usize, &mut Endpoint),
) {
    let (mut sent, mut received) = (0, 0);
    wait_until("all messages", || {
        while sent < messages {
            meanwhile(sent, left);
            let next = message(sent);
            let is_sent = match sent % 3 {
                0 => left.send_copy_to(&next, to_right).map_err(drop),
                _ => left.send_to(next, to_right).map_err(drop),
            };
            if is_sent.is_err() {
                break;
            }
            sent += 1;
        }
        left.flush().unwrap();
        left.wait(Duration::ZERO).unwrap();
        while left.poll_event().is_some() {}
        while let Some(came) = right.try_receive().unwrap() {
            assert_eq!(came.len(), message(received).len(), "message {received}");
            assert!(came.to_vec() == message(received), "message {received}");
            received += 1;
        }
        while right.poll_event().is_some() {}
        received == messages
    });
}

#[test]
fn messages_of_all_lengths_keep_their_order() {
    let (mut left, to_right, mut right) = connected([true, true]);
    converse(&mut left, to_right, &mut right, 400, |_, _| {});
    assert_eq!(counter(&left, "streams_attached"), 1);
    assert!(counter(&left, "units_sent") > 100, "{}", left.stats());
    assert_eq!(counter(&right, "units_received"), counter(&left, "units_sent"));
    assert!(counter(&right, "packets_received") > 100, "{}", right.stats());
    assert!(left.explain().to_string().contains("1 TCP stream"), "{}", left.explain());
    wait_until("nothing is in flight", || {
        right.wait(Duration::ZERO).unwrap();
        left.wait(Duration::ZERO).unwrap();
        left.in_flight() == 0
    });
}

#[test]
fn an_endpoint_without_streams_is_sent_datagrams() {
    for streams in [[true, false], [false, true]] {
        let (mut left, to_right, mut right) = connected(streams);
        converse(&mut left, to_right, &mut right, 50, |_, _| {});
        assert_eq!(counter(&left, "units_sent"), 0);
    }
}

/// Messages of a few packets each are not long, but many at a time are.
#[test]
fn many_messages_of_a_few_packets_go_by_the_stream() {
    for is_copied in [true, false] {
        let (mut left, to_right, mut right) = connected([true, true]);
        open_stream(&mut left, to_right, &mut right);
        let before = counter(&left, "units_sent");
        for number in 0..32_u8 {
            let message = vec![number; 4_000];
            match is_copied {
                true => left.send_copy_to(&message, to_right).unwrap(),
                false => left.send_to(message, to_right).unwrap(),
            }
        }
        left.flush().unwrap();
        assert!(counter(&left, "units_sent") > before, "{}", left.stats());
        for number in 0..32_u8 {
            wait_until("the message", || {
                left.wait(Duration::ZERO).unwrap();
                right.try_receive().unwrap().is_some_and(|message| message.to_vec() == [number; 4_000])
            });
        }
    }
}

/// One end cuts the stream again and again, with units in flight.
#[test]
fn a_cut_stream_loses_no_message() {
    let (mut left, to_right, mut right) = connected([true, true]);
    converse(&mut left, to_right, &mut right, 600, |number, left| {
        if number % 200 == 99
            && let Some(streams) = &mut left.streams
        {
            streams.cut_all();
        }
    });
    assert!(counter(&left, "streams_cut") > 0, "{}", left.stats());
    assert!(counter(&left, "units_sent_again") > 0, "{}", left.stats());
}

#[test]
fn long_messages_are_not_copied_by_the_receiver() {
    let (mut left, to_right, mut right) = connected([true, true]);
    open_stream(&mut left, to_right, &mut right);
    let before = right.ledger();
    for number in 0..20_u8 {
        let (mut is_sent, mut is_here) = (false, false);
        wait_until("the message", || {
            is_sent = is_sent || left.send_to(vec![number; 1 << 20], to_right).is_ok();
            left.flush().unwrap();
            left.wait(Duration::ZERO).unwrap();
            if let Some(message) = right.try_receive().unwrap() {
                is_here = message.as_slice().is_some_and(|bytes| bytes == vec![number; 1 << 20]);
                assert!(is_here, "message {number} is not in one piece");
            }
            is_here
        });
    }
    let copied = |ledger: Ledger| ledger.bytes_of(Evidence::Copied(Cause::BelowThreshold));
    let again = copied(right.ledger()) - copied(before);
    assert!(again < 20 << 10, "{again} bytes were copied once more");
}

/// A connection to the TCP port that names no connection of the endpoint is closed, and there are never many.
#[test]
fn a_stream_that_names_no_connection_is_closed() {
    use std::io::{Read, Write};
    let mut endpoint = bind(true);
    let mut wrong = std::net::TcpStream::connect(endpoint.local_addr()).unwrap();
    wrong.write_all(&[7; 100]).unwrap();
    wrong.set_nonblocking(true).unwrap();
    wait_until("the wrong one is closed", || {
        endpoint.wait(Duration::ZERO).unwrap();
        let read = wrong.read(&mut [0; 10]);
        matches!(read, Ok(0)) || matches!(&read, Err(error) if error.kind() == io::ErrorKind::ConnectionReset)
    });
    let silent: Vec<_> =
        (0..100).map(|_| std::net::TcpStream::connect(endpoint.local_addr()).unwrap()).collect();
    wait_until("more than may wait are closed", || {
        endpoint.wait(Duration::ZERO).unwrap();
        counter(&endpoint, "streams_refused") >= 1 + 100 - 32
    });
    drop(silent);
}

/// Runs both endpoints until the left one has a stream to the right one.
fn open_stream(left: &mut Endpoint, to_right: Peer, right: &mut Endpoint) {
    wait_until("a stream, and nothing in flight", || {
        // On a machine that stalls, it may take several attempts.
        if left.in_flight() == 0 && !left.protocol.has_stream(to_right) {
            converse(left, to_right, right, 3, |_, _| {});
        }
        left.wait(Duration::ZERO).unwrap();
        right.wait(Duration::ZERO).unwrap();
        left.protocol.has_stream(to_right) && left.in_flight() == 0
    });
}

/// Ends the left endpoint's connection and connects it to another endpoint, under the same index.
fn replace_peer(left: &mut Endpoint, to_right: Peer) -> (Peer, Endpoint) {
    left.abort(to_right);
    let (to_next, next) = connect_another(left);
    assert_eq!((to_next.index(), to_next == to_right), (to_right.index(), false));
    (to_next, next)
}

/// Connects another endpoint to it.
fn connect_another(left: &mut Endpoint) -> (Peer, Endpoint) {
    let mut next = bind(true);
    let to_next = left.start_connect(next.local_addr()).unwrap();
    wait_until("the next connection", || {
        left.wait(Duration::ZERO).unwrap();
        next.wait(Duration::ZERO).unwrap();
        std::iter::from_fn(|| left.poll_event())
            .any(|event| matches!(event, Event::Connected(peer, _) if peer == to_next))
    });
    (to_next, next)
}

/// Calls for a peer that is gone do not affect the peer that has its index now.
#[test]
fn a_gone_peer_leaves_the_stream_of_its_successor() {
    let (mut left, to_right, mut right) = connected([true, true]);
    open_stream(&mut left, to_right, &mut right);
    let (to_next, mut next) = replace_peer(&mut left, to_right);
    open_stream(&mut left, to_next, &mut next);
    for touch in [
        |left: &mut Endpoint, gone| assert!(left.send_to(vec![1; 9_000], gone).is_err()),
        |left: &mut Endpoint, gone| left.abort(gone),
    ] {
        let before = counter(&left, "units_sent");
        converse(&mut left, to_next, &mut next, 50, |number, left| {
            if number == 25 {
                touch(left, to_right);
            }
        });
        assert!(counter(&left, "units_sent") > before + 10, "{}", left.stats());
    }
    assert_eq!(counter(&left, "units_sent_again"), 0, "{}", left.stats());
}

#[test]
fn a_stream_lost_late_leaves_that_of_a_successor() {
    let (mut left, to_right, mut right) = connected([true, true]);
    open_stream(&mut left, to_right, &mut right);
    let put_back = left.streams.as_mut().unwrap().set_aside();
    let (to_next, mut next) = replace_peer(&mut left, to_right);
    open_stream(&mut left, to_next, &mut next);
    put_back(left.streams.as_mut().unwrap());
    wait_until("it is lost", || {
        left.wait(Duration::ZERO).unwrap();
        counter(&left, "streams_cut") == 1
    });
    converse(&mut left, to_next, &mut next, 50, |_, _| {});
    assert_eq!(counter(&left, "units_sent_again"), 0, "{}", left.stats());
}

/// Waiting for everything to be acknowledged sends a unit that is being filled, too.
#[test]
fn a_unit_that_is_being_filled_is_in_flight() {
    let (mut left, to_right, mut right) = connected([true, true]);
    open_stream(&mut left, to_right, &mut right);
    left.send_copy_to(&[1; 30_000], to_right).unwrap();
    assert!(left.streams.as_ref().unwrap().any_open().is_some(), "it goes by the stream");
    assert_eq!(left.in_flight(), 1);
    assert!(!left.drain(Duration::ZERO).unwrap());
}

/// What goes alone and takes few packets goes by datagrams, and what follows it by the stream, behind it.
#[test]
fn a_message_alone_goes_by_datagrams_and_those_behind_it_by_the_stream() {
    let (mut left, to_right, mut right) = connected([true, true]);
    open_stream(&mut left, to_right, &mut right);
    for round in 0..3_u8 {
        let before = counter(&left, "units_sent");
        let messages = [10_000, 20_000, 9_000].map(|bytes| vec![round; bytes]);
        messages.iter().for_each(|message| left.send_copy_to(message, to_right).unwrap());
        left.flush().unwrap();
        assert_eq!(counter(&left, "units_sent") - before, 1, "{}", left.stats());
        for message in messages {
            wait_until("the message", || {
                left.wait(Duration::ZERO).unwrap();
                right.try_receive().unwrap().is_some_and(|came| came.to_vec() == message)
            });
        }
        wait_until("nothing in flight", || {
            left.wait(Duration::ZERO).unwrap();
            right.wait(Duration::ZERO).unwrap();
            left.in_flight() == 0
        });
    }
}

/// An endless wait ends when a stream is cut, and its units become packets. A stream that is read at each
/// look is not watched; a message by it ends a sleep all the same, in a wait and of a program that polls.
#[test]
fn a_stream_that_was_read_by_looks_ends_a_sleep() {
    let (mut left, to_right, mut right) = connected([true, true]);
    open_stream(&mut left, to_right, &mut right);
    for polls in [false, true] {
        send_and_look(&mut left, to_right, &mut right);
        wait_until("it is not watched", || {
            assert!(right.try_receive().unwrap().is_none());
            right.streams.as_ref().unwrap().has_unwatched()
        });
        while right.poll_event().is_some() {}
        let is_there = match polls {
            true => right.arm().unwrap(),
            false => right.receive_timeout(Duration::from_millis(1)).unwrap().is_some(),
        };
        // A wait polls it beside the sockets; the descriptor of the endpoint has to have it.
        assert!(!is_there && right.streams.as_ref().unwrap().has_unwatched() != polls);
        left.send_to(message(6), to_right).unwrap();
        left.flush().unwrap();
        if polls {
            let woken = wait_readable(right.as_fd(), PATIENCE);
            assert_eq!(woken.unwrap(), Wakeup::Ready);
        }
        let came = right.receive_timeout(PATIENCE).unwrap();
        assert!(came.expect("it came by the stream").to_vec() == message(6));
    }
}

/// Sends a long message, which the right end takes by looks without a sleep.
fn send_and_look(left: &mut Endpoint, to_right: Peer, right: &mut Endpoint) {
    left.send_to(message(2), to_right).unwrap();
    left.flush().unwrap();
    wait_until("a message", || {
        left.wait(Duration::ZERO).unwrap();
        right.try_receive().unwrap().is_some()
    });
}

#[test]
fn a_cut_ends_a_wait() {
    let (mut left, to_right, mut right) = connected([true, true]);
    open_stream(&mut left, to_right, &mut right);
    let waits = std::thread::spawn(move || {
        while !left.streams.as_ref().unwrap().has_cut() {
            left.wait_beside(None, false).unwrap();
        }
    });
    right.streams.as_mut().unwrap().cut_all();
    wait_until("the wait ends", || waits.is_finished());
    waits.join().unwrap();
}

/// The client opens it, and another one when the server has lost its end, which only that knows.
#[test]
fn a_server_asks_for_its_stream() {
    let (mut left, to_right, mut right) = connected([true, true]);
    left.send_copy_to(b"hello", to_right).unwrap();
    left.flush().unwrap();
    let mut to_left = None;
    wait_until("the first message", || {
        to_left = right.try_receive().unwrap().map(|message| message.peer());
        to_left.is_some()
    });
    let to_left = to_left.unwrap();
    for _ in 0..2 {
        let before = counter(&left, "streams_attached");
        wait_until("another stream", || {
            let _ = right.send_to(vec![7; 100_000], to_left); // unless there is no room
            right.flush().unwrap();
            right.wait(Duration::ZERO).unwrap();
            while left.try_receive().unwrap().is_some() {}
            counter(&left, "streams_attached") > before && right.protocol.has_stream(to_left)
        });
        let now = right.now();
        right.protocol.stream_cut(now, to_left);
    }
    // Two, unless the machine stalls: each in the place of the one before.
    assert_eq!(counter(&left, "streams_cut"), counter(&left, "streams_attached") - 1);
}

/// A peer has at most one stream.
#[test]
fn a_stream_replaces_the_one_before() {
    use std::io::{Read, Write};

    use nocopy_proto::message::wire::ATTACHED_BYTES;
    let (mut left, to_right, mut right) = connected([true, true]);
    open_stream(&mut left, to_right, &mut right);
    let (path, attach) = left.protocol.want_stream(to_right).unwrap().unwrap();
    let mut words = Vec::new();
    attach.emit(&mut words);
    let more: Vec<_> = (0..5)
        .map(|number| {
            let mut stream = std::net::TcpStream::connect(path.remote).unwrap();
            stream.write_all(&words).unwrap();
            wait_until("it is attached", || {
                right.wait(Duration::ZERO).unwrap();
                counter(&right, "streams_attached") == 2 + number
            });
            stream.read_exact(&mut [0; ATTACHED_BYTES]).unwrap();
            stream
        })
        .collect();
    assert_eq!(counter(&right, "streams_cut"), 5, "{}", right.stats());
    assert!(right.explain().to_string().contains("1 TCP stream"), "{}", right.explain());
    drop(more);
}

#[test]
fn bytes_by_a_stream_are_counted_once() {
    let (mut left, to_right, mut right) = connected([true, true]);
    open_stream(&mut left, to_right, &mut right);
    let before = [left.ledger(), right.ledger()];
    let sent = 10 * (30_000 + 300_000);
    for number in 0..20 {
        let bytes = [30_000, 300_000][number % 2]; // a part of the long one is copied where it came
        wait_until("room for the message", || {
            left.wait(Duration::ZERO).unwrap();
            right.wait(Duration::ZERO).unwrap();
            left.send_copy_to(&vec![1; bytes], to_right).is_ok()
        });
        left.flush().unwrap();
        wait_until("the message", || {
            left.wait(Duration::ZERO).unwrap();
            right.try_receive().unwrap().is_some_and(|message| message.len() == bytes)
        });
    }
    let slices = |ledger: Ledger| ledger.bytes_of(Evidence::Copied(Cause::Slice));
    assert_eq!(slices(left.ledger()) - slices(before[0]), sent);
    for (endpoint, before) in [left, right].iter().zip(before) {
        let counted = endpoint.ledger().bytes() - before.bytes();
        assert!((sent..sent + sent / 50).contains(&counted), "{counted} bytes of {sent}");
    }
}

/// With port number 0 an endpoint has streams, though TCP uses many of the ports that the kernel would
/// choose.
#[test]
fn a_port_is_chosen_that_is_free_for_tcp() {
    use std::net::TcpListener;
    let taken: Vec<_> = (0..200).map_while(|_| TcpListener::bind("127.0.0.1:0").ok()).collect();
    for _ in 0..50 {
        assert!(bind(true).streams.is_some(), "{} ports are taken", taken.len());
    }
    let address = taken[0].local_addr().unwrap();
    let at_one = Endpoint::builder().streams(true).bind(address).unwrap();
    assert!(at_one.streams.is_none(), "that port was asked for");
}

/// A peer that acknowledges nothing stops its sender, which keeps no more than the window; and is lost in the
/// end.
#[test]
fn a_peer_that_acknowledges_nothing_is_refused_and_lost() {
    let impatient =
        || Endpoint::builder().keep_alive(Duration::from_millis(500)).dead_after(Duration::from_secs(2));
    let (mut left, to_right, mut right) = tests::connected([impatient(), impatient()]);
    open_stream(&mut left, to_right, &mut right);
    let (mut accepted, mut refused, mut lost) = (0, 0, None);
    wait_until("the peer is lost", || {
        for _ in 0..50 {
            match left.send_to(vec![1; 100_000], to_right) {
                Ok(()) => accepted += 1,
                Err(rejected) => {
                    refused += 1;
                    let reason = rejected.reason;
                    assert!(matches!(reason, Reason::Full | Reason::Gone), "{reason}");
                }
            }
        }
        assert!(left.in_flight() <= left.window_packets, "{} of {}", left.in_flight(), left.window_packets);
        left.wait(Duration::ZERO).unwrap();
        lost = std::iter::from_fn(|| left.poll_event()).find(|event| matches!(event, Event::Lost(..)));
        lost.is_some()
    });
    assert!(refused > 0 && accepted * 100_000 < left.window_packets * 1_500, "{accepted}, {refused}");
    wait_until("nothing is kept for it", || {
        left.wait(Duration::ZERO).unwrap();
        left.in_flight() == 0
    });
}

/// A sender whose window is always full begins units with little room, some behind a packet that was not
/// queued yet.
#[test]
fn units_of_a_full_window_are_all_there() {
    let (mut left, to_right, mut right) = connected([true, true]);
    open_stream(&mut left, to_right, &mut right);
    let numbered = |number: u32| [&number.to_be_bytes()[..], &[7; 1_000]].concat();
    let (mut sent, mut received) = (0_u32, 0_u32);
    wait_until("all messages", || {
        for _ in 0..100 {
            while sent < 60_000 && left.send_copy_to(&numbered(sent), to_right).is_ok() {
                sent += 1;
            }
            left.flush().unwrap();
            left.wait(Duration::ZERO).unwrap();
            while left.poll_event().is_some() {}
            for _ in 0..37 {
                let Some(came) = right.try_receive().unwrap() else { break };
                assert!(came.to_vec() == numbered(received), "message {received}");
                received += 1;
            }
            while right.poll_event().is_some() {}
        }
        received == 60_000
    });
    assert!(counter(&left, "units_sent") > 100, "{}", left.stats());
}
