//! Messages to be sent: datagrams in owned buffers.

use crate::memory::pieces::{Buffers, Pieces};
use crate::memory::pool::{Buffer, BufferMut};
use crate::memory::send_queue::Payload;

/// The longest payload of a UDP datagram over IPv4: 65,535 less 20 and 8 bytes of headers (RFC 768, RFC 791).
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// One datagram, gathered from pieces; or several of one length, contiguous in one buffer.
///
/// ```
/// use nocopy::{Buffer, udp::{Message, Socket}};
/// let mut socket = Socket::bind("127.0.0.1:0")?;
/// # let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// # let to = peer.local_addr()?;
/// let (header, body) = (Buffer::from(b"header".to_vec()), Buffer::from(b"body".to_vec()));
/// socket.sender().send_to(Message::from_iter([header, body]), to)?; // one datagram
/// socket.sender().send_to(Message::segments(vec![7; 2500], 1000), to)?; // three
/// socket.sender().flush()?;
/// let mut bytes = [0; 2000];
/// let mut lengths = Vec::new();
/// for _ in 0..4 {
///     lengths.push(peer.recv(&mut bytes)?);
/// }
/// assert_eq!(lengths, [10, 1000, 1000, 500]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a dropped message is not sent"]
pub struct Message {
    pub(super) pieces: Buffers,
    pub(super) bytes: usize,
    /// Bytes of each datagram but the last.
    pub(super) datagram_bytes: usize,
    pub(super) datagrams: usize,
}

impl FromIterator<Buffer> for Message {
    /// One datagram whose bytes are in several buffers, for example header and payload; they are not joined.
    fn from_iter<I: IntoIterator<Item = Buffer>>(pieces: I) -> Self {
        let pieces: Buffers = pieces.into_iter().collect();
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        Self { pieces, bytes, datagram_bytes: bytes, datagrams: 1 }
    }
}

impl Message {
    /// Datagrams of `datagram_bytes` bytes, contiguous in one buffer; the last one has the remaining bytes.
    ///
    /// # Panics
    /// If `datagram_bytes` is 0.
    pub fn segments(buffer: impl Into<Buffer>, datagram_bytes: usize) -> Self {
        let buffer = buffer.into();
        assert!(datagram_bytes > 0, "datagrams of no bytes have no number");
        let bytes = buffer.len();
        let datagrams = bytes.div_ceil(datagram_bytes).max(1);
        let pieces = Buffers::One(buffer);
        Self { pieces, bytes, datagram_bytes: datagram_bytes.min(bytes), datagrams }
    }

    /// The buffers.
    pub fn pieces(&self) -> &[Buffer] {
        &self.pieces
    }

    /// The bytes of its only datagram if they are in one piece.
    #[inline(always)]
    pub(super) fn single_datagram(&self) -> Option<&[u8]> {
        match &self.pieces[..] {
            [buffer] if self.bytes == self.datagram_bytes => Some(buffer),
            _ => None,
        }
    }
}

/// A message with the number of its destination.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) message: Message,
    pub(super) destination: u32,
}

impl Payload for Outgoing {
    fn buffers(&self) -> &[Buffer] {
        &self.message.pieces
    }

    #[inline]
    fn into_buffers(self) -> Buffers {
        self.message.pieces
    }
}

impl IntoIterator for Message {
    type Item = Buffer;
    type IntoIter = Pieces;

    #[inline(always)]
    fn into_iter(self) -> Pieces {
        self.pieces.into_iter()
    }
}

impl From<Vec<u8>> for Message {
    fn from(bytes: Vec<u8>) -> Self {
        Buffer::from(bytes).into()
    }
}

impl From<BufferMut> for Message {
    #[inline(always)]
    fn from(buffer: BufferMut) -> Self {
        buffer.freeze().into()
    }
}

impl From<Buffer> for Message {
    #[inline(always)]
    fn from(buffer: Buffer) -> Self {
        let bytes = buffer.len();
        Self { pieces: Buffers::One(buffer), bytes, datagram_bytes: bytes, datagrams: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_datagrams_of_a_message_are_counted() {
        let of = |bytes: usize, each: usize| Message::segments(vec![0; bytes], each).datagrams;
        assert_eq!([of(0, 10), of(1, 10), of(10, 10), of(11, 10), of(20, 10)], [1, 1, 1, 2, 2]);
        assert_eq!(Message::from_iter([]).datagrams, 1);
        let gathered = Message::from_iter([vec![1, 2].into(), vec![3].into()]);
        assert_eq!((gathered.bytes, gathered.datagrams, gathered.single_datagram()), (3, 1, None));
        assert_eq!(Message::from(Buffer::from(vec![1, 2])).single_datagram(), Some(&[1_u8, 2][..]));
    }
}
