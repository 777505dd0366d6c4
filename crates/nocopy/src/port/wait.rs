//! How a receiver waits.

use std::time::{Duration, Instant};

use super::receiver::CHECK_INTERVAL;

/// The shortest sleep on purpose: below it, the kernel's timers make no difference.
const SLEEP_MIN: Duration = Duration::from_micros(20);

/// How a receiver waits for packets; may be changed at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Look at the ring again and again: lowest latency, one core busy.
    Spin,
    /// Sleep in `poll(2)` until the kernel signals: no CPU while idle, one wake-up a packet at moderate rates.
    Interrupt,
    /// Spin for a while, then sleep until the kernel signals.
    Adaptive {
        /// How long to spin before sleeping.
        spin: Duration,
    },
    /// Sleep on purpose until about `packets` packets are there or `delay` has passed, for capture where latency does
    /// not matter. The sleep follows the measured rate so that the ring is never more than half full when it ends; it
    /// at most doubles from one to the next, so a rising rate is seen early.
    Coalesced {
        /// Packets worth waking up for.
        packets: u32,
        /// The longest sleep.
        delay: Duration,
    },
}

/// The rate assumed before any was measured: 64-byte frames on a 10 Gbit/s link.
const RATE_ASSUMED_PER_S: f64 = 14.88e6;

/// Decides how long a coalescing receiver sleeps. Knows no clock: time comes in from outside.
#[derive(Debug, Default)]
pub(super) struct Coalescer {
    /// When the last sleep was decided.
    since: Option<Instant>,
    last: Duration,
}

impl Coalescer {
    /// Like [`Coalescer::sleep`], within what is worth sleeping and what a broken port may take to be noticed.
    pub(super) fn sleep_for(
        &mut self,
        now: Instant,
        received: u64,
        ring: u32,
        packets: u32,
        delay: Duration,
    ) -> Duration {
        self.sleep(now, received, ring, packets, delay).clamp(SLEEP_MIN, CHECK_INTERVAL)
    }

    /// How long to sleep now that `received` packets have come since the last sleep was decided, into rings that hold
    /// `ring` of them.
    fn sleep(&mut self, now: Instant, received: u64, ring: u32, packets: u32, delay: Duration) -> Duration {
        let safe = f64::from(ring) / 2.0;
        let rate_per_s = match self.since.replace(now) {
            Some(since) => received as f64 / now.duration_since(since).as_secs_f64().max(1e-6),
            None => RATE_ASSUMED_PER_S,
        };
        let wanted = f64::from(packets).min(safe) / rate_per_s.max(1e-3);
        let mut sleep = Duration::try_from_secs_f64(wanted).unwrap_or(delay).min(delay);
        if self.last > Duration::ZERO {
            sleep = sleep.min(self.last * 2);
        }
        self.last = sleep.max(Duration::from_micros(1));
        sleep
    }
}

#[cfg(all(test, not(nocopy_loom)))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Runs the decision against a constant rate and returns the sleeps it settles into.
    fn steady(rate_per_s: f64, ring: u32, packets: u32, delay: Duration) -> Vec<Duration> {
        let mut coalescer = Coalescer::default();
        let (mut now, mut received) = (Instant::now(), 0);
        (0..40)
            .map(|_| {
                let sleep = coalescer.sleep(now, received, ring, packets, delay);
                now += sleep;
                let arrived = (rate_per_s * sleep.as_secs_f64()) as u64;
                received = arrived;
                sleep
            })
            .collect()
    }

    #[test]
    fn the_ring_is_never_more_than_half_full() {
        for rate_per_s in [1e4, 3e5, 5e6, 1.4e7] {
            for sleep in steady(rate_per_s, 4096, u32::MAX, 100 * MS) {
                assert!(rate_per_s * sleep.as_secs_f64() <= 2049.0, "{rate_per_s}/s: {sleep:?}");
            }
        }
    }

    #[test]
    fn sleeps_settle_at_the_packets_asked_for() {
        let last = *steady(300e3, 4096, 600, 100 * MS).last().unwrap();
        assert!((1900..=2100).contains(&last.as_micros()), "{last:?}");
    }

    #[test]
    fn silence_ends_in_the_longest_sleep() {
        assert_eq!(*steady(0.0, 4096, 600, 10 * MS).last().unwrap(), 10 * MS);
    }

    #[test]
    fn a_sleep_at_most_doubles() {
        let sleeps = steady(1e3, 4096, 600, 1000 * MS);
        assert!(sleeps.windows(2).all(|pair| pair[1] <= pair[0] * 2), "{sleeps:?}");
    }
}
