//! Data that the program gives away to be sent.

use super::Message;
use crate::memory::pieces::{Buffers, Pieces};
use crate::memory::pool::{Buffer, BufferMut};
use crate::tcp::Published;

/// One message to be sent: its bytes, in a buffer, or in several that are joined. [`Published`] data goes by
/// reference to its pages where the message goes by a stream, and that is faster.
///
/// ```
/// use nocopy::Buffer;
/// use nocopy::message::Payload;
/// let header = Buffer::from(b"header".to_vec());
/// let body = Buffer::from_owner([7; 9000]);
/// let payload = Payload::from([header, body]);
/// assert_eq!(payload.into_iter().map(|buffer| buffer.len()).sum::<usize>(), 9006);
/// ```
#[derive(Debug)]
#[must_use = "a dropped payload is not sent"]
pub struct Payload(pub(super) Buffers);

impl IntoIterator for Payload {
    type Item = Buffer;
    type IntoIter = Pieces;

    /// The buffers, in their order.
    #[inline]
    fn into_iter(self) -> Pieces {
        self.0.into_iter()
    }
}

impl From<BufferMut> for Payload {
    fn from(buffer: BufferMut) -> Self {
        buffer.freeze().into()
    }
}

impl From<Vec<BufferMut>> for Payload {
    fn from(buffers: Vec<BufferMut>) -> Self {
        Self(buffers.into_iter().map(BufferMut::freeze).collect())
    }
}

impl From<Buffer> for Payload {
    #[inline]
    fn from(buffer: Buffer) -> Self {
        Self(Buffers::One(buffer))
    }
}

impl<const COUNT: usize> From<[Buffer; COUNT]> for Payload {
    fn from(buffers: [Buffer; COUNT]) -> Self {
        Self(buffers.into_iter().collect())
    }
}

impl From<Vec<Buffer>> for Payload {
    fn from(buffers: Vec<Buffer>) -> Self {
        Self(Buffers::List(buffers))
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Buffer::from(bytes).into()
    }
}

impl From<Published> for Payload {
    fn from(data: Published) -> Self {
        Buffer::from_owner(data).into()
    }
}

impl From<Message<'_>> for Payload {
    /// A received message, to be sent on from its memory.
    fn from(message: Message<'_>) -> Self {
        Self(message.into_pieces().map(Buffer::from_owner).collect())
    }
}
