//! Posted buffers, into which the next long messages are received (docs/protocol.md §17.1).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use nocopy_proto::message::{Next, Piece};

use super::Front;
use super::regions::check_capacity;
use crate::counter::counters;
use crate::facts::rejected::Rejected;
use crate::memory::pool::{Buffer, BufferMut};
use crate::message::arrivals::Lone;
use crate::message::carrier::Received;
use crate::message::{Message, NonblockingEndpoint};

/// Shorter messages are passed to the program where they lie.
pub(in crate::message) const POSTED_BYTES_MIN: usize = 8 << 10;

counters! {
    /// Counters of messages that were received into posted buffers.
    pub(in crate::message) struct PostedCounters {
        /// Messages that were read from a stream straight into a posted buffer.
        messages_placed,
        /// Messages that were copied into a posted buffer, once, from the packets that brought them.
        messages_gathered,
    }
}

/// Buffers in the order in which they were posted. A buffer that was taken returns to the front, unless the
/// program keeps it.
#[derive(Debug, Default)]
pub(in crate::message) struct Posted {
    buffers: Mutex<VecDeque<BufferMut>>,
    /// The number of buffers, to be read without the lock. It may be late, which costs one useless check.
    count: AtomicUsize,
    placed: AtomicU64,
    gathered: AtomicU64,
    gathered_bytes: AtomicU64,
}

impl Posted {
    fn with<T>(&self, change: impl FnOnce(&mut VecDeque<BufferMut>) -> T) -> T {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut buffers);
        self.count.store(buffers.len(), Relaxed); // a number alone: it is of no other memory
        result
    }

    pub(in crate::message) fn post(&self, buffer: BufferMut) {
        self.with(|buffers| buffers.push_back(buffer));
    }

    #[inline]
    pub(in crate::message) fn has_any(&self) -> bool {
        self.count() > 0
    }

    #[inline]
    pub(in crate::message) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Takes the first buffer with room for a message of `bytes` bytes, if that is a long message.
    pub(in crate::message) fn take(self: &Arc<Self>, bytes: usize) -> Option<Slot> {
        if bytes < POSTED_BYTES_MIN || !self.has_any() {
            return None;
        }
        let mut buffer = self.with(|buffers| {
            let fits = buffers.iter().position(|buffer| buffer.capacity() >= bytes)?;
            buffers.remove(fits)
        })?;
        buffer.resize(bytes);
        Some(Slot { buffer: Some(buffer), home: Some(Arc::clone(self)) })
    }

    fn note_placed(&self) {
        self.placed.fetch_add(1, Relaxed); // counts alone, here and below
    }

    fn note_gathered(&self, bytes: usize) {
        self.gathered.fetch_add(1, Relaxed);
        self.gathered_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(in crate::message) fn counters(&self) -> PostedCounters {
        let (messages_placed, messages_gathered) = (self.placed.load(Relaxed), self.gathered.load(Relaxed));
        PostedCounters { messages_placed, messages_gathered }
    }

    /// Bytes of messages that were copied once more.
    pub(in crate::message) fn gathered_bytes(&self) -> u64 {
        self.gathered_bytes.load(Relaxed)
    }
}

/// A posted buffer with all or part of a message. When dropped, it is posted again, unless the program keeps
/// it.
#[derive(Debug)]
pub(in crate::message) struct Slot {
    buffer: Option<BufferMut>,
    home: Option<Arc<Posted>>,
}

impl Slot {
    /// Room for the bytes of the message.
    pub(in crate::message) fn room(&mut self) -> &mut [u8] {
        self.buffer.as_mut().expect("there until it is dropped")
    }
}

/// A message in a posted buffer, with the headers of its unit until it is read.
#[derive(Debug)]
pub(in crate::message) struct Placed {
    front: Front,
    slot: Slot,
}

impl Placed {
    pub(in crate::message) fn new(front: Front, slot: Slot) -> Self {
        Self { front, slot }
    }

    /// A message that was read: the buffer has its bytes only.
    fn filled(slot: Slot) -> Self {
        Self { front: Front::default(), slot }
    }

    /// Gives the buffer to the program, so that it is not posted again.
    pub(in crate::message) fn keep(&mut self) {
        self.slot.home = None;
    }

    pub(in crate::message) fn into_buffer(mut self) -> Buffer {
        self.slot.buffer.take().expect("there until it is dropped").freeze()
    }
}

impl AsRef<[u8]> for Placed {
    fn as_ref(&self) -> &[u8] {
        let front = self.front.as_ref();
        if front.is_empty() { self.slot.as_ref() } else { front }
    }
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let (Some(buffer), Some(home)) = (self.buffer.take(), self.home.take()) {
            home.with(|buffers| buffers.push_front(buffer));
        }
    }
}

impl NonblockingEndpoint {
    /// Posts a buffer, into which the endpoint receives the next message of 8 KiB or more that fits it, from
    /// any peer. The endpoint reads a message from a stream straight into the buffer. It copies a message
    /// once that arrives in datagrams, or in one batch with others. The message then lies in one piece, and
    /// `Buffer::try_from(message)` takes the buffer with exactly its bytes. If the program drops the message,
    /// the buffer stays posted.
    ///
    /// Shorter messages, and those for which no posted buffer has room, arrive as without `post`. Of several
    /// buffers, the first one with room is used. If a stream is cut in the middle of a message, its buffer
    /// becomes the first one again, for the repeated message. Unused buffers are dropped with the endpoint.
    ///
    /// ```
    /// # use nocopy::{Buffer, Pool, message::{Endpoint, Event}};
    /// # use std::time::Duration;
    /// # let mut left = Endpoint::bind("127.0.0.1:0")?;
    /// # let mut right = Endpoint::bind("127.0.0.1:0")?;
    /// # let peer = left.start_connect(right.local_addr())?;
    /// # while !matches!(left.poll_event(), Some(Event::Connected(..))) {
    /// #     left.wait(Duration::from_millis(1))?;
    /// #     right.wait(Duration::from_millis(1))?;
    /// # }
    /// # while right.poll_event().is_some() {}
    /// let pool = Pool::new(1, 64 << 10)?;
    /// right.post(pool.take().ok_or("all buffers are in use")?)?;
    /// left.send_to(vec![7; 50_000], peer)?;
    /// left.flush()?;
    /// let message = loop {
    ///     # left.wait(Duration::ZERO)?;
    ///     if let Some(message) = right.receive_timeout(Duration::from_millis(1))? {
    ///         break message;
    ///     }
    /// };
    /// assert_eq!(message.as_slice(), Some(&[7; 50_000][..]));
    /// let buffer = Buffer::try_from(message).expect("it was placed");
    /// assert_eq!((buffer.len(), pool.available()), (50_000, 0)); // the posted one
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the buffer if it has no room.
    pub fn post(&mut self, buffer: BufferMut) -> Result<(), Rejected<BufferMut>> {
        let buffer = check_capacity(buffer)?;
        let posted = self.posted.get_or_insert_default();
        posted.post(buffer);
        if let Some(streams) = &mut self.streams {
            streams.post_to(posted);
        }
        Ok(())
    }

    /// The next message, copied into a posted buffer if it is long and a buffer is posted.
    #[cold]
    pub(in crate::message) fn read_placed(&mut self, next: Next, posted: &Arc<Posted>) -> Message<'_> {
        let is_placed = next.is_placed();
        let slot = if is_placed { None } else { posted.take(next.bytes()) };
        let lender = &self.lender;
        let message = self.protocol.receive_next(next);
        let (peer, kind) = (message.peer(), message.kind());
        if let Some(mut slot) = slot {
            let mut room = slot.room();
            for piece in message.pieces() {
                let (part, rest) = room.split_at_mut(piece.len());
                part.copy_from_slice(piece);
                room = rest;
            }
            posted.note_gathered(message.len());
            return Message::placed(peer, kind, Placed::filled(slot));
        }
        if !is_placed {
            return Message::here(message, lender);
        }
        let mut kept = None;
        message.take(|piece| kept = Some(piece));
        match kept {
            Some(Piece::Datagram(Received::Placed(unit), _)) => {
                posted.note_placed();
                Message::placed(peer, kind, Placed::filled(unit.slot))
            }
            _ => unreachable!("nothing else is placed"),
        }
    }

    /// As above, for a message that arrived alone.
    #[cold]
    pub(in crate::message) fn read_lone_placed(&mut self, lone: Lone, posted: &Arc<Posted>) -> Message<'_> {
        let (peer, kind) = (lone.peer, lone.kind);
        let slot = posted.take(lone.place.bytes());
        let Self { carrier, streams, lender, .. } = self;
        let lone = lone.bytes(carrier, streams);
        let Some(mut slot) = slot else { return Message::lone(peer, kind, lone, lender) };
        let room = slot.room();
        let mut at = 0;
        for piece in lone.pieces() {
            room[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        posted.note_gathered(at);
        Message::placed(peer, kind, Placed::filled(slot))
    }
}

impl<'a> TryFrom<Message<'a>> for Buffer {
    type Error = Message<'a>;

    /// Takes the [posted](NonblockingEndpoint::post) buffer that has the bytes of the message.
    ///
    /// # Errors
    /// Returns the message if it lies elsewhere.
    fn try_from(message: Message<'a>) -> Result<Self, Message<'a>> {
        message.into_placed().map(|placed| placed.into_buffer())
    }
}
