//! Datagrams that arrived together, owned as one buffer.

use std::net::SocketAddr;
use std::ops::Deref;

use super::batch::OwnedDatagram;
use super::message::Message;
use super::metadata::Metadata;
use crate::memory::pool::Buffer;

/// Datagrams of one sender that arrived together, in one buffer: all of one length, except that the last may
/// be shorter. It derefs to the bytes of all.
///
/// A kernel socket coalesces datagrams (`UDP_GRO`) if its buffers have 64 KiB; otherwise, and over a port, a
/// burst is one datagram.
///
/// ```
/// use nocopy::udp::{Message, Socket};
/// let mut socket = Socket::bind("127.0.0.1:0")?;
/// let mut peer = Socket::bind("127.0.0.1:0")?;
/// peer.sender().send_to(Message::segments(vec![7; 2500], 1000), socket.local_addr()?)?;
/// peer.sender().flush()?;
/// let mut lengths = Vec::new();
/// while lengths.len() < 3 {
///     let mut batch = socket.receiver().receive()?;
///     while let Some(burst) = batch.next_burst() {
///         lengths.extend(burst.datagrams().map(<[u8]>::len)); // no byte moves
///     }
/// }
/// assert_eq!(lengths, [1000, 1000, 500]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Burst {
    datagrams: OwnedDatagram,
    is_truncated: bool,
}

impl Burst {
    pub(super) fn new(datagrams: OwnedDatagram, is_truncated: bool) -> Self {
        Self { datagrams, is_truncated }
    }

    /// The address that sent them.
    pub fn source(&self) -> SocketAddr {
        self.datagrams.source()
    }

    /// What else is known about them; see [`Datagram::metadata`](super::Datagram::metadata).
    pub fn metadata(&self) -> Metadata {
        self.datagrams.metadata()
    }

    /// Whether the end of the only datagram was cut off, because the buffer was too small.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// The payload of each datagram.
    pub fn datagrams(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let each = self.metadata().segment_bytes.max(1);
        (0..self.len().div_ceil(each).max(1)).map(move |index| {
            let start = index * each;
            &self[start..self.len().min(start + each)]
        })
    }
}

impl Deref for Burst {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.datagrams
    }
}

/// Without a copy.
impl From<Burst> for Buffer {
    fn from(burst: Burst) -> Self {
        burst.datagrams.into()
    }
}

/// Without a copy, to forward the datagrams in their lengths.
impl From<Burst> for Message {
    fn from(burst: Burst) -> Self {
        let each = burst.metadata().segment_bytes.max(1);
        Self::segments(Buffer::from(burst), each)
    }
}
