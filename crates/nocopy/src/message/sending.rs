//! Puts messages into packets, and hands packets to the kernel.

use std::io;

use nocopy_proto::message::framing::{self, whole_header_bytes};
use nocopy_proto::message::{Gone, Kind, Outlook, Peer, QueueError};

use super::by_stream::is_published;
use super::carrier::{Carrier, Layout, Packet};
use super::open_packet::{OpenPacket, Standing};
use super::sent_shares::Free;
use super::{NonblockingEndpoint, Payload};
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::pieces::Buffers;
use crate::memory::pool::{Buffer, BufferMut};

/// The most packets that are queued before they are sent without a flush.
const UNSENT_MAX: usize = 64;
/// Owned messages shorter than this are copied into packets with others.
const INLINE_BYTES_MAX: usize = 256;

impl NonblockingEndpoint {
    /// Gives a message away to be sent from where it lies, in one buffer or in several. Short messages share
    /// a packet, and are copied into it. The packet goes when it is full, with
    /// [`flush`](super::Endpoint::flush), or when there is nothing to [receive](super::Endpoint::receive);
    /// the buffers are free when the peer has acknowledged the message.
    ///
    /// ```
    /// # use nocopy::message::Endpoint;
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (mut left, mut right) = (Endpoint::bind("127.0.0.1:0")?, Endpoint::bind("127.0.0.1:0")?);
    /// # let to = right.local_addr();
    /// # let serve = std::thread::spawn(move || loop {
    /// #     if let Some(message) = right.receive_timeout(Duration::from_secs(10)).unwrap() { break message.len() }
    /// # });
    /// let peer = left.connect(to, Duration::from_secs(5))?;
    /// let mut buffer = left.buffer().ok_or("all buffers are in use")?;
    /// buffer.fill(b"hello")?;
    /// left.send_to(buffer, peer)?;
    /// left.flush()?;
    /// # assert_eq!(serve.join().unwrap(), 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the message, with the [`Reason`]: `Full` while the peer has not acknowledged enough, is not
    /// connected yet, or memory for packets is short; [`Event::Writable`](super::Event::Writable) follows.
    /// `TooLong`, `Finished`, `Gone`.
    pub fn send_to(&mut self, message: impl Into<Payload>, to: Peer) -> Result<(), Rejected<Payload>> {
        self.send_as(Kind::Plain, message.into().0, to)
    }

    /// Copies a message into the packet that is being filled for the peer, or a long one into packets of its
    /// own; they go as after [`send_to`](Self::send_to).
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to); nothing of the message was sent.
    #[inline]
    pub fn send_copy_to(&mut self, message: &[u8], to: Peer) -> Result<(), Reason> {
        match self.peers.open(to).filter(|open| open.takes(Kind::Plain, message.len())) {
            Some(open) => open.put_one(Kind::Plain, message, &mut self.carrier),
            None => self.send_in_fresh(to, Kind::Plain, message)?,
        }
        self.sent.messages += 1;
        self.sent.from_slices += message.len() as u64;
        Ok(())
    }

    /// Sends a request, as [`send_to`](Self::send_to) does, and returns its number: the [`Kind::Response`] to
    /// it has the same.
    ///
    /// ```
    /// # use nocopy::message::{Endpoint, Event};
    /// # use std::time::Duration;
    /// # let mut left = Endpoint::bind("127.0.0.1:0")?;
    /// # let mut right = Endpoint::bind("127.0.0.1:0")?;
    /// # let peer = left.start_connect(right.local_addr())?;
    /// # while !matches!(left.poll_event(), Some(Event::Connected(..))) {
    /// #     left.wait(Duration::from_millis(1))?;
    /// #     right.wait(Duration::from_millis(1))?;
    /// # }
    /// # use nocopy::message::Kind;
    /// let call = left.request(b"question".to_vec(), peer)?; // several may be open at once
    /// left.flush()?;
    /// let (from, asked) = loop {
    ///     if let Some(message) = right.receive()? {
    ///         let Kind::Request(asked) = message.kind() else { continue };
    ///         break (message.peer(), asked);
    ///     }
    /// };
    /// right.respond(b"answer".to_vec(), from, asked)?;
    /// right.flush()?;
    /// loop {
    ///     if let Some(message) = left.receive()? {
    ///         assert_eq!((message.kind(), &message.to_vec()[..]), (Kind::Response(call), &b"answer"[..]));
    ///         break;
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn request(&mut self, message: impl Into<Payload>, to: Peer) -> Result<u32, Rejected<Payload>> {
        let call = self.next_call;
        self.send_as(Kind::Request(call), message.into().0, to)?;
        self.next_call = call.wrapping_add(1);
        Ok(call)
    }

    /// Sends the response to the request of that number, as [`send_to`](Self::send_to) does.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn respond(
        &mut self,
        message: impl Into<Payload>,
        to: Peer,
        call: u32,
    ) -> Result<(), Rejected<Payload>> {
        self.send_as(Kind::Response(call), message.into().0, to)
    }

    /// Sends a message in fresh packets, because there is no open packet, or no room in it.
    #[inline]
    fn send_in_fresh(&mut self, peer: Peer, kind: Kind, message: &[u8]) -> Result<(), Reason> {
        if let Some(streams) = &mut self.streams
            && streams.put_in_open_unit(peer, kind, message)
        {
            return Ok(());
        }
        if let Some(streams) = &self.streams
            && (self.peers.has_open() || streams.may_take(peer, message.len()))
            && self.put_in_fresh_unit(peer, kind, message)?
        {
            return Ok(());
        }
        // Nearly always it is the first in a packet for which there is room.
        if self.window_packets > 2
            && self.made.is_empty()
            && let Some(outlook) = self.protocol.outlook_of_short(peer)
            && whole_header_bytes(kind) + message.len() <= outlook.payload_bytes_max
            && message.len() <= outlook.message_bytes_max
            && let Standing { has_open, is_ended: false } = self.peers.standing(peer)
            && usize::from(has_open) < outlook.room
            && outlook.unacknowledged < self.sent_shares.packets_max
            && outlook.unacknowledged.max(self.sent_shares.plenty) <= self.carrier.room().packets
            && let Some(packet) = self.carrier.packet()
        {
            if has_open {
                self.close_packet_of(peer);
            }
            let mut open = OpenPacket::new(packet, outlook.payload_bytes_max);
            open.put_one(kind, message, &mut self.carrier);
            self.peers.begin(peer, open);
            return Ok(());
        }
        self.send_in_fresh_ones(peer, kind, message)
    }

    /// As [`send_in_fresh`](Self::send_in_fresh), for messages of any length.
    fn send_in_fresh_ones(&mut self, peer: Peer, kind: Kind, message: &[u8]) -> Result<(), Reason> {
        self.queue_waiting();
        let plan = self.plan(peer, kind, message.len())?;
        let Plan { payload_bytes_max, packets, .. } = plan;
        let free = self.free_packets();
        if free.left < packets || self.is_beyond(peer, &plan, free) {
            return Err(self.starve(peer, free, packets));
        }
        if plan.has_open {
            self.close_packet_of(peer);
        }
        if plan.is_whole {
            let Some(packet) = self.carrier.packet() else {
                return Err(self.starve(peer, free, usize::MAX));
            };
            let open = self.peers.begin(peer, OpenPacket::new(packet, payload_bytes_max));
            open.put(kind, message.len(), std::iter::once(message), &mut self.carrier);
            return Ok(());
        }
        let layout = Layout { kind, bytes: message.len(), payload_bytes_max };
        let Some(last_bytes) = self.carrier.copy_to_packets(message, layout, &mut self.made) else {
            self.unmake();
            return Err(self.starve(peer, free, usize::MAX));
        };
        // Nearly always the flush follows, and nothing else is to be sent.
        if plan.unacknowledged == 0
            && !self.peers.has_open()
            && self.made.len() <= self.carrier.packets_a_call()
            && let Some(last) = self.made.pop()
        {
            let open = OpenPacket::last_of_message(last, last_bytes, self.made.len());
            self.peers.begin(peer, open);
        } else {
            self.queue_made(peer)?;
        }
        self.count_taken(peer, message.len(), false);
        Ok(())
    }

    /// Queues the packets of the long message that waits to be sent at once, if there is one.
    #[inline]
    fn queue_waiting(&mut self) {
        if !self.made.is_empty() {
            match self.peers.take_end_of_message() {
                Some((peer, open)) => self.queue_open(peer, open),
                None => self.unmake(),
            }
        }
    }

    /// An empty buffer for a message or a part of one; `None` while all are in use.
    pub fn buffer(&mut self) -> Option<BufferMut> {
        self.carrier.buffer()
    }

    /// Returns a buffer that was not sent. Dropping it does the same.
    pub fn recycle(&mut self, buffer: impl Into<Buffer>) {
        self.carrier.put_buffer(buffer.into());
    }

    /// Buffers for a message of this many bytes, to be filled in their order and [sent](Self::send_to), each
    /// at its full length: over a port they are the packets themselves. (The bytes of other buffers, such as
    /// those of [`buffer`](Self::buffer), are copied into packets there, since packets must be full.)
    ///
    /// ```
    /// # use nocopy::message::{Endpoint, Event};
    /// # use std::time::Duration;
    /// # let mut left = Endpoint::bind("127.0.0.1:0")?;
    /// # let mut right = Endpoint::bind("127.0.0.1:0")?;
    /// # let peer = left.start_connect(right.local_addr())?;
    /// # while !matches!(left.poll_event(), Some(Event::Connected(..))) {
    /// #     left.wait(Duration::from_millis(1))?;
    /// #     right.wait(Duration::from_millis(1))?;
    /// # }
    /// # while right.poll_event().is_some() {}
    /// let mut buffers = left.buffers(3000, peer)?;
    /// for buffer in &mut buffers {
    ///     buffer[..].fill(7);
    /// }
    /// left.send_to(buffers, peer)?;
    /// left.flush()?;
    /// let message = loop {
    ///     if let Some(message) = right.receive()? {
    ///         break message;
    ///     }
    /// };
    /// assert_eq!(message.to_vec(), [7; 3000]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn buffers(&mut self, bytes: usize, to: Peer) -> Result<Vec<BufferMut>, Reason> {
        let plan = self.plan(to, Kind::Plain, bytes)?;
        let layout = Layout { kind: Kind::Plain, bytes, payload_bytes_max: plan.payload_bytes_max };
        let free = self.free_of_either();
        let is_beyond = self.is_beyond(to, &plan, free);
        let buffers = if is_beyond { None } else { self.carrier.buffers_for(layout) };
        let needed = if is_beyond { plan.packets } else { usize::MAX };
        let buffers = buffers.ok_or_else(|| self.starve(to, free, needed))?;
        let writable = |buffer: Buffer| buffer.try_into_mut().expect("memory of the endpoint");
        Ok(buffers.into_iter().map(writable).collect())
    }

    pub(super) fn send_as(
        &mut self,
        kind: Kind,
        buffers: Buffers,
        peer: Peer,
    ) -> Result<(), Rejected<Payload>> {
        let bytes = buffers.iter().map(|buffer| buffer.len()).sum();
        if bytes < INLINE_BYTES_MAX {
            let sent = self.send_short(peer, kind, bytes, &buffers);
            return sent.map_err(|reason| rejected(buffers, reason));
        }
        if self.streams.is_some()
            && self.goes_by_stream(peer, bytes)
            && self.has_room_for_owned(peer, &buffers, bytes)
        {
            return self.send_unit(kind, bytes, buffers, peer);
        }
        self.queue_waiting();
        let plan = match self.plan_owned(peer, kind, bytes, buffers.len()) {
            Ok(plan) => plan,
            Err(reason) => return Err(rejected(buffers, reason)),
        };
        let layout = Layout { kind, bytes, payload_bytes_max: plan.payload_bytes_max };
        let is_published = self.streams.is_some() && is_published(&buffers);
        let Self { protocol, carrier, made, .. } = self;
        // First, since packets do not give the buffers back: once they are made, nothing is refused any more.
        let places = match protocol.places(peer, plan.packets) {
            Ok(places) => places,
            Err(refusal) => return Err(rejected(buffers, refused(refusal))),
        };
        if let Err(buffers) = carrier.fragments(buffers, layout, made) {
            self.unmake();
            let free = self.free_of_either();
            return Err(rejected(buffers, self.starve(peer, free, usize::MAX)));
        }
        let packets = made.len();
        places.fill(made);
        self.count_taken(peer, bytes, is_published);
        self.sent.messages += 1;
        self.sent.owned += bytes as u64;
        self.count_unsent(packets);
        Ok(())
    }

    /// Copies a short message, which is cheaper than a reference to it.
    fn send_short(&mut self, peer: Peer, kind: Kind, bytes: usize, buffers: &Buffers) -> Result<(), Reason> {
        let parts = || buffers.iter().map(|buffer| &**buffer);
        match self.peers.open(peer).filter(|open| open.takes(kind, bytes)) {
            Some(open) => open.put(kind, bytes, parts(), &mut self.carrier),
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

    fn plan_owned(&mut self, peer: Peer, kind: Kind, bytes: usize, buffers: usize) -> Result<Plan, Reason> {
        let plan = self.plan(peer, kind, bytes)?;
        let room = self.carrier.room();
        let free = self.free_of_either();
        let is_short = room.fragments < plan.packets || room.buffers < buffers;
        if is_short || self.is_beyond(peer, &plan, free) {
            let needed = if is_short { usize::MAX } else { plan.packets };
            return Err(self.starve(peer, free, needed));
        }
        self.close_packet_of(peer);
        Ok(plan)
    }

    /// How a message is divided into fresh packets, if there is room for them after the open one.
    #[inline]
    pub(super) fn plan(&mut self, peer: Peer, kind: Kind, bytes: usize) -> Result<Plan, Reason> {
        let Outlook { payload_bytes_max, message_bytes_max, room, unacknowledged, .. } =
            self.protocol.outlook(peer).map_err(gone)?;
        let Standing { has_open, is_ended } = self.peers.standing(peer);
        if is_ended {
            return Err(Reason::Finished);
        }
        if payload_bytes_max == 0 {
            return Err(Reason::Full); // not connected yet
        }
        let is_whole = whole_header_bytes(kind) + bytes <= payload_bytes_max;
        let packets = framing::packets(kind, bytes, payload_bytes_max);
        let window_bytes = self.window_packets.saturating_sub(2).saturating_mul(payload_bytes_max - 4);
        let bytes_max = message_bytes_max.min(window_bytes);
        if bytes > bytes_max {
            return Err(Reason::TooLong { bytes_max });
        }
        let needed = self.peers.open_packets(peer) + packets;
        if room < needed {
            self.protocol.want_room(peer, needed).map_err(gone)?;
            self.note_full(peer);
            return Err(Reason::Full);
        }
        Ok(Plan { payload_bytes_max, packets, is_whole, has_open, unacknowledged })
    }

    pub(super) fn free_packets(&self) -> Free {
        self.sent_shares.packets(self.carrier.room().packets)
    }

    fn free_of_either(&self) -> Free {
        self.sent_shares.either(self.carrier.room().either())
    }

    /// Whether a peer has used up its packets: its own limit, or its share.
    fn is_beyond(&self, peer: Peer, plan: &Plan, free: Free) -> bool {
        // One message has room in any case: memory is for windows of it.
        let Plan { unacknowledged, packets, .. } = *plan;
        let is_beyond_limit = unacknowledged > 0 && unacknowledged + packets > self.sent_shares.packets_max;
        is_beyond_limit || !self.has_share(peer, packets, free)
    }

    /// Whether a peer may have so many packets more: peers which acknowledge nothing leave some for others.
    pub(super) fn has_share(&self, peer: Peer, packets: usize, free: Free) -> bool {
        self.protocol.has_share_of_sent(peer, packets, free.left, free.all).unwrap_or(false)
    }

    /// Notes that no packets are left for this peer: packets return when peers acknowledge theirs.
    #[cold]
    pub(super) fn starve(&mut self, peer: Peer, free: Free, needed: usize) -> Reason {
        let peer = self.protocol.main_of(peer).unwrap_or(peer); // which is told
        self.note_full(peer);
        if self.starved.is_empty() {
            // What became free until now was not enough.
            self.freed = false;
            self.carrier.freed();
        }
        // One that has its share already waits for its own, and so does one for which there would be enough
        // of them.
        if free.left / 2 < needed && self.has_share(peer, 0, free) {
            self.protocol.want_packets(self.now());
        }
        if self.peers.starve(peer) {
            self.starved.push(peer);
        }
        Reason::Full
    }

    /// Takes back the packets of a message that was not sent.
    pub(super) fn unmake(&mut self) {
        self.freed |= self.carrier.freed();
        let Self { made, carrier, .. } = self;
        made.drain(..).for_each(|packet| carrier.release(packet));
        // They are no more than there were.
        self.carrier.freed();
    }

    fn queue_made(&mut self, peer: Peer) -> Result<(), Reason> {
        let packets = self.made.len();
        let queued = self.protocol.queue_all(peer, &mut self.made);
        self.made.drain(..).for_each(|packet| self.carrier.release(packet)); // of one that was refused
        self.count_unsent(packets);
        queued.map_err(refused)
    }

    /// Counts more queued packets; sends them if they are many.
    #[inline]
    pub(super) fn count_unsent(&mut self, packets: usize) {
        self.unsent += packets;
        if self.unsent >= UNSENT_MAX {
            self.transmit(self.now());
        }
    }

    #[inline]
    fn queue(&mut self, peer: Peer, packet: Packet) -> Result<(), Reason> {
        if let Err((packet, refusal)) = self.protocol.queue(peer, packet) {
            self.carrier.release(packet);
            return Err(refused(refusal));
        }
        if let Some(streams) = &mut self.streams {
            streams.note_packet();
        }
        self.count_unsent(1);
        Ok(())
    }

    pub(super) fn close_packet_of(&mut self, peer: Peer) {
        if self.streams.is_some() {
            self.close_unit_of(peer);
        }
        if let Some(open) = self.peers.take(peer) {
            self.queue_open(peer, open);
        }
    }

    #[inline(always)] // for each packet
    fn queue_open(&mut self, peer: Peer, open: OpenPacket) {
        if open.ends_message() {
            return self.queue_message(peer, open);
        }
        let packet = open.close(&mut self.carrier);
        // There was room when it was begun; an event reports a peer that is gone.
        let _ = self.queue(peer, packet);
    }

    /// The same for the packets of a message.
    #[cold]
    fn queue_message(&mut self, peer: Peer, open: OpenPacket) {
        let last = open.close(&mut self.carrier);
        self.made.push(last);
        let _ = self.queue_made(peer); // as above
    }

    #[inline]
    pub(super) fn close_packets(&mut self) {
        match &mut self.streams {
            _ if self.peers.has_open() => self.close_open_packets(),
            Some(streams) if streams.is_idle() => streams.end_batch(),
            Some(_) => self.close_open_packets(),
            None => {}
        }
    }

    fn close_open_packets(&mut self) {
        while let Some((peer, open)) = self.peers.take_any() {
            self.queue_open(peer, open);
        }
        if self.streams.is_some() {
            self.close_units();
        }
    }

    /// Hands everything that was put into packets to the kernel, without waiting. `false`: the kernel did not
    /// take everything. What the window of a peer has no room for follows when the peer has acknowledged
    /// more, whenever the endpoint works.
    ///
    /// # Errors
    /// The interface is down or was removed; nothing is lost by that.
    pub fn try_flush(&mut self) -> io::Result<bool> {
        Ok(self.hand_over())
    }

    #[inline]
    pub(super) fn hand_over(&mut self) -> bool {
        let is_sent = match self.peers.take_only() {
            Some((peer, open)) => self.send_at_once(peer, open),
            None => self.streams.is_some() && !self.peers.has_open() && self.send_unit_at_once(),
        };
        match &mut self.streams {
            None if is_sent => {}
            // It was the only thing there was to send.
            Some(streams) if is_sent && streams.is_idle() && !self.protocol.has_transmit() => {
                streams.end_batch();
            }
            _ => {
                self.close_packets();
                self.transmit(self.now());
            }
        }
        !self.carrier.is_stuck()
    }

    /// Sends a packet at once, if nothing else waits. False: it was queued like others.
    #[inline]
    fn send_at_once(&mut self, peer: Peer, open: OpenPacket) -> bool {
        if open.ends_message() {
            return self.send_message_at_once(peer, open);
        }
        let packet = open.close(&mut self.carrier);
        let now = self.now();
        let Self { protocol, carrier, .. } = self;
        let sent = protocol.send_at_once(now, peer, packet, |to, packet, header| {
            carrier.send_packet(to, packet, header, now);
        });
        match sent {
            Ok(()) => {
                if let Some(streams) = &mut self.streams {
                    streams.note_packet();
                }
                self.unsent = 0;
                self.protocol.rest_after(now, peer);
                true
            }
            Err(packet) => {
                let _ = self.queue(peer, packet); // an event reports a peer that is gone
                false
            }
        }
    }

    /// The same for the packets of a message.
    #[inline(never)]
    fn send_message_at_once(&mut self, peer: Peer, open: OpenPacket) -> bool {
        let (now, last) = (self.now(), open.close(&mut self.carrier));
        self.made.push(last);
        let Self { protocol, carrier, made, .. } = self;
        let is_sent = protocol.send_run_at_once(now, peer, made, |to, packets, headers| {
            carrier.send_run(to, packets, headers);
        });
        if !is_sent {
            let _ = self.queue_made(peer); // as above
            return false;
        }
        if let Some(streams) = &mut self.streams {
            streams.note_packet();
        }
        self.unsent = 0;
        self.protocol.rest_after(now, peer);
        true
    }

    /// Takes back the memory of packets that their peers have acknowledged; returns how many packets those
    /// are.
    pub fn reap(&mut self) -> usize {
        let before = self.in_use();
        before - self.take_back_all().min(before)
    }

    /// Takes back all memory that is free, and returns how many packets are left.
    pub(super) fn take_back_all(&mut self) -> usize {
        self.reclaim();
        self.carrier.take_back();
        self.in_use()
    }

    /// Packets that were made of messages and are not acknowledged yet.
    pub fn in_flight(&self) -> usize {
        let kept =
            self.carrier.unacknowledged() + self.streams.as_ref().map_or(0, |streams| streams.in_use());
        // No underflow: acknowledged packets are kept until the next look takes their memory back.
        kept.saturating_sub(self.protocol.acknowledged_count())
    }
}

#[cold]
pub(super) fn rejected(buffers: Buffers, reason: Reason) -> Rejected<Payload> {
    Rejected { item: Payload(buffers), reason }
}

pub(super) fn refused(refusal: QueueError) -> Reason {
    match refusal {
        QueueError::Gone(_) => Reason::Gone,
        QueueError::Finished => Reason::Finished,
        _ => Reason::Full,
    }
}

/// The error for a peer that the protocol no longer knows.
fn gone(_: Gone) -> Reason {
    Reason::Gone
}

/// The fresh packets that a message needs.
pub(super) struct Plan {
    payload_bytes_max: usize,
    packets: usize,
    /// The message fits into one packet.
    is_whole: bool,
    /// A packet is being filled for the peer.
    has_open: bool,
    /// Unacknowledged packets to the peer.
    unacknowledged: usize,
}

impl Plan {
    /// The longest payload of a packet.
    pub(super) fn payload_bytes_max(&self) -> usize {
        self.payload_bytes_max
    }
}
