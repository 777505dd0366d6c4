//! One connection, decided: what to send next, when to acknowledge, when to give up. The windows, losses, times and rates it decides
//! by are parts of their own.

mod arrivals;
mod deadlines;
mod departures;
mod units;

use std::net::SocketAddr;
use std::num::NonZeroU64;

pub(super) use self::deadlines::Linger;
pub(super) use self::departures::Next;
use super::congestion::Congestion;
use super::framing;
use super::pacing::Pacer;
use super::receive_window::ReceiveWindow;
use super::round_trip::RoundTrip;
use super::send_window::SendWindow;
use super::sequence;
use super::shortage::Shortage;
use super::time::Span;
use super::wire::HEADER_BYTES;
use super::{Event, LostReason, Peer, Settings, Time, crc};

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
    /// What a stream to the peer begins with, if it takes one.
    pub(super) stream_key: Option<NonZeroU64>,
    /// The peer may register memory for this end.
    pub(super) knows_placement: bool,
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
    /// It is for puts, beside another one: the caller does not know of it.
    pub(super) is_beside: bool,
    /// Units may be sent: there is a stream.
    pub(super) has_stream: bool,
    /// What was acknowledged when memory to send was last wanted in vain, and since when, by the clock of that shortage.
    slowness: Option<(u64, Time)>,
}

/// What the peer is to be told of its packets.
#[derive(Debug, Clone, Copy)]
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
            is_beside: false,
            has_stream: false,
            slowness: None,
            agreed,
        }
    }

    /// A client's: tells the peer at once that its answer came, since until then it sends nothing (docs/protocol.md §3.4).
    pub(super) fn confirm(&mut self) {
        (self.confirmed, self.announced, self.acks.now, self.unheard) = (true, true, true, true);
    }

    /// From here on the caller knows of it: what it is told.
    pub(super) fn announce(&mut self, peer: Peer) -> Event {
        self.announced = true;
        match self.is_joined {
            true => Event::Connected(peer, self.agreed.to),
            false => Event::Accepted(peer, self.agreed.to),
        }
    }

    /// A server's, whose client has not spoken yet: the path takes only shorter datagrams. They never get longer again, since the client
    /// may have the answer that speaks of the shorter ones. Nor shorter, once something is queued that was laid out for their length.
    pub(super) fn shorten(&mut self, datagram_bytes: usize) {
        if !self.confirmed && self.send.len() == 0 && datagram_bytes < self.agreed.datagram_bytes {
            self.agreed.datagram_bytes = datagram_bytes;
            self.receive.shorten(self.agreed.payload_bytes_max());
        }
    }

    /// How long nothing was acknowledged while packets are kept for the peer, sent or not, by the clock of a shortage; looks as often as it
    /// is asked.
    pub(super) fn is_slow_for(&mut self, shortage: &Shortage) -> Span {
        let acknowledged = self.send.first();
        let since = match self.slowness {
            Some((before, since)) if before == acknowledged && self.send.packets() > 0 => since,
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

    /// Something is to be told, or may have come to its end.
    #[inline(always)] // with each packet
    pub(super) fn wants_attention(&self) -> bool {
        self.acks.now || self.receive.is_finished()
    }

    /// Something is to be told at once, or waits to be sent.
    #[inline(always)] // with each packet
    pub(super) fn wants_to_send(&self) -> bool {
        self.wants_attention() || self.probe_due || !self.send.has_nothing_to_send()
    }

    /// Something was read: tells the peer, if that lets it go on.
    #[inline]
    pub(super) fn consumed(&mut self) {
        let more = self.receive.credit() - self.acks.credit_told;
        self.acks.now |= more >= (self.queue_max as u64 / 4).max(1);
    }

    /// Round trip times, window, packets in flight and queued.
    pub(super) fn statistics(&self) -> super::PeerStats {
        super::PeerStats {
            address: self.agreed.to,
            round_trip: self.round_trip.smoothed().into(),
            round_trip_min: self.round_trip.minimum().into(),
            window_packets: self.congestion.window(),
            in_flight: self.send.in_flight(),
            queued: self.send.len() - self.send.in_flight(),
            unread: self.receive.kept(),
        }
    }
}
