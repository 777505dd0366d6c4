//! Units in the window (docs/protocol.md §16): each was received over the stream, and takes the place of its
//! first sequence number.

use std::ops::Range;

use super::{Arrival, Complete, Cursor, ReceiveWindow};
use crate::message::framing::{self, Laid, Place, parse};
use crate::message::wire::{HEADER_BYTES, Unit};
use crate::message::{Kind, Violation, sequence};

/// Bytes of the longest header of a whole message.
const WHOLE_HEADER_BYTES_MAX: usize = 8;

impl<R: AsRef<[u8]>> ReceiveWindow<R> {
    /// How the numbers of a unit relate to the window. If one of them has arrived already, the sender is
    /// replacing the unit by packets because its stream was cut, and the others arrive as packets.
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

    /// The longest message that this end accepts, with its header.
    pub(in crate::message) fn longest_message(&self) -> usize {
        self.message_bytes_max + WHOLE_HEADER_BYTES_MAX
    }

    /// The message that the unit is, and where in it that lies, if the unit is the next in order, there is
    /// nothing else in it or to find out about it, and nothing waits to be read.
    #[inline]
    pub(in crate::message) fn lone_of_unit(&self, unit: &Unit, bytes: &[u8]) -> Option<(Kind, Range<usize>)> {
        let end = self.expected + u64::from(unit.span);
        let is_next = unit.header.sequence == sequence::narrow(self.expected)
            && end <= self.credit()
            && self.slots.is_empty()
            && self.ahead.is_empty()
            && self.open.is_none()
            && self.last.is_none();
        if !is_next || bytes.len() != HEADER_BYTES + unit.bytes as usize {
            return None;
        }
        let (kind, range) =
            framing::whole_at(bytes, HEADER_BYTES).filter(|(_, range)| range.end == bytes.len())?;
        self.check_placed((kind, range.len()), unit.span.into()).ok()?;
        Some((kind, range))
    }

    /// Keeps a unit that is neither a duplicate nor outside, and checks what is in order now.
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
        if self.slots.is_empty() && !self.has_gap() {
            return self.insert_only(span, unit);
        }
        self.slots.push_back(Some(unit));
        self.slots.extend((1..span).map(|_| None));
        self.take_in_order(sequence + span)
    }

    /// Keeps the next unit in the slot of its last number, where nothing else is kept.
    fn insert_only(&mut self, span: u64, unit: R) -> Result<(), Violation> {
        let end = self.expected + span;
        let checked = self.messages_of_unit(unit.as_ref(), span);
        self.slots.push_back(Some(unit)); // from where it is released
        (self.expected, self.first, self.passed) = (end, end - 1, span - 1);
        self.cursor = Cursor { sequence: self.first, at: 0 };
        let (ready, placed) = checked?;
        (self.ready, self.placed) = (self.ready + ready, self.placed + placed);
        self.skip_empty();
        Ok(())
    }

    /// Checks a unit, and returns how many messages it holds, and how many of them were placed elsewhere.
    pub(super) fn messages_of_unit(&self, unit: &[u8], span: u64) -> Result<(usize, usize), Violation> {
        match placed(unit) {
            None => Ok((self.check_unit(&unit[HEADER_BYTES..], span)?, 0)),
            Some(message) => self.check_placed(message, span).map(|()| (1, 1)),
        }
    }

    /// Checks the messages of a unit, and returns their number: all must be whole, none longer than this end
    /// accepts, and as packets they must take as many numbers as the unit.
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

    /// Checks the message of a unit of which nothing but the front is here.
    pub(super) fn check_placed(&self, (kind, bytes): (Kind, usize), span: u64) -> Result<(), Violation> {
        if bytes > self.message_bytes_max {
            return Err(Violation::TooLong);
        }
        let mut laid = Laid::default();
        laid.add(kind, bytes, self.payload_bytes_max);
        match laid.packets() as u64 == span && self.open.is_none() {
            true => Ok(()),
            false => Err(Violation::OutOfPlace),
        }
    }

    /// The next message, if its bytes were placed elsewhere.
    pub(super) fn next_placed(&self) -> Option<Complete> {
        let begin = self.cursor;
        let index = usize::try_from(begin.sequence.checked_sub(self.first)?).ok()?;
        let front = self.slots.get(index)?.as_ref()?.as_ref();
        let (kind, bytes) = placed(front)?;
        let end = Cursor { sequence: begin.sequence, at: (front.len() - HEADER_BYTES) as u32 };
        Some(Complete { kind, bytes: bytes as u32, begin, first: (0, 0), end, has_more_behind: false })
    }
}

/// The kind and length of a message whose bytes were placed elsewhere: then `received` ends before them. A
/// unit that was kept whole has all its bytes, which was checked when it arrived.
pub(in crate::message) fn placed(received: &[u8]) -> Option<(Kind, usize)> {
    let (header, rest) = received.split_first_chunk::<HEADER_BYTES>()?;
    let unit = Unit::parse(header).ok()?;
    let (kind, bytes) = framing::whole_header(rest).filter(|_| unit.bytes as usize > rest.len())?;
    let is_alone = framing::whole_header_bytes(kind) + bytes == unit.bytes as usize;
    (is_alone && rest.len() >= framing::whole_header_bytes(kind)).then_some((kind, bytes))
}
