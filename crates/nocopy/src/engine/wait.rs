//! How a receiver waits.
//!
//! No wait of a port lasts longer than 100 ms at a time: poll(2) and epoll(7) do not report that an interface is down or removed, nor
//! that frames have returned to their pool.

use std::io;
use std::time::{Duration, Instant};

use crate::sys::poll::Wakeup;

/// How often a waiting receiver asks the kernel whether the port still works.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How often to look for frames coming home while none is free for a packet.
pub(crate) const STARVED_INTERVAL: Duration = Duration::from_millis(1);

/// The shortest sleep on purpose: below it, the kernel's timers make no difference.
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

/// What waits for packets: one receiver, several as one, or a socket. What a socket does not need does nothing by default.
pub(crate) trait Waiting {
    /// Empty looks between two looks at the clock while spinning: where a look reads memory, a look at the clock costs as much as
    /// some 50 of them.
    const LOOKS_PER_CLOCK: u32 = 64;

    /// Whether a batch can be made.
    fn is_ready(&mut self) -> bool;
    /// Prepares for a wait by the kernel; true if there is nothing to wait for.
    fn arm(&mut self) -> io::Result<bool>;
    /// Lends the frames that came home, and makes the kernel go on if it wants to be told: what a wait without the kernel does
    /// now and then.
    fn refresh(&mut self) -> io::Result<()>;
    /// Makes the kernel go on if it wants to be told.
    fn poke(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Asks whether the port still works.
    fn check(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// How long the kernel may wait before the next look, because something that matters does not end its wait.
    fn nap_max(&self) -> Duration {
        Duration::MAX
    }
    /// Whether packets are there, and must wait for a frame: that would end any wait by the kernel at once.
    fn is_starved(&mut self) -> bool {
        false
    }
    /// Lets the kernel wait.
    fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup>;
    /// Whether the wait is to end because somebody else wants it to; that is heard then.
    #[inline]
    fn is_woken(&mut self) -> bool {
        false
    }
    /// Sleeps, and says whether the wait is to end.
    fn sleep(&mut self, duration: Duration) -> io::Result<bool> {
        std::thread::sleep(duration);
        Ok(false)
    }
    /// Packets read since the beginning, modulo 2^32, and how many may come before they are dropped.
    fn progress(&self) -> (u32, u32);
    fn coalescer(&mut self) -> &mut Coalescer;
}

/// Waits until packets are there, the time is up, or a signal came.
pub(crate) fn wait(waiting: &mut impl Waiting, how: Wait, deadline: Option<Instant>) -> io::Result<()> {
    match how {
        Wait::Spin => spin(waiting, deadline).map(drop),
        Wait::Interrupt => sleep(waiting, deadline),
        Wait::Adaptive { spin: limit } => {
            let limit = Instant::now().checked_add(limit);
            match spin(waiting, [limit, deadline].into_iter().flatten().min())? {
                true => Ok(()),
                false => sleep(waiting, deadline),
            }
        }
        Wait::Coalesced { packets, delay } => coalesce(waiting, packets, delay, deadline),
    }
}

/// Spins until packets are there or somebody ends the wait (true), or the time is up (false).
fn spin<W: Waiting>(waiting: &mut W, deadline: Option<Instant>) -> io::Result<bool> {
    let mut last_check = Instant::now();
    loop {
        // Frames that came home otherwise than by a batch: without them there may never be another batch.
        waiting.refresh()?;
        for _ in 0..W::LOOKS_PER_CLOCK {
            if waiting.is_ready() {
                return Ok(true);
            }
            waiting.poke()?;
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
            waiting.check()?;
            last_check = now;
        }
    }
}

fn sleep(waiting: &mut impl Waiting, deadline: Option<Instant>) -> io::Result<()> {
    while !waiting.arm()? {
        let left = time_left(deadline);
        if left.is_zero() || waiting.is_woken() {
            return Ok(());
        }
        if waiting.is_starved() {
            std::thread::sleep(STARVED_INTERVAL.min(left));
            continue;
        }
        // What has come is given at once: to arm again would cost system calls that nobody waits for.
        if waiting.wait_readable(waiting.nap_max().min(left))? == Wakeup::Interrupted || waiting.is_ready() {
            return Ok(());
        }
    }
    Ok(())
}

fn coalesce(
    waiting: &mut impl Waiting,
    packets: u32,
    delay: Duration,
    deadline: Option<Instant>,
) -> io::Result<()> {
    loop {
        waiting.refresh()?;
        if waiting.is_ready() {
            return Ok(()); // a packet ring tells what came only when it is asked
        }
        let left = time_left(deadline);
        if left.is_zero() || waiting.is_woken() {
            return Ok(());
        }
        let (read, room) = waiting.progress();
        let sleep = waiting.coalescer().sleep(Instant::now(), read, room, packets, delay);
        let is_over = waiting.sleep(sleep.clamp(SLEEP_MIN, CHECK_INTERVAL).min(left))?;
        if is_over || waiting.is_ready() {
            return Ok(());
        }
        waiting.check()?;
    }
}

/// Adds up the progress of several receivers. All packets may come to one of them: its ring must not overflow.
pub(crate) fn add_progress((all, least): (u32, u32), (read, room): (u32, u32)) -> (u32, u32) {
    (all.wrapping_add(read), least.min(room))
}

fn time_left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
}

/// How long to wait at a time for completions, or for room: not all that matters ends a wait by the kernel.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What a look found at something that is waited for.
pub(crate) enum Look<T> {
    Done(T),
    /// Something moved: it is worth another look at once.
    Moved,
    Nothing,
}

/// Looks until it is done, and lets `wait` wait between two looks that found nothing. `None`: it was not done in time.
pub(crate) fn look_until_done<S, T, E>(
    state: &mut S,
    timeout: Duration,
    mut look: impl FnMut(&mut S) -> Result<Look<T>, E>,
    mut wait: impl FnMut(&mut S, Duration) -> Result<(), E>,
) -> Result<Option<T>, E> {
    let deadline = Instant::now().checked_add(timeout);
    loop {
        let found = look(state)?;
        if let Look::Done(done) = found {
            return Ok(Some(done));
        }
        let left = time_left(deadline);
        if left.is_zero() {
            return Ok(None);
        }
        if let Look::Nothing = found {
            wait(state, left.min(LOOK_AGAIN))?;
        }
    }
}

/// The rate assumed before any was measured: 64-byte frames on a 10 Gbit/s link.
const RATE_ASSUMED_PER_S: f64 = 14.88e6;

/// Decides how long a coalescing receiver sleeps. Knows no clock: time comes in from outside.
#[derive(Debug, Default)]
pub(crate) struct Coalescer {
    /// When the last sleep was decided.
    since: Option<Instant>,
    /// What had been read then.
    read: u32,
    last: Duration,
}

impl Coalescer {
    /// How long to sleep now that `read` packets were read since the beginning, modulo 2^32, from rings that hold `ring` of them.
    fn sleep(&mut self, now: Instant, read: u32, ring: u32, packets: u32, delay: Duration) -> Duration {
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
        self.last = sleep.max(Duration::from_micros(1));
        sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Runs the decision against a constant rate and returns the sleeps it settles into.
    fn steady(rate_per_s: f64, ring: u32, packets: u32, delay: Duration) -> Vec<Duration> {
        let mut coalescer = Coalescer::default();
        let (mut now, mut read) = (Instant::now(), 0);
        (0..40)
            .map(|_| {
                let sleep = coalescer.sleep(now, read, ring, packets, delay);
                now += sleep;
                read += (rate_per_s * sleep.as_secs_f64()) as u32;
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
