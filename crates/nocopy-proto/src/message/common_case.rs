//! The common case, made straight: a packet of a known peer that is the next in order and holds whole messages, and packets to a peer to
//! which there is nothing else to say. Everything is decided with one look-up of the connection. What is not like that goes the general
//! way, and both come to the same (`twins`).

use std::net::SocketAddr;

use super::endpoint::{Entry, PACKETS_IN_A_ROW, State, index_of};
use super::wire::{self, HEADER_BYTES, Header, Ranges};
use super::{Endpoint, Time};

/// What [`Endpoint::transmit_fresh`] sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fresh {
    /// Nothing.
    None,
    /// Packets.
    Some,
    /// Packets, and there is nothing more to send to anybody: [`Endpoint::rest_after_last`] is to follow.
    Last,
}

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    /// Handles a packet that is the next one of its connection and holds nothing but whole messages, as
    /// [`handle_datagram`](Self::handle_datagram) does.
    ///
    /// # Errors
    /// Gives any other datagram back; then nothing has changed.
    #[inline]
    pub(super) fn handle_next(
        &mut self,
        now: Time,
        from: SocketAddr,
        congested: bool,
        datagram: R,
    ) -> Result<(), R> {
        let bytes = datagram.as_ref();
        let Some(header) = wire::plain(bytes) else { return self.handle_plain_ack(now, from, datagram) };
        let header = Header::of_packet(header);
        let index = index_of(header.to);
        let Some(entry) = self.entries.get_mut(index as usize) else { return Err(datagram) };
        let Entry { id, state: State::Open(connection), is_sending, is_readable, .. } = entry else {
            return Err(datagram);
        };
        let is_common = *id == header.to
            && connection.agreed.to == from
            && connection.is_settled()
            && self.admission.has_plenty();
        let messages =
            if is_common { connection.receive.whole_messages(header.sequence, bytes) } else { None };
        let Some(messages) = messages else { return Err(datagram) };
        let (counters, free) = (&mut self.counters, &mut self.acknowledged);
        connection.handle_acknowledgement(now, &header, Ranges::default(), counters, free);
        connection.note_next(now, &header, congested);
        counters.packets_received += 1;
        self.admission.keep_next(index);
        connection.receive.push_whole(datagram, messages);
        self.admission.has_whole(index, connection.receive.kept());
        self.urgent |= connection.wants_to_send();
        if !*is_readable {
            *is_readable = true;
            self.readable.push_back(index);
        }
        if !*is_sending {
            *is_sending = true;
            self.sending.push_back(index);
        }
        Ok(())
    }

    /// Handles an acknowledgement alone that asks for nothing and speaks of nothing missing, as [`handle_datagram`](Self::handle_datagram)
    /// does.
    ///
    /// # Errors
    /// Gives any other datagram back; then nothing has changed.
    fn handle_plain_ack(&mut self, now: Time, from: SocketAddr, datagram: R) -> Result<(), R> {
        let Some(header) = wire::plain_ack(datagram.as_ref()) else { return Err(datagram) };
        let index = index_of(header.to);
        let Some(entry) = self.entries.get_mut(index as usize) else { return Err(datagram) };
        let Entry { id, state: State::Open(connection), .. } = entry else { return Err(datagram) };
        let is_common = *id == header.to && connection.agreed.to == from && connection.is_settled();
        if !is_common || connection.receive.is_finished() {
            return Err(datagram);
        }
        let (counters, free) = (&mut self.counters, &mut self.acknowledged);
        connection.handle_acknowledgement(now, &header, Ranges::default(), counters, free);
        if let Some(deadline) = connection.deadline_at_rest() {
            self.timers.put_off(index, deadline);
        }
        let wants_to_send = connection.wants_to_send();
        self.urgent |= wants_to_send;
        // Otherwise nothing is due earlier than before, when an alarm was set.
        if wants_to_send || connection.looks_for_losses() || self.timers.of(index).is_none() {
            self.touch(index);
        }
        self.released.push(datagram);
        Ok(())
    }

    /// Sends what is queued to the peer whose turn it is, as [`poll_transmit`](Self::poll_transmit) would give it, for as long as that is
    /// packets that were not sent before and there is nothing to decide, and no more than `most`: gives each with where it goes and its
    /// header.
    #[inline]
    pub fn transmit_fresh(
        &mut self,
        now: Time,
        most: u32,
        mut each: impl FnMut(SocketAddr, &mut S, &[u8; HEADER_BYTES]),
    ) -> Fresh {
        let most = most.min(PACKETS_IN_A_ROW - 1 - self.in_a_row);
        let Some(&index) = self.sending.front() else { return Fresh::None };
        if most == 0 || !self.answers.is_empty() || !self.takes_short_ways() {
            return Fresh::None;
        }
        let State::Open(connection) = &mut self.entries[index as usize].state else { return Fresh::None };
        let to = connection.agreed.to;
        let sent = connection.send_fresh(now, most, |packet, header| each(to, packet, header));
        self.in_a_row += sent;
        self.counters.packets_sent += u64::from(sent);
        match sent {
            0 => Fresh::None,
            _ if self.sending.len() == 1 && !connection.wants_to_send() => Fresh::Last,
            _ => Fresh::Some,
        }
    }

    /// After [`Fresh::Last`], when its packets are on their way: what [`poll_transmit`](Self::poll_transmit) would do, which would give
    /// nothing.
    #[inline]
    pub fn rest_after_last(&mut self, now: Time) {
        self.urgent = false;
        if let Some(index) = self.sending.pop_front() {
            self.in_a_row = 0;
            self.rest(index, now);
        }
    }
}
