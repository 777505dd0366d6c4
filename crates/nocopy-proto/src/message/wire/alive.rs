//! Alive, a sign of life without other content (docs/protocol.md §10.1).

use super::{ALIVE, Malformed, begin, exactly, finish};
use crate::message::crc::CRC_BYTES;
use crate::wire::field::Field;

/// Bytes of an Alive with its checksum.
pub const ALIVE_BYTES: usize = BODY_BYTES + CRC_BYTES;

const BODY_BYTES: usize = 12;

type Reserved = Field<2, 2>;
type To = Field<4, 8>;

/// States that the sender's process runs, although its program does not call the endpoint. An Alive is not
/// answered.
///
/// Unlike an acknowledgement it holds nothing that changes, so it can be sent by a thread that knows nothing
/// of the connection but its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alive {
    /// The receiver's connection id.
    pub to: u64,
}

impl Alive {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let body = exactly::<BODY_BYTES>(body)?;
        match Reserved::number(body) {
            0 => Ok(Self { to: To::number(body) }),
            _ => Err(Malformed::Reserved { kind: ALIVE }),
        }
    }

    /// Writes the whole datagram in place of what `datagram` holds.
    pub fn emit(&self, datagram: &mut Vec<u8>) {
        let mut body = begin::<BODY_BYTES>(ALIVE);
        To::put_number(&mut body, self.to);
        finish(&body, 0, datagram);
    }
}
