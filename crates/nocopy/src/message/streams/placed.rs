//! Long messages of one stream, read straight into posted buffers (docs/protocol.md §17.1).

use std::net::IpAddr;
use std::sync::Arc;

use nocopy_proto::message::wire::Unit;
use nocopy_proto::message::{Arriving, Peer, PutHeader};

use super::memory::{Memory, Part};
use super::reading::{Look, Protocol, Reading, State, Useless, total};
use crate::memory::pool::Buffer;
use crate::message::HEADER_BYTES;
use crate::message::arrivals::Moment;
use crate::message::carrier::Received;
use crate::message::placing::{Front, Placed, Slot, Straight};
use crate::tcp;

/// A message that is read into a posted buffer.
#[derive(Debug)]
pub(super) struct Within {
    front: Front,
    slot: Slot,
    have: usize,
    /// Counts for its address while the message is incomplete.
    _share: Arc<IpAddr>,
}

/// A put that is read into the memory that its peer may write to.
#[derive(Debug)]
pub(super) struct WithinPut {
    front: Front,
    main: Peer,
    put: PutHeader,
    bytes: usize,
    have: usize,
    /// Whether the put is refused: its bytes are skipped.
    is_refused: bool,
}

/// Whether the headers of a stream's next message are read separately.
#[inline]
pub(super) fn is_placed_on(memory: &Memory, peer: Peer, protocol: &Protocol) -> bool {
    memory.posted().is_some() || memory.registered().is_some() && protocol.main_of(peer).is_some()
}

/// The headers of the next message, of which `begin` has arrived.
pub(super) fn front_of(begin: &[u8], peer: Peer, protocol: &Protocol) -> Front {
    if protocol.main_of(peer).is_some() { Front::of_puts(begin) } else { Front::of(begin) }
}

impl Reading {
    /// Reads the headers of a message, and nothing after them.
    pub(super) fn read_front(
        &mut self,
        mut front: Front,
        receiver: &mut tcp::Receiver,
        memory: &mut Memory,
        peer: Peer,
        protocol: &mut Protocol,
    ) -> Result<Look, Useless> {
        while !front.room().is_empty() {
            match receiver.read_now(front.room())? {
                None => {
                    self.state = State::Front(front);
                    return Ok(Look::Empty);
                }
                Some(0) => return Err(Useless::Ended),
                Some(came) => {
                    self.counts.bytes += came as u64;
                    front.came(came);
                }
            }
        }
        let unit = front.header().map(Unit::parse).and_then(Result::ok).ok_or(Useless::Malformed)?;
        let total = total(&unit, memory)?;
        if total < front.as_ref().len() {
            return Err(Useless::Malformed);
        }
        let is_next = protocol.arriving(peer, &unit) == Arriving::Next;
        if let (Some((put, bytes)), Some(main)) = (front.as_put(&unit), protocol.main_of(peer))
            && is_next
            && bytes > 0
        // otherwise all of the unit is here
        {
            if protocol.has_unplaced(peer) {
                // It would be written before those, which are seen to after this look. If not, nothing waits
                // for that.
                if front.wait() {
                    return self.begin_after(&front, unit, memory, peer, protocol);
                }
                self.state = State::Front(front);
                return Ok(Look::Empty);
            }
            let within = WithinPut { front, main, put, bytes, have: 0, is_refused: false };
            self.state = State::Put(Box::new(within));
            return Ok(Look::More);
        }
        let slot = front
            .only_message(&unit)
            // A message after a gap would hold the buffer for as long as its peer wants.
            .filter(|_| is_next && !front.is_of_puts())
            .and_then(|(_, bytes)| memory.take_posted(bytes));
        if let Some((slot, share)) = slot {
            self.state = State::Placed(Box::new(Within { front, slot, have: 0, _share: share }));
            return Ok(Look::More);
        }
        self.begin_after(&front, unit, memory, peer, protocol)
    }

    /// Receives a unit of which the headers were read into its usual memory.
    fn begin_after(
        &mut self,
        front: &Front,
        unit: Unit,
        memory: &mut Memory,
        peer: Peer,
        protocol: &mut Protocol,
    ) -> Result<Look, Useless> {
        let buffer = Arc::new(Buffer::from(front.as_ref().to_vec()));
        let part = Part::new(&buffer, 0, buffer.len());
        self.begin(part, unit, memory, peer, protocol)
    }

    /// Reads the bytes of a message into its posted buffer.
    pub(super) fn read_placed(
        &mut self,
        mut within: Box<Within>,
        receiver: &mut tcp::Receiver,
        now: &mut Moment<'_>,
        peer: Peer,
        protocol: &mut Protocol,
    ) -> Result<Look, Useless> {
        let end = within.slot.room().len().min(within.have.saturating_add(self.most));
        let room = &mut within.slot.room()[within.have..end];
        let came = match receiver.read_now(room)? {
            Some(0) => return Err(Useless::Ended),
            came => came.unwrap_or(0),
        };
        self.counts.bytes += came as u64;
        within.have += came;
        if within.have < within.slot.as_ref().len() {
            if let Some(Ok(unit)) = within.front.header().filter(|_| came > 0).map(Unit::parse) {
                protocol.unit_goes_on(peer, &unit);
            }
            self.state = State::Placed(within);
            return Ok(Look::Empty);
        }
        let Within { front, slot, .. } = *within;
        self.state = State::Between([0; HEADER_BYTES], 0);
        self.counts.units += 1;
        protocol.handle_placed_unit(now.now(), peer, Received::Placed(Box::new(Placed::new(front, slot))));
        Ok(Look::More)
    }

    /// Reads the bytes of a put into its region.
    pub(super) fn read_put(
        &mut self,
        mut within: Box<WithinPut>,
        receiver: &mut tcp::Receiver,
        memory: &Memory,
        now: &mut Moment<'_>,
        peer: Peer,
        protocol: &mut Protocol,
    ) -> Result<Look, Useless> {
        let WithinPut { main, put, bytes, have, .. } = *within;
        let end = bytes.min(have.saturating_add(self.most));
        // Its peer may have cut the stream and sent it by datagrams, and others behind it, which are written
        // by now.
        let unit = within.front.header().map(Unit::parse).and_then(Result::ok).ok_or(Useless::Malformed)?;
        within.is_refused |= protocol.arriving(peer, &unit) != Arriving::Next;
        let mut came = None;
        if let Some(registered) = memory.registered().filter(|_| !within.is_refused) {
            let read = registered.write(main, &put, bytes, |_, room| receiver.read_now(&mut room[have..end]));
            within.is_refused = read.is_err();
            came = read.ok();
        }
        let came = match came {
            Some(came) => came?,
            None => {
                let mut nowhere = [0; 16 << 10];
                let most = nowhere.len().min(bytes - have);
                receiver.read_now(&mut nowhere[..most])?
            }
        };
        let came = match came {
            Some(0) if have < bytes => return Err(Useless::Ended),
            came => came.unwrap_or(0),
        };
        self.counts.bytes += came as u64;
        within.have += came;
        if within.have < bytes {
            if came > 0 {
                protocol.unit_goes_on(peer, &unit);
            }
            let look = if came == 0 || !within.is_refused { Look::Empty } else { Look::More };
            self.state = State::Put(within);
            return Ok(look);
        }
        let WithinPut { front, is_refused, .. } = *within;
        self.state = State::Between([0; HEADER_BYTES], 0);
        self.counts.units += 1;
        let put = Straight { front, is_refused };
        protocol.handle_placed_unit(now.now(), peer, Received::Put(Box::new(put)));
        Ok(Look::More)
    }
}
