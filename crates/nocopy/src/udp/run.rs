//! Datagrams that arrived together, in one buffer.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use crate::memory::pool::Buffer;
use crate::sys::udp_receive::{LocalAddress, Message};

/// Datagrams of one sender, contiguous in one buffer: all of one length, except that the last may be shorter.
#[derive(Debug)]
pub struct Run {
    store: Store,
    /// At least 1; the length of the buffer if the run is one datagram.
    segment_bytes: usize,
    about: About,
}

#[derive(Debug)]
enum Store {
    Own(Buffer),
    Shared(Arc<Buffer>),
    /// The only datagram was taken with the buffer.
    Taken,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct About {
    pub(super) from: SocketAddr,
    pub(super) local: Option<LocalAddress>,
    pub(super) truncated: bool,
    pub(super) congested: bool,
}

impl From<&Message> for About {
    #[inline]
    fn from(&Message { from, local, truncated, congested, .. }: &Message) -> Self {
        Self { from, local, truncated, congested }
    }
}

impl Run {
    #[inline]
    pub(super) fn new(mut buffer: Buffer, message: &Message) -> Self {
        buffer.resize(message.bytes);
        let segment_bytes = message.segment_bytes.map_or(message.bytes.max(1), usize::from);
        Self { store: Store::Own(buffer), segment_bytes, about: message.into() }
    }

    /// The address that sent them.
    pub fn from(&self) -> SocketAddr {
        self.about.from
    }

    /// The address to which they were sent, if [requested](super::Builder::local_addresses).
    pub fn local(&self) -> Option<LocalAddress> {
        self.about.local
    }

    /// The number of datagrams.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes().len().div_ceil(self.segment_bytes).max(1)
    }

    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.bytes().len() <= self.segment_bytes
    }

    /// Always false: a run without bytes is one empty datagram.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Bytes of every datagram but the last, which may have fewer; at least 1.
    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// Whether a router marked the datagrams; the kernel coalesces marked datagrams only with each other.
    pub fn is_congested(&self) -> bool {
        self.about.congested
    }

    /// The contiguous bytes of all datagrams.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.store {
            Store::Own(buffer) => buffer,
            Store::Shared(buffer) => buffer,
            Store::Taken => &[],
        }
    }

    /// The payload of each datagram, in place.
    pub fn datagrams(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| {
            let start = index * self.segment_bytes;
            &self.bytes()[start..self.bytes().len().min(start + self.segment_bytes)]
        })
    }

    #[inline]
    pub(super) fn about(&self, end: usize) -> About {
        About { truncated: self.about.truncated && end == self.bytes().len(), ..self.about }
    }

    #[inline]
    pub(super) fn place(&self, datagram: &[u8]) -> Range<usize> {
        // No underflow: the datagram is a part of the run's bytes.
        let start = datagram.as_ptr().addr() - self.bytes().as_ptr().addr();
        start..start + datagram.len()
    }

    /// The buffer, with all its bytes; `None` while taken datagrams use it.
    #[inline]
    pub(crate) fn into_buffer(mut self) -> Option<Buffer> {
        self.take_buffer()
    }

    /// As [`into_buffer`](Self::into_buffer), but the run stays, without bytes.
    #[inline]
    pub(super) fn take_buffer(&mut self) -> Option<Buffer> {
        match std::mem::replace(&mut self.store, Store::Taken) {
            Store::Own(buffer) => Some(buffer),
            Store::Shared(buffer) => Arc::into_inner(buffer),
            Store::Taken => None,
        }
    }

    #[inline]
    pub(super) fn share(&mut self) {
        self.store = match std::mem::replace(&mut self.store, Store::Taken) {
            Store::Own(buffer) => Store::Shared(Arc::new(buffer)),
            shared => shared,
        };
    }

    pub(super) fn shared(&self) -> Arc<Buffer> {
        match &self.store {
            Store::Shared(buffer) => Arc::clone(buffer),
            _ => unreachable!("runs of several datagrams are shared before one is taken"),
        }
    }
}
