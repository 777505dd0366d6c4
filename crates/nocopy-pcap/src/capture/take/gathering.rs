//! How long packets may gather before the program is woken for them.

use std::time::{Duration, Instant};

/// So many are worth waking up for.
const PACKETS: u32 = 4096;

/// The first sleep, and the shortest: below it the kernel's timers make no difference.
const SLEEP_MIN: Duration = Duration::from_micros(50);

/// Decides how long to sleep once a packet is there. The sleep follows the rate, so that about [`PACKETS`] come meanwhile and never
/// more than half of what there is room for; it at most doubles from one to the next, so that a rate that rises is seen early.
#[derive(Debug)]
pub(super) struct Gathering {
    packets: f64,
    /// The longest.
    delay: Duration,
    last: Duration,
    since: Instant,
    received: u64,
}

impl Gathering {
    /// Into rings with room for so many packets each.
    pub(super) fn new(room: u32, delay: Duration, now: Instant) -> Self {
        let packets = f64::from(PACKETS.min(room / 2));
        Self { packets, delay, last: SLEEP_MIN / 2, since: now, received: 0 }
    }

    /// How long to sleep now that so many packets were received, since the capture began.
    pub(super) fn sleep(&mut self, now: Instant, received: u64) -> Duration {
        let elapsed = now.duration_since(self.since).max(Duration::from_micros(1));
        let rate_per_s = received.wrapping_sub(self.received) as f64 / elapsed.as_secs_f64();
        (self.since, self.received) = (now, received);
        let wanted = Duration::try_from_secs_f64(self.packets / rate_per_s).unwrap_or(self.delay);
        self.last = wanted.min(self.last * 2).min(self.delay).max(SLEEP_MIN);
        self.last.min(self.delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(1);

    /// The sleeps at a constant rate.
    fn sleeps(rate_per_s: f64, room: u32) -> Vec<Duration> {
        let start = Instant::now();
        let mut gathering = Gathering::new(room, DELAY, start);
        let (mut now, mut received) = (start, 0.0);
        (0..30)
            .map(|_| {
                let sleep = gathering.sleep(now, received as u64);
                let busy = Duration::from_micros(20);
                now += sleep + busy;
                received += (sleep + busy).as_secs_f64() * rate_per_s;
                sleep
            })
            .collect()
    }

    #[test]
    fn about_as_many_gather_as_are_worth_it_and_never_more_than_half_the_room() {
        for (rate_per_s, room) in [(3e5, 8192), (3e5, 1024), (1e6, 8192), (1e4, 8192)] {
            let last = sleeps(rate_per_s, room).last().unwrap().as_secs_f64() * rate_per_s;
            let expected = f64::from(PACKETS.min(room / 2));
            assert!((expected * 0.8..=expected * 1.01).contains(&last), "{rate_per_s}/s, {room}: {last}");
        }
    }

    #[test]
    fn a_sleep_at_most_doubles_and_is_never_longer_than_allowed() {
        let sleeps = sleeps(1.0, 8192);
        assert!(sleeps[0] <= SLEEP_MIN, "{sleeps:?}");
        assert!(sleeps.windows(2).all(|pair| pair[1] <= pair[0] * 2), "{sleeps:?}");
        assert_eq!(*sleeps.last().unwrap(), DELAY);
        let mut short = Gathering::new(8192, Duration::from_micros(10), Instant::now());
        assert_eq!(short.sleep(Instant::now(), 0), Duration::from_micros(10));
    }
}
