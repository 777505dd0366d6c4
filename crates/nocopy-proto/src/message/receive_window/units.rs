//! Units in the window (docs/protocol.md §16): what came over the stream, each in the place of its first number.

use super::{Arrival, ReceiveWindow};
use crate::message::Violation;
use crate::message::framing::{Laid, Place, parse};

/// Bytes of the longest header of a whole message.
const WHOLE_HEADER_BYTES_MAX: usize = 8;

impl<R: AsRef<[u8]>> ReceiveWindow<R> {
    /// What the numbers of a unit are to the window. If one of them is there already, the sender makes packets of the unit, since its stream
    /// was cut, and the others come as such.
    pub(in crate::message) fn arrival_of_unit(&self, sequence: u64, span: u64) -> Arrival {
        let end = sequence + span;
        if sequence < self.expected || self.ahead.overlaps(sequence..end) {
            return Arrival::Duplicate;
        }
        match self.arrival(end - 1) {
            Arrival::Outside => Arrival::Outside,
            _ => self.arrival(sequence),
        }
    }

    /// Bytes of the longest message that this end takes, with its header.
    pub(in crate::message) fn longest_message(&self) -> usize {
        self.message_bytes_max + WHOLE_HEADER_BYTES_MAX
    }

    /// Keeps a unit that is neither a duplicate nor outside, and looks at what is in order now.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub(in crate::message) fn insert_unit(
        &mut self,
        sequence: u64,
        span: u64,
        unit: R,
    ) -> Result<(), Violation> {
        self.kept += 1;
        if sequence != self.expected {
            self.ahead.insert_run(sequence, unit, span);
            return Ok(());
        }
        self.slots.push_back(Some(unit));
        self.slots.extend((1..span).map(|_| None));
        self.take_in_order(sequence + span)
    }

    /// Checks the messages of a unit, and returns how many there are: all are whole, no longer than this end takes, and as packets they
    /// would take as many numbers as the unit does.
    pub(super) fn check_unit(&self, payload: &[u8], span: u64) -> Result<usize, Violation> {
        let (mut laid, mut messages) = (Laid::default(), 0);
        for chunk in parse(payload) {
            let chunk = chunk?;
            if chunk.place != Place::Whole || self.open.is_some() {
                return Err(Violation::OutOfPlace);
            }
            if chunk.range.len() > self.message_bytes_max {
                return Err(Violation::TooLong);
            }
            laid.add(chunk.kind, chunk.range.len(), self.payload_bytes_max);
            messages += 1;
        }
        if laid.packets() as u64 == span { Ok(messages) } else { Err(Violation::OutOfPlace) }
    }
}
