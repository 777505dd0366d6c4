//! Networks that wait for a turn (docs/protocol.md §8.1), in rounds: a network that asks during a round has
//! its turn in the next one.
//!
//! Within a round, a free turn goes to the first network that asks again. In a fixed order, the memory would
//! be unused until the network in front repeats its packet, up to a second each time.

use super::Time;
use super::shortage::STEP;
use super::time::Span;

/// The most networks that wait; others ask again. So searching the list is cheap.
const NETWORKS_MAX: usize = 1 << 10;
/// How long a connection that does not ask again keeps its place: a sender without an answer asks each
/// second.
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
    /// Notes that a connection asks for a turn while another one has it.
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

    /// Whether a connection may take the free turn: none waits, or it waits in this round.
    pub(super) fn may_begin(&mut self, index: u32, now: Time) -> bool {
        self.round.retain(|place| !place.is_stale(now));
        if self.round.is_empty() {
            std::mem::swap(&mut self.round, &mut self.later);
            self.round.retain(|place| !place.is_stale(now));
        }
        self.round.is_empty() || self.round.iter().any(|place| place.index == index)
    }

    /// Removes a connection that has its turn now, or has ended.
    pub(super) fn leave(&mut self, index: u32) {
        self.round.retain(|place| place.index != index);
        self.later.retain(|place| place.index != index);
    }

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
