//! Counters and evidence of streams.

use super::{StreamCounters, Streams, choice};
use crate::facts::evidence::{Cause, Evidence, Ledger};

impl Streams {
    pub(in crate::message) fn counters(&self) -> StreamCounters {
        self.counters
    }

    /// Explains which messages go by streams.
    pub(in crate::message) fn explain(&self) -> String {
        let streams = self.all.iter().flatten().count();
        let measured = self.choices.explain();
        format!("{streams} TCP stream(s) beside the datagrams: {}{measured}", choice::RULE)
    }

    /// The evidence for bytes sent by streams, except messages copied into units, and for received bytes with
    /// the headers of units.
    pub(in crate::message) fn ledger(&self) -> Ledger {
        let mut ledger = self.past.sent;
        let copied_before = self.outgoing.copied_bytes_sent();
        let (mut bytes, mut copied_bytes, mut units) =
            (self.past.bytes, self.past.copied_bytes, self.past.units);
        for beside in self.all.iter().flatten() {
            ledger += beside.stream.sender.ledger();
            let counts = beside.reading.counts;
            (bytes, copied_bytes) = (bytes + counts.bytes, copied_bytes + counts.copied_bytes);
            units += counts.units;
        }
        ledger.subtract_bytes(copied_before);
        let copied_bytes = copied_bytes.min(bytes); // what was copied twice
        ledger.add(Evidence::Copied(Cause::SocketCall), units, bytes - copied_bytes);
        ledger.add(Evidence::Copied(Cause::BelowThreshold), 0, copied_bytes);
        ledger
    }
}
