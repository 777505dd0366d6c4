//! Datagrams that came together, in one buffer.

use std::net::SocketAddr;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::memory::pool::Buffer;
use crate::sys::udp_receive::{LocalAddress, Message};

/// Datagrams of one sender, back to back in one buffer: all of one length, except that the last may be shorter.
#[derive(Debug)]
pub struct Run {
    buffer: Buffer,
    /// At least 1; as long as the buffer if it is one datagram.
    segment_bytes: usize,
    about: About,
}

/// What is the same for all of them.
#[derive(Debug, Clone, Copy)]
struct About {
    from: SocketAddr,
    local: Option<LocalAddress>,
    truncated: bool,
    congested: bool,
}

/// A datagram in the buffer it was received into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub from: SocketAddr,
    /// Where it was sent to, if that was asked for.
    pub local: Option<LocalAddress>,
    /// Its payload.
    pub bytes: &'a [u8],
    /// Whether its end is lost, because the buffer was too small.
    pub truncated: bool,
    /// Whether a router on the way marked it, if [that was asked for](super::Builder::congestion_marks).
    pub congested: bool,
}

impl Run {
    pub(super) fn new(mut buffer: Buffer, message: &Message) -> Self {
        buffer.resize(message.bytes);
        let segment_bytes = message.segment_bytes.map_or(message.bytes.max(1), usize::from);
        let about = About {
            from: message.from,
            local: message.local,
            truncated: message.truncated,
            congested: message.congested,
        };
        Self { buffer, segment_bytes, about }
    }

    /// Who sent them.
    pub fn from(&self) -> SocketAddr {
        self.about.from
    }

    /// Where they were sent to, if that was asked for.
    pub fn local(&self) -> Option<LocalAddress> {
        self.about.local
    }

    /// How many datagrams it is.
    pub fn len(&self) -> usize {
        self.buffer.len().div_ceil(self.segment_bytes).max(1)
    }

    /// Never: even without bytes it is a datagram.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The bytes of every datagram but the last, which may have fewer; at least 1.
    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// Whether a router marked them, because its queue grew (ECN, RFC 3168). Known only where
    /// [marks were asked for](super::Builder::congestion_marks); the kernel joins none with others.
    pub fn is_congested(&self) -> bool {
        self.about.congested
    }

    /// The bytes of all, back to back.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Whether the end of its last datagram is lost, and datagrams behind it may be, because the buffer was too small.
    pub fn is_truncated(&self) -> bool {
        self.about.truncated
    }

    /// Each datagram, where it lies.
    pub fn datagrams(&self) -> impl ExactSizeIterator<Item = Datagram<'_>> {
        (0..self.len()).map(|index| self.datagram(index))
    }

    fn datagram(&self, index: usize) -> Datagram<'_> {
        let About { from, local, truncated, congested } = self.about;
        let bytes = &self.buffer[self.range(index)];
        Datagram { from, local, bytes, truncated: truncated && index + 1 == self.len(), congested }
    }

    fn range(&self, index: usize) -> Range<usize> {
        let start = index * self.segment_bytes;
        start..self.buffer.len().min(start + self.segment_bytes)
    }

    /// The buffer, to be sent on, or filled anew.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// Makes each datagram an owned one, without a copy: the buffer goes home with the last of them.
    pub fn split(self) -> impl ExactSizeIterator<Item = OwnedDatagram> {
        let run = Arc::new(self);
        (0..run.len()).map(move |index| OwnedDatagram { run: Arc::clone(&run), index })
    }
}

/// A datagram that shares its buffer with the others of its run.
#[derive(Debug, Clone)]
pub struct OwnedDatagram {
    run: Arc<Run>,
    index: usize,
}

impl OwnedDatagram {
    /// Where it lies, and what is known of it.
    pub fn datagram(&self) -> Datagram<'_> {
        self.run.datagram(self.index)
    }

    /// Who sent it.
    pub fn from(&self) -> SocketAddr {
        self.run.from()
    }
}

impl Deref for OwnedDatagram {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.datagram().bytes
    }
}

impl AsRef<[u8]> for OwnedDatagram {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
