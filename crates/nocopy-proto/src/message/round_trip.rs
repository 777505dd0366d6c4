//! Round-trip times, smoothed (docs/protocol.md §6).

use std::time::Duration;

/// What is taken for a round trip before the first one was measured.
const INITIAL: Duration = Duration::from_millis(100);
/// Variation below this is the clock's and the scheduler's (RFC 9002 section 6.1.2, kGranularity).
const GRANULARITY: Duration = Duration::from_millis(1);

/// RFC 6298's estimate.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RoundTrip {
    smoothed: Duration,
    variation: Duration,
    minimum: Duration,
    latest: Duration,
}

impl RoundTrip {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn sample(&mut self, round_trip: Duration) {
        let round_trip = round_trip.max(Duration::from_nanos(1));
        self.latest = round_trip;
        if self.smoothed.is_zero() {
            (self.smoothed, self.variation, self.minimum) = (round_trip, round_trip / 2, round_trip);
            return;
        }
        self.minimum = self.minimum.min(round_trip);
        self.variation = (3 * self.variation + self.smoothed.abs_diff(round_trip)) / 4;
        self.smoothed = (7 * self.smoothed + round_trip) / 8;
    }

    /// Zero before the first sample.
    pub(super) fn smoothed(&self) -> Duration {
        self.smoothed
    }

    pub(super) fn latest(&self) -> Duration {
        self.latest
    }

    pub(super) fn minimum(&self) -> Duration {
        self.minimum
    }

    /// After how long without a word to probe (RFC 9002 section 6.2.1).
    pub(super) fn probe_timeout(&self, ack_delay: Duration) -> Duration {
        match self.smoothed.is_zero() {
            true => 2 * INITIAL,
            false => self.smoothed + (4 * self.variation).max(GRANULARITY) + ack_delay,
        }
    }
}
