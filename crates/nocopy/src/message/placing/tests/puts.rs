use std::collections::VecDeque;
use std::time::Instant;

use super::*;
use crate::facts::rejected::Reason;
use crate::message::{PutRefusal, Region};

/// Two connected endpoints, left and right, each followed by its handle of the other.
fn pair(streams: bool, message_bytes: usize) -> (Endpoint, Peer, Endpoint, Peer) {
    let builder = || Endpoint::builder().streams(streams).max_message_bytes(message_bytes);
    let bind = || builder().bind("127.0.0.1:0").unwrap();
    let (mut left, mut right) = (bind(), bind());
    let (to_right, to_left) = meet(&mut left, &mut right);
    (left, to_right, right, to_left)
}

/// Connects the left endpoint to the right one; returns what each calls the other.
fn meet(left: &mut Endpoint, right: &mut Endpoint) -> (Peer, Peer) {
    let to_right = left.start_connect(right.local_addr()).unwrap();
    let mut to_left = None;
    repeat_until("a connection", || {
        left.wait(Duration::ZERO).unwrap();
        right.wait(Duration::ZERO).unwrap();
        if let Some(Event::Accepted(peer, _)) = right.poll_event() {
            to_left = Some(peer);
        }
        to_left.is_some()
    });
    while left.poll_event().is_some() {}
    (to_right, to_left.unwrap())
}

/// Puts, and their results on both sides.
#[derive(Default)]
struct Exchange {
    to_put: VecDeque<(Region, u64, Vec<u8>)>,
    sent: usize,
    placed: Vec<(Region, u64, usize)>,
    answered: Vec<Result<(), PutRefusal>>,
    /// Puts that were repeated to open a stream, which are not counted otherwise.
    repeated: usize,
}

impl Exchange {
    fn put(&mut self, region: Region, offset: u64, bytes: Vec<u8>) {
        self.to_put.push_back((region, offset, bytes));
    }

    /// Runs both endpoints once.
    fn step(&mut self, left: &mut Endpoint, to_right: Peer, right: &mut Endpoint) {
        while let Some((region, offset, bytes)) = self.to_put.pop_front() {
            match left.put(bytes, to_right, region, offset) {
                Ok(_) => self.sent += 1,
                Err(rejected) => {
                    assert!(matches!(rejected.reason, Reason::Full), "{rejected}");
                    let [bytes] = &rejected.item.into_iter().collect::<Vec<_>>()[..] else {
                        panic!("one buffer")
                    };
                    self.to_put.push_front((region, offset, bytes.to_vec()));
                    break;
                }
            }
        }
        left.wait(Duration::ZERO).unwrap();
        right.wait(Duration::ZERO).unwrap();
        while let Some(event) = left.poll_event() {
            match event {
                Event::PutDone(peer, number) => {
                    assert_eq!((peer, number as usize), (to_right, self.repeated + self.answered.len()));
                    self.answered.push(Ok(()));
                }
                Event::PutRefused(peer, number, refusal) => {
                    assert_eq!((peer, number as usize), (to_right, self.repeated + self.answered.len()));
                    self.answered.push(Err(refusal));
                }
                Event::Writable(peer) => assert_eq!(peer, to_right),
                event => panic!("{event:?}"),
            }
        }
        while let Some(event) = right.poll_event() {
            let Event::Placed { region, offset, bytes, .. } = event else { panic!("{event:?}") };
            self.placed.push((region, offset, bytes));
        }
    }

    /// Makes the connection for puts, and its stream, with a put that is repeated until there is one.
    fn open_stream(&mut self, region: Region, left: &mut Endpoint, to_right: Peer, right: &mut Endpoint) {
        let mut put: Option<Instant> = None;
        repeat_until("a stream for puts", || {
            // A stream that was not opened in time is not tried again at once.
            if put.is_none_or(|put| put.elapsed() > 2 * SECOND) {
                self.put(region, 0, vec![1; 10_000]);
                put = Some(Instant::now());
            }
            self.step(left, to_right, right);
            counter(left, "streams_attached") > 0
        });
        self.finish(left, to_right, right);
        self.repeated = self.sent - 1;
        self.answered.truncate(1);
        self.placed.truncate(1);
    }

    fn finish(&mut self, left: &mut Endpoint, to_right: Peer, right: &mut Endpoint) {
        let puts = self.sent + self.to_put.len();
        repeat_until("answers", || {
            self.step(left, to_right, right);
            self.repeated + self.answered.len() == puts
        });
    }
}

/// Puts of all lengths, some of which overlap, are done in their order, whichever way they go.
#[test]
fn puts_are_done_in_order_by_streams_and_datagrams() {
    for streams in [true, false] {
        let (mut left, to_right, mut right, to_left) = pair(streams, BYTES);
        let region = right.register(pool(1).take().unwrap(), to_left).unwrap();
        assert_eq!(region.bytes, BYTES as u64);
        let (mut exchange, mut expected) = (Exchange::default(), vec![0; BYTES]);
        if streams {
            exchange.open_stream(region, &mut left, to_right, &mut right);
        } else {
            exchange.put(region, 0, vec![1; 10_000]);
        }
        expected[..10_000].fill(1);
        for number in 0..150_usize {
            let length = [0, 8, 300, 9_000, 200_000, 20_000, 700_000][number % 7];
            let offset = number * 54_321 % (BYTES - length);
            let bytes = bytes_of(number, length);
            expected[offset..offset + length].copy_from_slice(&bytes);
            exchange.put(region, offset as u64, bytes);
        }
        exchange.finish(&mut left, to_right, &mut right);
        assert_eq!(exchange.answered, [Ok(()); 151]);
        assert_eq!(exchange.placed.len(), 151);
        assert!(right.read_region(region, |bytes| bytes == expected).unwrap());
        let straight = counter(&right, "puts_placed");
        assert_eq!((counter(&right, "puts_gathered") + straight, straight > 20), (151, streams));
        assert_eq!((counter(&left, "puts_sent"), counter(&right, "puts_refused")), (151, 0));
        assert!(right.withdraw(region).unwrap()[..] == expected[..]);
        assert!(right.withdraw(region).is_none() && right.read_region(region, |_| ()).is_none());
        assert!(left.drain(10 * super::SECOND).unwrap() && right.poll_event().is_none());
    }
}

/// A stream is read straight into the region: the ledger shows no further copy.
#[test]
fn long_puts_are_not_copied_in_user_space() {
    let (mut left, to_right, mut right, to_left) = pair(true, 2 * BYTES);
    let region = right.register(Pool::new(1, 2 * BYTES).unwrap().take().unwrap(), to_left).unwrap();
    let mut exchange = Exchange::default();
    exchange.open_stream(region, &mut left, to_right, &mut right);
    let before = right.ledger();
    for number in 0..20 {
        exchange.put(region, number * 1_000, bytes_of(number as usize, BYTES));
        exchange.finish(&mut left, to_right, &mut right);
    }
    let copied =
        |cause| right.ledger().bytes_of(Evidence::Copied(cause)) - before.bytes_of(Evidence::Copied(cause));
    assert_eq!(counter(&right, "puts_placed"), 20, "{}", right.stats());
    assert_eq!(copied(Cause::Gathered), 0, "{}", right.ledger());
    assert!(copied(Cause::BelowThreshold) < 20_000, "short datagrams: {}", right.ledger());
    assert!(copied(Cause::SocketCall) > 19 * BYTES as u64, "by the kernel: {}", right.ledger());
}

/// A put that is read when its region is withdrawn is refused, and writes no more; the buffer comes back at
/// once.
#[test]
fn a_region_is_withdrawn_in_the_middle_of_a_put() {
    const LONG: usize = 15 << 20; // more than the kernel holds on its way
    let (mut left, to_right, mut right, to_left) = pair(true, 16 << 20);
    let pool = Pool::new(1, LONG).unwrap();
    let region = right.register(pool.take().unwrap(), to_left).unwrap();
    let mut exchange = Exchange::default();
    exchange.open_stream(region, &mut left, to_right, &mut right);
    exchange.put(region, 0, vec![9; LONG]);
    exchange.put(region, 0, vec![9; 100]);
    repeat_until("a part of it", || {
        exchange.step(&mut left, to_right, &mut right);
        right.read_region(region, |bytes| bytes[0]).unwrap() == 9
    });
    let buffer = right.withdraw(region).unwrap();
    assert_eq!((buffer[0], buffer[LONG - 1]), (9, 0), "a part of the bytes is there");
    let before = buffer.to_vec();
    let again = right.register(buffer, to_left).unwrap();
    exchange.put(again, 5, vec![8; 10]);
    exchange.finish(&mut left, to_right, &mut right);
    let refused = Err(PutRefusal::NoRegion);
    assert_eq!(exchange.answered, [Ok(()), refused, refused, Ok(())]);
    assert_eq!(exchange.placed, [(region, 0, 10_000), (again, 5, 10)]);
    let after = right.withdraw(again).unwrap();
    assert!(after[..5] == before[..5] && after[5..15] == [8; 10] && after[15..] == before[15..]);
}

/// A stream that is cut in the middle of a put loses nothing: it comes again, by another one.
#[test]
fn a_cut_stream_loses_no_put() {
    const LONG: usize = 15 << 20;
    let (mut left, to_right, mut right, to_left) = pair(true, 16 << 20);
    let region = right.register(Pool::new(1, LONG).unwrap().take().unwrap(), to_left).unwrap();
    let mut exchange = Exchange::default();
    exchange.open_stream(region, &mut left, to_right, &mut right);
    let bytes = bytes_of(3, LONG);
    exchange.put(region, 0, bytes.clone());
    exchange.put(region, 7, vec![5; 9_000]);
    repeat_until("a part of it", || {
        exchange.step(&mut left, to_right, &mut right);
        right.read_region(region, |there| there[..1_000] == bytes[..1_000]).unwrap()
    });
    left.streams.as_mut().unwrap().cut_all();
    exchange.finish(&mut left, to_right, &mut right);
    assert_eq!(exchange.answered, [Ok(()); 3]);
    assert!(counter(&left, "units_sent_again") > 0);
    let there = right.withdraw(region).unwrap();
    assert!(there[..7] == bytes[..7] && there[7..9_007] == [5; 9_000] && there[9_007..] == bytes[9_007..]);
}

#[test]
fn what_cannot_be_put_is_refused_with_the_reason() {
    let (mut left, to_right, mut right, to_left) = pair(false, 100_000);
    let foreign = Region::from([1; 16]);
    let refused = |left: &mut Endpoint, region, offset, bytes: usize| {
        left.put(vec![0; bytes], to_right, region, offset).map_err(|rejected| {
            assert_eq!(rejected.item.into_iter().map(|buffer| buffer.len()).sum::<usize>(), bytes);
            rejected.reason
        })
    };
    // The right one has registered nothing: it refuses the connection for puts.
    let mut reason = refused(&mut left, foreign, 0, 10).unwrap_err();
    repeat_until("the peer says that it takes none", || {
        left.wait(Duration::ZERO).unwrap();
        right.wait(Duration::ZERO).unwrap();
        if left.poll_event() == Some(Event::Writable(to_right)) {
            reason = refused(&mut left, foreign, 0, 10).unwrap_err();
        }
        !matches!(reason, Reason::Full)
    });
    assert!(matches!(reason, Reason::NoRegion), "{reason}");
    let region = right.register(Pool::new(1, 4096).unwrap().take().unwrap(), to_left).unwrap();
    let reason = refused(&mut left, region, 4_000, 97).unwrap_err();
    assert!(matches!(reason, Reason::OutOfRange { start: 4_000, end: 4_097, bytes: 4_096 }), "{reason}");
    assert!(matches!(refused(&mut left, region, u64::MAX, 97), Err(Reason::OutOfRange { .. })));
    // This end may send a wrong region: the peer checks it, too.
    let mut lie = <[u8; 16]>::from(region);
    lie[8..].fill(255);
    let mut exchange = Exchange::default();
    exchange.put(Region::from(lie), 4_000, vec![1; 97]);
    exchange.put(Region::from(lie), u64::MAX - 5, vec![1; 4]);
    exchange.put(region, 4_000, vec![1; 96]);
    repeat_until("answers", || {
        exchange.step(&mut left, to_right, &mut right);
        exchange.answered.len() == 3
    });
    let outside = Err(PutRefusal::OutOfRange);
    assert_eq!(exchange.answered, [outside, outside, Ok(())]);
    let reason = right.put(vec![0; 4], to_left, region, 0).map_err(|rejected| rejected.reason);
    assert!(matches!(reason, Err(Reason::Full)), "{reason:?}");
    left.abort(to_right);
    assert!(matches!(refused(&mut left, region, 0, 1), Err(Reason::Gone)));
    repeat_until("the end", || {
        left.wait(Duration::ZERO).unwrap();
        right.wait(Duration::ZERO).unwrap();
        matches!(right.poll_event(), Some(Event::Lost(peer, _)) if peer == to_left)
    });
    assert_eq!((left.protocol.peers(), right.protocol.peers(), left.poll_event()), (0, 0, None));
    let rejected = right.register(Pool::new(1, 4096).unwrap().take().unwrap(), to_left).unwrap_err();
    assert!(matches!(rejected.reason, Reason::Gone) && right.withdraw(region).is_some());
}

/// Many short puts go by the stream, and so does an empty put that is alone in its unit.
#[test]
fn an_empty_put_alone_in_its_unit_is_done() {
    let (mut left, to_right, mut right, to_left) = pair(true, BYTES);
    let region = right.register(pool(1).take().unwrap(), to_left).unwrap();
    let mut exchange = Exchange::default();
    exchange.open_stream(region, &mut left, to_right, &mut right);
    for _ in 0..2 {
        (0..400).for_each(|_| exchange.put(region, 0, vec![2; 200]));
        exchange.finish(&mut left, to_right, &mut right);
    }
    exchange.put(region, 5, Vec::new());
    exchange.put(region, 6, vec![3; 1]);
    exchange.finish(&mut left, to_right, &mut right);
    assert_eq!(exchange.answered, [Ok(()); 803]);
    assert_eq!(counter(&right, "malformed"), 0);
}

/// The unread rest of a stream that its sender has cut does not overwrite later puts.
#[test]
fn the_rest_of_a_cut_stream_is_not_written() {
    const LONG: usize = 15 << 20;
    let (mut left, to_right, mut right, to_left) = pair(true, 16 << 20);
    let region = right.register(Pool::new(1, LONG).unwrap().take().unwrap(), to_left).unwrap();
    let mut exchange = Exchange::default();
    exchange.open_stream(region, &mut left, to_right, &mut right);
    exchange.put(region, 0, vec![4; LONG]);
    repeat_until("a part of it", || {
        exchange.step(&mut left, to_right, &mut right);
        right.read_region(region, |there| there[0]).unwrap() == 4
    });
    let restore = right.streams.as_mut().unwrap().set_aside();
    left.streams.as_mut().unwrap().cut_all();
    exchange.put(region, 0, vec![6; LONG]);
    exchange.finish(&mut left, to_right, &mut right);
    assert_eq!(exchange.answered, [Ok(()); 3]);
    restore(right.streams.as_mut().unwrap());
    right.streams.as_mut().unwrap().watch_last();
    repeat_until("the rest of the stream is read, and its end", || {
        exchange.step(&mut left, to_right, &mut right);
        counter(&right, "streams_cut") == 1
    });
    assert!(right.read_region(region, |there| there.iter().all(|byte| *byte == 6)).unwrap());
}

/// A connection without room for its answers does not delay the answers of others.
#[test]
fn a_connection_that_waits_is_passed_over() {
    let (mut left, to_right, mut right, to_left) = pair(false, BYTES);
    let mut other = Endpoint::bind("127.0.0.1:0").unwrap();
    let (other_to_right, to_other) = meet(&mut other, &mut right);
    let pool = pool(2);
    let mut ends = [(&mut left, to_right, to_left), (&mut other, other_to_right, to_other)];
    let regions = ends.each_ref().map(|(.., peer)| right.register(pool.take().unwrap(), *peer).unwrap());
    for ((end, to_right, _), region) in ends.iter_mut().zip(regions) {
        let mut exchange = Exchange::default();
        exchange.put(region, 0, vec![1; 10]);
        exchange.finish(end, *to_right, &mut right);
    }
    for ((end, to_right, _), region) in ends.iter_mut().zip(regions) {
        end.put(vec![2; 10], *to_right, region, 0).unwrap();
        end.flush().unwrap();
    }
    let mut found = Vec::new();
    repeat_until("both puts", || {
        right.look_at_all(false).unwrap();
        found.clear();
        while let Some(next) = right.protocol.peek_beside(|peer| !found.contains(&peer)) {
            found.push(next.is_of().0);
        }
        found.len() == 2
    });
    assert!(right.protocol.peek_beside(|_| false).is_none());
    repeat_until("both are done", || {
        right.wait(Duration::ZERO).unwrap();
        let is_done = |region| right.read_region(region, |bytes| bytes[0]).unwrap() == 2;
        regions.into_iter().all(is_done)
    });
}

/// At the limit of connections a put is refused at once, instead of letting the program wait.
#[test]
fn a_put_without_a_place_for_its_connection_is_refused() {
    let address = "127.0.0.1:0";
    let mut left = Endpoint::builder().peers_max(1).bind(address).unwrap();
    let mut right = Endpoint::bind(address).unwrap();
    let to_right = left.start_connect(right.local_addr()).unwrap();
    repeat_until("a connection", || {
        left.wait(Duration::ZERO).unwrap();
        right.wait(Duration::ZERO).unwrap();
        left.poll_event().is_some()
    });
    let mut lie = [0; 16];
    lie[8..].fill(255);
    let reason = left.put(vec![1; 10], to_right, Region::from(lie), 0).unwrap_err().reason;
    assert!(matches!(&reason, Reason::System(error) if error.to_string().contains("peers_max")), "{reason}");
}

/// A peer that has registered nothing refuses the connection for puts; the next put says so, and the one
/// after it asks again.
#[test]
fn a_peer_without_regions_refuses_puts_until_it_is_asked_again() {
    let (mut left, to_right, mut right, to_left) = pair(false, 1 << 16);
    let mut lie = [0; 16];
    lie[8..].fill(255);
    let attempt = |left: &mut Endpoint, right: &mut Endpoint| {
        left.wait(Duration::ZERO).unwrap();
        right.wait(Duration::ZERO).unwrap();
        left.put(vec![1; 10], to_right, Region::from(lie), 0).unwrap_err().reason
    };
    for round in 0..2 {
        assert!(matches!(attempt(&mut left, &mut right), Reason::Full), "round {round}: it is asked");
        repeat_until("the refusal", || match attempt(&mut left, &mut right) {
            Reason::NoRegion => true,
            reason => {
                assert!(matches!(reason, Reason::Full), "{reason}");
                false
            }
        });
    }
    let region = right.register(Pool::new(1, 4096).unwrap().take().unwrap(), to_left).unwrap();
    let mut bytes = Some(vec![7; 10]);
    repeat_until("the put", || {
        left.wait(Duration::ZERO).unwrap();
        right.wait(Duration::ZERO).unwrap();
        if let Some(given) = bytes.take() {
            let put = left.put(given.clone(), to_right, region, 0);
            bytes = put.is_err().then_some(given);
        }
        right.read_region(region, |bytes| bytes[..10] == [7; 10]).unwrap()
    });
}
