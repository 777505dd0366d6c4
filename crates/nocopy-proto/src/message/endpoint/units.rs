//! Messages by a stream beside the datagrams of a connection (docs/protocol.md §16): the connection of a
//! stream, and units that are sent, by another stream again if theirs is cut, and arrive.

use std::net::IpAddr;

use super::{Endpoint, Entry, State, index_of};
use crate::message::connection::Agreed;
use crate::message::receive_window::{Arrival, placed};
use crate::message::wire::{AbortReason, Attach, Attached, HEADER_BYTES, Unit};
use crate::message::{Gone, LostReason, Path, Peer, QueueError, Time, sequence};

/// The most peers that wait for a stream which this end has to open.
const ASKING_MAX: usize = 64;

/// What to do with a unit whose header has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arriving {
    /// It is next in order: there must be memory for it.
    Next,
    /// Keep it when there is memory.
    Later,
    /// Skip its bytes: it has arrived already, by an earlier stream.
    Passed,
    /// Invalid: the stream cannot be used any more.
    Impossible,
}

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    /// Whether there is such a peer, connected or not yet.
    #[inline]
    pub fn has_peer(&self, peer: Peer) -> bool {
        self.open(peer).is_ok()
    }

    /// Wants a stream to a peer, if that takes part in streams, and knows of the connection. The client has
    /// to open it: returns where it goes and what it begins with. The server asks the client for it, by its
    /// next datagram.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn want_stream(&mut self, peer: Peer) -> Result<Option<(Path, Attach)>, Gone> {
        let Some(connection) = self.open_mut(peer)?.filter(|connection| connection.confirmed) else {
            return Ok(None);
        };
        let Agreed { remote_id: to, path, stream_key: Some(key), is_client, .. } = connection.agreed else {
            return Ok(None);
        };
        if !is_client {
            connection.ask_for_stream();
            self.touch(peer.index);
            return Ok(None);
        }
        let from = self.entries[peer.index()].id;
        Ok(Some((path, Attach { to, from, key })))
    }

    /// The next peer that has asked for a stream, which this end, the client, has to
    /// [open](Self::want_stream). A peer that asks although it has one has lost it.
    #[inline]
    pub fn next_asking(&mut self) -> Option<Peer> {
        self.asking.pop()
    }

    /// Notes that the peer of a connection asks for a stream. It does so again while it wants one, so not all
    /// need be kept.
    #[cold]
    pub(super) fn note_asking(&mut self, index: u32) {
        let Entry { generation, state, .. } = &self.entries[index as usize];
        let peer = Peer { index, generation: *generation };
        if let State::Open(connection) = state
            && connection.agreed.is_client
            && connection.agreed.stream_key.is_some()
            && self.settings.streams
            && self.asking.len() < ASKING_MAX
            && !self.asking.contains(&peer)
        {
            self.asking.push(peer);
        }
    }

    /// The peer of a stream that came from this address and begins with these bytes, and the answer to send;
    /// `None`: the stream belongs to no peer.
    ///
    /// A peer that sends the right key has received the Accept that contained it, so the connection counts as
    /// confirmed from then on.
    pub fn attach(&mut self, from: IpAddr, attach: &Attach) -> Option<(Peer, Attached)> {
        let index = index_of(attach.to);
        let key = self.stream_key(attach.to);
        let entry = self.entries.get_mut(index as usize).filter(|entry| entry.id == attach.to)?;
        let peer = Peer { index, generation: entry.generation };
        let State::Open(connection) = &mut entry.state else { return None };
        let is_its = connection.agreed.path.remote.ip() == from
            && connection.agreed.remote_id == attach.from
            && key == Some(attach.key)
            && !connection.agreed.is_client
            && !connection.agreed.crc;
        if !is_its {
            return None;
        }
        connection.confirmed = true;
        if !connection.announced {
            self.events.push(connection.is_beside, connection.announce(peer));
        }
        self.touch(index);
        Some((peer, Attached { to: attach.from }))
    }

    /// There is a stream to a peer, in place of any earlier one: units may be sent by it, and those that the
    /// earlier one has not delivered are sent again.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn stream_opened(&mut self, now: Time, peer: Peer) -> Result<(), Gone> {
        if let Some(connection) = self.open_mut(peer)? {
            connection.open_stream(now);
            self.touch(peer.index);
        }
        Ok(())
    }

    /// Reports that a peer has no stream any more. Its units wait for another one, which is
    /// [wanted](Self::want_stream) while [there are any](Self::has_units); if there is none for 30 s, or five
    /// in a row are cut before a unit is acknowledged, the connection is lost.
    pub fn stream_cut(&mut self, now: Time, peer: Peer) {
        if let Ok(Some(connection)) = self.open_mut(peer) {
            connection.lose_stream(now);
            self.touch(peer.index);
        }
    }

    /// Whether units to a peer are not acknowledged.
    pub fn has_units(&self, peer: Peer) -> bool {
        matches!(self.open(peer), Ok(Some(connection)) if connection.send.has_units())
    }

    /// Whether units may be sent to a peer.
    #[inline]
    pub fn has_stream(&self, peer: Peer) -> bool {
        matches!(self.open(peer), Ok(Some(connection)) if connection.has_stream())
    }

    /// Queues a unit: whole messages with their headers, `bytes` in total, that take `span` sequence numbers,
    /// as many as packets ([`Laid`](crate::message::framing::Laid)). The endpoint keeps it until the peer has
    /// acknowledged it.
    ///
    /// # Errors
    /// Gives the unit back: no room, no peer, or one that does not know of the connection yet, or never has
    /// room for so many packets ([`Outlook::window`](super::Outlook::window)).
    pub fn queue_unit(&mut self, peer: Peer, unit: S, span: u32, bytes: u32) -> Result<(), (S, QueueError)> {
        let connection = match self.open_to_send(peer) {
            Ok(connection) => connection,
            Err(error) => return Err((unit, error)),
        };
        let is_impossible = span > connection.agreed.credit || !connection.confirmed;
        if is_impossible || connection.room() < span as usize {
            connection.refuse(span as usize);
            return Err((unit, QueueError::Full));
        }
        connection.send.push_unit(unit, span, bytes);
        self.touch(peer.index);
        Ok(())
    }

    /// The sequence number of the packet that is expected next from a peer.
    #[cfg(any(test, feature = "simulation"))]
    #[doc(hidden)]
    pub fn expected_of(&self, peer: Peer) -> Option<u32> {
        let connection = self.open(peer).ok().flatten()?;
        Some(sequence::narrow(connection.receive.expected()))
    }

    /// What to do with a unit with this header, which arrives over the stream of a peer.
    pub fn arriving(&self, peer: Peer, unit: &Unit) -> Arriving {
        let Ok(Some(connection)) = self.open(peer) else { return Arriving::Impossible };
        let first = sequence::widen(unit.header.sequence, connection.receive.expected());
        if !connection.may_be_unit(unit) {
            return Arriving::Impossible;
        }
        match connection.receive.arrival_of_unit(first, unit.span.into()) {
            Arrival::InOrder => Arriving::Next,
            Arrival::OpensGap | Arrival::Ahead => Arriving::Later,
            Arrival::Duplicate => Arriving::Passed,
            Arrival::Outside => Arriving::Impossible,
        }
    }

    /// Reports that there is no memory for a unit that arrives over a stream. While that lasts, connections
    /// that keep parts of messages without progress are ended (docs/protocol.md §8.2). Returns the time for
    /// which there was a lack so far.
    pub fn refuse_unit(&mut self, now: Time) -> Time {
        let lacked = self.admission.refuse_unit(now);
        self.end_stalled();
        lacked
    }

    /// Reports that a peer's next unit in order waits for memory of the caller's, and not by its peer's
    /// fault. Returns whether it may have the reserve, which is free or not: networks take turns
    /// (docs/protocol.md §16.3).
    pub fn unit_waits(&mut self, peer: Peer, reserve_is_free: bool) -> bool {
        self.has_peer(peer) && self.admission.unit_waits(peer.index, reserve_is_free)
    }

    /// Reports that there is memory for a peer's unit.
    pub fn unit_begins(&mut self, peer: Peer) {
        if self.has_peer(peer) {
            self.admission.unit_begins(peer.index);
        }
    }

    /// Notes that a part of a unit with this header has arrived: if the unit is next in order, its peer makes
    /// progress (docs/protocol.md §8.2).
    pub fn unit_goes_on(&mut self, peer: Peer, unit: &Unit) {
        if self.arriving(peer, unit) == Arriving::Next {
            self.admission.note_progress(peer.index);
        }
    }

    /// Handles a complete unit from the stream of a peer, with its header. If it is not kept,
    /// [`released`](Self::released) returns it.
    pub fn handle_unit(&mut self, now: Time, peer: Peer, received: R) {
        let whole = received.as_ref().split_first_chunk::<HEADER_BYTES>().and_then(|(header, messages)| {
            Unit::parse(header).ok().filter(|unit| unit.bytes as usize == messages.len())
        });
        self.take_unit(now, peer, whole, received);
    }

    /// Handles a unit of one message whose bytes were placed elsewhere, where the caller keeps them with
    /// `received`: that is nothing but what precedes them, the header of the unit and that of the message,
    /// with or without bytes that follow.
    pub fn handle_placed_unit(&mut self, now: Time, peer: Peer, received: R) {
        let bytes = received.as_ref();
        let header = bytes.first_chunk().filter(|_| placed(bytes).is_some());
        let unit = header.and_then(|header| Unit::parse(header).ok());
        self.take_unit(now, peer, unit, received);
    }

    fn take_unit(&mut self, now: Time, peer: Peer, unit: Option<Unit>, received: R) {
        let Some(unit) = unit.filter(|_| matches!(self.open(peer), Ok(Some(_)))) else {
            self.counters.malformed += 1;
            return self.released.push(received);
        };
        let index = peer.index;
        let State::Open(connection) = &mut self.entries[index as usize].state else { return };
        let (counters, free) = (&mut self.counters, &mut self.acknowledged);
        connection.handle_word_of_unit(now, &unit.header, counters, free);
        let is_next = unit.header.sequence == sequence::narrow(connection.receive.expected());
        match connection.handle_unit(now, &unit, received, counters) {
            Ok(returned) => {
                if returned.is_none() {
                    self.admission.keep_unit(index, is_next);
                }
                connection.receive.release(&mut self.released);
                let receive = &connection.receive;
                self.admission.came(index, receive.kept(), receive.ready() > 0, receive.is_unfinished());
                self.after_packet(now, index);
                self.released.extend(returned);
                if self.admission.is_short() {
                    self.end_stalled();
                }
            }
            Err(violation) => {
                self.tell_abort(index, AbortReason::VIOLATION);
                self.lose(index, LostReason::Violation(violation));
            }
        }
    }
}
