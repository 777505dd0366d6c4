//! The general way to handle received datagrams: finds the connection of each, and applies it.

use std::net::SocketAddr;

use super::{Endpoint, Entry, State, index_of};
use crate::message::answers::Answered;
use crate::message::wire::{
    self, AbortReason, Datagram, Flags, HEADER_BYTES, Header, Malformed, Ranges, Unknown,
};
use crate::message::{Event, LostReason, Peer, Time};

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    /// Handles a datagram from `from`; `congested`: it has ECN's CE mark (RFC 3168). If it is not kept,
    /// [`Endpoint::released`] returns it.
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
                    if header.flags.contains(Flags::STREAM) {
                        self.note_asking(index);
                    }
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

    /// Handles datagrams that arrived together from one sender, in order: as [`Endpoint::handle_datagram`]
    /// handles each, but at less cost for those that continue a long message.
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

    /// Handles the datagrams that only continue after one with this header, and returns the first that does
    /// not.
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
                if connection.agreed.path.remote == from
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

    /// The connection that a header is for. If there is none, the sender gets an Unknown.
    #[inline]
    fn look_up(&mut self, from: SocketAddr, header: &Header) -> Option<u32> {
        let index = index_of(header.to);
        match self.entries.get(index as usize).filter(|entry| entry.id == header.to) {
            Some(Entry { state: State::Open(connection), .. }) if connection.agreed.path.remote == from => {
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
                self.reply(Answered::Stray, from, |answer| Unknown { to }.emit(answer));
                None
            }
        }
    }

    /// Handles a packet, and returns it if it is not kept.
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
                if header.flags.contains(Flags::STREAM) {
                    self.note_asking(index);
                }
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

    /// Notes the effects of a packet: messages to read, room in the queue, the end.
    #[inline]
    pub(super) fn after_packet(&mut self, now: Time, index: u32) {
        let entry = &mut self.entries[index as usize];
        let State::Open(connection) = &mut entry.state else { return };
        let peer = Peer { index, generation: entry.generation };
        if !connection.announced {
            self.events.push(connection.is_beside, connection.announce(peer));
        }
        if connection.has_room_again() {
            self.events.push(connection.is_beside, Event::Writable(peer));
        }
        if connection.receive.ready() > 0 && !entry.is_readable {
            entry.is_readable = true;
            match connection.is_beside {
                false => self.readable.push_back(index),
                true => self.readable_beside.push_back(index),
            }
        }
        let wants_to_send = connection.wants_to_send();
        self.urgent |= wants_to_send;
        self.touch_or_rest(now, index, wants_to_send);
    }

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
}
