//! A host: an endpoint, memory for what arrives, and a program that talks and listens.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::conversation::{Conversation, End, Heard};
use super::link::LinkSettings;
use super::puts::Puts;
use super::streams::{Inbox, StreamSettings};
use super::traffic::{Flow, Flows, Traffic};
use crate::message::wire::{HEADER_BYTES, Unit};
use crate::message::{Endpoint, Event, Fresh, Peer, Piece, Settings, Time, Transmit, crc};

/// How far ahead of the wire a host fills the queue of its interface.
const INTERFACE_AHEAD: Duration = Duration::from_micros(100);

#[derive(Debug, Clone)]
pub struct HostSettings {
    pub endpoint: Settings,
    /// Datagrams for which it has memory.
    pub memory_packets: usize,
    /// When it reads: at once, or this many messages at an interval.
    pub reading: Option<(usize, Duration)>,
    /// What it sends to peers that connect.
    pub says: Option<Traffic>,
    /// Whether its endpoint handles everything the general way; by default every other one does.
    pub is_general: Option<bool>,
    /// The link towards it; its interface has the same rate.
    pub link: LinkSettings,
    /// How it uses streams, if it does.
    pub streams: Option<StreamSettings>,
}

/// What a host has sent and could not take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Packets sent, again or not.
    pub packets: u64,
    /// Of those, packets sent again.
    pub again: u64,
    /// Other datagrams sent.
    pub controls: u64,
    /// Datagrams that arrived without memory for them.
    pub without_memory: u64,
    /// Bytes of messages that were read.
    pub read_bytes: u64,
}

/// What all hosts of a simulation know.
#[derive(Debug, Default)]
pub(super) struct Truth {
    pub(super) flows: Flows,
    pub(super) faults: Vec<String>,
}

/// The most faults reported: the first say the most.
const FAULTS_MAX: usize = 20;

impl Truth {
    pub(super) fn fault(&mut self, text: impl FnOnce() -> String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(text());
        }
    }
}

#[derive(Debug)]
pub(super) struct Departure {
    pub(super) at: Time,
    pub(super) to: SocketAddr,
    pub(super) datagram: Vec<u8>,
    /// Set for a unit: the peer whose stream it is for.
    pub(super) stream: Option<Peer>,
}

/// Datagrams for which there is always memory, as with both carriers: one that is not kept is still handled.
const PASSING: usize = 64;
/// The most datagrams that wait in the kernel while the program does not call the endpoint.
const WAITING_MAX: usize = 4_096;

/// A program that computes and does not call its endpoint.
#[derive(Debug)]
pub(super) struct Away {
    pub(super) until: Time,
    /// Datagrams that arrived in this time and wait in the kernel.
    pub(super) waiting: Vec<(SocketAddr, bool, Vec<u8>)>,
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) address: SocketAddr,
    pub(super) settings: HostSettings,
    pub(super) endpoint: Endpoint<Vec<u8>, Vec<u8>>,
    pub(super) conversations: Vec<Conversation>,
    by_peer: HashMap<Peer, usize>,
    pub(super) events: Vec<(Time, Event)>,
    pub(super) counts: HostCounts,
    pub(super) inbox: Inbox,
    pub(super) puts: Puts,
    pub(super) wants_streams: Vec<Peer>,
    /// When streams are wanted again for units that wait for one.
    pub(super) wants_again: Time,
    /// Datagrams that the endpoint keeps.
    pub(super) kept: usize,
    /// Packets that the endpoint keeps.
    pub(super) queued: usize,
    pub(super) away: Option<Away>,
    /// When the interface will have sent everything.
    interface_free: Time,
    reads_at: Time,
    /// The seed of the messages to peers that connect.
    seed: u64,
}

impl Host {
    pub(super) fn new(address: SocketAddr, settings: HostSettings, seed: u64) -> Self {
        let mut host = Self {
            address,
            endpoint: Self::endpoint(&settings, seed),
            settings,
            conversations: Vec::new(),
            by_peer: HashMap::new(),
            events: Vec::new(),
            counts: HostCounts::default(),
            inbox: Inbox::default(),
            puts: Puts::default(),
            wants_streams: Vec::new(),
            wants_again: Time::default(),
            kept: 0,
            queued: 0,
            away: None,
            interface_free: Time::default(),
            reads_at: Time::default(),
            seed,
        };
        host.endpoint.set_free(host.settings.memory_packets);
        host
    }

    fn endpoint(settings: &HostSettings, seed: u64) -> Endpoint<Vec<u8>, Vec<u8>> {
        let mut bytes = [0; 32];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        let settings_of_endpoint =
            Settings { streams: settings.streams.is_some(), ..settings.endpoint.clone() };
        let mut endpoint = Endpoint::new(settings_of_endpoint, bytes);
        if settings.is_general.unwrap_or(seed % 2 == 1) {
            endpoint.go_the_general_way();
        }
        endpoint
    }

    /// Restarts the program, which has lost all its state.
    pub(super) fn restart(&mut self) {
        self.seed = self.seed.wrapping_add(1);
        self.endpoint = Self::endpoint(&self.settings, self.seed);
        self.endpoint.set_free(self.settings.memory_packets);
        self.conversations.clear();
        self.by_peer.clear();
        self.away = None;
        (self.kept, self.queued) = (0, 0);
        self.inbox = Inbox::default();
        self.puts = Puts::default();
    }

    /// Connects, and will send the messages of seed `says`.
    pub(super) fn connect(&mut self, now: Time, to: SocketAddr, says: Option<u64>) -> Peer {
        let peer = self.endpoint.connect(now, to).expect("the tests keep within the number of peers");
        self.begin(peer, says);
        peer
    }

    pub(super) fn abort(&mut self, peer: Peer) {
        self.endpoint.abort(peer);
        if let Some(&index) = self.by_peer.get(&peer) {
            self.conversations[index].end = Some(End::Aborted);
        }
    }

    fn begin(&mut self, peer: Peer, says: Option<u64>) {
        self.by_peer.insert(peer, self.conversations.len());
        let streams_from = self.settings.streams.as_ref().map(|streams| streams.from_bytes);
        self.conversations.push(Conversation::new(peer, says, streams_from));
    }

    /// Receives a datagram from the wire.
    pub(super) fn arrive(
        &mut self,
        now: Time,
        from: SocketAddr,
        congested: bool,
        mut datagram: Vec<u8>,
        truth: &mut Truth,
    ) {
        if let Some(Away { waiting, .. }) = &mut self.away {
            match waiting.len() < WAITING_MAX {
                true => waiting.push((from, congested, datagram)),
                false => self.counts.without_memory += 1,
            }
            return;
        }
        if self.kept - self.inbox.kept >= self.settings.memory_packets + PASSING {
            self.counts.without_memory += 1;
            return;
        }
        if is_unit(&datagram) {
            datagram[0] = 0; // by damage: as malformed as that, and not to be counted as a unit that comes back
        }
        // A program that reads everything at once may read a message in its datagram.
        if self.settings.reading.is_none()
            && let Some((peer, kind, range)) = self.endpoint.receive_in_place(now, from, congested, &datagram)
        {
            self.counts.read_bytes += range.len() as u64;
            let heard = Heard { kind, pieces: &[&datagram[range]] };
            return match self.by_peer.get(&peer) {
                Some(&index) => self.conversations[index].hear(heard, truth),
                None => truth.fault(|| format!("{}: a message of no peer of ours", self.address)),
            };
        }
        self.kept += 1;
        self.endpoint.handle_datagram(now, from, congested, datagram);
    }

    /// Whether the program still computes; otherwise handles what has arrived in the meantime.
    pub(super) fn is_away(&mut self, now: Time, truth: &mut Truth) -> bool {
        if self.away.as_ref().is_some_and(|away| now < away.until) {
            return true;
        }
        for (from, congested, datagram) in self.away.take().into_iter().flat_map(|away| away.waiting) {
            self.arrive(now, from, congested, datagram, truth);
            self.note_events(now, truth);
        }
        false
    }

    /// Does everything that is due. Returns the next time at which something is due, if nothing arrives.
    pub(super) fn drive(
        &mut self,
        now: Time,
        truth: &mut Truth,
        departures: &mut Vec<Departure>,
    ) -> Option<Time> {
        if self.endpoint.poll_timeout().is_some_and(|due| due <= now) {
            self.endpoint.handle_timeout(now);
        }
        let (mut speaks_at, mut blocked);
        loop {
            self.note_events(now, truth);
            let memory = self.settings.streams.as_ref().map_or(0, |streams| streams.memory_units);
            self.kept += self.inbox.take(now, memory, &mut self.endpoint, &mut self.puts, truth);
            let news = self.see_to_puts(now, truth);
            self.read(now, truth);
            self.note_events(now, truth); // an end is told when everything in front of it was read
            speaks_at = None;
            for conversation in &mut self.conversations {
                let next = conversation.speak(now, &mut self.endpoint, &mut self.queued, truth);
                speaks_at = speaks_at.into_iter().chain(next).min();
            }
            self.wants_streams.extend(std::iter::from_fn(|| self.endpoint.next_asking()));
            self.collect(truth);
            blocked = self.transmit(now, departures);
            if !self.note_events(now, truth) && !news {
                break; // nothing came of it
            }
        }
        let wants_at = self.want_streams_for_units(now);
        let reads_at = self.settings.reading.filter(|_| self.is_listening()).map(|_| self.reads_at);
        [blocked.or(self.endpoint.poll_timeout()), speaks_at, reads_at, wants_at].into_iter().flatten().min()
    }

    pub(super) fn opens_streams_at_once(&self) -> bool {
        self.settings.streams.as_ref().is_some_and(|streams| streams.opens_at_once)
    }

    fn is_listening(&self) -> bool {
        self.conversations.iter().any(|conversation| conversation.end.is_none())
    }

    /// Handles events; returns whether there were any.
    fn note_events(&mut self, now: Time, truth: &mut Truth) -> bool {
        let before = self.events.len();
        while let Some(event) = self.endpoint.poll_event() {
            let peer = event.peer();
            if matches!(event, Event::Accepted(..)) {
                let says = self.settings.says.map(|traffic| {
                    self.seed = self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(3);
                    truth.flows.insert(self.seed, Flow::of(traffic));
                    self.seed
                });
                self.begin(peer, says);
            }
            if matches!(event, Event::Connected(..)) && self.opens_streams_at_once() {
                self.wants_streams.push(peer);
            }
            self.events.push((now, event));
            match self.by_peer.get(&peer).map(|&index| &mut self.conversations[index]) {
                Some(conversation) => conversation.note(event, truth),
                None => truth.fault(|| format!("{}: {event:?} of no peer of ours", self.address)),
            }
        }
        self.events.len() > before
    }

    fn read(&mut self, now: Time, truth: &mut Truth) {
        let mut most = usize::MAX;
        if let Some((messages, every)) = self.settings.reading {
            if now < self.reads_at {
                return;
            }
            self.reads_at = now + every;
            most = messages;
        }
        for _ in 0..most {
            let Some(message) = self.endpoint.receive() else { return };
            self.counts.read_bytes += message.len() as u64;
            let (kind, pieces) = (message.kind(), message.pieces().collect::<Vec<_>>());
            match self.by_peer.get(&message.peer()) {
                Some(&index) => self.conversations[index].hear(Heard { kind, pieces: &pieces }, truth),
                None => truth.fault(|| format!("{}: a message of no peer of ours", self.address)),
            }
            if self.counts.read_bytes % 4 == 1 {
                // Taken, and soon dropped: its datagrams come back from here and not from the endpoint.
                message.take(|piece| {
                    if let Piece::Datagram(datagram, _) = piece {
                        self.kept -= 1;
                        self.inbox.kept -= usize::from(is_unit(&datagram));
                    }
                });
            }
        }
    }

    /// Takes back packets that the endpoint no longer needs.
    fn collect(&mut self, truth: &mut Truth) {
        while self.endpoint.acknowledged().is_some() {
            match self.queued.checked_sub(1) {
                Some(left) => self.queued = left,
                None => truth.fault(|| format!("{}: more packets came back than were given", self.address)),
            }
        }
        while let Some(datagram) = self.endpoint.released() {
            self.inbox.kept -= usize::from(is_unit(&datagram));
            match self.kept.checked_sub(1) {
                Some(left) => self.kept = left,
                None => truth.fault(|| format!("{}: more datagrams came back than were given", self.address)),
            }
        }
        self.endpoint.set_free(self.settings.memory_packets - (self.kept - self.inbox.kept));
    }

    /// Sends by the short way as much as that allows and the interface takes; returns whether anything was
    /// sent.
    fn transmit_fresh(&mut self, now: Time, departures: &mut Vec<Departure>) -> bool {
        let Self { endpoint, counts, settings, interface_free, .. } = self;
        let packet = settings.link.transmission(settings.endpoint.datagram_bytes.into());
        let left = INTERFACE_AHEAD - interface_free.since(now);
        let most = 1 + left.as_nanos() / packet.as_nanos().max(1);
        let sent = endpoint.transmit_fresh(now, most as u32, |to, packet, header| {
            counts.packets += 1;
            let datagram = [&header[..], packet].concat();
            *interface_free = (*interface_free).max(now) + settings.link.transmission(datagram.len());
            departures.push(Departure { at: *interface_free, to: to.remote, datagram, stream: None });
        });
        if sent == Fresh::Last {
            endpoint.rest_after_last(now);
        }
        sent != Fresh::None
    }

    /// Sends everything there is. Returns when it can continue, if the interface has enough for now.
    fn transmit(&mut self, now: Time, departures: &mut Vec<Departure>) -> Option<Time> {
        while self.interface_free.since(now) < INTERFACE_AHEAD {
            if self.transmit_fresh(now, departures) {
                continue;
            }
            let mut before = None;
            let (to, datagram) = match self.endpoint.poll_transmit(now)? {
                Transmit::Packet { peer, to, packet, header, crc, again } => {
                    before = Some((peer, header));
                    self.counts.packets += 1;
                    self.counts.again += u64::from(again);
                    let mut datagram = Vec::with_capacity(header.len() + packet.len() + crc::CRC_BYTES);
                    datagram.extend_from_slice(&header);
                    datagram.extend_from_slice(packet);
                    if crc {
                        crc::seal(&mut datagram);
                    }
                    (to.remote, datagram)
                }
                Transmit::Unit { peer, unit, header } => {
                    let (datagram, to) = ([&header[..], unit].concat(), self.address);
                    departures.push(Departure { at: now, to, datagram, stream: Some(peer) });
                    continue;
                }
                Transmit::Control { to, datagram } => {
                    self.counts.controls += 1;
                    (to.remote, datagram.to_vec())
                }
            };
            self.interface_free =
                self.interface_free.max(now) + self.settings.link.transmission(datagram.len());
            departures.push(Departure { at: self.interface_free, to, datagram, stream: None });
            if let Some((peer, header)) = before {
                self.transmit_followers(now, peer, header, to, departures);
            }
        }
        Some(now + INTERFACE_AHEAD / 2)
    }

    /// Sends what follows a packet to a peer.
    fn transmit_followers(
        &mut self,
        now: Time,
        peer: Peer,
        header: [u8; HEADER_BYTES],
        to: SocketAddr,
        departures: &mut Vec<Departure>,
    ) {
        let Self { endpoint, counts, settings, interface_free, .. } = self;
        endpoint.transmit_followers(now, peer, header, |packet, header| {
            counts.packets += 1;
            let datagram = [&header[..], packet].concat();
            *interface_free = (*interface_free).max(now) + settings.link.transmission(datagram.len());
            departures.push(Departure { at: *interface_free, to, datagram, stream: None });
        });
    }

    /// Whether all that was begun is over.
    pub(super) fn ends(&self) -> impl Iterator<Item = Option<End>> + '_ {
        self.conversations.iter().map(|conversation| conversation.end)
    }
}

fn is_unit(received: &[u8]) -> bool {
    received.first_chunk().is_some_and(|header| Unit::parse(header).is_ok())
}
