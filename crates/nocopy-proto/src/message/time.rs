//! The protocol's time, which the caller passes in, so that tests can control it.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since a moment that the caller chooses, which is the same for all calls to one endpoint. Lasts
/// for 584 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

/// Nanoseconds of a tick on the wire, as a power of two (docs/protocol.md §6): a counter of 32 bits comes
/// round after 275 s.
const TICK_NS_SHIFT: u32 = 6;

impl Time {
    /// This many nanoseconds after that moment.
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the moment.
    #[inline]
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; nothing if it is still to come.
    #[inline]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// As [`since`](Self::since), as a [`Span`].
    #[inline]
    pub(super) const fn span_since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The time as in a header: in ticks, without the upper bits.
    #[inline]
    pub(super) const fn ticks(self) -> u32 {
        (self.0 >> TICK_NS_SHIFT) as u32
    }
}

/// The time between two readings of one clock, in ticks.
#[inline]
pub(super) const fn between_ticks(earlier: u32, later: u32) -> Span {
    Span::from_nanos((later.wrapping_sub(earlier) as u64) << TICK_NS_SHIFT)
}

/// A duration in nanoseconds: where it is used for each packet, `Duration` with its two fields costs several
/// times as much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Span(u64);

impl Span {
    #[inline]
    pub(super) const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    #[inline]
    pub(super) const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    #[inline]
    pub(super) const fn from_secs(seconds: u64) -> Self {
        Self(seconds * 1_000_000_000)
    }

    #[inline]
    pub(super) const fn ns(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) const fn half(self) -> Self {
        Self(self.0 / 2)
    }

    #[inline]
    pub(super) const fn eighth(self) -> Self {
        Self(self.0 / 8)
    }

    #[inline]
    pub(super) const fn times(self, count: u32) -> Self {
        Self(self.0.saturating_mul(count as u64))
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_nanos(span.0)
    }
}

impl Add for Span {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Add<Span> for Time {
    type Output = Self;

    #[inline]
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Time {
    type Output = Self;

    #[inline]
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    #[inline]
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_come_round() {
        let (before, after) = (Time::from_ns((1 << 38) - 640), Time::from_ns((1 << 38) + 640));
        assert_eq!(between_ticks(before.ticks(), after.ticks()), Span::from_nanos(1280));
        assert_eq!(after.since(before), Duration::from_nanos(1280));
        assert_eq!(before.since(after), Duration::ZERO);
        assert_eq!(before + Duration::MAX, Time::from_ns(u64::MAX));
    }
}
