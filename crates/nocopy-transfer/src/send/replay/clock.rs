//! The times of a recording as times to send at, however wrong they are.
//!
//! Only the gap from one packet to the next counts. So a wrong time moves the packets after it by a bounded
//! time, and not to where it says.

use std::time::Duration;

/// Packets of several queues are often recorded a little out of order: a packet is not late for that, and the
/// time does not step back.
const REORDERED_NS_MAX: i128 = 1_000_000;

/// Recorded time that is not waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::send) struct SkippedTime {
    /// Gaps that were shortened.
    pub gaps: u64,
    pub ns: u64,
    /// Packets before which the time went back.
    pub steps_back: u64,
}

#[derive(Debug)]
pub(super) struct ReplayClock {
    gap_ns_max: i128,
    /// The recorded time that the next one is compared with.
    newest_ns: Option<i128>,
    /// When the current packet is sent, since the start.
    now_ns: u64,
    skipped: SkippedTime,
    /// What of it belongs to packets that are not sent yet.
    ahead: SkippedTime,
}

impl ReplayClock {
    pub(super) fn new(gap_max: Duration) -> Self {
        let gap_ns_max = gap_max.as_nanos().min(u64::MAX.into()) as i128;
        let (skipped, ahead) = (SkippedTime::default(), SkippedTime::default());
        Self { gap_ns_max, newest_ns: None, now_ns: 0, skipped, ahead }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// What was skipped before the packets that were sent.
    pub(super) fn skipped(&self) -> SkippedTime {
        self.skipped
    }

    /// Advances to the next packet; one without a time is sent together with the one before.
    #[inline]
    pub(super) fn advance(&mut self, time_ns: Option<i128>) {
        let Some(time_ns) = time_ns else { return };
        let newest_ns = self.newest_ns.replace(time_ns).unwrap_or(time_ns);
        let gap_ns = time_ns - newest_ns;
        if (0..=self.gap_ns_max).contains(&gap_ns) {
            self.now_ns = self.now_ns.saturating_add(gap_ns as u64);
        } else if gap_ns > 0 {
            // Zero is no time of a clock: some programs write it if they have none.
            let waited_ns = if newest_ns == 0 { 0 } else { self.gap_ns_max };
            self.now_ns = self.now_ns.saturating_add(waited_ns as u64);
            self.ahead.gaps += 1;
            self.ahead.ns = self.ahead.ns.saturating_add((gap_ns - waited_ns).try_into().unwrap_or(u64::MAX));
        } else if gap_ns >= -REORDERED_NS_MAX {
            self.newest_ns = Some(newest_ns);
        } else {
            self.ahead.steps_back += 1;
        }
    }

    /// The packet was sent, or never will be.
    #[inline]
    pub(super) fn finish_packet(&mut self) {
        if self.ahead != SkippedTime::default() {
            let SkippedTime { gaps, ns, steps_back } = std::mem::take(&mut self.ahead);
            self.skipped.gaps += gaps;
            self.skipped.ns = self.skipped.ns.saturating_add(ns);
            self.skipped.steps_back += steps_back;
        }
    }

    /// The first packet of a round is sent together with the last one of the round before.
    pub(super) fn begin_round(&mut self) {
        self.newest_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i128 = 1_000_000;
    const SECOND: i128 = 1000 * MS;
    const NOW: i128 = 1_760_000_000 * SECOND;

    /// When each packet is sent, in milliseconds, and what was skipped.
    fn play_times(gap_max: Duration, times_ns: &[i128]) -> (Vec<u64>, SkippedTime) {
        let mut clock = ReplayClock::new(gap_max);
        let times = times_ns.iter().map(|&time_ns| {
            clock.advance(Some(time_ns));
            clock.finish_packet();
            clock.now_ns() / MS as u64
        });
        (times.collect(), clock.skipped())
    }

    fn skipped_time(gaps: u64, since_ns: i128, steps_back: u64) -> SkippedTime {
        SkippedTime { gaps, ns: since_ns as u64, steps_back }
    }

    #[test]
    fn gaps_are_kept_up_to_the_maximum() {
        let times = [0, 100, 100, 5100, 10_101].map(|ms| NOW + ms * MS);
        let (found, left) = play_times(Duration::from_secs(5), &times);
        assert_eq!((found, left), (vec![0, 100, 100, 5100, 10_100], skipped_time(1, MS, 0)));
        let (found, left) = play_times(Duration::from_secs(1_000_000_000), &times);
        assert_eq!((found, left), (vec![0, 100, 100, 5100, 10_101], SkippedTime::default()));
    }

    #[test]
    fn a_timestamp_of_zero_delays_no_packet() {
        let five = Duration::from_secs(5);
        let (found, left) = play_times(five, &[0, 0, NOW, NOW + MS]);
        assert_eq!((found, left), (vec![0, 0, 0, 1], skipped_time(1, NOW, 0)));
        let (found, left) = play_times(five, &[NOW, 0, NOW, NOW + MS]);
        assert_eq!((found, left), (vec![0, 0, 0, 1], skipped_time(1, NOW, 1)));
        // A recording whose times begin at zero.
        assert_eq!(play_times(five, &[0, 500 * MS, 600 * MS]), (vec![0, 500, 600], SkippedTime::default()));
    }

    #[test]
    fn a_step_of_the_clock_keeps_the_following_gaps() {
        let times = [0, 100, 65_536_200, 300, 400, 200, 300].map(|ms| NOW + ms * MS);
        let (found, left) = play_times(Duration::from_secs(5), &times);
        let jump_ns = 65_536_100 * MS - 5 * SECOND;
        assert_eq!((found, left), (vec![0, 100, 5100, 5100, 5200, 5200, 5300], skipped_time(1, jump_ns, 2)));
    }

    #[test]
    fn slightly_reordered_packets_delay_nothing() {
        let times = [0, 50, 49, 100, 99, 150].map(|tenths| NOW + tenths * MS / 10);
        let mut clock = ReplayClock::new(Duration::from_secs(5));
        let found = times.map(|time_ns| {
            clock.advance(Some(time_ns));
            clock.now_ns()
        });
        assert_eq!(found, [0, 50, 50, 100, 100, 150].map(|tenths| tenths * 100_000));
        assert_eq!(clock.skipped(), SkippedTime::default());
    }

    #[test]
    fn extreme_timestamps_do_not_overflow() {
        let most = i128::from(u64::MAX) << 40;
        for times in [[-most, most, -most], [most, -most, most], [0, most, 0]] {
            play_times(Duration::from_secs(1), &times);
        }
    }
}
