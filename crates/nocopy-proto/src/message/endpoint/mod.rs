//! All connections of one endpoint: finds the connection of a datagram, and the next one to send, to read, or
//! to time out.

mod beside;
mod common_case;
mod datagrams;
mod endings;
mod handshake;
mod messages;
mod queue;
mod received;
mod transmission;
mod units;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hasher;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;

use siphasher::sip::SipHasher24;

pub use self::beside::BesideError;
use self::beside::{Beside, Events};
pub use self::common_case::Fresh;
use self::handshake::Connecting;
pub use self::messages::Next;
pub use self::queue::{Outlook, Places};
pub use self::received::{Message, Piece};
pub use self::transmission::Transmit;
pub use self::units::Arriving;
use super::admission::Admission;
use super::alarms::Alarms;
use super::answers::{Answered, Answers};
use super::connection::Connection;
use super::cookie::Cookies;
use super::shortage::Shortage;
use super::wire::{AbortReason, DATAGRAM_BYTES_MIN};
use super::{
    ConnectError, Counters, Event, Gone, Local, LostReason, MESSAGE_BYTES_MAX, Path, Peer, PeerStats,
    Settings, Time,
};

/// The largest window: the ranges of an acknowledgement must be able to cover it.
const WINDOW_PACKETS_MAX: usize = 1 << 16;
/// The shortest keep-alive interval that makes sense.
const KEEP_ALIVE_MIN: Duration = Duration::from_millis(10);
/// The longest payload of UDP over IPv4.
const DATAGRAM_BYTES_MAX: u16 = 65_507;
/// The lower bits of an id, which hold the connection's index. The upper bits are random.
const INDEX_BITS: u32 = 20;
/// How many packets of one connection are sent in a row while others wait to send.
const PACKETS_IN_A_ROW: u32 = 64;
/// With this many unread events no peers are accepted any more.
const EVENTS_MAX: usize = 1 << 16;

/// One end of any number of connections; see the [module](super).
///
/// `S` is a packet to send as the caller keeps it, `R` a datagram that was received.
#[derive(Debug)]
pub struct Endpoint<S, R> {
    settings: Settings,
    cookies: Cookies,
    ids: Ids,
    entries: Vec<Entry<S, R>>,
    vacant: Vec<u32>,
    /// Closed connections that still answer, by the time when they closed.
    lingering: BTreeSet<(Time, u32)>,
    /// All connections, by the peer's address and the peer's id for them.
    by_remote: HashMap<(SocketAddr, u64), u32>,
    /// Connections that this end is setting up, by the peer's address and this end's id.
    attempts: BTreeMap<(SocketAddr, u64), u32>,
    /// Connections that may have something to send.
    sending: VecDeque<u32>,
    /// Packets sent in a row for the first connection of `sending`.
    in_a_row: u32,
    /// A datagram has arrived since that needs an answer at once.
    urgent: bool,
    /// The address of this host to which the datagrams went that are being handled.
    asked: Option<Local>,
    /// Connections with messages to be read.
    readable: VecDeque<u32>,
    timers: Alarms,
    /// Connections for puts on which puts or their answers wait to be handled.
    readable_beside: VecDeque<u32>,
    /// Memory was registered for a peer at some time.
    takes_puts: bool,
    events: Events,
    answers: Answers,
    /// Peers that have asked for a stream.
    asking: Vec<Peer>,
    pub(super) released: Vec<R>,
    acknowledged: Vec<S>,
    admission: Admission,
    /// Time in which there was no memory for packets to send.
    no_packets: Shortage,
    control: Vec<u8>,
    counters: Counters,
    /// All datagrams are handled the general way, to be compared with the short ways.
    #[cfg(any(test, feature = "simulation"))]
    is_general: bool,
}

#[derive(Debug)]
struct Entry<S, R> {
    generation: u32,
    /// This end's id for the connection: the index, and a random number.
    id: u64,
    state: State<S, R>,
    is_sending: bool,
    is_readable: bool,
    /// For a connection for puts: the connection to which it belongs.
    beside: Option<Beside>,
    /// Its connections for puts: the one that this end made, and the one that the peer made.
    companions: [Option<u32>; 2],
    /// Memory was registered for the peer.
    takes_puts: bool,
}

#[derive(Debug)]
enum State<S, R> {
    Vacant,
    Connecting(Box<Connecting>),
    Open(Box<Connection<S, R>>),
}

/// Random numbers that cannot be guessed.
#[derive(Debug)]
struct Ids {
    secret: [u8; 16],
    count: u64,
}

impl Ids {
    fn next(&mut self) -> u64 {
        self.count += 1;
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write_u64(self.count);
        hasher.finish()
    }

    /// The random key that belongs to a connection id.
    fn key_of(&self, id: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write_u64(id);
        hasher.write_u8(1); // none of the above is as long
        hasher.finish()
    }
}

#[inline]
fn index_of(id: u64) -> u32 {
    id as u32 & ((1 << INDEX_BITS) - 1)
}

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    /// An endpoint without peers. `seed` must be random and secret: cookies, ids and first sequence numbers
    /// are derived from it. Settings beyond the limits of docs/protocol.md §14 are reduced to these.
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
            asked: None,
            readable: VecDeque::new(),
            timers: Alarms::default(),
            readable_beside: VecDeque::new(),
            takes_puts: false,
            events: Events::default(),
            answers: Answers::default(),
            asking: Vec::new(),
            released: Vec::new(),
            acknowledged: Vec::new(),
            no_packets: Shortage::default(),
            control: Vec::new(),
            counters: Counters::default(),
            #[cfg(any(test, feature = "simulation"))]
            is_general: false,
        }
    }

    /// Begins to connect; [`Event::Connected`] or [`Event::Lost`] reports the result.
    ///
    /// # Errors
    /// There are too many peers already.
    pub fn connect(&mut self, now: Time, to: SocketAddr) -> Result<Peer, ConnectError> {
        let peers_max = self.settings.peers_max;
        let index = self.vacancy().ok_or(ConnectError::TooManyPeers { peers_max })?;
        let first_sequence = self.ids.next() as u32;
        let id = self.entries[index as usize].id;
        let names = (id, self.stream_key(id));
        let entry = &mut self.entries[index as usize];
        let connecting = Connecting::new(to.into(), names, first_sequence, &self.settings, now);
        entry.state = State::Connecting(connecting.into());
        let peer = Peer { index, generation: entry.generation };
        self.attempts.insert((to, entry.id), index);
        self.touch(index);
        Ok(peer)
    }

    /// The key with which a stream to this end must begin for the connection with this id, if streams are
    /// allowed.
    fn stream_key(&self, id: u64) -> Option<NonZeroU64> {
        let offers = self.settings.streams && !self.settings.crc;
        if offers { NonZeroU64::new(self.ids.key_of(id)) } else { None }
    }

    /// A free index for one more connection, with a new id. If there is none, the connection that has been
    /// closed for longest is removed.
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
                    beside: None,
                    companions: [None; 2],
                    takes_puts: false,
                });
                (self.entries.len() - 1) as u32
            }
            None => {
                let &(_, over) = self.lingering.first()?;
                self.remove(over);
                self.vacant.pop()?
            }
        };
        let entry = &mut self.entries[index as usize];
        entry.id = self.ids.next() << INDEX_BITS | u64::from(index);
        (entry.beside, entry.takes_puts) = (None, false);
        if std::mem::take(&mut entry.is_readable) {
            // The connection that had this index before was in a list; the new one may belong in the other.
            self.readable.retain(|other| *other != index);
            self.readable_beside.retain(|other| *other != index);
        }
        Some(index)
    }

    /// Sets the address of this host to which the datagrams went that are handled from now on, if it has
    /// several and they can be told apart. Answers to them go from there, and so does everything on the
    /// connections that they set up. Initially, and with `None`, the caller is left to choose the address.
    #[inline]
    pub fn set_asked(&mut self, local: Option<Local>) {
        self.asked = local;
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

    /// How many packets [`acknowledged`](Self::acknowledged) would return.
    pub fn acknowledged_count(&self) -> usize {
        self.acknowledged.len()
    }

    /// Sets how many more datagrams the caller can hold. All peers share the memory beyond a window's
    /// reserve; one peer at a time has the reserve, so that its message becomes complete (docs/protocol.md
    /// §8).
    #[inline]
    pub fn set_free(&mut self, packets: usize) {
        self.admission.set_free(packets);
    }

    /// What happened, oldest first.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.of_program.pop_front()
    }

    /// Removes and returns the oldest event that is wanted, before those that are older.
    pub fn take_event(&mut self, is_wanted: impl FnMut(&Event) -> bool) -> Option<Event> {
        let place = self.events.of_program.iter().position(is_wanted)?;
        self.events.of_program.remove(place)
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The state of the path to a peer; `None` while it is not connected.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn statistics(&self, peer: Peer) -> Result<Option<PeerStats>, Gone> {
        Ok(self.open(peer)?.map(Connection::statistics))
    }

    /// The connection with this id of ours, if its peer is at that address.
    fn named(&mut self, id: u64, from: SocketAddr) -> Option<u32> {
        let index = index_of(id);
        let entry = self.entries.get(index as usize).filter(|entry| entry.id == id);
        let to = match entry.map(|entry| &entry.state) {
            Some(State::Open(connection)) => Some(connection.agreed.path.remote),
            Some(State::Connecting(connecting)) => Some(connecting.path.remote),
            _ => None,
        };
        if to != Some(from) {
            self.counters.unknown += 1;
            return None;
        }
        Some(index)
    }

    /// The way back for a datagram that is being handled.
    fn path_of(&self, from: SocketAddr) -> Path {
        Path { remote: from, local: self.asked }
    }

    /// Queues the answer to a datagram that is being handled, as [`answer`](Self::answer) does.
    fn reply(&mut self, sort: Answered, from: SocketAddr, write: impl FnOnce(&mut Vec<u8>)) {
        self.answer(sort, self.path_of(from), write);
    }

    /// Queues a datagram to an address that is no peer's (yet, or any more), unless too many wait.
    fn answer(&mut self, sort: Answered, to: Path, write: impl FnOnce(&mut Vec<u8>)) {
        self.counters.answers_dropped += u64::from(!self.answers.push(sort, to, write));
    }

    /// The state of a connection with this id that this end is setting up.
    fn connecting(&mut self, id: u64, from: SocketAddr) -> Option<(u32, &mut Connecting)> {
        let index = self.named(id, from)?;
        match &mut self.entries[index as usize].state {
            State::Connecting(connecting) => Some((index, connecting)),
            _ => None,
        }
    }

    /// Adds an established connection; `accepted`: the peer made it.
    fn establish(&mut self, index: u32, connection: Connection<S, R>, accepted: bool) -> Peer {
        let to = connection.agreed.path.remote;
        self.by_remote.insert((to, connection.agreed.remote_id), index);
        self.admission.joined(index, to.ip(), accepted);
        let entry = &mut self.entries[index as usize];
        self.attempts.remove(&(to, entry.id));
        entry.state = State::Open(Box::new(connection));
        let peer = Peer { index, generation: entry.generation };
        self.touch(index);
        peer
    }

    /// The id and index of the connection that this end is setting up to an address; of several the one with
    /// the greatest id, which the other end chooses as well.
    fn attempt_to(&self, address: SocketAddr) -> Option<(u64, u32)> {
        let attempts = self.attempts.range((address, 0)..=(address, u64::MAX));
        attempts.last().map(|((_, id), index)| (*id, *index))
    }

    /// The connection that this client has already made with the same id, and this end's id for it.
    fn accepted(&mut self, from: SocketAddr, client_id: u64) -> Option<(u64, &mut Connection<S, R>)> {
        let index = *self.by_remote.get(&(from, client_id))?;
        let entry = &mut self.entries[index as usize];
        match &mut entry.state {
            State::Open(connection) => Some((entry.id, connection)),
            _ => None,
        }
    }

    /// The index, id and first sequence number for a client. If no place is free, an address with more
    /// connections loses one (docs/protocol.md §8.3).
    fn place_for_client(&mut self, from: SocketAddr) -> Option<(u32, u64, u32)> {
        if self.events.of_program.len() >= EVENTS_MAX {
            return None;
        }
        let index = self.vacancy().or_else(|| {
            let surplus = self.admission.shares.surplus(from.ip())?;
            self.evict(surplus, AbortReason::FULL, LostReason::Displaced);
            self.vacancy()
        })?;
        Some((index, self.entries[index as usize].id, self.ids.next() as u32))
    }

    /// Makes the endpoint handle all datagrams the general way from now on, to compare the short ways with
    /// it.
    #[cfg(any(test, feature = "simulation"))]
    #[doc(hidden)]
    pub fn go_the_general_way(&mut self) {
        self.is_general = true;
    }

    /// Whether the common case is handled the short way: always, except where tests compare.
    #[inline]
    fn takes_short_ways(&self) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        return !self.is_general;
        #[cfg(not(any(test, feature = "simulation")))]
        true
    }

    /// The allocated entries of everything that peers can make grow, which a simulation compares with a
    /// bound.
    #[cfg(any(test, feature = "simulation"))]
    #[doc(hidden)]
    pub fn capacity(&self) -> usize {
        let windows = self.entries.iter().map(|entry| match &entry.state {
            State::Open(connection) => connection.receive.capacity() + connection.send.capacity(),
            State::Vacant | State::Connecting(_) => 0,
        });
        let tables = self.entries.capacity() + self.vacant.capacity() + self.by_remote.capacity();
        let readable = self.readable.capacity() + self.readable_beside.capacity();
        let queues = self.sending.capacity() + readable + self.events.capacity();
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
    fn reading(&self, peer: Peer) -> Option<&Connection<S, R>> {
        self.open(peer).ok().flatten()
    }

    #[inline]
    fn reading_mut(&mut self, peer: Peer) -> Option<&mut Connection<S, R>> {
        self.open_mut(peer).ok().flatten()
    }
}
