//! Reads one stream, by large reads into buffers that several units share; a long unit gets a buffer of its
//! own.

use std::io;
use std::sync::Arc;

use nocopy_proto::message::wire::Unit;
use nocopy_proto::message::{self as protocol, Arriving, Peer};

use super::memory::{CHUNK_BYTES, Memory, Part, SMALL_BYTES, own};
use super::placed::{Within, WithinPut, front_of, is_placed_on};
use crate::memory::pool::Buffer;
use crate::message::HEADER_BYTES;
use crate::message::arrivals::{Lone, Moment};
use crate::message::carrier::{Alone, Packet, Received};
use crate::message::placing::Front;
use crate::tcp;

pub(super) type Protocol = protocol::Endpoint<Packet, Received>;

/// Bytes to ask for at least.
const READ_BYTES_MIN: usize = 16 << 10;
/// Reads of one stream at most before others have their turn.
const READS_MAX: u32 = 16;

/// What was read of a stream, and where its next bytes go.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) state: State,
    /// Bytes that are likely to come next: those of the unit before.
    likely_bytes: usize,
    /// How many to read by one call.
    pub(super) most: usize,
    pub(super) counts: Counts,
}

/// Received bytes, by what was done with them.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub(super) units: u64,
    pub(super) bytes: u64,
    /// Of those, bytes that were copied once more.
    pub(super) copied_bytes: u64,
    /// Units that were skipped because their messages had arrived already.
    pub(super) passed: u64,
    /// How often there was no memory for a unit.
    pub(super) no_memory: u64,
}

#[derive(Debug)]
pub(super) enum State {
    /// In front of a unit, with a part of its header.
    Between([u8; HEADER_BYTES], usize),
    /// In a unit that has a buffer of its own, with so many bytes there of so many.
    Within(Arc<Buffer>, usize, usize),
    /// In front of the bytes of a message, which may go into a posted buffer.
    Front(Front),
    /// In a message that goes there.
    Placed(Box<Within>),
    /// In a put, which goes into registered memory.
    Put(Box<WithinPut>),
    /// At a unit for which there was no memory, with what came of it.
    Waiting(Part, Unit),
    /// Inside a unit that is skipped; this many bytes are left.
    Passing(usize),
}

/// Why a stream is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Useless {
    #[error("the peer has closed it")]
    Ended,
    #[error("what came over it is no unit")]
    Malformed,
    #[error(transparent)]
    Broken(#[from] io::Error),
}

/// How a look at a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// All bytes that had arrived were read.
    Empty,
    /// There may be more.
    More,
    /// There is more, and no memory for it.
    Full,
}

impl Reading {
    pub(super) fn new() -> Self {
        Self {
            state: State::Between([0; HEADER_BYTES], 0),
            likely_bytes: READ_BYTES_MIN,
            most: usize::MAX,
            counts: Counts::default(),
        }
    }

    /// Whether a unit has begun and not ended.
    pub(super) fn is_within(&self) -> bool {
        matches!(self.state, State::Within(..) | State::Placed(_) | State::Put(_))
    }

    /// Whether there was no memory for the next unit, and a long part of it has some.
    pub(super) fn waits_with_memory(&self) -> bool {
        matches!(&self.state, State::Waiting(part, _) if part.has_much_memory())
    }

    /// Whether a unit is read into a posted buffer.
    pub(super) fn is_placed(&self) -> bool {
        matches!(self.state, State::Placed(_))
    }

    /// Whether there was no memory for the next unit.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(..))
    }

    /// Reads what has arrived, and delivers units.
    pub(super) fn read(
        &mut self,
        most: usize,
        receiver: &mut tcp::Receiver,
        memory: &mut Memory,
        now: &mut Moment<'_>,
        peer: Peer,
        protocol: &mut Protocol,
    ) -> Result<Look, Useless> {
        let before = self.counts.bytes;
        self.most = most;
        for _ in 0..READS_MAX {
            if self.counts.bytes - before >= most as u64 {
                break;
            }
            let look = match std::mem::replace(&mut self.state, State::Passing(0)) {
                State::Between(header, have) if is_placed_on(memory, peer, protocol) => {
                    let front = front_of(&header[..have], peer, protocol);
                    self.read_front(front, receiver, memory, peer, protocol)?
                }
                State::Between(header, have) => {
                    self.read_next(header, have, receiver, memory, now, peer, protocol)?
                }
                State::Within(buffer, have, total) => {
                    self.read_rest(buffer, have, total, receiver, memory, now, peer, protocol)?
                }
                State::Front(front) => self.read_front(front, receiver, memory, peer, protocol)?,
                State::Placed(within) => self.read_placed(within, receiver, now, peer, protocol)?,
                State::Put(within) => self.read_put(within, receiver, memory, now, peer, protocol)?,
                State::Waiting(part, unit) => self.begin(part, unit, memory, peer, protocol)?,
                State::Passing(left) => self.pass(left, receiver, memory)?,
            };
            if look != Look::More {
                return Ok(look);
            }
        }
        Ok(Look::More)
    }

    /// Reads from the beginning of a unit on.
    #[expect(clippy::too_many_arguments, reason = "what a read needs, and where the stream is")]
    fn read_next(
        &mut self,
        mut header: [u8; HEADER_BYTES],
        have: usize,
        receiver: &mut tcp::Receiver,
        memory: &mut Memory,
        now: &mut Moment<'_>,
        peer: Peer,
        protocol: &mut Protocol,
    ) -> Result<Look, Useless> {
        let Some(mut buffer) = memory.take(self.likely_bytes) else {
            return self.read_header(header, have, receiver, peer, protocol);
        };
        let room = own(&mut buffer);
        room[..have].copy_from_slice(&header[..have]);
        let asked = self.likely_bytes.min(room.len());
        let Some(came) = receiver.read_now(&mut room[have..asked])? else {
            self.state = State::Between(header, have);
            memory.give_back(buffer);
            return Ok(Look::Empty);
        };
        if came == 0 {
            return Err(Useless::Ended);
        }
        self.counts.bytes += came as u64;
        let filled = have + came;
        let look = if filled < asked { Look::Empty } else { Look::More };
        let Some(first) = buffer[..filled].first_chunk::<HEADER_BYTES>() else {
            header[..filled].copy_from_slice(&buffer[..filled]);
            self.state = State::Between(header, filled);
            memory.give_back(buffer);
            return Ok(look);
        };
        let unit = Unit::parse(first).map_err(|_| Useless::Malformed)?;
        let total = total(&unit, memory)?;
        if total > filled && total <= buffer.capacity() && !is_passed(protocol, peer, &unit)? {
            self.state = State::Within(buffer, filled, total);
            return Ok(look);
        }
        own(&mut buffer).resize(filled);
        if filled <= SMALL_BYTES
            && let Some(copy) = memory.small_copy(&buffer)
        {
            self.counts.copied_bytes += filled as u64;
            memory.give_back(std::mem::replace(&mut buffer, copy));
        }
        memory.lend(&buffer);
        self.hand_over(&buffer, memory, now, peer, protocol)?;
        Ok(look)
    }

    /// Reads only a header, because there is no memory.
    fn read_header(
        &mut self,
        mut header: [u8; HEADER_BYTES],
        have: usize,
        receiver: &mut tcp::Receiver,
        peer: Peer,
        protocol: &mut Protocol,
    ) -> Result<Look, Useless> {
        let came = receiver.read_now(&mut header[have..])?;
        let have = match came {
            None => have,
            Some(0) => return Err(Useless::Ended),
            Some(came) => have + came,
        };
        self.counts.bytes += came.unwrap_or(0) as u64;
        if have < HEADER_BYTES {
            self.state = State::Between(header, have);
            return Ok(Look::Empty);
        }
        let unit = Unit::parse(&header).map_err(|_| Useless::Malformed)?;
        if is_passed(protocol, peer, &unit)? {
            self.counts.passed += 1;
            self.state = State::Passing(unit.bytes as usize);
        } else {
            let buffer = Arc::new(Buffer::from_owner(header));
            self.state = State::Waiting(Part::new(&buffer, 0, HEADER_BYTES), unit);
        }
        Ok(Look::More)
    }

    /// Delivers the units that are complete in a buffer, and begins the incomplete one.
    fn hand_over(
        &mut self,
        buffer: &Arc<Buffer>,
        memory: &mut Memory,
        now: &mut Moment<'_>,
        peer: Peer,
        protocol: &mut Protocol,
    ) -> Result<(), Useless> {
        let mut at = 0;
        loop {
            let rest = &buffer[at..];
            let Some(first) = rest.first_chunk::<HEADER_BYTES>() else {
                let mut header = [0; HEADER_BYTES];
                header[..rest.len()].copy_from_slice(rest);
                self.state = State::Between(header, rest.len());
                return Ok(());
            };
            let unit = Unit::parse(first).map_err(|_| Useless::Malformed)?;
            let total = total(&unit, memory)?;
            self.likely_bytes = total.max(READ_BYTES_MIN);
            let is_passed = is_passed(protocol, peer, &unit)?;
            self.counts.passed += u64::from(is_passed);
            if total > rest.len() {
                if is_passed {
                    self.state = State::Passing(total - rest.len());
                    return Ok(());
                }
                let part = Part::new(buffer, at, buffer.len());
                return self.begin(part, unit, memory, peer, protocol).map(drop);
            }
            if !is_passed {
                self.counts.units += 1;
                deliver(buffer, at, at + total, memory, now, peer, protocol);
            }
            at += total;
        }
    }

    /// Begins with a unit of which a part has come, in a buffer of its own.
    pub(super) fn begin(
        &mut self,
        part: Part,
        unit: Unit,
        memory: &mut Memory,
        peer: Peer,
        protocol: &mut Protocol,
    ) -> Result<Look, Useless> {
        let total = total(&unit, memory)?;
        let came = part.as_ref();
        let is_next = match protocol.arriving(peer, &unit) {
            Arriving::Impossible => return Err(Useless::Malformed),
            Arriving::Passed => {
                self.counts.passed += 1;
                self.state = State::Passing(total - came.len());
                return Ok(Look::More);
            }
            arriving => arriving == Arriving::Next,
        };
        let mut buffer = memory.take(total);
        if buffer.is_none() && is_next && protocol.unit_waits(peer, memory.has_reserve()) {
            buffer = memory.take_reserve();
        }
        let Some(mut buffer) = buffer else {
            self.counts.no_memory += 1;
            self.state = State::Waiting(part.without_much_memory(), unit);
            return Ok(Look::Full);
        };
        protocol.unit_begins(peer);
        own(&mut buffer)[..came.len()].copy_from_slice(came);
        self.counts.copied_bytes += came.len() as u64;
        self.state = State::Within(buffer, came.len(), total);
        Ok(Look::More)
    }

    /// Reads the rest of a unit to where it belongs.
    #[expect(clippy::too_many_arguments, reason = "as above")]
    fn read_rest(
        &mut self,
        mut buffer: Arc<Buffer>,
        have: usize,
        total: usize,
        receiver: &mut tcp::Receiver,
        memory: &mut Memory,
        now: &mut Moment<'_>,
        peer: Peer,
        protocol: &mut Protocol,
    ) -> Result<Look, Useless> {
        let end = total.min(have.saturating_add(self.most));
        let room = &mut own(&mut buffer)[have..end];
        let came = match receiver.read_now(room)? {
            Some(0) if have < total => return Err(Useless::Ended),
            Some(came) => came,
            None => 0,
        };
        self.counts.bytes += came as u64;
        let have = have + came;
        if have < total {
            let header = buffer.first_chunk();
            if let Some(Ok(unit)) = header.filter(|_| came > 0).map(Unit::parse) {
                protocol.unit_goes_on(peer, &unit);
            }
            self.state = State::Within(buffer, have, total);
            return Ok(Look::Empty);
        }
        own(&mut buffer).resize(total);
        memory.lend(&buffer);
        self.likely_bytes = total.max(READ_BYTES_MIN);
        self.state = State::Between([0; HEADER_BYTES], 0);
        self.counts.units += 1;
        deliver(&buffer, 0, total, memory, now, peer, protocol);
        Ok(Look::More)
    }

    /// Reads bytes of no use.
    fn pass(
        &mut self,
        left: usize,
        receiver: &mut tcp::Receiver,
        memory: &mut Memory,
    ) -> Result<Look, Useless> {
        if left == 0 {
            self.state = State::Between([0; HEADER_BYTES], 0);
            return Ok(Look::More);
        }
        let mut few = [0; 4096];
        let mut buffer = memory.take(left.min(CHUNK_BYTES));
        let room = buffer.as_mut().map_or(&mut few[..], |buffer| own(buffer));
        let most = room.len().min(left);
        let came = match receiver.read_now(&mut room[..most])? {
            Some(0) => return Err(Useless::Ended),
            Some(came) => came,
            None => 0,
        };
        self.counts.bytes += came as u64;
        if let Some(buffer) = buffer {
            memory.give_back(buffer);
        }
        self.state = State::Passing(left - came);
        Ok(if came == 0 { Look::Empty } else { Look::More })
    }
}

/// Delivers a unit that is complete: to be read where it lies if that is possible and it is alone in its
/// buffer, otherwise to be kept.
fn deliver(
    buffer: &Arc<Buffer>,
    start: usize,
    end: usize,
    memory: &mut Memory,
    now: &mut Moment<'_>,
    peer: Peer,
    protocol: &mut Protocol,
) {
    let read = |bytes: &[u8]| {
        let read = protocol.receive_unit_in_place(now.now(), peer, bytes);
        read.map(|(kind, range)| Lone { peer, kind, place: Alone::at(range), is_unit: true })
    };
    let is_alone = (start, end) == (0, buffer.len());
    if !is_alone || !memory.takes_in_place(buffer, read) {
        protocol.handle_unit(now.now(), peer, Received::Unit(Part::new(buffer, start, end)));
    }
}

/// Bytes of a unit with its header.
pub(super) fn total(unit: &Unit, memory: &Memory) -> Result<usize, Useless> {
    let total = HEADER_BYTES + unit.bytes as usize;
    if memory.allows(total) { Ok(total) } else { Err(Useless::Malformed) }
}

fn is_passed(protocol: &Protocol, peer: Peer, unit: &Unit) -> Result<bool, Useless> {
    match protocol.arriving(peer, unit) {
        Arriving::Impossible => Err(Useless::Malformed),
        arriving => Ok(arriving == Arriving::Passed),
    }
}

#[cfg(test)]
mod tests {
    use nocopy_proto::message::Transmit;

    use super::*;
    use crate::message::streams::memory::SMALL_BYTES;
    use crate::message::{Endpoint, tests};

    /// What has come of a unit that waits for memory keeps others from theirs only if it is long.
    #[test]
    fn few_bytes_that_wait_keep_no_long_buffer() {
        let builder = Endpoint::builder().streams(true);
        let (mut left, to_right, mut right) = tests::connected([builder.clone(), builder]);
        let now = left.now();
        left.protocol.stream_opened(now, to_right).unwrap();
        left.protocol.queue_unit(to_right, Packet::unit(0), 150, 200_000).unwrap();
        let now = left.now();
        let Some(Transmit::Unit { header, .. }) = left.protocol.poll_transmit(now) else {
            panic!("no unit");
        };
        let unit = Unit::parse(&header).unwrap();
        let peer = right.protocol.all_peers().next().unwrap();
        let protocol = &mut right.protocol;
        for (bytes, is_free) in [(40, true), (SMALL_BYTES, true), (SMALL_BYTES + 1, false)] {
            let (mut reading, mut memory) = (Reading::new(), Memory::scarce(1 << 20).unwrap());
            let chunk = memory.take(CHUNK_BYTES).unwrap();
            let (_long, _reserve) = (memory.take(CHUNK_BYTES).unwrap(), memory.take_reserve().unwrap());
            memory.lend(&chunk);
            let part = Part::new(&chunk, 0, bytes);
            drop(chunk);
            assert_eq!(reading.begin(part, unit, &mut memory, peer, protocol).unwrap(), Look::Full);
            assert!(reading.is_waiting() && reading.waits_with_memory() != is_free);
            assert_eq!(memory.take(CHUNK_BYTES).is_some(), is_free, "{bytes}");
        }
    }
}
