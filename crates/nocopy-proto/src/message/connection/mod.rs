//! The decisions of one connection: what to send next, when to acknowledge, when to give up. Other modules
//! keep the windows, losses, times and rates that it decides by.

mod arrivals;
mod contradictions;
mod deadlines;
mod departures;
mod units;

use std::num::NonZeroU64;

use self::contradictions::Contradictions;
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
use super::{Event, LostReason, Path, Peer, Settings, Time, crc};

/// A peer that acknowledges less than one of so many parts of what is kept for it is slow.
const PARTS: usize = 4;

/// What a peer must acknowledge while memory to send is missing.
#[derive(Debug, Clone, Copy)]
struct Slowness {
    /// By the clock of that shortage.
    since: Time,
    /// The first packet that is not acknowledged once it has acknowledged enough.
    enough: u64,
}

/// What both ends agreed on when the connection was set up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Agreed {
    pub(super) path: Path,
    /// The peer's id for the connection.
    pub(super) remote_id: u64,
    pub(super) crc: bool,
    /// The longest datagram both ends can handle, with header and CRC.
    pub(super) datagram_bytes: usize,
    /// The longest message that the peer accepts.
    pub(super) message_bytes_max: usize,
    pub(super) first_sent: u32,
    pub(super) first_received: u32,
    /// The peer's credit at the start, in packets.
    pub(super) credit: u32,
    /// The key that the peer gave for streams, if it takes part in them.
    pub(super) stream_key: Option<NonZeroU64>,
    /// This end asked for the connection: it opens the streams.
    pub(super) is_client: bool,
    /// The peer may register memory for this end.
    pub(super) knows_placement: bool,
}

impl Agreed {
    /// The longest payload of a packet.
    #[inline]
    pub(super) fn payload_bytes_max(&self) -> usize {
        self.datagram_bytes - HEADER_BYTES - if self.crc { crc::CRC_BYTES } else { 0 }
    }

    /// The peer accepts every message that fits into one packet, so its length need not be checked.
    #[inline]
    pub(super) fn holds_packets(&self) -> bool {
        self.credit > 1
    }

    /// The longest message that may be sent: the peer accepts it, and has room for all of its packets at the
    /// same time.
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

    /// The peer's credit: sequence numbers below it may be sent.
    credit: u64,
    /// The packet that ends this direction.
    last: Option<u64>,
    losses_look_again: Option<Time>,
    probes: u32,
    probe_due: bool,
    /// When something was last sent that asks for an acknowledgement.
    asked: Time,
    /// When to check for the first time after that whether the acknowledgement has arrived.
    first_look: Option<Time>,

    acks: Acks,
    /// CE marks that the peer reported.
    marks_told: u16,

    pub(super) heard: Time,
    /// How often something was sent, or a sign of life requested, since a datagram of the peer arrived last.
    keep_alives: u32,
    /// The peer has sent something on the connection, so it knows that the connection exists.
    pub(super) confirmed: bool,
    /// The peer has acknowledged something, and since then no packet needed a probe, and it was not asked for
    /// a sign of life. Only then the short ways send to it, which do not check whether its host is there.
    is_answering: bool,
    /// The connection was reported to the caller.
    pub(super) announced: bool,
    /// Both ends connected at the same time, and this end answered.
    pub(super) is_joined: bool,
    /// The number of places in the queue that were refused to the caller; 0: none.
    refused: usize,
    pub(super) finish_told: bool,
    /// The peer has ended, but everything it sent has arrived. When that was read, the connection is reported
    /// as lost, with a reason, or as closed. Nothing more is sent.
    pub(super) ended: Option<Option<LostReason>>,
    /// For clients: only the Accept has arrived from the peer so far.
    unheard: bool,
    /// Set once both directions have ended.
    pub(super) linger: Option<Linger>,
    /// It is for puts, beside another one: the caller does not know of it.
    pub(super) is_beside: bool,
    pub(super) stream: StreamState,
    breaks: Breaks,
    slowness: Option<Slowness>,
    /// The contradictions in its acknowledgements, the last of which may be long ago.
    contradictions: Option<Contradictions>,
}

/// What there is of a stream beside the datagrams (docs/protocol.md §16.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamState {
    None,
    /// There is none, and the next datagram asks the client for one.
    Wanted,
    /// Units may be sent.
    Open,
}

/// The streams that were cut.
#[derive(Debug, Clone, Copy)]
struct Breaks {
    /// When the last one was.
    since: Time,
    /// How many were cut with units on their way, since one was acknowledged.
    in_a_row: u32,
}

/// The acknowledgements that the peer has yet to get.
#[derive(Debug, Clone, Copy)]
struct Acks {
    /// Packets since the last acknowledgement.
    packets: u32,
    now: bool,
    due: Option<Time>,
    /// The peer's clock in its newest packet, and when the packet arrived.
    newest: Option<(u32, Time)>,
    marked: u16,
    credit_told: u64,
    /// When a datagram told them last.
    told: Time,
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
            acks: Acks { packets: 0, now: false, due: None, newest: None, marked: 0, credit_told, told: now },
            marks_told: 0,
            heard: now,
            keep_alives: 0,
            confirmed: false,
            is_answering: false,
            announced: false,
            is_joined: false,
            refused: 0,
            finish_told: false,
            ended: None,
            unheard: false,
            linger: None,
            is_beside: false,
            stream: StreamState::None,
            breaks: Breaks { since: now, in_a_row: 0 },
            slowness: None,
            contradictions: None,
            agreed,
        }
    }

    /// For clients: confirms the Accept at once, since the server sends nothing until then (docs/protocol.md
    /// §3.4).
    pub(super) fn confirm(&mut self) {
        (self.confirmed, self.announced, self.acks.now, self.unheard) = (true, true, true, true);
    }

    /// Returns the event that reports the connection to the caller, and notes that.
    pub(super) fn announce(&mut self, peer: Peer) -> Event {
        self.announced = true;
        match self.is_joined {
            true => Event::Connected(peer, self.agreed.path.remote),
            false => Event::Accepted(peer, self.agreed.path.remote),
        }
    }

    /// For servers whose client has sent nothing yet: shortens the datagrams because the path takes no longer
    /// ones. They never get longer again, since the client may have the answer that states the shorter
    /// length; nor shorter, once something is queued.
    pub(super) fn shorten(&mut self, datagram_bytes: usize) {
        if !self.confirmed && self.send.len() == 0 && datagram_bytes < self.agreed.datagram_bytes {
            self.agreed.datagram_bytes = datagram_bytes;
            self.receive.shorten(self.agreed.payload_bytes_max());
        }
    }

    /// How long the peer has acknowledged less than a quarter of what is kept for it, sent or not, by the
    /// clock of `shortage`. Measured only when called, so to be called often.
    pub(super) fn is_slow_for(&mut self, shortage: &Shortage) -> Span {
        let (acknowledged, kept) = (self.send.first(), self.send.len());
        let goes_on = |slowness: &Slowness| self.send.packets() > 0 && acknowledged < slowness.enough;
        let slowness = self.slowness.filter(goes_on).unwrap_or_else(|| Slowness {
            since: shortage.now(),
            enough: acknowledged + kept.div_ceil(PARTS).max(1) as u64,
        });
        self.slowness = Some(slowness);
        shortage.since(slowness.since)
    }

    #[inline]
    pub(super) fn room(&self) -> usize {
        if self.is_finished() { 0 } else { self.queue_max.saturating_sub(self.send.len()) }
    }

    /// Notes that the caller was refused `packets` places in the queue; of several refusals the smallest
    /// counts.
    pub(super) fn refuse(&mut self, packets: usize) {
        let packets = packets.clamp(1, self.queue_max);
        self.refused = if self.refused == 0 { packets } else { self.refused.min(packets) };
    }

    /// Whether the refused number of places is free now; true only once.
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

    /// Whether both directions have ended, and nothing is in flight or unread.
    pub(super) fn is_over(&self) -> bool {
        self.receive.is_finished() && self.last.is_some_and(|last| self.send.first() > last)
    }

    /// Whether the peer has acknowledged everything, except perhaps the end of this direction.
    pub(super) fn has_said_all(&self) -> bool {
        self.last.is_some_and(|last| self.send.first() >= last)
    }

    /// Whether an acknowledgement is due at once, or a direction may have ended.
    #[inline(always)] // with each packet
    pub(super) fn wants_attention(&self) -> bool {
        self.acks.now || self.receive.is_finished()
    }

    /// Whether an acknowledgement or a probe is due at once, or packets wait to be sent.
    #[inline(always)] // with each packet
    pub(super) fn wants_to_send(&self) -> bool {
        self.wants_attention() || self.probe_due || !self.send.has_nothing_to_send()
    }

    /// Notes that something was read; informs the peer if that lets it continue.
    #[inline]
    pub(super) fn consumed(&mut self) {
        let more = self.receive.credit() - self.acks.credit_told;
        self.acks.now |= more >= (self.queue_max as u64 / 4).max(1);
    }

    /// Round trip times, window, packets in flight and queued.
    pub(super) fn statistics(&self) -> super::PeerStats {
        super::PeerStats {
            address: self.agreed.path.remote,
            round_trip: self.round_trip.smoothed().into(),
            round_trip_min: self.round_trip.minimum().into(),
            window_packets: self.congestion.window(),
            in_flight: self.send.in_flight(),
            queued: self.send.len() - self.send.in_flight(),
            unread: self.receive.kept(),
        }
    }
}
