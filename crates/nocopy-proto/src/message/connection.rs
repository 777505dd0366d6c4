//! One connection, decided: what to send next, when to acknowledge, when to give up. The windows, losses, times and rates it decides
//! by are parts of their own.

use std::net::SocketAddr;

use super::alarms::Alarms;
use super::congestion::{self, Congestion};
use super::framing;
use super::pacing::{Pacer, UNPACED_PACKETS};
use super::receive_window::{Arrival, ReceiveWindow};
use super::round_trip::RoundTrip;
use super::send_window::{Acknowledged, SendWindow};
use super::sequence;
use super::shortage::Shortage;
use super::time::{Span, between_ticks};
use super::wire::{self, Flags, HEADER_BYTES, Header, HeaderKind, Ranges};
use super::{Counters, LostReason, Settings, Time, Violation, crc};

/// Packets after which an acknowledgement is sent at once.
const ACK_PACKETS: u32 = 16;
/// The same while packets are missing: that many later ones make a packet lost.
const ACK_PACKETS_IN_GAP: u32 = 3;
/// Losses are not told from reordering by less (RFC 9002 section 6.1.2, kGranularity).
const GRANULARITY: Span = Span::from_millis(1);
/// No probe is sent sooner, whatever the delay of acknowledgements is.
const PROBE_FIRST: Span = Span::from_millis(1);
/// The longest time between two probes.
const PROBE_TIMEOUT_MAX: Span = Span::from_secs(1);
/// From that many probes in a row without an answer on everything in flight is taken for lost.
const PROBES_TO_COLLAPSE: u32 = 2;
/// The longest round trip that is believed.
const ROUND_TRIP_MAX: Span = Span::from_secs(60);
/// How long a connection that is over still answers (docs/protocol.md §11).
///
/// The peer may have no round-trip time yet, and then repeats its end after 200 ms, 600 ms, 1.4 s and 2.4 s.
const LINGER: Span = Span::from_secs(3);

/// What both ends agreed on when the connection was set up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Agreed {
    pub(super) to: SocketAddr,
    /// The peer's name for the connection.
    pub(super) remote_id: u64,
    pub(super) crc: bool,
    /// The longest datagram both ends can handle, with header and CRC.
    pub(super) datagram_bytes: usize,
    /// The longest message the peer takes.
    pub(super) message_bytes_max: usize,
    pub(super) first_sent: u32,
    pub(super) first_received: u32,
    /// Packets the peer takes, from the first.
    pub(super) credit: u32,
}

impl Agreed {
    /// What is left of a datagram for the payload of a packet.
    #[inline]
    pub(super) fn payload_bytes_max(&self) -> usize {
        self.datagram_bytes - HEADER_BYTES - if self.crc { crc::CRC_BYTES } else { 0 }
    }

    /// The peer has room for any message that fits into a packet, without a look at how long it is.
    #[inline]
    pub(super) fn holds_packets(&self) -> bool {
        self.credit > 1
    }

    /// The longest message that may be sent: the peer takes it, and has room for all of its packets at a time.
    pub(super) fn message_bytes_max(&self) -> usize {
        self.message_bytes_max.min(framing::bytes_in(self.credit as usize, self.payload_bytes_max()))
    }
}

#[derive(Debug)]
pub(super) struct Connection<S, R> {
    pub(super) agreed: Agreed,
    pub(super) send: SendWindow<S>,
    pub(super) receive: ReceiveWindow<R>,
    round_trip: RoundTrip,
    congestion: Congestion,
    pacer: Pacer,
    ack_delay: Span,
    keep_alive: Span,
    dead_after: Span,
    queue_max: usize,

    /// Sequence numbers below it may be sent: the peer's word.
    credit: u64,
    /// The packet that ends this direction.
    last: Option<u64>,
    losses_look_again: Option<Time>,
    probes: u32,
    probe_due: bool,
    /// When something that asks for an acknowledgement was sent.
    asked: Time,
    /// When to look first after that.
    first_look: Option<Time>,

    acks: Acks,
    /// CE marks the peer told of.
    marks_told: u16,

    pub(super) heard: Time,
    /// Something was sent or asked for after the last word of the peer.
    keep_alives: u32,
    /// The peer has sent something since the connection was made: it knows of it.
    pub(super) confirmed: bool,
    /// The caller knows of it.
    pub(super) announced: bool,
    /// The caller asked for it, and the peer did so at the same time: this end answered.
    pub(super) is_joined: bool,
    /// Somebody was refused so many places in the queue; 0: nobody.
    refused: usize,
    pub(super) finish_told: bool,
    /// The peer is gone, but everything it said is here: what is told when that was read, lost and why, or closed. Nothing is sent any
    /// more.
    pub(super) ended: Option<Option<LostReason>>,
    /// A client's: nothing of the peer has come but the Accept.
    unheard: bool,
    /// Over on both sides.
    pub(super) linger: Option<Linger>,
    /// What was acknowledged when memory to send was last wanted in vain, and since when, by the clock of that shortage.
    slowness: Option<(u64, Time)>,
}

/// How long a connection that is over still answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Linger {
    pub(super) since: Time,
    until: Time,
}

/// What the peer is to be told of its packets.
#[derive(Debug)]
struct Acks {
    /// Packets since the last acknowledgement.
    packets: u32,
    now: bool,
    due: Option<Time>,
    /// The clock of the peer in its newest packet, and when that came.
    newest: Option<(u32, Time)>,
    marked: u16,
    credit_told: u64,
}

/// What to send next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Packet { sequence: u64, header: Header },
    Ack { header: Header },
}

impl<S, R: AsRef<[u8]>> Connection<S, R> {
    pub(super) fn new(agreed: Agreed, settings: &Settings, now: Time) -> Self {
        let trailer_bytes = if agreed.crc { crc::CRC_BYTES } else { 0 };
        let (first_sent, first_received) =
            (sequence::first(agreed.first_sent), sequence::first(agreed.first_received));
        let (window, message_bytes_max) = (settings.window_packets, settings.max_message_bytes as usize);
        let receive = ReceiveWindow::new(
            first_received,
            window,
            trailer_bytes,
            message_bytes_max,
            agreed.payload_bytes_max(),
        );
        let credit_told = receive.credit();
        Self {
            send: SendWindow::new(first_sent),
            receive,
            round_trip: RoundTrip::new(),
            congestion: Congestion::new(),
            pacer: Pacer::new(),
            ack_delay: settings.ack_delay.into(),
            keep_alive: settings.keep_alive.into(),
            dead_after: settings.dead_after.into(),
            queue_max: window,
            credit: first_sent + u64::from(agreed.credit),
            last: None,
            losses_look_again: None,
            probes: 0,
            probe_due: false,
            asked: now,
            first_look: None,
            acks: Acks { packets: 0, now: false, due: None, newest: None, marked: 0, credit_told },
            marks_told: 0,
            heard: now,
            keep_alives: 0,
            confirmed: false,
            announced: false,
            is_joined: false,
            refused: 0,
            finish_told: false,
            ended: None,
            unheard: false,
            linger: None,
            slowness: None,
            agreed,
        }
    }

    /// A client's: tells the peer at once that its answer came, since until then it sends nothing (docs/protocol.md §3.4).
    pub(super) fn confirm(&mut self) {
        (self.confirmed, self.announced, self.acks.now, self.unheard) = (true, true, true, true);
    }

    /// A server's, whose client has not spoken yet: the path takes only shorter datagrams. They never get longer again, since the client
    /// may have the answer that speaks of the shorter ones.
    pub(super) fn shorten(&mut self, datagram_bytes: usize) {
        if !self.confirmed && datagram_bytes < self.agreed.datagram_bytes {
            self.agreed.datagram_bytes = datagram_bytes;
            self.receive.shorten(self.agreed.payload_bytes_max());
        }
    }

    /// How long nothing was acknowledged while packets are kept for the peer, sent or not, by the clock of a shortage; looks as often as it
    /// is asked.
    pub(super) fn is_slow_for(&mut self, shortage: &Shortage) -> Span {
        let acknowledged = self.send.first();
        let since = match self.slowness {
            Some((before, since)) if before == acknowledged && self.send.len() > 0 => since,
            _ => shortage.now(),
        };
        self.slowness = Some((acknowledged, since));
        shortage.since(since)
    }

    /// Packets that may be queued now.
    #[inline]
    pub(super) fn room(&self) -> usize {
        if self.is_finished() { 0 } else { self.queue_max.saturating_sub(self.send.len()) }
    }

    /// Notes that somebody was refused so many places in the queue; of several it is who wants the fewest that is told of room.
    pub(super) fn refuse(&mut self, packets: usize) {
        let packets = packets.clamp(1, self.queue_max);
        self.refused = if self.refused == 0 { packets } else { self.refused.min(packets) };
    }

    /// Whether who was refused has the places now; says it once.
    #[inline]
    pub(super) fn has_room_again(&mut self) -> bool {
        let has = self.refused > 0 && self.room() >= self.refused;
        if has {
            self.refused = 0;
        }
        has
    }

    #[inline]
    pub(super) fn is_finished(&self) -> bool {
        self.last.is_some() || self.ended.is_some()
    }

    /// Queues the packet that ends this direction.
    pub(super) fn finish(&mut self, packet: S) {
        self.last = Some(self.send.push(packet));
    }

    /// Both directions have ended, and nothing is on its way or unread.
    pub(super) fn is_over(&self) -> bool {
        self.receive.is_finished() && self.last.is_some_and(|last| self.send.first() > last)
    }

    /// Of ours the peer has everything but maybe the news that it ends.
    pub(super) fn has_said_all(&self) -> bool {
        self.last.is_some_and(|last| self.send.first() >= last)
    }

    /// Still answers for a while, in case the last acknowledgement is lost.
    pub(super) fn linger(&mut self, now: Time) {
        // The probe timeout follows from what the peer says of times, so it has a bound.
        let span = LINGER.max(self.probe_timeout().times(3).min(self.dead_after));
        self.linger = Some(Linger { since: now, until: now + span });
    }

    fn probe_timeout(&self) -> Span {
        let once = self.round_trip.probe_timeout(self.ack_delay);
        once.times(1 << self.probes.min(10)).min(PROBE_TIMEOUT_MAX.max(once))
    }

    /// How long a packet may be overtaken before it counts as lost (RFC 9002 section 6.1.2).
    fn patience(&self) -> Span {
        Span::from_nanos(self.round_trip.smoothed().max(self.round_trip.latest()).ns() / 8 * 9)
            .max(GRANULARITY)
    }

    /// Takes the acknowledgement that every packet carries.
    #[inline(always)] // what nearly all of them say is little, and what is not is a call
    pub(super) fn handle_acknowledgement(
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
        let expected = sequence::widen(header.expected, self.send.first());
        if expected < self.send.first() {
            return; // an old one that was overtaken
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

    /// The same, whatever it says.
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
        match self.send.acknowledge(expected, ranges.iter(expected), minimum, now, free) {
            None => counters.impossible_acks += 1,
            Some(acknowledged) if acknowledged.packets == 0 => {}
            Some(acknowledged) => self.take_news(now, header, in_flight, acknowledged, counters),
        }
    }

    /// What follows from packets that have arrived.
    #[inline(always)] // with each acknowledgement
    fn take_news(
        &mut self,
        now: Time,
        header: &Header,
        in_flight: usize,
        acknowledged: Acknowledged,
        counters: &mut Counters,
    ) {
        if header.flags.contains(Flags::ECHO) {
            let round_trip = between_ticks(header.echo, now.ticks());
            if round_trip <= ROUND_TRIP_MAX {
                self.round_trip.sample(round_trip);
            }
        }
        (self.probes, self.probe_due, self.asked) = (0, false, now);
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

    #[inline]
    fn is_limited(&self) -> bool {
        self.send.in_flight() >= self.congestion.window()
    }

    #[inline(always)]
    fn find_losses(&mut self, now: Time, counters: &mut Counters) {
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

    /// What became of a packet that arrived: kept, or not and why.
    #[inline]
    pub(super) fn handle_data(
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

    /// Whether nothing is to be told the caller when a packet comes, and a packet needs no checksum.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.announced && self.refused == 0 && !self.agreed.crc
    }

    /// Notes the next packet in order, in front of which nothing is missing, and which asks for nothing.
    #[inline]
    pub(super) fn note_next(&mut self, now: Time, header: &Header, congested: bool) {
        self.acks.marked = self.acks.marked.wrapping_add(u16::from(congested));
        self.acks.newest = Some((header.sent, now));
        self.acks.packets += 1;
        self.acks.due.get_or_insert(now + self.ack_delay);
        self.acks.now |= self.acks.packets >= ACK_PACKETS;
    }

    /// Keeps packets of a run behind one with this header, as [`handle_data`](Self::handle_data) would, for as long as there is nothing
    /// to decide about them: each is the next in order, a middle part of a message, and says nothing that the one before did not.
    /// Returns the first one that is not like that.
    #[inline]
    pub(super) fn handle_followers(
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

    /// Whether what a header says of our packets is known already.
    #[inline]
    pub(super) fn is_old_news(&self, header: &Header) -> bool {
        sequence::widen(header.expected, self.send.first()) <= self.send.first()
            && sequence::widen(header.credit, self.send.first()) <= self.credit
    }

    /// An acknowledgement was asked for by a datagram without a packet.
    pub(super) fn handle_question(&mut self, now: Time, header: &Header) {
        if header.flags.contains(Flags::ANSWER) {
            self.acks.now = true;
            self.acks.newest = Some((header.sent, now));
        }
    }

    /// Something is to be told, or may have come to its end.
    #[inline]
    pub(super) fn wants_attention(&self) -> bool {
        self.acks.now || self.receive.is_finished()
    }

    /// Something is to be told at once, or waits to be sent.
    #[inline]
    pub(super) fn wants_to_send(&self) -> bool {
        self.wants_attention() || self.probe_due || !self.send.has_nothing_to_send()
    }

    /// Something was read: tells the peer, if that lets it go on.
    #[inline]
    pub(super) fn consumed(&mut self) {
        let more = self.receive.credit() - self.acks.credit_told;
        self.acks.now |= more >= (self.queue_max as u64 / 4).max(1);
    }

    /// What to send next, if anything may be sent now.
    #[inline]
    pub(super) fn next(&mut self, now: Time) -> Option<Next> {
        let is_quiet = !self.acks.now && !self.probe_due && self.send.has_nothing_to_send();
        if is_quiet || self.ended.is_some() {
            return None;
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
        self.pacer.sent(now, self.rate());
        // The last one for now asks for word, since otherwise it would wait for a late acknowledgement.
        let stops = self.send.in_flight() + 1 >= self.congestion.window() || sequence + 1 >= self.credit;
        Some(self.packet(sequence, now, Flags::NONE.with_if(stops, Flags::ANSWER)))
    }

    /// Sends packets that were not sent before, as [`next`](Self::next) would give them, if nothing else is to be said or sent, and no
    /// more than `most`: gives each with its header, and returns how many that were.
    #[inline]
    pub(super) fn send_fresh(
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

    /// Sends a packet that was not queued, as [`next`](Self::next) would give it if it were, if nothing else is to be said or sent: gives it
    /// with its header.
    ///
    /// # Errors
    /// Gives the packet back if it is not like that.
    #[inline]
    pub(super) fn send_at_once(
        &mut self,
        now: Time,
        packet: S,
        each: impl FnOnce(&mut S, &[u8; HEADER_BYTES]),
    ) -> Result<(), S> {
        if self.send.fresh() != self.send.end() || self.send.len() >= self.queue_max {
            return Err(packet);
        }
        let Some((header, _)) = self.fresh_header(now) else { return Err(packet) };
        each(self.send.push_sent(packet, now), &header);
        Ok(())
    }

    /// The header of the acknowledgement that [`next`](Self::next) would give, if that is all there is to say and it is nothing but its header.
    #[inline(always)] // where peers are many, for each message
    pub(super) fn plain_ack(&mut self, now: Time) -> Option<[u8; HEADER_BYTES]> {
        let is_plain = self.acks.now
            && self.send.has_nothing_to_send()
            && !self.probe_due
            && self.ended.is_none()
            && !self.unheard
            && !self.agreed.crc
            && !self.receive.has_gap()
            && !self.receive.is_finished();
        if !is_plain {
            return None;
        }
        let mut bytes = [0; HEADER_BYTES];
        self.header(now, HeaderKind::Ack, Flags::NONE, self.send.fresh()).emit(&mut bytes);
        Some(bytes)
    }

    /// The header of the next packet that was not sent before, if it may go now and nothing is to be decided about it; then it goes. With it,
    /// whether none may follow.
    #[inline(always)] // for each packet
    fn fresh_header(&mut self, now: Time) -> Option<([u8; HEADER_BYTES], bool)> {
        let (sequence, in_flight) = (self.send.fresh(), self.send.in_flight());
        let is_plain = sequence < self.credit
            && in_flight < self.congestion.window()
            && self.confirmed
            && !self.probe_due
            && self.ended.is_none()
            && self.last.is_none()
            && !self.agreed.crc
            && !self.receive.has_gap()
            && !self.send.has_losses();
        let rate = self.rate();
        if !is_plain || in_flight >= UNPACED_PACKETS && !self.pacer.is_ready(now, rate) {
            return None;
        }
        self.pacer.sent(now, rate);
        let stops = in_flight + 1 >= self.congestion.window() || sequence + 1 >= self.credit;
        let header = self.header(now, HeaderKind::Data, Flags::NONE.with_if(stops, Flags::ANSWER), sequence);
        if in_flight == 0 {
            (self.asked, self.first_look) = (now, Some(now + self.look_delay()));
        }
        let mut bytes = [0; HEADER_BYTES];
        header.emit(&mut bytes);
        Some((bytes, stops))
    }

    /// Sends fresh packets behind one that was just sent, as long as [`next`](Self::next) would give them with the same header but for
    /// their number, and no more than `most`: gives each with its sequence number, and returns how many that were.
    #[inline]
    pub(super) fn send_followers(&mut self, now: Time, most: u32, mut each: impl FnMut(&mut S, u64)) -> u32 {
        let (fresh, in_flight) = (self.send.fresh(), self.send.in_flight());
        let is_plain = !self.acks.now
            && !self.probe_due
            && self.ended.is_none()
            && self.last.is_none()
            && self.confirmed
            && in_flight > 0
            && self.send.next_lost().is_none();
        if !is_plain {
            return 0;
        }
        // The last one that window or credit let go asks for word, and is not like the others.
        let by_credit = self.credit.saturating_sub(fresh + 1);
        let by_window = self.congestion.window().saturating_sub(in_flight + 1) as u64;
        let most = by_credit.min(by_window).min(most.into()) as u32;
        let (rate, pacer) = (self.rate(), &mut self.pacer);
        self.send.send_fresh(now, most, |packet, sequence| {
            let ahead = in_flight + (sequence - fresh) as usize;
            let is_ready = ahead < UNPACED_PACKETS || pacer.is_ready(now, rate);
            if is_ready {
                pacer.sent(now, rate);
                each(packet, sequence);
            }
            is_ready
        })
    }

    /// Whether there is a packet that window, credit and rate let go.
    #[inline]
    fn may_send(&mut self, now: Time) -> bool {
        let (lost, fresh) = (self.send.next_lost(), self.send.next_fresh());
        (lost.is_some() || fresh.is_some_and(|sequence| sequence < self.credit))
            && self.confirmed
            && !self.is_limited()
            && (self.send.in_flight() < UNPACED_PACKETS || self.pacer.is_ready(now, self.rate()))
    }

    /// The window and the time in which it may be sent.
    #[inline]
    fn rate(&self) -> (usize, Span) {
        (self.congestion.window(), self.round_trip.smoothed())
    }

    #[inline(always)] // for each packet
    fn header(&mut self, now: Time, kind: HeaderKind, flags: Flags, number: u64) -> Header {
        let (echo, echo_flag) = match self.acks.newest {
            Some((sent, came)) => (sent.wrapping_add(now.ticks().wrapping_sub(came.ticks())), Flags::ECHO),
            None => (0, Flags::NONE),
        };
        let credit = self.receive.credit();
        self.acks.credit_told = credit;
        // A packet does not say what came behind a missing one: for that an acknowledgement stays due.
        if kind == HeaderKind::Ack || !self.receive.has_gap() {
            (self.acks.now, self.acks.due, self.acks.packets) = (false, None, 0);
        }
        Header {
            kind,
            flags: flags.with(echo_flag).with_if(self.agreed.crc, Flags::CRC),
            marked: self.acks.marked,
            to: self.agreed.remote_id,
            sequence: sequence::narrow(number),
            expected: sequence::narrow(self.receive.expected()),
            credit: sequence::narrow(credit),
            sent: now.ticks(),
            echo,
        }
    }

    #[inline]
    fn packet(&mut self, sequence: u64, now: Time, flags: Flags) -> Next {
        let flags = flags.with_if(self.last == Some(sequence), Flags::FIN);
        let header = self.header(now, HeaderKind::Data, flags, sequence);
        if self.send.in_flight() == 0 {
            (self.asked, self.first_look) = (now, Some(now + self.look_delay()));
        }
        Next::Packet { sequence, header }
    }

    fn ack(&mut self, now: Time, flags: Flags) -> Next {
        let flags = flags.with_if(self.unheard, Flags::ANSWER);
        Next::Ack { header: self.header(now, HeaderKind::Ack, flags, self.send.fresh()) }
    }

    /// Writes an acknowledgement, with what has arrived behind missing packets.
    pub(super) fn emit_ack(&self, header: &Header, datagram: &mut Vec<u8>) {
        wire::emit_ack(header, self.receive.expected(), self.receive.ranges(), datagram);
    }

    /// Whether an alarm comes before anything can be due, so that it need not be moved.
    #[inline]
    pub(super) fn is_early_enough(&self, alarm: Time) -> bool {
        // What is looked for in the whole deadline, but that of the probe: that comes later than what it waits for may be delayed.
        self.linger.is_none()
            && alarm <= self.heard + self.ack_delay
            && self.acks.due.is_none_or(|due| alarm <= due)
            && self.first_look.is_none_or(|look| alarm <= look || self.send.len() == 0)
            && self.losses_look_again.is_none_or(|look| alarm <= look)
            && self.send.has_nothing_to_send()
    }

    /// Sees to the alarm where a packet came or was sent just now, with nothing on its way before and nothing that waits to be sent: nothing is
    /// due by that before some time, nor anything else that an alarm is not set for. False: it is not like that.
    #[inline(always)] // for each packet
    pub(super) fn sets_alarm(&self, now: Time, index: u32, alarms: &mut Alarms) -> bool {
        let is_simple = self.losses_look_again.is_none()
            && self.send.len() <= 1
            && (self.send.len() == 0 || self.asked == now);
        let Some(alarm) = alarms.of(index).filter(|_| is_simple) else { return false };
        let soon = now + self.look_delay();
        let due = self.acks.due.map_or(soon, |due| due.min(soon));
        if alarm > due {
            alarms.set(now, index, due);
        }
        true
    }

    /// How long after a packet was sent to look first: when the answer to it has come by then, it is acknowledged, too, by the alarm that is
    /// set already.
    #[inline]
    fn look_delay(&self) -> Span {
        self.ack_delay.min(PROBE_FIRST)
    }

    /// The same if everything was said and acknowledged in both directions: then nothing is due for long.
    #[inline]
    pub(super) fn deadline_at_rest(&self) -> Option<Time> {
        let is_at_rest = self.send.len() == 0
            && self.acks.due.is_none()
            && !self.acks.now
            && !self.probe_due
            && !self.unheard
            && self.losses_look_again.is_none()
            && self.linger.is_none()
            && self.ended.is_none();
        is_at_rest.then(|| self.quiet_until())
    }

    /// When the silence of the peer is to be ended, or has been too long.
    #[inline]
    fn quiet_until(&self) -> Time {
        let quiet = self.heard + self.keep_alive.times(self.keep_alives + 1);
        quiet.min(self.heard + self.dead_after)
    }

    /// When something is due, if nothing arrives.
    pub(super) fn deadline(&self, now: Time) -> Option<Time> {
        if self.ended.is_some() {
            return None;
        }
        if let Some(Linger { until, .. }) = self.linger {
            return Some(self.acks.due.map_or(until, |due| due.min(until)));
        }
        let waits = self.send.len() > 0;
        let mut earliest = self.quiet_until();
        let mut look_at = |due: Option<Time>| earliest = due.map_or(earliest, |due| due.min(earliest));
        look_at(self.acks.due);
        look_at(self.losses_look_again);
        if waits {
            look_at(self.first_look);
        }
        if (waits || self.unheard) && !self.probe_due {
            look_at(Some(self.asked + self.probe_timeout()));
        }
        if waits && !self.is_limited() && !self.send.has_nothing_to_send() {
            look_at(self.pacer.ready_at(now));
        }
        Some(earliest)
    }

    /// Does what is due.
    ///
    /// # Errors
    /// The connection has come to its end.
    pub(super) fn handle_timeout(
        &mut self,
        now: Time,
        counters: &mut Counters,
    ) -> Result<(), Option<LostReason>> {
        self.receive.shrink();
        self.send.shrink();
        if self.linger.is_some_and(|linger| now >= linger.until) {
            return Err(None);
        }
        if self.ended.is_some() {
            return Ok(());
        }
        if self.linger.is_none() && now >= self.heard + self.dead_after {
            return Err(Some(LostReason::Silent));
        }
        self.first_look = self.first_look.filter(|look| now < *look);
        // One that is due before long goes with this alarm, or it would need another one.
        if self.acks.due.is_some_and(|due| now + self.look_delay().half() >= due) {
            (self.acks.now, self.acks.due) = (true, None);
        }
        if self.linger.is_some() {
            return Ok(());
        }
        if now >= self.heard + self.keep_alive.times(self.keep_alives + 1) {
            self.keep_alives += 1;
            self.probe_due = true;
        }
        if self.losses_look_again.is_some_and(|time| now >= time) {
            self.find_losses(now, counters);
        }
        if (self.send.len() > 0 || self.unheard)
            && !self.probe_due
            && now >= self.asked + self.probe_timeout()
        {
            self.probe(now, counters);
        }
        Ok(())
    }

    /// Nothing was heard of what is on its way, or of credit that is needed (RFC 9002 section 6.2, RFC 8985 section 7).
    fn probe(&mut self, now: Time, counters: &mut Counters) {
        counters.probes += 1;
        self.probes += 1;
        self.asked = now;
        // Also later: of what is sent again then, the first has to get through, since a peer with little memory takes no other
        // (docs/protocol.md §8), and the newest alone would be asked for in vain for ever.
        if self.probes >= PROBES_TO_COLLAPSE && self.send.in_flight() > 0 {
            counters.lost += self.send.lose_all().packets as u64;
            if self.probes == PROBES_TO_COLLAPSE {
                self.congestion.collapse(); // once, as RFC 5681 section 3.1 has it
            }
        } else {
            self.probe_due = true;
        }
    }

    /// Round trip times, window, packets in flight and queued.
    pub(super) fn statistics(&self) -> super::PeerStats {
        super::PeerStats {
            round_trip: self.round_trip.smoothed().into(),
            round_trip_min: self.round_trip.minimum().into(),
            window_packets: self.congestion.window(),
            in_flight: self.send.in_flight(),
            queued: self.send.len() - self.send.in_flight(),
            unread: self.receive.kept(),
        }
    }
}
