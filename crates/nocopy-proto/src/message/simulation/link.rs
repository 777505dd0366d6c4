//! One direction of a path between two hosts: a rate, a queue, a delay, and its faults.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;

use crate::message::Time;
use crate::wire::checksum::OnesComplementSum;

/// Bytes of a datagram on the wire in addition to its payload: UDP (8), IPv4 (20), Ethernet with its checksum
/// (18), preamble and gap (20).
pub const OVERHEAD_BYTES: usize = 66;

/// How a link is and what it does to datagrams. Fractions are of datagrams, from 0 to 1.
#[derive(Debug, Clone)]
pub struct LinkSettings {
    /// Bytes a second, [`OVERHEAD_BYTES`] of each datagram included.
    pub bytes_per_s: u64,
    /// Datagrams a second, however short.
    pub packets_per_s: u64,
    /// From the end of its transmission to the arrival of a datagram.
    pub delay: Duration,
    /// Datagrams that may wait for their transmission; one more is dropped.
    pub queue_packets: usize,
    /// A datagram that finds as many waiting is marked as having met congestion (RFC 3168).
    pub mark_packets: Option<usize>,
    pub loss: f64,
    /// Fraction that arrives twice, the second time up to `reordered_by` later.
    pub duplication: f64,
    pub reordering: f64,
    /// How much later than in order a datagram that is overtaken arrives, at most.
    pub reordered_by: Duration,
    /// Fraction of which some bits are flipped.
    pub corruption: f64,
    /// The most additional delay, which varies; the order stays.
    pub jitter: Duration,
    /// When nothing passes, from the start of the simulation.
    pub partitions: Vec<Range<Duration>>,
}

impl LinkSettings {
    /// 1 Gbit/s, 50 us, a queue of 1,024 packets, and nothing goes wrong.
    pub fn gigabit() -> Self {
        Self {
            bytes_per_s: 125_000_000,
            packets_per_s: 2_000_000,
            delay: Duration::from_micros(50),
            queue_packets: 1_024,
            mark_packets: None,
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            reordered_by: Duration::from_micros(200),
            corruption: 0.0,
            jitter: Duration::ZERO,
            partitions: Vec::new(),
        }
    }

    /// How long a datagram with a payload of `bytes` takes to be sent.
    pub(super) fn transmission(&self, bytes: usize) -> Duration {
        let bytes = (bytes + OVERHEAD_BYTES) as u64;
        let by_bytes = bytes * 1_000_000_000 / self.bytes_per_s;
        Duration::from_nanos(by_bytes.max(1_000_000_000 / self.packets_per_s))
    }
}

/// What became of the datagrams that a link was given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Datagrams it was given.
    pub given: u64,
    /// Datagrams that arrive, copies included.
    pub arriving: u64,
    /// Lost at random.
    pub lost: u64,
    /// Found the queue full.
    pub overflowed: u64,
    /// Sent while nothing passed.
    pub partitioned: u64,
    /// Corrupted, and the Internet checksum shows it: such a datagram does not arrive.
    pub corrupted_seen: u64,
    /// Corrupted, and the Internet checksum is the same: such a datagram arrives.
    pub corrupted_unseen: u64,
    /// Arrive twice.
    pub duplicated: u64,
    /// Overtaken.
    pub reordered: u64,
    /// Marked as having met congestion.
    pub marked: u64,
}

/// A datagram that leaves a link.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) at: Time,
    pub(super) datagram: Vec<u8>,
    pub(super) congested: bool,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) settings: LinkSettings,
    pub(super) counts: LinkCounts,
    random: Rng,
    /// When each waiting datagram will have been sent.
    departures: VecDeque<Time>,
    /// When the last one in order arrives: jitter does not overtake.
    last_arrival: Time,
}

impl Link {
    pub(super) fn new(settings: LinkSettings, seed: u64) -> Self {
        Self {
            settings,
            counts: LinkCounts::default(),
            random: Rng::with_seed(seed),
            departures: VecDeque::new(),
            last_arrival: Time::default(),
        }
    }

    /// Takes a datagram; returns when it arrives: never, once or twice.
    pub(super) fn carry(&mut self, now: Time, mut datagram: Vec<u8>) -> [Option<Arrival>; 2] {
        self.counts.given += 1;
        let Some((departure, congested)) = self.enqueue(now, datagram.len()) else {
            self.counts.overflowed += 1;
            return [None, None];
        };
        // Rolled also for what does not arrive anyway, so that one disturbance does not shift the dice of
        // another.
        let [lost, reordered, duplicated, corrupted] = [
            self.settings.loss,
            self.settings.reordering,
            self.settings.duplication,
            self.settings.corruption,
        ]
        .map(|fraction| self.random.f64() < fraction);
        if self.is_partitioned(now) {
            self.counts.partitioned += 1;
            return [None, None];
        }
        if lost {
            self.counts.lost += 1;
            return [None, None];
        }
        if corrupted && !self.corrupt(&mut datagram) {
            return [None, None];
        }
        let at = self.arrival(departure, reordered);
        self.counts.arriving += 1;
        let again = duplicated.then(|| {
            self.counts.duplicated += 1;
            self.counts.arriving += 1;
            Arrival { at: at + self.up_to(self.settings.reordered_by), datagram: datagram.clone(), congested }
        });
        [Some(Arrival { at, datagram, congested }), again]
    }

    /// Queues a datagram. Returns when it will have been sent and whether it is marked, or `None` if there is
    /// no room.
    fn enqueue(&mut self, now: Time, bytes: usize) -> Option<(Time, bool)> {
        while self.departures.front().is_some_and(|&sent| sent <= now) {
            self.departures.pop_front();
        }
        let waiting = self.departures.len();
        if waiting > self.settings.queue_packets {
            return None;
        }
        let congested = self.settings.mark_packets.is_some_and(|threshold| waiting >= threshold);
        self.counts.marked += u64::from(congested);
        let start = self.departures.back().copied().unwrap_or(now);
        let departure = start + self.settings.transmission(bytes);
        self.departures.push_back(departure);
        Some((departure, congested))
    }

    pub(super) fn is_partitioned(&self, now: Time) -> bool {
        let since_start = now.since(Time::default());
        self.settings.partitions.iter().any(|window| window.contains(&since_start))
    }

    fn arrival(&mut self, departure: Time, reordered: bool) -> Time {
        let jitter = self.up_to(self.settings.jitter);
        let in_order = (departure + self.settings.delay + jitter).max(self.last_arrival);
        if reordered {
            self.counts.reordered += 1;
            return in_order + self.up_to(self.settings.reordered_by);
        }
        self.last_arrival = in_order;
        in_order
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(
            self.random.u64(0..=u64::try_from(most.as_nanos()).expect("shorter than centuries")),
        )
    }

    /// Flips one to four bits; returns whether the datagram still arrives: receivers check UDP's checksum.
    fn corrupt(&mut self, datagram: &mut [u8]) -> bool {
        if datagram.is_empty() {
            return true;
        }
        let before = OnesComplementSum::new().with(datagram).checksum();
        for _ in 0..self.random.usize(1..=4) {
            let index = self.random.usize(..datagram.len());
            datagram[index] ^= 1 << self.random.u32(..8);
        }
        let unseen = OnesComplementSum::new().with(datagram).checksum() == before;
        *if unseen { &mut self.counts.corrupted_unseen } else { &mut self.counts.corrupted_seen } += 1;
        unseen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(settings: LinkSettings, count: usize, apart: Duration) -> (Vec<(u8, Time)>, LinkCounts) {
        let mut link = Link::new(settings, 7);
        let mut contents = Rng::with_seed(8);
        let mut now = Time::default();
        let mut arrived = Vec::new();
        for number in 0..count {
            let mut datagram = vec![number as u8; 100];
            contents.fill(&mut datagram[1..]);
            let arrivals = link.carry(now, datagram);
            arrived.extend(arrivals.into_iter().flatten().map(|a| (a.datagram[0], a.at)));
            now = now + apart;
        }
        (arrived, link.counts)
    }

    #[test]
    fn the_rate_sets_datagrams_apart_and_the_delay_comes_behind() {
        let settings = LinkSettings { bytes_per_s: 166_000, ..LinkSettings::gigabit() }; // 166 bytes: 1 ms
        let (arrived, _) = carried(settings, 3, Duration::ZERO);
        let expected = [1_050, 2_050, 3_050].map(|us| Time::default() + Duration::from_micros(us));
        assert_eq!(arrived.iter().map(|&(_, at)| at).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn short_datagrams_come_at_the_rate_of_packets() {
        let settings = LinkSettings { packets_per_s: 1_000, ..LinkSettings::gigabit() };
        let (arrived, _) = carried(settings, 2, Duration::ZERO);
        assert_eq!(arrived[1].1.since(arrived[0].1), Duration::from_millis(1));
    }

    #[test]
    fn a_full_queue_drops_the_last_and_a_long_one_marks() {
        let settings = LinkSettings { queue_packets: 4, mark_packets: Some(2), ..LinkSettings::gigabit() };
        let (arrived, counts) = carried(settings, 10, Duration::ZERO);
        // One is being sent, four wait.
        assert_eq!(arrived.iter().map(|&(number, _)| number).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!((counts.overflowed, counts.marked), (5, 3));
    }

    #[test]
    fn disturbances_have_the_asked_frequency_and_datagrams_add_up() {
        let settings = LinkSettings {
            loss: 0.1,
            duplication: 0.1,
            reordering: 0.1,
            corruption: 0.5,
            jitter: Duration::from_micros(100),
            partitions: vec![Duration::from_millis(10)..Duration::from_millis(20)],
            ..LinkSettings::gigabit()
        };
        let (arrived, counts) = carried(settings, 10_000, Duration::from_micros(10)); // 100 ms
        assert_eq!(counts.partitioned, 1_000);
        let near = |count: u64, expected: u64| {
            assert!(count.abs_diff(expected) < expected / 10 + 20, "{expected} expected: {counts:?}");
        };
        near(counts.lost, 900);
        near(counts.corrupted_seen, 4_050 - counts.corrupted_unseen);
        assert!((10..100).contains(&counts.corrupted_unseen), "{counts:?}");
        near(counts.reordered, 405);
        near(counts.duplicated, 405);
        let gone = counts.partitioned + counts.lost + counts.corrupted_seen + counts.overflowed;
        assert_eq!(counts.given - gone + counts.duplicated, counts.arriving);
        assert_eq!(arrived.len() as u64, counts.arriving);
    }

    #[test]
    fn jitter_alone_does_not_reorder() {
        let jitter = Duration::from_millis(1);
        let (arrived, _) =
            carried(LinkSettings { jitter, ..LinkSettings::gigabit() }, 200, Duration::from_micros(10));
        assert!(arrived.is_sorted_by_key(|&(_, at)| at));
    }

    #[test]
    fn reordering_is_bounded() {
        let settings = LinkSettings { reordering: 0.2, ..LinkSettings::gigabit() };
        let (arrived, counts) = carried(settings.clone(), 200, Duration::from_micros(10));
        assert!(counts.reordered > 10);
        assert!(!arrived.is_sorted_by_key(|&(_, at)| at));
        for (number, at) in arrived {
            let sent = Time::default() + Duration::from_micros(10) * u32::from(number);
            let fastest = sent + settings.transmission(100) + settings.delay;
            assert!(at >= fastest && at <= fastest + settings.reordered_by, "{number}: {at:?}");
        }
    }
}
