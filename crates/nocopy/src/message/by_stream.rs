//! Sends and receives messages by streams beside an endpoint's datagrams.

use std::io;
use std::time::{Duration, Instant};

use nocopy_proto::message::framing::{self, Laid};
use nocopy_proto::message::{self as protocol, Kind, Outlook, Peer, QueueError, Time};

use super::arrivals::{Arrivals, Clock, Lone, Moment};
use super::carrier::{AnyCarrier, Carrier, Packet, Received};
use super::open_packet::Standing;
use super::sending::{refused, rejected};
use super::sent_shares::Free;
use super::streams::{LONG_BYTES, Limits, Streams};
use super::{NonblockingEndpoint, Payload};
use crate::engine::wait::{self, Wait, WakeupCoalescer};
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::pieces::Buffers;
use crate::sys::poll::Wakeup;
use crate::tcp::Published;

/// A long message of no more packets goes by datagrams if nothing else is on its way to the peer, and all of
/// them may be sent at once: one call sends them, one receives them, and the answer acknowledges them. (8 KiB
/// there and back have 1.0 to 1.2 times the speed of TCP, by the stream 0.9 to 1.0:
/// `nocopy bench message-latency`. From 16 packets on, acknowledgements would go in front of the answer.)
const ALONE_PACKETS_MAX: usize = 15;

impl NonblockingEndpoint {
    /// Whether an owned message to a peer goes by a stream.
    #[inline]
    pub(super) fn goes_by_stream(&mut self, peer: Peer, bytes: usize) -> bool {
        let Self { streams, protocol, .. } = self;
        streams.as_mut().is_some_and(|streams| streams.takes(peer, bytes, protocol))
    }

    /// Whether there is room for an owned message in a unit, which keeps it until it is acknowledged.
    /// Otherwise it goes by datagrams, of which there are fewer.
    pub(super) fn has_room_for_owned(&self, peer: Peer, buffers: &Buffers, bytes: usize) -> bool {
        let Some(streams) = &self.streams else { return false };
        let Free { left, all } = streams.room_for_owned();
        let is_plenty = left > all / 2 && bytes <= left;
        is_plenty || is_published(buffers) || {
            let payload_bytes = self.protocol.payload_bytes_max(peer).unwrap_or_default().max(1);
            let numbers = |bytes: usize| bytes.div_ceil(payload_bytes);
            self.protocol.has_share_of_units(peer, numbers(bytes), numbers(left)).unwrap_or(false)
        }
    }

    /// Sends an owned message by the stream.
    pub(super) fn send_unit(
        &mut self,
        kind: Kind,
        bytes: usize,
        buffers: Buffers,
        peer: Peer,
    ) -> Result<(), Rejected<Payload>> {
        self.close_packet_of(peer);
        let payload_bytes_max = match self.plan(peer, kind, bytes) {
            Ok(plan) => plan.payload_bytes_max(),
            Err(reason) => return Err(rejected(buffers, reason)),
        };
        let mut laid = Laid::default();
        laid.add(kind, bytes, payload_bytes_max);
        let Some(streams) = self.streams.as_mut() else { return Err(rejected(buffers, Reason::Full)) };
        let is_published = is_published(&buffers);
        let (number, unit_bytes) = streams.owned_unit(kind, bytes, buffers);
        let span = laid.packets() as u32;
        if let Err((_, refusal)) = self.protocol.queue_unit(peer, Packet::unit(number), span, unit_bytes) {
            return Err(rejected(streams.take_back(number), refused(refusal)));
        }
        self.sent.messages += 1;
        self.sent.by_stream += bytes as u64;
        self.count_taken(peer, bytes, is_published);
        self.count_unsent(1);
        Ok(())
    }

    /// Notes an accepted message that was not copied into a unit.
    #[inline]
    pub(super) fn count_taken(&mut self, peer: Peer, bytes: usize, is_published: bool) {
        if let Some(streams) = &mut self.streams {
            streams.count(peer, bytes, is_published);
        }
    }

    /// Notes that there was no room for a message.
    #[inline]
    pub(super) fn note_full(&mut self, peer: Peer) {
        if let Some(streams) = &mut self.streams {
            streams.note_full(peer);
        }
    }

    /// Begins a unit for a peer with a message that did not fit the one that was being filled, if messages to
    /// it are to go by the stream now; returns whether it did. Errors: there is no room for it.
    pub(super) fn put_in_fresh_unit(
        &mut self,
        peer: Peer,
        kind: Kind,
        message: &[u8],
    ) -> Result<bool, Reason> {
        let Standing { has_open, .. } = self.peers.standing(peer);
        let Self { streams: Some(streams), protocol, .. } = self else { return Ok(false) };
        // First, since the state of a peer that is gone must not replace that of its successor.
        let Ok(Outlook { payload_bytes_max, message_bytes_max, .. }) = protocol.outlook(peer) else {
            return Ok(false); // reported by the other way
        };
        let packets_max = || self.carrier.packets_a_call().min(ALONE_PACKETS_MAX).min(protocol.at_once(peer));
        let is_alone = message.len() >= LONG_BYTES
            && !has_open
            && streams.is_idle()
            && framing::packets(kind, message.len(), payload_bytes_max) <= packets_max();
        if is_alone || streams.passes_by(peer, message.len(), has_open) || message.len() > message_bytes_max {
            return Ok(false);
        }
        if streams.any_open().is_some() {
            self.close_unit_of(peer);
        }
        let Self { streams: Some(streams), protocol, .. } = self else { return Ok(false) };
        let is_for_stream = streams.takes(peer, message.len(), protocol)
            || has_open && streams.note_full_packet(peer, payload_bytes_max, protocol);
        if !is_for_stream || !streams.has_memory() {
            return Ok(false);
        }
        self.plan(peer, kind, message.len())?;
        if has_open {
            self.close_packet_of(peer);
        }
        let Self { streams: Some(streams), protocol, .. } = self else { return Ok(false) };
        // The room behind the packet that was just queued.
        let Ok(Outlook { room, window, .. }) = protocol.outlook(peer) else { return Ok(false) };
        let limits = Limits { payload_bytes_max, message_bytes_max, packets_max: room.min(window) };
        streams.begin_unit(peer, limits).put(kind, message);
        Ok(true)
    }

    /// Queues the unit that is being filled for a peer.
    pub(super) fn close_unit_of(&mut self, peer: Peer) {
        let Self { streams: Some(streams), .. } = self else { return };
        if let Some((number, span, bytes)) = streams.close_unit(peer) {
            self.queue_closed_unit(peer, number, span, bytes);
        }
    }

    fn queue_closed_unit(&mut self, peer: Peer, number: u32, span: u32, bytes: u32) {
        let Self { streams: Some(streams), protocol, .. } = self else { return };
        match protocol.queue_unit(peer, Packet::unit(number), span, bytes) {
            Ok(()) if protocol.has_stream(peer) => self.count_unsent(1),
            Ok(()) => {
                streams.note_cut(peer); // while it was filled
                self.count_unsent(1);
            }
            // An event reports a peer that is gone.
            Err((_, refusal)) => {
                debug_assert!(
                    !matches!(refusal, QueueError::Full),
                    "it was begun with room for {span} packets"
                );
                streams.release(number);
            }
        }
    }

    /// Sends the unit of the only peer for which one is being filled, if nothing else waits. False: there is
    /// none, or it was queued like others.
    pub(super) fn send_unit_at_once(&mut self) -> bool {
        let now = self.now();
        let Self { streams: Some(streams), protocol, .. } = self else { return false };
        let Some(peer) = streams.only_open() else { return false };
        let Some((number, span, bytes)) = streams.close_unit(peer) else { return false };
        let unit = (Packet::unit(number), span, bytes);
        let sent =
            protocol.send_unit_at_once(now, peer, unit, |_, header| streams.send(peer, number, header));
        if sent.is_err() {
            self.queue_closed_unit(peer, number, span, bytes);
            return false;
        }
        streams.flush();
        protocol.rest_after(now, peer);
        self.unsent = 0;
        true
    }

    /// Queues the units that are being filled for all peers, and begins another batch.
    pub(super) fn close_units(&mut self) {
        while let Some(peer) = self.streams.as_ref().and_then(|streams| streams.any_open()) {
            self.close_unit_of(peer);
        }
        if let Some(streams) = &mut self.streams {
            streams.end_batch();
        }
    }

    /// Discards the unit that is being filled for a peer.
    pub(super) fn discard_unit_of(&mut self, peer: Peer) {
        if let Some(streams) = &mut self.streams
            && let Some((number, ..)) = streams.close_unit(peer)
        {
            streams.release(number);
        }
    }

    /// Reports streams that were cut, and has others opened for units that wait for one.
    #[cold]
    pub(super) fn see_to_cuts(&mut self) {
        let now = self.now();
        let Self { streams: Some(streams), protocol, .. } = self else { return };
        streams.see_to_cuts(now, protocol);
    }

    /// Frees a packet that the peer has acknowledged, or whose peer is gone.
    #[inline]
    pub(super) fn release(&mut self, packet: Packet) {
        match packet.as_unit() {
            None => self.carrier.release(packet),
            Some(number) => {
                if let Some(streams) = &mut self.streams {
                    streams.release(number);
                }
            }
        }
    }

    /// Packets and units that are not acknowledged.
    pub(super) fn in_use(&self) -> usize {
        self.carrier.in_use() + self.streams.as_ref().map_or(0, |streams| streams.in_use())
    }

    /// Receives from the carrier and from streams, without waiting; returns the time.
    #[inline(always)] // for each message that comes alone
    pub(super) fn look_at_all(&mut self, reads_in_place: bool) -> io::Result<(Time, Option<Lone>)> {
        let Self { protocol, carrier, clock, streams, .. } = self;
        if let Some(streams) = streams
            && !streams.rests()
        {
            let Found { datagrams, mut moment, lone, .. } =
                look_at_both(protocol, carrier, clock, streams, reads_in_place);
            return datagrams.map(|_| (moment.now(), lone));
        }
        let mut arrivals = Arrivals::new(protocol, clock, reads_in_place);
        carrier.receive(&mut arrivals)?;
        let (now, lone) = (arrivals.now(), arrivals.lone);
        if let Some(streams) = streams {
            streams.end_rest_at(now);
            streams.open_asked(protocol);
        }
        Ok((now, lone))
    }

    /// Waits until something arrives from the carrier or a stream, or until the deadline; returns the time.
    /// If `reads_in_place`, a message that arrives alone may stay where it lies.
    pub(super) fn wait_beside(&mut self, until: Option<Instant>, reads_in_place: bool) -> io::Result<Time> {
        let Self { protocol, carrier, clock, streams: Some(streams), wait: how, lone, .. } = self else {
            return Ok(self.now());
        };
        let until = [until, Instant::now().checked_add(streams.care_within())].into_iter().flatten().min();
        let had_cut = streams.has_cut();
        let (came, coalescer) = (Ok(false), WakeupCoalescer::default());
        let mut looks = Looks {
            protocol,
            carrier,
            clock,
            streams,
            had_cut,
            came,
            coalescer,
            reads_in_place,
            lone: None,
            now: None,
        };
        wait::wait(&mut looks, wait_of(*how), until)?;
        *lone = looks.lone;
        looks.came.map(drop)?;
        Ok(looks.now.unwrap_or_else(|| clock.now()))
    }
}

/// What a look at the carrier and at streams found.
struct Found<'a> {
    datagrams: io::Result<usize>,
    /// Whether units arrived.
    units: bool,
    /// When something was found.
    moment: Moment<'a>,
    /// The message that arrived alone.
    lone: Option<Lone>,
}

/// Receives from the carrier, if it is its turn, and from streams.
fn look_at_both<'a>(
    protocol: &mut protocol::Endpoint<Packet, Received>,
    carrier: &mut AnyCarrier,
    clock: &'a Clock,
    streams: &mut Streams,
    reads_in_place: bool,
) -> Found<'a> {
    let mut arrivals = Arrivals::new(protocol, clock, reads_in_place);
    let datagrams = match streams.wants_carrier() {
        true => carrier.receive(&mut arrivals),
        false => Ok(0),
    };
    let Arrivals { mut moment, mut lone, .. } = arrivals;
    if !matches!(datagrams, Ok(0)) {
        streams.note_datagrams();
        streams.open_asked(protocol);
    }
    let mut units = false;
    if !streams.rests() {
        // Not if an error is to be returned, and not the message.
        streams.read_in_place(reads_in_place && lone.is_none() && datagrams.is_ok());
        units = streams.receive(&mut moment, protocol);
        lone = lone.or_else(|| streams.take_lone());
    }
    Found { datagrams, units, moment, lone }
}

/// Whether published data is among the buffers to send.
#[inline]
pub(super) fn is_published(buffers: &Buffers) -> bool {
    buffers.iter().any(|buffer| buffer.owner_as::<Published>().is_some())
}

/// Looks at the carrier and at streams.
struct Looks<'a> {
    protocol: &'a mut protocol::Endpoint<Packet, Received>,
    carrier: &'a mut AnyCarrier,
    clock: &'a Clock,
    streams: &'a mut Streams,
    /// A stream was cut before the wait, so that does not end the wait.
    had_cut: bool,
    came: io::Result<bool>,
    coalescer: WakeupCoalescer,
    reads_in_place: bool,
    /// The message that arrived alone.
    lone: Option<Lone>,
    /// When the last look found something.
    now: Option<Time>,
}

impl wait::WaitSource for Looks<'_> {
    /// A look at a port only reads memory; any other look is a system call or two.
    fn polls_per_clock_read(&self) -> u32 {
        if self.carrier.is_socket() || !self.streams.is_at_rest() { 4 } else { 64 }
    }

    fn is_ready(&mut self) -> bool {
        let Self { protocol, carrier, clock, streams, reads_in_place, .. } = self;
        let Found { datagrams, units, moment, lone } =
            look_at_both(protocol, carrier, clock, streams, *reads_in_place);
        self.lone = lone;
        self.now = moment.known();
        let is_cut = !self.had_cut && self.streams.has_cut();
        self.came = datagrams.map(|datagrams| datagrams > 0 || units || is_cut || self.lone.is_some());
        !matches!(self.came, Ok(false))
    }

    fn arm(&mut self) -> io::Result<bool> {
        let Self { carrier, streams, .. } = self;
        if carrier.is_socket() {
            streams.unwatch_only();
        }
        if !streams.can_be_polled() || !carrier.is_socket() {
            streams.watch_carrier(|poll| carrier.watch(poll))?;
        }
        if carrier.is_socket() {
            carrier.flush(); // what it did not take before
            carrier.leave_none_out();
            return Ok(false); // what it has ends the wait by the kernel at once
        }
        if !carrier.arm()? {
            return Ok(false);
        }
        streams.note_datagrams(); // so that they are looked at
        Ok(self.is_ready())
    }

    fn refill_and_wake(&mut self) -> io::Result<()> {
        self.carrier.flush();
        Ok(())
    }

    fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup> {
        let look = if self.carrier.wants_look() { super::endpoint::LOOK_INTERVAL } else { timeout };
        let timeout = timeout.min(look);
        match self.carrier.sockets() {
            Some(sockets) if self.streams.can_be_polled() => {
                self.streams.wait_beside(timeout, |first, second, timeout| {
                    sockets.wait_beside([Some(first), second], timeout)
                })
            }
            _ => self.streams.wait(timeout),
        }
    }

    fn read_count_and_room(&self) -> (u32, u32) {
        (0, u32::MAX)
    }

    fn coalescer(&mut self) -> &mut WakeupCoalescer {
        &mut self.coalescer
    }
}

/// The way of waiting that is used with streams: packets are not counted there.
fn wait_of(how: Wait) -> Wait {
    match how {
        Wait::Coalesced { .. } => Wait::Interrupt,
        other => other,
    }
}

#[cfg(test)]
mod tests;
