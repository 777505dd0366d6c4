mod puts;

use std::time::Duration;

use nocopy_lab::patience::wait_until;

use crate::facts::evidence::{Cause, Evidence};
use crate::memory::pool::{Buffer, Pool};
use crate::message::{Endpoint, Event, Message, Peer, tests};

const SECOND: Duration = Duration::from_secs(1);
const BYTES: usize = 1 << 20;

/// Tries again and again without a pause, since two endpoints in one thread take turns; then as
/// [`wait_until`].
fn repeat_until(what: &str, mut is_true: impl FnMut() -> bool) {
    wait_until(what, || (0..100).any(|_| is_true()));
}

/// Two endpoints, the left one connected to the right one.
fn connected(streams: bool) -> (Endpoint, Peer, Endpoint) {
    connected_for(streams, BYTES)
}

fn connected_for(streams: bool, message_bytes: usize) -> (Endpoint, Peer, Endpoint) {
    let builder = Endpoint::builder().streams(streams).max_message_bytes(message_bytes);
    let (mut left, to_right, mut right) = tests::connected([builder.clone(), builder]);
    if streams {
        wait_until("a stream", || {
            if left.in_flight() == 0 {
                left.send_to(vec![1; 9_000], to_right).unwrap(); // opens the stream
            }
            left.wait(Duration::ZERO).unwrap();
            drop(right.try_receive().unwrap());
            left.protocol.has_stream(to_right)
        });
        wait_until("the first message is acknowledged", || {
            drop(right.try_receive().unwrap());
            left.wait(Duration::ZERO).unwrap();
            left.in_flight() == 0
        });
    }
    (left, to_right, right)
}

fn counter(endpoint: &Endpoint, name: &str) -> u64 {
    endpoint.stats().get(name).unwrap()
}

/// Bytes that depend on a number.
fn bytes_of(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ number) as u8).collect()
}

/// Sends a message, and gives it to `read` once it has arrived.
fn deliver<T>(
    left: &mut Endpoint,
    to_right: Peer,
    right: &mut Endpoint,
    message: &[u8],
    read: impl FnOnce(Message<'_>) -> T,
) -> T {
    let (mut is_sent, mut read, mut result) = (false, Some(read), None);
    repeat_until("the message", || {
        is_sent = is_sent || left.send_to(message.to_vec(), to_right).is_ok();
        left.wait(Duration::ZERO).unwrap();
        while left.poll_event().is_some() {}
        while right.poll_event().is_some() {}
        if let Some(came) = right.try_receive().unwrap() {
            assert!(came.to_vec() == message, "{came:?}");
            result = read.take().map(|read| read(came));
        }
        result.is_some()
    });
    result.expect("it was read")
}

fn pool(buffers: u32) -> Pool {
    Pool::new(buffers, BYTES).unwrap()
}

fn address(buffer: &[u8]) -> *const u8 {
    buffer.as_ptr()
}

#[test]
fn a_stream_is_read_straight_into_posted_buffers() {
    let (mut left, to_right, mut right) = connected(true);
    let pool = pool(1);
    let before = right.ledger();
    for number in 0..20 {
        let buffer = pool.take().unwrap();
        let first_byte = address(&buffer);
        right.post(buffer).unwrap();
        let message = bytes_of(number, BYTES - number);
        deliver(&mut left, to_right, &mut right, &message, |came| {
            let buffer = Buffer::try_from(came).unwrap();
            assert_eq!(address(&buffer), first_byte, "the buffer that was posted");
            assert!(buffer[..] == message[..]);
        });
    }
    assert_eq!((counter(&right, "messages_placed"), counter(&right, "messages_gathered")), (20, 0));
    let copied = |cause| {
        let of = Evidence::Copied(cause);
        right.ledger().bytes_of(of) - before.bytes_of(of)
    };
    assert!(copied(Cause::SocketCall) > 19 * BYTES as u64, "by the kernel: {}", right.ledger());
    assert_eq!(copied(Cause::Gathered), 0, "{}", right.ledger());
    assert!(copied(Cause::BelowThreshold) < 4_000, "short datagrams, no messages: {}", right.ledger());
}

#[test]
fn datagrams_are_gathered_into_posted_buffers_once() {
    let (mut left, to_right, mut right) = connected(false);
    let pool = pool(1);
    let bytes_before = right.ledger().bytes();
    let mut sent = 0;
    for number in 0..5 {
        right.post(pool.take().unwrap()).unwrap();
        let message = bytes_of(number, 300_000);
        sent += message.len() as u64;
        deliver(&mut left, to_right, &mut right, &message, |came| {
            assert!(Buffer::try_from(came).unwrap()[..] == message[..]);
        });
    }
    let ledger = right.ledger();
    assert_eq!((counter(&right, "messages_placed"), counter(&right, "messages_gathered")), (0, 5));
    assert_eq!(ledger.bytes_of(Evidence::Copied(Cause::Gathered)), sent);
    let packets = sent / 1_400 + 10;
    let bytes = ledger.bytes() - bytes_before;
    assert!((sent..sent + packets * 100).contains(&bytes), "each byte is counted once: {bytes} of {sent}");
}

/// Messages of all lengths, one by one and many together, with buffers that are long enough for some of them.
#[test]
fn every_long_message_is_placed_and_no_other() {
    for streams in [true, false] {
        let (mut left, to_right, mut right) = connected(streams);
        let short = Pool::new(1, 20_000).unwrap();
        let long = pool(1);
        right.post(short.take().unwrap()).unwrap();
        right.post(long.take().unwrap()).unwrap();
        let lengths = [0, 10, 8_191, 8_192, 9_000, 20_000, 20_481, 64 << 10, 300_000, BYTES];
        let (mut sent, mut received) = (0, 0);
        let of = |number: usize| bytes_of(number, lengths[number * 7 % lengths.len()]);
        repeat_until("all messages", || {
            while sent < 100 {
                let result = match sent % 3 {
                    0 => left.send_to(of(sent), to_right).map_err(drop),
                    _ => left.send_copy_to(&of(sent), to_right).map_err(drop),
                };
                if result.is_err() {
                    break;
                }
                sent += 1;
            }
            left.flush().unwrap();
            left.wait(Duration::ZERO).unwrap();
            while left.poll_event().is_some() {}
            while right.poll_event().is_some() {}
            let mut check = |message: &Message<'_>| {
                assert!(message.to_vec() == of(received), "message {received}");
                received += 1;
            };
            // A message that is dropped leaves its buffer posted; one that is not placed is returned.
            right
                .try_receive_each(|message| {
                    check(&message);
                    let bytes = message.len();
                    if bytes < 8 << 10 {
                        assert!(Buffer::try_from(message).is_err(), "{bytes} bytes");
                    }
                })
                .unwrap();
            received == 100
        });
        let placed = counter(&right, "messages_placed") + counter(&right, "messages_gathered");
        // Messages for which a buffer was long enough. If several arrived before the first was read, one may
        // have found none.
        assert!(placed > 25, "{}", right.stats());
        drop(right);
        assert_eq!((short.available(), long.available()), (1, 1), "dropped with the endpoint");
    }
}

#[test]
fn a_message_that_is_longer_than_the_buffer_comes_without_it() {
    for streams in [true, false] {
        let (mut left, to_right, mut right) = connected(streams);
        let pool = Pool::new(1, 8 << 10).unwrap();
        right.post(pool.take().unwrap()).unwrap();
        deliver(&mut left, to_right, &mut right, &bytes_of(1, BYTES), |came| {
            let came = Buffer::try_from(came).expect_err("it has no room");
            assert_eq!(came.len(), BYTES);
        });
        deliver(&mut left, to_right, &mut right, &bytes_of(2, 8 << 10), |came| {
            assert_eq!(Buffer::try_from(came).unwrap().len(), 8 << 10);
        });
    }
}

#[test]
fn a_taken_message_keeps_its_buffer_and_a_dropped_one_posts_it() {
    let (mut left, to_right, mut right) = connected(true);
    let pool = pool(1);
    right.post(pool.take().unwrap()).unwrap();
    for number in 0..3 {
        let message = bytes_of(number, BYTES);
        deliver(&mut left, to_right, &mut right, &message, |came| assert!(came.as_slice().is_some()));
    }
    assert_eq!(counter(&right, "messages_placed"), 3);
    let taken = deliver(&mut left, to_right, &mut right, &bytes_of(9, BYTES), |came| came.take());
    deliver(&mut left, to_right, &mut right, &bytes_of(4, BYTES), |came| {
        assert!(Buffer::try_from(came).is_err(), "no buffer is posted");
    });
    assert_eq!((counter(&right, "messages_placed"), pool.available()), (4, 0));
    drop(taken);
    assert_eq!(pool.available(), 1);
}

/// A stream that is cut in the middle of a message keeps its buffer for the same message, which the next one
/// brings again.
#[test]
fn a_cut_stream_leaves_the_buffer_to_what_is_sent_again() {
    const LONG: usize = 16 << 20; // more than the kernel holds on its way
    let (mut left, to_right, mut right) = connected_for(true, LONG);
    let pool = Pool::new(1, LONG).unwrap();
    let buffer = pool.take().unwrap();
    let first_byte = address(&buffer);
    right.post(buffer).unwrap();
    let message = bytes_of(1, LONG);
    left.send_to(message.clone(), to_right).unwrap();
    left.try_flush().unwrap();
    wait_until("a part of it", || {
        right.wait(Duration::ZERO).unwrap();
        !right.posted.as_ref().unwrap().has_any()
    });
    assert!(!right.has_message());
    left.streams.as_mut().unwrap().cut_all();
    repeat_until("the message", || {
        left.wait(Duration::ZERO).unwrap();
        let Some(came) = right.try_receive().unwrap() else { return false };
        let buffer = Buffer::try_from(came).expect("it was placed");
        assert_eq!(address(&buffer), first_byte);
        assert!(buffer[..] == message[..]);
        true
    });
    assert_eq!((counter(&right, "messages_placed"), counter(&right, "messages_gathered")), (1, 0));
}

/// A stream that stops within a message is cut although there is plenty of memory: nothing else has the
/// buffer.
#[test]
fn a_message_that_stops_gives_its_buffer_back() {
    const LONG: usize = 16 << 20; // more than the kernel holds on its way
    let (mut left, to_right, mut right) = connected_for(true, LONG);
    let pool = Pool::new(1, LONG).unwrap();
    right.post(pool.take().unwrap()).unwrap();
    left.send_to(bytes_of(1, LONG), to_right).unwrap();
    left.try_flush().unwrap();
    wait_until("a part of it", || {
        right.wait(Duration::ZERO).unwrap();
        !right.posted.as_ref().unwrap().has_any()
    });
    let before = counter(&right, "streams_cut");
    wait_until("the buffer is posted again", || {
        right.wait(Duration::from_secs(1)).unwrap();
        right.posted.as_ref().unwrap().has_any()
    });
    assert_eq!((counter(&right, "streams_cut"), right.has_message()), (before + 1, false));
    repeat_until("the message", || {
        left.wait(Duration::ZERO).unwrap();
        right.try_receive().unwrap().is_some_and(|came| came.len() == LONG)
    });
}
