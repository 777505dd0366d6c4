//! Decides when the next packet is due; the caller passes the time.

use std::ops::Range;

use nocopy_report::quantity::Rate;

/// The longest delay that a burst makes up for; a longer one shifts the schedule.
pub(super) const CATCH_UP_NS_MAX: u64 = 100_000_000;

/// Gaps that are too short to wait for each packet: packets that become due in a short sleep are sent
/// together. With longer gaps each packet can be on time; with shorter ones the packets of one sleep would
/// exceed the room of receivers (veth: 256). This does not apply to the beginning of a run, where a delay of
/// the last packet by a sleep would change the rate.
const BUNCHED_GAP_NS: Range<f64> = 1_500.0..100_000.0;
const EXACT_NS: u64 = 20_000_000;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Pace {
    FlatOut,
    Rate(Rate),
    /// As recorded, faster by a factor.
    Recorded {
        speed: f64,
    },
}

/// A schedule from the first packet on. Each time is computed from the start, so errors of waiting do not
/// accumulate.
#[derive(Debug, Clone)]
pub(super) struct Pacer {
    pace: Pace,
    /// Time of a packet or a bit, if there is a rate.
    ns_per_unit: f64,
    /// Packets or bits sent in total; `last_units` of them by the last packet.
    units: u64,
    last_units: u64,
    skipped_ns: u64,
}

impl Pacer {
    pub(super) fn new(pace: Pace) -> Self {
        let ns_per_unit = match pace {
            Pace::Rate(Rate::Packets(per_second) | Rate::Bits(per_second)) => 1e9 / per_second,
            Pace::FlatOut | Pace::Recorded { .. } => 0.0,
        };
        Self { pace, ns_per_unit, units: 0, last_units: 0, skipped_ns: 0 }
    }

    /// When the next packet is due, recorded `recorded_ns` after the first; both times are nanoseconds since
    /// the start. At most [`CATCH_UP_NS_MAX`] before `now_ns`.
    #[inline]
    pub(super) fn due_ns(&mut self, recorded_ns: u64, now_ns: u64) -> u64 {
        let planned_ns = match self.pace {
            Pace::FlatOut => return now_ns,
            Pace::Rate(_) => (self.units as f64 * self.ns_per_unit) as u64,
            Pace::Recorded { speed } => (recorded_ns as f64 / speed) as u64,
        };
        let due_ns = planned_ns.saturating_add(self.skipped_ns);
        let earliest_ns = now_ns.saturating_sub(CATCH_UP_NS_MAX);
        if due_ns < earliest_ns {
            self.skipped_ns += earliest_ns - due_ns;
        }
        due_ns.max(earliest_ns)
    }

    #[inline]
    pub(super) fn record_sent(&mut self, bytes: usize) {
        self.last_units = match self.pace {
            Pace::Rate(Rate::Bits(_)) => 8 * bytes as u64,
            _ => 1,
        };
        self.units += self.last_units;
    }

    /// Whether the next packet, which is not due yet, should be sent together with others.
    pub(super) fn is_bunched(&self, now_ns: u64) -> bool {
        let gap_ns = self.last_units as f64 * self.ns_per_unit;
        now_ns > EXACT_NS && BUNCHED_GAP_NS.contains(&gap_ns)
    }

    /// By how much the schedule was shifted because sending was too slow.
    pub(super) fn skipped_ns(&self) -> u64 {
        self.skipped_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Sends each packet `delay_ns` after it is due, and returns when each was sent.
    fn send_with_delays(
        pacer: &mut Pacer,
        count: usize,
        bytes: usize,
        mut delay_ns: impl FnMut(u64) -> u64,
    ) -> Vec<u64> {
        let mut now_ns = 0;
        let mut times = Vec::new();
        while times.len() < count {
            let due_ns = pacer.due_ns(0, now_ns);
            if due_ns > now_ns {
                now_ns = due_ns + delay_ns(due_ns);
                continue;
            }
            times.push(now_ns);
            pacer.record_sent(bytes);
        }
        times
    }

    #[test]
    fn every_packet_of_a_rate_has_its_exact_time() {
        for (rate, gap_ns) in [(1.0, SECOND_NS), (1000.0, 1_000_000), (2e6, 500), (1e9, 1)] {
            let mut pacer = Pacer::new(Pace::Rate(Rate::Packets(rate)));
            let times = send_with_delays(&mut pacer, 1000, 64, |_| 0);
            let expected: Vec<_> = (0..1000).map(|number| number * gap_ns).collect();
            assert_eq!((times, pacer.skipped_ns()), (expected, 0), "{rate}");
        }
    }

    #[test]
    fn a_rate_in_bits_counts_the_bytes_of_sent_frames() {
        let mut pacer = Pacer::new(Pace::Rate(Rate::Bits(8e6))); // a byte a microsecond
        let mut due = Vec::new();
        for bytes in [64, 1500, 60] {
            due.push(pacer.due_ns(0, 0));
            pacer.record_sent(bytes);
        }
        due.push(pacer.due_ns(0, 0));
        assert_eq!(due, [0, 64_000, 1_564_000, 1_624_000]);
    }

    #[test]
    fn packets_are_bunched_only_at_medium_rates() {
        let bunches = |rate, bytes, now_ns| {
            let mut pacer = Pacer::new(Pace::Rate(rate));
            pacer.record_sent(bytes);
            pacer.is_bunched(now_ns)
        };
        for (rate, expected) in [(1e3, false), (9e3, false), (20e3, true), (600e3, true), (1e6, false)] {
            assert_eq!(bunches(Rate::Packets(rate), 64, SECOND_NS), expected, "{rate} packets/s");
            assert_eq!(
                bunches(Rate::Bits(rate * 512.0), 64, SECOND_NS),
                expected,
                "{rate} packets/s, in bits"
            );
            assert!(!bunches(Rate::Packets(rate), 64, EXACT_NS), "{rate} packets/s, in the beginning");
        }
        assert!(!Pacer::new(Pace::Recorded { speed: 1.0 }).is_bunched(SECOND_NS));
    }

    #[test]
    fn late_wakeups_do_not_accumulate() {
        // A rate whose gap is not a whole number of nanoseconds, and waits that end up to 90 ms late.
        let mut pacer = Pacer::new(Pace::Rate(Rate::Packets(300_007.0)));
        let mut turn = 0;
        let times = send_with_delays(&mut pacer, 1_000_000, 64, |_| {
            turn += 1;
            turn * 7919 % 90_000_000
        });
        let expected_ns = (999_999.0_f64 / 300_007.0 * 1e9) as u64;
        let last_ns = times[999_999];
        assert!((expected_ns..expected_ns + 90_000_000).contains(&last_ns), "{last_ns} {expected_ns}");
        assert_eq!(pacer.skipped_ns(), 0);
    }

    #[test]
    fn times_are_exact_after_a_billion_packets() {
        let mut pacer = Pacer::new(Pace::Rate(Rate::Packets(1e6)));
        pacer.units = 1_000_000_000_003;
        assert_eq!(pacer.due_ns(0, 0), 1_000_000_000_003_000);
    }

    #[test]
    fn a_pause_is_followed_by_a_bounded_burst() {
        let mut pacer = Pacer::new(Pace::Rate(Rate::Packets(1000.0)));
        let mut pause = Some(3 * SECOND_NS);
        let times = send_with_delays(&mut pacer, 1000, 64, |due_ns| {
            if due_ns == SECOND_NS / 2 { pause.take().unwrap_or(0) } else { 0 }
        });
        // Half a second on time; then 3 s late, of which 100 ms are caught up at once.
        assert_eq!(times[499], 499_000_000);
        let burst = times.iter().filter(|&&time| time == 3_500_000_000).count();
        assert_eq!((burst, pacer.skipped_ns()), (101, 2_900_000_000));
        assert_eq!(times[999] - times[600], 399_000_000, "and then in order again");
    }

    #[test]
    fn recorded_packets_keep_their_gaps_scaled_by_speed() {
        let recorded = [0, 5, 5, 1_000_000, 7 * SECOND_NS];
        for (speed, expected) in [
            (1.0, recorded),
            (2.0, [0, 2, 2, 500_000, 7 * SECOND_NS / 2]),
            (0.5, [0, 10, 10, 2_000_000, 14 * SECOND_NS]),
        ] {
            let mut pacer = Pacer::new(Pace::Recorded { speed });
            let due = recorded.map(|recorded_ns| pacer.due_ns(recorded_ns, 0));
            assert_eq!(due, expected, "{speed}");
        }
        let mut pacer = Pacer::new(Pace::Recorded { speed: 1.0 });
        assert_eq!(pacer.due_ns(SECOND_NS, 5 * SECOND_NS), 5 * SECOND_NS - CATCH_UP_NS_MAX);
        assert_eq!(pacer.due_ns(2 * SECOND_NS, 0), 2 * SECOND_NS + 4 * SECOND_NS - CATCH_UP_NS_MAX);
    }

    #[test]
    fn without_a_rate_every_packet_is_due_at_once() {
        let mut pacer = Pacer::new(Pace::FlatOut);
        assert_eq!([0, 17, u64::MAX].map(|now_ns| pacer.due_ns(3, now_ns)), [0, 17, u64::MAX]);
        assert_eq!(pacer.skipped_ns(), 0);
    }

    proptest! {
        /// However late each wait ends, no packet is early, the count over any time matches the rate as long
        /// as nothing is given up, and bursts are bounded.
        #[test]
        fn no_packet_is_early_and_bursts_are_bounded(
            rate in 1.0..1e6_f64, delays in proptest::collection::vec(0..400_000_000_u64, 1..50),
        ) {
            let mut pacer = Pacer::new(Pace::Rate(Rate::Packets(rate)));
            let (mut now_ns, mut number) = (0_u64, 0_u64);
            for delay_ns in delays {
                now_ns = pacer.due_ns(0, now_ns).max(now_ns) + delay_ns;
                let mut burst = 0;
                while pacer.due_ns(0, now_ns) <= now_ns {
                    pacer.record_sent(64);
                    burst += 1;
                }
                number += burst;
                prop_assert!(burst as f64 <= CATCH_UP_NS_MAX as f64 * rate / 1e9 + 2.0);
                let expected = (now_ns - pacer.skipped_ns()) as f64 * rate / 1e9;
                prop_assert!((number as f64 - expected).abs() <= 1.001, "{number} {expected}");
            }
        }
    }
}
