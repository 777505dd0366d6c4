//! Networks that wait for a turn (docs/protocol.md §8.1), in rounds: whoever asks later waits until all of this round had theirs.
//!
//! Within a round the turn goes to the one that asks first. A strict order would leave the memory unused until the one at the front
//! repeats its packet, up to a second each time.

use super::Time;
use super::shortage::STEP;
use super::time::Span;

/// Networks that wait at a time; when there are more, the others ask again. So the list costs little to look through.
const NETWORKS_MAX: usize = 1 << 10;
/// How long a place is kept for a connection that does not ask again: a sender that has no answer asks each second.
const KEPT: Span = STEP.times(2);

#[derive(Debug, Default)]
pub(super) struct Waiting {
    round: Vec<Place>,
    later: Vec<Place>,
}

/// One for each network, so that a host with many addresses or connections waits once.
#[derive(Debug, Clone, Copy)]
struct Place {
    network: u32,
    /// The connection that asked for it.
    index: u32,
    asked: Time,
}

impl Place {
    fn is_stale(&self, now: Time) -> bool {
        now.span_since(self.asked) >= KEPT
    }
}

impl Waiting {
    /// A connection asks for a turn, and another one has it.
    pub(super) fn ask(&mut self, network: u32, index: u32, now: Time) {
        let place = Place { network, index, asked: now };
        let is_full = self.round.len() + self.later.len() >= NETWORKS_MAX;
        match self.round.iter_mut().chain(&mut self.later).find(|place| place.network == network) {
            Some(before) if before.index == index || before.is_stale(now) => *before = place,
            Some(_) => {}
            None if is_full => {}
            None => self.later.push(place),
        }
    }

    /// Whether a connection may have the turn that is free now: nobody waits, or it does so in this round.
    pub(super) fn may_begin(&mut self, index: u32, now: Time) -> bool {
        self.round.retain(|place| !place.is_stale(now));
        if self.round.is_empty() {
            std::mem::swap(&mut self.round, &mut self.later);
            self.round.retain(|place| !place.is_stale(now));
        }
        self.round.is_empty() || self.round.iter().any(|place| place.index == index)
    }

    /// A connection has its turn, or is no more.
    pub(super) fn leave(&mut self, index: u32) {
        self.round.retain(|place| place.index != index);
        self.later.retain(|place| place.index != index);
    }

    /// Entries that memory is taken for.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn capacity(&self) -> usize {
        self.round.capacity() + self.later.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_ns(ms * 1_000_000)
    }

    #[test]
    fn each_network_has_one_turn_in_a_round() {
        let mut waiting = Waiting::default();
        assert!(waiting.may_begin(1, at(0)), "nobody waits");
        for (network, index) in [(1, 1), (2, 2), (2, 3)] {
            waiting.ask(network, index, at(0));
        }
        assert!(waiting.may_begin(2, at(0)) && !waiting.may_begin(3, at(0)) && !waiting.may_begin(4, at(0)));
        waiting.leave(2);
        waiting.ask(4, 4, at(0));
        waiting.ask(2, 2, at(0));
        assert!(!waiting.may_begin(2, at(0)) && !waiting.may_begin(4, at(0)) && waiting.may_begin(1, at(0)));
        waiting.leave(1);
        assert!(waiting.may_begin(2, at(0)) && waiting.may_begin(4, at(0)) && !waiting.may_begin(1, at(0)));
        waiting.leave(2);
        waiting.leave(4);
        assert!(waiting.may_begin(3, at(0)), "nobody waits any more");
    }

    #[test]
    fn the_place_of_a_connection_that_asks_no_more_is_given_up() {
        let mut waiting = Waiting::default();
        waiting.ask(1, 1, at(0));
        waiting.ask(2, 2, at(0));
        waiting.ask(1, 1, at(1_500));
        assert!(!waiting.may_begin(3, at(1_999)) && waiting.may_begin(2, at(1_999)));
        assert!(!waiting.may_begin(2, at(2_000)), "its place is gone");
        waiting.ask(1, 3, at(3_499));
        assert!(!waiting.may_begin(3, at(3_499)));
        waiting.ask(1, 3, at(3_500));
        assert!(waiting.may_begin(3, at(3_500)), "another one of the network has the place");
    }

    #[test]
    fn a_bounded_number_of_networks_waits() {
        let mut waiting = Waiting::default();
        for number in 0..10_000 {
            waiting.ask(number, number, at(0));
        }
        assert!(waiting.capacity() <= NETWORKS_MAX);
    }
}
