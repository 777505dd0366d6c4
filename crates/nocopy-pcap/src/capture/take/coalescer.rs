//! How long packets may accumulate before the program is woken for them.
//!
//! Once there is a packet, the program's thread sleeps in slices and checks the rings after each. It
//! continues as long as the last slice brought more packets, there are too few to be worth a wake, and the
//! handle's timeout is not over. A slice is long at a high rate, where the number of wakes matters, and short
//! at a low one, which may be the pause before a burst. The cost is nothing on an idle interface, two wakes
//! per packet at the lowest rates, and never more than about 500 wakes a second; above 40,000 packets a
//! second the number falls.
//!
//! Packets arrive in bursts, even at a steady rate: cards moderate their interrupts, and programs send
//! several in one call. So the packets of a single slice prove little, because it may have begun before or
//! after a burst. The rate used is the highest of the last few milliseconds.

use std::time::{Duration, Instant};

/// This many packets are worth waking up for.
const PACKETS: u32 = 4096;

/// Packets per second that may suddenly arrive on a quiet queue: a slice is as long as half of the ring's
/// room lasts at this rate.
const BURST_PER_S: f64 = 2e6;

/// The longest slice at a low rate, however much room there is.
const SHORT_MAX: Duration = Duration::from_millis(2);

/// Above this rate slices grow with the rate, until each brings enough packets.
const HIGH_PER_S: f64 = 40e3;

/// The longest burst, with the pause after it.
const WINDOW: Duration = Duration::from_millis(4);

/// After this time without a check the program may have paused, and earlier measurements do not apply.
const STALE_AFTER: Duration = Duration::from_millis(32);

/// The shortest time over which a rate is measured.
const RATE_TIME_MIN: Duration = Duration::from_millis(1);

/// Decides how long to sleep while packets are there.
#[derive(Debug)]
pub(super) struct WakeupCoalescer {
    /// The number of packets to sleep for: less than a quarter of the room, so that a rate four times as high
    /// does not fill it.
    aim: f64,
    /// The longest slice at a low rate.
    short: Duration,
    /// The longest wait, over all slices.
    delay: Duration,
    /// The longest slice now; at most doubles from check to check, so that a short burst is not mistaken for
    /// a rate.
    longest: Duration,
    until: Instant,
    rate: ArrivalRate,
    /// The last check: when it was, how many packets had arrived in total, and how many were waiting, if that
    /// is known.
    checked_at: Instant,
    arrived: u64,
    waiting: Option<u32>,
    /// Whether the last slice brought any, at a high rate.
    is_flowing: bool,
}

#[derive(Debug)]
struct ArrivalRate {
    /// The current window: its start, and the number of packets received before it.
    since: Instant,
    arrived: u64,
    /// The highest rate of its slices.
    slice_per_s: f64,
    /// The rates of the two windows before.
    windows_per_s: [f64; 2],
}

impl ArrivalRate {
    fn new(since: Instant, arrived: u64) -> Self {
        Self { since, arrived, slice_per_s: 0.0, windows_per_s: [0.0; 2] }
    }

    /// Updates the rate; `arrived` packets have arrived in total, `slice_per_s` is the rate since the last
    /// check.
    fn update_rate(&mut self, now: Instant, arrived: u64, slice_per_s: f64) -> f64 {
        self.slice_per_s = self.slice_per_s.max(slice_per_s);
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed >= WINDOW {
            let rate_per_s = arrived.saturating_sub(self.arrived) as f64 / elapsed.as_secs_f64();
            self.windows_per_s = [rate_per_s.max(self.slice_per_s), self.windows_per_s[0]];
            (self.since, self.arrived, self.slice_per_s) = (now, arrived, 0.0);
        }
        self.windows_per_s.iter().copied().fold(self.slice_per_s, f64::max)
    }
}

impl WakeupCoalescer {
    pub(super) fn new(room: u32, delay: Duration, now: Instant) -> Self {
        let aim = f64::from(PACKETS.min(room / 4)) * 7.0 / 8.0;
        let short = Duration::from_secs_f64(f64::from(room / 2) / BURST_PER_S).min(SHORT_MAX);
        let rate = ArrivalRate::new(now, 0);
        Self {
            aim,
            short,
            delay,
            longest: short,
            until: now,
            rate,
            checked_at: now,
            arrived: 0,
            waiting: None,
            is_flowing: false,
        }
    }

    /// Whether packets arrive at a rate at which waking for the first is not worth it.
    pub(super) fn has_high_rate(&self, now: Instant) -> bool {
        self.is_flowing && !self.is_stale(now)
    }

    /// Whether the last check was long ago.
    fn is_stale(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.checked_at) > STALE_AFTER
    }

    /// Starts coalescing: the first packets have arrived, or soon will.
    pub(super) fn begin_coalescing(&mut self, now: Instant) {
        self.until = now + self.delay;
        self.waiting = (!self.has_high_rate(now)).then_some(0);
    }

    /// How long to sleep until the next check, if `arrived` packets have arrived since the capture began, and
    /// `waiting` of them are in the rings; `None`: no more sleep.
    pub(super) fn next_sleep(&mut self, now: Instant, (arrived, waiting): (u64, u32)) -> Option<Duration> {
        let elapsed = now.saturating_duration_since(self.checked_at).max(RATE_TIME_MIN);
        let more = arrived.saturating_sub(self.arrived);
        if self.is_stale(now) {
            self.rate = ArrivalRate::new(now, arrived);
        }
        let rate_per_s = self.rate.update_rate(now, arrived, more as f64 / elapsed.as_secs_f64());
        let longest = self.short.mul_f64((rate_per_s / HIGH_PER_S).max(1.0));
        self.longest = longest.min(self.longest * 2);
        let is_more = self.waiting.is_none_or(|before| waiting > before);
        self.is_flowing = more > 0 && rate_per_s > HIGH_PER_S;
        (self.checked_at, self.arrived, self.waiting) = (now, arrived, Some(waiting));
        // A last slice for a few would cost as much as one for all.
        let is_enough = f64::from(waiting) >= self.aim * 0.75;
        let left = self.until.saturating_duration_since(now);
        if !is_more || is_enough || left.is_zero() {
            return None;
        }
        let wanted = (self.aim - f64::from(waiting)) / rate_per_s;
        // At a rate of 0 this is infinite, which is no `Duration`.
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

    /// Results for `arrived` packets after some seconds.
    #[derive(Debug, Default)]
    struct SimulationResult {
        slices: u32,
        woken: u32,
        most_waiting: u64,
        longest_s: f64,
    }

    fn simulate_coalescer(
        mut coalescer: WakeupCoalescer,
        start: Instant,
        seconds: f64,
        arrived: impl Fn(f64) -> u64,
    ) -> SimulationResult {
        let (mut outcome, mut read, mut now) = (SimulationResult::default(), 0, start);
        let at = |now: Instant| now.duration_since(start).as_secs_f64();
        while at(now) < seconds {
            while !coalescer.has_high_rate(now) && arrived(at(now)) == read {
                now += WAKE; // asleep in poll(2)
                if at(now) >= seconds {
                    return outcome;
                }
            }
            let first = now;
            coalescer.begin_coalescing(now);
            loop {
                let waiting = arrived(at(now)) - read;
                outcome.most_waiting = outcome.most_waiting.max(waiting);
                match coalescer.next_sleep(now, (read + waiting, waiting as u32)) {
                    Some(slice) => now += slice + WAKE,
                    None => break,
                }
                outcome.slices += 1;
            }
            outcome.longest_s = outcome.longest_s.max(at(now) - at(first));
            outcome.woken += 1;
            read = arrived(at(now));
        }
        outcome
    }

    fn simulate_arrivals(seconds: f64, arrived: impl Fn(f64) -> u64) -> SimulationResult {
        let start = Instant::now();
        simulate_coalescer(WakeupCoalescer::new(ROOM, DELAY, start), start, seconds, arrived)
    }

    #[test]
    fn each_sleep_collects_enough_packets_at_a_steady_high_rate() {
        for rate_per_s in [250e3, 300e3, 1e6] {
            let outcome = simulate_arrivals(10.0, |at| (at * rate_per_s) as u64);
            let each = 10.0 * rate_per_s / f64::from(outcome.slices);
            let worth_it = f64::from(ROOM / 4);
            assert!((0.7 * worth_it..=worth_it).contains(&each), "{rate_per_s}/s: {each}, {outcome:?}");
        }
    }

    /// The packets of a rate after a tenth of a second, if they arrive in bursts.
    fn bursty_arrivals(rate_per_s: f64, interval_s: f64) -> impl Fn(f64) -> u64 {
        move |at| {
            let at = (at - 0.1).max(0.0);
            let burst = (at / interval_s).floor();
            let each = rate_per_s * interval_s;
            (burst * each + ((at - burst * interval_s) * 4.5e6).min(each)) as u64
        }
    }

    #[test]
    fn a_rate_in_bursts_is_measured_as_a_steady_one() {
        for (room, rates_per_s) in [(32768, 300e3..4e6), (16384, 300e3..2.5e6), (8192, 300e3..1.5e6)] {
            let mut rate_per_s = rates_per_s.start;
            while rate_per_s < rates_per_s.end {
                for interval_us in [50.0, 250.0, 1000.0, 1070.0, 2000.0] {
                    let start = Instant::now();
                    let coalescer = WakeupCoalescer::new(room, DELAY, start);
                    let outcome = simulate_coalescer(
                        coalescer,
                        start,
                        1.1,
                        bursty_arrivals(rate_per_s, interval_us / 1e6),
                    );
                    let how = format!("{rate_per_s}/s each {interval_us} us: {outcome:?}");
                    assert!(outcome.most_waiting < u64::from(room) / 2, "{how}");
                    assert!(
                        rate_per_s / f64::from(outcome.slices) > f64::from(room.min(16384)) / 16.0,
                        "{how}"
                    );
                }
                rate_per_s *= 1.07;
            }
        }
    }

    #[test]
    fn the_end_of_a_flow_costs_at_most_three_more_sleeps() {
        let until = |end: f64| move |at: f64| (at.min(end) * 300e3) as u64;
        let (flow, all) = (simulate_arrivals(0.5, until(1.0)), simulate_arrivals(10.0, until(0.5)));
        assert!(all.slices <= flow.slices + 3, "{flow:?}, {all:?}");
    }

    #[test]
    fn a_rate_that_doubles_does_not_fill_the_ring() {
        for rate_per_s in [100e3, 300e3, 1e6] {
            for at_ms in 500..520 {
                let change = f64::from(at_ms) / 1000.0;
                let arrived = |at: f64| ((at + (at - change).max(0.0)) * rate_per_s) as u64;
                let outcome = simulate_arrivals(1.0, arrived);
                assert!(outcome.most_waiting < u64::from(ROOM), "{rate_per_s}/s, {at_ms} ms: {outcome:?}");
            }
        }
    }

    #[test]
    fn a_burst_after_quiet_does_not_fill_the_ring() {
        for burst_per_s in [40_000.0 / 0.15, 1.5e6] {
            for quiet_per_s in [1.0, 50.0, 1000.0, 20e3] {
                let arrived = |at: f64| (1.0 + at * quiet_per_s + (at - 16.3).max(0.0) * burst_per_s) as u64;
                let outcome = simulate_arrivals(16.5, arrived);
                assert!(outcome.most_waiting < u64::from(ROOM), "{quiet_per_s}, {burst_per_s}: {outcome:?}");
            }
        }
    }

    #[test]
    fn a_burst_long_after_a_flow_does_not_fill_the_ring() {
        for (flow_per_s, burst_per_s) in [(190e3, 1.5e6), (300e3, 1.5e6), (400e3, 1.5e6), (400e3, 2e6)] {
            let arrived = |at: f64| (at.min(0.3) * flow_per_s + (at - 2.0).max(0.0) * burst_per_s) as u64;
            let outcome = simulate_arrivals(2.1, arrived);
            assert!(outcome.most_waiting < u64::from(ROOM), "{flow_per_s}, {burst_per_s}: {outcome:?}");
        }
    }

    #[test]
    fn low_rates_cost_few_wakeups_and_idle_queues_none() {
        assert_eq!(simulate_arrivals(10.0, |_| 0).slices, 0);
        for rate_per_s in [1.0, 20.0, 100.0, 1000.0, 20e3, 100e3] {
            let outcome = simulate_arrivals(10.0, |at| (at * rate_per_s) as u64);
            let wakes_per_s = f64::from(outcome.slices) / 10.0;
            assert!(wakes_per_s <= (rate_per_s + 1.0).min(500.0), "{rate_per_s}/s: {outcome:?}");
            assert!(outcome.woken <= outcome.slices, "{rate_per_s}/s: {outcome:?}");
        }
    }

    #[test]
    fn packets_wait_no_longer_than_the_timeout() {
        let start = Instant::now();
        let coalescer = WakeupCoalescer::new(ROOM, Duration::from_millis(5), start);
        let outcome = simulate_coalescer(coalescer, start, 1.0, |at| (at * 10e3) as u64);
        assert!((0.004..0.006).contains(&outcome.longest_s), "{outcome:?}");
        let mut short = WakeupCoalescer::new(ROOM, Duration::from_micros(10), start);
        short.begin_coalescing(start);
        assert_eq!(short.next_sleep(start, (1, 1)), Some(Duration::from_micros(10)));
    }
}
