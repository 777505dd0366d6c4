//! Places for streams: they take descriptors. Addresses and networks share them as they share places for
//! peers (docs/protocol.md §8.3).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nocopy_proto::message::{Peer, Shares};

/// How long the place of a stream that was cut is kept: as long as units may wait there for another one.
const KEPT_FOR: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Places {
    total: usize,
    /// In the order in which they were taken.
    taken: Vec<Place>,
    /// Which addresses have them; it does not matter which end opened a stream.
    shares: Shares,
}

#[derive(Debug)]
struct Place {
    stream: u32,
    peer: Peer,
    from: IpAddr,
    /// When the stream was cut: the place is kept for the next one of its peer.
    cut: Option<Instant>,
}

impl Places {
    pub(super) fn new(total: usize) -> Self {
        Self { total, taken: Vec::new(), shares: Shares::default() }
    }

    /// Whether a place is free for a stream of a peer at `from`, or another stream must give its place.
    pub(super) fn has_one_for(&self, from: IpAddr) -> bool {
        self.taken.len() < self.total || self.surplus(from).is_some()
    }

    /// The stream that must give its place, if none is free. Where no address has more than this one, its own
    /// streams take turns, since the peer of each may have units that wait for one.
    pub(super) fn surplus(&self, from: IpAddr) -> Option<u32> {
        if self.taken.len() < self.total {
            return None;
        }
        let oldest = || self.taken.iter().find(|place| place.from == from).map(|place| place.stream);
        self.shares.surplus(from).or_else(oldest)
    }

    pub(super) fn take(&mut self, stream: u32, peer: Peer, from: IpAddr) {
        self.taken.push(Place { stream, peer, from, cut: None });
        self.shares.join(stream, from, true);
    }

    /// Keeps the place of a stream that was cut.
    pub(super) fn keep(&mut self, stream: u32, at: Instant) {
        let cut = self.taken.iter_mut().find(|place| place.stream == stream);
        cut.expect("it had a place").cut = Some(at);
    }

    pub(super) fn is_taken(&self, stream: u32) -> bool {
        self.taken.iter().any(|place| place.stream == stream)
    }

    pub(super) fn leave(&mut self, stream: u32) {
        self.leave_if(|place| place.stream == stream);
    }

    /// Gives up the places that are kept for peers of this kind, and those that were kept for long enough.
    pub(super) fn leave_kept(&mut self, at: Instant, is_it: impl Fn(Peer) -> bool) {
        let is_over = |cut: Instant| at.saturating_duration_since(cut) >= KEPT_FOR;
        self.leave_if(|place| place.cut.is_some_and(|cut| is_over(cut) || is_it(place.peer)));
    }

    fn leave_if(&mut self, is_it: impl Fn(&Place) -> bool) {
        let Self { taken, shares, .. } = self;
        taken.extract_if(.., |place| is_it(place)).for_each(|place| shares.leave(place.stream));
    }
}

#[cfg(test)]
mod tests {
    use nocopy_proto::message::{Endpoint, Settings, Time};

    use super::*;

    fn peer(number: u32) -> Peer {
        let mut endpoint = Endpoint::<(), Vec<u8>>::new(Settings::default(), [0; 32]);
        let mut connect = |port| endpoint.connect(Time::default(), ([10, 0, 1, 1], port).into()).unwrap();
        (0..=number).map(|before| connect(1 + before as u16)).last().unwrap()
    }

    fn full(total: u32, from: IpAddr) -> Places {
        let mut places = Places::new(total as usize);
        for stream in 0..total {
            assert!(places.has_one_for(from) && places.surplus(from).is_none());
            places.take(stream, peer(stream), from);
        }
        places
    }

    #[test]
    fn the_address_with_the_most_streams_gives_places() {
        let [many, other] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let mut places = full(4, many);
        for given in [3, 2] {
            assert!(places.has_one_for(other));
            assert_eq!(places.surplus(other), Some(given));
            places.leave(given);
            places.take(given, peer(given), other);
        }
        assert_eq!([many, other].map(|from| places.surplus(from)), [Some(0), Some(3)], "both have as many");
    }

    #[test]
    fn streams_of_one_address_take_turns() {
        let many = IpAddr::from([10, 0, 0, 1]);
        let mut places = full(3, many);
        for given in [0, 1, 2, 0, 1] {
            assert_eq!(places.surplus(many), Some(given));
            places.leave(given);
            places.take(given, peer(given), many);
        }
    }

    #[test]
    fn the_place_of_a_stream_that_was_cut_is_kept_for_a_time() {
        let [one, other] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let (mut places, at) = (full(1, one), Instant::now());
        places.keep(0, at);
        places.leave_kept(at + KEPT_FOR / 2, |_| false);
        assert!(!places.has_one_for(other) && places.is_taken(0));
        places.leave_kept(at + KEPT_FOR, |_| false);
        assert!(places.has_one_for(other) && !places.is_taken(0));
        places.take(0, peer(0), one);
        places.leave_kept(at, |_| true);
        assert!(places.is_taken(0), "it was not cut");
        places.keep(0, at);
        places.leave_kept(at, |kept| kept == peer(0));
        assert!(!places.is_taken(0));
    }
}
