//! How a receiver waits.
//!
//! No wait of a port lasts longer than 100 ms at a time: poll(2) and epoll(7) do not report that an interface
//! is down or removed, nor that frames have returned to their pool.

use std::io;
use std::time::{Duration, Instant};

use crate::sys::poll::Wakeup;

/// How often a waiting receiver asks the kernel whether the port still works.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The interval of checks for returned frames while no frame is free for a packet.
pub(crate) const STARVED_INTERVAL: Duration = Duration::from_millis(1);

/// The shortest deliberate sleep: shorter ones are below the resolution of the kernel's timers.
const SLEEP_MIN: Duration = Duration::from_micros(20);

/// How a receiver waits for packets; may be changed at any time.
///
/// ```
/// # let (mut left, mut right) = nocopy::Port::memory_pair()?;
/// use nocopy::Wait;
/// use std::time::Duration;
/// let receiver = right.receiver();
/// receiver.set_wait(Wait::Adaptive { spin: Duration::from_micros(50) });
/// assert!(receiver.receive_timeout(Duration::from_millis(1))?.is_empty()); // spun, then slept
/// receiver.set_wait(Wait::Spin); // from the next wait on
/// # left.sender().send_copy(b"hello")?;
/// # left.sender().flush()?;
/// assert_eq!(receiver.receive()?.count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Poll the ring without sleeping: lowest latency, one core busy.
    Spin,
    /// Sleep in `poll(2)` until the kernel signals: no CPU while idle, one wake-up per packet at moderate
    /// rates.
    Interrupt,
    /// Spin for some time, then sleep until the kernel signals.
    Adaptive {
        /// How long to spin before sleeping.
        spin: Duration,
    },
    /// Sleep until about `packets` packets have arrived or `delay` has passed, for captures whose latency
    /// does not matter. The sleep is chosen from the measured rate, so that the ring is at most half full at
    /// its end. Each sleep is at most twice the last, so a rising rate is noticed early.
    Coalesced {
        /// Packets worth waking up for.
        packets: u32,
        /// The longest sleep.
        delay: Duration,
    },
}

/// What waits for packets: one receiver, several as one, or a socket. Methods that a socket does not need do
/// nothing by default.
pub(crate) trait WaitSource {
    /// While spinning, polls between two reads of the clock: if a poll only reads memory, reading the clock
    /// costs as much as some 50 polls.
    fn polls_per_clock_read(&self) -> u32 {
        64
    }

    fn is_ready(&mut self) -> bool;
    /// Prepares for a wait by the kernel; true if no wait is needed.
    fn arm(&mut self) -> io::Result<bool>;
    /// Lends returned frames, and wakes the kernel if it asks for it: what a wait without the kernel must do
    /// now and then.
    fn refill_and_wake(&mut self) -> io::Result<()>;
    /// Wakes the kernel if it asks for it.
    fn wake_kernel(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Checks whether the port still works.
    fn check_usable(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// The longest sleep in the kernel before the next poll.
    fn sleep_max(&self) -> Duration {
        Duration::MAX
    }
    /// Whether packets have arrived that need a frame: any wait by the kernel would end at once.
    fn is_starved(&mut self) -> bool {
        false
    }
    fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup>;
    /// Whether another thread has asked to end the wait; clears the request.
    #[inline]
    fn is_woken(&mut self) -> bool {
        false
    }
    /// Sleeps; returns whether the wait is to end.
    fn sleep(&mut self, duration: Duration) -> io::Result<bool> {
        std::thread::sleep(duration);
        Ok(false)
    }
    /// Packets read so far, modulo 2^32, and how many may arrive before packets are dropped.
    fn read_count_and_room(&self) -> (u32, u32);
    fn coalescer(&mut self) -> &mut WakeupCoalescer;
}

/// Waits until packets have arrived, the deadline has passed, or a signal arrived.
pub(crate) fn wait(waiting: &mut impl WaitSource, how: Wait, deadline: Option<Instant>) -> io::Result<()> {
    match how {
        Wait::Spin => spin(waiting, deadline).map(drop),
        Wait::Interrupt => sleep_until_ready(waiting, deadline),
        Wait::Adaptive { spin: limit } => {
            let limit = Instant::now().checked_add(limit);
            let is_over = spin(waiting, [limit, deadline].into_iter().flatten().min())?;
            if is_over { Ok(()) } else { sleep_until_ready(waiting, deadline) }
        }
        Wait::Coalesced { packets, delay } => coalesce(waiting, packets, delay, deadline),
    }
}

/// Spins until packets have arrived or another thread ends the wait (true), or until the deadline (false).
fn spin(waiting: &mut impl WaitSource, deadline: Option<Instant>) -> io::Result<bool> {
    let mut last_check = Instant::now();
    loop {
        // Frames that returned by other ways than a batch: without them there may never be another batch.
        waiting.refill_and_wake()?;
        for _ in 0..waiting.polls_per_clock_read() {
            if waiting.is_ready() {
                return Ok(true);
            }
            waiting.wake_kernel()?;
            std::hint::spin_loop();
        }
        if waiting.is_woken() {
            return Ok(true);
        }
        let now = Instant::now();
        if deadline.is_some_and(|end| now >= end) {
            return Ok(false);
        }
        if now.duration_since(last_check) >= CHECK_INTERVAL {
            waiting.check_usable()?;
            last_check = now;
        }
    }
}

fn sleep_until_ready(waiting: &mut impl WaitSource, deadline: Option<Instant>) -> io::Result<()> {
    // No arrival is lost: one after `arm` makes the descriptor readable.
    while !waiting.arm()? {
        let left = time_left(deadline);
        if left.is_zero() || waiting.is_woken() {
            return Ok(());
        }
        if waiting.is_starved() {
            std::thread::sleep(STARVED_INTERVAL.min(left));
            continue;
        }
        // Packets are returned at once: arming again would cost needless system calls.
        if waiting.wait_readable(waiting.sleep_max().min(left))? == Wakeup::Interrupted || waiting.is_ready()
        {
            return Ok(());
        }
    }
    Ok(())
}

fn coalesce(
    waiting: &mut impl WaitSource,
    packets: u32,
    delay: Duration,
    deadline: Option<Instant>,
) -> io::Result<()> {
    loop {
        waiting.refill_and_wake()?;
        if waiting.is_ready() {
            return Ok(()); // a packet ring tells what came only when it is asked
        }
        let left = time_left(deadline);
        if left.is_zero() || waiting.is_woken() {
            return Ok(());
        }
        let (read, room) = waiting.read_count_and_room();
        let sleep = waiting.coalescer().sleep_duration(Instant::now(), read, room, packets, delay);
        let is_over = waiting.sleep(sleep.clamp(SLEEP_MIN, CHECK_INTERVAL).min(left))?;
        if is_over || waiting.is_ready() {
            return Ok(());
        }
        waiting.check_usable()?;
    }
}

/// The packets read by several receivers, and the least room. All packets may arrive at one of them, and its
/// ring must not overflow.
#[cfg(feature = "port")]
pub(crate) fn combine_counts_and_rooms((all, least): (u32, u32), (read, room): (u32, u32)) -> (u32, u32) {
    (all.wrapping_add(read), least.min(room))
}

fn time_left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
}

/// How long one wait for completions or room lasts at most: not every event ends a wait by the kernel.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub(crate) enum PollOutcome<T> {
    Done(T),
    /// Something changed: poll again at once.
    Moved,
    Nothing,
}

/// Polls until done; `wait` sleeps after a poll that found nothing. `None`: not done in time.
pub(crate) fn poll_until_done<S, T, E>(
    state: &mut S,
    timeout: Duration,
    mut poll: impl FnMut(&mut S) -> Result<PollOutcome<T>, E>,
    mut wait: impl FnMut(&mut S, Duration) -> Result<(), E>,
) -> Result<Option<T>, E> {
    let deadline = Instant::now().checked_add(timeout);
    loop {
        let found = poll(state)?;
        if let PollOutcome::Done(done) = found {
            return Ok(Some(done));
        }
        // Also after `Moved`, so that steady progress does not outlast the deadline.
        let left = time_left(deadline);
        if left.is_zero() {
            return Ok(None);
        }
        if let PollOutcome::Nothing = found {
            wait(state, left.min(LOOK_AGAIN))?;
        }
    }
}

/// The rate assumed before any was measured: 64-byte frames on a 10 Gbit/s link.
const RATE_ASSUMED_PER_S: f64 = 14.88e6;

/// Decides how long a coalescing receiver sleeps. It reads no clock: time is an argument.
#[derive(Debug, Default)]
pub(crate) struct WakeupCoalescer {
    /// When the last sleep was decided.
    since: Option<Instant>,
    /// The packets read by then.
    read: u32,
    last: Duration,
}

impl WakeupCoalescer {
    /// How long to sleep, given that `read` packets were read so far, modulo 2^32, from rings of `ring`
    /// entries.
    fn sleep_duration(
        &mut self,
        now: Instant,
        read: u32,
        ring: u32,
        packets: u32,
        delay: Duration,
    ) -> Duration {
        let safe = f64::from(ring) / 2.0;
        let received = read.wrapping_sub(std::mem::replace(&mut self.read, read));
        let rate_per_s = match self.since.replace(now) {
            Some(since) => f64::from(received) / now.duration_since(since).as_secs_f64().max(1e-6),
            None => RATE_ASSUMED_PER_S,
        };
        let wanted = f64::from(packets).min(safe) / rate_per_s.max(1e-3);
        let mut sleep = Duration::try_from_secs_f64(wanted).unwrap_or(delay).min(delay);
        if self.last > Duration::ZERO {
            sleep = sleep.min(self.last * 2);
        }
        // Not zero, from which doubling would not lead away.
        self.last = sleep.max(Duration::from_micros(1));
        sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Runs the decision against a constant rate and returns the sleeps it settles into.
    fn simulate_sleeps(rate_per_s: f64, ring: u32, packets: u32, delay: Duration) -> Vec<Duration> {
        let mut coalescer = WakeupCoalescer::default();
        let (mut now, mut read) = (Instant::now(), 0);
        (0..40)
            .map(|_| {
                let sleep = coalescer.sleep_duration(now, read, ring, packets, delay);
                now += sleep;
                read += (rate_per_s * sleep.as_secs_f64()) as u32;
                sleep
            })
            .collect()
    }

    #[test]
    fn coalescing_fills_at_most_half_of_the_ring() {
        for rate_per_s in [1e4, 3e5, 5e6, 1.4e7] {
            for sleep in simulate_sleeps(rate_per_s, 4096, u32::MAX, 100 * MS) {
                assert!(rate_per_s * sleep.as_secs_f64() <= 2049.0, "{rate_per_s}/s: {sleep:?}");
            }
        }
    }

    #[test]
    fn sleeps_converge_to_the_requested_number_of_packets() {
        let last = *simulate_sleeps(300e3, 4096, 600, 100 * MS).last().unwrap();
        assert!((1900..=2100).contains(&last.as_micros()), "{last:?}");
    }

    #[test]
    fn without_packets_the_longest_sleep_is_used() {
        assert_eq!(*simulate_sleeps(0.0, 4096, 600, 10 * MS).last().unwrap(), 10 * MS);
    }

    #[test]
    fn a_sleep_at_most_doubles() {
        let sleeps = simulate_sleeps(1e3, 4096, 600, 1000 * MS);
        assert!(sleeps.windows(2).all(|pair| pair[1] <= pair[0] * 2), "{sleeps:?}");
    }
}
