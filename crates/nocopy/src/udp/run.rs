//! Datagrams that arrived together, in one buffer.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use nocopy_proto::wire::Ecn;

use super::metadata::Metadata;
use crate::facts::metadata::Timestamp;
use crate::memory::pool::{BufferMut, SharedBuffer};
use crate::sys::udp_receive::{LocalAddress, MessageReport};

/// Datagrams of one sender, contiguous in one buffer: all of one length, except that the last may be shorter.
#[derive(Debug)]
pub struct Run {
    memory: RunMemory,
    /// At least 1; the length of the buffer if the run is one datagram.
    segment_bytes: usize,
    info: DatagramInfo,
    time: Option<Timestamp>,
}

#[derive(Debug)]
enum RunMemory {
    Own(BufferMut),
    Shared(Arc<SharedBuffer>),
    /// The only datagram was taken with the buffer.
    Taken,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct DatagramInfo {
    pub(super) from: SocketAddr,
    pub(super) local: Option<LocalAddress>,
    pub(super) truncated: bool,
    pub(super) ecn: Option<Ecn>,
}

impl From<&MessageReport> for DatagramInfo {
    #[inline]
    fn from(&MessageReport { from, local, truncated, ecn, .. }: &MessageReport) -> Self {
        Self { from, local, truncated, ecn }
    }
}

impl DatagramInfo {
    /// What is known about a datagram of a burst, besides its bytes and its sender.
    #[inline]
    pub(super) fn metadata(&self, segment_bytes: usize, time: Option<Timestamp>) -> Metadata {
        Metadata {
            ecn: self.ecn,
            destination: self.local.map(|local| local.address),
            reply_from: self.local.and_then(|local| local.answer_source()),
            interface: self.local.map(|local| local.interface).filter(|interface| *interface != 0),
            segment_bytes,
            time,
        }
    }
}

impl Run {
    #[inline]
    pub(super) fn new(mut buffer: BufferMut, message: &MessageReport) -> Self {
        buffer.resize(message.bytes);
        let segment_bytes = message.segment_bytes.map_or(message.bytes.max(1), usize::from);
        Self { memory: RunMemory::Own(buffer), segment_bytes, info: message.into(), time: message.time }
    }

    /// The address that sent them.
    pub fn source(&self) -> SocketAddr {
        self.info.from
    }

    /// What is known about them besides.
    pub fn metadata(&self) -> Metadata {
        self.info.metadata(self.segment_bytes, self.time)
    }

    /// The number of datagrams.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes().len().div_ceil(self.segment_bytes).max(1)
    }

    #[inline]
    pub(crate) fn is_single(&self) -> bool {
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
    #[cfg(feature = "message")]
    pub(crate) fn is_congested(&self) -> bool {
        self.info.ecn == Some(Ecn::Ce)
    }

    /// The contiguous bytes of all datagrams.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            RunMemory::Own(buffer) => buffer,
            RunMemory::Shared(buffer) => buffer,
            RunMemory::Taken => &[],
        }
    }

    /// Nothing, once a datagram was taken.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            RunMemory::Own(buffer) => buffer,
            RunMemory::Shared(_) | RunMemory::Taken => &mut [],
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
    pub(super) fn info(&self, end: usize) -> DatagramInfo {
        DatagramInfo { truncated: self.info.truncated && end == self.bytes().len(), ..self.info }
    }

    /// What is known about all datagrams; only the last one may be truncated.
    #[inline]
    pub(super) fn info_of_all(&self) -> &DatagramInfo {
        &self.info
    }

    /// When they arrived, if that is known.
    #[inline]
    pub(super) fn time(&self) -> Option<Timestamp> {
        self.time
    }

    #[inline]
    pub(super) fn range_of(&self, datagram: &[u8]) -> Range<usize> {
        // No underflow: the datagram is a part of the run's bytes.
        let start = datagram.as_ptr().addr() - self.bytes().as_ptr().addr();
        start..start + datagram.len()
    }

    /// The buffer, with all its bytes; `None` while taken datagrams use it.
    #[inline]
    pub(crate) fn into_buffer(mut self) -> Option<BufferMut> {
        self.take_buffer()
    }

    /// As [`into_buffer`](Self::into_buffer), but the run stays, without bytes.
    #[inline]
    pub(super) fn take_buffer(&mut self) -> Option<BufferMut> {
        match std::mem::replace(&mut self.memory, RunMemory::Taken) {
            RunMemory::Own(buffer) => Some(buffer),
            RunMemory::Shared(buffer) => SharedBuffer::into_inner(buffer),
            RunMemory::Taken => None,
        }
    }

    #[inline]
    pub(super) fn make_shared(&mut self) {
        self.memory = match std::mem::replace(&mut self.memory, RunMemory::Taken) {
            RunMemory::Own(buffer) => RunMemory::Shared(Arc::new(SharedBuffer::new(buffer))),
            shared => shared,
        };
    }

    #[inline]
    pub(super) fn shared_buffer(&self) -> Arc<SharedBuffer> {
        match &self.memory {
            RunMemory::Shared(buffer) => Arc::clone(buffer),
            _ => unreachable!("runs of several datagrams are shared before one is taken"),
        }
    }
}
