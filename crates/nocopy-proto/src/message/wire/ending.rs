//! Datagrams that end a connection: Abort (docs/protocol.md §11.3) and Unknown (§3.6).

use super::{ABORT, Malformed, UNKNOWN, begin, exactly, finish};
use crate::message::crc::CRC_BYTES;
use crate::wire::field::Field;

/// Bytes of an Abort and of an Unknown with their checksum: half of the shortest datagram that an Unknown
/// answers.
pub const ENDING_BYTES: usize = BODY_BYTES + CRC_BYTES;

const BODY_BYTES: usize = 12;

type Reason = Field<2, 2>;
type To = Field<4, 8>;

/// Why a peer ended the connection. Codes of later versions are shown as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AbortReason(pub u16);

impl AbortReason {
    /// The program asked for it.
    pub const ABORTED: Self = Self(0);
    /// The endpoint was closed.
    pub const CLOSED: Self = Self(1);
    /// No datagram of the peer arrived for too long.
    pub const SILENT: Self = Self(2);
    /// What the peer sent contradicts the protocol.
    pub const VIOLATION: Self = Self(3);
    /// The endpoint has no place for one more peer.
    pub const FULL: Self = Self(4);
    /// The peer made no progress with a message that it had begun, or acknowledged nothing, while others
    /// needed the memory.
    pub const STALLED: Self = Self(5);
}

/// The sender gives up the connection; both directions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Abort {
    /// The receiver's connection id.
    pub to: u64,
    /// Why.
    pub reason: AbortReason,
}

impl Abort {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let body = exactly::<BODY_BYTES>(body)?;
        Ok(Self { to: To::number(body), reason: AbortReason(Reason::number(body)) })
    }

    /// Writes the whole datagram in place of what `datagram` holds.
    pub fn emit(&self, datagram: &mut Vec<u8>) {
        let mut body = begin::<BODY_BYTES>(ABORT);
        Reason::put_number(&mut body, self.reason.0);
        To::put_number(&mut body, self.to);
        finish(&body, 0, datagram);
    }
}

/// States that a Data or Ack was for a connection that its receiver does not know. An Unknown is not
/// answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unknown {
    /// The `to` of the datagram that this answers: the id that is known no longer.
    pub to: u64,
}

impl Unknown {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let body = exactly::<BODY_BYTES>(body)?;
        match Reason::number(body) {
            0 => Ok(Self { to: To::number(body) }),
            _ => Err(Malformed::Reserved { kind: UNKNOWN }),
        }
    }

    /// Writes the whole datagram in place of what `datagram` holds.
    pub fn emit(&self, datagram: &mut Vec<u8>) {
        let mut body = begin::<BODY_BYTES>(UNKNOWN);
        To::put_number(&mut body, self.to);
        finish(&body, 0, datagram);
    }
}
