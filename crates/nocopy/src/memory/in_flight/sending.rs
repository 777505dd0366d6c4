//! The calls that hand held bytes to the kernel. Each call is recorded before any other step.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use smallvec::SmallVec;

use super::{Doubt, Kept, Load, Made, Messages, Note};
use crate::sys::udp_send::Address;
use crate::sys::uring_send::Full;
use crate::sys::{stream, udp_send};

/// Bytes of consecutive loads, beginning at byte `at` of the first; fewer if the last one ends before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Where the call begins in the first load; 0 if that has several buffers.
    pub(crate) at: usize,
    pub(crate) bytes: usize,
}

impl Span {
    fn tickets(self) -> Range<u64> {
        self.first..self.last + 1
    }

    /// The pieces to pass to the kernel.
    #[inline]
    pub(crate) fn pieces<M: Load, T>(self, messages: &Messages<M, T>) -> impl Iterator<Item = &[u8]> {
        let (mut at, mut left) = (self.at, self.bytes);
        let loads = self.tickets().filter_map(|ticket| messages.get(ticket).message.as_ref());
        loads.flat_map(Load::buffers).map(move |buffer| {
            let piece = &buffer[std::mem::take(&mut at)..];
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            piece
        })
    }

    /// The tickets of the loads from which a call took bytes, `bytes` in total.
    pub(super) fn taken<M: Load, T>(self, bytes: usize, messages: &Messages<M, T>) -> Range<u64> {
        let mut left = if bytes == 0 { 0 } else { self.at + bytes };
        let mut end = self.first;
        while end <= self.last && left > 0 {
            left -= left.min(messages.get(end).message.as_ref().map_or(0, super::bytes_of));
            end += 1;
        }
        self.first..end
    }
}

/// Memory for a call of several messages, each with a note.
#[derive(Debug)]
pub(crate) struct Burst<C> {
    burst: udp_send::Burst,
    of: Vec<(Span, C)>,
}

impl<C> Burst<C> {
    pub(crate) fn new() -> Self {
        Self { burst: udp_send::Burst::new(), of: Vec::with_capacity(udp_send::MESSAGES_MAX) }
    }
}

/// Messages for one call and one destination, made of held loads, which do not change until the call was made.
#[derive(Debug)]
pub(crate) struct Filling<'a, M, T, C> {
    kept: &'a mut Kept<M, T, C>,
    burst: &'a mut Burst<C>,
    /// `None`: the address to which the socket is connected.
    to: Option<&'a Address>,
}

impl<M: Load, T, C: Note> Kept<M, T, C> {
    /// Begins a call of several messages.
    pub(crate) fn fill<'a>(
        &'a mut self,
        burst: &'a mut Burst<C>,
        to: Option<&'a Address>,
    ) -> Filling<'a, M, T, C> {
        burst.burst.clear();
        burst.of.clear();
        Filling { kept: self, burst, to }
    }

    /// Queues a message of datagrams with the ring. Fails if the ring is full, if there is none, and in a forked child.
    pub(crate) fn queue_by_ring(
        &mut self,
        span: Span,
        to: Option<&Address>,
        segment_bytes: Option<u16>,
        note: C,
    ) -> Result<(), Full> {
        if self.is_inherited() {
            return Err(Full);
        }
        let Self { messages, ring, .. } = self;
        let ring = ring.as_mut().ok_or(Full)?;
        let pieces = span.pieces(messages);
        // SAFETY: the loads are held, unchanged, until `ring.calls` has seen the completion, or the reaper has, or they were abandoned for
        // good: they are noted as read below.
        unsafe { ring.sender.queue(ring.calls.end(), pieces, to, segment_bytes)? };
        messages.called(span.tickets());
        ring.calls.push(Made { reads: span.tickets(), taken: span.bytes, note });
        Ok(())
    }

    /// Submits the queued sends of the ring.
    /// Errors: the kernel's error; the next call repeats sends that were not accepted. `Unsupported` in a forked child.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        self.check_process()?;
        self.ring.as_mut().map_or(Ok(()), |ring| ring.sender.submit())
    }

    /// Sends on a stream, by one call, and returns how many bytes the kernel copied. On an error of the kernel no byte was taken.
    pub(crate) fn send_copied(&self, span: Span, waits: bool) -> io::Result<usize> {
        // SAFETY: the loads are borrowed for the call, which copies.
        unsafe { stream::send(self.socket(), &self.slices(span), waits, false) }
    }

    /// As [`send_copied`](Self::send_copied), by `MSG_ZEROCOPY`. On an error of the kernel no byte was taken, and the call has no number.
    /// `Unsupported` if this sender may make no such calls.
    pub(crate) fn send_zero_copy(&mut self, span: Span, waits: bool, note: C) -> io::Result<usize> {
        self.check_zero_copy()?;
        // SAFETY: the loads are held, unchanged, until `self.calls` has seen the completion, or the reaper has, or they were abandoned for
        // good: they are noted as read below.
        let taken = unsafe { stream::send(self.socket(), &self.slices(span), waits, true)? };
        let reads = span.taken(taken, &self.messages);
        self.messages.called(reads.clone());
        self.calls.push(Made { reads, taken, note });
        Ok(taken)
    }

    /// As [`send_zero_copy`](Self::send_zero_copy), by the ring, which reports every call, even one that sent nothing. On an error of the
    /// kernel no byte was taken. `Unsupported` without a working ring, and in a forked child; `ENOBUFS` if the ring is full.
    pub(crate) fn send_by_ring(&mut self, span: Span, note: C) -> io::Result<usize> {
        self.check_process()?;
        let Self { messages, ring, .. } = self;
        let ring = match ring {
            Some(ring) if !ring.sender.is_broken() => ring,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        if ring.sender.is_full() {
            // Not `WouldBlock`: the socket has room, so a wait for room would end at once.
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        // SAFETY: the loads are held, unchanged, until `ring.calls` has seen the completion, or the reaper has, or they were abandoned for
        // good: they are noted as read below.
        let sent = unsafe { ring.sender.send_at_once(ring.calls.end(), span.pieces(messages)) };
        let taken = *sent.as_ref().unwrap_or(&0);
        let reads = span.taken(taken, messages);
        messages.called(reads.clone());
        ring.calls.push(Made { reads, taken, note });
        sent
    }

    fn slices(&self, span: Span) -> SmallVec<[io::IoSlice<'_>; 16]> {
        span.pieces(&self.messages).map(io::IoSlice::new).collect()
    }
}

impl<M: Load, T, C: Note> Filling<'_, M, T, C> {
    #[inline]
    pub(crate) fn messages(&self) -> &Messages<M, T> {
        &self.kept.messages
    }

    #[inline]
    pub(crate) fn has_room(&self, pieces: usize) -> bool {
        self.burst.burst.has_room(pieces)
    }

    /// Adds a message, cut into datagrams of `segment_bytes` if that is not 0.
    /// Panics without [`has_room`](Self::has_room).
    #[inline]
    pub(crate) fn add(&mut self, span: Span, segment_bytes: u16, note: C) {
        let Burst { burst, of } = &mut *self.burst;
        burst.begin(self.to, segment_bytes);
        span.pieces(&self.kept.messages).for_each(|piece| burst.piece(piece));
        of.push((span, note));
    }

    /// Sends the messages with a copy; returns how many the kernel accepted. Returns the kernel's error for the first message.
    pub(crate) fn send_copied(self, flags: i32) -> io::Result<usize> {
        // SAFETY: the pieces were just made of held loads, and stay until the call was made, which copies.
        unsafe { self.burst.burst.send(self.kept.socket.as_fd(), 0, flags & !libc::MSG_ZEROCOPY) }
    }

    /// Sends the messages without a copy; returns how many the kernel accepted. Errors: the kernel's, for the first message. `Unsupported`
    /// if this sender may make no such calls. While it [is uncertain](Kept::is_unsure) whether a call was numbered: `EINTR` (read
    /// completions and try again), then `ENOBUFS` (no memory to find out).
    pub(crate) fn send_zero_copy(mut self, flags: i32) -> io::Result<usize> {
        self.kept.check_zero_copy()?;
        if self.kept.is_unsure() {
            return Err(self.ask_again(flags));
        }
        let Self { kept, burst: Burst { burst, of }, .. } = &mut self;
        // SAFETY: the pieces were just made of held loads, which do not change until `kept.calls` has seen the completion, or the reaper
        // has, or they were abandoned for good: they are noted as read below.
        let sent = unsafe { burst.send(kept.socket.as_fd(), 0, flags | libc::MSG_ZEROCOPY) };
        let count = *sent.as_ref().unwrap_or(&0);
        for &(span, note) in of.iter().take(count) {
            kept.messages.called(span.tickets());
            kept.calls.push(Made { reads: span.tickets(), taken: span.bytes, note });
        }
        if let Some(&(span, note)) = of.get(count) {
            self.fell_short(span, note, sent.as_ref().err(), flags);
        }
        sent
    }

    /// Handles a failed call; `error` is its own, unless others of its burst were taken. The call may have a number, so its loads are held
    /// until that is known ([`Kept::conclude`]).
    #[cold]
    #[inline(never)]
    fn fell_short(&mut self, span: Span, note: C, error: Option<&io::Error>, flags: i32) {
        let errno = error.and_then(io::Error::raw_os_error);
        if errno.is_some_and(|errno| [libc::EAGAIN, libc::EINTR].contains(&errno)) {
            return; // it waited, or would have, for room to make the packet in
        }
        self.kept.messages.called(span.tickets());
        let failed = Made { reads: span.tickets(), taken: 0, note: note.of_nothing() };
        let doubt = self.kept.doubt.insert(Doubt::new(failed));
        let again = self.burst.burst.count_one(self.kept.socket.as_fd(), self.to, flags).raw_os_error();
        // The memory may suffice for one call and not for the other.
        let is_of_memory = |errno| [libc::ENOBUFS, libc::ENOMEM, libc::EAGAIN].contains(&errno);
        doubt.is_uncounted = errno.is_some_and(|errno| again == Some(errno) && !is_of_memory(errno));
    }

    /// Makes a further call, whose number shows whether the failed one was numbered.
    #[cold]
    #[inline(never)]
    fn ask_again(&mut self, flags: i32) -> io::Error {
        let error = self.burst.burst.count_one(self.kept.socket.as_fd(), self.to, flags);
        let is_tried =
            self.kept.doubt.as_mut().is_none_or(|doubt| std::mem::replace(&mut doubt.is_tried, true));
        match error.kind() {
            io::ErrorKind::WouldBlock => error,
            _ if is_tried => io::Error::from_raw_os_error(libc::ENOBUFS),
            _ => io::ErrorKind::Interrupted.into(),
        }
    }
}
