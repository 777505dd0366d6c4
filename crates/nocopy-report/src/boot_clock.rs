//! Time that also passes while the machine is suspended: what another host, or a person, counts on meanwhile.
//!
//! Rates, pauses and durations of runs follow `Instant`, which stands still then, so that no rate has
//! anything to catch up.

use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment by `CLOCK_BOOTTIME`: since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// This moment.
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        Self(Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32))
    }

    /// How long ago it was.
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// The time between `earlier` and this moment; nothing if it is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_never_negative() {
        let (begun, hour) = (BootInstant::now(), Duration::from_secs(3600));
        assert_eq!((begun + hour).since(begun), hour);
        assert_eq!(begun.since(begun + hour), Duration::ZERO);
        assert!(begun.elapsed() <= BootInstant::now().since(begun));
    }
}
