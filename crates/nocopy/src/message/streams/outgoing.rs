//! Keeps units that are sent, until their peers have acknowledged them.

use std::sync::Arc;

use nocopy_proto::message::Kind;
use nocopy_proto::message::framing::{CHUNK_HEADER_BYTES_MAX, Laid, put_whole_header};

use super::memory::UNIT_BYTES_MAX;
use crate::memory::pieces::Buffers;
use crate::memory::pool::Buffer;
use crate::message::HEADER_BYTES;
use crate::tcp::{self, Published};

/// Units that are kept to be used again.
const SPARES_MAX: usize = 128;
/// Longer ones are not kept.
const SPARE_BYTES_MAX: usize = 256 << 10;

/// A unit: its header and its messages, all of them or without the bytes of the one that lies elsewhere.
#[derive(Debug, Default)]
pub(super) struct Load {
    front: Vec<u8>,
    rest: Buffers,
}

impl Load {
    /// Fills the unit with one message, whose bytes stay where they are.
    fn fill(&mut self, kind: Kind, bytes: usize, rest: Buffers) {
        self.front.resize(HEADER_BYTES + CHUNK_HEADER_BYTES_MAX, 0);
        let header_bytes = put_whole_header(kind, bytes, &mut self.front[HEADER_BYTES..]);
        self.front.truncate(HEADER_BYTES + header_bytes);
        self.rest = rest;
    }

    /// A piece of the unit; the first one is its headers.
    fn piece(&self, piece: usize) -> &[u8] {
        match piece {
            0 => &self.front,
            piece => &self.rest[piece - 1],
        }
    }

    /// The published data to which a piece belongs, if any.
    fn published(&self, piece: usize) -> Option<&Published> {
        self.rest.get(piece.checked_sub(1)?)?.owner_as()
    }

    /// Bytes of the messages with their headers.
    pub(super) fn bytes(&self) -> usize {
        self.front.len() - HEADER_BYTES + self.rest.iter().map(|buffer| buffer.len()).sum::<usize>()
    }

    /// Bytes that the unit owns; none if they are published.
    fn owned_bytes(&self) -> usize {
        let is_published = |buffer: &Buffer| buffer.owner_as::<Published>().is_some();
        match self.rest.iter().any(is_published) {
            true => 0,
            false => self.rest.iter().map(|buffer| buffer.len()).sum(),
        }
    }

    /// The messages with their headers in one piece.
    #[cfg(any(feature = "fuzzing", test))]
    pub(super) fn messages(&self) -> Vec<u8> {
        let pieces =
            std::iter::once(&self.front[HEADER_BYTES..]).chain(self.rest.iter().map(|buffer| &**buffer));
        pieces.collect::<Vec<_>>().concat()
    }
}

/// A unit to which messages are being added.
#[derive(Debug)]
pub(in crate::message) struct OpenUnit {
    front: Vec<u8>,
    /// The place for the unit once it is closed.
    place: Arc<Load>,
    laid: Laid,
    messages: usize,
    limits: Limits,
}

/// What a unit may hold, by what the peer had room for when it was begun.
#[derive(Debug, Clone, Copy)]
pub(in crate::message) struct Limits {
    pub(in crate::message) payload_bytes_max: usize,
    pub(in crate::message) message_bytes_max: usize,
    pub(in crate::message) packets_max: usize,
}

impl OpenUnit {
    /// The number of messages in the unit.
    pub(super) fn messages(&self) -> usize {
        self.messages
    }

    /// Bytes of messages with their headers.
    pub(super) fn bytes(&self) -> usize {
        self.front.len() - HEADER_BYTES
    }

    /// Adds a message after the others.
    #[inline]
    pub(in crate::message) fn put(&mut self, kind: Kind, message: &[u8]) {
        let mut header = [0; CHUNK_HEADER_BYTES_MAX];
        let header_bytes = put_whole_header(kind, message.len(), &mut header);
        self.front.extend_from_slice(&header[..header_bytes]);
        self.front.extend_from_slice(message);
        self.laid.add(kind, message.len(), self.limits.payload_bytes_max);
        self.messages += 1;
    }

    /// Adds a message, if it fits the bytes of a unit, and the peer's room.
    #[inline]
    pub(super) fn try_put(&mut self, kind: Kind, message: &[u8]) -> bool {
        let mut laid = self.laid;
        laid.add(kind, message.len(), self.limits.payload_bytes_max);
        let fits = self.bytes() + message.len() + 8 <= UNIT_BYTES_MAX
            && message.len() <= self.limits.message_bytes_max
            && laid.packets() <= self.limits.packets_max;
        if fits {
            self.put(kind, message);
        }
        fits
    }

    pub(super) fn close(self) -> (Arc<Load>, u32) {
        let Self { front, mut place, laid, .. } = self;
        own(&mut place).front = front;
        (place, laid.packets() as u32)
    }
}

/// Units that are not acknowledged, each with a number.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    units: Vec<Option<Arc<Load>>>,
    free: Vec<u32>,
    spares: Vec<Arc<Load>>,
    /// Bytes of messages that were copied into units.
    gathered_bytes: usize,
    /// Bytes of messages that units own. (Published ones are the program's, however many peers they are for.)
    owned_bytes: usize,
    /// Bytes of messages that were copied into units and given to a stream.
    copied_bytes_sent: u64,
}

impl Outgoing {
    /// An empty unit with room for messages of this many bytes in total.
    pub(super) fn open(&mut self, bytes: usize, limits: Limits) -> OpenUnit {
        let mut place = self.spare();
        let mut front = std::mem::take(&mut own(&mut place).front);
        front.clear();
        front.reserve(HEADER_BYTES + bytes);
        front.resize(HEADER_BYTES, 0);
        OpenUnit { front, place, laid: Laid::default(), messages: 0, limits }
    }

    /// A unit of one message, whose bytes stay where they are.
    pub(super) fn owned(&mut self, kind: Kind, bytes: usize, rest: Buffers) -> Arc<Load> {
        let mut load = self.spare();
        own(&mut load).fill(kind, bytes, rest);
        load
    }

    fn spare(&mut self) -> Arc<Load> {
        self.spares.pop().unwrap_or_default()
    }

    /// Keeps a unit, and returns its number.
    pub(super) fn put(&mut self, load: Arc<Load>) -> u32 {
        self.gathered_bytes += load.front.len();
        self.owned_bytes += load.owned_bytes();
        let unit = Some(load);
        match self.free.pop() {
            Some(number) => {
                self.units[number as usize] = unit;
                number
            }
            None => {
                self.units.push(unit);
                self.units.len() as u32 - 1
            }
        }
    }

    /// Removes a unit that was not sent, and returns its buffers.
    pub(super) fn take(&mut self, number: u32) -> Buffers {
        let mut unit = self.units[number as usize].take().expect("it is not acknowledged");
        self.free.push(number);
        self.gathered_bytes -= unit.front.len();
        self.owned_bytes -= unit.owned_bytes();
        std::mem::take(&mut own(&mut unit).rest)
    }

    #[cfg(any(feature = "fuzzing", test))]
    pub(super) fn get(&self, number: u32) -> &Load {
        self.units[number as usize].as_ref().expect("it is not acknowledged")
    }

    /// Sends a unit by a stream, or queues it there, with what precedes it; returns whether nothing of it is
    /// left to be flushed. Published data goes as others, or by reference to its pages. Errors: the stream
    /// did not take it.
    pub(super) fn send(
        &mut self,
        number: u32,
        header: &[u8; HEADER_BYTES],
        by_reference: bool,
        sender: &mut tcp::Sender,
    ) -> Result<bool, ()> {
        let unit = self.units[number as usize].as_mut().expect("it is not acknowledged");
        let Some(load) = Arc::get_mut(unit) else {
            return send_shared(unit, header, sender).map(|()| false).map_err(drop);
        };
        load.front[..HEADER_BYTES].copy_from_slice(header);
        if load.rest.is_empty() {
            self.copied_bytes_sent += load.bytes() as u64;
            let sent = sender.try_send_copy(&load.front).map_err(drop)?;
            if sent == load.front.len() {
                return Ok(true);
            }
            let left = Buffer::from_shared(Arc::clone(unit), |load| &load.front[sent..]);
            return sender.send(left).map(|_| false).map_err(drop);
        }
        for piece in 0..=load.rest.len() {
            match unit.published(piece).filter(|_| by_reference) {
                Some(published) => {
                    sender.send_published(published, 0..published.len() as u64).map_err(drop)?;
                }
                None => {
                    let piece = Buffer::from_shared(Arc::clone(unit), |load| load.piece(piece));
                    sender.send(piece).map_err(drop)?;
                }
            }
        }
        Ok(false)
    }

    /// Frees a unit that the peer has acknowledged.
    pub(super) fn release(&mut self, number: u32) {
        let mut unit = self.units[number as usize].take().expect("it is not acknowledged");
        self.free.push(number);
        self.gathered_bytes -= unit.front.len();
        self.owned_bytes -= unit.owned_bytes();
        // Unless the kernel still reads it.
        if let Some(load) = Arc::get_mut(&mut unit)
            && load.front.capacity() <= SPARE_BYTES_MAX
            && self.spares.len() < SPARES_MAX
        {
            load.rest = Buffers::default();
            self.spares.push(unit);
        }
    }

    /// Bytes of messages that were copied into units and are not acknowledged.
    pub(super) fn gathered_bytes(&self) -> usize {
        self.gathered_bytes
    }

    /// Bytes of messages that units own and that are not acknowledged, without published ones.
    pub(super) fn owned_bytes(&self) -> usize {
        self.owned_bytes
    }

    /// Bytes of messages, with their headers, that were copied into units and given to a stream.
    pub(super) fn copied_bytes_sent(&self) -> u64 {
        self.copied_bytes_sent
    }

    /// Units that are not acknowledged.
    pub(super) fn in_use(&self) -> usize {
        self.units.len() - self.free.len()
    }
}

/// Sends a unit again which the kernel still reads for the stream that was cut, so that its header must not
/// change where it lies.
#[cold]
fn send_shared(
    unit: &Arc<Load>,
    header: &[u8; HEADER_BYTES],
    sender: &mut tcp::Sender,
) -> Result<(), impl Sized + use<>> {
    let pieces = (0..=unit.rest.len()).map(|piece| {
        let from = if piece == 0 { HEADER_BYTES } else { 0 };
        Buffer::from_shared(Arc::clone(unit), |load| &load.piece(piece)[from..])
    });
    std::iter::once(Buffer::from_owner(*header))
        .chain(pieces)
        .try_for_each(|piece| sender.send(piece).map(drop))
}

/// A unit that nothing else refers to.
fn own(unit: &mut Arc<Load>) -> &mut Load {
    Arc::get_mut(unit).expect("it was not sent")
}
