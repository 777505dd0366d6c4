//! How a connection handles received datagrams: acknowledgements of its packets, and packets of the peer.

use super::Connection;
use crate::message::congestion;
use crate::message::receive_window::Arrival;
use crate::message::send_window::Acknowledged;
use crate::message::time::{Span, between_ticks};
use crate::message::wire::{self, Flags, HEADER_BYTES, Header, Ranges};
use crate::message::{Counters, Time, Violation, sequence};

/// Packets after which an acknowledgement is sent at once.
pub(super) const ACK_PACKETS: u32 = 16;
/// As [`ACK_PACKETS`], while packets are missing: after this many later ones a packet counts as lost.
const ACK_PACKETS_IN_GAP: u32 = 3;
/// The shortest time that distinguishes a loss from reordering (RFC 9002 section 6.1.2, kGranularity).
const GRANULARITY: Span = Span::from_millis(1);
/// The longest round trip that is accepted as a sample.
const ROUND_TRIP_MAX: Span = Span::from_secs(60);
/// A longer one is a sample only if this end ran meanwhile.
const ROUND_TRIP_USUAL: Span = Span::from_millis(250);

impl<S, R: AsRef<[u8]>> Connection<S, R> {
    /// Handles the acknowledgement that every packet carries.
    #[inline(always)] // what nearly all of them say is little, and what is not is a call
    pub(in crate::message) fn handle_acknowledgement(
        &mut self,
        now: Time,
        header: &Header,
        ranges: Ranges<'_>,
        counters: &mut Counters,
        free: &mut Vec<S>,
    ) {
        self.heard = now;
        (self.keep_alives, self.confirmed) = (0, true);
        if std::mem::take(&mut self.unheard) {
            (self.probes, self.probe_due) = (0, false);
        }
        self.take_acknowledgement(now, header, ranges, counters, free);
    }

    /// As [`handle_acknowledgement`](Self::handle_acknowledgement), for a datagram that does not prove that
    /// the peer is alive.
    #[inline(always)] // as above
    pub(super) fn take_acknowledgement(
        &mut self,
        now: Time,
        header: &Header,
        ranges: Ranges<'_>,
        counters: &mut Counters,
        free: &mut Vec<S>,
    ) {
        let expected = sequence::widen(header.expected, self.send.first());
        if expected < self.send.first() {
            return self.note_contradiction(now, header); // or an old one that was overtaken
        }
        let credit = sequence::widen(header.credit, self.send.first());
        if credit > self.credit {
            self.credit = credit;
            if self.send.in_flight() == 0 {
                self.probes = 0; // that was what they asked for
            }
        }
        if expected == self.send.first() && ranges.is_empty() {
            return; // nothing new, as most packets of one direction say
        }
        let in_flight = self.send.in_flight();
        let one = if ranges.is_empty() { self.send.acknowledge_one(expected, free) } else { None };
        match one {
            Some(one) => self.take_news(now, header, in_flight, one, counters),
            None => self.take_any_news(now, header, ranges, expected, counters, free),
        }
    }

    /// Handles an acknowledgement of several packets, or with ranges.
    #[inline(never)]
    fn take_any_news(
        &mut self,
        now: Time,
        header: &Header,
        ranges: Ranges<'_>,
        expected: u64,
        counters: &mut Counters,
        free: &mut Vec<S>,
    ) {
        let (in_flight, minimum) = (self.send.in_flight(), self.round_trip.minimum());
        let mut acknowledged = self.send.acknowledge(expected, ranges.iter(expected), minimum, now, free);
        let is_impossible = acknowledged.is_none();
        if is_impossible && !ranges.is_empty() {
            // A packet that the peer keeps by a damaged number would otherwise make all its acknowledgements
            // useless.
            let none = Ranges::default();
            acknowledged = self.send.acknowledge(expected, none.iter(expected), minimum, now, free);
        }
        if let Some(acknowledged) = acknowledged
            && acknowledged.packets + acknowledged.of_units > 0
        {
            if acknowledged.of_units > 0 {
                self.breaks.in_a_row = 0;
            }
            self.take_news(now, header, in_flight, acknowledged, counters);
        }
        if is_impossible {
            counters.impossible_acks += 1;
            self.note_contradiction(now, header);
        }
    }

    /// Handles newly acknowledged packets: round trip, losses, congestion.
    #[inline(always)] // with each acknowledgement
    fn take_news(
        &mut self,
        now: Time,
        header: &Header,
        in_flight: usize,
        acknowledged: Acknowledged,
        counters: &mut Counters,
    ) {
        // There is no echo for units: how long they waited in their stream is unknown.
        if acknowledged.packets > 0 && header.flags.contains(Flags::ECHO) {
            let round_trip = between_ticks(header.echo, now.ticks());
            if round_trip <= ROUND_TRIP_USUAL || self.is_sample(round_trip) {
                self.round_trip.sample(round_trip);
            }
        }
        (self.probes, self.probe_due, self.asked, self.is_answering) = (0, false, now, true);
        counters.spurious += acknowledged.late as u64;
        let more = header.marked.wrapping_sub(self.marks_told);
        let marks = if more < 1 << 15 { more } else { 0 }; // an older word
        self.marks_told = self.marks_told.wrapping_add(marks);
        self.congestion.acknowledged(congestion::Acknowledged {
            packets: acknowledged.packets,
            marked: usize::from(marks),
            in_flight,
            arrived: self.send.arrived(),
            transmissions: self.send.transmissions(),
        });
        self.find_losses(now, counters);
    }

    /// Whether a long round trip is a sample. It is not if a probe would have been sent long before its end,
    /// had this end not been suspended or busy: the acknowledgement may have waited here.
    #[cold]
    fn is_sample(&self, round_trip: Span) -> bool {
        let had_no_turn = self.probes == 0 && round_trip > self.probe_timeout().times(4);
        round_trip <= ROUND_TRIP_MAX && !had_no_turn
    }

    #[inline(always)]
    pub(super) fn find_losses(&mut self, now: Time, counters: &mut Counters) {
        if self.send.has_all_arrived() {
            self.losses_look_again = None;
        } else {
            self.find_losses_among(now, counters);
        }
    }

    #[inline(never)]
    fn find_losses_among(&mut self, now: Time, counters: &mut Counters) {
        let losses = self.send.find_losses(now, self.patience());
        self.losses_look_again = losses.look_again;
        if losses.packets > 0 {
            counters.lost += losses.packets as u64;
            self.congestion.lost(losses.newest, self.send.transmissions());
        }
    }

    /// How long a packet may be overtaken before it counts as lost (RFC 9002 section 6.1.2).
    fn patience(&self) -> Span {
        Span::from_nanos(self.round_trip.smoothed().max(self.round_trip.latest()).ns() / 8 * 9)
            .max(GRANULARITY)
    }

    /// Handles a packet that arrived; returns whether it was kept, or why not.
    #[inline]
    pub(in crate::message) fn handle_data(
        &mut self,
        now: Time,
        header: &Header,
        congested: bool,
        datagram: R,
        admit: impl FnOnce(Arrival) -> bool,
        counters: &mut Counters,
    ) -> Result<Option<R>, Violation> {
        let sequence = sequence::widen(header.sequence, self.receive.expected());
        let arrival = self.receive.arrival(sequence);
        self.acks.marked = self.acks.marked.wrapping_add(u16::from(congested));
        self.acks.newest = Some((header.sent, now));
        self.acks.now |= header.flags.contains(Flags::ANSWER) || header.flags.contains(Flags::FIN);
        match arrival {
            Arrival::Duplicate | Arrival::Outside => {
                let count = if arrival == Arrival::Duplicate {
                    &mut counters.duplicates
                } else {
                    &mut counters.beyond_credit
                };
                *count += 1;
                self.acks.now = true;
                return Ok(Some(datagram));
            }
            Arrival::InOrder | Arrival::OpensGap | Arrival::Ahead => {}
        }
        self.acks.packets += 1;
        if self.acks.due.is_none() {
            self.acks.due = Some(now + self.ack_delay);
        }
        if !admit(arrival) {
            counters.no_memory += 1;
            return Ok(Some(datagram));
        }
        let had_gap = self.receive.has_gap();
        self.receive.insert(sequence, datagram)?;
        counters.packets_received += 1;
        let limit = if had_gap { ACK_PACKETS_IN_GAP } else { ACK_PACKETS };
        let closes_gap = had_gap && arrival == Arrival::InOrder;
        self.acks.now |= arrival == Arrival::OpensGap || closes_gap || self.acks.packets >= limit;
        Ok(None)
    }

    /// Whether a packet causes no event, holds messages for the program, and needs no check of a checksum.
    #[inline]
    pub(in crate::message) fn is_settled(&self) -> bool {
        self.announced && self.refused == 0 && !self.agreed.crc && !self.is_beside
    }

    /// Notes the next packet in order if no packet is missing and it asks for nothing.
    #[inline]
    pub(in crate::message) fn note_next(&mut self, now: Time, header: &Header, congested: bool) {
        self.note_next_run(now, header.sent, 1, congested);
    }

    /// The same for several in a row, the last one sent at that time.
    #[inline]
    pub(in crate::message) fn note_next_run(
        &mut self,
        now: Time,
        sent: u32,
        packets: usize,
        congested: bool,
    ) {
        self.acks.marked = self.acks.marked.wrapping_add(packets as u16 * u16::from(congested));
        self.acks.newest = Some((sent, now));
        self.acks.packets += packets as u32;
        self.acks.due.get_or_insert(now + self.ack_delay);
        self.acks.now |= self.acks.packets >= ACK_PACKETS;
    }

    /// Keeps the packets of a run that follow one with this header, as [`handle_data`](Self::handle_data)
    /// would, as long as nothing needs a decision: each is the next in order, a middle part of a message, and
    /// has no other news than the one before. Returns the first packet that is different.
    #[inline]
    pub(in crate::message) fn handle_followers(
        &mut self,
        now: Time,
        header: &[u8; HEADER_BYTES],
        congested: bool,
        run: &mut impl Iterator<Item = R>,
        mut admit: impl FnMut(Arrival) -> bool,
        counters: &mut Counters,
    ) -> Option<R> {
        let mut packets = 0;
        let other = loop {
            let Some(datagram) = run.next() else { break None };
            let sequence = sequence::narrow(self.receive.expected());
            let Some(sent) = wire::follows(datagram.as_ref(), header, sequence) else { break Some(datagram) };
            if let Err(datagram) = self.receive.extend(datagram, || admit(Arrival::InOrder)) {
                break Some(datagram);
            }
            self.acks.newest = Some((sent, now));
            self.acks.due.get_or_insert(now + self.ack_delay);
            packets += 1;
        };
        self.acks.marked = self.acks.marked.wrapping_add(packets * u16::from(congested));
        self.acks.packets += u32::from(packets);
        self.acks.now |= packets > 0 && self.acks.packets >= ACK_PACKETS;
        counters.packets_received += u64::from(packets);
        other
    }

    /// Whether the acknowledgement in a header is known already.
    #[inline]
    pub(in crate::message) fn is_old_news(&self, header: &Header) -> bool {
        sequence::widen(header.expected, self.send.first()) <= self.send.first()
            && sequence::widen(header.credit, self.send.first()) <= self.credit
    }

    /// Handles a datagram without a packet that asks for an acknowledgement.
    pub(in crate::message) fn handle_question(&mut self, now: Time, header: &Header) {
        if header.flags.contains(Flags::ANSWER) {
            self.acks.now = true;
            self.acks.newest = Some((header.sent, now));
        }
    }
}
