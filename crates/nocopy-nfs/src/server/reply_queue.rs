//! Replies being sent on one socket, in order.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nocopy::tcp::Pages;
use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

use super::core::ReadCall;
use super::statistics::{ClientCounters, CopyCause};

const GATHERED_MAX: usize = 16;

/// A network that has more than what is left of this for others has only one reply at a time on each
/// connection, and a short one.
const QUEUED_BYTES_MAX: usize = 128 << 20;

/// The cost of an entry besides the bytes of the reply.
const REPLY_BYTES: usize = 128;

const ZEROS: [u8; 3] = [0; 3];

/// A reply, or a read whose reply is not made yet.
#[derive(Debug)]
pub(super) enum OutgoingReply {
    Bytes {
        bytes: Vec<u8>,
        sent: usize,
        /// Bytes of a file, and why they were copied.
        copied: Option<(CopyCause, usize)>,
    },
    Piped {
        head: Vec<u8>,
        sent: usize,
        pages: Pages,
        padding: usize,
    },
    /// To be read when it reaches the front.
    Read(ReadCall),
}

impl OutgoingReply {
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self::Bytes { bytes, sent: 0, copied: None }
    }

    pub(super) fn from_copied(bytes: Vec<u8>, cause: CopyCause, count: usize) -> Self {
        Self::Bytes { bytes, sent: 0, copied: Some((cause, count)) }
    }

    pub(super) fn from_pipe(head: Vec<u8>, pages: Pages, padding: usize) -> Self {
        Self::Piped { head, sent: 0, pages, padding }
    }

    fn is_piped(&self) -> bool {
        matches!(self, Self::Piped { .. })
    }

    fn memory_bytes(&self) -> usize {
        REPLY_BYTES
            + match self {
                Self::Bytes { bytes, .. } => bytes.capacity(),
                Self::Piped { head, .. } => head.capacity(),
                Self::Read(_) => 0,
            }
    }
}

#[derive(Debug)]
pub(super) enum QueueHead {
    Empty,
    Reply,
    Read(ReadCall),
}

/// Memory of queued replies: those of all connections, and those of one network.
#[derive(Debug, Default)]
pub(super) struct QueuedMemory {
    total_bytes: Arc<AtomicUsize>,
    network_bytes: Arc<AtomicUsize>,
}

impl QueuedMemory {
    /// The memory of all, and that of another network.
    pub(super) fn for_network(&self, of_network: &Arc<AtomicUsize>) -> Self {
        Self { total_bytes: Arc::clone(&self.total_bytes), network_bytes: Arc::clone(of_network) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.total_bytes.load(Ordering::Relaxed)
    }

    /// Whether the network has more than its share.
    pub(super) fn is_over_share(&self) -> bool {
        self.network_bytes.load(Ordering::Relaxed) > QUEUED_BYTES_MAX.saturating_sub(self.bytes())
    }

    // Relaxed: these are only counts.
    fn add(&self, bytes: usize) {
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.network_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.total_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.network_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct ReplyQueue {
    queue: VecDeque<OutgoingReply>,
    memory_bytes: usize,
    pipes: usize,
    queued_memory: Arc<QueuedMemory>,
}

impl Drop for ReplyQueue {
    fn drop(&mut self) {
        self.queued_memory.remove(self.memory_bytes);
    }
}

impl ReplyQueue {
    pub(super) fn new(queued: Arc<QueuedMemory>) -> Self {
        Self { queue: VecDeque::new(), memory_bytes: 0, pipes: 0, queued_memory: queued }
    }

    pub(super) fn queued_memory(&self) -> &Arc<QueuedMemory> {
        &self.queued_memory
    }

    pub(super) fn push(&mut self, reply: OutgoingReply) {
        self.count_queued(&reply);
        self.queue.push_back(reply);
    }

    /// Puts the reply to a read that was taken from the front there.
    pub(super) fn push_front(&mut self, reply: OutgoingReply) {
        self.count_queued(&reply);
        self.queue.push_front(reply);
    }

    fn count_queued(&mut self, reply: &OutgoingReply) {
        let bytes = reply.memory_bytes();
        self.memory_bytes += bytes;
        self.queued_memory.add(bytes);
        self.pipes += usize::from(reply.is_piped());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    pub(super) fn pipe_count(&self) -> usize {
        self.pipes
    }

    /// Takes a read from the front; replies stay there.
    pub(super) fn take_front_read(&mut self) -> QueueHead {
        match self.queue.front() {
            None => QueueHead::Empty,
            Some(OutgoingReply::Read(_)) => match self.pop() {
                Some(OutgoingReply::Read(call)) => QueueHead::Read(call),
                _ => unreachable!("it was looked at"),
            },
            Some(_) => QueueHead::Reply,
        }
    }

    fn pop(&mut self) -> Option<OutgoingReply> {
        let first = self.queue.pop_front()?;
        // As much as was added when it was queued: the memory of a queued reply does not change.
        let bytes = first.memory_bytes();
        self.memory_bytes -= bytes;
        self.queued_memory.remove(bytes);
        self.pipes -= usize::from(first.is_piped());
        Some(first)
    }

    /// Writes the front of the queue without waiting; returns how many bytes.
    /// Errors: the socket accepts no bytes now (`WouldBlock`), or is closed.
    pub(super) fn write_front(&mut self, socket: impl AsFd, client: &ClientCounters) -> io::Result<usize> {
        match self.queue.front_mut() {
            None | Some(OutgoingReply::Read(_)) => Ok(0),
            Some(OutgoingReply::Bytes { .. }) => self.write_bytes(socket, client),
            Some(OutgoingReply::Piped { head, sent, pages, padding }) => {
                let count = write_piped(&socket, head, sent, pages, padding, client)?;
                if pages.buffered() == 0 && *padding == 0 {
                    client.count_read();
                    self.pop();
                }
                Ok(count)
            }
        }
    }

    fn write_bytes(&mut self, socket: impl AsFd, client: &ClientCounters) -> io::Result<usize> {
        let pieces = self.queue.iter().map_while(|reply| match reply {
            OutgoingReply::Bytes { bytes, sent, .. } => Some(IoSlice::new(&bytes[*sent..])),
            _ => None,
        });
        let pieces: Vec<IoSlice<'_>> = pieces.take(GATHERED_MAX).collect();
        let mut control = SendAncillaryBuffer::default();
        let written = retry_on_intr(|| sendmsg(&socket, &pieces, &mut control, SendFlags::NOSIGNAL))?;
        let mut rest = written;
        while let Some(OutgoingReply::Bytes { bytes, sent, copied }) = self.queue.front_mut() {
            let left = bytes.len() - *sent;
            if rest < left {
                *sent += rest;
                break;
            }
            rest -= left;
            if let Some((cause, count)) = *copied {
                client.count_read();
                client.count_copied(cause, count as u64);
            }
            self.pop();
            if rest == 0 {
                break;
            }
        }
        Ok(written)
    }
}

/// Sends the next part: the header, which waits in the socket for the pages; the pages; the padding.
fn write_piped(
    socket: impl AsFd,
    head: &[u8],
    sent: &mut usize,
    pages: &mut Pages,
    padding: &mut usize,
    client: &ClientCounters,
) -> io::Result<usize> {
    if *sent < head.len() {
        let flags = SendFlags::NOSIGNAL | SendFlags::MORE;
        let count = retry_on_intr(|| send(&socket, &head[*sent..], flags))?;
        *sent += count;
        return Ok(count);
    }
    if pages.buffered() > 0 {
        let count = pages.empty(&socket, None, *padding > 0)?;
        client.count_spliced(count as u64);
        return Ok(count);
    }
    let count = retry_on_intr(|| send(&socket, &ZEROS[..*padding], SendFlags::NOSIGNAL))?;
    *padding -= count;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_memory_of_a_network_is_limited() {
        let all = QueuedMemory::default();
        let [mut greedy, other] =
            [(); 2].map(|()| ReplyQueue::new(Arc::new(all.for_network(&Arc::default()))));
        while !greedy.queued_memory().is_over_share() {
            greedy.push(OutgoingReply::from_bytes(vec![0; 1 << 20]));
        }
        assert!(all.bytes() > QUEUED_BYTES_MAX / 2);
        assert!(!other.queued_memory().is_over_share());
        // Each of its connections may have one reply more.
        greedy.push(OutgoingReply::from_bytes(vec![0; QUEUED_BYTES_MAX / 4]));
        assert!(!other.queued_memory().is_over_share());
        drop((greedy, other));
        assert_eq!(all.bytes(), 0);
    }
}
