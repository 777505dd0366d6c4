//! What a stream's queue holds: buffers, and data sent by reference.

use super::by_reference::RangeTransfer;
use crate::memory::pieces::Buffers;
use crate::memory::pool::Buffer;
use crate::memory::send_queue::Payload;

#[derive(Debug)]
pub(super) enum StreamItem {
    Buffer(Buffer),
    Reference(RangeTransfer),
}

impl StreamItem {
    pub(super) fn unsent_bytes(&self) -> u64 {
        match self {
            Self::Buffer(buffer) => buffer.len() as u64,
            Self::Reference(transfer) => transfer.remaining(),
        }
    }

    pub(super) fn buffer(&self) -> Option<&Buffer> {
        if let Self::Buffer(buffer) = self { Some(buffer) } else { None }
    }

    pub(super) fn into_buffer(self) -> Option<Buffer> {
        if let Self::Buffer(buffer) = self { Some(buffer) } else { None }
    }
}

impl Payload for StreamItem {
    /// Data sent by reference is never returned.
    fn returns_to_program(&self) -> bool {
        self.buffer().is_some()
    }

    fn buffers(&self) -> &[Buffer] {
        self.buffer().map_or(&[], std::slice::from_ref)
    }

    #[inline]
    fn into_buffers(self) -> Buffers {
        self.into_buffer().map_or_else(Buffers::default, Buffers::One)
    }
}

/// Bytes of the queue that were not handed over.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QueuedBytes {
    /// In buffers. What is sent by reference is not limited.
    pub(super) buffered: u64,
    pub(super) referred: u128,
}

impl QueuedBytes {
    pub(super) fn add(&mut self, item: &StreamItem) {
        match item {
            StreamItem::Buffer(buffer) => self.buffered += buffer.len() as u64,
            StreamItem::Reference(_) => self.referred += u128::from(item.unsent_bytes()),
        }
    }

    pub(super) fn total(self) -> u64 {
        u64::try_from(self.referred + u128::from(self.buffered)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn queued_bytes_are_a_sum_that_does_not_overflow() {
        let device = Arc::new(File::open("/dev/zero").unwrap());
        let device =
            |bytes| StreamItem::Reference(RangeTransfer::file(Arc::clone(&device), 0..bytes).unwrap());
        let mut queued = QueuedBytes::default();
        queued.add(&device(3 << 30));
        queued.add(&StreamItem::Buffer(b"the end of it".to_vec().into()));
        assert_eq!(queued.total(), (3 << 30) + 13);
        queued.add(&device(u64::MAX));
        queued.add(&device(u64::MAX));
        assert_eq!(queued.total(), u64::MAX);
    }
}
