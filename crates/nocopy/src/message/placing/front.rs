//! The headers in front of a message that has its own unit. They are read separately, so that the message's
//! bytes can go elsewhere.

use nocopy_proto::message::framing::{whole_header, whole_header_bytes};
use nocopy_proto::message::wire::Unit;
use nocopy_proto::message::{Kind, PUT_HEADER_BYTES, PutHeader};

use crate::message::HEADER_BYTES;

/// The header of a unit, that of its first message, and that of a put.
const FRONT_BYTES_MAX: usize = HEADER_BYTES + 8 + PUT_HEADER_BYTES;

/// The bytes of a unit's headers that have arrived.
#[derive(Debug, Clone, Copy)]
pub(in crate::message) struct Front {
    bytes: [u8; FRONT_BYTES_MAX],
    have: u8,
    /// On a connection for puts, where no message is shorter.
    is_of_puts: bool,
    /// Whether it has waited until earlier messages were placed.
    has_waited: bool,
}

impl Front {
    /// Headers of which the bytes `begin` have arrived.
    /// Panics if `begin` is longer than the headers can be.
    pub(in crate::message) fn of(begin: &[u8]) -> Self {
        let mut bytes = [0; FRONT_BYTES_MAX];
        bytes[..begin.len()].copy_from_slice(begin);
        Self { bytes, have: begin.len() as u8, is_of_puts: false, has_waited: false }
    }

    /// As [`of`](Self::of), on a connection for puts.
    pub(in crate::message) fn of_puts(begin: &[u8]) -> Self {
        Self { is_of_puts: true, ..Self::of(begin) }
    }

    /// The header of a put and the number of its bytes, if the unit consists of one put.
    pub(in crate::message) fn as_put(&self, unit: &Unit) -> Option<(PutHeader, usize)> {
        let header = self.as_ref().last_chunk().filter(|_| self.is_of_puts)?;
        match self.only_message(unit)? {
            (Kind::Request(_), bytes) => {
                Some((PutHeader::parse(header), bytes.checked_sub(PUT_HEADER_BYTES)?))
            }
            _ => None,
        }
    }

    /// Notes that the unit waits; returns whether it has waited before.
    pub(in crate::message) fn wait(&mut self) -> bool {
        std::mem::replace(&mut self.has_waited, true)
    }

    pub(in crate::message) fn is_of_puts(&self) -> bool {
        self.is_of_puts
    }

    /// The room for missing bytes; empty once all have arrived. It never extends beyond the unit, because the
    /// shortest message has a header of four bytes.
    pub(in crate::message) fn room(&mut self) -> &mut [u8] {
        let have = usize::from(self.have);
        if self.is_of_puts {
            return &mut self.bytes[have..];
        }
        let needed = match self.bytes[HEADER_BYTES..have.max(HEADER_BYTES)].first_chunk::<4>() {
            None => HEADER_BYTES + 4,
            // Requests and responses have a number after the first word; any other message is recognised
            // without one.
            Some(word) => match whole_header(&[&word[..], &[0; 4]].concat()) {
                Some((kind, _)) => HEADER_BYTES + whole_header_bytes(kind),
                None => have,
            },
        };
        &mut self.bytes[have..needed.max(have)]
    }

    /// Notes that `bytes` more bytes have arrived.
    pub(in crate::message) fn came(&mut self, bytes: usize) {
        self.have += bytes as u8;
    }

    /// The header of the unit, once it has arrived.
    pub(in crate::message) fn header(&self) -> Option<&[u8; HEADER_BYTES]> {
        self.as_ref().first_chunk()
    }

    /// The kind and the length of a message that is alone in the unit.
    pub(in crate::message) fn only_message(&self, unit: &Unit) -> Option<(Kind, usize)> {
        let (kind, bytes) = whole_header(&self.as_ref()[HEADER_BYTES..])?;
        (whole_header_bytes(kind) + bytes == unit.bytes as usize).then_some((kind, bytes))
    }
}

impl Default for Front {
    fn default() -> Self {
        Self::of(&[])
    }
}

impl AsRef<[u8]> for Front {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.have)]
    }
}
