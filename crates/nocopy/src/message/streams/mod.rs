//! Streams beside the datagrams of an endpoint (docs/protocol.md §16): TCP connections for long messages and
//! for many at a time.
//!
//! `opening` makes them, `places` limits them, `reading` reads them, `placed` into buffers of the program's,
//! `progress` finds those that hold memory and do not go on, `outgoing` keeps what goes by them, `choice`
//! says what does.

mod choice;
mod figures;
mod memory;
#[cfg(any(feature = "fuzzing", test))]
pub(crate) mod model;
mod opening;
mod outgoing;
mod placed;
mod places;
mod progress;
mod reading;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nocopy_proto::message::{self as protocol, Kind, Peer, PeerStats, Time};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::HEADER_BYTES;
use super::arrivals::{Lone, Moment};
use super::carrier::{self, Alone, CARRIER, Packet, Polled, Received};
use super::placing::{Posted, Registered};
use super::sent_shares::Free;
use crate::counter::counters;
use crate::facts::evidence::Ledger;
use crate::memory::pieces::Buffers;
use crate::memory::pool::Pool;
use crate::sys::poll::Wakeup;
use crate::tcp::{OpenError, ReceiveMethod, Stream};
pub(super) use choice::LONG_BYTES;
use choice::{By, PACKET_BYTES, Way, Ways};
use memory::Memory;
pub(super) use memory::Part;
use opening::{Attached, Openings};
pub(super) use outgoing::Limits;
use outgoing::{OpenUnit, Outgoing};
use places::Places;
use progress::Progress;
use reading::{Counts, Look, Reading};

type Protocol = protocol::Endpoint<Packet, Received>;

/// The initial room of a unit.
const OPEN_BYTES: usize = 68 << 10;
/// The event data of descriptors other than streams.
const OTHERS: u64 = u64::MAX;
/// The most streams that are read at a time.
const EVENTS_MAX: usize = 32;
/// After this many looks at the last active stream alone, all descriptors are polled.
const LOOKS_ALONE: u32 = 16;
/// After this many looks, or this time, of which none is at streams because there are none, all descriptors
/// are polled, too.
const LOOKS_AT_REST: u32 = 256;
const REST_MAX: Duration = Duration::from_millis(10);
/// After this many looks without a sleep the last active stream is not watched any more.
const LOOKS_AWAKE: u32 = 256;
/// While only units arrive, the carrier is looked at once in this many looks.
const LOOKS_A_DATAGRAM: u32 = 8;
/// That is so after this many looks in a row that found units and no datagrams.
const STREAK: u32 = 4;
/// A look at a stream ends after so many bytes: they are in the cache when the program reads them, and
/// datagrams have their turn. While messages go by datagrams, too, a stream sends at most as many.
const TURN_BYTES: usize = 128 << 10;
/// Streams take such turns for this many looks after a message that went by a datagram.
const TURNS: u32 = 256;
/// Streams take at most one of this many descriptors that the process may have.
const DESCRIPTORS_A_STREAM: usize = 4;
/// The longest interval between two checks of streams that are being opened, wait for memory, or stall.
const CARE_INTERVAL: Duration = Duration::from_millis(1);
/// The same for streams that were cut.
const CUT_INTERVAL: Duration = Duration::from_millis(100);
/// The same for streams that read a unit into a posted buffer.
const PLACED_INTERVAL: Duration = Duration::from_millis(500);
/// The longest time between two such checks that counts.
const ATTENDED_MAX: Duration = Duration::from_secs(1);
/// The most message bytes copied into units that are not acknowledged.
const GATHERED_BYTES_MAX: usize = 64 << 20;
/// The most bytes of owned messages in such units.
const OWNED_BYTES_MAX: usize = 256 << 20;

counters! {
    /// Counters of streams.
    pub(super) struct StreamCounters {
        /// Streams that were attached to a connection.
        streams_attached,
        /// Streams that were cut.
        streams_cut,
        /// Streams that were closed because they named no connection in time, or because too many were
        /// waiting.
        streams_refused,
        /// Units that were skipped because they had arrived by an earlier stream.
        units_passed,
        /// How often reading of a stream paused because there was no memory for its next unit.
        units_without_memory,
    }
}

/// All streams of an endpoint.
#[derive(Debug)]
pub(super) struct Streams {
    /// Watches all streams, and the carrier once the endpoint has slept with streams that [cannot be
    /// polled](Self::can_be_polled).
    poll: OwnedFd,
    watches_carrier: bool,
    places: Places,
    /// For how long there was no memory for some unit.
    lacked: Time,
    openings: Openings,
    memory: Memory,
    /// By stream number.
    all: Vec<Option<Beside>>,
    /// By peer: the stream for sending, and the state of the choice.
    ways: Vec<Way>,
    /// The measured comparison of the ways.
    choices: Ways,
    outgoing: Outgoing,
    /// Peers that have an open unit.
    open: Vec<Peer>,
    /// Streams with new data since the last flush.
    to_flush: Vec<u32>,
    /// Peers whose stream was cut: until that is reported, and while their units wait for another one.
    cut: Vec<Peer>,
    /// Counts batches: messages that are handed over together.
    batch: u32,
    /// A message of this batch found no room.
    is_refused: bool,
    looks: u32,
    /// Events that ended the last wait and are not handled yet.
    woken: Vec<(u64, epoll::EventFlags)>,
    /// Looks that found units, since the last datagram.
    streak: u32,
    /// Looks in which nothing need be done here, and when those end in any case.
    rest: u32,
    rest_until: Time,
    /// Looks that are left in which streams take turns with datagrams.
    turns: u32,
    /// The one stream by which something came last, or the only one.
    alone: Option<u32>,
    /// A stream that is read at each look and not watched, which would cost each packet that comes. Before
    /// the endpoint's descriptor is waited on, it is watched again.
    unwatched: Option<u32>,
    /// Looks since all were watched.
    awake: u32,
    /// Streams that wait for room in the kernel.
    stuck: u32,
    /// For how long streams were attended to: a pause of the program counts as little.
    attended: Time,
    /// Streams that wait for memory, and that read a unit into a posted buffer.
    waiting: u32,
    placed: u32,
    cared: Option<Instant>,
    counters: StreamCounters,
    /// What streams have received, also those that have ended.
    received: Counts,
    /// What streams that have ended sent.
    past_sent: Ledger,
}

/// A stream that is attached.
#[derive(Debug)]
struct Beside {
    peer: Peer,
    /// Its address.
    from: IpAddr,
    stream: Stream,
    reading: Reading,
    /// The events polled for: also room to send, or nothing while there is no memory.
    asks: epoll::EventFlags,
    progress: Progress,
    /// The same in a posted buffer, in the time that the streams were attended to.
    placing: Progress,
}

impl Streams {
    /// Listens for streams of an endpoint that is bound to `local`.
    /// Errors: the address is in use for TCP, or a resource is missing.
    pub(super) fn new(local: SocketAddr, message_bytes_max: usize) -> io::Result<Self> {
        // Neither half allocates buffers of its own: units are sent from where they lie, and read into memory
        // of the endpoint.
        let few = Pool::new(1, 4096)?;
        let builder = Stream::builder()
            .send_pool(&few)
            .receive_pool(&few)
            .receive_method(ReceiveMethod::Recv { bytes: 4096 });
        let listener = builder.clone().listen(local).map_err(|error| match error {
            OpenError::Bind { source, .. } => source,
            other => io::Error::other(other),
        })?;
        listener.set_nonblocking(true)?;
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) as usize;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        add(&poll, &listener, OTHERS, epoll::EventFlags::IN)?;
        Ok(Self {
            poll,
            watches_carrier: false,
            openings: Openings::new(listener, builder, local),
            memory: Memory::new(message_bytes_max)?,
            places: Places::new(descriptors / DESCRIPTORS_A_STREAM),
            lacked: Time::default(),
            all: Vec::new(),
            ways: Vec::new(),
            choices: Ways::new(),
            outgoing: Outgoing::default(),
            open: Vec::new(),
            to_flush: Vec::new(),
            cut: Vec::new(),
            batch: 0,
            is_refused: false,
            looks: 0,
            woken: Vec::with_capacity(EVENTS_MAX),
            streak: 0,
            rest: 0,
            rest_until: Time::from_ns(0),
            turns: 0,
            alone: None,
            unwatched: None,
            awake: 0,
            stuck: 0,
            attended: Time::default(),
            waiting: 0,
            placed: 0,
            cared: None,
            counters: StreamCounters::default(),
            received: Counts::default(),
            past_sent: Ledger::default(),
        })
    }

    /// The state of an existing peer; it replaces the state of an earlier peer with the same index.
    fn way(&mut self, peer: Peer) -> &mut Way {
        if self.ways.len() <= peer.index() {
            self.ways.resize_with((peer.index() + 1).next_power_of_two(), Way::default);
        }
        let way = &mut self.ways[peer.index()];
        if way.peer != Some(peer) {
            *way = Way::of(peer);
        }
        way
    }

    /// The state of a peer; `None` if it has none, or if another peer has its index now.
    #[inline]
    fn known_way(&mut self, peer: Peer) -> Option<&mut Way> {
        self.ways.get_mut(peer.index()).filter(|way| way.peer == Some(peer))
    }

    // ---- what is sent -------------------------------------------------------------------------------------

    /// Whether a message of this length goes to a peer by its stream; opens a stream if that would be better.
    #[inline]
    pub(super) fn takes(&mut self, peer: Peer, bytes: usize, protocol: &mut Protocol) -> bool {
        if !protocol.has_peer(peer) {
            return false;
        }
        let batch = self.batch;
        if !self.way(peer).may_take_stream(bytes, batch) {
            return false;
        }
        if !protocol.has_stream(peer) {
            self.begin_to_open(peer, protocol);
            return false;
        }
        self.way(peer).by() != By::Datagrams
    }

    /// Whether a message of so many bytes, the first of its batch to a peer, may be one for the stream.
    #[inline]
    pub(super) fn may_take(&self, peer: Peer, bytes: usize) -> bool {
        let way = self.ways.get(peer.index()).filter(|way| way.peer == Some(peer));
        bytes >= LONG_BYTES || way.is_some_and(Way::is_busy)
    }

    /// Whether no unit is being filled, and nothing waits to be flushed.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.to_flush.is_empty()
    }

    /// A message of so many bytes that was not copied into a unit was taken, by either way.
    #[inline]
    pub(super) fn count(&mut self, peer: Peer, bytes: usize, is_published: bool) {
        if bytes >= LONG_BYTES {
            let (way, choices) = self.way_and_choices(peer);
            way.note_published(is_published);
            way.count(bytes, bytes, choices);
        } else if bytes >= PACKET_BYTES {
            let batch = self.batch;
            let (way, choices) = self.way_and_choices(peer);
            way.note_packets(bytes, batch, choices);
        }
    }

    /// Whether a message of so many bytes surely goes by a datagram; notes that a packet is full, if there is
    /// one.
    #[inline]
    pub(super) fn passes_by(&mut self, peer: Peer, bytes: usize, has_open: bool) -> bool {
        let batch = self.batch;
        self.way(peer).passes_by(bytes, has_open, batch)
    }

    /// Notes that a packet to a peer is full, with so many bytes, and another one is begun before the flush;
    /// returns whether more messages are to go by the stream.
    pub(super) fn note_full_packet(&mut self, peer: Peer, bytes: usize, protocol: &mut Protocol) -> bool {
        let batch = self.batch;
        let (way, choices) = self.way_and_choices(peer);
        if !way.note_full_packet(bytes, batch, choices) {
            return false;
        }
        let is_by_stream = way.by() != By::Datagrams;
        if !protocol.has_stream(peer) {
            self.begin_to_open(peer, protocol);
            return false;
        }
        is_by_stream
    }

    /// Notes that there was no room for a message.
    #[cold]
    pub(super) fn note_full(&mut self, peer: Peer) {
        self.is_refused = true;
        if let Some(way) = self.known_way(peer) {
            way.note_full();
        }
    }

    fn way_and_choices(&mut self, peer: Peer) -> (&mut Way, &mut Ways) {
        self.way(peer);
        (&mut self.ways[peer.index()], &mut self.choices)
    }

    /// Opens the streams for which peers have asked, in place of those that they have lost.
    #[inline]
    pub(super) fn open_asked(&mut self, protocol: &mut Protocol) {
        while let Some(peer) = protocol.next_asking() {
            self.open_again(peer, protocol);
        }
    }

    #[cold]
    fn open_again(&mut self, peer: Peer, protocol: &mut Protocol) {
        if self.openings.tried_lately(peer, Instant::now()) {
            return; // it was asked for before it was opened
        }
        if let Some(lost) = self.stream_of(peer) {
            self.lose(lost);
        }
        self.begin_to_open(peer, protocol);
    }

    /// The stream beside a connection.
    fn stream_of(&self, peer: Peer) -> Option<u32> {
        let is_its = |beside: &Option<Beside>| beside.as_ref().is_some_and(|beside| beside.peer == peer);
        self.all.iter().position(is_its).map(|stream| stream as u32)
    }

    /// Opens a stream, or asks the peer for one.
    #[cold]
    fn begin_to_open(&mut self, peer: Peer, protocol: &mut Protocol) {
        if let Ok(Some((path, attach))) = protocol.want_stream(peer)
            && self.places.has_one_for(path.remote.ip())
        {
            self.rest = 0;
            self.openings.begin(peer, &path, attach, &self.poll);
        }
    }

    /// Keeps an owned message in place as a unit; returns its number and bytes.
    pub(super) fn owned_unit(&mut self, kind: Kind, bytes: usize, buffers: Buffers) -> (u32, u32) {
        let load = self.outgoing.owned(kind, bytes, buffers);
        let bytes = load.bytes() as u32;
        (self.outgoing.put(load), bytes)
    }

    /// Returns the buffers of a unit that was not queued.
    pub(super) fn take_back(&mut self, number: u32) -> Buffers {
        self.outgoing.take(number)
    }

    /// Adds a message to the unit that is being filled for a peer, if there is one, and the message fits.
    #[inline]
    pub(super) fn put_in_open_unit(&mut self, peer: Peer, kind: Kind, message: &[u8]) -> bool {
        !self.open.is_empty() && self.put_in_one_of_units(peer, kind, message)
    }

    #[inline(never)] // nearly all messages that come one by one go by datagrams
    fn put_in_one_of_units(&mut self, peer: Peer, kind: Kind, message: &[u8]) -> bool {
        let unit = self.known_way(peer).and_then(|way| way.open.as_mut());
        unit.is_some_and(|unit| unit.try_put(kind, message))
    }

    /// Begins a unit for a peer that has none.
    pub(super) fn begin_unit(&mut self, peer: Peer, limits: Limits) -> &mut OpenUnit {
        let unit = self.outgoing.open(OPEN_BYTES, limits);
        self.open.push(peer);
        self.way(peer).open.insert(unit)
    }

    /// Closes the unit of a peer, and returns its number, span and bytes.
    pub(super) fn close_unit(&mut self, peer: Peer) -> Option<(u32, u32, u32)> {
        let batch = self.batch;
        self.open.retain(|open| *open != peer);
        let Self { ways, choices, .. } = self;
        let way = ways.get_mut(peer.index()).filter(|way| way.peer == Some(peer))?;
        let unit = way.close(batch, choices)?;
        let (load, span) = unit.close();
        let bytes = load.bytes() as u32;
        Some((self.outgoing.put(load), span, bytes))
    }

    /// A peer that has an open unit.
    #[inline]
    pub(super) fn any_open(&self) -> Option<Peer> {
        self.open.last().copied()
    }

    /// The only peer that has an open unit, if nothing waits to be flushed.
    #[inline]
    pub(super) fn only_open(&self) -> Option<Peer> {
        if let ([peer], []) = (&self.open[..], &self.to_flush[..]) { Some(*peer) } else { None }
    }

    /// Everything was handed over: what comes next is another batch, unless it follows only because there was
    /// no room for all of this one.
    #[inline]
    pub(super) fn end_batch(&mut self) {
        if !std::mem::take(&mut self.is_refused) {
            self.batch = self.batch.wrapping_add(1);
        }
    }

    /// Whether there is memory for more messages in units.
    pub(super) fn has_memory(&self) -> bool {
        self.outgoing.gathered_bytes() < GATHERED_BYTES_MAX
    }

    /// Bytes of owned messages that may be kept besides those that are, and in all.
    pub(super) fn room_for_owned(&self) -> Free {
        let left = OWNED_BYTES_MAX.saturating_sub(self.outgoing.owned_bytes());
        Free { left, all: OWNED_BYTES_MAX }
    }

    /// Notes that a peer may have units without a stream.
    pub(super) fn note_cut(&mut self, peer: Peer) {
        if !self.cut.contains(&peer) {
            self.cut.push(peer);
        }
    }

    /// Queues a unit at the stream of a peer; the next flush sends it.
    pub(super) fn send(&mut self, peer: Peer, number: u32, header: &[u8; HEADER_BYTES]) {
        let way = self.known_way(peer).map(|way| (way.stream, way.by() == By::Reference));
        let (stream, by_reference) = way.unwrap_or((None, false));
        let beside = stream.and_then(|stream| self.all[stream as usize].as_mut());
        let Some((stream, beside)) = stream.zip(beside) else { return self.note_cut(peer) };
        match self.outgoing.send(number, header, by_reference, beside.stream.sender()) {
            Ok(true) => {}
            Ok(false) if self.to_flush.last() == Some(&stream) => {}
            Ok(false) => self.to_flush.push(stream),
            Err(()) => self.lose(stream), // what was given before it is enough
        }
    }

    /// Hands over the data of all streams.
    #[inline]
    pub(super) fn flush(&mut self) {
        while let Some(stream) = self.to_flush.pop() {
            self.flush_one(stream);
        }
    }

    fn flush_one(&mut self, stream: u32) {
        let most = if self.turns > 0 { TURN_BYTES } else { usize::MAX };
        let Some(beside) = self.all[stream as usize].as_mut() else { return };
        let was_stuck = beside.asks.contains(epoll::EventFlags::OUT);
        match beside.stream.sender().try_flush_some(most) {
            Ok(is_all) => {
                self.stuck = self.stuck + u32::from(!is_all) - u32::from(was_stuck);
                let room = if is_all { epoll::EventFlags::empty() } else { epoll::EventFlags::OUT };
                let asks = beside.asks & epoll::EventFlags::IN | room;
                self.ask_of(stream, asks);
            }
            Err(_) => self.lose(stream),
        }
    }

    /// Frees a unit that the peer has acknowledged.
    #[inline]
    pub(super) fn release(&mut self, number: u32) {
        self.outgoing.release(number);
    }

    /// From here on messages are read into posted buffers, too.
    pub(super) fn post_to(&mut self, posted: &Arc<Posted>) {
        self.memory.post_to(posted);
    }

    /// From here on puts are read into registered memory, too.
    pub(super) fn put_to(&mut self, registered: &Arc<Registered>) {
        self.memory.put_to(registered);
    }

    /// Units that are being filled, or not acknowledged.
    pub(super) fn in_use(&self) -> usize {
        self.open.len() + self.outgoing.in_use()
    }

    // ---- what comes ---------------------------------------------------------------------------------------

    /// Whether there are no streams, and it was found out lately that none are coming.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        self.rest > 0
    }

    /// As [`is_at_rest`](Self::is_at_rest), for a look, which counts.
    #[inline]
    pub(super) fn rests(&mut self) -> bool {
        let rests = self.is_at_rest();
        self.rest -= u32::from(rests);
        rests
    }

    /// Ends the rest if it has lasted long enough by that time.
    #[inline]
    pub(super) fn end_rest_at(&mut self, now: Time) {
        if now >= self.rest_until {
            self.rest = 0;
        }
    }

    /// Whether to look at the carrier, too: not at each call while only units arrive.
    #[inline]
    pub(super) fn wants_carrier(&self) -> bool {
        match self.woken.is_empty() {
            true => self.turns > 0 || self.streak < STREAK || self.looks.is_multiple_of(LOOKS_A_DATAGRAM),
            false => self.woken.iter().any(|(data, _)| *data == CARRIER),
        }
    }

    /// A message goes by a datagram.
    #[inline]
    pub(super) fn note_packet(&mut self) {
        self.turns = TURNS;
    }

    /// Datagrams have come.
    #[inline]
    pub(super) fn note_datagrams(&mut self) {
        self.streak = 0;
    }

    /// Whether the next unit may be read where it lies, if it is one message and nothing waits to be read;
    /// the last one that was is freed.
    #[inline]
    pub(super) fn read_in_place(&mut self, may_read: bool) {
        self.memory.read_in_place(may_read);
    }

    /// The message that is to be read in place, if one came.
    #[inline]
    pub(super) fn take_lone(&mut self) -> Option<Lone> {
        self.memory.take_lone()
    }

    /// The message that was taken last to be read in place.
    #[inline]
    pub(super) fn lone(&mut self, place: Alone) -> carrier::Lone<'_> {
        carrier::Lone::Held(self.memory.held(), place.only())
    }

    /// Reads what has come over streams, and sees to those that are opened; returns whether anything came.
    #[inline]
    pub(super) fn receive(&mut self, now: &mut Moment<'_>, protocol: &mut Protocol) -> bool {
        self.looks = self.looks.wrapping_add(1);
        self.turns = self.turns.saturating_sub(1);
        self.awake = self.awake.wrapping_add(1);
        if self.awake.is_multiple_of(LOOKS_AWAKE) && self.unwatched.is_none() {
            self.unwatch();
        }
        let is_short =
            self.woken.is_empty() && !self.looks.is_multiple_of(LOOKS_ALONE) && self.openings.is_idle();
        let came = match self.alone {
            Some(alone) if is_short && self.stuck == 0 => self.read(alone, now, protocol),
            _ => self.receive_ready(now, protocol),
        };
        self.streak = self.streak.saturating_add(came.into());
        came
    }

    fn receive_ready(&mut self, now: &mut Moment<'_>, protocol: &mut Protocol) -> bool {
        if self.woken.is_empty() {
            let _ = self.ask(Duration::ZERO); // as if nothing had come
        }
        let (mut came, mut others) = (false, false);
        let mut ready = 0;
        while let Some((data, flags)) = self.woken.pop() {
            match data {
                CARRIER => {}
                OTHERS => others = true,
                stream => {
                    let stream = stream as u32;
                    self.alone = Some(stream);
                    ready += 1;
                    if flags.contains(epoll::EventFlags::OUT) {
                        self.flush_one(stream);
                    }
                    // It would be ready without end, and while there is no memory, nothing is read that ends
                    // it.
                    if flags.contains(epoll::EventFlags::HUP) && self.is_waiting(stream) {
                        self.lose(stream);
                    }
                    came |= self.read(stream, now, protocol);
                }
            }
        }
        if ready > 1 {
            self.alone = None;
        }
        if let Some(unwatched) = self.unwatched {
            came |= self.read(unwatched, now, protocol);
            if ready > 0 {
                self.watch_all(); // not only this one is active
            }
        }
        let at = Instant::now();
        if others || self.cared.is_none_or(|cared| at - cared >= CARE_INTERVAL) {
            let since = self.cared.replace(at).map_or(Duration::ZERO, |cared| at - cared);
            self.attended = self.attended + since.min(ATTENDED_MAX);
            came |= self.care(others, at, now, protocol);
        }
        if self.all.is_empty() && self.openings.is_idle() && self.cut.is_empty() {
            (self.rest, self.rest_until) = (LOOKS_AT_REST, now.now() + REST_MAX);
        }
        came
    }

    /// Stops watching the stream that is read at each look, if it is to be read whenever something is there.
    fn unwatch(&mut self) {
        let Some(alone) = self.alone else { return };
        let Some(beside) = self.all.get_mut(alone as usize).and_then(Option::as_mut) else { return };
        if beside.asks == epoll::EventFlags::IN
            && epoll::delete(&self.poll, beside.stream.receiver().kernel_socket()).is_ok()
        {
            self.unwatched = Some(alone);
        }
    }

    /// Before a sleep: the only stream need not be watched, either.
    pub(super) fn unwatch_only(&mut self) {
        if self.unwatched.is_some() {
            return;
        }
        let mut all = self.all.iter().enumerate().filter(|(_, beside)| beside.is_some());
        if let (Some((only, _)), None) = (all.next(), all.next()) {
            self.alone = Some(only as u32);
            self.unwatch();
        }
    }

    /// Watches all streams from here on, until there are many looks without a sleep.
    pub(super) fn watch_all(&mut self) {
        self.awake = 0;
        let Some(stream) = self.unwatched.take() else { return };
        let Some(beside) = self.all[stream as usize].as_mut() else { return };
        let data = epoll::EventData::new_u64(stream.into());
        let asks = beside.asks;
        if epoll::add(&self.poll, beside.stream.receiver().kernel_socket(), data, asks).is_err() {
            self.lose(stream); // there is no memory for it
        }
    }

    /// Changes the events polled for.
    #[inline]
    fn ask_of(&mut self, stream: u32, asks: epoll::EventFlags) {
        let Some(beside) = self.all[stream as usize].as_mut().filter(|beside| beside.asks != asks) else {
            return;
        };
        beside.asks = asks;
        if self.unwatched == Some(stream) {
            return self.watch_all();
        }
        let data = epoll::EventData::new_u64(stream.into());
        // It is watched, so this cannot fail.
        let _ = epoll::modify(&self.poll, beside.stream.receiver().kernel_socket(), data, asks);
    }

    fn is_waiting(&self, stream: u32) -> bool {
        let beside = self.all.get(stream as usize).and_then(Option::as_ref);
        beside.is_some_and(|beside| beside.reading.is_waiting())
    }

    fn read(&mut self, stream: u32, now: &mut Moment<'_>, protocol: &mut Protocol) -> bool {
        let Self { all, memory, .. } = self;
        let Some(beside) = all.get_mut(stream as usize).and_then(Option::as_mut) else { return false };
        let (was_within, was_waiting) = (beside.reading.is_within(), beside.reading.is_waiting());
        let before = beside.reading.counts;
        beside.stream.sender().reap();
        memory.is_for(beside.from);
        let was_placed = beside.reading.is_placed();
        let read =
            beside.reading.read(TURN_BYTES, beside.stream.receiver(), memory, now, beside.peer, protocol);
        let (counts, is_waiting) = (beside.reading.counts, beside.reading.is_waiting());
        self.waiting = self.waiting + u32::from(is_waiting) - u32::from(was_waiting);
        let is_placed = beside.reading.is_placed();
        self.placed = self.placed + u32::from(is_placed) - u32::from(was_placed);
        self.counters.units_passed += counts.passed - before.passed;
        self.counters.units_without_memory += counts.no_memory - before.no_memory;
        match read {
            Ok(look) => {
                let reads =
                    if look == Look::Full { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
                let asks = beside.asks & epoll::EventFlags::OUT | reads;
                self.ask_of(stream, asks);
            }
            Err(_) => self.lose(stream),
        }
        if (counts.bytes, counts.units) == (before.bytes, before.units) && !was_waiting {
            return false;
        }
        self.received.units += counts.units - before.units;
        self.received.bytes += counts.bytes - before.bytes;
        self.received.copied_bytes += counts.copied_bytes - before.copied_bytes;
        if let Some(beside) = self.all[stream as usize].as_mut() {
            let has_begun = !was_within && beside.reading.is_within() || !was_waiting && is_waiting;
            let has_ended = counts.units > before.units;
            beside.progress.note(self.lacked, counts.bytes, has_begun || has_ended);
            if is_placed {
                beside.placing.note(self.attended, counts.bytes, !was_placed || has_ended);
            }
        }
        counts.units > before.units
    }

    /// Sees to streams that are opened, that wait for memory, that do not go on, or whose peer is gone.
    fn care(&mut self, others: bool, at: Instant, now: &mut Moment<'_>, protocol: &mut Protocol) -> bool {
        let mut came = false;
        let is_short = self.waiting > 0;
        if is_short {
            self.lacked = protocol.refuse_unit(now.now());
        }
        // Another one is the first each time: none is always served before the others.
        let (all, first) = (self.all.len(), self.looks as usize);
        for stream in (0..all).map(|stream| ((first + stream) % all) as u32) {
            let Some(beside) = &self.all[stream as usize] else { continue };
            let (reading, progress) = (&beside.reading, &beside.progress);
            let is_stalled = is_short
                && (reading.is_within() && progress.is_stalled(self.lacked)
                    || reading.waits_with_memory() && progress.is_late(self.lacked))
                || reading.is_placed() && beside.placing.is_slow(self.attended);
            if is_stalled || !protocol.has_peer(beside.peer) {
                self.lose(stream);
            } else if beside.reading.is_waiting() {
                came |= self.read(stream, now, protocol);
            }
        }
        self.places.leave_kept(at, |peer| !protocol.has_peer(peer));
        if others || !self.openings.is_idle() {
            self.openings.accept(at, &self.poll, &mut self.counters);
        }
        while let Some(attached) =
            self.openings.next(at, protocol, &self.places, &self.poll, &mut self.counters)
        {
            self.attach(attached, now.now(), protocol);
        }
        came
    }

    /// Adds an attached stream, which is read, and used to send.
    fn attach(&mut self, attached: Attached, now: Time, protocol: &mut Protocol) {
        let Attached { peer, stream } = attached;
        let Ok(Some(PeerStats { address, .. })) = protocol.statistics(peer) else { return }; // it is closed
        let from = address.ip();
        if let Some(former) = self.stream_of(peer) {
            self.lose(former); // the client has given it up
        }
        self.places.leave_kept(Instant::now(), |kept| kept == peer);
        if !self.places.has_one_for(from) {
            return;
        }
        if let Some(surplus) = self.places.surplus(from) {
            self.lose(surplus);
            self.places.leave(surplus);
        }
        let number = (0..).find(|number| !self.places.is_taken(*number)).expect("places are few") as usize;
        let (asks, reading) = (epoll::EventFlags::IN, Reading::new());
        let (progress, placing) = (Progress::new(self.lacked), Progress::new(self.attended));
        let mut beside = Beside { peer, from, stream, reading, asks, progress, placing };
        let data = epoll::EventData::new_u64(number as u64);
        if epoll::modify(&self.poll, beside.stream.receiver().kernel_socket(), data, asks).is_err() {
            return; // it is closed, as if it had been cut
        }
        self.watch_all();
        self.counters.streams_attached += 1;
        if number >= self.all.len() {
            self.all.resize_with(number + 1, || None);
        }
        self.all[number] = Some(beside);
        self.places.take(number as u32, peer, from);
        if protocol.stream_opened(now, peer).is_ok() {
            self.way(peer).stream = Some(number as u32);
        }
    }

    /// Removes a stream that cannot be used any more. Its place is kept for the next one of its peer.
    #[cold]
    fn lose(&mut self, stream: u32) {
        let Some(mut beside) = self.all.get_mut(stream as usize).and_then(Option::take) else { return };
        self.places.keep(stream, Instant::now());
        self.unwatched = self.unwatched.filter(|unwatched| *unwatched != stream);
        self.counters.streams_cut += 1;
        self.stuck -= u32::from(beside.asks.contains(epoll::EventFlags::OUT));
        self.waiting -= u32::from(beside.reading.is_waiting());
        self.placed -= u32::from(beside.reading.is_placed());
        let _ = epoll::delete(&self.poll, beside.stream.receiver().kernel_socket()); // it may stay open for a while
        self.to_flush.retain(|other| *other != stream);
        self.past_sent += beside.stream.sender().ledger();
        let peer = beside.peer;
        let used = self.known_way(peer).and_then(|way| way.stream.take_if(|current| *current == stream));
        if used.is_some() {
            self.note_cut(peer);
        }
    }

    #[cfg(test)]
    pub(super) fn has_unwatched(&self) -> bool {
        self.unwatched.is_some()
    }

    /// Has other limits from here on: so many streams, and so many buffers of each kind for units.
    #[cfg(test)]
    pub(super) fn limit(&mut self, streams: usize, buffers: u32) -> io::Result<()> {
        self.places = Places::new(streams);
        self.memory = Memory::of_buffers(1 << 20, buffers, |_| buffers)?;
        Ok(())
    }

    /// For how long there was no memory for some unit.
    #[cfg(test)]
    pub(super) fn lacked(&self) -> Duration {
        self.lacked.since(Time::default())
    }

    /// How often a unit of a peer waited for memory.
    #[cfg(test)]
    pub(super) fn waited(&self, peer: Peer) -> u64 {
        self.all
            .iter()
            .flatten()
            .filter(|beside| beside.peer == peer)
            .map(|beside| beside.reading.counts.no_memory)
            .sum()
    }

    /// Cuts all streams.
    #[cfg(test)]
    pub(super) fn cut_all(&mut self) {
        for stream in 0..self.all.len() as u32 {
            self.lose(stream);
        }
    }

    /// Removes the first stream; returns a function that puts it back.
    #[cfg(test)]
    pub(super) fn set_aside(&mut self) -> impl FnOnce(&mut Self) + use<> {
        self.watch_all();
        let beside = self.all[0].take();
        self.places.leave(0);
        |streams| {
            let (peer, from) =
                beside.as_ref().map(|beside| (beside.peer, beside.from)).expect("it was the first");
            streams.places.take(streams.all.len() as u32, peer, from);
            streams.all.push(beside);
        }
    }

    /// Has the last stream read by the number that it has: another one may have its former number.
    #[cfg(test)]
    pub(super) fn watch_last(&mut self) {
        let number = self.all.len() - 1;
        let beside = self.all[number].as_mut().unwrap();
        let (socket, data) =
            (beside.stream.receiver().kernel_socket(), epoll::EventData::new_u64(number as u64));
        epoll::modify(&self.poll, socket, data, beside.asks).unwrap();
    }

    /// Whether the stream of a peer was cut, and that was not reported, or units wait for another one.
    #[inline]
    pub(super) fn has_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    /// Reports streams that were cut, and has others opened for units that wait for one.
    #[cold]
    pub(super) fn see_to_cuts(&mut self, now: Time, protocol: &mut Protocol) {
        for peer in std::mem::take(&mut self.cut) {
            if self.known_way(peer).is_some_and(|way| way.stream.is_some()) {
                continue; // there is another one
            }
            protocol.stream_cut(now, peer);
            if protocol.has_units(peer) {
                self.note_cut(peer);
                self.begin_to_open(peer, protocol);
            }
        }
    }

    // ---- waiting ------------------------------------------------------------------------------------------

    /// Whether streams can end a wait: then the carrier must be watched here, too.
    pub(super) fn watch_carrier(
        &mut self,
        watch: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        if !std::mem::replace(&mut self.watches_carrier, true) {
            watch(self.poll.as_fd())?;
        }
        Ok(())
    }

    /// Waits until something comes by the carrier or a stream.
    pub(super) fn wait(&mut self, timeout: Duration) -> io::Result<Wakeup> {
        self.watch_all();
        match self.ask(timeout.min(self.care_within())) {
            Ok(()) if self.woken.is_empty() => {
                self.end_wait_in_vain();
                Ok(Wakeup::TimedOut)
            }
            Ok(()) => Ok(Wakeup::Ready),
            Err(Errno::INTR) => Ok(Wakeup::Interrupted),
            Err(error) => Err(error.into()),
        }
    }

    /// The same if they [can be polled](Self::can_be_polled): `wait` waits for the carrier and these two
    /// descriptors.
    pub(super) fn wait_beside(
        &mut self,
        timeout: Duration,
        wait: impl FnOnce(BorrowedFd<'_>, Option<BorrowedFd<'_>>, Duration) -> io::Result<Polled>,
    ) -> io::Result<Wakeup> {
        let timeout = timeout.min(self.care_within());
        let unwatched = self.unwatched.and_then(|stream| self.all[stream as usize].as_mut());
        let socket = unwatched.map(|beside| beside.stream.receiver().kernel_socket());
        let came = wait(self.poll.as_fd(), socket.as_ref().map(AsFd::as_fd), timeout)?;
        if came.wakeup == Wakeup::TimedOut {
            self.end_wait_in_vain();
        }
        if came.first_other {
            self.ask(Duration::ZERO)?;
        }
        if came.sockets {
            self.note_datagrams(); // so that they are looked at
        }
        Ok(came.wakeup)
    }

    /// Has the next look see to streams that may have stopped.
    fn end_wait_in_vain(&mut self) {
        if self.placed > 0 {
            self.alone = None;
        }
    }

    /// Whether there is no stream, or one that is read at each look: then to poll all descriptors costs less
    /// than to have them watched.
    pub(super) fn can_be_polled(&self) -> bool {
        self.unwatched.is_some() || self.all.iter().all(Option::is_none)
    }

    /// Polls for events, for `timeout` at most.
    fn ask(&mut self, timeout: Duration) -> Result<(), Errno> {
        let none =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(OTHERS) };
        let mut events = [none; EVENTS_MAX];
        let ready = epoll::wait(&self.poll, &mut events, Timespec::try_from(timeout).ok().as_ref())?;
        self.woken.extend(events[..ready].iter().map(|event| (event.data.u64(), event.flags)));
        match self.woken[..] {
            // Which is looked at in any case.
            [(CARRIER, _)] if self.is_at_rest() => self.woken.clear(),
            _ => self.rest = 0,
        }
        Ok(())
    }

    /// The longest wait before streams must be handled.
    pub(super) fn care_within(&self) -> Duration {
        match self.waiting > 0 {
            true => CARE_INTERVAL,
            false if self.has_cut() => CUT_INTERVAL,
            false if self.placed > 0 => self.openings.care_within().min(PLACED_INTERVAL),
            false => self.openings.care_within(),
        }
    }
}

impl AsFd for Streams {
    /// Readable when something arrives over a stream.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}

fn add(poll: &OwnedFd, what: &impl AsFd, data: u64, flags: epoll::EventFlags) -> io::Result<()> {
    Ok(epoll::add(poll, what, epoll::EventData::new_u64(data), flags)?)
}
