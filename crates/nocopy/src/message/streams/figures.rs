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
        let mut ledger = self.past_sent;
        ledger += self.all.iter().flatten().map(|beside| beside.stream.sender.ledger()).sum();
        ledger.subtract_bytes(self.outgoing.copied_bytes_sent());
        let [once, twice] = self.received_bytes();
        ledger.add(Evidence::Copied(Cause::SocketCall), self.received.units, once);
        ledger.add(Evidence::Copied(Cause::BelowThreshold), 0, twice);
        ledger
    }

    /// Received bytes with the headers of units: those copied by the call alone, and those copied once more.
    pub(in crate::message) fn received_bytes(&self) -> [u64; 2] {
        let twice = self.received.copied_bytes.min(self.received.bytes);
        [self.received.bytes - twice, twice]
    }
}
