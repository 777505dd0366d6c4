//! Hosts, the links between them, and the clock: the same seed makes the same run, to the byte.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use fastrand::Rng;

use super::conversation::End;
use super::host::{Away, Departure, Host, HostCounts, HostSettings, Truth};
use super::link::{Link, LinkCounts};
use super::streams::{Streams, WANTS_AGAIN_AFTER};
use super::traffic::{Flow, Traffic};
use crate::message::{Event, Peer, Time};

/// A host that is woken this often while no time passes spins instead of waiting.
const WAKES_AT_ONCE_MAX: u32 = 1_000;
const PORT: u16 = 7_000;
/// A unit is about as long, at most.
const UNIT_BYTES: usize = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostId(usize);

/// What addresses without a host have sent and were sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stranger {
    /// Datagrams it has sent.
    pub sent: u64,
    pub sent_bytes: u64,
    /// Datagrams that it got.
    pub got: u64,
    pub got_bytes: u64,
}

/// A simulated network. Every host has a link towards it from a switch that all have in common.
#[derive(Debug)]
pub struct World {
    now: Time,
    random: Rng,
    hosts: Vec<Node>,
    schedule: BinaryHeap<Reverse<Scheduled>>,
    /// Orders events at the same time.
    scheduled: u64,
    truth: Truth,
    streams: Streams,
    strangers: BTreeMap<SocketAddr, Stranger>,
    /// What strangers were sent.
    pub mail: Vec<(SocketAddr, Vec<u8>)>,
    departures: Vec<Departure>,
    fingerprint: u64,
    /// Datagrams delivered to hosts, for a test to repeat; as many as `keep`.
    pub recording: Vec<(SocketAddr, HostId, Vec<u8>)>,
    pub keep: usize,
}

#[derive(Debug)]
struct Node {
    host: Host,
    link: Link,
    wakes_at: Option<Time>,
    /// When it was woken last, and how often at that time.
    woken: (Time, u32),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scheduled {
    at: Time,
    number: u64,
    happening: Happening,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A datagram arrives at the switch.
    Switch {
        from: SocketAddr,
        to: SocketAddr,
        datagram: Vec<u8>,
    },
    Arrival {
        host: usize,
        from: SocketAddr,
        congested: bool,
        datagram: Vec<u8>,
    },
    Wake {
        host: usize,
    },
    /// A unit arrives over a stream.
    Unit {
        stream: usize,
        host: usize,
        peer: Peer,
        unit: Vec<u8>,
    },
    /// A host's stream reaches the peer.
    StreamOpens {
        host: usize,
        peer: Peer,
    },
    StreamIsCut {
        stream: usize,
    },
    /// One end of a stream learns that it was cut.
    CutIsTold {
        host: usize,
        peer: Peer,
    },
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self {
            now: Time::default(),
            random: Rng::with_seed(seed),
            hosts: Vec::new(),
            schedule: BinaryHeap::new(),
            scheduled: 0,
            truth: Truth::default(),
            streams: Streams::default(),
            strangers: BTreeMap::new(),
            mail: Vec::new(),
            departures: Vec::new(),
            fingerprint: 0,
            recording: Vec::new(),
            keep: 0,
        }
    }

    /// Adds a host.
    pub fn host(&mut self, settings: HostSettings) -> HostId {
        let number = u32::try_from(self.hosts.len()).expect("few hosts");
        let address = SocketAddr::from((Ipv4Addr::from(0x0a00_0001 + number), PORT));
        let link = Link::new(settings.link.clone(), self.random.u64(..));
        let host = Host::new(address, settings, self.random.u64(..));
        self.hosts.push(Node { host, link, wakes_at: None, woken: (self.now, 0) });
        HostId(number as usize)
    }

    /// Connects `from` to `to`, and has it send these messages, if any.
    pub fn connect(&mut self, from: HostId, to: HostId, says: Option<Traffic>) -> Peer {
        let seed = self.random.u64(..);
        if let Some(traffic) = says {
            self.truth.flows.insert(seed, Flow::of(traffic));
        }
        let to = self.address(to);
        let peer = self.hosts[from.0].host.connect(self.now, to, says.map(|_| seed));
        self.drive(from.0);
        peer
    }

    /// The host's program is started again, without memory of before.
    pub fn restart(&mut self, host: HostId) {
        self.hosts[host.0].host.restart();
        self.drive(host.0);
    }

    /// Makes the host's program compute for this time without calling its endpoint; arriving datagrams wait
    /// in the kernel.
    pub fn compute(&mut self, host: HostId, duration: Duration) {
        let until = self.now + duration;
        let HostId(host) = host;
        self.hosts[host].host.away = Some(Away { until, waiting: Vec::new() });
        self.hosts[host].wakes_at = Some(until);
        self.schedule(until, Happening::Wake { host });
    }

    /// Ends a connection from one side, at once.
    pub fn abort(&mut self, host: HostId, peer: Peer) {
        self.hosts[host.0].host.abort(peer);
        self.drive(host.0);
    }

    /// Puts a datagram, with any sender, on the link to `to`.
    pub fn inject(&mut self, from: SocketAddr, to: HostId, datagram: Vec<u8>) {
        let stranger = self.strangers.entry(from).or_default();
        stranger.sent += 1;
        stranger.sent_bytes += datagram.len() as u64;
        let to = self.address(to);
        self.schedule(self.now, Happening::Switch { from, to, datagram });
    }

    /// Runs until no event is left, or `most` has passed; returns whether no event is left.
    pub fn run(&mut self, most: Duration) -> bool {
        let until = self.now + most;
        while let Some(Reverse(next)) = self.schedule.peek() {
            if next.at > until {
                self.now = until;
                return false;
            }
            self.step();
        }
        true
    }

    /// Runs until `done`, which is checked after every step, or until `most` has passed; returns whether it
    /// is done.
    pub fn run_until(&mut self, most: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let until = self.now + most;
        while !done(self) {
            if self.schedule.peek().is_none_or(|Reverse(next)| next.at > until) {
                self.now = until;
                return done(self);
            }
            self.step();
        }
        true
    }

    fn step(&mut self) {
        let Some(Reverse(Scheduled { at, happening, .. })) = self.schedule.pop() else { return };
        self.now = at;
        match happening {
            Happening::Switch { from, to, datagram } => self.switch(from, to, datagram),
            Happening::Arrival { host, from, congested, datagram } => {
                self.note(from, &datagram);
                if self.recording.len() < self.keep {
                    self.recording.push((from, HostId(host), datagram.clone()));
                }
                self.hosts[host].host.arrive(at, from, congested, datagram, &mut self.truth);
                self.drive(host);
            }
            Happening::Unit { stream, host, peer, unit } => {
                if self.streams.delivers(stream, at) {
                    self.note(self.hosts[host].host.address, &unit);
                    self.hosts[host].host.inbox.put(peer, unit);
                    self.drive(host);
                }
            }
            // Nor is a connection of TCP opened without a path.
            Happening::StreamOpens { .. } if self.hosts.iter().any(|node| node.link.is_partitioned(at)) => {
                self.schedule(at + Duration::from_millis(100), happening);
            }
            Happening::StreamOpens { host, peer } => self.open_stream(host, peer),
            Happening::StreamIsCut { stream } => self.cut_stream(stream),
            Happening::CutIsTold { host, peer } => {
                self.hosts[host].host.stream_cut(at, peer);
                self.drive(host);
            }
            Happening::Wake { host } => {
                if self.hosts[host].wakes_at == Some(at) {
                    self.hosts[host].wakes_at = None;
                    self.drive(host);
                }
            }
        }
    }

    fn switch(&mut self, from: SocketAddr, to: SocketAddr, datagram: Vec<u8>) {
        let Some(host) = self.hosts.iter().position(|node| node.host.address == to) else {
            let stranger = self.strangers.entry(to).or_default();
            stranger.got += 1;
            stranger.got_bytes += datagram.len() as u64;
            return self.mail.push((to, datagram));
        };
        for arrival in self.hosts[host].link.carry(self.now, datagram).into_iter().flatten() {
            let (congested, datagram) = (arrival.congested, arrival.datagram);
            self.schedule(arrival.at, Happening::Arrival { host, from, congested, datagram });
        }
    }

    fn drive(&mut self, index: usize) {
        let node = &mut self.hosts[index];
        if node.host.is_away(self.now, &mut self.truth) {
            return;
        }
        let next = node.host.drive(self.now, &mut self.truth, &mut self.departures);
        let from = node.host.address;
        node.woken = if node.woken.0 == self.now { (self.now, node.woken.1 + 1) } else { (self.now, 0) };
        if node.woken.1 == WAKES_AT_ONCE_MAX {
            self.truth.fault(|| format!("{from} does not wait, it spins, at {:?}", self.now));
        } else if let Some(at) = next.map(|at| at.max(self.now))
            && node.wakes_at != Some(at)
        {
            node.wakes_at = Some(at);
            self.schedule(at, Happening::Wake { host: index });
        }
        let mut departures = std::mem::take(&mut self.departures);
        for Departure { at, to, datagram, stream } in departures.drain(..) {
            match stream {
                None => self.schedule(at, Happening::Switch { from, to, datagram }),
                Some(peer) => self.send_by_stream((index, peer), datagram),
            }
        }
        self.departures = departures;
        for peer in std::mem::take(&mut self.hosts[index].host.wants_streams) {
            let at = self.now + 2 * self.hosts[index].link.settings.delay;
            self.schedule(at, Happening::StreamOpens { host: index, peer });
        }
    }

    fn send_by_stream(&mut self, from: (usize, Peer), unit: Vec<u8>) {
        let Node { host, link, .. } = &self.hosts[from.0];
        let at = self.now + link.settings.delay + link.settings.transmission(unit.len());
        let stall = host.settings.streams.as_ref().map_or(Duration::ZERO, |streams| streams.stall);
        if let Some((stream, (host, peer), at)) = self.streams.carry(from, at, &mut self.random, stall) {
            self.schedule(at, Happening::Unit { stream, host, peer, unit });
        }
    }

    /// Attaches a stream at the other end, if the connection still exists and both ends use streams.
    fn open_stream(&mut self, host: usize, peer: Peer) {
        let Host { address, endpoint, .. } = &mut self.hosts[host].host;
        let from = *address;
        let Ok(Some((path, attach))) = endpoint.want_stream(peer) else { return };
        let Some(other) = self.hosts.iter().position(|node| node.host.address == path.remote) else { return };
        let attached = self.hosts[other].host.endpoint.attach(from.ip(), &attach);
        let Some((other_peer, answer)) = attached else { return };
        let mut ends = [(host, peer), (other, other_peer)].into_iter();
        if ends.any(|(host, peer)| self.hosts[host].host.endpoint.has_stream(peer)) {
            return; // it was asked for before it was opened, or the cut is not known yet
        }
        if answer.to != attach.from {
            self.truth.fault(|| "a stream was attached to another connection".into());
        }
        for (host, peer) in [(host, peer), (other, other_peer)] {
            let opened = self.hosts[host].host.endpoint.stream_opened(self.now, peer);
            opened.expect("it has just said that there is the connection");
        }
        let stream = self.streams.open([(host, peer), (other, other_peer)]);
        let settings = &self.hosts[host].host.settings;
        if let Some(most) = settings.streams.as_ref().and_then(|streams| streams.cut_after) {
            // Long enough for a unit and its acknowledgement: otherwise the connection is lost after five.
            let of_unit =
                |node: &Node| node.link.settings.delay + node.link.settings.transmission(UNIT_BYTES);
            let least = 4 * self.hosts.iter().map(of_unit).max().unwrap_or_default();
            let after = least + Duration::from_nanos(self.random.u64(..=most.as_nanos() as u64));
            self.schedule(self.now + after, Happening::StreamIsCut { stream });
        }
        self.drive(host);
        self.drive(other);
    }

    /// Cuts a stream: units in flight may still arrive for a time, and the ends learn of it one after the
    /// other. Then another stream is opened, if the client opens them before it needs them.
    fn cut_stream(&mut self, stream: usize) {
        let ends = self.streams.ends(stream);
        let mut soon = || self.now + Duration::from_micros(self.random.u64(..3_000));
        let (until, told) = (soon(), [soon(), soon()]);
        self.streams.cut(stream, until);
        for ((host, peer), at) in ends.into_iter().zip(told) {
            self.schedule(at, Happening::CutIsTold { host, peer });
        }
        let (host, peer) = ends[0];
        if self.hosts[host].host.opens_streams_at_once() {
            self.schedule(self.now + WANTS_AGAIN_AFTER, Happening::StreamOpens { host, peer });
        }
    }

    fn schedule(&mut self, at: Time, happening: Happening) {
        self.scheduled += 1;
        self.schedule.push(Reverse(Scheduled { at, number: self.scheduled, happening }));
    }

    /// Mixes what arrives into the fingerprint (FNV-1a over words).
    fn note(&mut self, from: SocketAddr, datagram: &[u8]) {
        let head = [self.now.ns(), u64::from(from.port()), datagram.len() as u64];
        let words = datagram.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        for word in head.into_iter().chain(words) {
            self.fingerprint = (self.fingerprint ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
    }

    /// What all hosts have got and when, as a number.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub fn now(&self) -> Time {
        self.now
    }

    /// What happened that should not have.
    pub fn faults(&self) -> &[String] {
        &self.truth.faults
    }

    /// What was sent and how much of it arrived, in the order of seeds.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.truth.flows.values()
    }

    pub fn address(&self, host: HostId) -> SocketAddr {
        self.hosts[host.0].host.address
    }

    pub fn counts(&self, host: HostId) -> HostCounts {
        self.hosts[host.0].host.counts
    }

    pub fn link_counts(&self, host: HostId) -> LinkCounts {
        self.hosts[host.0].link.counts
    }

    pub fn events(&self, host: HostId) -> &[(Time, Event)] {
        &self.hosts[host.0].host.events
    }

    /// How the host's connections ended, in the order in which they began.
    pub fn ends(&self, host: HostId) -> Vec<Option<End>> {
        self.hosts[host.0].host.ends().collect()
    }

    pub fn endpoint(&self, host: HostId) -> &crate::message::Endpoint<Vec<u8>, Vec<u8>> {
        &self.hosts[host.0].host.endpoint
    }

    #[cfg(test)]
    pub(super) fn endpoint_mut(&mut self, host: HostId) -> &mut crate::message::Endpoint<Vec<u8>, Vec<u8>> {
        &mut self.hosts[host.0].host.endpoint
    }

    /// The host, to be changed; it continues with the next step.
    #[cfg(test)]
    pub(super) fn host_mut(&mut self, host: HostId) -> &mut Host {
        self.schedule(self.now, Happening::Wake { host: host.0 });
        self.hosts[host.0].wakes_at = Some(self.now);
        &mut self.hosts[host.0].host
    }

    #[cfg(test)]
    pub(super) fn puts(&self, host: HostId) -> &super::puts::Puts {
        &self.hosts[host.0].host.puts
    }

    /// Counts of an address that no host has.
    pub fn stranger(&self, address: SocketAddr) -> Stranger {
        self.strangers.get(&address).copied().unwrap_or_default()
    }

    pub fn change_link(&mut self, host: HostId, change: impl FnOnce(&mut super::LinkSettings)) {
        change(&mut self.hosts[host.0].link.settings);
    }

    /// Datagrams, and packets, that a host's endpoint keeps.
    pub fn kept(&self, host: HostId) -> (usize, usize) {
        (self.hosts[host.0].host.kept, self.hosts[host.0].host.queued)
    }
}
