//! How fast packets may be sent (docs/protocol.md §9.4): a token bucket (RFC 9002 section 7.7), stored as the
//! time at which it will be full.

use super::Time;
use super::time::Span;

/// How many packets may be sent at once, however low the rate: as many as one system call sends.
const BURST_PACKETS: u64 = 64;
/// What the rate allows in this time may also be sent at once: a sleeping sender does not wake up more
/// exactly, and would lose the time in between.
const BURST_NS: u64 = 1_000_000;
/// Up to this many packets in flight are not paced: an initial window (RFC 9002 section 7.2). So questions
/// and answers never wait, even if a slow round trip made the rate low.
pub(super) const UNPACED_PACKETS: usize = 10;

/// Allows 5/4 of the congestion window in each round-trip time: faster than acknowledgements make room, so
/// that pacing never limits the sender for long, and spread enough that a window is not sent as one burst.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    /// The window and round-trip time that `interval_ns` is of.
    rate: (usize, Span),
    /// Time that one packet takes.
    interval_ns: u64,
    /// When the time of everything that was sent will have passed.
    full_ns: u64,
}

impl Pacer {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Whether a packet may be sent now at this rate; always before the round-trip time is known.
    #[inline]
    pub(super) fn is_ready(&mut self, now: Time, rate: (usize, Span)) -> bool {
        self.set_rate(now, rate);
        self.opens_ns() <= now.ns()
    }

    /// Counts a packet that is sent, at the rate of the last [`is_ready`](Self::is_ready): packets that are
    /// not paced ask for none.
    #[inline(always)] // for each packet
    pub(super) fn sent(&mut self, now: Time) {
        self.full_ns = self.full_ns.max(now.ns()).saturating_add(self.interval_ns);
    }

    /// When the next packet may be sent; `None`: now.
    #[inline]
    pub(super) fn ready_at(&self, now: Time) -> Option<Time> {
        let opens_ns = self.opens_ns();
        (opens_ns > now.ns()).then_some(Time::from_ns(opens_ns))
    }

    /// When a packet may be sent: as soon as there is room for one more in the bucket.
    #[inline]
    fn opens_ns(&self) -> u64 {
        match self.interval_ns {
            0 => 0,
            _ => self.full_ns.saturating_sub(self.burst_ns(BURST_PACKETS - 1)),
        }
    }

    /// The time that this many packets take, but at least what a sleeping thread may lose.
    #[inline]
    fn burst_ns(&self, packets: u64) -> u64 {
        (packets * self.interval_ns).max(BURST_NS)
    }

    /// Sets the rate; divides only when it changes, not for each packet.
    #[inline(always)]
    fn set_rate(&mut self, now: Time, rate: (usize, Span)) {
        if rate != self.rate {
            self.rate = rate;
            let (window, round_trip) = rate;
            let round_trip_ns = round_trip.ns().min(1 << 40);
            self.interval_ns = 4 * round_trip_ns / (5 * window.max(1) as u64);
            // The time for what was sent is limited to that of a full bucket at the new rate: otherwise a
            // single long round trip would delay packets long after it.
            let full_ns = self.burst_ns(BURST_PACKETS - 1) + self.interval_ns;
            self.full_ns = self.full_ns.min(now.ns().saturating_add(full_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Span = Span::from_millis(1);

    /// The packets that a sender sends which asks at these times and uses all it may.
    fn sent(rate: (usize, Span), times: impl Iterator<Item = Time>) -> Vec<(Time, u64)> {
        let mut pacer = Pacer::new();
        let all_at = |now| {
            let mut packets = 0;
            while pacer.is_ready(now, rate) {
                pacer.sent(now);
                packets += 1;
                assert!(packets < 1_000_000, "no end");
            }
            (now, packets)
        };
        times.map(all_at).collect()
    }

    #[test]
    fn the_first_burst_is_64_packets_and_then_the_rate_rules() {
        let every_ms = (1..=1000).map(|ms| Time::from_ns(ms * 1_000_000));
        // 1.25 x 40 packets in 100 ms: one in 2 ms.
        let sent = sent((40, MS.times(100)), every_ms);
        assert_eq!(sent[0].1, BURST_PACKETS);
        let later: u64 = sent[1..].iter().map(|(_, packets)| packets).sum();
        assert!((499..=500).contains(&later), "{later}");
    }

    #[test]
    fn a_rate_that_rises_forgets_how_slow_it_was() {
        let (mut pacer, now) = (Pacer::new(), Time::from_ns(1));
        let (slow, fast) = ((10, MS.times(100)), (10, MS));
        while pacer.is_ready(now, slow) {
            pacer.sent(now);
        }
        // Half a second at the old rate.
        assert!(!pacer.is_ready(now, fast) && pacer.is_ready(now + MS, fast));
    }

    #[test]
    fn a_sleeper_gets_as_much_as_a_spinner() {
        // 1.25 x 1,000 packets in 1 ms. One asks each microsecond, the other each millisecond.
        let rate = (1000, MS);
        let all = |step_ns: u64| {
            let times = (0..100_000_000 / step_ns).map(|step| Time::from_ns(1 + step * step_ns));
            sent(rate, times).iter().map(|(_, packets)| packets).sum::<u64>()
        };
        let (spinner, sleeper) = (all(1000), all(1_000_000));
        assert!(spinner.abs_diff(sleeper) <= 1250, "{spinner} and {sleeper}");
    }

    #[test]
    fn nothing_is_held_back_before_the_round_trip_is_known() {
        let (mut pacer, now, rate) = (Pacer::new(), Time::from_ns(0), (10, Span::default()));
        for _ in 0..10_000 {
            assert!(pacer.is_ready(now, rate));
            pacer.sent(now);
        }
        assert_eq!(pacer.ready_at(now), None);
    }

    proptest! {
        #[test]
        fn never_sends_more_than_rate_and_burst(
            window in 1usize..10_000,
            round_trip_us in 1u64..100_000,
            steps_ns in prop::collection::vec(0u64..2_000_000, 1..50),
        ) {
            let rate = (window, Span::from_nanos(1000 * round_trip_us));
            let mut now = 1;
            let times = steps_ns.iter().map(|step_ns| { now += step_ns; Time::from_ns(now) });
            let interval_ns = 4 * 1000 * round_trip_us / (5 * window as u64);
            prop_assume!(interval_ns > 0);
            let sent = sent(rate, times);
            let burst = BURST_PACKETS.max(BURST_NS / interval_ns + 1);
            let mut since_start = 0;
            let start = sent[0].0;
            for (at, packets) in sent {
                since_start += packets;
                let of_rate = (at.ns() - start.ns()) / interval_ns;
                prop_assert!(since_start <= burst + of_rate + 1);
            }
        }

        #[test]
        fn is_ready_when_it_said(window in 1usize..10_000, round_trip_us in 0u64..1_000_000, packets in 0usize..2000) {
            let (mut pacer, rate) = (Pacer::new(), (window, Span::from_nanos(1000 * round_trip_us)));
            let now = Time::from_ns(5);
            pacer.is_ready(now, rate);
            for _ in 0..packets {
                pacer.sent(now);
            }
            match pacer.ready_at(now) {
                None => prop_assert!(pacer.is_ready(now, rate)),
                Some(at) => {
                    prop_assert!(!pacer.is_ready(now, rate));
                    prop_assert!(!pacer.is_ready(Time::from_ns(at.ns() - 1), rate));
                    prop_assert!(pacer.is_ready(at, rate));
                }
            }
        }
    }
}
