//! Fuzzes two endpoints: a list of bytes decides what happens to them. Used by the fuzzer and by proptest.
//!
//! Unlike in a [`World`](super::World), anything may happen at any time: datagrams arrive in any order,
//! never, or repeatedly, changed or made up, even with a right checksum; time stands still or jumps.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use super::conversation::Packer;
use crate::message::receive_window::IDLE_SLOTS;
use crate::message::{Endpoint, Event, Fresh, Kind, Peer, Settings, Time, Transmit, crc, wire};

/// The most datagrams in flight in one direction; more displace the oldest.
const ON_WIRE_MAX: usize = 512;
/// The most datagrams that an endpoint may send while nothing arrives and no time passes: windows of all its
/// peers, probes, answers.
const BURST_MAX: usize = 4_096;
const PEERS_MAX: usize = 4;
const WINDOW_PACKETS: usize = 32;
/// Entries of all tables and queues of an endpoint, most of them of windows: they grow by doubling, and some
/// keep the room for [`IDLE_SLOTS`] entries.
const CAPACITY_MAX: usize = PEERS_MAX * (16 * WINDOW_PACKETS + 8 * IDLE_SLOTS);
/// Random steps after which the network is cut.
const STEPS_TO_CUT: u32 = 5_000;
const MESSAGE_BYTES_MAX: usize = 20_000;
const ADDRESSES: [([u8; 4], u16); 2] = [([10, 0, 0, 1], 1), ([10, 0, 0, 2], 2)];
/// The address of no peer.
const STRANGER: ([u8; 4], u16) = ([10, 0, 0, 3], 3);

/// Performs the operations of `schedule`.
///
/// # Panics
/// A message arrives that was not sent, or twice, or out of order, although no datagram was forged; or an
/// endpoint keeps more than its settings allow, gives back more than it got, or sends without end.
pub fn run(schedule: &[u8]) {
    let mut bytes = Bytes(schedule);
    let crc = bytes.next() % 2 == 1;
    let mut pair = Pair::new(crc);
    while !bytes.0.is_empty() {
        pair.happen(&mut bytes);
        pair.pump();
    }
}

/// Performs this many random operations on the same endpoints: they are killed and restarted, connect, send,
/// and get forged, changed, repeated and delayed datagrams.
///
/// # Panics
/// As [`run`]; and when the memory of an endpoint is not bounded by its settings at every step, or an
/// endpoint has not forgotten everything once the network was cut for long enough, or is of no use
/// afterwards.
///
/// Returns how many messages arrived.
pub fn run_random(seed: u64, steps: u32) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pair = Pair::new(seed % 2 == 1);
    for step in 1..=steps {
        let mut bytes = [0; 64];
        random.fill(&mut bytes);
        bytes[0] = bytes[0] & 0xb0 | random_operation(&mut random);
        pair.happen(&mut Bytes(&bytes));
        pair.pump();
        for side in &pair.sides {
            let capacity = side.endpoint.capacity();
            assert!(capacity <= CAPACITY_MAX, "step {step}: memory for {capacity} entries");
        }
        if step % STEPS_TO_CUT == 0 {
            pair.cut();
        }
    }
    pair.heard
}

/// Chooses what happens by the lower bits of an operation: mostly messages, and little that ends connections.
fn random_operation(random: &mut fastrand::Rng) -> u8 {
    const CONNECT: u8 = 15;
    const RESTART: u8 = 15 | 64;
    match random.u8(..200) {
        0 => RESTART,
        1 => 13,
        2 => 14,
        3..7 => CONNECT,
        7..17 => 0,
        17..57 => 1,
        57..77 => 3,
        77..83 => 4,
        83..93 => 5,
        93..103 => 6,
        103..107 => 7,
        107..127 => 11,
        127..130 => 12,
        _ => 8,
    }
}

/// The schedule, read from the front; zeros after its end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn two(&mut self) -> usize {
        usize::from(u16::from_be_bytes([self.next(), self.next()]))
    }

    /// Up to `most` bytes; fewer if no more are left.
    fn take(&mut self, most: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}

struct Pair {
    now: Time,
    crc: bool,
    sides: [Side; 2],
    /// A forged datagram was delivered that no checksum detects.
    forged: bool,
    seeds: u8,
    /// The messages sent on each connection, by their number.
    said: HashMap<u32, Vec<(Kind, usize)>>,
    connections: u32,
    heard: u64,
}

struct Side {
    endpoint: Endpoint<Vec<u8>, Vec<u8>>,
    address: SocketAddr,
    /// Datagrams on their way to this side.
    wire: VecDeque<Datagram>,
    talks: Vec<Talk>,
    /// Peers that were aborted: messages that were sent to them before may still be read.
    aborted: HashSet<Peer>,
    free: usize,
    kept: usize,
    queued: usize,
}

#[derive(Clone)]
struct Datagram {
    from: SocketAddr,
    bytes: Vec<u8>,
    /// It differs from what the endpoint sent.
    changed: bool,
}

/// One end of a connection.
struct Talk {
    peer: Peer,
    connected: bool,
    finished: bool,
    /// The number of the messages that this end sends.
    says: u32,
    packer: Packer,
    /// The number of the messages that arrive, and how many have arrived.
    hears: Option<(u32, usize)>,
}

impl Pair {
    fn new(crc: bool) -> Self {
        let sides = ADDRESSES.map(|address| Side {
            endpoint: endpoint(crc, address.1 as u8),
            address: address.into(),
            wire: VecDeque::new(),
            talks: Vec::new(),
            aborted: HashSet::new(),
            free: 64,
            kept: 0,
            queued: 0,
        });
        let mut pair = Self {
            now: Time::from_ns(1),
            crc,
            sides,
            forged: false,
            seeds: 10,
            said: HashMap::new(),
            connections: 0,
            heard: 0,
        };
        pair.connect(0);
        pair
    }

    fn happen(&mut self, bytes: &mut Bytes<'_>) {
        let operation = bytes.next();
        let side = usize::from(operation >> 7);
        match operation & 15 {
            0 => self.pass(Duration::from_micros(1 << (bytes.next() % 26))),
            1 | 2 => self.exchange(4 << (operation >> 4 & 3)),
            3 => self.with_datagram(side, bytes, |pair, index| {
                let datagram = pair.sides[side].wire.remove(index).expect("it is there");
                pair.deliver(side, datagram);
            }),
            4 => self.with_datagram(side, bytes, |pair, index| drop(pair.sides[side].wire.remove(index))),
            5 => self.with_datagram(side, bytes, |pair, index| {
                let datagram = pair.sides[side].wire[index].clone();
                pair.deliver(side, datagram);
            }),
            6 => self.change(side, bytes),
            7 => self.make_up(side, bytes),
            8..=10 => self.say(side, bytes),
            11 => self.read(side, usize::from(bytes.next())),
            12 => self.sides[side].free = usize::from(bytes.next()),
            13 => self.finish(side, bytes.next()),
            14 => self.abort(side, bytes.next()),
            _ if operation & 64 == 0 => self.connect(side),
            _ => self.restart(side),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        for side in &mut self.sides {
            side.endpoint.handle_timeout(self.now);
        }
    }

    /// Delivers to both sides what is in flight, and lets them read, that many times, at the speed of a
    /// network.
    fn exchange(&mut self, times: usize) {
        for _ in 0..times {
            for side in 0..2 {
                for datagram in std::mem::take(&mut self.sides[side].wire) {
                    self.deliver(side, datagram);
                }
                self.read(side, usize::MAX);
            }
            self.pump();
            self.pass(Duration::from_micros(50));
            self.pump();
        }
    }

    /// Drops everything until all peers are dead; then they connect again and send.
    fn cut(&mut self) {
        for _ in 0..100 {
            self.pass(Duration::from_secs(1));
            self.pump();
            for side in 0..2 {
                self.sides[side].wire.clear();
                self.read(side, usize::MAX);
            }
        }
        self.pump();
        for side in &mut self.sides {
            let (peers, kept, queued) = (side.endpoint.peers(), side.kept, side.queued);
            assert_eq!((peers, kept, queued), (0, 0, 0), "something is left of peers that are dead");
            side.free = 64;
            side.talks.clear();
        }
        self.connect(0);
        self.exchange(8);
        let before = self.heard;
        self.say(0, &mut Bytes(&[0, 0, 201]));
        self.exchange(8);
        assert_eq!(self.heard, before + 1, "it is of no use any more");
    }

    fn with_datagram(&mut self, side: usize, bytes: &mut Bytes<'_>, then: impl FnOnce(&mut Self, usize)) {
        let (number, count) = (usize::from(bytes.next()), self.sides[side].wire.len());
        if count > 0 {
            then(self, number % count);
        }
    }

    /// Changes some bytes of a datagram or truncates it, sometimes with a correct checksum.
    fn change(&mut self, side: usize, bytes: &mut Bytes<'_>) {
        let (how, at, with) = (bytes.next(), bytes.two(), bytes.next());
        let crc = self.crc;
        self.with_datagram(side, bytes, |pair, index| {
            let datagram = &mut pair.sides[side].wire[index];
            let seals = crc && how & 1 == 1 && datagram.bytes.len() > crc::CRC_BYTES;
            if seals {
                datagram.bytes.truncate(datagram.bytes.len() - crc::CRC_BYTES);
            }
            if let Some(byte) = datagram.bytes.get_mut(at % 64) {
                *byte ^= with;
            }
            if how & 2 == 2 {
                datagram.bytes.truncate(at);
            }
            if how & 4 == 4 {
                datagram.from = STRANGER.into();
            }
            if seals {
                crc::seal(&mut datagram.bytes);
                pair.forged = true; // by who knows what the peer knows
            }
            datagram.changed = true;
        });
    }

    /// Forges a datagram, possibly for an existing connection.
    fn make_up(&mut self, side: usize, bytes: &mut Bytes<'_>) {
        let (count, like) = (usize::from(bytes.next()), bytes.next());
        let mut datagram = bytes.take(count);
        if like % 2 == 1
            && let Some(other) =
                self.sides[side].wire.get(usize::from(like / 2) % self.sides[side].wire.len().max(1))
        {
            datagram = other.bytes.iter().take(32).copied().chain(datagram).collect();
            if self.crc {
                crc::seal(&mut datagram);
            }
        }
        self.forged = true;
        let from = self.sides[1 - side].address;
        self.deliver(side, Datagram { from, bytes: datagram, changed: true });
    }

    fn deliver(&mut self, side: usize, datagram: Datagram) {
        // Only packets and acknowledgements have a CRC of their connection's. What is set up by others is
        // another connection.
        let is_packet =
            matches!(datagram.bytes.first(), Some(1 | 2)) && datagram.bytes.len() > wire::HEADER_BYTES;
        self.forged |= datagram.changed && !(self.crc && is_packet);
        let (now, side) = (self.now, &mut self.sides[side]);
        side.kept += 1;
        let congested = datagram.bytes.len().is_multiple_of(3);
        side.endpoint.handle_datagram(now, datagram.from, congested, datagram.bytes);
    }

    fn connect(&mut self, side: usize) {
        let (now, to) = (self.now, self.sides[1 - side].address);
        if let Ok(peer) = self.sides[side].endpoint.connect(now, to) {
            self.begin(side, peer);
        }
    }

    fn begin(&mut self, side: usize, peer: Peer) {
        self.connections += 1;
        let says = self.connections;
        self.said.insert(says, Vec::new());
        let (packer, hears) = (Packer::default(), None);
        self.sides[side].talks.push(Talk { peer, connected: false, finished: false, says, packer, hears });
    }

    fn restart(&mut self, side: usize) {
        self.seeds = self.seeds.wrapping_add(1);
        let side = &mut self.sides[side];
        side.endpoint = endpoint(self.crc, self.seeds);
        side.talks.clear();
        side.aborted.clear();
        (side.kept, side.queued) = (0, 0);
    }

    fn say(&mut self, side: usize, bytes: &mut Bytes<'_>) {
        let (which, count) = (usize::from(bytes.next()), bytes.two());
        // Mostly short ones.
        let count = if count & 3 == 0 { count * 4 % MESSAGE_BYTES_MAX } else { count % 200 };
        let Side { endpoint, talks, .. } = &mut self.sides[side];
        let talks_count = talks.len().max(1);
        let Some(talk) = talks.get_mut(which % talks_count).filter(|talk| talk.connected && !talk.finished)
        else {
            return;
        };
        let Ok(payload_bytes_max @ 1..) = endpoint.payload_bytes_max(talk.peer) else { return };
        if endpoint.message_bytes_max(talk.peer).is_ok_and(|most| most < count + 8) {
            return; // what no program may say
        }
        let said = self.said.get_mut(&talk.says).expect("every connection's");
        let kind = match which >> 4 & 3 {
            0 | 3 => Kind::Plain,
            1 => Kind::Request(said.len() as u32),
            _ => Kind::Response(said.len() as u32),
        };
        talk.packer.pack(kind, &contents(talk.says, said.len(), count + 8), payload_bytes_max);
        if which & 128 == 0 {
            talk.packer.close();
        }
        said.push((kind, count + 8));
    }

    fn read(&mut self, side: usize, most: usize) {
        self.note_events(side);
        let Side { endpoint, talks, kept, .. } = &mut self.sides[side];
        for _ in 0..most {
            let Some(message) = endpoint.receive() else { return };
            self.heard += 1;
            let pieces: Vec<u8> = message.pieces().flatten().copied().collect();
            let talk =
                talks.iter_mut().find(|talk| talk.peer == message.peer()).expect("an event told of the peer");
            if !self.forged {
                assert_eq!(pieces.len(), message.len());
                let name = u32::from_be_bytes(pieces[..4].try_into().expect("all have eight bytes"));
                let (says, number) = talk.hears.get_or_insert((name, 0));
                assert_eq!(*says, name, "messages of two connections");
                let (kind, bytes) = self.said[says][*number];
                assert_eq!((message.kind(), message.len()), (kind, bytes), "message {number}");
                assert!(pieces == contents(*says, *number, bytes), "message {number} is not what was said");
                *number += 1;
            }
            if message.len().is_multiple_of(2) {
                message
                    .take(|piece| *kept -= usize::from(matches!(piece, crate::message::Piece::Datagram(..))));
            }
        }
    }

    fn finish(&mut self, side: usize, which: u8) {
        let Side { endpoint, talks, queued, .. } = &mut self.sides[side];
        let count = talks.len().max(1);
        let Some(talk) = talks.get_mut(usize::from(which) % count) else { return };
        if talk.packer.full.is_empty() && endpoint.finish(talk.peer, Vec::new()).is_ok() {
            talk.finished = true;
            *queued += 1;
        }
    }

    fn abort(&mut self, side: usize, which: u8) {
        let Side { endpoint, talks, aborted, .. } = &mut self.sides[side];
        if !talks.is_empty() {
            let peer = talks.remove(usize::from(which) % talks.len()).peer;
            endpoint.abort(peer);
            aborted.insert(peer);
        }
    }

    /// Hands packets over, takes memory back, and sends what there is.
    fn pump(&mut self) {
        for index in 0..2 {
            self.note_events(index);
            let [one, two] = &mut self.sides;
            let (side, other) = if index == 0 { (one, two) } else { (two, one) };
            side.hand_over();
            side.collect();
            side.transmit(self.now, other);
        }
    }

    fn note_events(&mut self, index: usize) {
        while let Some(event) = self.sides[index].endpoint.poll_event() {
            if let Event::Accepted(peer, _) = event {
                self.begin(index, peer);
            }
            let Side { talks, aborted, .. } = &mut self.sides[index];
            let peer = event.peer();
            let Some(place) = talks.iter().position(|talk| talk.peer == peer) else {
                assert!(aborted.contains(&peer), "{event:?} of nobody");
                continue;
            };
            match event {
                Event::Accepted(..) | Event::Connected(..) => talks[place].connected = true,
                Event::Lost(..) => drop(talks.remove(place)),
                _ => {}
            }
        }
    }
}

impl Side {
    fn hand_over(&mut self) {
        for talk in &mut self.talks {
            while let Some(load) = talk.packer.full.pop_front() {
                if let Err(load) = load.queue(&mut self.endpoint, talk.peer) {
                    talk.packer.full.push_front(load);
                    break;
                }
                self.queued += 1;
            }
        }
    }

    fn collect(&mut self) {
        while self.endpoint.released().is_some() {
            self.kept = self.kept.checked_sub(1).expect("no more comes back than was given");
        }
        while self.endpoint.acknowledged().is_some() {
            self.queued = self.queued.checked_sub(1).expect("no more comes back than was given");
        }
        assert!(self.kept <= PEERS_MAX * WINDOW_PACKETS, "{} datagrams kept", self.kept);
        assert!(self.queued <= PEERS_MAX * (WINDOW_PACKETS + 1), "{} packets kept", self.queued);
        assert!(self.endpoint.peers() <= PEERS_MAX);
        self.endpoint.set_free(self.free);
    }

    fn transmit(&mut self, now: Time, other: &mut Side) {
        let mut count = 0;
        loop {
            let Self { endpoint, address: from, .. } = self;
            let sent = endpoint.transmit_fresh(now, 3, |to, packet, header| {
                count += 1;
                if to.remote == other.address {
                    other.take(*from, [&header[..], packet].concat());
                }
            });
            match sent {
                Fresh::None => {}
                Fresh::Some => continue,
                Fresh::Last => break self.endpoint.rest_after_last(now),
            }
            let Some(transmit) = self.endpoint.poll_transmit(now) else { break };
            count += 1;
            assert!(count <= BURST_MAX, "sends without end");
            let (to, bytes) = match transmit {
                Transmit::Packet { to, packet, header, crc, .. } => {
                    let mut bytes = [&header[..], packet].concat();
                    if crc {
                        crc::seal(&mut bytes);
                    }
                    (to, bytes)
                }
                Transmit::Unit { .. } => unreachable!("no unit was queued"),
                Transmit::Control { to, datagram } => (to, datagram.to_vec()),
            };
            if to.remote == other.address {
                other.take(self.address, bytes);
            }
        }
    }

    /// Handles a datagram that arrives at this side.
    fn take(&mut self, from: SocketAddr, bytes: Vec<u8>) {
        self.wire.push_back(Datagram { from, bytes, changed: false });
        if self.wire.len() > ON_WIRE_MAX {
            self.wire.pop_front();
        }
    }
}

fn endpoint(crc: bool, seed: u8) -> Endpoint<Vec<u8>, Vec<u8>> {
    let settings = Settings {
        datagram_bytes: 600,
        max_message_bytes: MESSAGE_BYTES_MAX as u32,
        window_packets: WINDOW_PACKETS,
        peers_max: PEERS_MAX,
        crc,
        ..Settings::default()
    };
    let mut endpoint = Endpoint::new(settings, [seed; 32]);
    if seed % 2 == 1 {
        endpoint.go_the_general_way();
    }
    endpoint
}

/// A message whose bytes depend on its sender and number.
fn contents(says: u32, number: usize, count: usize) -> Vec<u8> {
    let head = [says.to_be_bytes(), (number as u32).to_be_bytes()].concat();
    let rest = (0..).map(|at: u32| (at.wrapping_mul(says).wrapping_add(number as u32) >> 2) as u8);
    head.into_iter().chain(rest).take(count).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        /// As the fuzzer checks at length: endpoints stay within their limits and deliver what was sent.
        #[test]
        fn any_schedule_is_survived(schedule in prop::collection::vec(any::<u8>(), 0..400)) {
            super::run(&schedule);
        }

        /// As above without forgeries, so that all contents are compared.
        #[test]
        fn messages_are_a_prefix_of_what_was_said(
            schedule in prop::collection::vec((prop::sample::select(
                &[0u8, 1, 0x21, 2, 3, 0x83, 4, 0x84, 5, 0x85, 8, 9, 0x88, 0x89, 11, 0x8b, 12, 13, 0x8d, 15, 0x8f, 0x4f][..]
            ), any::<[u8; 3]>()), 0..200)
        ) {
            let bytes: Vec<u8> = schedule.into_iter().flat_map(|(operation, rest)| {
                let arguments = match operation & 15 { 1 | 2 | 15 => 0, 8..=10 => 3, _ => 1 };
                std::iter::once(operation).chain(rest.into_iter().take(arguments))
            }).collect();
            super::run(&[&[0][..], &bytes].concat());
            super::run(&[&[1][..], &bytes].concat());
        }
    }
}
