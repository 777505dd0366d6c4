//! How long packets may gather before the program is woken for them.
//!
//! Once a packet is there, the program's thread sleeps in slices and looks at the rings after each, as long as the last slice brought
//! more, fewer than are worth it are there, and the handle's timeout is not over. A slice is long at a high rate, where few
//! wakes are what counts, and short at a low one, which may be the quiet before a burst. What that costs: nothing on an idle interface,
//! two wakes a packet at the lowest rates, never more than about 500 a second, and from 40,000 packets a second on fewer and fewer.

use std::time::{Duration, Instant};

/// So many are worth waking up for.
const PACKETS: u32 = 4096;

/// Packets in a second that a queue may bring at once after few: half of the ring's room is as long as a slice, then.
const BURST_PER_S: f64 = 2e6;

/// Above this rate slices grow with it, up to those that bring enough.
const HIGH_PER_S: f64 = 40e3;

/// Decides how long to sleep while packets are there.
#[derive(Debug)]
pub(super) struct Gathering {
    /// What to sleep for: less than half of the room, so that a rate that doubles does not fill it.
    aim: f64,
    /// The longest slice at a low rate.
    short: Duration,
    /// The longest of all slices together.
    delay: Duration,
    /// The longest slice now; at most doubles from look to look, so that a moment is not taken for a rate.
    longest: Duration,
    until: Instant,
    /// Of the look before: when it was, how many had come ever, and how many were there.
    looked: Instant,
    came: u64,
    waiting: u32,
}

impl Gathering {
    /// Into rings with room for so many packets each.
    pub(super) fn new(room: u32, delay: Duration, now: Instant) -> Self {
        let aim = f64::from(PACKETS.min(room / 2)) * 7.0 / 8.0;
        let short = Duration::from_secs_f64(f64::from(room / 2) / BURST_PER_S);
        Self { aim, short, delay, longest: short, until: now, looked: now, came: 0, waiting: 0 }
    }

    /// Now the first packets are there.
    pub(super) fn begin(&mut self, now: Instant) {
        self.until = now + self.delay;
        self.waiting = 0;
    }

    /// How long to sleep until the next look, where `came` packets have come since the capture began, of which so many are waiting in
    /// the rings; `None` is for no longer.
    pub(super) fn slice(&mut self, now: Instant, (came, waiting): (u64, u32)) -> Option<Duration> {
        let elapsed = now.duration_since(self.looked).max(Duration::from_micros(1));
        let rate_per_s = came.saturating_sub(self.came) as f64 / elapsed.as_secs_f64();
        let longest = self.short.mul_f64((rate_per_s / HIGH_PER_S).max(1.0));
        self.longest = longest.min(self.longest * 2);
        let is_more = waiting > self.waiting;
        (self.looked, self.came, self.waiting) = (now, came, waiting);
        // A last slice for a few would cost as much as one for all.
        let is_enough = f64::from(waiting) >= self.aim * 0.75;
        let left = self.until.saturating_duration_since(now);
        if !is_more || is_enough || left.is_zero() {
            return None;
        }
        let wanted = (self.aim - f64::from(waiting)) / rate_per_s;
        let wanted = Duration::try_from_secs_f64(wanted).unwrap_or(self.longest);
        Some(wanted.min(self.longest).min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(1);
    const ROOM: u32 = 8192;
    const WAKE: Duration = Duration::from_micros(60);

    /// How packets fared of which `came` have come after so many seconds.
    #[derive(Debug, Default)]
    struct Fared {
        slices: u32,
        /// How often the program was woken.
        woken: u32,
        most_waiting: u64,
        longest_s: f64,
    }

    /// Gathers for so long.
    fn gather(mut gathering: Gathering, start: Instant, seconds: f64, came: impl Fn(f64) -> u64) -> Fared {
        let (mut fared, mut read, mut now) = (Fared::default(), 0, start);
        let at = |now: Instant| now.duration_since(start).as_secs_f64();
        while at(now) < seconds {
            while came(at(now)) == read {
                now += WAKE; // asleep in poll(2)
                if at(now) >= seconds {
                    return fared;
                }
            }
            let first = now;
            gathering.begin(now);
            loop {
                let waiting = came(at(now)) - read;
                fared.most_waiting = fared.most_waiting.max(waiting);
                match gathering.slice(now, (read + waiting, waiting as u32)) {
                    Some(slice) => now += slice + WAKE,
                    None => break,
                }
                fared.slices += 1;
            }
            fared.longest_s = fared.longest_s.max(at(now) - at(first));
            fared.woken += 1;
            read = came(at(now));
        }
        fared
    }

    fn run(seconds: f64, came: impl Fn(f64) -> u64) -> Fared {
        let start = Instant::now();
        gather(Gathering::new(ROOM, DELAY, start), start, seconds, came)
    }

    #[test]
    fn at_a_steady_high_rate_each_sleep_brings_about_what_is_worth_it() {
        for rate_per_s in [250e3, 300e3, 1e6] {
            let fared = run(10.0, |at| (at * rate_per_s) as u64);
            let each = 10.0 * rate_per_s / f64::from(fared.slices);
            assert!((3000.0..=4096.0).contains(&each), "{rate_per_s}/s: {each}, {fared:?}");
        }
    }

    #[test]
    fn a_rate_that_doubles_does_not_fill_the_ring() {
        for rate_per_s in [100e3, 300e3, 1e6] {
            for at_ms in 500..520 {
                let change = f64::from(at_ms) / 1000.0;
                let came = |at: f64| ((at + (at - change).max(0.0)) * rate_per_s) as u64;
                let fared = run(1.0, came);
                assert!(fared.most_waiting < u64::from(ROOM), "{rate_per_s}/s, {at_ms} ms: {fared:?}");
            }
        }
    }

    #[test]
    fn a_burst_after_quiet_does_not_fill_the_ring() {
        for burst_per_s in [40_000.0 / 0.15, 1.5e6] {
            for quiet_per_s in [1.0, 50.0, 1000.0, 20e3] {
                let came = |at: f64| (1.0 + at * quiet_per_s + (at - 16.3).max(0.0) * burst_per_s) as u64;
                let fared = run(16.5, came);
                assert!(fared.most_waiting < u64::from(ROOM), "{quiet_per_s}, {burst_per_s}: {fared:?}");
            }
        }
    }

    #[test]
    fn low_rates_cost_few_wakes_and_idleness_none() {
        assert_eq!(run(10.0, |_| 0).slices, 0);
        for rate_per_s in [1.0, 20.0, 100.0, 1000.0, 20e3, 100e3] {
            let fared = run(10.0, |at| (at * rate_per_s) as u64);
            let wakes_per_s = f64::from(fared.slices) / 10.0;
            assert!(wakes_per_s <= (rate_per_s + 1.0).min(500.0), "{rate_per_s}/s: {fared:?}");
            assert!(fared.woken <= fared.slices, "{rate_per_s}/s: {fared:?}");
        }
    }

    #[test]
    fn packets_gather_no_longer_than_allowed() {
        let start = Instant::now();
        let gathering = Gathering::new(ROOM, Duration::from_millis(5), start);
        let fared = gather(gathering, start, 1.0, |at| (at * 10e3) as u64);
        assert!((0.004..0.006).contains(&fared.longest_s), "{fared:?}");
        let mut short = Gathering::new(ROOM, Duration::from_micros(10), start);
        short.begin(start);
        assert_eq!(short.slice(start, (1, 1)), Some(Duration::from_micros(10)));
    }
}
