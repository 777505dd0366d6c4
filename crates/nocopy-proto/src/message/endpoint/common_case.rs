//! The short way for the common case: it receives packets that are next in order, from a known peer, with
//! whole messages, and sends packets to a peer for which nothing else is queued. It looks the connection up
//! only once. A message that arrives alone is read in place, and never kept. All other datagrams go the
//! general way; both ways have the same effect (`twins` tests this).

use std::net::SocketAddr;
use std::ops::Range;

use super::{Endpoint, Entry, PACKETS_IN_A_ROW, State, index_of};
use crate::message::framing::{self, Spread};
use crate::message::receive_window::{Lone, ReceiveWindow};
use crate::message::wire::{self, HEADER_BYTES, Header, Headers, Ranges, Unit};
use crate::message::{Kind, Path, Peer, Time};

/// What [`Endpoint::transmit_fresh`] sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fresh {
    /// Nothing.
    None,
    /// Packets.
    Some,
    /// Packets, and there is nothing more to send to any peer: [`Endpoint::rest_after_last`] is to follow.
    Last,
}

/// The next packet of a connection, and how many messages it holds.
#[derive(Clone, Copy)]
struct NextPacket {
    index: u32,
    messages: usize,
}

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    /// Checks whether a datagram is the next packet of its connection and holds nothing but whole messages.
    #[inline(always)] // for each packet
    fn next_of(&self, from: SocketAddr, bytes: &[u8]) -> Option<NextPacket> {
        let header = Header::of_packet(wire::plain(bytes)?);
        let index = index_of(header.to);
        let Entry { id, state: State::Open(connection), .. } = self.entries.get(index as usize)? else {
            return None;
        };
        let is_common = *id == header.to
            && connection.agreed.path.remote == from
            && connection.is_settled()
            && self.admission.has_plenty();
        let messages =
            if is_common { connection.receive.whole_messages(header.sequence, bytes)? } else { return None };
        Some(NextPacket { index, messages })
    }

    /// Keeps such a packet, as [`handle_datagram`](Self::handle_datagram) does.
    #[inline(always)]
    fn keep_next(&mut self, now: Time, congested: bool, next: NextPacket, header: &Header, datagram: R) {
        let NextPacket { index, messages } = next;
        let Some(Entry { state: State::Open(connection), is_readable, is_sending, .. }) =
            self.entries.get_mut(index as usize)
        else {
            return;
        };
        let (counters, free) = (&mut self.counters, &mut self.acknowledged);
        connection.handle_acknowledgement(now, header, Ranges::default(), counters, free);
        connection.note_next(now, header, congested);
        counters.packets_received += 1;
        self.admission.keep_next(index);
        connection.receive.push_whole(datagram, messages);
        self.admission.has_whole(index, connection.receive.kept());
        if !std::mem::replace(is_readable, true) {
            self.readable.push_back(index);
        }
        let wants_to_send = connection.wants_to_send();
        self.urgent |= wants_to_send;
        if wants_to_send {
            self.touch(index);
        } else if !*is_sending && !connection.sets_alarm(now, index, &mut self.timers) {
            self.rest(index, now);
        }
    }

    /// Handles a packet that is the next one of its connection and holds nothing but whole messages, as
    /// [`handle_datagram`](Self::handle_datagram) does. Gives any other datagram back; then nothing has
    /// changed.
    pub(super) fn handle_next(
        &mut self,
        now: Time,
        from: SocketAddr,
        congested: bool,
        datagram: R,
    ) -> Result<(), R> {
        let bytes = datagram.as_ref();
        if let Some(next) = self.next_of(from, bytes)
            && let Some(header) = wire::plain(bytes).map(Header::of_packet)
        {
            self.keep_next(now, congested, next, &header, datagram);
            return Ok(());
        }
        if self.handle_plain_ack(now, from, bytes) {
            self.released.push(datagram);
            return Ok(());
        }
        Err(datagram)
    }

    /// Handles a common datagram in place, as [`handle_datagram`](Self::handle_datagram) does. For a packet
    /// with messages, `keep` makes what is kept; without memory for that, the packet counts as not received.
    /// Returns false for any other datagram, and then has changed nothing.
    #[inline]
    pub fn handle_in_place(
        &mut self,
        now: Time,
        from: SocketAddr,
        congested: bool,
        bytes: &[u8],
        keep: impl FnOnce() -> Option<R>,
    ) -> bool {
        if !self.takes_short_ways() {
            return false;
        }
        match self.next_of(from, bytes) {
            Some(next) => {
                if let (Some(header), Some(datagram)) = (wire::plain(bytes), keep()) {
                    self.keep_next(now, congested, next, &Header::of_packet(header), datagram);
                }
                true
            }
            None => self.handle_plain_ack(now, from, bytes),
        }
    }

    /// Handles a datagram that holds only one message, and reads that in place, as
    /// [`handle_datagram`](Self::handle_datagram) and [`receive`](Self::receive) would, if no other message
    /// waits. Returns the message's peer, kind, and place in the datagram. Returns `None` for any other
    /// datagram, and then has changed nothing.
    #[inline]
    pub fn receive_in_place(
        &mut self,
        now: Time,
        from: SocketAddr,
        congested: bool,
        bytes: &[u8],
    ) -> Option<(Peer, Kind, Range<usize>)> {
        self.receive_alone(now, from, congested, bytes, |receive, header| receive.lone_message(header, bytes))
    }

    /// Handles datagrams that arrived together from one sender and hold one message and nothing else, and
    /// reads that in place, as [`handle_run`](Self::handle_run) and [`receive`](Self::receive) would, if no
    /// other message waits. They lie one after another in `run`, each of `packet_bytes` bytes, except that
    /// the last may be shorter. Returns the message's peer, kind, and place. Returns `None` for any other
    /// datagrams, and then has changed nothing.
    ///
    /// # Panics
    /// `packet_bytes` is 0.
    #[inline]
    pub fn receive_run_in_place(
        &mut self,
        now: Time,
        from: SocketAddr,
        congested: bool,
        run: &[u8],
        packet_bytes: usize,
    ) -> Option<(Peer, Kind, Spread)> {
        // Most are none of these.
        if !framing::begins_long_one(run.get(HEADER_BYTES..)?) {
            return None;
        }
        self.receive_alone(now, from, congested, run, |receive, header| {
            receive.lone_of_run(header, run, packet_bytes)
        })
    }

    /// Reads the message in place that `find` finds alone in these packets.
    #[inline(always)] // for each message that comes alone
    fn receive_alone<P>(
        &mut self,
        now: Time,
        from: SocketAddr,
        congested: bool,
        packets: &[u8],
        find: impl FnOnce(&ReceiveWindow<R>, &Header) -> Option<Lone<P>>,
    ) -> Option<(Peer, Kind, P)> {
        let header = Header::of_packet(wire::plain(packets)?);
        if self.has_message() || !self.takes_short_ways() {
            return None;
        }
        let index = index_of(header.to);
        let Entry { id, generation, state: State::Open(connection), .. } =
            self.entries.get_mut(index as usize)?
        else {
            return None;
        };
        let is_common = *id == header.to
            && connection.agreed.path.remote == from
            && connection.is_settled()
            && !self.admission.has_turn(index);
        if !is_common {
            return None;
        }
        let Lone { kind, bytes, place, packets, sent } = find(&connection.receive, &header)?;
        if !self.admission.has_plenty_for(packets) {
            return None;
        }
        let (counters, free) = (&mut self.counters, &mut self.acknowledged);
        connection.handle_acknowledgement(now, &header, Ranges::default(), counters, free);
        connection.note_next_run(now, sent, packets, congested);
        counters.packets_received += packets as u64;
        self.admission.pass(index, packets);
        connection.receive.pass_lone(packets as u64);
        let peer = Peer { index, generation: *generation };
        self.after_lone(now, index, bytes);
        Some((peer, kind, place))
    }

    /// Handles a unit that holds only one message, and reads that in place, as
    /// [`handle_unit`](Self::handle_unit) and [`receive`](Self::receive) would, if no other message waits.
    /// Returns the message's kind and place in the unit. Returns `None` for any other unit, and then has
    /// changed nothing.
    #[inline]
    pub fn receive_unit_in_place(
        &mut self,
        now: Time,
        peer: Peer,
        bytes: &[u8],
    ) -> Option<(Kind, Range<usize>)> {
        let unit = Unit::parse(bytes.first_chunk()?).ok()?;
        if self.has_message() || !self.takes_short_ways() {
            return None;
        }
        let index = peer.index;
        let Entry { generation, state: State::Open(connection), .. } =
            self.entries.get_mut(index as usize)?
        else {
            return None;
        };
        let is_common = *generation == peer.generation
            && connection.is_settled()
            && connection.may_be_unit(&unit)
            && self.admission.has_plenty()
            && !self.admission.has_turn(index);
        if !is_common {
            return None;
        }
        let (kind, range) = connection.receive.lone_of_unit(&unit, bytes)?;
        let (counters, free) = (&mut self.counters, &mut self.acknowledged);
        connection.handle_word_of_unit(now, &unit.header, counters, free);
        connection.note_next_unit(now, &unit);
        counters.units_received += 1;
        self.admission.note_progress(index);
        connection.receive.pass_lone(unit.span.into());
        self.after_lone(now, index, range.len());
        Some((kind, range))
    }

    /// What follows when a message of so many bytes was read in place, and its packet or unit is passed.
    #[inline(always)] // for each message that comes alone
    fn after_lone(&mut self, now: Time, index: u32, bytes: usize) {
        let Some(Entry { state: State::Open(connection), is_sending, .. }) =
            self.entries.get_mut(index as usize)
        else {
            return;
        };
        self.counters.messages_received += 1;
        self.counters.message_bytes_received += bytes as u64;
        let wants_to_send = connection.wants_to_send();
        self.urgent |= wants_to_send;
        let rests = !wants_to_send && !*is_sending && !connection.sets_alarm(now, index, &mut self.timers);
        connection.consumed();
        let wants_to_send = wants_to_send || connection.wants_attention();
        if rests {
            self.rest(index, now);
        }
        if wants_to_send {
            self.touch(index);
        }
    }

    /// Handles a lone acknowledgement without questions and ranges in place, as
    /// [`handle_datagram`](Self::handle_datagram) does. Returns false for any other datagram, and then has
    /// changed nothing.
    #[inline]
    fn handle_plain_ack(&mut self, now: Time, from: SocketAddr, datagram: &[u8]) -> bool {
        let Some(header) = wire::plain_ack(datagram).filter(|_| self.takes_short_ways()) else {
            return false;
        };
        let index = index_of(header.to);
        let Some(entry) = self.entries.get_mut(index as usize) else { return false };
        let Entry { id, state: State::Open(connection), .. } = entry else { return false };
        let is_common = *id == header.to && connection.agreed.path.remote == from && connection.is_settled();
        if !is_common || connection.receive.is_finished() {
            return false;
        }
        let (counters, free) = (&mut self.counters, &mut self.acknowledged);
        connection.handle_acknowledgement(now, &header, Ranges::default(), counters, free);
        // At rest nothing is to be sent, and nothing is due earlier than the alarm that is set already.
        if let Some(deadline) = connection.deadline_at_rest()
            && self.timers.put_off(now, index, deadline)
        {
            return true;
        }
        let wants_to_send = connection.wants_to_send();
        self.urgent |= wants_to_send;
        self.touch_or_rest(now, index, wants_to_send);
        true
    }

    /// Queues a packet and sends it, as [`queue`](Self::queue) and [`poll_transmit`](Self::poll_transmit)
    /// would, if it is the only one to be sent to any peer and nothing needs a decision. Calls back with the
    /// packet, its destination and header. [`rest_after`](Self::rest_after) must follow.
    ///
    /// # Errors
    /// Gives the packet back if it is not like that; then nothing has changed.
    #[inline]
    pub fn send_at_once(
        &mut self,
        now: Time,
        peer: Peer,
        packet: S,
        each: impl FnOnce(&Path, &mut S, &[u8; HEADER_BYTES]),
    ) -> Result<(), S> {
        if !self.is_only_one_to_send(peer) {
            return Err(packet);
        }
        let entry = self.entries.get_mut(peer.index()).filter(|entry| entry.generation == peer.generation);
        let Some(Entry { state: State::Open(connection), .. }) = entry else { return Err(packet) };
        connection.send_at_once(now, packet, each)?;
        self.counters.packets_sent += 1;
        (self.urgent, self.in_a_row) = (false, 0);
        self.sending.clear();
        Ok(())
    }

    /// As [`send_at_once`](Self::send_at_once), for several packets, which are taken out of `packets`,
    /// instead of [`queue_all`](Self::queue_all). Gives all of them and their headers to `send`. False: it is
    /// not like that, and nothing has changed.
    #[inline]
    pub fn send_run_at_once(
        &mut self,
        now: Time,
        peer: Peer,
        packets: &mut Vec<S>,
        send: impl FnOnce(&Path, &[S], Headers),
    ) -> bool {
        if packets.is_empty() || !self.is_only_one_to_send(peer) {
            return false;
        }
        let entry = self.entries.get_mut(peer.index()).filter(|entry| entry.generation == peer.generation);
        let Some(Entry { state: State::Open(connection), .. }) = entry else { return false };
        let count = packets.len() as u64;
        if !connection.send_run_at_once(now, packets, send) {
            return false;
        }
        self.counters.packets_sent += count;
        (self.urgent, self.in_a_row) = (false, 0);
        self.sending.clear();
        true
    }

    /// As [`send_at_once`](Self::send_at_once), for a unit of so many numbers and bytes, instead of
    /// [`queue_unit`](Self::queue_unit).
    ///
    /// # Errors
    /// Gives the unit back; then nothing has changed.
    #[inline]
    pub fn send_unit_at_once(
        &mut self,
        now: Time,
        peer: Peer,
        unit: (S, u32, u32),
        each: impl FnOnce(&mut S, &[u8; HEADER_BYTES]),
    ) -> Result<(), S> {
        if !self.is_only_one_to_send(peer) {
            return Err(unit.0);
        }
        let entry = self.entries.get_mut(peer.index()).filter(|entry| entry.generation == peer.generation);
        let Some(Entry { state: State::Open(connection), .. }) = entry else { return Err(unit.0) };
        connection.send_unit_at_once(now, unit, each)?;
        self.counters.units_sent += 1;
        (self.urgent, self.in_a_row) = (false, 0);
        self.sending.clear();
        Ok(())
    }

    /// Whether nothing is to be sent to any other peer, and a short way may be taken.
    #[inline]
    fn is_only_one_to_send(&self, peer: Peer) -> bool {
        let is_next = match self.sending.len() {
            0 => true,
            1 => self.sending.front() == Some(&peer.index),
            _ => false,
        };
        is_next && self.answers.is_empty() && self.takes_short_ways()
    }

    /// To be called after [`send_at_once`](Self::send_at_once), when the packet was sent.
    #[inline(always)] // for each message that goes alone
    pub fn rest_after(&mut self, now: Time, peer: Peer) {
        let entry = &mut self.entries[peer.index as usize];
        if let State::Open(connection) = &entry.state
            && !connection.receive.is_finished()
            && connection.sets_alarm(now, peer.index, &mut self.timers)
        {
            entry.is_sending = false;
        } else {
            self.rest(peer.index, now);
        }
    }

    /// Sends the queued packets of the peer whose turn it is, as [`poll_transmit`](Self::poll_transmit)
    /// would, as long as they are sent for the first time and nothing needs a decision, and no more than
    /// `most`. Calls back with each packet, its destination and header.
    #[inline]
    pub fn transmit_fresh(
        &mut self,
        now: Time,
        most: u32,
        mut each: impl FnMut(&Path, &mut S, &[u8; HEADER_BYTES]),
    ) -> Fresh {
        let most = most.min(PACKETS_IN_A_ROW - 1 - self.in_a_row);
        let Some(&index) = self.sending.front() else { return Fresh::None };
        if most == 0 || !self.answers.is_empty() || !self.takes_short_ways() {
            return Fresh::None;
        }
        let State::Open(connection) = &mut self.entries[index as usize].state else { return Fresh::None };
        let path = connection.agreed.path;
        let sent = connection.send_fresh(now, most, |packet, header| each(&path, packet, header));
        self.in_a_row += sent;
        self.counters.packets_sent += u64::from(sent);
        match sent {
            0 => Fresh::None,
            _ if self.sending.len() == 1 && !connection.wants_to_send() => Fresh::Last,
            _ => Fresh::Some,
        }
    }

    /// Sends an acknowledgement to the peer whose turn it is, as [`poll_transmit`](Self::poll_transmit)
    /// would, if nothing else is to be sent to it. Calls back with the datagram, its destination, and whether
    /// it is the last to any peer. Returns whether there was one.
    #[inline]
    pub fn transmit_ack(&mut self, now: Time, each: impl FnOnce(&Path, &[u8; HEADER_BYTES], bool)) -> bool {
        let Some(&index) = self.sending.front() else { return false };
        if !self.answers.is_empty() || self.in_a_row >= PACKETS_IN_A_ROW - 1 || !self.takes_short_ways() {
            return false;
        }
        let State::Open(connection) = &mut self.entries[index as usize].state else { return false };
        let Some(ack) = connection.plain_ack(now) else { return false };
        self.counters.acks_sent += 1;
        self.sending.pop_front();
        self.in_a_row = 0;
        self.urgent &= !self.sending.is_empty();
        each(&connection.agreed.path, &ack, self.sending.is_empty());
        self.rest_after_ack(now, index);
        true
    }

    /// If the first thing due is an acknowledgement, nothing else is to be sent to its peer, and nothing to
    /// others, passes it on with its destination and whether nothing more is due.
    /// [`handle_timeout`](Self::handle_timeout) and [`poll_transmit`](Self::poll_transmit) would have the
    /// same effect. Returns whether more is due, or may be.
    #[inline]
    pub fn acknowledge_due(
        &mut self,
        now: Time,
        each: impl FnOnce(&Path, &[u8; HEADER_BYTES], bool),
    ) -> bool {
        if !self.sending.is_empty() || !self.answers.is_empty() || !self.takes_short_ways() {
            return true;
        }
        let Some(index) = self.timers.due_soon(now) else { return true };
        let State::Open(connection) = &mut self.entries[index as usize].state else { return true };
        let Some(ack) = connection.plain_ack_when_due(now) else { return true };
        self.counters.acks_sent += 1;
        self.timers.take_soon(index);
        let more_is_due = self.timers.next().is_some_and(|due| due <= now);
        each(&connection.agreed.path, &ack, !more_is_due);
        self.rest_after_ack(now, index);
        more_is_due
    }

    /// Puts a connection to rest that has nothing to send after an acknowledgement. Nearly always it only
    /// waits for the peer's silence, and the alarm for that is set.
    #[inline(always)] // where peers are many, for each message
    fn rest_after_ack(&mut self, now: Time, index: u32) {
        let entry = &mut self.entries[index as usize];
        if let State::Open(connection) = &entry.state
            && let Some(deadline) = connection.deadline_at_rest()
            && self.timers.of(index).is_some_and(|alarm| alarm <= deadline)
        {
            entry.is_sending = false;
        } else {
            self.rest(index, now);
        }
    }

    /// After [`Fresh::Last`], when its packets are on their way: what [`poll_transmit`](Self::poll_transmit)
    /// would do, which would give nothing.
    #[inline]
    pub fn rest_after_last(&mut self, now: Time) {
        self.urgent = false;
        if let Some(index) = self.sending.pop_front() {
            self.in_a_row = 0;
            self.rest(index, now);
        }
    }
}
