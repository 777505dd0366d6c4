//! Chooses the next datagram to send and the next connection in turn, and handles time-outs.

use super::{Endpoint, Entry, PACKETS_IN_A_ROW, State};
use crate::message::connection::{self, Agreed};
use crate::message::wire::{self, AbortReason, HEADER_BYTES};
use crate::message::{LostReason, Path, Peer, Time, sequence};

/// A datagram to be sent.
#[derive(Debug)]
pub enum Transmit<'a, S> {
    /// A packet: the header goes in front of what the caller keeps.
    Packet {
        /// The peer.
        peer: Peer,
        /// Where to.
        to: Path,
        /// As it was queued.
        packet: &'a mut S,
        /// This time's header.
        header: [u8; HEADER_BYTES],
        /// A CRC32C over header and payload is appended ([`crc`](crate::message::crc)).
        crc: bool,
        /// It was sent before.
        again: bool,
    },
    /// A unit, for the stream to the peer.
    Unit {
        /// The peer.
        peer: Peer,
        /// As it was queued.
        unit: &'a mut S,
        /// What precedes it on the stream.
        header: [u8; HEADER_BYTES],
    },
    /// A whole datagram, checksum and all.
    Control {
        /// Where to.
        to: Path,
        /// The UDP payload.
        datagram: &'a [u8],
    },
}

/// A step of sending, decided before memory is touched.
#[derive(Debug, Clone, Copy)]
enum Step {
    Answer,
    SetUp,
    Next(connection::Next),
}

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    /// Whether [`Endpoint::poll_transmit`] has anything to look at.
    #[inline]
    pub fn has_transmit(&self) -> bool {
        !self.sending.is_empty() || !self.answers.is_empty()
    }

    /// Whether a datagram has arrived that wants an answer at once, or allows more to be sent: then
    /// [`Endpoint::poll_transmit`] should be called before the received messages are read.
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
                Transmit::Control { to: connecting.path, datagram: &self.control }
            }
            Step::Next(next) => {
                let entry = &mut self.entries[index as usize];
                let State::Open(connection) = &mut entry.state else { return None };
                let Agreed { path: to, crc, .. } = connection.agreed;
                match next {
                    connection::Next::Ack { header } => {
                        self.counters.acks_sent += 1;
                        connection.emit_ack(&header, &mut self.control);
                        Transmit::Control { to, datagram: &self.control }
                    }
                    connection::Next::Unit(unit) => {
                        let (mut header, peer) =
                            ([0; HEADER_BYTES], Peer { index, generation: entry.generation });
                        unit.emit(&mut header);
                        let (unit, again) = connection.send.send_unit();
                        self.counters.units_sent += u64::from(!again);
                        self.counters.units_sent_again += u64::from(again);
                        Transmit::Unit { peer, unit, header }
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

    /// Sends the packets that follow one of `peer` which [`Endpoint::poll_transmit`] has just returned with
    /// this header, as long as nothing needs a decision. Calls back with each packet and its header; nothing
    /// else changes.
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

    /// When [`Endpoint::handle_timeout`] is due, if nothing happens before. Ask when
    /// [`Endpoint::poll_transmit`] has nothing more.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Does everything that is due.
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
                    let abort = match reason {
                        LostReason::Violation(_) => AbortReason::VIOLATION,
                        _ => AbortReason::SILENT,
                    };
                    self.tell_abort(index, abort);
                    self.end_by_peer(index, reason);
                }
            }
        }
    }

    /// Has a connection checked for packets to send; its alarm is set then.
    #[inline]
    pub(super) fn touch(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        if !entry.is_sending {
            entry.is_sending = true;
            self.sending.push_back(index);
        }
    }

    /// After a packet: has the connection checked for packets to send, or sets its alarm if there are none.
    #[inline]
    pub(super) fn touch_or_rest(&mut self, now: Time, index: u32, wants_to_send: bool) {
        if wants_to_send {
            self.touch(index);
        } else if !self.entries[index as usize].is_sending {
            self.rest(index, now);
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

    /// As [`rest`](Self::rest), when everything was read that the peer will ever send.
    #[cold]
    fn rest_at_end(&mut self, index: u32, now: Time) {
        self.look_for_end(index, now);
        if let State::Open(connection) = &self.entries[index as usize].state
            && let Some(deadline) = connection.deadline(now)
        {
            self.timers.set(now, index, deadline);
        }
    }
}
