//! Keeps packets that arrived and were not read yet; orders and checks them, and reads their messages in
//! place (docs/protocol.md §4, §8).

mod units;

pub(super) use units::placed;

use std::collections::VecDeque;
use std::ops::Range;

use super::ahead::Ahead;
use super::framing::{self, Chunk, Place};
use super::wire::{self, Flags, HEADER_BYTES, Header};
use super::{Kind, Violation, sequence};

/// The slots of a new connection.
const FIRST_SLOTS: usize = 2;
/// The slots that an idle connection keeps allocated.
pub(super) const IDLE_SLOTS: usize = 64;

#[derive(Debug)]
pub(super) struct ReceiveWindow<R> {
    /// The packets from the oldest one not released to the last one in order. Packets that were taken out
    /// leave empty slots.
    slots: VecDeque<Option<R>>,
    first: u64,
    /// Numbers of the only unit here that were passed over: of a unit that arrives where nothing else is
    /// kept, only the last has a slot.
    passed: u64,
    /// Packets after a missing one.
    ahead: Ahead<R>,
    /// The next packet in order: everything below has arrived.
    expected: u64,
    /// Packets that may be kept at a time.
    window: u64,
    kept: usize,
    /// Bytes after the payload of each packet (the CRC).
    trailer_bytes: usize,
    message_bytes_max: usize,
    /// The shortest payload that a packet of a message may have unless it is the message's last.
    payload_bytes_max: usize,
    /// The message that continues after the last packet in order.
    open: Option<Open>,
    /// Complete messages, in order.
    ready: usize,
    /// Those of them that were placed elsewhere.
    placed: usize,
    /// The last packets of those of them that lie in several.
    ends: VecDeque<u64>,
    /// Where the next message begins.
    cursor: Cursor,
    /// The last packet of this direction.
    last: Option<u64>,
    /// What `expected` was when memory was last to be freed.
    rested: u64,
}

/// An incomplete message.
#[derive(Debug, Clone, Copy)]
struct Open {
    bytes_left: usize,
}

/// A position in the received packets: a byte of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    sequence: u64,
    at: u32,
}

/// How a sequence number relates to the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The next one in order.
    InOrder,
    /// After a missing packet, the first time that this gap is seen.
    OpensGap,
    /// After a missing packet.
    Ahead,
    Duplicate,
    /// Beyond the credit.
    Outside,
}

/// A message that is alone in its packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lone<P> {
    pub(super) kind: Kind,
    pub(super) bytes: usize,
    /// Where in the packets it lies.
    pub(super) place: P,
    pub(super) packets: usize,
    /// The time in the header of the last one.
    pub(super) sent: u32,
}

impl Cursor {
    /// The beginning of the next packet.
    #[inline]
    fn next_packet(self) -> Self {
        Self { sequence: self.sequence + 1, at: 0 }
    }
}

/// The next message: its kind and its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Complete {
    pub(super) kind: Kind,
    pub(super) bytes: u32,
    pub(super) begin: Cursor,
    /// The place of its first piece in the payload of its first packet.
    first: (u32, u32),
    pub(super) end: Cursor,
    /// More data follows in its last packet.
    has_more_behind: bool,
}

impl Complete {
    /// Its bytes were placed elsewhere. (Nothing else begins in front of its header.)
    #[inline]
    pub(super) fn is_placed(&self) -> bool {
        self.first == (0, 0)
    }

    /// Whether it is one piece.
    #[inline]
    fn is_whole(&self) -> bool {
        self.end.sequence == self.begin.sequence
    }
}

impl<R: AsRef<[u8]>> ReceiveWindow<R> {
    /// A window of this many packets, for messages in payloads of up to `payload_bytes_max`.
    pub(super) fn new(
        first: u64,
        window: usize,
        trailer_bytes: usize,
        message_bytes_max: usize,
        payload_bytes_max: usize,
    ) -> Self {
        Self {
            slots: VecDeque::with_capacity(FIRST_SLOTS),
            first,
            passed: 0,
            ahead: Ahead::new(),
            expected: first,
            window: window as u64,
            kept: 0,
            trailer_bytes,
            message_bytes_max,
            payload_bytes_max,
            open: None,
            ready: 0,
            placed: 0,
            ends: VecDeque::new(),
            cursor: Cursor { sequence: first, at: 0 },
            last: None,
            rested: first,
        }
    }

    #[inline]
    pub(super) fn expected(&self) -> u64 {
        self.expected
    }

    /// Sequence numbers below it may be sent.
    #[inline]
    pub(super) fn credit(&self) -> u64 {
        self.first - self.passed + self.window
    }

    #[inline]
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    #[inline]
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    /// Messages that can be read, except those whose bytes were written to their final place on arrival.
    pub(super) fn unplaced(&self) -> usize {
        self.ready - self.placed
    }

    /// Whether a packet is missing in front of others.
    #[inline]
    pub(super) fn has_gap(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Whether packets are kept that cannot be read yet: after a gap, or of an incomplete message.
    pub(super) fn is_unfinished(&self) -> bool {
        self.has_gap() || self.open.is_some()
    }

    /// Everything the peer will ever send has arrived, and some of it is unread.
    pub(super) fn is_whole_but_unread(&self) -> bool {
        self.last.is_some_and(|last| self.expected > last) && self.ready > 0
    }

    /// Everything the peer will ever send was read.
    #[inline]
    pub(super) fn is_finished(&self) -> bool {
        self.last.is_some_and(|last| self.cursor.sequence > last)
    }

    #[inline]
    pub(super) fn arrival(&self, sequence: u64) -> Arrival {
        if sequence < self.expected {
            Arrival::Duplicate
        } else if sequence >= self.credit() || self.last.is_some_and(|last| sequence > last) {
            Arrival::Outside
        } else if sequence == self.expected {
            Arrival::InOrder
        } else if self.ahead.end().is_none_or(|end| sequence > end) {
            Arrival::OpensGap // behind a hole that was not there, or behind one more
        } else if self.ahead.contains(sequence) {
            Arrival::Duplicate
        } else {
            Arrival::Ahead
        }
    }

    /// Reduces the length of payloads, before any has arrived.
    pub(super) fn shorten(&mut self, payload_bytes_max: usize) {
        self.payload_bytes_max = payload_bytes_max;
    }

    /// Keeps a packet that is neither a duplicate nor outside, and checks what is in order now.
    /// Errors: the packet contradicts the protocol, so the connection cannot go on.
    pub(super) fn insert(&mut self, sequence: u64, datagram: R) -> Result<(), Violation> {
        self.kept += 1;
        if sequence != self.expected {
            self.ahead.insert(sequence, datagram);
            return Ok(());
        }
        self.slots.push_back(Some(datagram));
        self.take_in_order(sequence + 1)
    }

    /// Checks the packets that are in order now, from `next` on.
    fn take_in_order(&mut self, next: u64) -> Result<(), Violation> {
        if self.has_gap()
            && let Some(mut run) = self.ahead.take_run(next)
        {
            self.slots.append(&mut run);
        }
        while let Some(Some(datagram)) = self.slots.get((self.expected - self.first) as usize) {
            let bytes = datagram.as_ref();
            if let Some(span) = wire::span_of_unit(bytes) {
                let (ready, placed) = self.messages_of_unit(bytes, span)?;
                (self.ready, self.placed) = (self.ready + ready, self.placed + placed);
                self.expected += span;
                continue;
            }
            if bytes[1] & Flags::FIN.bits() != 0 {
                self.last = Some(self.expected);
            }
            let payload = &bytes[HEADER_BYTES..bytes.len() - self.trailer_bytes];
            let (mut open, mut ready) = (self.open, 0);
            for chunk in framing::parse(payload) {
                let chunk = chunk?;
                self.check_place(&chunk, payload.len())?;
                let is_last = chunk.place == Place::Last;
                let ended = follow(&mut open, chunk, self.message_bytes_max)?;
                ready += usize::from(ended);
                if is_last {
                    self.ends.push_back(self.expected);
                }
            }
            if self.last == Some(self.expected) && (open.is_some() || self.has_more_than(self.expected)) {
                return Err(Violation::AfterTheEnd);
            }
            (self.open, self.ready) = (open, self.ready + ready);
            self.expected += 1;
        }
        self.skip_empty();
        Ok(())
    }

    /// How many messages this datagram holds, if it is the next in order, all of them are whole, and nothing
    /// else needs to be checked.
    #[inline(always)] // for each packet
    pub(super) fn whole_messages(&self, sequence: u32, datagram: &[u8]) -> Option<usize> {
        let is_next = sequence == sequence::narrow(self.expected)
            && self.expected < self.credit()
            && self.ahead.is_empty()
            && self.open.is_none()
            && self.last.is_none();
        if !is_next {
            return None;
        }
        framing::whole_messages(&datagram[HEADER_BYTES..], self.message_bytes_max)
    }

    /// The message that the datagram with this header is, if it is the next one in order, there is nothing
    /// else in it or to find out about it, and nothing waits to be read.
    #[inline(always)] // for each packet
    pub(super) fn lone_message(&self, header: &Header, datagram: &[u8]) -> Option<Lone<Range<usize>>> {
        let is_next = header.sequence == sequence::narrow(self.expected)
            && self.slots.is_empty()
            && self.ahead.is_empty()
            && self.last.is_none();
        if !is_next {
            return None;
        }
        let (kind, place) = framing::whole_at(datagram, HEADER_BYTES)?;
        let bytes = place.len();
        (place.end == datagram.len() && bytes <= self.message_bytes_max).then_some(Lone {
            kind,
            bytes,
            place,
            packets: 1,
            sent: header.sent,
        })
    }

    /// As [`lone_message`](Self::lone_message), for one in several packets of `packet_bytes` bytes each (the
    /// last may be shorter) that lie one after another.
    #[inline]
    pub(super) fn lone_of_run(
        &self,
        header: &Header,
        run: &[u8],
        packet_bytes: usize,
    ) -> Option<Lone<framing::Spread>> {
        let first = run.get(..packet_bytes)?;
        let (sequence, header) = (header.sequence, wire::plain(first)?);
        let packets = run.len().div_ceil(packet_bytes);
        let is_next = sequence == sequence::narrow(self.expected)
            && self.expected + packets as u64 <= self.credit()
            && self.slots.is_empty()
            && self.ahead.is_empty()
            && self.open.is_none()
            && self.last.is_none();
        if !is_next {
            return None;
        }
        let chunk = framing::chunk_at(first, HEADER_BYTES).ok()??;
        let (kind, bytes) = (chunk.kind, chunk.total_bytes);
        let is_first = chunk.place == Place::First
            && chunk.range.end == packet_bytes
            && packet_bytes - HEADER_BYTES >= self.payload_bytes_max
            && bytes <= self.message_bytes_max;
        let mut left = bytes.checked_sub(chunk.range.len()).filter(|_| is_first)?;
        let (mut number, mut sent) = (self.expected, None);
        for packet in run[packet_bytes..].chunks(packet_bytes) {
            number += 1;
            sent = Some(wire::follows(packet, header, sequence::narrow(number))?);
            left -= framing::middle_or_last(packet.get(HEADER_BYTES..)?, left)?;
        }
        let place = framing::Spread {
            packet_bytes: packet_bytes.try_into().ok()?,
            first: chunk.range.start.try_into().ok()?,
        };
        sent.filter(|_| left == 0).map(|sent| Lone { kind, bytes, place, packets, sent })
    }

    /// Skips what is next in order, a packet or a unit of so many numbers, whose [lone
    /// message](Self::lone_message) is read in place.
    #[inline(always)] // for each packet
    pub(super) fn pass_lone(&mut self, numbers: u64) {
        self.expected += numbers;
        (self.first, self.passed) = (self.expected, 0);
        self.cursor = Cursor { sequence: self.expected, at: 0 };
    }

    /// Keeps the next packet in order, which holds this many [whole messages](Self::whole_messages).
    #[inline(always)] // for each packet
    pub(super) fn push_whole(&mut self, datagram: R, messages: usize) {
        self.slots.push_back(Some(datagram));
        self.kept += 1;
        self.expected += 1;
        self.ready += messages;
    }

    /// Keeps the next packet in order, if nothing needs to be checked: all packets before it have arrived and
    /// none after it, and it holds only a middle part of the open message. Asks last whether there is memory
    /// to keep it. Gives the packet back: see [`insert`](Self::insert).
    #[inline]
    pub(super) fn extend(&mut self, datagram: R, admit: impl FnOnce() -> bool) -> Result<(), R> {
        let is_open_end = self.expected < self.credit() && self.last.is_none() && !self.has_gap();
        let payload = self.payload_of(&datagram);
        match (framing::middle(payload), &mut self.open) {
            (Some(bytes), Some(Open { bytes_left }))
                if is_open_end
                    && payload.len() >= self.payload_bytes_max
                    && bytes < *bytes_left
                    && admit() =>
            {
                *bytes_left -= bytes;
            }
            _ => return Err(datagram),
        }
        self.slots.push_back(Some(datagram));
        self.kept += 1;
        self.expected += 1;
        Ok(())
    }

    /// Checks that a part of a message is where it must be (docs/protocol.md §4.3), and that the window can
    /// hold the whole message: otherwise it would never become complete, and keep its memory for ever.
    #[inline]
    fn check_place(&self, chunk: &Chunk, payload_bytes: usize) -> Result<(), Violation> {
        if chunk.place == Place::Whole {
            return Ok(());
        }
        let begins = chunk.range.start == chunk.header_bytes;
        let fills = chunk.range.end == payload_bytes && payload_bytes >= self.payload_bytes_max;
        if !begins || chunk.place != Place::Last && !fills {
            return Err(Violation::OutOfPlace);
        }
        let packets = framing::packets(chunk.kind, chunk.total_bytes, self.payload_bytes_max);
        match chunk.place == Place::First && packets as u64 > self.window {
            true => Err(Violation::TooLong),
            false => Ok(()),
        }
    }

    fn has_more_than(&self, sequence: u64) -> bool {
        self.has_gap() || self.first + self.slots.len() as u64 > sequence + 1
    }

    #[inline]
    fn skip_empty(&mut self) {
        while self.cursor.sequence < self.expected {
            match self.payload(self.cursor.sequence) {
                Some(payload) if (self.cursor.at as usize) < payload.len() => break,
                _ => self.cursor = self.cursor.next_packet(),
            }
        }
    }

    #[inline(always)] // for each message
    fn payload(&self, sequence: u64) -> Option<&[u8]> {
        let datagram = self.slots.get(usize::try_from(sequence.checked_sub(self.first)?).ok()?)?.as_ref()?;
        Some(self.payload_of(datagram))
    }

    #[inline(always)] // a call and a second look at the kind of memory otherwise
    fn payload_of<'r>(&self, datagram: &'r R) -> &'r [u8] {
        let bytes = datagram.as_ref();
        &bytes[HEADER_BYTES..bytes.len() - self.trailer_bytes]
    }

    /// The ranges that have arrived after the first missing packet, the lowest first.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ahead.ranges()
    }

    #[inline(always)] // for each message
    pub(super) fn next_message(&self) -> Option<Complete> {
        if self.ready == 0 {
            return None;
        }
        let begin = self.cursor;
        // A message that is ready begins where the cursor is: packets without any were passed over.
        let payload = self.payload(begin.sequence)?;
        let Some((kind, piece)) = framing::whole_at(payload, begin.at as usize) else {
            return self.next_of_several();
        };
        let has_more_behind = piece.end < payload.len();
        let (bytes, first) = (piece.len() as u32, (piece.start as u32, piece.end as u32));
        let end = Cursor { sequence: begin.sequence, at: first.1 };
        Some(Complete { kind, bytes, begin, first, end, has_more_behind })
    }

    /// Passes on the next messages that are whole and lie in one packet, and consumes them; returns their
    /// number and bytes. Packets that were read go to `released`.
    #[inline]
    pub(super) fn read_whole(
        &mut self,
        released: &mut Vec<R>,
        mut each: impl FnMut(Kind, &[u8]),
    ) -> (usize, usize) {
        let begin = self.cursor;
        let Some(payload) = self.payload(begin.sequence).filter(|_| self.ready > 0) else { return (0, 0) };
        let (mut at, mut messages, mut bytes) = (begin.at as usize, 0, 0);
        while let Some((kind, range)) = framing::whole_at(payload, at) {
            (at, messages, bytes) = (range.end, messages + 1, bytes + range.len());
            each(kind, &payload[range]);
        }
        if messages == 0 {
            return (0, 0);
        }
        let is_all = at == payload.len();
        self.ready -= messages;
        self.cursor.at = at as u32;
        if is_all {
            self.cursor = begin.next_packet();
            self.skip_empty();
        }
        self.release(released);
        (messages, bytes)
    }

    /// As [`next_message`](Self::next_message), for a message in several packets.
    #[cold]
    fn next_of_several(&self) -> Option<Complete> {
        if let Some(complete) = self.next_placed() {
            return Some(complete);
        }
        let mut behind_first = self.cursor;
        let (chunk, _) = self.chunk_and_rest(&mut behind_first)?;
        // The packets between were checked when they arrived.
        let mut end = Cursor { sequence: *self.ends.front()?, at: 0 };
        let (_, has_more_behind) = self.chunk_and_rest(&mut end)?;
        let (bytes, first) = (chunk.total_bytes as u32, (chunk.range.start as u32, chunk.range.end as u32));
        Some(Complete { kind: chunk.kind, bytes, begin: self.cursor, first, end, has_more_behind })
    }

    /// The chunk at the cursor, which then moves past it.
    #[inline]
    fn chunk(&self, cursor: &mut Cursor) -> Option<Chunk> {
        self.chunk_and_rest(cursor).map(|(chunk, _)| chunk)
    }

    /// As [`chunk`](Self::chunk), and whether something follows in the same packet.
    #[inline]
    fn chunk_and_rest(&self, cursor: &mut Cursor) -> Option<(Chunk, bool)> {
        loop {
            let payload = self.payload(cursor.sequence)?;
            match framing::chunk_at(payload, cursor.at as usize) {
                Ok(Some(chunk)) => {
                    cursor.at = chunk.range.end as u32;
                    let has_more_behind = chunk.range.end < payload.len();
                    return Some((chunk, has_more_behind));
                }
                _ => *cursor = cursor.next_packet(),
            }
        }
    }

    /// The bytes of a message, in pieces.
    pub(super) fn pieces(&self, message: &Complete) -> impl Iterator<Item = &[u8]> {
        let index = |cursor: Cursor| (cursor.sequence - self.first) as usize;
        let behind = index(message.begin) + 1..index(message.end) + 1;
        let packets = self.slots.range(behind).flatten();
        let rest = packets.filter_map(|datagram| framing::continuation(self.payload_of(datagram)));
        self.first_piece(message).into_iter().chain(rest)
    }

    #[inline]
    fn first_piece(&self, message: &Complete) -> Option<&[u8]> {
        let (start, end) = message.first;
        self.payload(message.begin.sequence).map(|payload| &payload[start as usize..end as usize])
    }

    /// The bytes of a message that is one piece.
    #[inline]
    pub(super) fn whole(&self, message: &Complete) -> Option<&[u8]> {
        if message.is_whole() { self.first_piece(message) } else { None }
    }

    /// Moves the pieces of a message out: whole packets if they hold nothing else, otherwise copies.
    pub(super) fn take(&mut self, message: &Complete, mut each: impl FnMut(Taken<'_, R>)) {
        let mut at = message.begin;
        if message.is_placed() {
            let slot = &mut self.slots[(at.sequence - self.first) as usize];
            self.kept -= 1;
            return each(Taken::Packet(slot.take().expect("it was found"), 0..0));
        }
        while at != message.end {
            let Some(Chunk { range, header_bytes, .. }) = self.chunk(&mut at) else { return };
            let Some(payload_bytes) = self.payload(at.sequence).map(<[u8]>::len) else { return };
            let alone = range.start == header_bytes && range.end == payload_bytes;
            let slot = &mut self.slots[(at.sequence - self.first) as usize];
            let range = HEADER_BYTES + range.start..HEADER_BYTES + range.end;
            if alone {
                self.kept -= 1;
                each(Taken::Packet(slot.take().expect("its payload was looked at"), range));
                if at != message.end {
                    at = at.next_packet();
                }
            } else {
                each(Taken::Part(&slot.as_ref().expect("its payload was looked at").as_ref()[range]));
            }
        }
    }

    /// Consumes a message that is one piece and is followed by others in its packet; returns whether it is
    /// one.
    #[inline]
    pub(super) fn consume_part(&mut self, message: &Complete) -> bool {
        let is_part = message.has_more_behind && message.is_whole();
        if is_part {
            self.ready -= 1;
            self.cursor = message.end;
        }
        is_part
    }

    /// Consumes a message; packets that were read go to `released`.
    #[inline]
    pub(super) fn consume(&mut self, message: &Complete, released: &mut Vec<R>) {
        self.placed -= usize::from(message.is_placed());
        if self.slots.len() == 1 && message.is_whole() && !message.has_more_behind {
            // The usual case where messages arrive one by one: there is no other packet.
            if let Some(datagram) = self.slots.pop_front().flatten() {
                released.push(datagram);
                self.kept -= 1;
            }
            self.ready -= 1;
            self.cursor = message.end.next_packet();
            (self.first, self.passed) = (self.cursor.sequence, 0);
            return;
        }
        self.consume_any(message, released);
    }

    #[inline(never)]
    fn consume_any(&mut self, message: &Complete, released: &mut Vec<R>) {
        self.ready -= 1;
        self.cursor = message.end;
        if !message.is_whole() {
            self.ends.pop_front();
        }
        if !message.has_more_behind {
            self.cursor = message.end.next_packet();
            self.skip_empty();
        }
        self.release(released);
    }

    #[inline]
    pub(super) fn release(&mut self, released: &mut Vec<R>) {
        let read = (self.cursor.sequence - self.first) as usize;
        if read == 0 {
            return;
        }
        for _ in 0..read {
            // The slot of a packet that was taken is empty.
            if let Some(datagram) = self.slots.pop_front().flatten() {
                self.kept -= 1;
                released.push(datagram);
            }
        }
        (self.first, self.passed) = (self.cursor.sequence, 0);
    }

    pub(super) fn clear(&mut self, released: &mut Vec<R>) {
        released.extend(self.slots.drain(..).flatten().chain(self.ahead.drain()));
        (self.kept, self.ready, self.placed) = (0, 0, 0);
        self.ends.clear();
        (self.first, self.passed) = (self.expected, 0);
        self.cursor = Cursor { sequence: self.expected, at: 0 };
    }

    /// Frees the memory that a burst took, if nothing is kept any more, and little has come since the last
    /// call.
    pub(super) fn shrink(&mut self) {
        let rested = std::mem::replace(&mut self.rested, self.expected);
        if self.slots.is_empty()
            && self.expected - rested <= IDLE_SLOTS as u64
            && self.slots.capacity().max(self.ends.capacity()) > IDLE_SLOTS
        {
            self.slots.shrink_to(IDLE_SLOTS);
            self.ends.shrink_to(IDLE_SLOTS);
        }
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn capacity(&self) -> usize {
        self.slots.capacity() + self.ahead.capacity()
    }
}

/// A piece of a message that the caller takes.
#[derive(Debug)]
pub(super) enum Taken<'a, R> {
    /// A datagram that holds nothing else, and the place of the piece in it.
    Packet(R, Range<usize>),
    /// A part of a datagram that also holds other data.
    Part(&'a [u8]),
}

/// Checks that a chunk may follow; returns whether it ends a message.
#[inline]
fn follow(open: &mut Option<Open>, chunk: Chunk, message_bytes_max: usize) -> Result<bool, Violation> {
    let bytes = chunk.range.len();
    match (chunk.place, *open) {
        (Place::Whole, None) if bytes <= message_bytes_max => Ok(true),
        (Place::First, None) if chunk.total_bytes <= message_bytes_max && bytes < chunk.total_bytes => {
            *open = Some(Open { bytes_left: chunk.total_bytes - bytes });
            Ok(false)
        }
        (Place::Middle, Some(Open { bytes_left })) if bytes < bytes_left => {
            *open = Some(Open { bytes_left: bytes_left - bytes });
            Ok(false)
        }
        (Place::Last, Some(Open { bytes_left })) if bytes == bytes_left => {
            *open = None;
            Ok(true)
        }
        (Place::Whole | Place::First, None) => Err(Violation::TooLong),
        _ => Err(Violation::OutOfPlace),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::framing::chunks;
    use super::*;

    const PAYLOAD_BYTES: usize = 100;

    fn window(packets: usize) -> ReceiveWindow<Vec<u8>> {
        ReceiveWindow::new(0, packets, 0, 10_000, PAYLOAD_BYTES)
    }

    /// The packets of a message with payloads of this length.
    fn packets(bytes: usize, payload_bytes: usize) -> Vec<Vec<u8>> {
        let packet = |header: &[u8], bytes| [&[0; HEADER_BYTES], header, &vec![7; bytes][..]].concat();
        chunks(Kind::Plain, bytes, 0, payload_bytes)
            .map(|placed| packet(placed.header(), placed.range.len()))
            .collect()
    }

    fn insert_all(window: &mut ReceiveWindow<Vec<u8>>, packets: Vec<Vec<u8>>) -> Result<(), Violation> {
        packets.into_iter().zip(window.expected()..).try_for_each(|(packet, at)| window.insert(at, packet))
    }

    #[test]
    fn packets_of_a_message_have_to_be_full() {
        let mut all = window(10);
        assert_eq!(insert_all(&mut all, packets(300, PAYLOAD_BYTES)), Ok(()));
        assert_eq!(
            insert_all(&mut all, packets(300, PAYLOAD_BYTES + 1)),
            Ok(()),
            "longer than agreed do no harm"
        );
        assert_eq!(all.ready(), 2);
        assert_eq!(insert_all(&mut window(10), packets(300, PAYLOAD_BYTES - 1)), Err(Violation::OutOfPlace));
        let mut short = window(10);
        short.shorten(PAYLOAD_BYTES - 1);
        assert_eq!(insert_all(&mut short, packets(300, PAYLOAD_BYTES - 1)), Ok(()));
    }

    #[test]
    fn parts_of_messages_begin_their_packets() {
        let message = packets(150, PAYLOAD_BYTES);
        let mut behind = window(10);
        let mut last = message[1].clone();
        last.splice(HEADER_BYTES..HEADER_BYTES, [0; 4]); // an empty message in front
        let all = vec![message[0].clone(), last];
        assert_eq!(insert_all(&mut behind, all), Err(Violation::OutOfPlace));
        let mut followed = window(10);
        let mut last = message[1].clone();
        last.extend([0; 4]);
        assert_eq!(insert_all(&mut followed, vec![message[0].clone(), last]), Ok(()));
        assert_eq!(followed.ready(), 2);
    }

    /// Memory depends on the packets that arrived, not on the width of the window or of a gap.
    #[test]
    fn a_packet_at_the_end_of_the_credit_takes_the_memory_of_one() {
        const WINDOW: usize = 1 << 16;
        let mut window = window(WINDOW);
        let last = WINDOW as u64 - 1;
        window.insert(last, vec![0; HEADER_BYTES]).unwrap();
        assert!(window.capacity() <= 4, "{} places for one packet", window.capacity());
        assert!(window.ranges().eq(std::iter::once(last..last + 1)));
        assert_eq!(window.arrival(last), Arrival::Duplicate);
        for sequence in (1..last).step_by(256) {
            window.insert(sequence, vec![0; HEADER_BYTES]).unwrap();
        }
        assert!(window.capacity() <= 2 * window.kept(), "{} for {}", window.capacity(), window.kept());
    }

    #[test]
    fn memory_of_a_burst_is_given_back_when_none_follows() {
        let mut window = window(10_000);
        insert_all(&mut window, vec![vec![0; HEADER_BYTES]; 5_000]).unwrap();
        let mut released = Vec::new();
        window.release(&mut released);
        window.shrink();
        assert_eq!((released.len(), window.kept()), (5_000, 0));
        assert!(window.capacity() >= 5_000, "another burst may follow");
        window.shrink();
        assert!(window.capacity() <= IDLE_SLOTS, "{}", window.capacity());
    }

    #[test]
    fn a_message_too_large_for_the_window_is_refused_at_once() {
        let message = packets(framing::bytes_in(4, PAYLOAD_BYTES), PAYLOAD_BYTES);
        assert_eq!(message.len(), 4);
        assert_eq!(insert_all(&mut window(4), message.clone()), Ok(()));
        assert_eq!(insert_all(&mut window(3), message[..1].to_vec()), Err(Violation::TooLong));
    }
}
