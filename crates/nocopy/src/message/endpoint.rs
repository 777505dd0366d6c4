//! The endpoint: the protocol, what carries its datagrams, and when each of them works.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nocopy_proto::message::framing::{self, whole_header_bytes};
use nocopy_proto::message::{
    self as protocol, Counters, Event, Gone, Kind, Peer, PeerStatistics, QueueError, Settings, Time, Transmit,
};
use smallvec::SmallVec;

use super::carrier::{Came, Carrier, Layout, Packet, Received};
use super::open_packet::{OpenPacket, Peers};
use super::{Builder, CarrierCounters, Message, OpenError, OwnedMessage};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::memory::pool::Buffer;
use crate::port::Wait;
use crate::sys::clock::monotonic_ns;

/// Packets that are queued at most before they are sent, whether or not somebody flushes.
const UNSENT_MAX: usize = 64;
/// Messages at hand that are given at most before packets that were begun meanwhile are sent.
const AT_HAND_MAX: u32 = 32;
/// Owned messages below this many bytes are put into packets with others.
const INLINE_BYTES_MAX: usize = 256;

/// Events that are kept here at most; the protocol keeps as many, and then takes on nobody new.
const EVENTS_MAX: usize = 1 << 16;

/// How often to look for packets that the kernel is done with, while somebody was told that there are none: that ends no wait.
const STARVED_INTERVAL: Duration = Duration::from_millis(1);

/// Buffers of a message.
pub(super) type Buffers = SmallVec<[Buffer; 2]>;

/// One end of any number of connections; see the [module](super).
#[derive(Debug)]
pub struct Endpoint {
    pub(super) protocol: protocol::Endpoint<Packet, Received>,
    pub(super) carrier: Box<dyn Carrier>,
    peers: Peers,
    /// Packets of a message that is being queued.
    made: Vec<Packet>,
    wait: Wait,
    clock: Clock,
    pub(super) window_packets: usize,
    /// Packets queued since the protocol was asked what to send.
    unsent: usize,
    /// Messages given since then.
    at_hand: u32,
    /// Who was told that there is no memory for packets.
    starved: Vec<Peer>,
    /// Packets became free since the starved were last told.
    freed: bool,
    /// Events that were taken from the protocol and not given.
    events: VecDeque<Event>,
    /// There is one that no wait was ended for.
    untold: bool,
    /// Messages that came while somebody waited for another one.
    pub(super) aside: VecDeque<OwnedMessage>,
    pub(super) next_call: u32,
    sent: Sent,
}

/// Bytes of messages that were sent, by how.
#[derive(Debug, Default)]
struct Sent {
    messages: u64,
    from_slices: u64,
    short: u64,
    owned: u64,
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The peer has not taken enough of what was sent, or is not connected yet, or there is no memory for packets.
    #[error("no room now: receive, or wait for the peer to be writable, and send again")]
    WouldBlock,
    /// It is longer than the peer takes, or than fits into a window.
    #[error("{bytes} B are too long for a message to this peer: it takes {bytes_max} B; send it in parts")]
    TooLong {
        /// How long it is.
        bytes: usize,
        /// The longest there can be.
        bytes_max: usize,
    },
    /// This direction was ended.
    #[error("nothing follows the end: finish was called for this peer; connect again")]
    Finished,
    /// There is no such peer.
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// A message that was not sent, and why.
#[derive(Debug, thiserror::Error)]
#[error("message of {} bytes not sent: {reason}", buffers.iter().map(|buffer| buffer.len()).sum::<usize>())]
pub struct Rejected {
    /// Its buffers, still yours.
    buffers: Buffers,
    /// What stood in the way.
    #[source]
    pub reason: SendError,
}

impl Rejected {
    /// The message's buffers.
    pub fn into_buffers(self) -> impl ExactSizeIterator<Item = Buffer> {
        self.buffers.into_iter()
    }

    /// The message's buffers, and what stood in the way.
    pub fn into_parts(self) -> (impl ExactSizeIterator<Item = Buffer>, SendError) {
        (self.buffers.into_iter(), self.reason)
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No place.
    #[error(transparent)]
    Peers(#[from] protocol::ConnectError),
    /// It was tried, and is over.
    #[error("{address}: not connected: {reason}")]
    Lost {
        /// Who was to be the peer.
        address: SocketAddr,
        /// What happened.
        reason: protocol::Reason,
    },
    /// Nothing was decided in time.
    #[error(
        "{address}: not connected within {timeout:?}; is an endpoint bound there, and does a firewall let UDP pass?"
    )]
    TimedOut {
        /// Who was to be the peer.
        address: SocketAddr,
        /// How long that was.
        timeout: Duration,
    },
    /// The interface is down or gone, or the kernel refused.
    #[error("the network cannot be used: {0}")]
    Network(#[from] io::Error),
}

/// How long a step of work may take.
#[derive(Debug, Clone, Copy)]
pub(super) enum Patience {
    /// Only what is there.
    None,
    /// Until something comes, or that moment.
    Until(Option<Instant>),
}

impl Endpoint {
    /// Settings, to be bound.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(super) fn new(carrier: Box<dyn Carrier>, settings: Settings, wait: Wait) -> Result<Self, OpenError> {
        let mut seed = [0; 32];
        // 32 bytes come whole or not at all (getrandom(2)).
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| OpenError::Random { source: error.into() })?;
        Ok(Self {
            window_packets: settings.window_packets,
            protocol: protocol::Endpoint::new(settings, seed),
            carrier,
            peers: Peers::default(),
            made: Vec::new(),
            wait,
            clock: Clock::new(),
            unsent: 0,
            at_hand: 0,
            starved: Vec::new(),
            freed: false,
            events: VecDeque::new(),
            untold: false,
            aside: VecDeque::new(),
            next_call: 0,
            sent: Sent::default(),
        })
    }

    /// The address it was bound to.
    pub fn local_address(&self) -> SocketAddr {
        self.carrier.local_address()
    }

    /// Begins to connect; [`Event::Connected`] or [`Event::Lost`] tells how it ends.
    ///
    /// # Errors
    /// There are too many peers.
    pub fn start_connect(&mut self, to: SocketAddr) -> Result<Peer, protocol::ConnectError> {
        self.unsent += 1;
        self.protocol.connect(self.now(), to)
    }

    /// Connects, and waits until that is done. What comes from others meanwhile is kept.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(&mut self, to: SocketAddr, timeout: Duration) -> Result<Peer, ConnectError> {
        let deadline = Instant::now().checked_add(timeout);
        let peer = self.start_connect(to)?;
        loop {
            self.work(Patience::Until(deadline))?;
            while self.events.len() < EVENTS_MAX
                && let Some(event) = self.protocol.poll_event()
            {
                self.events.push_back(event);
            }
            let mine = |event: &Event| match event {
                Event::Connected(connected, _) => *connected == peer,
                Event::Lost(lost, _) => *lost == peer,
                _ => false,
            };
            if let Some(place) = self.events.iter().position(mine) {
                return match self.events.remove(place) {
                    Some(Event::Lost(_, reason)) => Err(ConnectError::Lost { address: to, reason }),
                    _ => Ok(peer),
                };
            }
            self.untold |= !self.events.is_empty();
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.protocol.abort(peer);
                return Err(ConnectError::TimedOut { address: to, timeout });
            }
        }
    }

    /// Sends a message, copied into the packet that is being filled for the peer. It goes when that is full, with
    /// [`flush`](Self::flush), or when there is nothing to [receive](Self::receive).
    ///
    /// # Errors
    /// [`SendError`]; then nothing of it was sent.
    #[inline]
    pub fn send(&mut self, peer: Peer, message: &[u8]) -> Result<(), SendError> {
        self.send_as(peer, Kind::Plain, message)
    }

    /// Sends a request that the peer may [respond](Self::respond) to, and returns its number: [`Kind::Response`] has the same.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub fn request(&mut self, peer: Peer, message: &[u8]) -> Result<u32, SendError> {
        let call = self.next_call;
        self.send_as(peer, Kind::Request(call), message)?;
        self.next_call = call.wrapping_add(1);
        Ok(call)
    }

    /// Sends the response to a request of that number.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub fn respond(&mut self, peer: Peer, call: u32, message: &[u8]) -> Result<(), SendError> {
        self.send_as(peer, Kind::Response(call), message)
    }

    #[inline]
    fn send_as(&mut self, peer: Peer, kind: Kind, message: &[u8]) -> Result<(), SendError> {
        match self.peers.open(peer).filter(|open| open.takes(kind, message.len())) {
            Some(open) => open.put(kind, message.len(), std::iter::once(message), &mut *self.carrier),
            None => self.send_in_fresh(peer, kind, message)?,
        }
        self.sent.messages += 1;
        self.sent.from_slices += message.len() as u64;
        Ok(())
    }

    /// Sends a message for which there is no open packet, or no room in it.
    fn send_in_fresh(&mut self, peer: Peer, kind: Kind, message: &[u8]) -> Result<(), SendError> {
        let Plan { payload_bytes_max, packets } = self.plan(peer, kind, message.len())?;
        let left = self.carrier.room().packets;
        if left < packets || !self.has_share(peer, left)? {
            return Err(self.starve(peer, left));
        }
        self.close_packet_of(peer);
        if packets == 1 && whole_header_bytes(kind) + message.len() <= payload_bytes_max {
            let Some(packet) = self.carrier.packet() else { return Err(self.starve(peer, left)) };
            let open = self.peers.begin(peer, OpenPacket::new(packet, payload_bytes_max));
            open.put(kind, message.len(), std::iter::once(message), &mut *self.carrier);
            return Ok(());
        }
        for chunk in framing::chunks(kind, message.len(), 0, payload_bytes_max) {
            let Some(packet) = self.carrier.packet() else {
                self.unmake();
                return Err(self.starve(peer, left));
            };
            let (header, bytes) = (chunk.header(), &message[chunk.range.clone()]);
            let room = self.carrier.payload_mut(&packet);
            room[..header.len()].copy_from_slice(header);
            room[header.len()..][..bytes.len()].copy_from_slice(bytes);
            self.carrier.set_payload_bytes(&packet, header.len() + bytes.len());
            self.made.push(packet);
        }
        self.queue_made(peer)
    }

    /// An empty buffer to write a message into, or a part of one; `None` while all are on their way.
    pub fn buffer(&mut self) -> Option<Buffer> {
        self.carrier.buffer()
    }

    /// Buffers for a message of so many bytes to a peer, to be filled in their order and sent by [`send_owned`](Self::send_owned), each
    /// as long as it is: over a port they are the packets themselves. (Those of [`buffer`](Self::buffer) and others are copied into packets
    /// there, since packets have to be full.)
    ///
    /// # Errors
    /// [`SendError`]: nothing was set aside.
    pub fn buffers(&mut self, peer: Peer, bytes: usize) -> Result<Vec<Buffer>, SendError> {
        let Plan { payload_bytes_max, .. } = self.plan(peer, Kind::Plain, bytes)?;
        let layout = Layout { kind: Kind::Plain, bytes, payload_bytes_max };
        let left = self.carrier.room().either();
        let buffers = if self.has_share(peer, left)? { self.carrier.buffers_for(layout) } else { None };
        buffers.map(Buffers::into_vec).ok_or_else(|| self.starve(peer, left))
    }

    /// Sends a message that lies in buffers, one behind the other, without a copy of ours. They go home when the peer has it.
    ///
    /// # Errors
    /// Gives the buffers back: [`SendError`].
    #[expect(clippy::result_large_err, reason = "gives back what it was given")]
    pub fn send_owned(
        &mut self,
        peer: Peer,
        message: impl IntoIterator<Item = Buffer>,
    ) -> Result<(), Rejected> {
        self.send_owned_as(peer, Kind::Plain, message.into_iter().collect())
    }

    /// Sends the response to a request of that number, as [`Endpoint::send_owned`] does.
    ///
    /// # Errors
    /// As [`Endpoint::send_owned`].
    #[expect(clippy::result_large_err, reason = "gives back what it was given")]
    pub fn respond_owned(
        &mut self,
        peer: Peer,
        call: u32,
        message: impl IntoIterator<Item = Buffer>,
    ) -> Result<(), Rejected> {
        self.send_owned_as(peer, Kind::Response(call), message.into_iter().collect())
    }

    #[expect(clippy::result_large_err, reason = "gives back what it was given")]
    fn send_owned_as(&mut self, peer: Peer, kind: Kind, buffers: Buffers) -> Result<(), Rejected> {
        let bytes = buffers.iter().map(|buffer| buffer.len()).sum();
        if bytes < INLINE_BYTES_MAX {
            let sent = self.send_short(peer, kind, bytes, &buffers);
            return sent.map_err(|reason| Rejected { buffers, reason });
        }
        let plan = match self.plan_owned(peer, kind, bytes, buffers.len()) {
            Ok(plan) => plan,
            Err(reason) => return Err(Rejected { buffers, reason }),
        };
        let layout = Layout { kind, bytes, payload_bytes_max: plan.payload_bytes_max };
        let Self { protocol, carrier, made, .. } = self;
        // First, since packets do not give the buffers back: once they are made, nothing is refused any more.
        let places = match protocol.places(peer, plan.packets) {
            Ok(places) => places,
            Err(refusal) => return Err(Rejected { buffers, reason: refused(refusal) }),
        };
        if let Err(buffers) = carrier.fragments(buffers, layout, made) {
            self.unmake();
            let left = self.carrier.room().either();
            return Err(Rejected { buffers, reason: self.starve(peer, left) });
        }
        let packets = made.len();
        places.fill(made);
        self.sent.messages += 1;
        self.sent.owned += bytes as u64;
        self.count_unsent(packets);
        Ok(())
    }

    /// A short message is cheaper to copy than to refer to.
    fn send_short(
        &mut self,
        peer: Peer,
        kind: Kind,
        bytes: usize,
        buffers: &Buffers,
    ) -> Result<(), SendError> {
        let parts = || buffers.iter().map(|buffer| &**buffer);
        match self.peers.open(peer).filter(|open| open.takes(kind, bytes)) {
            Some(open) => open.put(kind, bytes, parts(), &mut *self.carrier),
            None => {
                let mut whole = [0; INLINE_BYTES_MAX];
                let mut at = 0;
                for part in parts() {
                    whole[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                self.send_in_fresh(peer, kind, &whole[..at])?;
            }
        }
        self.sent.messages += 1;
        self.sent.short += bytes as u64;
        Ok(())
    }

    fn plan_owned(
        &mut self,
        peer: Peer,
        kind: Kind,
        bytes: usize,
        buffers: usize,
    ) -> Result<Plan, SendError> {
        let plan = self.plan(peer, kind, bytes)?;
        let room = self.carrier.room();
        let left = room.either();
        if room.fragments < plan.packets || room.buffers < buffers || !self.has_share(peer, left)? {
            return Err(self.starve(peer, left));
        }
        self.close_packet_of(peer);
        Ok(plan)
    }

    /// Whether packets can be made for a peer when so many are left for all: not while more of its packets wait to be acknowledged, so
    /// that peers which acknowledge nothing leave some for others.
    #[inline]
    fn has_share(&self, peer: Peer, left: usize) -> Result<bool, Gone> {
        Ok(self.protocol.unacknowledged(peer)? <= left)
    }

    /// How a message is laid into fresh packets, if there is room for them behind the open one.
    fn plan(&mut self, peer: Peer, kind: Kind, bytes: usize) -> Result<Plan, SendError> {
        let payload_bytes_max = self.protocol.payload_bytes_max(peer)?;
        if self.peers.is_ended(peer) {
            return Err(SendError::Finished);
        }
        if payload_bytes_max == 0 {
            return Err(SendError::WouldBlock); // not connected yet
        }
        let header_bytes = whole_header_bytes(kind);
        let packets = match header_bytes + bytes <= payload_bytes_max {
            true => 1,
            // The first one says how long the message is.
            false => (bytes + header_bytes).div_ceil(payload_bytes_max - 4),
        };
        let window_bytes = self.window_packets.saturating_sub(2).saturating_mul(payload_bytes_max - 4);
        let bytes_max = self.protocol.message_bytes_max(peer)?.min(window_bytes);
        if bytes > bytes_max {
            return Err(SendError::TooLong { bytes, bytes_max });
        }
        let closing = usize::from(self.peers.open(peer).is_some());
        if self.protocol.room(peer)? < closing + packets {
            self.protocol.want_room(peer, closing + packets)?;
            return Err(SendError::WouldBlock);
        }
        Ok(Plan { payload_bytes_max, packets })
    }

    /// Of so many packets that are left there are none for a peer: they come back when peers acknowledge what they have.
    #[cold]
    fn starve(&mut self, peer: Peer, left: usize) -> SendError {
        if self.starved.is_empty() {
            // What became free until now was not enough.
            self.freed = false;
            self.carrier.freed();
        }
        // One that has its share already waits for its own.
        if self.has_share(peer, left).is_ok_and(|has_share| has_share) {
            self.protocol.want_packets(self.now());
        }
        if self.peers.starve(peer) {
            self.starved.push(peer);
        }
        SendError::WouldBlock
    }

    /// Gives the packets of a message back that was not sent.
    fn unmake(&mut self) {
        self.freed |= self.carrier.freed();
        let Self { made, carrier, .. } = self;
        made.drain(..).for_each(|packet| carrier.release(packet));
        // They are no more than there was.
        self.carrier.freed();
    }

    fn queue_made(&mut self, peer: Peer) -> Result<(), SendError> {
        let packets = self.made.len();
        let queued = self.protocol.queue_all(peer, &mut self.made);
        self.made.drain(..).for_each(|packet| self.carrier.release(packet)); // of one that was refused
        self.count_unsent(packets);
        queued.map_err(refused)
    }

    /// So many packets more are queued; sends them if they are many.
    #[inline]
    fn count_unsent(&mut self, packets: usize) {
        self.unsent += packets;
        if self.unsent >= UNSENT_MAX {
            self.transmit(self.now());
        }
    }

    #[inline]
    fn queue(&mut self, peer: Peer, packet: Packet) -> Result<(), SendError> {
        if let Err((packet, refusal)) = self.protocol.queue(peer, packet) {
            self.carrier.release(packet);
            return Err(refused(refusal));
        }
        self.count_unsent(1);
        Ok(())
    }

    fn close_packet_of(&mut self, peer: Peer) {
        if let Some(open) = self.peers.take(peer) {
            let packet = open.close(&mut *self.carrier);
            // There was room when it was begun; a peer that is gone was told of by an event.
            let _ = self.queue(peer, packet);
        }
    }

    fn close_packets(&mut self) {
        while let Some((peer, open)) = self.peers.take_any() {
            let packet = open.close(&mut *self.carrier);
            let _ = self.queue(peer, packet); // as above
        }
    }

    /// Sends everything that was put into packets, without waiting.
    ///
    /// # Errors
    /// The interface is down or gone; nothing is lost by that.
    pub fn flush(&mut self) -> io::Result<()> {
        self.close_packets();
        self.transmit(self.now());
        Ok(())
    }

    /// The next message, for which it waits in the way that was [set](Builder::wait). `None` if an event ended the wait
    /// ([`poll_event`](Self::poll_event)). A signal does not.
    ///
    /// # Errors
    /// The interface is down or gone.
    #[inline]
    pub fn receive(&mut self) -> io::Result<Option<Message<'_>>> {
        self.receive_within(Patience::Until(None))
    }

    /// Like [`Endpoint::receive`], but `None` also when nothing came for `timeout`.
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn receive_timeout(&mut self, timeout: Duration) -> io::Result<Option<Message<'_>>> {
        self.receive_within(Patience::Until(Instant::now().checked_add(timeout)))
    }

    /// The next message that is there, without waiting.
    ///
    /// # Errors
    /// The interface is down or gone.
    #[inline]
    pub fn try_receive(&mut self) -> io::Result<Option<Message<'_>>> {
        self.receive_within(Patience::None)
    }

    #[inline]
    fn receive_within(&mut self, patience: Patience) -> io::Result<Option<Message<'_>>> {
        if !self.has_message() {
            self.wait_for_message(patience)?;
        } else if self.at_hand >= AT_HAND_MAX {
            self.work(Patience::None)?;
        }
        self.at_hand += 1;
        if let Some(message) = self.aside.pop_front() {
            return Ok(Some(Message::aside(message)));
        }
        let home = self.carrier.home();
        Ok(self.protocol.receive().map(|message| Message::here(message, home)))
    }

    #[inline]
    fn has_message(&mut self) -> bool {
        !self.aside.is_empty() || self.protocol.has_message()
    }

    /// Says whether it was ended by an event.
    fn wait_for_message(&mut self, patience: Patience) -> io::Result<bool> {
        loop {
            self.send_first();
            // What has happened by now, also by sending: a direction that was read to its end, room. No sleep would be ended by it.
            let news = matches!(patience, Patience::Until(_)) && self.has_news();
            self.take_due(if news { Patience::None } else { patience })?;
            let Patience::Until(deadline) = patience else { return Ok(false) };
            if news || self.has_news() {
                return Ok(true);
            }
            if self.has_message() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
        }
    }

    /// Works until there is a message or an event, or for `timeout`, and says whether there is one: for who has something to send, and
    /// no room.
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        self.work(Patience::None)?;
        if self.has_message() {
            return Ok(true);
        }
        let told = self.wait_for_message(Patience::Until(Instant::now().checked_add(timeout)))?;
        Ok(told || self.has_message())
    }

    /// Whether something happened that no wait was ended for, though older events may not have been taken yet.
    fn has_news(&mut self) -> bool {
        if !self.untold
            && self.events.len() < EVENTS_MAX
            && let Some(event) = self.protocol.poll_event()
        {
            self.events.push_back(event);
            self.untold = true;
        }
        std::mem::take(&mut self.untold)
    }

    /// What happened, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.untold = false;
        self.events.pop_front().or_else(|| self.protocol.poll_event())
    }

    /// Sends what there is, takes what came, sees to what is due.
    pub(super) fn work(&mut self, patience: Patience) -> io::Result<()> {
        self.send_first();
        self.take_due(patience)
    }

    /// The part of the work before a wait.
    #[inline]
    fn send_first(&mut self) {
        self.at_hand = 0;
        self.reclaim();
        self.close_packets();
        if self.protocol.has_transmit() {
            self.transmit(self.now());
        }
    }

    /// The wait, and the part behind it: a message is given first, if nobody waits for what else is to be done. That is done with the
    /// next call, while the peer has the answer.
    #[inline]
    fn take_due(&mut self, patience: Patience) -> io::Result<()> {
        let now = self.take_in(patience)?;
        // Not before what has come was read: that may be what an alarm is about.
        let is_due = self.protocol.poll_timeout().is_some_and(|due| due <= now);
        if is_due {
            self.protocol.handle_timeout(now);
        }
        if is_due || self.protocol.is_urgent() || !self.protocol.has_message() {
            self.transmit(now);
        } else {
            self.carrier.flush(); // what the kernel did not take before, if there is any
        }
        Ok(())
    }

    /// Takes what came, waiting if it may, and returns what time it is then.
    fn take_in(&mut self, patience: Patience) -> io::Result<Time> {
        let Self { protocol, carrier, clock, wait, starved, .. } = self;
        let due = protocol.poll_timeout();
        let mut now = None;
        let mut deliver = |from, congested, came| {
            let now = *now.get_or_insert_with(|| clock.now());
            match came {
                Came::Alone(datagram) => protocol.handle_datagram(now, from, congested, datagram),
                Came::Run(run) => protocol.handle_run(now, from, congested, run),
            }
        };
        match patience {
            Patience::None => carrier.receive(&mut deliver)?,
            Patience::Until(deadline) => {
                let due = due.and_then(|due| clock.instant(due));
                let look = (!starved.is_empty()).then(|| Instant::now() + STARVED_INTERVAL);
                let until = [due, deadline, look].into_iter().flatten().min();
                carrier.wait(*wait, until, &mut deliver)?
            }
        };
        Ok(now.unwrap_or_else(|| clock.now()))
    }

    /// Gives memory back that is free again.
    #[inline]
    fn reclaim(&mut self) {
        while let Some(datagram) = self.protocol.released() {
            self.carrier.recycle(datagram);
        }
        while let Some(packet) = self.protocol.acknowledged() {
            self.carrier.release(packet);
        }
        if !self.starved.is_empty() {
            self.tell_starved();
        }
        self.protocol.set_free(self.carrier.free_to_receive());
    }

    #[cold]
    fn tell_starved(&mut self) {
        self.carrier.take_back();
        self.freed |= self.carrier.freed();
        let room = EVENTS_MAX.saturating_sub(self.events.len());
        if !self.freed || room == 0 {
            return;
        }
        self.freed = false;
        let told = self.starved.len().min(room);
        for peer in self.starved.drain(..told) {
            self.peers.feed(peer);
            self.events.push_back(Event::Writable(peer));
        }
        self.untold = true;
    }

    /// Sends what the protocol has to send.
    #[inline]
    fn transmit(&mut self, now: Time) {
        let Self { protocol, carrier, unsent, .. } = self;
        *unsent = 0;
        while let Some(transmit) = protocol.poll_transmit(now) {
            match transmit {
                Transmit::Packet { peer, to, packet, header, crc, .. } => {
                    carrier.transmit_packet(to, packet, &header, crc);
                    protocol.transmit_followers(now, peer, header, |packet, header| {
                        carrier.transmit_packet(to, packet, header, false);
                    });
                }
                Transmit::Control { to, datagram } => carrier.transmit_control(to, datagram),
            }
            // What follows from having nothing more is seen to when the packets are on their way.
            if !protocol.has_more() {
                carrier.flush();
            }
        }
        carrier.flush();
    }

    #[inline]
    fn now(&self) -> Time {
        self.clock.now()
    }

    /// Ends the direction to a peer, behind everything that was sent: it is told by [`Event::Finished`].
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub fn finish(&mut self, peer: Peer) -> Result<(), SendError> {
        self.plan(peer, Kind::Plain, 0)?;
        let left = self.carrier.room().packets;
        let Some(packet) = self.carrier.packet() else { return Err(self.starve(peer, left)) };
        self.close_packet_of(peer);
        self.carrier.set_payload_bytes(&packet, 0);
        match self.protocol.finish(peer, packet) {
            Ok(()) => {
                self.unsent += 1;
                self.peers.end(peer);
                Ok(())
            }
            Err((packet, _)) => {
                self.carrier.release(packet);
                Err(SendError::Gone(Gone))
            }
        }
    }

    /// Ends a connection at once: what is on its way or unread is thrown away.
    pub fn abort(&mut self, peer: Peer) {
        self.discard_packet_of(peer);
        self.protocol.abort(peer);
        self.unsent += 1;
    }

    /// Throws the packet away that is being filled for a peer.
    fn discard_packet_of(&mut self, peer: Peer) {
        if let Some(open) = self.peers.take(peer) {
            let packet = open.close(&mut *self.carrier);
            self.carrier.release(packet);
        }
    }

    /// Finishes all connections, waits for at most `timeout` until the peers have everything, and says whether they do. Then it ends
    /// what is left.
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn close(mut self, timeout: Duration) -> io::Result<bool> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let peers: Vec<Peer> = self.protocol.all_peers().collect();
            let mut all = true;
            for peer in peers {
                let ended = match self.finish(peer) {
                    Ok(()) | Err(SendError::WouldBlock) => false,
                    Err(_) => true,
                };
                let arrived = |told: PeerStatistics| told.in_flight + told.queued == 0;
                all &= ended && self.statistics(peer).is_ok_and(|told| told.is_none_or(arrived));
            }
            if all || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(all);
            }
            self.work(Patience::Until(deadline))?;
        }
    }

    /// Prepares for a wait by other means than ours, on [`AsFd`], and says whether there is something to do already: call
    /// [`try_receive`](Self::try_receive) and [`poll_event`](Self::poll_event) then. The wait has to end at
    /// [`next_timeout`](Self::next_timeout).
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.work(Patience::None)?;
        Ok(self.has_message() || self.has_news() || self.carrier.arm()?)
    }

    /// How long a wait by other means may last before the endpoint has to work; `None`: for ever.
    pub fn next_timeout(&self) -> Option<Duration> {
        let due = self.protocol.poll_timeout().map(|due| due.since(self.now()));
        let look = (!self.starved.is_empty()).then_some(STARVED_INTERVAL);
        [due, look].into_iter().flatten().min()
    }

    /// Changes how [`Endpoint::receive`] waits.
    pub fn set_wait(&mut self, wait: Wait) {
        self.wait = wait;
    }

    /// How many peers there are, connected or not yet.
    pub fn peers(&self) -> usize {
        self.protocol.peers()
    }

    /// Where a peer is, connected or not yet.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn peer_address(&self, peer: Peer) -> Result<SocketAddr, Gone> {
        self.protocol.peer_address(peer)
    }

    /// What is known of the way to a peer; `None` while it is not connected.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn statistics(&self, peer: Peer) -> Result<Option<PeerStatistics>, Gone> {
        self.protocol.statistics(peer)
    }

    /// What the protocol counted.
    pub fn counters(&self) -> Counters {
        self.protocol.counters()
    }

    /// What the way to the network counted.
    pub fn carrier_counters(&self) -> CarrierCounters {
        self.carrier.counters()
    }

    /// What became of the bytes of messages that were sent and of datagrams that came: copied, and why, or what the way says.
    pub fn ledger(&self) -> Ledger {
        let Sent { messages, from_slices, short, owned } = self.sent;
        let gathered = self.carrier.gathered_bytes();
        let mut sent = Ledger::default();
        sent.add(Evidence::Copied(Cause::Slice), messages, from_slices);
        sent.add(Evidence::Copied(Cause::BelowThreshold), 0, short);
        sent.add(Evidence::Copied(Cause::Gathered), 0, gathered);
        sent.add(self.carrier.evidence(), 0, owned.saturating_sub(gathered));
        sent.plus(&self.carrier.received())
    }
}

impl AsFd for Endpoint {
    /// Readable when something came; call [`Endpoint::arm`] before waiting for it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.carrier.as_fd()
    }
}

impl Drop for Endpoint {
    /// Peers are told, once.
    fn drop(&mut self) {
        let peers: Vec<Peer> = self.protocol.all_peers().collect();
        for peer in peers {
            self.discard_packet_of(peer);
            self.protocol.leave(peer);
            self.transmit(self.now());
        }
    }
}

fn refused(refusal: QueueError) -> SendError {
    match refusal {
        QueueError::Gone(gone) => gone.into(),
        QueueError::Finished => SendError::Finished,
        _ => SendError::WouldBlock,
    }
}

/// Fresh packets for a message.
struct Plan {
    payload_bytes_max: usize,
    packets: usize,
}

/// The monotonic clock in the protocol's words, read without the detours of `Instant`.
#[derive(Debug)]
struct Clock {
    /// The same moment by both.
    origin: (Instant, Time),
}

impl Clock {
    fn new() -> Self {
        Self { origin: (Instant::now(), Self::read()) }
    }

    #[inline]
    fn now(&self) -> Time {
        Self::read()
    }

    #[inline]
    fn read() -> Time {
        Time::from_ns(monotonic_ns())
    }

    /// `None` if it is too far away.
    #[inline]
    fn instant(&self, time: Time) -> Option<Instant> {
        let (instant, origin) = self.origin;
        instant.checked_add(time.since(origin))
    }
}
