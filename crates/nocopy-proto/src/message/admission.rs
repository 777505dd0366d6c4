//! Which packets are kept when memory gets short (docs/protocol.md §8).
//!
//! * While more than half of the memory is free, all packets are kept.
//! * Otherwise each address keeps at most as many packets as are free, so that there is always memory for one
//!   more address, and each IPv6 network three times as many, since one host may have all addresses of a
//!   network.
//! * The last window, the *reserve*, belongs to one connection at a time, as does memory beyond an address's
//!   share. In its *turn* a message becomes complete, is read, and leaves the memory to the next. Otherwise
//!   parts of many messages could fill it for ever.
//! * Connections that do not use their turn, or that keep a part of a message without progress, are found
//!   here by the time that passes while packets of others are refused.

use std::net::IpAddr;

use super::Time;
use super::receive_window::Arrival;
use super::shares::Shares;
use super::shortage::Shortage;
use super::time::Span;
use super::waiting::Waiting;

/// How long a connection may keep memory that others need while its next packet in order does not arrive. A
/// sender without an answer repeats it after a second at most (docs/protocol.md §7.3).
const STALL: Span = Span::from_secs(3);
/// How long a connection may go without progress in its turn.
const TURN: Span = Span::from_secs(10);
/// An incomplete message makes progress with each such part of a window. A turn has no more parts than this,
/// so it ends, however few packets arrive at a time.
const PARTS: usize = 4;
/// How long a turn may last for which others wait, whatever progress it makes: the message that is being
/// received, and the one that has begun behind it, each with all parts.
const TURN_MAX: Span = Span::from_secs(100);

#[derive(Debug)]
pub(super) struct Admission {
    pub(super) shares: Shares,
    /// Datagrams that the caller can hold.
    free: usize,
    /// While more packets than this are free, all packets are kept: half of the memory, and at least the
    /// reserve.
    plenty: usize,
    reserve: usize,
    turn: Option<Turn>,
    /// The connection that has the turn, or had it last. It may continue until another connection asks for a
    /// turn. Connections that wait already do not end it, since a sender without an answer asks only once a
    /// second.
    last: Option<u32>,
    /// Another connection has asked for its turn since then.
    others_wait: bool,
    waiting: Waiting,
    /// Those that wait for the reserve of units.
    units_wait: Waiting,
    /// Time that has passed while packets were refused.
    shortage: Shortage,
    /// A packet was refused since [`overdue`](Self::overdue) was asked.
    is_short: bool,
    /// By connection: when its next packet in order last arrived, kept or not, or one of its messages was
    /// read, by the clock of `shortage`.
    asked: Vec<Time>,
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    index: u32,
    /// When it began, last made progress, or last had a message to read: reading takes the program's time.
    since: Time,
    /// Packets that were kept at `since`.
    kept: usize,
    /// When another connection first asked for it.
    wanted: Option<Time>,
    /// A message is complete. If others wait, no more is kept than the rest of the message that has begun.
    has_whole: bool,
    /// That rest has arrived and others wait: nothing more is kept until everything was read.
    is_ending: bool,
}

impl Admission {
    pub(super) fn new(reserve: usize) -> Self {
        Self {
            shares: Shares::default(),
            free: usize::MAX,
            plenty: reserve,
            reserve,
            turn: None,
            last: None,
            others_wait: false,
            waiting: Waiting::default(),
            units_wait: Waiting::default(),
            shortage: Shortage::default(),
            is_short: false,
            asked: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn set_free(&mut self, packets: usize) {
        self.free = packets;
        self.plenty = self.plenty.max(packets / 2);
    }

    /// Adds a connection to a peer at `ip`; `accepted`: the peer made it.
    pub(super) fn joined(&mut self, index: u32, ip: IpAddr, accepted: bool) {
        self.shares.join(index, ip, accepted);
        if self.asked.len() <= index as usize {
            self.asked.resize(index as usize + 1, Time::default());
        }
        self.asked[index as usize] = self.shortage.now();
    }

    /// Whether all packets are kept, and none was refused lately.
    #[inline]
    pub(super) fn has_plenty(&self) -> bool {
        self.free > self.plenty && !self.is_short
    }

    /// The same when so many packets more are kept.
    #[inline]
    pub(super) fn has_plenty_for(&self, packets: usize) -> bool {
        self.free > self.plenty + packets && !self.is_short
    }

    /// Whether to keep a connection's packet; if so, counts it.
    #[inline]
    pub(super) fn admit(&mut self, now: Time, index: u32, arrival: Arrival) -> bool {
        if arrival == Arrival::InOrder
            && let Some(asked) = self.asked.get_mut(index as usize)
        {
            *asked = self.shortage.now();
        }
        if self.free <= self.plenty && !self.admit_to_rest(now, index, arrival) {
            return false;
        }
        self.free -= 1;
        self.shares.keep(index);
        true
    }

    /// Counts the next packet of a connection in order, while there is [plenty](Self::has_plenty) of memory.
    #[inline]
    pub(super) fn keep_next(&mut self, index: u32) {
        if let Some(asked) = self.asked.get_mut(index as usize) {
            *asked = self.shortage.now();
        }
        self.free -= 1;
        self.shares.keep(index);
    }

    /// Counts a unit, whose memory is separate, among the packets that the connection keeps; `is_next`: it is
    /// next in order.
    pub(super) fn keep_unit(&mut self, index: u32, is_next: bool) {
        if is_next {
            self.note_progress(index);
        }
        self.shares.keep(index);
    }

    /// Notes that a connection continues with what is next in order.
    pub(super) fn note_progress(&mut self, index: u32) {
        if let Some(asked) = self.asked.get_mut(index as usize) {
            *asked = self.shortage.now();
        }
    }

    /// Notes that there was no memory for a unit; returns the time for which something was refused so far.
    pub(super) fn refuse_unit(&mut self, now: Time) -> Time {
        self.shortage.go_on(now);
        self.is_short = true;
        self.shortage.now()
    }

    /// Notes that a connection's next unit in order has come and waits for memory of this end, which is no
    /// fault of its peer; returns whether it has the turn to take the reserve of units, if that `is_free`.
    pub(super) fn unit_waits(&mut self, index: u32, is_free: bool) -> bool {
        self.note_progress(index);
        let now = self.shortage.now();
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.index == index) {
            turn.since = now;
        }
        let has_turn = is_free && self.units_wait.may_begin(index, now);
        if !has_turn && let Some(network) = self.shares.network(index) {
            self.units_wait.ask(network, index, now);
        }
        has_turn
    }

    /// Notes that a connection's unit does not wait any more.
    pub(super) fn unit_begins(&mut self, index: u32) {
        self.units_wait.leave(index);
    }

    /// Notes the next packets in order that are read at once, of a connection without the turn. Their memory
    /// counts as taken until the caller states [how much is free](Self::set_free), as if it had been kept and
    /// read.
    #[inline]
    pub(super) fn pass(&mut self, index: u32, packets: usize) {
        if let Some(asked) = self.asked.get_mut(index as usize) {
            *asked = self.shortage.now();
        }
        self.free -= packets;
    }

    #[inline]
    pub(super) fn has_turn(&self, index: u32) -> bool {
        self.turn.is_some_and(|turn| turn.index == index)
    }

    /// Notes the next packet in order if it holds only whole messages, and no message is incomplete.
    #[inline]
    pub(super) fn has_whole(&mut self, index: u32, kept: usize) {
        if self.has_turn(index) {
            self.go_on(kept, true, false);
        }
    }

    /// Notes that a message was read, and that its packet holds more.
    #[inline]
    pub(super) fn read_part(&mut self, index: u32, kept: usize, is_unfinished: bool) {
        if let Some(asked) = self.asked.get_mut(index as usize) {
            *asked = self.shortage.now();
        }
        if self.has_turn(index) {
            self.go_on(kept, true, is_unfinished);
        }
    }

    /// As [`admit`](Self::admit), when no more than half of the memory is free.
    fn admit_to_rest(&mut self, now: Time, index: u32, arrival: Arrival) -> bool {
        // Packets within the share would begin another message in a turn that must end.
        let is_ending = self.turn.is_some_and(|turn| turn.index == index && turn.is_ending);
        let is_within_share =
            self.free > self.reserve && !is_ending && self.shares.has_share(index, self.free);
        let is_kept = is_within_share || self.free > 0 && self.is_turn_of(index, arrival);
        if !is_kept {
            self.refuse(now, index, arrival);
        }
        is_kept
    }

    /// Whether the connection has the turn; begins its turn if that is possible.
    fn is_turn_of(&mut self, index: u32, arrival: Arrival) -> bool {
        if let Some(turn) = self.turn {
            let is_last_part = turn.has_whole && self.others_wait;
            return turn.index == index && !turn.is_ending && (arrival == Arrival::InOrder || !is_last_part);
        }
        let now = self.shortage.now();
        let goes_on = self.last == Some(index) && !self.others_wait;
        if arrival != Arrival::InOrder || !goes_on && !self.waiting.may_begin(index, now) {
            return false;
        }
        self.waiting.leave(index);
        (self.last, self.others_wait) = (Some(index), false);
        self.turn =
            Some(Turn { index, since: now, kept: 0, wanted: None, has_whole: false, is_ending: false });
        true
    }

    #[cold]
    fn refuse(&mut self, now: Time, index: u32, arrival: Arrival) {
        self.refuse_unit(now);
        if arrival == Arrival::InOrder
            && self.turn.is_none_or(|turn| turn.index != index)
            && let Some(network) = self.shares.network(index)
        {
            let now = self.shortage.now();
            self.others_wait |= self.last != Some(index);
            if let Some(turn) = &mut self.turn {
                turn.wanted.get_or_insert(now);
            }
            self.waiting.ask(network, index, now);
        }
    }

    /// Notes that a packet of a connection was kept: how many it keeps now, and whether it has messages to
    /// read.
    #[inline]
    pub(super) fn came(&mut self, index: u32, kept: usize, has_message: bool, is_unfinished: bool) {
        self.shares.set_kept(index, kept);
        if self.has_turn(index) {
            self.go_on(kept, has_message, is_unfinished);
        }
    }

    /// Notes that a message was read.
    #[inline]
    pub(super) fn read(&mut self, index: u32, kept: usize, is_unfinished: bool) {
        if let Some(asked) = self.asked.get_mut(index as usize) {
            *asked = self.shortage.now();
        }
        self.came(index, kept, true, is_unfinished);
    }

    /// Extends or ends the connection's turn after its packets were stored or its messages read.
    fn go_on(&mut self, kept: usize, has_message: bool, is_unfinished: bool) {
        let Some(turn) = &mut self.turn else { return };
        turn.has_whole |= has_message;
        if has_message || kept >= turn.kept + self.reserve.div_ceil(PARTS) {
            (turn.since, turn.kept) = (self.shortage.now(), kept);
        }
        // A message that began while memory was plentiful must be completed, or its turn would never end.
        turn.is_ending = (turn.is_ending || self.others_wait) && !is_unfinished;
        if kept == 0 {
            self.turn = None;
        }
    }

    pub(super) fn left(&mut self, index: u32) {
        if self.has_turn(index) {
            self.turn = None;
        }
        self.last = self.last.filter(|last| *last != index);
        self.waiting.leave(index);
        self.units_wait.leave(index);
        self.shares.leave(index);
    }

    /// The allocated entries of all tables, to check a bound on memory.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn capacity(&self) -> usize {
        self.shares.capacity() + self.waiting.capacity() + self.units_wait.capacity()
    }

    /// Whether a packet was refused since [`overdue`](Self::overdue) was asked.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// The connections that kept memory for too long without progress, while packets of others were refused.
    /// A connection whose messages wait for the program to read them is not among them.
    pub(super) fn overdue(&mut self) -> Vec<u32> {
        self.is_short = false;
        if !self.shortage.looks() {
            return Vec::new();
        }
        let is_overdue = |index: u32| {
            let is_too_long = self.turn.is_some_and(|turn| {
                let has_stopped = self.free > 0 && self.shortage.since(turn.since) >= TURN;
                let lasts = turn.wanted.is_some_and(|since| self.shortage.since(since) >= TURN_MAX);
                turn.index == index && (has_stopped || lasts)
            });
            is_too_long || self.shortage.since(self.asked[index as usize]) >= STALL
        };
        self.shares.keeping().filter(|index| is_overdue(*index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An admission with four connections, each from an address of its own.
    fn admission(reserve: usize, free: usize) -> Admission {
        let mut admission = Admission::new(reserve);
        admission.set_free(free);
        for index in 1..=4 {
            admission.joined(index, [10, 0, 0, index as u8].into(), true);
        }
        admission
    }

    fn at(ms: u64) -> Time {
        Time::from_ns(ms * 1_000_000)
    }

    /// Units after a gap do not save a connection that keeps memory.
    #[test]
    fn units_behind_a_gap_are_no_progress() {
        for is_next in [false, true] {
            let mut admission = admission(4, 100);
            for ms in (0..5_000).step_by(500) {
                admission.keep_unit(1, is_next);
                admission.refuse_unit(at(ms));
            }
            assert_eq!(admission.overdue(), if is_next { vec![] } else { vec![1] });
        }
    }

    /// A unit that waits for memory of this end is no fault of its connection, even in its turn.
    #[test]
    fn a_unit_that_waits_is_no_stall() {
        for waits in [false, true] {
            let mut admission = admission(4, 4);
            assert!(admission.admit(at(0), 1, Arrival::InOrder));
            admission.came(1, 1, false, true);
            let mut overdue = Vec::new();
            for ms in (0..15_000).step_by(500) {
                if waits {
                    admission.unit_waits(1, false);
                }
                admission.refuse_unit(at(ms));
                overdue.extend(admission.overdue());
            }
            assert_eq!(overdue.is_empty(), waits);
        }
    }

    /// Networks take turns with the reserve of units, however many connections each has.
    #[test]
    fn the_reserve_of_units_goes_round() {
        let mut admission = Admission::new(4);
        for index in 0..30 {
            let network = if index < 28 { 1 } else { index as u8 };
            admission.joined(index, [10, 0, 0, network].into(), true);
        }
        assert!(admission.unit_waits(0, true), "nobody else waits");
        admission.unit_begins(0);
        let mut turns = Vec::new();
        for _ in 0..9 {
            assert!((0..30).all(|index| !admission.unit_waits(index, false)), "it is taken");
            let next = (0..30).find(|index| admission.unit_waits(*index, true)).expect("it is free");
            admission.unit_begins(next);
            turns.push(next);
        }
        assert!(turns.chunks(3).all(|round| round.contains(&28) && round.contains(&29)), "{turns:?}");
    }

    #[test]
    fn the_reserve_is_one_connections_at_a_time() {
        let mut admission = admission(4, 5);
        let mut admit = |index, arrival| admission.admit(at(0), index, arrival);
        assert!(admit(1, Arrival::Ahead), "there is more than the reserve");
        assert!(!admit(1, Arrival::Ahead), "who waits for something else does not get it");
        assert!(admit(2, Arrival::InOrder) && admit(2, Arrival::Ahead));
        assert!(!admit(1, Arrival::InOrder));
        admission.left(1);
        let mut admit = |index, arrival| admission.admit(at(0), index, arrival);
        assert!(!admit(3, Arrival::InOrder));
        admission.left(2);
        let mut admit = |index, arrival| admission.admit(at(0), index, arrival);
        assert!(admit(3, Arrival::InOrder) && admit(3, Arrival::Ahead));
        assert!(!admit(3, Arrival::Ahead), "nothing is left");
    }

    #[test]
    fn an_address_keeps_at_most_as_many_packets_as_are_left() {
        let mut admission = admission(10, 100);
        // Another connection has the turn, so this one has only its share.
        admission.turn =
            Some(Turn { index: 9, since: at(0), kept: 0, wanted: None, has_whole: false, is_ending: false });
        let mut taken = |index| (0..100).filter(|_| admission.admit(at(0), index, Arrival::Ahead)).count();
        assert_eq!([1, 2, 3, 4].map(&mut taken), [50, 25, 13, 2], "the rest is the reserve");
    }

    #[test]
    fn a_network_keeps_at_most_three_times_the_packets_left() {
        let mut admission = Admission::new(10);
        admission.set_free(1000);
        for (index, network) in [(1, 1), (2, 1), (3, 1), (4, 2)] {
            let ip = [0x2001, 0xdb8, 0, network, 0, 0, 0, index as u16];
            admission.joined(index, ip.into(), true);
        }
        admission.turn =
            Some(Turn { index: 9, since: at(0), kept: 0, wanted: None, has_whole: false, is_ending: false });
        let mut taken = |index| (0..1000).filter(|_| admission.admit(at(0), index, Arrival::Ahead)).count();
        assert_eq!([1, 2, 3, 4].map(&mut taken), [500, 250, 0, 125]);
    }

    #[test]
    fn the_turn_passes_to_another_address_that_waits() {
        let mut admission = admission(4, 4);
        assert!(admission.admit(at(0), 1, Arrival::InOrder));
        admission.came(1, 1, false, true);
        assert!(!admission.admit(at(0), 2, Arrival::InOrder));
        admission.came(1, 1, true, false);
        assert!(!admission.admit(at(0), 1, Arrival::InOrder), "its message is whole, and another one waits");
        admission.read(1, 0, false);
        assert!(!admission.admit(at(0), 1, Arrival::InOrder), "the other one is first");
        assert!(admission.admit(at(0), 2, Arrival::InOrder));
        admission.read(2, 0, false);
        assert!(admission.admit(at(0), 2, Arrival::InOrder), "nobody else has asked meanwhile");
    }

    /// Two that ask all the time do not pass the turn to each other while a third waits.
    #[test]
    fn the_turn_comes_to_each_network_that_waits() {
        let mut admission = admission(4, 4);
        assert!(admission.admit(at(0), 1, Arrival::InOrder));
        for index in [3, 2] {
            assert!(!admission.admit(at(0), index, Arrival::InOrder));
        }
        let mut holder = 1;
        let turns: Vec<u32> = (0..6)
            .map(|_| {
                admission.read(holder, 0, false);
                admission.set_free(4);
                // The third one asks more seldom than the others.
                let is_admitted = |index: &u32| admission.admit(at(0), *index, Arrival::InOrder);
                holder = [1, 2, 1, 2, 3].into_iter().find(is_admitted).expect("the turn is free");
                [1, 2, 1, 2].into_iter().filter(|index| *index != holder).for_each(|index| {
                    assert!(!admission.admit(at(0), index, Arrival::InOrder));
                });
                holder
            })
            .collect();
        assert_eq!(turns, [2, 3, 1, 2, 1, 2]);
    }

    #[test]
    fn an_address_that_waited_and_has_gone_blocks_no_other() {
        let mut admission = admission(4, 4);
        assert!(admission.admit(at(0), 1, Arrival::InOrder) && !admission.admit(at(0), 2, Arrival::InOrder));
        admission.read(1, 0, false);
        for ms in [0, 900, 1_800, 2_000] {
            assert!(!admission.admit(at(ms), 1, Arrival::InOrder), "{ms}");
        }
        assert!(admission.admit(at(2_001), 1, Arrival::InOrder));
    }

    /// A stream of messages ends its turn at the end of a message, even if gaps hide where that is.
    #[test]
    fn a_turn_is_for_one_message() {
        let mut admission = admission(4, 4);
        let mut admit = |index, arrival| admission.admit(at(0), index, arrival);
        assert!(admit(1, Arrival::InOrder) && admit(1, Arrival::Ahead));
        admission.came(1, 2, true, true);
        assert!(admission.admit(at(0), 1, Arrival::Ahead), "nobody waits");
        assert!(!admission.admit(at(0), 2, Arrival::InOrder));
        assert!(!admission.admit(at(0), 1, Arrival::Ahead) && admission.admit(at(0), 1, Arrival::InOrder));
        admission.read(1, 1, true);
        admission.came(1, 1, true, false);
        admission.set_free(3);
        assert!(!admission.admit(at(0), 1, Arrival::InOrder));
    }

    /// A turn that must end begins no other message, and a message that began outside of the turn is still
    /// completed.
    #[test]
    fn a_turn_that_is_to_end_is_not_blocked_by_its_next_message() {
        let mut admission = admission(4, 10);
        admission.set_free(4);
        assert!(admission.admit(at(0), 1, Arrival::InOrder) && !admission.admit(at(0), 2, Arrival::InOrder));
        admission.came(1, 1, true, false);
        admission.set_free(5);
        assert!(!admission.admit(at(0), 1, Arrival::Ahead), "there is a share of what is over the reserve");
        admission.set_free(6);
        assert!(admission.admit(at(0), 1, Arrival::Ahead), "more than half is free");
        admission.came(1, 2, true, true);
        admission.set_free(4);
        assert!(admission.admit(at(0), 1, Arrival::InOrder), "what is kept can be ended only so");
    }

    /// A pause of the caller does not count as a delay of the peers.
    #[test]
    fn time_counts_while_packets_are_refused() {
        let mut admission = admission(4, 4);
        assert!(admission.admit(at(0), 1, Arrival::InOrder));
        assert!(!admission.admit(at(0), 2, Arrival::InOrder));
        assert!(!admission.admit(at(60_000), 2, Arrival::InOrder));
        assert!(admission.overdue().is_empty(), "one second of the minute counts");
        assert!(admission.admit(at(60_000), 1, Arrival::InOrder));
        for ms in (60_000..63_000).step_by(500) {
            assert!(!admission.admit(at(ms), 2, Arrival::InOrder));
            assert!(admission.overdue().is_empty());
        }
        assert!(!admission.admit(at(63_000), 2, Arrival::InOrder));
        assert_eq!(admission.overdue(), [1]);
    }

    /// A turn lasts as long as its message makes progress; a packet a second is not enough.
    #[test]
    fn a_turn_ends_ten_seconds_after_the_last_progress() {
        for (fast_seconds, ends_after_seconds) in [(0, 10), (30, 32)] {
            let mut admission = admission(160, 160);
            let (mut kept, mut second) = (0, 0);
            while admission.overdue().is_empty() {
                for _ in 0..if second < fast_seconds { 5 } else { 1 } {
                    admission.set_free(160 - kept);
                    assert!(admission.admit(at(second * 1000), 1, Arrival::InOrder));
                    kept += 1;
                    admission.came(1, kept, false, true);
                }
                assert!(!admission.admit(at(second * 1000), 2, Arrival::InOrder));
                second += 1;
            }
            assert_eq!(second - 1, ends_after_seconds, "{fast_seconds} s with five packets each");
        }
    }

    /// Messages in order behind which a gap stays do not make a turn last for ever, while others wait.
    #[test]
    fn a_turn_with_a_gap_that_stays_ends() {
        let mut admission = admission(4, 4);
        assert!(admission.admit(at(0), 1, Arrival::InOrder) && admission.admit(at(0), 1, Arrival::Ahead));
        admission.came(1, 2, true, true);
        let mut ms = 0;
        while admission.overdue().is_empty() {
            assert!(ms < 200_000, "it goes on");
            admission.read(1, 1, true);
            admission.set_free(3);
            assert!(admission.admit(at(ms), 1, Arrival::InOrder));
            admission.came(1, 2, true, true);
            assert!(!admission.admit(at(ms), 2, Arrival::InOrder));
            ms += 500;
        }
        assert!(ms >= 100_000, "it may complete two messages");
    }
}
