//! Converts packets' times from the monotonic clock to times of day.

use rustix::time::{ClockId, clock_gettime};

/// How long the difference of the clocks counts as constant.
const OFFSET_VALID_NS: u64 = 100_000_000;

/// Converts times of the monotonic clock to time of day. It adds the difference of the two clocks, which it
/// reads again after a tenth of a second, so that a clock that is set or slewed is followed.
#[derive(Debug)]
pub(super) struct RealtimeConverter {
    /// Realtime less monotonic time, modulo 2^64.
    offset_ns: u64,
    /// By the monotonic clock.
    sampled_at_ns: u64,
}

impl RealtimeConverter {
    /// Reads the present difference of the clocks.
    pub(super) fn new() -> Self {
        // The thread may be kept waiting between two readings: the closest of some.
        let samples = (0..5).map(|_| {
            let before = read_clock_ns(ClockId::Monotonic);
            let realtime = read_clock_ns(ClockId::Realtime);
            let after = read_clock_ns(ClockId::Monotonic);
            (after - before, realtime, before + (after - before) / 2)
        });
        let (_, realtime, sampled_at_ns) = samples.min().expect("some");
        Self { offset_ns: realtime.wrapping_sub(sampled_at_ns), sampled_at_ns }
    }

    /// The time of day, in nanoseconds since 1970, of a time in nanoseconds by the monotonic clock.
    #[inline]
    pub(super) fn convert_to_realtime_ns(&mut self, monotonic_ns: u64) -> u64 {
        if monotonic_ns > self.sampled_at_ns + OFFSET_VALID_NS {
            self.resample_offset();
        }
        monotonic_ns.wrapping_add(self.offset_ns)
    }

    #[cold]
    fn resample_offset(&mut self) {
        *self = Self::new();
    }
}

fn read_clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_times_use_the_sampled_offset() {
        let mut realtime = RealtimeConverter::new();
        let first = realtime.convert_to_realtime_ns(1_000);
        assert_eq!(
            realtime.convert_to_realtime_ns(1_500),
            first + 500,
            "the clocks are not looked at for the past"
        );
    }

    #[test]
    fn a_converted_time_is_between_two_clock_readings() {
        let mut realtime = RealtimeConverter { offset_ns: 0, sampled_at_ns: 0 };
        // The clocks are read one after the other, and a stall between makes the result inexact.
        let (before, slack_ns) = (read_clock_ns(ClockId::Realtime), 60_000_000_000);
        let now = realtime.convert_to_realtime_ns(read_clock_ns(ClockId::Monotonic));
        let after = read_clock_ns(ClockId::Realtime);
        assert!((before - slack_ns..after + slack_ns).contains(&now), "{before} {now} {after}");
    }
}
