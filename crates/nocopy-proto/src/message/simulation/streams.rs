//! Simulated streams beside the datagrams of connections: they keep the order and lose nothing, but may
//! stall, and lose what is in flight when they are cut.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;

use super::host::{Host, Truth};
use super::puts::Puts;
use crate::message::wire::{HEADER_BYTES, Unit};
use crate::message::{Arriving, Endpoint, Peer, Time};

/// How long after a stream was wanted for units that wait another one is.
pub(super) const WANTS_AGAIN_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct StreamSettings {
    /// Messages from that length on go by the stream, when there is one.
    pub from_bytes: usize,
    /// Units for which there is memory, in addition to the next one in order.
    pub memory_units: usize,
    /// How long a stream lasts at most, if it is cut.
    pub cut_after: Option<Duration>,
    /// How long nothing passes now and then, at most.
    pub stall: Duration,
    /// Whether a client opens a stream when it is connected, or only when it is asked.
    pub opens_at_once: bool,
}

/// A stream with its two ends, each a host and a peer.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) ends: [(usize, Peer); 2],
    /// When the last unit in each direction arrives: none overtakes another.
    last: [Time; 2],
    /// If the stream was cut: units that would arrive later than this are lost.
    until: Option<Time>,
}

/// All streams of a simulation, also those that were cut.
#[derive(Debug, Default)]
pub(super) struct Streams {
    all: Vec<Stream>,
}

impl Streams {
    /// Opens a stream between two ends; returns its number.
    pub(super) fn open(&mut self, ends: [(usize, Peer); 2]) -> usize {
        self.all.push(Stream { ends, last: [Time::default(); 2], until: None });
        self.all.len() - 1
    }

    pub(super) fn ends(&self, stream: usize) -> [(usize, Peer); 2] {
        self.all[stream].ends
    }

    /// Cuts a stream: units that would arrive later than a short time after that are lost.
    pub(super) fn cut(&mut self, stream: usize, until: Time) {
        self.all[stream].until = Some(until);
    }

    /// When and where a unit arrives that a host sends to a peer, and over which stream; `None` if that was
    /// cut.
    pub(super) fn carry(
        &mut self,
        from: (usize, Peer),
        at: Time,
        random: &mut Rng,
        stall: Duration,
    ) -> Option<(usize, (usize, Peer), Time)> {
        let is_its = |stream: &Stream| stream.until.is_none() && stream.ends.contains(&from);
        let number = self.all.iter().rposition(is_its)?;
        let stream = &mut self.all[number];
        let side = usize::from(stream.ends[0] != from);
        let stalls = random.u32(..20) == 0;
        let stalled = if stalls {
            Duration::from_nanos(random.u64(..=stall.as_nanos() as u64))
        } else {
            Duration::ZERO
        };
        stream.last[side] = stream.last[side].max(at + stalled);
        Some((number, stream.ends[1 - side], stream.last[side]))
    }

    /// Whether a unit that arrives over a stream now can be read.
    pub(super) fn delivers(&self, stream: usize, now: Time) -> bool {
        self.all[stream].until.is_none_or(|until| now <= until)
    }
}

/// Units that arrived over the streams of a host and were not handled yet.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    of: BTreeMap<Peer, VecDeque<Vec<u8>>>,
    /// Units that the endpoint keeps.
    pub(super) kept: usize,
    /// Units that were skipped, because they had arrived by an earlier stream.
    pub(super) passed: u64,
}

impl Inbox {
    pub(super) fn put(&mut self, peer: Peer, unit: Vec<u8>) {
        self.of.entry(peer).or_default().push_back(unit);
    }

    /// Hands over as many units as there is memory for; returns their number.
    pub(super) fn take(
        &mut self,
        now: Time,
        memory: usize,
        endpoint: &mut Endpoint<Vec<u8>, Vec<u8>>,
        puts: &mut Puts,
        truth: &mut Truth,
    ) -> usize {
        let mut taken = 0;
        for (peer, units) in &mut self.of {
            while let Some(unit) = units.front() {
                let header = unit.first_chunk::<HEADER_BYTES>().expect("a unit has a header");
                let header = Unit::parse(header).expect("an endpoint wrote it");
                let arriving = endpoint.arriving(*peer, &header);
                let is_next = arriving == Arriving::Next;
                if is_next && let Some(front) = puts.place_straight(endpoint, *peer, unit) {
                    units.pop_front();
                    (self.kept, taken) = (self.kept + 1, taken + 1);
                    endpoint.handle_placed_unit(now, *peer, front);
                    continue;
                }
                match arriving {
                    Arriving::Later if self.kept >= memory => break,
                    Arriving::Next | Arriving::Later => {
                        let unit = units.pop_front().expect("it is there");
                        (self.kept, taken) = (self.kept + 1, taken + 1);
                        endpoint.handle_unit(now, *peer, unit);
                    }
                    Arriving::Passed => {
                        self.passed += 1;
                        units.pop_front();
                    }
                    Arriving::Impossible => {
                        if endpoint.has_peer(*peer) {
                            truth.fault(|| format!("a unit that cannot be: {header:?}"));
                        }
                        units.clear();
                    }
                }
            }
        }
        self.of.retain(|_, units| !units.is_empty());
        taken
    }
}

impl Host {
    /// Handles the cut of the stream to a peer: what was not read is lost.
    pub(super) fn stream_cut(&mut self, now: Time, peer: Peer) {
        self.endpoint.stream_cut(now, peer);
        self.inbox.of.remove(&peer);
    }

    /// Wants streams for units that wait for one; returns when to want them again.
    pub(super) fn want_streams_for_units(&mut self, now: Time) -> Option<Time> {
        let peers = self.endpoint.all_peers();
        let waits = |peer: &Peer| self.endpoint.has_units(*peer) && !self.endpoint.has_stream(*peer);
        let waiting: Vec<Peer> = peers.filter(waits).collect();
        if !waiting.is_empty() && now >= self.wants_again {
            self.wants_again = now + WANTS_AGAIN_AFTER;
            let endpoint = &mut self.endpoint;
            let opens = |peer: &Peer| matches!(endpoint.want_stream(*peer), Ok(Some(_)));
            self.wants_streams.extend(waiting.iter().copied().filter(opens));
        }
        (!waiting.is_empty()).then_some(self.wants_again)
    }
}
