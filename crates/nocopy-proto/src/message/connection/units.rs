//! What a connection decides about units, which go by a stream (docs/protocol.md §16).

use super::arrivals::ACK_PACKETS;
use super::{Breaks, Connection, StreamState};
use crate::message::receive_window::Arrival;
use crate::message::time::Span;
use crate::message::wire::{Flags, HEADER_BYTES, Header, HeaderKind, Ranges, Unit};
use crate::message::{Counters, Time, Violation, sequence};

/// The longest unit of several messages, with their headers.
const UNIT_BYTES_MAX: usize = 262_112;

/// A connection ends if units have waited this long for a stream, ...
const WITHOUT_STREAM_MAX: Span = Span::from_secs(30);
/// ... or if this many streams in a row were cut before any unit was acknowledged.
const BREAKS_MAX: u32 = 5;

/// After this time without a datagram, units do not count as having acknowledged: they are no signs of life,
/// and no samples of the round trip.
const TELL_INTERVAL: Span = Span::from_millis(100);

impl<S, R: AsRef<[u8]>> Connection<S, R> {
    /// Whether units may be sent.
    #[inline]
    pub(in crate::message) fn has_stream(&self) -> bool {
        self.stream == StreamState::Open
    }

    /// Notes that there is a stream, by which what an earlier one has not delivered is sent again.
    pub(in crate::message) fn open_stream(&mut self, now: Time) {
        self.lose_stream(now);
        self.stream = StreamState::Open;
        self.send.repeat_units();
    }

    /// Notes that the stream was cut, if there was one.
    pub(in crate::message) fn lose_stream(&mut self, now: Time) {
        if self.has_stream() {
            self.stream = StreamState::None;
            self.breaks.since = now;
            self.breaks.in_a_row += u32::from(self.send.has_units_in_flight());
        }
    }

    /// Has the next datagram ask the peer for a stream; it is sent soon if units wait for it.
    pub(in crate::message) fn ask_for_stream(&mut self) {
        if self.stream == StreamState::None {
            self.stream = StreamState::Wanted;
            self.acks.now |= self.send.has_units();
        }
    }

    /// How long units wait for a stream, if there is none.
    pub(super) fn waits_for_stream_until(&self) -> Option<Time> {
        let Breaks { since, in_a_row } = self.breaks;
        let waits = if in_a_row >= BREAKS_MAX { Span::default() } else { WITHOUT_STREAM_MAX };
        (self.send.has_units() && !self.has_stream()).then(|| since + waits)
    }

    /// The unit to send next, if it may be sent now.
    pub(in crate::message) fn next_unit(&mut self, now: Time) -> Option<Unit> {
        let place = self.send.next_unit()?;
        let end = place.sequence + u64::from(place.span);
        // An urgent acknowledgement and a probe go by datagram, because a unit may wait in its stream.
        let says_first = self.acks.now || self.probe_due;
        if !self.has_stream() || !self.confirmed || end > self.credit || says_first {
            return None;
        }
        let stops = end == self.credit;
        self.ask_at(now);
        let flags = Flags::NONE.with_if(stops, Flags::ANSWER);
        let acks = self.acks;
        let header = self.header(now, HeaderKind::Data, flags, place.sequence);
        // Still due, if what precedes the unit in its stream may delay it, or if it is time for a sign of
        // life.
        if place.sequence != self.send.first() || now.span_since(acks.told) >= TELL_INTERVAL {
            self.acks = acks;
        }
        self.acks.told = acks.told;
        let header = Header { to: 0, ..header };
        Some(Unit { header, bytes: place.bytes, span: place.span })
    }

    /// Queues a unit and gives it and its header to `send`, if it may be sent now and nothing else is to be
    /// sent. Gives it back otherwise; then nothing has changed.
    #[inline]
    pub(in crate::message) fn send_unit_at_once(
        &mut self,
        now: Time,
        (unit, span, bytes): (S, u32, u32),
        send: impl FnOnce(&mut S, &[u8; HEADER_BYTES]),
    ) -> Result<(), S> {
        let end = self.send.end() + u64::from(span);
        let may_send = self.send.has_nothing_to_send()
            && self.room() >= span as usize
            && end <= self.credit
            && span <= self.agreed.credit
            && self.has_stream()
            && self.confirmed
            && !self.acks.now
            && !self.probe_due
            && self.last.is_none()
            && self.ended.is_none();
        if !may_send {
            return Err(unit);
        }
        self.send.push_unit(unit, span, bytes);
        let mut header = [0; HEADER_BYTES];
        self.next_unit(now).expect("it may be sent").emit(&mut header);
        send(self.send.send_unit().0, &header);
        Ok(())
    }

    /// Handles the acknowledgement that a unit carries. It may be old, since units wait in their stream: it
    /// gives no round-trip sample and no sign of life, and a probe that is due stays due.
    pub(in crate::message) fn handle_word_of_unit(
        &mut self,
        now: Time,
        header: &Header,
        counters: &mut Counters,
        free: &mut Vec<S>,
    ) {
        let probe_due = self.probe_due;
        let header = Header { flags: Flags::NONE, ..*header };
        self.take_acknowledgement(now, &header, Ranges::default(), counters, free);
        self.probe_due = probe_due;
    }

    /// Whether a unit is valid: its bytes can be messages that need so many sequence numbers, none longer
    /// than this end accepts.
    pub(in crate::message) fn may_be_unit(&self, unit: &Unit) -> bool {
        let payload_bytes_max = self.agreed.payload_bytes_max() as u64;
        let (bytes, span) = (u64::from(unit.bytes), u64::from(unit.span));
        // Of two packets in a row at least one is full, but for the last of a message: the fuller they are,
        // the more bytes.
        let is_full = (span - 1) * (payload_bytes_max - 4) <= 2 * bytes;
        let longest = self.receive.longest_message().max(UNIT_BYTES_MAX);
        is_full && bytes <= span * payload_bytes_max && unit.bytes as usize <= longest
    }

    /// Handles a unit that arrived; returns whether it was kept, or why not.
    pub(in crate::message) fn handle_unit(
        &mut self,
        now: Time,
        unit: &Unit,
        received: R,
        counters: &mut Counters,
    ) -> Result<Option<R>, Violation> {
        if !self.may_be_unit(unit) {
            return Err(Violation::OutOfPlace);
        }
        let first = sequence::widen(unit.header.sequence, self.receive.expected());
        let arrival = self.receive.arrival_of_unit(first, unit.span.into());
        match arrival {
            Arrival::Duplicate | Arrival::Outside => {
                self.acks.now = true;
                counters.duplicates += u64::from(arrival == Arrival::Duplicate);
                counters.beyond_credit += u64::from(arrival == Arrival::Outside);
                return Ok(Some(received));
            }
            Arrival::InOrder | Arrival::OpensGap | Arrival::Ahead => {}
        }
        let had_gap = self.receive.has_gap();
        self.receive.insert_unit(first, unit.span.into(), received)?;
        counters.units_received += 1;
        self.note_next_unit(now, unit);
        self.acks.now |= had_gap || arrival != Arrival::InOrder;
        Ok(None)
    }

    /// Notes a unit that is to be acknowledged.
    #[inline]
    pub(in crate::message) fn note_next_unit(&mut self, now: Time, unit: &Unit) {
        self.acks.packets += 1;
        self.acks.due.get_or_insert(now + self.ack_delay);
        self.acks.now |= unit.header.flags.contains(Flags::ANSWER) || self.acks.packets >= ACK_PACKETS;
    }
}
