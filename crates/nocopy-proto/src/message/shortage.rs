//! Time as it counts against peers that keep what others need.

use super::Time;
use super::time::Span;

/// What the clock goes on by at most, from one time that something is wanted in vain to the next.
pub(super) const STEP: Span = Span::from_secs(1);
/// How often to look for those peers.
const LOOK: Span = Span::from_millis(100);

/// A clock that runs while something is wanted in vain: time in which nobody wants anything, or in which the program does not run the
/// endpoint, is nobody's delay.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    clock: Time,
    wanted: Option<Time>,
    looked: Time,
}

impl Shortage {
    /// What the clock says.
    #[inline]
    pub(super) fn now(&self) -> Time {
        self.clock
    }

    /// How long ago on this clock that was.
    #[inline]
    pub(super) fn since(&self, earlier: Time) -> Span {
        self.clock.span_since(earlier)
    }

    /// Something is wanted in vain.
    pub(super) fn go_on(&mut self, now: Time) {
        let passed = self.wanted.map_or(Span::default(), |before| now.span_since(before));
        self.clock = self.clock + passed.min(STEP);
        self.wanted = Some(now);
    }

    /// Whether it is time to look who is to blame; then it was done.
    pub(super) fn looks(&mut self) -> bool {
        let looks = self.since(self.looked) >= LOOK;
        if looks {
            self.looked = self.clock;
        }
        looks
    }
}
