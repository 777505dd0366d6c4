//! All connections of one endpoint: whose datagram it is, who may send next, whose message is next, whose time is up.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use siphasher::sip::SipHasher24;

use super::admission::Admission;
use super::alarms::Alarms;
use super::answers::{Answered, Answers};
use super::connection::{self, Agreed, Connection, Linger};
use super::cookie::Cookies;
use super::handshake::Connecting;
use super::receive_window::Complete;
use super::received::Message;
use super::shares::network_of;
use super::shortage::Shortage;
use super::time::Span;
use super::wire::{
    self, Abort, AbortReason, DATAGRAM_BYTES_MIN, Datagram, Flags, HEADER_BYTES, Header, Malformed, Ranges,
    Unknown,
};
use super::{
    ConnectError, Counters, Event, Gone, Kind, LostReason, MESSAGE_BYTES_MAX, Peer, PeerStats, QueueError,
    Settings, Time, sequence,
};

/// So that the ranges of an acknowledgement reach over all of them.
const WINDOW_PACKETS_MAX: usize = 1 << 16;
/// More often it is no use to ask.
const KEEP_ALIVE_MIN: Duration = Duration::from_millis(10);
/// The longest payload of UDP over IPv4.
const DATAGRAM_BYTES_MAX: u16 = 65_507;
/// Lower bits of an id: the place of the connection. The others cannot be guessed.
const INDEX_BITS: u32 = 20;
/// Packets of one connection that are sent in a row, while others have some, too.
pub(super) const PACKETS_IN_A_ROW: u32 = 64;
/// How long a peer may fail to acknowledge anything while there is no memory for packets to others.
const SLOW: Span = Span::from_secs(10);
/// Events that nobody has taken, at which no peers are accepted any more.
const EVENTS_MAX: usize = 1 << 16;

/// One end of any number of connections; see the [module](super).
///
/// `S` is a packet to send as the caller keeps it, `R` a datagram that was received.
#[derive(Debug)]
pub struct Endpoint<S, R> {
    pub(super) settings: Settings,
    pub(super) cookies: Cookies,
    pub(super) ids: Ids,
    pub(super) entries: Vec<Entry<S, R>>,
    vacant: Vec<u32>,
    /// Connections that are over and still answer, by the time when they ended.
    lingering: BTreeSet<(Time, u32)>,
    /// All connections by the peer's address and its name for them.
    by_remote: HashMap<(SocketAddr, u64), u32>,
    /// Connections that are being set up from here: by where to, and our name for them.
    attempts: BTreeMap<(SocketAddr, u64), u32>,
    /// Who may have something to send.
    pub(super) sending: VecDeque<u32>,
    /// Packets sent for the first one of them.
    pub(super) in_a_row: u32,
    /// A datagram came since then that one of them does not let wait.
    pub(super) urgent: bool,
    /// Who has messages to be read.
    pub(super) readable: VecDeque<u32>,
    pub(super) timers: Alarms,
    pub(super) events: VecDeque<Event>,
    pub(super) answers: Answers,
    pub(super) released: Vec<R>,
    pub(super) acknowledged: Vec<S>,
    pub(super) admission: Admission,
    /// Time in which there was no memory for packets to send.
    no_packets: Shortage,
    control: Vec<u8>,
    pub(super) counters: Counters,
    /// All datagrams go the general way, so that it can be compared with the short ones.
    #[cfg(any(test, feature = "simulation"))]
    is_general: bool,
}

#[derive(Debug)]
pub(super) struct Entry<S, R> {
    pub(super) generation: u32,
    /// Our name for the connection: the index, and a number that nobody can guess.
    pub(super) id: u64,
    pub(super) state: State<S, R>,
    pub(super) is_sending: bool,
    pub(super) is_readable: bool,
}

#[derive(Debug)]
pub(super) enum State<S, R> {
    Vacant,
    Connecting(Connecting),
    Open(Box<Connection<S, R>>),
}

/// Numbers that nobody can guess.
#[derive(Debug)]
pub(super) struct Ids {
    secret: [u8; 16],
    count: u64,
}

impl Ids {
    pub(super) fn next(&mut self) -> u64 {
        self.count += 1;
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write_u64(self.count);
        hasher.finish()
    }
}

#[inline]
pub(super) fn index_of(id: u64) -> u32 {
    id as u32 & ((1 << INDEX_BITS) - 1)
}

/// What is to be sent.
#[derive(Debug)]
pub enum Transmit<'a, S> {
    /// A packet: the header goes in front of what the caller keeps.
    Packet {
        /// Whose.
        peer: Peer,
        /// Where to.
        to: SocketAddr,
        /// As it was queued.
        packet: &'a mut S,
        /// This time's header.
        header: [u8; HEADER_BYTES],
        /// A CRC32C over header and payload goes behind ([`crc`](super::crc)).
        crc: bool,
        /// It was sent before.
        again: bool,
    },
    /// A whole datagram, checksum and all.
    Control {
        /// Where to.
        to: SocketAddr,
        /// The UDP payload.
        datagram: &'a [u8],
    },
}

/// The next message, found and not read yet.
#[derive(Debug)]
pub struct Next {
    peer: Peer,
    complete: Complete,
}

/// What may be sent to a peer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outlook {
    /// The longest payload of a packet, behind the header and without CRC.
    pub payload_bytes_max: usize,
    /// The longest message that the peer takes.
    pub message_bytes_max: usize,
    /// Packets that may be queued.
    pub room: usize,
    /// Packets that are not acknowledged, sent or not.
    pub unacknowledged: usize,
}

/// Places in the queue to a peer; nothing can come between them and the packets that fill them.
#[derive(Debug)]
#[must_use = "the packets are still to be queued"]
pub struct Places<'a, S, R> {
    endpoint: &'a mut Endpoint<S, R>,
    peer: Peer,
    packets: usize,
}

impl<S, R: AsRef<[u8]>> Places<'_, S, R> {
    /// Queues all packets of `packets`, in their order.
    ///
    /// # Panics
    /// There are more of them than places.
    pub fn fill(self, packets: &mut Vec<S>) {
        assert!(packets.len() <= self.packets, "{} packets for {} places", packets.len(), self.packets);
        let connection = self.endpoint.reading_mut(self.peer).expect("there were places in its queue");
        connection.send.extend(packets.drain(..));
        self.endpoint.touch(self.peer.index);
    }
}

/// What a step of sending is, before memory is touched.
#[derive(Debug, Clone, Copy)]
enum Step {
    Answer,
    SetUp,
    Next(connection::Next),
}

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    /// An endpoint without peers. `seed` has to be random, and secret: cookies, ids and first sequence numbers come from it.
    /// What the settings ask for beyond the limits of docs/protocol.md §14 is brought inside.
    pub fn new(mut settings: Settings, seed: [u8; 32]) -> Self {
        settings.window_packets = settings.window_packets.clamp(1, WINDOW_PACKETS_MAX);
        settings.datagram_bytes = settings.datagram_bytes.clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX);
        settings.max_message_bytes = settings.max_message_bytes.min(MESSAGE_BYTES_MAX);
        settings.keep_alive = settings.keep_alive.max(KEEP_ALIVE_MIN);
        settings.dead_after = settings.dead_after.max(settings.keep_alive);
        let (cookies, ids) = seed.split_at(16);
        let half = |bytes: &[u8]| std::array::from_fn(|at| bytes[at]);
        Self {
            admission: Admission::new(settings.window_packets),
            settings,
            cookies: Cookies::new(half(cookies)),
            ids: Ids { secret: half(ids), count: 0 },
            entries: Vec::new(),
            vacant: Vec::new(),
            lingering: BTreeSet::new(),
            by_remote: HashMap::new(),
            attempts: BTreeMap::new(),
            sending: VecDeque::new(),
            in_a_row: 0,
            urgent: false,
            readable: VecDeque::new(),
            timers: Alarms::default(),
            events: VecDeque::new(),
            answers: Answers::default(),
            released: Vec::new(),
            acknowledged: Vec::new(),
            no_packets: Shortage::default(),
            control: Vec::new(),
            counters: Counters::default(),
            #[cfg(any(test, feature = "simulation"))]
            is_general: false,
        }
    }

    /// Begins to connect; [`Event::Connected`] or [`Event::Lost`] tells how it ends.
    ///
    /// # Errors
    /// There are too many peers already.
    pub fn connect(&mut self, now: Time, to: SocketAddr) -> Result<Peer, ConnectError> {
        let peers_max = self.settings.peers_max;
        let index = self.vacancy().ok_or(ConnectError::TooManyPeers { peers_max })?;
        let first_sequence = self.ids.next() as u32;
        let entry = &mut self.entries[index as usize];
        entry.state = State::Connecting(Connecting::new(to, entry.id, first_sequence, &self.settings, now));
        let peer = Peer { index, generation: entry.generation };
        self.attempts.insert((to, entry.id), index);
        self.touch(index);
        Ok(peer)
    }

    /// A place for one more connection, with a new id. If there is none left, the connection that has been over for longest makes room.
    fn vacancy(&mut self) -> Option<u32> {
        let index = match self.vacant.pop() {
            Some(index) => index,
            None if self.entries.len() < self.settings.peers_max.min(1 << INDEX_BITS) => {
                let state = State::Vacant;
                self.entries.push(Entry {
                    generation: 0,
                    id: 0,
                    state,
                    is_sending: false,
                    is_readable: false,
                });
                (self.entries.len() - 1) as u32
            }
            None => {
                let &(_, over) = self.lingering.first()?;
                self.remove(over);
                self.vacant.pop()?
            }
        };
        self.entries[index as usize].id = self.ids.next() << INDEX_BITS | u64::from(index);
        Some(index)
    }

    /// Peers there are, connected or not yet.
    pub fn peers(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    fn open(&self, peer: Peer) -> Result<Option<&Connection<S, R>>, Gone> {
        let entry = self.entries.get(peer.index()).filter(|entry| entry.generation == peer.generation);
        match entry.map(|entry| &entry.state) {
            Some(State::Open(connection)) => Ok(Some(connection)),
            Some(State::Connecting(_)) => Ok(None),
            Some(State::Vacant) | None => Err(Gone),
        }
    }

    fn open_mut(&mut self, peer: Peer) -> Result<Option<&mut Connection<S, R>>, Gone> {
        let entry = self.entries.get_mut(peer.index()).filter(|entry| entry.generation == peer.generation);
        match entry.map(|entry| &mut entry.state) {
            Some(State::Open(connection)) => Ok(Some(connection)),
            Some(State::Connecting(_)) => Ok(None),
            Some(State::Vacant) | None => Err(Gone),
        }
    }

    /// The connection to a peer that more may be sent to.
    #[inline]
    fn open_to_send(&mut self, peer: Peer) -> Result<&mut Connection<S, R>, QueueError> {
        let connection = self.open_mut(peer)?.ok_or(QueueError::Full)?;
        if connection.is_finished() { Err(QueueError::Finished) } else { Ok(connection) }
    }

    /// Where a peer is, connected or not yet.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn peer_address(&self, peer: Peer) -> Result<SocketAddr, Gone> {
        let entry = self.entries.get(peer.index()).filter(|entry| entry.generation == peer.generation);
        match entry.map(|entry| &entry.state) {
            Some(State::Open(connection)) => Ok(connection.agreed.to),
            Some(State::Connecting(connecting)) => Ok(connecting.to),
            Some(State::Vacant) | None => Err(Gone),
        }
    }

    /// What may be sent to a peer now; nothing while it is not connected.
    ///
    /// # Errors
    /// The peer is gone.
    #[inline]
    pub fn outlook(&self, peer: Peer) -> Result<Outlook, Gone> {
        Ok(self.open(peer)?.map_or(Outlook::default(), |connection| Outlook {
            payload_bytes_max: connection.agreed.payload_bytes_max(),
            message_bytes_max: connection.agreed.message_bytes_max(),
            room: connection.room(),
            unacknowledged: connection.send.len(),
        }))
    }

    /// The same of a connected peer to which one packet may be queued, for a message that fits into it: `message_bytes_max` is what the
    /// peer said, whatever it has room for.
    #[inline]
    pub fn outlook_of_short(&self, peer: Peer) -> Option<Outlook> {
        let connection = self.reading(peer)?;
        let (room, agreed) = (connection.room(), &connection.agreed);
        (room > 0 && agreed.holds_packets()).then(|| Outlook {
            payload_bytes_max: agreed.payload_bytes_max(),
            message_bytes_max: agreed.message_bytes_max,
            room,
            unacknowledged: connection.send.len(),
        })
    }

    /// Packets that may be queued to a peer: none while it is not connected.
    ///
    /// # Errors
    /// The peer is gone.
    #[inline]
    pub fn room(&self, peer: Peer) -> Result<usize, Gone> {
        Ok(self.open(peer)?.map_or(0, Connection::room))
    }

    /// The longest payload of a packet to a peer, behind the header and without CRC; nothing while it is not connected.
    ///
    /// # Errors
    /// The peer is gone.
    #[inline]
    pub fn payload_bytes_max(&self, peer: Peer) -> Result<usize, Gone> {
        Ok(self.open(peer)?.map_or(0, |connection| connection.agreed.payload_bytes_max()))
    }

    /// The longest message that a peer takes; nothing while it is not connected.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn message_bytes_max(&self, peer: Peer) -> Result<usize, Gone> {
        Ok(self.open(peer)?.map_or(0, |connection| connection.agreed.message_bytes_max()))
    }

    /// Packets to a peer that are not acknowledged, sent or not.
    ///
    /// # Errors
    /// The peer is gone.
    #[inline]
    pub fn unacknowledged(&self, peer: Peer) -> Result<usize, Gone> {
        Ok(self.open(peer)?.map_or(0, |connection| connection.send.len()))
    }

    /// Says that the caller has no memory for packets to send. While that is so, peers that acknowledge nothing for a time are ended one
    /// by one, the one that keeps most first, so that no more are ended than it takes (docs/protocol.md §8.4).
    pub fn want_packets(&mut self, now: Time) {
        self.no_packets.go_on(now);
        if self.no_packets.looks()
            && let Some(index) = self.slow_peer_that_keeps_most()
        {
            self.evict(index, AbortReason::STALLED, LostReason::Stalled);
        }
    }

    /// Of the peers that acknowledge nothing: of the network for which most packets are kept the one for which most are.
    fn slow_peer_that_keeps_most(&mut self) -> Option<u32> {
        let mut slow = Vec::new();
        let mut kept_of_network: HashMap<IpAddr, usize> = HashMap::new();
        for (index, entry) in (0..).zip(&mut self.entries) {
            if let State::Open(connection) = &mut entry.state
                && connection.is_slow_for(&self.no_packets) >= SLOW
            {
                let (network, kept) = (network_of(connection.agreed.to.ip()), connection.send.len());
                *kept_of_network.entry(network).or_default() += kept;
                slow.push((network, kept, index));
            }
        }
        let most = slow.iter().max_by_key(|(network, kept, _)| (kept_of_network[network], *kept));
        most.map(|(.., index)| *index)
    }

    /// Says that somebody waits for room for so many packets: [`Event::Writable`] will tell.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn want_room(&mut self, peer: Peer, packets: usize) -> Result<(), Gone> {
        if let Some(connection) = self.open_mut(peer)? {
            connection.refuse(packets);
        }
        Ok(())
    }

    /// Queues a packet: chunks of messages ([`framing`](super::framing)), which stays with the endpoint until the peer has it.
    ///
    /// # Errors
    /// Gives the packet back: no room, or no peer.
    #[inline]
    pub fn queue(&mut self, peer: Peer, packet: S) -> Result<(), (S, QueueError)> {
        let entry = self.entries.get_mut(peer.index()).filter(|entry| entry.generation == peer.generation);
        let Some(Entry { state: State::Open(connection), is_sending, .. }) = entry else {
            let error = self.open_to_send(peer).err().unwrap_or(QueueError::Full);
            return Err((packet, error));
        };
        if connection.room() == 0 {
            let error = if connection.is_finished() { QueueError::Finished } else { QueueError::Full };
            if error == QueueError::Full {
                connection.refuse(1);
            }
            return Err((packet, error));
        }
        connection.send.push(packet);
        if !std::mem::replace(is_sending, true) {
            self.sending.push_back(peer.index);
        }
        Ok(())
    }

    /// Queues all packets of `packets`, in their order, as [`Endpoint::queue`] does one. More than the window has places for are never
    /// taken.
    ///
    /// # Errors
    /// No room for all of them, or no peer: leaves them where they are.
    pub fn queue_all(&mut self, peer: Peer, packets: &mut Vec<S>) -> Result<(), QueueError> {
        self.places(peer, packets.len())?.fill(packets);
        Ok(())
    }

    /// Places for so many packets to a peer: for packets that cannot be given back once they are made.
    ///
    /// # Errors
    /// No room for all of them, or no peer.
    pub fn places(&mut self, peer: Peer, packets: usize) -> Result<Places<'_, S, R>, QueueError> {
        let connection = self.open_to_send(peer)?;
        if connection.room() < packets {
            connection.refuse(packets);
            return Err(QueueError::Full);
        }
        Ok(Places { endpoint: self, peer, packets })
    }

    /// Ends this direction behind everything queued, with a packet that is empty.
    ///
    /// # Errors
    /// Gives the packet back: there is no such peer, it is not connected yet, or the direction was ended before.
    pub fn finish(&mut self, peer: Peer, packet: S) -> Result<(), (S, QueueError)> {
        let connection = match self.open_to_send(peer) {
            Ok(connection) => connection,
            Err(error) => return Err((packet, error)),
        };
        connection.finish(packet);
        self.touch(peer.index);
        Ok(())
    }

    /// Ends a connection at once: what is queued, on its way or unread is thrown away. No event tells of it.
    pub fn abort(&mut self, peer: Peer) {
        self.end(peer, AbortReason::ABORTED);
    }

    /// The same, because the endpoint is closed.
    pub fn leave(&mut self, peer: Peer) {
        self.end(peer, AbortReason::CLOSED);
    }

    fn end(&mut self, peer: Peer, reason: AbortReason) {
        if self.open(peer).is_ok() {
            self.tell_abort(peer.index, reason);
            self.remove(peer.index);
        }
    }

    fn tell_abort(&mut self, index: u32, reason: AbortReason) {
        if let State::Open(connection) = &self.entries[index as usize].state
            && connection.confirmed
        {
            let (to, remote) = (connection.agreed.to, connection.agreed.remote_id);
            self.answer(Answered::Proven, to, |datagram| Abort { to: remote, reason }.emit(datagram));
        }
    }

    /// Takes a connection out, with everything it holds.
    fn remove(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        if let State::Open(connection) = &mut entry.state {
            self.counters.messages_discarded += connection.receive.ready() as u64;
            connection.send.clear(&mut self.acknowledged);
            connection.receive.clear(&mut self.released);
            let remote = (connection.agreed.to, connection.agreed.remote_id);
            if self.by_remote.get(&remote) == Some(&index) {
                self.by_remote.remove(&remote);
            }
            if let Some(Linger { since, .. }) = connection.linger {
                self.lingering.remove(&(since, index));
            }
        }
        if let State::Connecting(connecting) = &entry.state {
            self.attempts.remove(&(connecting.to, entry.id));
        }
        entry.state = State::Vacant;
        entry.generation = entry.generation.wrapping_add(1);
        entry.id = 0;
        self.timers.clear(index);
        self.admission.left(index);
        self.vacant.push(index);
    }

    pub(super) fn lose(&mut self, index: u32, reason: LostReason) {
        let entry = &self.entries[index as usize];
        let peer = Peer { index, generation: entry.generation };
        let is_known = !matches!(&entry.state, State::Open(connection)
            if !connection.announced && !connection.is_joined);
        self.remove(index);
        if is_known {
            self.events.push_back(Event::Lost(peer, reason));
        }
    }

    /// A datagram that is free again: it was read, or not kept.
    #[inline]
    pub fn released(&mut self) -> Option<R> {
        self.released.pop()
    }

    /// A packet that is free again: the peer has it, or is gone.
    #[inline]
    pub fn acknowledged(&mut self) -> Option<S> {
        self.acknowledged.pop()
    }

    /// Says how many more datagrams the caller can hold: what is over a window's reserve goes to everybody, the reserve to one peer at
    /// a time, so that its message gets whole (docs/protocol.md §8).
    #[inline]
    pub fn set_free(&mut self, packets: usize) {
        self.admission.set_free(packets);
    }

    /// What happened, oldest first.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What is known of the way to a peer; `None` while it is not connected.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn statistics(&self, peer: Peer) -> Result<Option<PeerStats>, Gone> {
        Ok(self.open(peer)?.map(Connection::statistics))
    }

    /// Handles a datagram that came from `from`; `congested`: with ECN's CE mark (RFC 3168). What is not kept comes back by
    /// [`Endpoint::released`].
    #[inline]
    pub fn handle_datagram(&mut self, now: Time, from: SocketAddr, congested: bool, datagram: R) {
        if !self.takes_short_ways() {
            return self.handle_any(now, from, congested, datagram);
        }
        if let Err(datagram) = self.handle_next(now, from, congested, datagram) {
            self.handle_any(now, from, congested, datagram);
        }
    }

    /// Handles any datagram, the general way.
    fn handle_any(&mut self, now: Time, from: SocketAddr, congested: bool, datagram: R) {
        let parsed = Datagram::parse(datagram.as_ref());
        let returned = match parsed {
            Ok(Datagram::Data(header, _)) => self.handle_data(now, from, congested, header, datagram),
            Ok(Datagram::Ack(header, ranges)) => {
                if let Some(index) = self.look_up(from, &header)
                    && let State::Open(connection) = &mut self.entries[index as usize].state
                {
                    let (counters, free) = (&mut self.counters, &mut self.acknowledged);
                    connection.handle_acknowledgement(now, &header, ranges, counters, free);
                    connection.handle_question(now, &header);
                    if let Some(deadline) = connection.deadline_at_rest() {
                        self.timers.put_off(now, index, deadline);
                    }
                    self.after_packet(now, index);
                }
                Some(datagram)
            }
            _ => {
                self.handle_control(now, from, &parsed);
                Some(datagram)
            }
        };
        self.released.extend(returned);
    }

    /// Handles datagrams that came together, from one sender, in order: as [`Endpoint::handle_datagram`] each of them, and those cheaply
    /// that go on with a long message.
    #[inline]
    pub fn handle_run(
        &mut self,
        now: Time,
        from: SocketAddr,
        congested: bool,
        run: impl IntoIterator<Item = R>,
    ) {
        let mut run = run.into_iter();
        let mut next = run.next();
        while let Some(datagram) = next {
            let plain = wire::plain(datagram.as_ref()).copied();
            self.handle_datagram(now, from, congested, datagram);
            next = match plain {
                Some(header) => self.handle_followers(now, from, congested, &header, &mut run),
                None => run.next(),
            };
        }
    }

    /// Handles the datagrams that say nothing but what goes on behind one with this header, and returns the first that does.
    fn handle_followers(
        &mut self,
        now: Time,
        from: SocketAddr,
        congested: bool,
        header: &[u8; HEADER_BYTES],
        run: &mut impl Iterator<Item = R>,
    ) -> Option<R> {
        let Ok(Datagram::Data(parsed, _)) = Datagram::parse(header) else { return run.next() };
        let index = index_of(parsed.to);
        match self.entries.get_mut(index as usize).filter(|entry| entry.id == parsed.to) {
            Some(Entry { state: State::Open(connection), .. })
                if connection.agreed.to == from
                    && !connection.agreed.crc
                    && connection.is_old_news(&parsed) =>
            {
                let admit = |arrival| self.admission.admit(now, index, arrival);
                let other =
                    connection.handle_followers(now, header, congested, run, admit, &mut self.counters);
                let wants_to_send = connection.wants_to_send();
                self.urgent |= wants_to_send;
                self.touch_or_rest(now, index, wants_to_send);
                other
            }
            _ => run.next(),
        }
    }

    /// The connection that a header is for. Where there is none the sender is told.
    #[inline]
    fn look_up(&mut self, from: SocketAddr, header: &Header) -> Option<u32> {
        let index = index_of(header.to);
        match self.entries.get(index as usize).filter(|entry| entry.id == header.to) {
            Some(Entry { state: State::Open(connection), .. }) if connection.agreed.to == from => {
                let right = header.flags.contains(Flags::CRC) == connection.agreed.crc;
                self.counters.bad_crc += u64::from(!right);
                right.then_some(index)
            }
            Some(_) => {
                self.counters.unknown += 1;
                None
            }
            None => {
                self.counters.unknown += 1;
                let to = header.to;
                self.answer(Answered::Stray, from, |answer| Unknown { to }.emit(answer));
                None
            }
        }
    }

    /// Handles a packet, and gives it back if it is not kept.
    #[inline]
    fn handle_data(
        &mut self,
        now: Time,
        from: SocketAddr,
        congested: bool,
        header: Header,
        datagram: R,
    ) -> Option<R> {
        let index = match self.look_up(from, &header) {
            Some(index) => index,
            None => return Some(datagram),
        };
        let State::Open(connection) = &mut self.entries[index as usize].state else { return Some(datagram) };
        let (counters, free) = (&mut self.counters, &mut self.acknowledged);
        connection.handle_acknowledgement(now, &header, Ranges::default(), counters, free);
        let admit = |arrival| self.admission.admit(now, index, arrival);
        match connection.handle_data(now, &header, congested, datagram, admit, counters) {
            Ok(returned) => {
                // A packet without messages is not waited for by a reader.
                connection.receive.release(&mut self.released);
                let receive = &connection.receive;
                self.admission.came(index, receive.kept(), receive.ready() > 0, receive.is_unfinished());
                self.after_packet(now, index);
                if self.admission.is_short() {
                    self.end_stalled();
                }
                returned
            }
            Err(violation) => {
                self.tell_abort(index, AbortReason::VIOLATION);
                self.lose(index, LostReason::Violation(violation));
                None
            }
        }
    }

    /// Ends connections that keep parts of messages, do not go on with them, and so keep memory from others (docs/protocol.md §8.2).
    #[cold]
    fn end_stalled(&mut self) {
        for index in self.admission.overdue() {
            // Where there is something to read, it is the program that does not go on.
            if let State::Open(connection) = &self.entries[index as usize].state
                && connection.receive.ready() == 0
                && connection.receive.is_unfinished()
            {
                self.evict(index, AbortReason::STALLED, LostReason::Stalled);
            }
        }
    }

    /// Ends a connection since others need what it has.
    fn evict(&mut self, index: u32, abort: AbortReason, reason: LostReason) {
        self.counters.evicted += 1;
        self.tell_abort(index, abort);
        self.lose(index, reason);
    }

    /// What follows from a packet: messages to read, room, the end.
    #[inline]
    fn after_packet(&mut self, now: Time, index: u32) {
        let entry = &mut self.entries[index as usize];
        let State::Open(connection) = &mut entry.state else { return };
        let peer = Peer { index, generation: entry.generation };
        if !connection.announced {
            connection.announced = true;
            let to = connection.agreed.to;
            self.events.push_back(match connection.is_joined {
                true => Event::Connected(peer, to),
                false => Event::Accepted(peer, to),
            });
        }
        if connection.has_room_again() {
            self.events.push_back(Event::Writable(peer));
        }
        if connection.receive.ready() > 0 && !entry.is_readable {
            entry.is_readable = true;
            self.readable.push_back(index);
        }
        let wants_to_send = connection.wants_to_send();
        self.urgent |= wants_to_send;
        self.touch_or_rest(now, index, wants_to_send);
    }

    /// Looks whether one or both directions have ended.
    fn look_for_end(&mut self, index: u32, now: Time) {
        let entry = &mut self.entries[index as usize];
        let State::Open(connection) = &mut entry.state else { return };
        let peer = Peer { index, generation: entry.generation };
        if !connection.finish_told {
            connection.finish_told = true;
            self.events.push_back(Event::Finished(peer));
        }
        if let Some(reason) = connection.ended {
            self.remove(index);
            self.events.push_back(reason.map_or(Event::Closed(peer), |reason| Event::Lost(peer, reason)));
        } else if connection.is_over() && connection.linger.is_none() {
            connection.linger(now);
            self.lingering.insert((now, index));
            self.events.push_back(Event::Closed(peer));
        }
    }

    /// Handles the rest: what is no packet.
    #[cold]
    fn handle_control(&mut self, now: Time, from: SocketAddr, datagram: &Result<Datagram<'_>, Malformed>) {
        match datagram {
            Ok(Datagram::Hello(hello)) => self.handle_hello(now, from, hello),
            Ok(Datagram::Connect(connect)) => self.handle_connect(now, from, connect),
            Ok(Datagram::Cookie(cookie)) => self.handle_cookie(now, from, cookie),
            Ok(Datagram::Refused(refused)) => self.handle_refused(from, refused),
            Ok(Datagram::Accept(accept)) => self.handle_accept(now, from, accept),
            Ok(Datagram::Abort(abort)) => self.handle_abort(from, *abort),
            Ok(Datagram::Unknown(unknown)) => self.handle_unknown(from, *unknown),
            Err(Malformed::Checksum { .. }) => self.counters.bad_crc += 1,
            Ok(Datagram::Data(..) | Datagram::Ack(..)) | Err(_) => self.counters.malformed += 1,
        }
    }

    fn handle_abort(&mut self, from: SocketAddr, abort: Abort) {
        let reason = match abort.reason {
            AbortReason::FULL => LostReason::Full,
            AbortReason(code) => LostReason::Aborted { code },
        };
        if let Some(index) = self.named(abort.to, from) {
            self.end_by_peer(index, reason);
        }
    }

    /// The peer does not know the connection: only it can know the id that we call it by.
    fn handle_unknown(&mut self, from: SocketAddr, unknown: Unknown) {
        match self.by_remote.get(&(from, unknown.to)) {
            Some(&index) if self.is_over_but_for_the_end(index) => self.close(index),
            Some(&index) => self.end_by_peer(index, LostReason::Restarted),
            None => self.counters.unknown += 1,
        }
    }

    fn is_over_but_for_the_end(&self, index: u32) -> bool {
        matches!(&self.entries[index as usize].state, State::Open(connection)
            if connection.linger.is_none() && connection.receive.is_finished() && connection.has_said_all())
    }

    /// The peer has forgotten the connection since it was over: that it knows of our end got lost on its way, for as long as it lingered.
    fn close(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let peer = Peer { index, generation: entry.generation };
        if let State::Open(connection) = &mut entry.state
            && !std::mem::replace(&mut connection.finish_told, true)
        {
            self.events.push_back(Event::Finished(peer));
        }
        self.remove(index);
        self.events.push_back(Event::Closed(peer));
    }

    /// Ends a connection by the peer's word, unless both were through with it.
    fn end_by_peer(&mut self, index: u32, reason: LostReason) {
        match &mut self.entries[index as usize].state {
            State::Open(connection) if connection.linger.is_some() => self.remove(index),
            State::Open(connection) if connection.ended.is_some() => {}
            // The peer knows that all it said is here, so it may well go: that is read first.
            State::Open(connection) if connection.receive.is_whole_but_unread() => {
                connection.ended = Some((!connection.has_said_all()).then_some(reason));
                connection.send.clear(&mut self.acknowledged);
                self.touch(index);
            }
            _ => self.lose(index, reason),
        }
    }

    /// The connection that we call by an id, if its peer is at that address.
    fn named(&mut self, id: u64, from: SocketAddr) -> Option<u32> {
        let index = index_of(id);
        let entry = self.entries.get(index as usize).filter(|entry| entry.id == id);
        let to = match entry.map(|entry| &entry.state) {
            Some(State::Open(connection)) => Some(connection.agreed.to),
            Some(State::Connecting(connecting)) => Some(connecting.to),
            _ => None,
        };
        if to != Some(from) {
            self.counters.unknown += 1;
            return None;
        }
        Some(index)
    }

    /// Keeps a datagram for an address that is no peer's (yet, or any more), unless too many wait.
    pub(super) fn answer(&mut self, sort: Answered, to: SocketAddr, write: impl FnOnce(&mut Vec<u8>)) {
        self.counters.answers_dropped += u64::from(!self.answers.push(sort, to, write));
    }

    /// The state of a client's connection that is being set up.
    pub(super) fn connecting(&mut self, id: u64, from: SocketAddr) -> Option<(u32, &mut Connecting)> {
        let index = self.named(id, from)?;
        match &mut self.entries[index as usize].state {
            State::Connecting(connecting) => Some((index, connecting)),
            _ => None,
        }
    }

    /// A connection is there; `accepted`: the peer made it.
    pub(super) fn establish(&mut self, index: u32, connection: Connection<S, R>, accepted: bool) -> Peer {
        let to = connection.agreed.to;
        self.by_remote.insert((to, connection.agreed.remote_id), index);
        self.admission.joined(index, to.ip(), accepted);
        let entry = &mut self.entries[index as usize];
        self.attempts.remove(&(to, entry.id));
        entry.state = State::Open(Box::new(connection));
        let peer = Peer { index, generation: entry.generation };
        self.touch(index);
        peer
    }

    /// Of the connections that are being set up to an address, our name for one and its place: the one that has the greatest name, as the
    /// other end finds it, too.
    pub(super) fn attempt_to(&self, address: SocketAddr) -> Option<(u64, u32)> {
        let attempts = self.attempts.range((address, 0)..=(address, u64::MAX));
        attempts.last().map(|((_, id), index)| (*id, *index))
    }

    /// The connection that a client has made before with the same id, and our name for it.
    pub(super) fn accepted(
        &mut self,
        from: SocketAddr,
        client_id: u64,
    ) -> Option<(u64, &mut Connection<S, R>)> {
        let index = *self.by_remote.get(&(from, client_id))?;
        let entry = &mut self.entries[index as usize];
        match &mut entry.state {
            State::Open(connection) => Some((entry.id, connection)),
            _ => None,
        }
    }

    /// A place for a client, its id there, and the first sequence number. If there is none, an address that has more makes room
    /// (docs/protocol.md §8.3).
    pub(super) fn place_for_client(&mut self, from: SocketAddr) -> Option<(u32, u64, u32)> {
        if self.events.len() >= EVENTS_MAX {
            return None;
        }
        let index = self.vacancy().or_else(|| {
            let surplus = self.admission.shares.surplus(from.ip())?;
            self.evict(surplus, AbortReason::FULL, LostReason::Displaced);
            self.vacancy()
        })?;
        Some((index, self.entries[index as usize].id, self.ids.next() as u32))
    }

    /// Sees to it that a connection is asked for what it has to send, and its alarm set.
    #[inline]
    pub(super) fn touch(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        if !entry.is_sending {
            entry.is_sending = true;
            self.sending.push_back(index);
        }
    }

    /// After a packet came: sees to it that the connection is asked for what it has to send, or that its alarm is set if that is nothing.
    #[inline]
    pub(super) fn touch_or_rest(&mut self, now: Time, index: u32, wants_to_send: bool) {
        if wants_to_send {
            self.touch(index);
        } else if !self.entries[index as usize].is_sending {
            self.rest(index, now);
        }
    }

    /// When [`Endpoint::handle_timeout`] is due, if nothing happens before. Ask when [`Endpoint::poll_transmit`] has nothing more.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(index) = self.timers.pop(now) {
            let ended = match &mut self.entries[index as usize].state {
                State::Vacant => continue,
                State::Connecting(connecting) => connecting.handle_timeout(now).map(|()| true).map_err(Some),
                State::Open(connection) => {
                    connection.handle_timeout(now, &mut self.counters).map(|()| connection.wants_to_send())
                }
            };
            match ended {
                Ok(wants_to_send) => self.touch_or_rest(now, index, wants_to_send),
                Err(None) => self.remove(index),
                Err(Some(reason)) => {
                    self.tell_abort(index, AbortReason::SILENT);
                    self.end_by_peer(index, reason);
                }
            }
        }
    }

    /// Whether [`Endpoint::poll_transmit`] has anything to look at.
    #[inline]
    pub fn has_transmit(&self) -> bool {
        !self.sending.is_empty() || !self.answers.is_empty()
    }

    /// Whether a datagram came that asks for one in return, or lets more go: what [`Endpoint::poll_transmit`] gives should not wait for
    /// the reader of a message.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.urgent || !self.answers.is_empty()
    }

    /// Whether [`Endpoint::poll_transmit`] is likely to give something.
    #[inline]
    pub fn has_more(&self) -> bool {
        let is_one = self.sending.len() == 1 && self.answers.is_empty();
        let first = self.sending.front().map(|index| &self.entries[*index as usize].state);
        !matches!(first, Some(State::Open(connection)) if is_one && !connection.wants_to_send())
    }

    /// The next datagram to send; `None` when there is none now.
    #[inline]
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit<'_, S>> {
        let (index, step) = self.next_step(now)?;
        Some(match step {
            Step::Answer => {
                let (to, datagram) = self.answers.pop()?;
                self.control = datagram;
                Transmit::Control { to, datagram: &self.control }
            }
            Step::SetUp => {
                let State::Connecting(connecting) = &mut self.entries[index as usize].state else {
                    return None;
                };
                connecting.emit(now, &mut self.control);
                Transmit::Control { to: connecting.to, datagram: &self.control }
            }
            Step::Next(next) => {
                let entry = &mut self.entries[index as usize];
                let State::Open(connection) = &mut entry.state else { return None };
                let Agreed { to, crc, .. } = connection.agreed;
                match next {
                    connection::Next::Ack { header } => {
                        self.counters.acks_sent += 1;
                        connection.emit_ack(&header, &mut self.control);
                        Transmit::Control { to, datagram: &self.control }
                    }
                    connection::Next::Packet { sequence, header } => {
                        let (packet, again) = connection.send.send(sequence, now);
                        self.counters.packets_sent += u64::from(!again);
                        self.counters.packets_sent_again += u64::from(again);
                        let mut bytes = [0; HEADER_BYTES];
                        header.emit(&mut bytes);
                        let peer = Peer { index, generation: entry.generation };
                        Transmit::Packet { peer, to, packet, header: bytes, crc, again }
                    }
                }
            }
        })
    }

    /// Sends what goes on behind a packet of `peer` that [`Endpoint::poll_transmit`] has just given with this header, for as long as
    /// nothing is to be decided: gives each packet with its header, and everything else is as it was.
    #[inline]
    pub fn transmit_followers(
        &mut self,
        now: Time,
        peer: Peer,
        mut header: [u8; HEADER_BYTES],
        mut each: impl FnMut(&mut S, &[u8; HEADER_BYTES]),
    ) {
        let is_next = self.sending.front() == Some(&peer.index) && self.answers.is_empty();
        let entry = self.entries.get_mut(peer.index()).filter(|entry| entry.generation == peer.generation);
        let Some(Entry { state: State::Open(connection), .. }) = entry else { return };
        if !is_next || wire::plain(&header).is_none() {
            return;
        }
        let most = PACKETS_IN_A_ROW - 1 - self.in_a_row;
        let sent = connection.send_followers(now, most, |packet, sequence| {
            wire::renumber(&mut header, sequence::narrow(sequence));
            each(packet, &header);
        });
        self.in_a_row += sent;
        self.counters.packets_sent += u64::from(sent);
    }

    #[inline]
    fn next_step(&mut self, now: Time) -> Option<(u32, Step)> {
        if !self.answers.is_empty() {
            return Some((0, Step::Answer));
        }
        loop {
            let Some(&index) = self.sending.front() else {
                self.urgent = false;
                return None;
            };
            let step = match &mut self.entries[index as usize].state {
                State::Vacant => None,
                State::Connecting(connecting) => connecting.is_due(now).then_some(Step::SetUp),
                State::Open(connection) => connection.next(now).map(Step::Next),
            };
            let Some(step) = step else {
                self.sending.pop_front();
                self.in_a_row = 0;
                self.rest(index, now);
                continue;
            };
            self.in_a_row += 1;
            if self.in_a_row >= PACKETS_IN_A_ROW {
                self.in_a_row = 0;
                self.sending.rotate_left(1);
            }
            return Some((index, step));
        }
    }

    /// A connection has nothing to send for now.
    #[inline]
    pub(super) fn rest(&mut self, index: u32, now: Time) {
        let entry = &mut self.entries[index as usize];
        entry.is_sending = false;
        let deadline = match &entry.state {
            State::Open(connection) if !connection.receive.is_finished() => {
                let alarm = self.timers.of(index);
                if alarm.is_some_and(|alarm| connection.is_early_enough(alarm)) {
                    return;
                }
                connection.deadline_at_rest().or_else(|| connection.deadline(now))
            }
            State::Open(_) => return self.rest_at_end(index, now),
            State::Connecting(connecting) => Some(connecting.deadline()),
            State::Vacant => None,
        };
        if let Some(deadline) = deadline {
            self.timers.set(now, index, deadline);
        }
    }

    /// The same, where everything was read that will ever come.
    #[cold]
    fn rest_at_end(&mut self, index: u32, now: Time) {
        self.look_for_end(index, now);
        if let State::Open(connection) = &self.entries[index as usize].state
            && let Some(deadline) = connection.deadline(now)
        {
            self.timers.set(now, index, deadline);
        }
    }

    /// The next message that is complete: those of a peer in order, peers in turn.
    #[inline]
    pub fn receive(&mut self) -> Option<Message<'_, S, R>> {
        let (peer, complete) = self.next_complete()?;
        Some(Message::new(self, peer, complete))
    }

    /// Whose message [`Endpoint::receive`] would give, and what it is.
    #[inline]
    pub fn next_message(&mut self) -> Option<(Peer, Kind)> {
        self.next_complete().map(|(peer, complete)| (peer, complete.kind))
    }

    /// What [`Endpoint::receive`] would give.
    #[inline]
    pub fn peek(&mut self) -> Option<Next> {
        self.next_complete().map(|(peer, complete)| Next { peer, complete })
    }

    /// The message that [`peek`](Self::peek) has just found.
    #[inline]
    pub fn receive_next(&mut self, next: Next) -> Message<'_, S, R> {
        Message::new(self, next.peer, next.complete)
    }

    /// Whether there is a message that is complete.
    #[inline]
    pub fn has_message(&mut self) -> bool {
        while let Some(index) = self.readable.front() {
            let entry = &mut self.entries[*index as usize];
            if matches!(&entry.state, State::Open(connection) if connection.receive.ready() > 0) {
                return true;
            }
            entry.is_readable = false;
            self.readable.pop_front();
        }
        false
    }

    #[inline(always)] // for each message
    fn next_complete(&mut self) -> Option<(Peer, Complete)> {
        loop {
            let index = *self.readable.front()?;
            let entry = &mut self.entries[index as usize];
            let complete = match &entry.state {
                State::Open(connection) => connection.receive.next_message(),
                _ => None,
            };
            match complete {
                Some(complete) => return Some((Peer { index, generation: entry.generation }, complete)),
                None => {
                    entry.is_readable = false;
                    self.readable.pop_front();
                }
            }
        }
    }

    /// Reads the next messages, as far as they are whole and lie in one packet, and returns how many those are: none if the next one lies in
    /// several.
    #[inline]
    pub fn receive_whole(&mut self, mut each: impl FnMut(Peer, Kind, &[u8])) -> usize {
        let Some(&index) = self.readable.front() else { return 0 };
        let Entry { generation, state: State::Open(connection), .. } = &mut self.entries[index as usize]
        else {
            return 0;
        };
        let peer = Peer { index, generation: *generation };
        let (messages, bytes) =
            connection.receive.read_whole(&mut self.released, |kind, bytes| each(peer, kind, bytes));
        if messages > 0 {
            self.counters.messages_received += messages as u64;
            self.counters.message_bytes_received += bytes as u64;
            self.after_reading(index);
        }
        messages
    }

    /// What follows from messages that were read of the first peer that has some; the others have their turn.
    #[inline(always)] // for each message
    fn after_reading(&mut self, index: u32) {
        let State::Open(connection) = &mut self.entries[index as usize].state else { return };
        connection.consumed();
        let receive = &connection.receive;
        self.admission.read(index, receive.kept(), receive.is_unfinished());
        if connection.wants_attention() {
            self.touch(index);
        }
        if self.readable.len() > 1 {
            self.readable.rotate_left(1);
        }
    }

    /// Has all datagrams go the general way from here on: what the short ways are compared with.
    #[cfg(any(test, feature = "simulation"))]
    #[doc(hidden)]
    pub fn go_the_general_way(&mut self) {
        self.is_general = true;
    }

    /// Whether the common case goes its own, short way: always, but where tests compare.
    #[inline]
    pub(super) fn takes_short_ways(&self) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        return !self.is_general;
        #[cfg(not(any(test, feature = "simulation")))]
        true
    }

    /// Entries that memory is taken for, in everything that peers can make longer: what a simulation holds against a bound.
    #[cfg(any(test, feature = "simulation"))]
    #[doc(hidden)]
    pub fn capacity(&self) -> usize {
        let windows = self.entries.iter().map(|entry| match &entry.state {
            State::Open(connection) => connection.receive.capacity() + connection.send.capacity(),
            State::Vacant | State::Connecting(_) => 0,
        });
        let tables = self.entries.capacity() + self.vacant.capacity() + self.by_remote.capacity();
        let queues = self.sending.capacity() + self.readable.capacity() + self.events.capacity();
        let returned = self.answers.capacity() + self.released.capacity() + self.acknowledged.capacity();
        tables + queues + returned + self.admission.capacity() + windows.sum::<usize>()
    }

    /// All peers there are, connected or not yet.
    pub fn all_peers(&self) -> impl Iterator<Item = Peer> {
        let there = (0..).zip(&self.entries).filter(|(_, entry)| !matches!(entry.state, State::Vacant));
        there.map(|(index, entry)| Peer { index, generation: entry.generation })
    }

    /// The connection of a message that is being read.
    #[inline]
    pub(super) fn reading(&self, peer: Peer) -> Option<&Connection<S, R>> {
        self.open(peer).ok().flatten()
    }

    #[inline]
    pub(super) fn reading_mut(&mut self, peer: Peer) -> Option<&mut Connection<S, R>> {
        self.open_mut(peer).ok().flatten()
    }

    /// Goes behind a message of the first peer that has some; the others have their turn.
    #[inline(never)] // the end of a message is nothing but a call, which most of those received together do not make
    pub(super) fn consume(&mut self, peer: Peer, message: &Complete) {
        let index = peer.index;
        let State::Open(connection) = &mut self.entries[index as usize].state else { return };
        self.counters.messages_received += 1;
        self.counters.message_bytes_received += u64::from(message.bytes);
        if connection.receive.consume_part(message) {
            let receive = &connection.receive;
            self.admission.read_part(index, receive.kept(), receive.is_unfinished());
            if self.readable.len() > 1 {
                self.readable.rotate_left(1);
            }
        } else {
            connection.receive.consume(message, &mut self.released);
            self.after_reading(index);
        }
    }
}
