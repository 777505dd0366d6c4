//! Chooses what a connection sends next.

use super::{Connection, StreamState};
use crate::message::pacing::UNPACED_PACKETS;
use crate::message::time::Span;
use crate::message::wire::{self, Flags, HEADER_BYTES, Header, HeaderKind, Headers};
use crate::message::{Path, Time, sequence};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::message) enum Next {
    Packet { sequence: u64, header: Header },
    Ack { header: Header },
    Unit(wire::Unit),
}

impl<S, R: AsRef<[u8]>> Connection<S, R> {
    /// What to send next; `None` if nothing may be sent now.
    #[inline]
    pub(in crate::message) fn next(&mut self, now: Time) -> Option<Next> {
        let is_quiet = !self.acks.now && !self.probe_due && self.send.has_nothing_to_send();
        if is_quiet || self.ended.is_some() {
            return None;
        }
        if self.send.has_units_queued()
            && let Some(unit) = self.next_unit(now)
        {
            return Some(Next::Unit(unit));
        }
        if self.acks.now && (self.receive.has_gap() || !self.may_send(now)) {
            return Some(self.ack(now, Flags::NONE));
        }
        if self.probe_due && self.confirmed {
            self.probe_due = false;
            self.asked = now;
            return Some(match self.send.newest_in_flight() {
                Some(sequence) => self.packet(sequence, now, Flags::ANSWER),
                None => self.ack(now, Flags::ANSWER),
            });
        }
        if !self.may_send(now) {
            return None;
        }
        let sequence = match self.send.next_lost() {
            Some(sequence) => sequence,
            None => self.send.next_fresh()?,
        };
        self.pacer.sent(now);
        // The last packet for now asks for an acknowledgement at once, because sending can only continue
        // after it.
        let stops = self.send.in_flight() + 1 >= self.congestion.window() || sequence + 1 >= self.credit;
        Some(self.packet(sequence, now, Flags::NONE.with_if(stops, Flags::ANSWER)))
    }

    /// Sends up to `most` packets for the first time, as [`next`](Self::next) would, if nothing else is to be
    /// sent. Calls back with each packet and its header; returns how many were sent.
    #[inline]
    pub(in crate::message) fn send_fresh(
        &mut self,
        now: Time,
        most: u32,
        mut each: impl FnMut(&mut S, &[u8; HEADER_BYTES]),
    ) -> u32 {
        if self.send.fresh() == self.send.end() {
            return 0;
        }
        let Some((mut bytes, stops)) = self.fresh_header(now) else { return 0 };
        each(self.send.send_next(now), &bytes);
        if stops || most == 1 || self.send.has_nothing_to_send() {
            return 1;
        }
        1 + self.send_followers(now, most - 1, |packet, sequence| {
            wire::renumber(&mut bytes, sequence::narrow(sequence));
            each(packet, &bytes);
        })
    }

    /// Sends a packet that was not queued, as [`next`](Self::next) would if it were, if nothing else is to be
    /// sent. Calls back with the packet and its header. Returns the packet if something else must be sent.
    #[inline]
    pub(in crate::message) fn send_at_once(
        &mut self,
        now: Time,
        packet: S,
        each: impl FnOnce(&Path, &mut S, &[u8; HEADER_BYTES]),
    ) -> Result<(), S> {
        if self.send.fresh() != self.send.end() || self.send.len() >= self.queue_max {
            return Err(packet);
        }
        let Some((header, _)) = self.fresh_header(now) else { return Err(packet) };
        each(&self.agreed.path, self.send.push_sent(packet, now), &header);
        Ok(())
    }

    /// How many packets [`next`](Self::next) would send without a pause, if nothing is unacknowledged;
    /// otherwise 0.
    #[inline]
    pub(in crate::message) fn at_once(&self) -> usize {
        let by_credit = self.credit.saturating_sub(self.send.fresh()) as usize;
        if self.send.len() == 0 { by_credit.min(self.congestion.window()).saturating_sub(1) } else { 0 }
    }

    /// As [`send_at_once`](Self::send_at_once), for several packets, which are taken out of `packets`: gives
    /// all of them and their headers to `send`. False: something else must be sent, or they are too many to
    /// go now; then nothing has changed.
    #[inline]
    pub(in crate::message) fn send_run_at_once(
        &mut self,
        now: Time,
        packets: &mut Vec<S>,
        send: impl FnOnce(&Path, &[S], Headers),
    ) -> bool {
        let in_flight = self.send.in_flight() + packets.len();
        let may_send = self.send.fresh() == self.send.end()
            && self.send.len() + packets.len() <= self.queue_max
            && self.send.fresh() + (packets.len() as u64) < self.credit
            && in_flight < self.congestion.window()
            && in_flight <= UNPACED_PACKETS;
        let Some((header, _)) = may_send.then(|| self.fresh_header(now)).flatten() else { return false };
        // What is noted of them is noted when they are on their way.
        send(&self.agreed.path, packets, Headers::after(header));
        (1..packets.len()).for_each(|_| self.pacer.sent(now));
        for packet in packets.drain(..) {
            self.send.push_sent(packet, now);
        }
        true
    }

    /// The header of the acknowledgement that [`next`](Self::next) would return, if it has no ranges and
    /// nothing else is to be sent.
    #[inline]
    pub(in crate::message) fn plain_ack(&mut self, now: Time) -> Option<[u8; HEADER_BYTES]> {
        (self.acks.now && self.says_no_more()).then(|| self.emit_plain_ack(now))
    }

    /// The same for an acknowledgement whose time has come, as after
    /// [`handle_timeout`](Self::handle_timeout), if nothing else is due.
    #[inline(always)] // where peers are many, for each message
    pub(in crate::message) fn plain_ack_when_due(&mut self, now: Time) -> Option<[u8; HEADER_BYTES]> {
        (self.owes_only_an_ack(now) && self.says_no_more()).then(|| self.emit_plain_ack(now))
    }

    /// Whether an acknowledgement would consist of its header only, and nothing else is to be sent.
    #[inline(always)]
    fn says_no_more(&self) -> bool {
        self.send.has_nothing_to_send()
            && !self.probe_due
            && self.ended.is_none()
            && !self.unheard
            && !self.agreed.crc
            && !self.receive.has_gap()
            && !self.receive.is_finished()
    }

    #[inline(always)]
    fn emit_plain_ack(&mut self, now: Time) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        self.header(now, HeaderKind::Ack, Flags::NONE, self.send.fresh()).emit(&mut bytes);
        bytes
    }

    /// The header of the next packet to be sent for the first time, if it may be sent now without further
    /// decisions; it then counts as sent. The second value: whether no other may follow.
    #[inline(always)] // for each packet
    fn fresh_header(&mut self, now: Time) -> Option<([u8; HEADER_BYTES], bool)> {
        let (sequence, in_flight) = (self.send.fresh(), self.send.in_flight());
        let is_plain = sequence < self.credit
            && in_flight < self.congestion.window()
            && self.is_answering
            && !self.probe_due
            && self.ended.is_none()
            && self.last.is_none()
            && !self.agreed.crc
            && !self.receive.has_gap()
            && !self.send.has_losses()
            && !self.send.has_units_queued();
        if !is_plain || in_flight >= UNPACED_PACKETS && !self.pacer.is_ready(now, self.rate()) {
            return None;
        }
        self.pacer.sent(now);
        let stops = in_flight + 1 >= self.congestion.window() || sequence + 1 >= self.credit;
        let header = self.header(now, HeaderKind::Data, Flags::NONE.with_if(stops, Flags::ANSWER), sequence);
        if in_flight == 0 {
            (self.asked, self.first_look) = (now, Some(now + self.look_delay()));
        }
        let mut bytes = [0; HEADER_BYTES];
        header.emit(&mut bytes);
        Some((bytes, stops))
    }

    /// Sends further packets for the first time, after one that was just sent, as long as
    /// [`next`](Self::next) would return them with the same header except the number, and no more than
    /// `most`. Calls back with each packet and its sequence number; returns how many were sent.
    #[inline]
    pub(in crate::message) fn send_followers(
        &mut self,
        now: Time,
        most: u32,
        mut each: impl FnMut(&mut S, u64),
    ) -> u32 {
        let (fresh, in_flight) = (self.send.fresh(), self.send.in_flight());
        let is_plain = !self.acks.now
            && !self.probe_due
            && self.ended.is_none()
            && self.last.is_none()
            && self.is_answering
            && in_flight > 0
            && !self.send.has_units_queued()
            && self.send.next_lost().is_none();
        if !is_plain {
            return 0;
        }
        // The last packet that window or credit allow asks for an acknowledgement at once, so its header
        // differs from the others.
        let by_credit = self.credit.saturating_sub(fresh + 1);
        let by_window = self.congestion.window().saturating_sub(in_flight + 1) as u64;
        let most = by_credit.min(by_window).min(most.into()) as u32;
        let (rate, pacer) = (self.rate(), &mut self.pacer);
        self.send.send_fresh(now, most, |packet, sequence| {
            let ahead = in_flight + (sequence - fresh) as usize;
            let is_ready = ahead < UNPACED_PACKETS || pacer.is_ready(now, rate);
            if is_ready {
                pacer.sent(now);
                each(packet, sequence);
            }
            is_ready
        })
    }

    /// Whether window, credit and rate allow a packet to be sent.
    #[inline]
    fn may_send(&mut self, now: Time) -> bool {
        let (lost, fresh) = (self.send.next_lost(), self.send.next_fresh());
        (lost.is_some() || fresh.is_some_and(|sequence| sequence < self.credit))
            && self.confirmed
            && !self.is_limited()
            && (self.send.in_flight() < UNPACED_PACKETS || self.pacer.is_ready(now, self.rate()))
    }

    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.send.in_flight() >= self.congestion.window()
    }

    /// The window, and the time over which it may be sent.
    #[inline]
    fn rate(&self) -> (usize, Span) {
        (self.congestion.window(), self.round_trip.smoothed())
    }

    #[inline(always)] // for each packet
    pub(super) fn header(&mut self, now: Time, kind: HeaderKind, flags: Flags, number: u64) -> Header {
        let (echo, echo_flag) = match self.acks.newest {
            Some((sent, came)) => (sent.wrapping_add(now.ticks().wrapping_sub(came.ticks())), Flags::ECHO),
            None => (0, Flags::NONE),
        };
        let asked = match self.stream {
            StreamState::Wanted => {
                self.stream = StreamState::None;
                Flags::STREAM
            }
            StreamState::None | StreamState::Open => Flags::NONE,
        };
        let credit = self.receive.credit();
        (self.acks.credit_told, self.acks.told) = (credit, now);
        // A packet cannot report what arrived after a missing one: the acknowledgement that does stays due.
        if kind == HeaderKind::Ack || !self.receive.has_gap() {
            (self.acks.now, self.acks.due, self.acks.packets) = (false, None, 0);
        }
        Header {
            kind,
            flags: flags.with(echo_flag).with(asked).with_if(self.agreed.crc, Flags::CRC),
            marked: self.acks.marked,
            to: self.agreed.remote_id,
            sequence: sequence::narrow(number),
            expected: sequence::narrow(self.receive.expected()),
            credit: sequence::narrow(credit),
            sent: now.ticks(),
            echo,
        }
    }

    /// Notes that something is sent that asks for an acknowledgement.
    #[inline]
    pub(super) fn ask_at(&mut self, now: Time) {
        if self.send.in_flight() == 0 {
            (self.asked, self.first_look) = (now, Some(now + self.look_delay()));
        }
    }

    #[inline]
    fn packet(&mut self, sequence: u64, now: Time, flags: Flags) -> Next {
        let flags = flags.with_if(self.last == Some(sequence), Flags::FIN);
        let header = self.header(now, HeaderKind::Data, flags, sequence);
        self.ask_at(now);
        Next::Packet { sequence, header }
    }

    fn ack(&mut self, now: Time, flags: Flags) -> Next {
        let flags = flags.with_if(self.unheard, Flags::ANSWER);
        Next::Ack { header: self.header(now, HeaderKind::Ack, flags, self.send.fresh()) }
    }

    /// Writes an acknowledgement, with the ranges that arrived after missing packets.
    pub(in crate::message) fn emit_ack(&self, header: &Header, datagram: &mut Vec<u8>) {
        wire::emit_ack(header, self.receive.expected(), self.receive.ranges(), datagram);
    }
}
