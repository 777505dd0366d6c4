//! What a connection decides about units, which go by a stream (docs/protocol.md §16).

use super::Connection;
use super::arrivals::ACK_PACKETS;
use crate::message::receive_window::Arrival;
use crate::message::wire::{Flags, Header, HeaderKind, Unit};
use crate::message::{Counters, Time, Violation, sequence};

impl<S, R: AsRef<[u8]>> Connection<S, R> {
    /// The unit to send next, if it may be sent now.
    pub(in crate::message) fn next_unit(&mut self, now: Time) -> Option<Unit> {
        let place = self.send.next_unit()?;
        let end = place.sequence + u64::from(place.span);
        // What came behind a gap is told by an acknowledgement first, and a probe asks for one.
        let says_first = self.acks.now && self.receive.has_gap() || self.probe_due;
        if !self.has_stream || !self.confirmed || end > self.credit || says_first {
            return None;
        }
        let stops = end == self.credit;
        self.ask_at(now);
        let flags = Flags::NONE.with_if(stops, Flags::ANSWER);
        let header = self.header(now, HeaderKind::Data, flags, place.sequence);
        let header = Header { to: 0, ..header };
        Some(Unit { header, bytes: place.bytes, span: place.span })
    }

    /// What became of a unit that arrived: kept, or not and why.
    pub(in crate::message) fn handle_unit(
        &mut self,
        now: Time,
        unit: &Unit,
        received: R,
        counters: &mut Counters,
    ) -> Result<Option<R>, Violation> {
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
        self.acks.packets += 1;
        self.acks.due.get_or_insert(now + self.ack_delay);
        self.acks.now |= unit.header.flags.contains(Flags::ANSWER)
            || had_gap
            || arrival != Arrival::InOrder
            || self.acks.packets >= ACK_PACKETS;
        Ok(None)
    }
}
