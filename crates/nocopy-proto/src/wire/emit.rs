//! Why a header could not be written.

use thiserror::Error;

/// The buffer is shorter than the header; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "header of {needed_bytes} bytes: cannot be written; the buffer has {buffer_bytes}; give a larger one"
)]
pub struct BufferTooSmall {
    /// Bytes the header takes.
    pub needed_bytes: usize,
    /// Bytes the buffer has.
    pub buffer_bytes: usize,
}

/// The payload is longer than the header's length field can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "payload of {payload_bytes} bytes: too long; the header's 16-bit length allows {limit_bytes}; send it in parts"
)]
pub struct PayloadTooLong {
    /// Bytes of payload asked for.
    pub payload_bytes: usize,
    /// Bytes of payload the header can declare.
    pub limit_bytes: usize,
}

/// A header that declares a length was not written; the buffer is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EmitError {
    /// See [`BufferTooSmall`].
    #[error(transparent)]
    BufferTooSmall(#[from] BufferTooSmall),
    /// See [`PayloadTooLong`].
    #[error(transparent)]
    PayloadTooLong(#[from] PayloadTooLong),
}

/// The first `N` bytes of `buffer`, to write a header into.
pub(super) fn header_buffer<const N: usize>(buffer: &mut [u8]) -> Result<&mut [u8; N], BufferTooSmall> {
    let buffer_bytes = buffer.len();
    buffer.first_chunk_mut().ok_or(BufferTooSmall { needed_bytes: N, buffer_bytes })
}

/// The value of a 16-bit length field that counts a header of `header_bytes` and its payload.
pub(super) fn length_with_header(header_bytes: u16, payload_bytes: usize) -> Result<u16, PayloadTooLong> {
    let limit = u16::MAX - header_bytes;
    match u16::try_from(payload_bytes) {
        Ok(payload) if payload <= limit => Ok(header_bytes + payload),
        _ => Err(PayloadTooLong { payload_bytes, limit_bytes: usize::from(limit) }),
    }
}
