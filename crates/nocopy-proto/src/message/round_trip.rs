//! Round-trip times, smoothed (docs/protocol.md §6).
//!
//! A sample is the time of a packet to the peer and of its acknowledgement back, without the time that the
//! peer held it; so a late acknowledgement does not look like a long path.

use super::time::Span;

/// The round trip assumed before the first measurement.
const INITIAL_NS: u64 = 100_000_000;
/// Variation below this comes from the clock and the scheduler (RFC 9002 section 6.1.2, kGranularity).
const GRANULARITY_NS: u64 = 1_000_000;
/// The largest sample; longer ones count as this, so that a peer cannot cause an overflow.
const SAMPLE_MAX_NS: u64 = 1 << 40;

/// The estimate of RFC 6298 section 2, and the minimum and latest sample of RFC 9002 section 5. All are 0
/// before the first sample.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RoundTrip {
    smoothed_ns: u64,
    variation_ns: u64,
    minimum_ns: u64,
    latest_ns: u64,
}

impl RoundTrip {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Takes a sample. One of 0, less than a tick of the clock, counts as 1 ns.
    #[inline(always)] // with nearly each packet
    pub(super) fn sample(&mut self, round_trip: Span) {
        let sample = round_trip.ns().clamp(1, SAMPLE_MAX_NS);
        self.latest_ns = sample;
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns, self.minimum_ns) = (sample, sample / 2, sample);
            return;
        }
        self.minimum_ns = self.minimum_ns.min(sample);
        // In the order of RFC 6298 (2.3): the variation is from the mean before.
        self.variation_ns = (3 * self.variation_ns + self.smoothed_ns.abs_diff(sample)) / 4;
        self.smoothed_ns = ((7 * self.smoothed_ns + sample) / 8).max(1);
    }

    #[inline]
    pub(super) fn smoothed(&self) -> Span {
        Span::from_nanos(self.smoothed_ns)
    }

    /// The mean deviation from the smoothed round trip.
    #[cfg(test)]
    pub(super) fn variation(&self) -> Span {
        Span::from_nanos(self.variation_ns)
    }

    #[inline]
    pub(super) fn latest(&self) -> Span {
        Span::from_nanos(self.latest_ns)
    }

    #[inline]
    pub(super) fn minimum(&self) -> Span {
        Span::from_nanos(self.minimum_ns)
    }

    /// After how much silence to probe a peer that delays acknowledgements by up to `ack_delay` (RFC 9002
    /// section 6.2.1, RFC 8985 section 7.2).
    #[inline]
    pub(super) fn probe_timeout(&self, ack_delay: Span) -> Span {
        match self.smoothed_ns {
            0 => Span::from_nanos(2 * INITIAL_NS),
            smoothed_ns => {
                let without_delay = smoothed_ns + (4 * self.variation_ns).max(GRANULARITY_NS);
                Span::from_nanos(without_delay) + ack_delay
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const US: Span = Span::from_nanos(1000);

    #[test]
    fn the_first_samples_give_what_rfc_6298_says() {
        let mut round_trip = RoundTrip::new();
        assert_eq!(round_trip.probe_timeout(US.times(500)), Span::from_millis(200));
        round_trip.sample(US.times(8000));
        assert_eq!((round_trip.smoothed(), round_trip.variation()), (US.times(8000), US.times(4000)));
        assert_eq!(round_trip.probe_timeout(US.times(500)), US.times(24_500));
        round_trip.sample(US.times(16_000));
        assert_eq!((round_trip.smoothed(), round_trip.variation()), (US.times(9000), US.times(5000)));
        assert_eq!((round_trip.minimum(), round_trip.latest()), (US.times(8000), US.times(16_000)));
    }

    #[test]
    fn a_short_way_is_probed_after_a_millisecond_and_the_delay() {
        let mut round_trip = RoundTrip::new();
        for _ in 0..100 {
            round_trip.sample(US.times(10));
        }
        assert_eq!(round_trip.probe_timeout(US.times(500)), US.times(1510));
    }

    proptest! {
        #[test]
        fn stays_within_the_samples(samples in prop::collection::vec(any::<u64>(), 1..50)) {
            let mut round_trip = RoundTrip::new();
            for &sample in &samples {
                round_trip.sample(Span::from_nanos(sample));
            }
            let counted = || samples.iter().map(|sample| Span::from_nanos(*sample.clamp(&1, &SAMPLE_MAX_NS)));
            let (least, most) = (counted().min().unwrap(), counted().max().unwrap());
            prop_assert_eq!(round_trip.minimum(), least);
            // Less by what integers leave over: below a nanosecond each time, of which an eighth is forgotten
            // each time.
            prop_assert!(round_trip.smoothed() + Span::from_nanos(8) >= least && round_trip.smoothed() <= most);
            prop_assert!(round_trip.variation() <= most);
            prop_assert!(round_trip.probe_timeout(US) >= round_trip.smoothed() + Span::from_millis(1));
        }

        #[test]
        fn comes_to_a_way_that_stays_the_same(before in 1u64..10_000_000, ns in 1000u64..10_000_000) {
            let mut round_trip = RoundTrip::new();
            round_trip.sample(Span::from_nanos(before));
            for _ in 0..200 {
                round_trip.sample(Span::from_nanos(ns));
            }
            prop_assert!(round_trip.smoothed().ns().abs_diff(ns) <= 8);
            prop_assert!(round_trip.variation() <= Span::from_nanos(16));
        }
    }
}
