//! Memory as [`Bytes`], without a copy where it lies in one piece (feature `bytes`).

use ::bytes::Bytes;

use crate::memory::pool::{Buffer, BufferMut, SharedBuffer};
#[cfg(feature = "message")]
use crate::message;
#[cfg(feature = "tcp")]
use crate::tcp;
use crate::udp;

/// Without a copy. A part of a buffer that others share becomes a slice of what they become.
///
/// The [`Bytes`] keep the memory: it returns to its pool when the last clone is dropped, on any thread. The
/// pool does not grow meanwhile. A receiver whose pool is empty returns `OutOfMemory` and counts that, while
/// the data waits in the kernel; a sender's `buffer` returns none.
impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Self {
        if let Some(shared) = buffer.shared_as::<SharedBuffer>() {
            // No underflow: it is a part of that.
            let start = buffer.as_ptr().addr() - shared.as_ptr().addr();
            return shared.bytes().slice(start..start + buffer.len());
        }
        // What was made of such a value becomes that again.
        let buffer = match value_of::<Self>(buffer) {
            Ok(bytes) => return bytes,
            Err(buffer) => buffer,
        };
        match value_of::<Vec<u8>>(buffer) {
            Ok(bytes) => bytes.into(),
            Err(buffer) => Self::from_owner(buffer),
        }
    }
}

/// The value of that type of which a buffer was made, by `from_owner`: the owner of `from_raw` may have other
/// bytes than the buffer.
fn value_of<T: Sync + 'static>(buffer: Buffer) -> Result<T, Buffer> {
    if buffer.owner_as::<T>().is_some() { buffer.into_owner() } else { Err(buffer) }
}

/// Without a copy.
impl From<BufferMut> for Bytes {
    fn from(buffer: BufferMut) -> Self {
        buffer.freeze().into()
    }
}

/// Without a copy: to be sent.
impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        Self::from_owner(bytes)
    }
}

/// Without a copy: one datagram.
impl From<Bytes> for udp::Message {
    fn from(bytes: Bytes) -> Self {
        Buffer::from(bytes).into()
    }
}

/// Without a copy: one message in one piece.
#[cfg(feature = "message")]
impl From<Bytes> for message::Payload {
    fn from(bytes: Bytes) -> Self {
        Buffer::from(bytes).into()
    }
}

/// Without a copy. Datagrams that arrived together become slices of one [`Bytes`], by one allocation.
impl From<udp::OwnedDatagram> for Bytes {
    fn from(datagram: udp::OwnedDatagram) -> Self {
        Buffer::from(datagram).into()
    }
}

/// Without a copy, unless some bytes are on [mapped](tcp::Chunk::mapped) pages: then all are copied once, as
/// by [`Chunk::take`](tcp::Chunk::take).
#[cfg(feature = "tcp")]
impl From<tcp::Chunk> for Bytes {
    fn from(chunk: tcp::Chunk) -> Self {
        chunk.take().into()
    }
}

/// Without a copy if it came in one piece, apart from that of [`Message::take`](message::Message::take). Else
/// its pieces are copied once, and the endpoint's ledger counts them as
/// [`Cause::Gathered`](crate::Cause::Gathered).
#[cfg(feature = "message")]
impl From<message::Message<'_>> for Bytes {
    fn from(message: message::Message<'_>) -> Self {
        message.into_one_piece().either(Self::from_owner, Self::from)
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    /// The owner is a vector, and the buffer has only some of its bytes.
    #[test]
    fn raw_memory_of_a_vector_becomes_the_bytes_of_the_buffer() {
        let mut owner = vec![1, 2, 3, 4];
        let first = NonNull::new(owner.as_mut_ptr()).unwrap();
        // SAFETY: memory of the vector, which is not used otherwise.
        let mut buffer = unsafe { BufferMut::from_raw(first, 4, owner) };
        buffer.resize(2);
        let bytes = Bytes::from(buffer);
        assert_eq!((bytes.as_ptr(), &bytes[..]), (first.as_ptr().cast_const(), &[1, 2][..]));
    }
}
