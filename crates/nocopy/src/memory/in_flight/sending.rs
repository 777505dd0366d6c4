//! The calls that hand bytes of what is held to the kernel.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;

use smallvec::SmallVec;

use super::{Kept, Load, Made, Messages};
pub(crate) use crate::sys::udp_send::Address;
use crate::sys::uring_send::Full;
use crate::sys::{stream, udp_send};

/// Bytes of one load: so many from byte `first` on where it is one buffer; all of it where it is several.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) ticket: u64,
    pub(crate) first: usize,
    pub(crate) bytes: usize,
}

impl Part {
    /// Its pieces, as the kernel gets them.
    #[inline]
    pub(crate) fn pieces<M: Load, T>(self, messages: &Messages<M, T>) -> impl Iterator<Item = &[u8]> {
        let buffers = messages.get(self.ticket).message.as_ref().map_or(&[][..], Load::buffers);
        buffers.iter().map(move |piece| match buffers {
            [one] => &one[self.first..self.first.saturating_add(self.bytes).min(one.len())],
            _ => piece,
        })
    }
}

/// Memory for a call of many messages.
#[derive(Debug)]
pub(crate) struct Burst {
    burst: udp_send::Burst,
    /// Of each message the tickets that it is of.
    of: Vec<RangeInclusive<u64>>,
}

impl Burst {
    pub(crate) fn new() -> Self {
        Self { burst: udp_send::Burst::new(), of: Vec::with_capacity(udp_send::MESSAGES_MAX) }
    }
}

/// Messages for one call, put together of what is held, which stays as it is until the call was made.
#[derive(Debug)]
pub(crate) struct Filling<'a, M, T, C> {
    kept: &'a mut Kept<M, T, C>,
    burst: &'a mut Burst,
}

impl<M: Load, T, C> Kept<M, T, C> {
    /// Begins a call of several messages.
    pub(crate) fn fill<'a>(&'a mut self, burst: &'a mut Burst) -> Filling<'a, M, T, C> {
        burst.burst.clear();
        burst.of.clear();
        Filling { kept: self, burst }
    }

    /// A zero-copy call of datagrams failed: makes one that fails on purpose, whose number the kernel tells, and returns its error.
    pub(crate) fn count_one(&self, burst: &mut Burst, to: Option<&Address>, flags: i32) -> io::Error {
        match self.check_zero_copy() {
            Ok(()) => burst.burst.count_one(self.socket.as_fd(), to, flags),
            Err(error) => error,
        }
    }

    /// Queues a message of datagrams with the ring.
    ///
    /// # Errors
    /// The ring is full. `Unsupported` inside where there is none, and in a forked child.
    pub(crate) fn queue_by_ring(
        &mut self,
        parts: impl Iterator<Item = Part> + Clone,
        to: Option<&Address>,
        segment_bytes: Option<u16>,
        note: C,
    ) -> Result<(), Full> {
        if self.is_inherited() {
            return Err(Full);
        }
        let reads = tickets(parts.clone());
        let Self { messages, ring, .. } = self;
        let ring = ring.as_mut().ok_or(Full)?;
        let pieces = parts.flat_map(|part| part.pieces(messages));
        // SAFETY: the loads are held, unchanged, until `ring.calls` has seen the completion, or the reaper has, or they were abandoned for
        // good: they are noted as read below.
        unsafe { ring.sender.queue(ring.calls.end(), pieces, to, segment_bytes)? };
        messages.called(reads.clone());
        ring.calls.push(Made { reads, note });
        Ok(())
    }

    /// Has the kernel take what is queued with the ring.
    ///
    /// # Errors
    /// The kernel's: what was not taken is with the next call.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        self.ring.as_mut().map_or(Ok(()), |ring| ring.sender.submit())
    }

    /// Sends on a stream, by one call, and returns how many bytes the kernel copied.
    ///
    /// # Errors
    /// The kernel's: no byte was taken.
    pub(crate) fn send_copied(&self, parts: impl Iterator<Item = Part>, waits: bool) -> io::Result<usize> {
        let pieces = self.slices(parts);
        // SAFETY: the loads are borrowed for the call, which copies.
        unsafe { stream::send(self.socket(), &pieces, waits, false) }
    }

    /// The same without a copy; `note` says what is noted of a call that took so many bytes.
    ///
    /// # Errors
    /// The kernel's: no byte was taken, and the call has no number. `Unsupported` where this sender may make no such calls.
    pub(crate) fn send_zero_copy(
        &mut self,
        parts: impl Iterator<Item = Part> + Clone,
        waits: bool,
        note: impl FnOnce(usize) -> C,
    ) -> io::Result<usize> {
        self.check_zero_copy()?;
        let pieces = self.slices(parts.clone());
        // SAFETY: the loads are held, unchanged, until `self.calls` has seen the completion, or the reaper has, or they were abandoned for
        // good: they are noted as read below.
        let taken = unsafe { stream::send(self.socket(), &pieces, waits, true)? };
        drop(pieces);
        let reads = self.taken(parts, taken);
        self.messages.called(reads.clone());
        self.calls.push(Made { reads, note: note(taken) });
        Ok(taken)
    }

    /// The same by the ring, which tells of each call, also where it took nothing.
    ///
    /// # Errors
    /// The kernel's: no byte was taken. `Unsupported` where there is no ring that works, and in a forked child; `ENOBUFS` where it is full.
    pub(crate) fn send_by_ring(
        &mut self,
        parts: impl Iterator<Item = Part> + Clone,
        note: impl FnOnce(usize) -> C,
    ) -> io::Result<usize> {
        self.check_process()?;
        let Self { messages, ring, .. } = self;
        let ring = match ring {
            Some(ring) if !ring.sender.is_broken() => ring,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        if ring.sender.is_full() {
            // Not `WouldBlock`: the socket has room, so waiting for that would be no wait at all.
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        let pieces = parts.clone().flat_map(|part| part.pieces(messages));
        // SAFETY: the loads are held, unchanged, until `ring.calls` has seen the completion, or the reaper has, or they were abandoned for
        // good: they are noted as read below.
        let sent = unsafe { ring.sender.send_at_once(ring.calls.end(), pieces) };
        let taken = *sent.as_ref().unwrap_or(&0);
        let reads = self.taken(parts, taken);
        self.messages.called(reads.clone());
        if let Some(ring) = &mut self.ring {
            ring.calls.push(Made { reads, note: note(taken) });
        }
        sent
    }

    fn slices(&self, parts: impl Iterator<Item = Part>) -> SmallVec<[io::IoSlice<'_>; 16]> {
        parts.flat_map(|part| part.pieces(&self.messages)).map(io::IoSlice::new).collect()
    }

    /// The tickets of those parts of which a call took bytes, so many in all.
    fn taken(&self, parts: impl Iterator<Item = Part>, bytes: usize) -> RangeInclusive<u64> {
        let mut left = bytes;
        tickets(parts.take_while(|part| {
            let is_taken = left > 0;
            left -= left.min(part.pieces(&self.messages).map(<[u8]>::len).sum());
            is_taken
        }))
    }
}

/// From the first to the last; none of no parts.
fn tickets(parts: impl Iterator<Item = Part>) -> RangeInclusive<u64> {
    let (first, last) =
        parts.fold((u64::MAX, 0), |(first, last), part| (first.min(part.ticket), last.max(part.ticket)));
    first..=last
}

impl<M: Load, T, C> Filling<'_, M, T, C> {
    #[inline]
    pub(crate) fn messages(&self) -> &Messages<M, T> {
        &self.kept.messages
    }

    /// Whether there is room for one more message of so many pieces.
    #[inline]
    pub(crate) fn has_room(&self, pieces: usize) -> bool {
        self.burst.burst.has_room(pieces)
    }

    /// Adds a message: to that address, or the one the socket is connected to; cut into datagrams of `segment_bytes` if that is not 0.
    ///
    /// # Panics
    /// Without [`has_room`](Self::has_room).
    #[inline]
    pub(crate) fn add(
        &mut self,
        to: Option<&Address>,
        segment_bytes: u16,
        parts: impl Iterator<Item = Part> + Clone,
    ) {
        let Burst { burst, of } = &mut *self.burst;
        of.push(tickets(parts.clone()));
        burst.begin(to, segment_bytes);
        for part in parts {
            part.pieces(&self.kept.messages).for_each(|piece| burst.piece(piece));
        }
    }

    /// Has the messages copied and sent, and returns how many the kernel took.
    ///
    /// # Errors
    /// The kernel's, of the first.
    pub(crate) fn send_copied(self, flags: i32) -> io::Result<usize> {
        // SAFETY: the pieces were just put together from what is held, and stay until the call was made, which copies.
        unsafe { self.burst.burst.send(self.kept.socket.as_fd(), 0, flags & !libc::MSG_ZEROCOPY) }
    }

    /// Sends the messages without copying, and returns how many the kernel took; `note` says what is noted of each.
    ///
    /// # Errors
    /// The kernel's, of the first. `Unsupported` where this sender may make no such calls.
    pub(crate) fn send_zero_copy(self, flags: i32, mut note: impl FnMut(usize) -> C) -> io::Result<usize> {
        let Self { kept, burst: Burst { burst, of } } = self;
        kept.check_zero_copy()?;
        // SAFETY: the pieces were just put together from what is held, unchanged, until `kept.calls` has seen the completion, or the reaper
        // has, or it was abandoned for good: it is noted as read below.
        let sent = unsafe { burst.send(kept.socket.as_fd(), 0, flags | libc::MSG_ZEROCOPY)? };
        for (number, reads) in of.iter().enumerate().take(sent) {
            kept.messages.called(reads.clone());
            kept.calls.push(Made { reads: reads.clone(), note: note(number) });
        }
        Ok(sent)
    }
}
