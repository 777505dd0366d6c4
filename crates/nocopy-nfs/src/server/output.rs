//! Replies being sent on one socket, in order.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nocopy::tcp::Pages;
use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

use super::accounts::{ClientCounts, Copied};
use super::core::ReadCall;

const GATHERED_MAX: usize = 16;

/// A network that has more than what is left of this for others has only one reply at a time on each
/// connection, and a short one.
const QUEUED_BYTES_MAX: usize = 128 << 20;

/// The cost of an entry besides the bytes of the reply.
const REPLY_BYTES: usize = 128;

const ZEROS: [u8; 3] = [0; 3];

/// A reply, or a read whose reply is not made yet.
#[derive(Debug)]
pub(super) enum Outgoing {
    Bytes {
        bytes: Vec<u8>,
        sent: usize,
        /// Bytes of a file, and why they were copied.
        copied: Option<(Copied, usize)>,
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

impl Outgoing {
    pub(super) fn bytes(bytes: Vec<u8>) -> Self {
        Self::Bytes { bytes, sent: 0, copied: None }
    }

    pub(super) fn copied(bytes: Vec<u8>, cause: Copied, count: usize) -> Self {
        Self::Bytes { bytes, sent: 0, copied: Some((cause, count)) }
    }

    pub(super) fn piped(head: Vec<u8>, pages: Pages, padding: usize) -> Self {
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
pub(super) enum Front {
    Empty,
    Reply,
    Read(ReadCall),
}

/// Memory of queued replies: those of all connections, and those of one network.
#[derive(Debug, Default)]
pub(super) struct Queued {
    all: Arc<AtomicUsize>,
    of_network: Arc<AtomicUsize>,
}

impl Queued {
    /// The memory of all, and that of another network.
    pub(super) fn with(&self, of_network: &Arc<AtomicUsize>) -> Self {
        Self { all: Arc::clone(&self.all), of_network: Arc::clone(of_network) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// Whether the network has more than its share.
    pub(super) fn is_much(&self) -> bool {
        self.of_network.load(Ordering::Relaxed) > QUEUED_BYTES_MAX.saturating_sub(self.bytes())
    }

    // Relaxed: these are only counts.
    fn add(&self, bytes: usize) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.of_network.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.all.fetch_sub(bytes, Ordering::Relaxed);
        self.of_network.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Output {
    queue: VecDeque<Outgoing>,
    memory_bytes: usize,
    pipes: usize,
    queued: Arc<Queued>,
}

impl Drop for Output {
    fn drop(&mut self) {
        self.queued.remove(self.memory_bytes);
    }
}

impl Output {
    pub(super) fn new(queued: Arc<Queued>) -> Self {
        Self { queue: VecDeque::new(), memory_bytes: 0, pipes: 0, queued }
    }

    pub(super) fn queued(&self) -> &Arc<Queued> {
        &self.queued
    }

    pub(super) fn push(&mut self, reply: Outgoing) {
        self.note(&reply);
        self.queue.push_back(reply);
    }

    /// Puts the reply to a read that was taken from the front there.
    pub(super) fn push_front(&mut self, reply: Outgoing) {
        self.note(&reply);
        self.queue.push_front(reply);
    }

    fn note(&mut self, reply: &Outgoing) {
        let bytes = reply.memory_bytes();
        self.memory_bytes += bytes;
        self.queued.add(bytes);
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

    pub(super) fn pipes(&self) -> usize {
        self.pipes
    }

    /// Takes a read from the front; replies stay there.
    pub(super) fn front(&mut self) -> Front {
        match self.queue.front() {
            None => Front::Empty,
            Some(Outgoing::Read(_)) => match self.pop() {
                Some(Outgoing::Read(call)) => Front::Read(call),
                _ => unreachable!("it was looked at"),
            },
            Some(_) => Front::Reply,
        }
    }

    fn pop(&mut self) -> Option<Outgoing> {
        let first = self.queue.pop_front()?;
        // As much as was added when it was queued: the memory of a queued reply does not change.
        let bytes = first.memory_bytes();
        self.memory_bytes -= bytes;
        self.queued.remove(bytes);
        self.pipes -= usize::from(first.is_piped());
        Some(first)
    }

    /// Writes the front of the queue without waiting; returns how many bytes.
    /// Errors: the socket accepts no bytes now (`WouldBlock`), or is closed.
    pub(super) fn write(&mut self, socket: impl AsFd, client: &ClientCounts) -> io::Result<usize> {
        match self.queue.front_mut() {
            None | Some(Outgoing::Read(_)) => Ok(0),
            Some(Outgoing::Bytes { .. }) => self.write_bytes(socket, client),
            Some(Outgoing::Piped { head, sent, pages, padding }) => {
                let count = write_piped(&socket, head, sent, pages, padding, client)?;
                if pages.held() == 0 && *padding == 0 {
                    client.note_read();
                    self.pop();
                }
                Ok(count)
            }
        }
    }

    fn write_bytes(&mut self, socket: impl AsFd, client: &ClientCounts) -> io::Result<usize> {
        let pieces = self.queue.iter().map_while(|reply| match reply {
            Outgoing::Bytes { bytes, sent, .. } => Some(IoSlice::new(&bytes[*sent..])),
            _ => None,
        });
        let pieces: Vec<IoSlice<'_>> = pieces.take(GATHERED_MAX).collect();
        let mut control = SendAncillaryBuffer::default();
        let written = retry_on_intr(|| sendmsg(&socket, &pieces, &mut control, SendFlags::NOSIGNAL))?;
        let mut rest = written;
        while let Some(Outgoing::Bytes { bytes, sent, copied }) = self.queue.front_mut() {
            let left = bytes.len() - *sent;
            if rest < left {
                *sent += rest;
                break;
            }
            rest -= left;
            if let Some((cause, count)) = *copied {
                client.note_read();
                client.note_copied(cause, count as u64);
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
    client: &ClientCounts,
) -> io::Result<usize> {
    if *sent < head.len() {
        let flags = SendFlags::NOSIGNAL | SendFlags::MORE;
        let count = retry_on_intr(|| send(&socket, &head[*sent..], flags))?;
        *sent += count;
        return Ok(count);
    }
    if pages.held() > 0 {
        let count = pages.empty(&socket, None, *padding > 0)?;
        client.note_spliced(count as u64);
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
    fn a_network_leaves_memory_of_replies_to_others() {
        let all = Queued::default();
        let [mut greedy, other] = [(); 2].map(|()| Output::new(Arc::new(all.with(&Arc::default()))));
        while !greedy.queued().is_much() {
            greedy.push(Outgoing::bytes(vec![0; 1 << 20]));
        }
        assert!(all.bytes() > QUEUED_BYTES_MAX / 2);
        assert!(!other.queued().is_much());
        // Each of its connections may have one reply more.
        greedy.push(Outgoing::bytes(vec![0; QUEUED_BYTES_MAX / 4]));
        assert!(!other.queued().is_much());
        drop((greedy, other));
        assert_eq!(all.bytes(), 0);
    }
}
