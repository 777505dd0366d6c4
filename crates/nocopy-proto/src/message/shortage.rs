//! The clock of a shortage: it counts the time for which a peer keeps memory that others need.

use super::Time;
use super::time::Span;

/// The most that the clock advances from one refusal to the next.
pub(super) const STEP: Span = Span::from_secs(1);
/// The shortest time between two searches for such peers.
const LOOK: Span = Span::from_millis(100);

/// A clock that runs while something is refused for lack of memory. Time in which nothing is wanted, or in
/// which the program does not run the endpoint, does not count against a peer.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    clock: Time,
    wanted: Option<Time>,
    looked: Time,
}

impl Shortage {
    #[inline]
    pub(super) fn now(&self) -> Time {
        self.clock
    }

    /// The time since `earlier`, by this clock.
    #[inline]
    pub(super) fn since(&self, earlier: Time) -> Span {
        self.clock.span_since(earlier)
    }

    /// Notes that something was refused for lack of memory: the clock runs.
    pub(super) fn go_on(&mut self, now: Time) {
        let passed = self.wanted.map_or(Span::default(), |before| now.span_since(before));
        self.clock = self.clock + passed.min(STEP);
        self.wanted = Some(now);
    }

    /// Whether it is time to search for the peers that cause the shortage; then the search counts as done.
    pub(super) fn looks(&mut self) -> bool {
        let looks = self.since(self.looked) >= LOOK;
        if looks {
            self.looked = self.clock;
        }
        looks
    }
}
