//! Places for streams: they take descriptors. Addresses and networks share them as they share places for
//! peers (docs/protocol.md §8.3).

use std::net::IpAddr;

use nocopy_proto::message::Shares;

#[derive(Debug)]
pub(super) struct Places {
    total: usize,
    taken: usize,
    /// Which addresses have them; it does not matter which end opened a stream.
    shares: Shares,
}

impl Places {
    pub(super) fn new(total: usize) -> Self {
        Self { total, taken: 0, shares: Shares::default() }
    }

    /// Whether a place is free for a stream of a peer at `from`, or another stream must give its place.
    pub(super) fn has_one_for(&self, from: IpAddr) -> bool {
        self.taken < self.total || self.shares.surplus(from).is_some()
    }

    /// The stream that must give its place, if none is free.
    pub(super) fn surplus(&self, from: IpAddr) -> Option<u32> {
        if self.taken < self.total { None } else { self.shares.surplus(from) }
    }

    pub(super) fn take(&mut self, stream: u32, from: IpAddr) {
        self.taken += 1;
        self.shares.join(stream, from, true);
    }

    pub(super) fn leave(&mut self, stream: u32) {
        self.taken -= 1;
        self.shares.leave(stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_with_the_most_streams_gives_places() {
        let [many, other] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let mut places = Places::new(4);
        for stream in 0..4 {
            assert!(places.has_one_for(many) && places.surplus(many).is_none());
            places.take(stream, many);
        }
        assert!(!places.has_one_for(many));
        for given in [3, 2] {
            assert!(places.has_one_for(other));
            assert_eq!(places.surplus(other), Some(given));
            places.leave(given);
            places.take(given, other);
        }
        assert!(!places.has_one_for(other) && !places.has_one_for(many), "both have as many");
    }
}
