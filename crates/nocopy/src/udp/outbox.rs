//! What is queued, and what the kernel still reads.
//!
//! A message is held from `push` until all of it was handed over and every zero-copy call that reads it is over. The kernel's word
//! for that is checked: a completion of a call that was never made, or is over, frees nothing.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::Call;
use super::destinations::Destinations;
use super::message::{DATAGRAM_BYTES_MAX, Message};
use super::{Method, Ticket};
use smallvec::SmallVec;

use crate::engine::in_flight::Messages;
use crate::engine::kept::{Call as _, Kept, Ring};
use crate::engine::kernel_socket::KernelSocket;
use crate::engine::reaper::Orphan as _;
use crate::facts::evidence::Evidence;
use crate::memory::area::Frame;
use crate::memory::pool::{Buffer, Pool};
use crate::sys::udp_send::{self, Address, Burst};
use crate::sys::uring_send::UringRefused;

/// How many pages a message from the program's memory may lie on (`MAX_SKB_FRAGS` of `linux/skbuff.h`).
const PAGES_MAX: usize = 17;
const PAGE_BYTES: usize = 4096;

/// Sends that a ring has at a time.
const RING_SENDS: u32 = 128;

/// What a message takes of the send buffer beside its bytes, at most: its buffer's head, and parts of two pages.
const BESIDE_BYTES: usize = 12 << 10;

/// How long the kernel may take when nobody has the socket any more: longer than a neighbour is looked for (3 s, arp(7)), or a queue
/// stands.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a datagram is tried that the ring did not take.
const ATTEMPTS: usize = 4;

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    ticket: u64,
    bytes: usize,
}

/// What one message of a burst is of.
#[derive(Debug, Clone, Copy)]
struct Mark {
    from: Place,
    /// Where the queue goes on behind it.
    to: Place,
    last: u64,
    datagrams: u32,
    bytes: u32,
}

/// Equal datagrams at the front of the queue, for one destination.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) destination: u32,
    pub(super) datagram_bytes: usize,
    pub(super) datagrams: usize,
    /// One past the last message.
    end: u64,
}

#[cfg(test)]
impl Run {
    pub(super) fn of(destination: u32, datagram_bytes: usize, datagrams: usize) -> Self {
        Self { destination, datagram_bytes, datagrams, end: 0 }
    }
}

/// What a call took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    /// Zero-copy calls, whose completions are to come.
    pub(super) calls: u64,
}

/// How a burst is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(super) method: Method,
    /// Of the call.
    pub(super) flags: i32,
    /// What is known at once; `None`: the completion will tell.
    pub(super) evidence: Option<Evidence>,
    /// When the policy began to measure, if it does.
    pub(super) since: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Outbox {
    kept: Kept<Message, u32, Call>,
    /// Of the socket, for a ring: what is sent by it must not wait in the kernel.
    send_buffer_bytes: usize,
    /// What goes next: the first message that was not handed over whole, and how many of its bytes were.
    next: Place,
    burst: Burst,
    marks: Vec<Mark>,
}

/// What a second attempt by ordinary calls came to.
#[derive(Debug, Default)]
pub(super) struct Resent {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    pub(super) refused: u64,
    pub(super) error: Option<io::Error>,
}

impl Outbox {
    pub(super) fn new(socket: Arc<KernelSocket>) -> Self {
        Self {
            kept: Kept::new(socket, PATIENCE),
            send_buffer_bytes: 0,
            next: Place { ticket: 0, bytes: 0 },
            burst: Burst::new(),
            marks: Vec::with_capacity(udp_send::MESSAGES_MAX),
        }
    }

    /// Whether completions are to be read before the next zero-copy call, or its number would be another than the kernel's.
    #[inline]
    pub(super) fn is_unsure(&self) -> bool {
        self.kept.doubt.is_some()
    }

    #[inline]
    pub(super) fn kept(&self) -> &Kept<Message, u32, Call> {
        &self.kept
    }

    pub(super) fn kept_mut(&mut self) -> &mut Kept<Message, u32, Call> {
        &mut self.kept
    }

    #[inline]
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.kept.socket()
    }

    #[inline(always)]
    pub(super) fn push(&mut self, message: Message, destination: u32) -> Ticket {
        self.kept.messages.push(message, destination)
    }

    /// Messages that were not handed over.
    #[inline]
    pub(super) fn queued(&self) -> usize {
        (self.kept.messages.end() - self.next.ticket) as usize
    }

    /// Whether all of a message was.
    #[cfg(feature = "tokio")]
    pub(super) fn is_handed_over(&self, ticket: Ticket) -> bool {
        ticket.0 < self.next.ticket
    }

    /// Calls whose memory the kernel still reads.
    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.kept.in_flight()
    }

    /// The datagrams at the front of the queue that are alike.
    #[inline]
    pub(super) fn run(&self) -> Option<Run> {
        let end = self.kept.messages.end();
        if self.next.ticket == end {
            return None;
        }
        let first = self.kept.messages.get(self.next.ticket);
        let message = self.message(self.next.ticket);
        let datagram_bytes = message.datagram_bytes();
        let mut run = Run {
            destination: first.to,
            datagram_bytes,
            datagrams: message.datagrams() - self.next.bytes.checked_div(datagram_bytes).unwrap_or(0),
            end: self.next.ticket + 1,
        };
        while run.end < end {
            let message = self.message(run.end);
            if self.kept.messages.get(run.end).to != run.destination
                || message.datagram_bytes() != datagram_bytes
            {
                break;
            }
            run.datagrams += message.datagrams();
            run.end += 1;
        }
        Some(run)
    }

    /// Whether a part of the run is still queued.
    #[inline]
    pub(super) fn has(&self, run: &Run) -> bool {
        self.next.ticket < run.end
    }

    /// The bytes of the next datagram, if they are a message of their own and in one piece.
    #[inline]
    pub(super) fn next_in_one_piece(&self) -> Option<&[u8]> {
        self.message(self.next.ticket).single()
    }

    /// The bytes of the only message, and whom it is for, if it is one datagram in one piece and was not handed over.
    #[inline(always)]
    pub(super) fn only(&self) -> Option<(&[u8], u32)> {
        let held = self.kept.messages.only().filter(|_| self.queued() == 1)?;
        Some((held.message.as_ref()?.single()?, held.to))
    }

    /// Takes the buffer of the only message, which was sent by an ordinary call.
    #[inline(always)]
    pub(super) fn pop_only(&mut self) -> (Ticket, Option<Buffer>) {
        let ticket = self.next.ticket;
        self.next.ticket += 1;
        (Ticket(ticket), self.kept.messages.pop(Message::pop_buffer).flatten())
    }

    /// Takes the next message out of the queue if it is one frame, which no call reads.
    pub(super) fn take_frame(&mut self) -> Option<Frame> {
        if self.kept.messages.is_read(self.next.ticket) {
            return None;
        }
        let message = self.kept.messages.message_mut(self.next.ticket);
        let is_frame = message.as_ref().and_then(Message::single_buffer).is_some_and(Buffer::is_frame);
        let buffer = message.take_if(|_| is_frame)?.into_pieces().next()?;
        buffer.into_frame().ok()
    }

    /// The frame just taken was not sent.
    pub(super) fn put_frame_back(&mut self, frame: Frame) {
        *self.kept.messages.message_mut(self.next.ticket) = Some(Buffer::from(frame).into());
    }

    /// The frame just taken was sent, and finds its way home by itself.
    pub(super) fn pass_frame(&mut self) {
        let ticket = self.next.ticket;
        self.next = Place { ticket: ticket + 1, bytes: 0 };
        self.kept.messages.handed_over(ticket, None, &mut |_, _, _| {});
    }

    /// The pieces of the next datagram.
    pub(super) fn next_pieces(&self) -> SmallVec<[&[u8]; 4]> {
        let mark = self.measure_one(self.next);
        pieces_of(self.message(self.next.ticket), self.next.ticket, mark).collect()
    }

    /// Goes on behind the next datagram, of which `evidence` is known.
    #[inline]
    pub(super) fn pass(
        &mut self,
        evidence: Option<Evidence>,
        free: &mut impl FnMut(Ticket, Message, Evidence),
    ) {
        let mark = self.measure_one(self.next);
        self.pass_to(mark, evidence, free);
    }

    #[inline]
    fn pass_to(
        &mut self,
        mark: Mark,
        evidence: Option<Evidence>,
        free: &mut impl FnMut(Ticket, Message, Evidence),
    ) {
        self.next = mark.to;
        for ticket in mark.from.ticket..mark.to.ticket {
            self.kept.messages.handed_over(ticket, evidence, free);
        }
        if mark.to.bytes > 0
            && let Some(evidence) = evidence
        {
            self.kept.messages.learn(mark.to.ticket, evidence);
        }
    }

    /// Sends as many datagrams of the run as go into one call.
    ///
    /// # Errors
    /// The kernel's, of the first datagram: nothing was handed over.
    ///
    /// Of a zero-copy call, as long as it [is unsure](Self::is_unsure) how the kernel counts: `EINTR`, read completions and try again;
    /// then `ENOBUFS`, there is no memory to find out.
    pub(super) fn send(
        &mut self,
        run: &Run,
        how: How,
        destinations: &Destinations,
        free: &mut impl FnMut(Ticket, Message, Evidence),
    ) -> io::Result<Taken> {
        let is_zero_copy = how.evidence.is_none();
        if is_zero_copy {
            self.kept.check_process()?;
            self.kept.check_numbering()?;
        }
        if is_zero_copy && self.is_unsure() {
            return Err(self.try_again(destinations.get(run.destination).address.as_ref(), how.flags));
        }
        self.fill_burst(how.method, run, destinations);
        if self.marks.is_empty() {
            // In more pieces than the kernel takes (`UIO_MAXIOV`).
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let flags = if is_zero_copy { how.flags | libc::MSG_ZEROCOPY } else { how.flags };
        // SAFETY: the pieces were just put together from messages that `self.kept.messages` holds; those of zero-copy calls are
        // held until `self.kept.calls` has seen the completion, or the reaper has, or they were abandoned for good.
        let sent = unsafe { self.burst.send(self.kept.socket.as_fd(), 0, flags) };
        let count = *sent.as_ref().unwrap_or(&0);
        if is_zero_copy && count < self.marks.len() {
            let address = destinations.get(run.destination).address.as_ref();
            self.fell_short(call(self.marks[count], run, how), sent.as_ref().err(), address, how.flags);
        }
        let sent = sent?;
        let mut taken = Taken::default();
        for number in 0..sent.min(self.marks.len()) {
            let mark = self.marks[number];
            taken.datagrams += u64::from(mark.datagrams);
            taken.bytes += u64::from(mark.bytes);
            if is_zero_copy {
                taken.calls += 1;
                self.kept.messages.called(mark.from.ticket..=mark.last);
                self.kept.calls.push(call(mark, run, how));
            }
            self.pass_to(mark, how.evidence, free);
        }
        Ok(taken)
    }

    /// A zero-copy call failed; `error` is its own, unless others of its burst were taken.
    #[cold]
    #[inline(never)]
    fn fell_short(&mut self, failed: Call, error: Option<&io::Error>, to: Option<&Address>, flags: i32) {
        let errno = error.and_then(io::Error::raw_os_error);
        if errno.is_some_and(|errno| [libc::EAGAIN, libc::EINTR].contains(&errno)) {
            return; // it waited, or would have, for room to make the packet in
        }
        let failed = Call { datagrams: 0, bytes: 0, since: None, ..failed };
        let again = self.burst.count_one(self.kept.socket.as_fd(), to, flags).raw_os_error();
        // Of memory there may be enough for one and not for the other.
        let is_of_memory = |errno| [libc::ENOBUFS, libc::ENOMEM, libc::EAGAIN].contains(&errno);
        let is_uncounted = errno.is_some_and(|errno| again == Some(errno) && !is_of_memory(errno));
        self.kept.doubt(failed, is_uncounted);
    }

    /// Has the kernel tell how it counts, before the next zero-copy call.
    #[cold]
    #[inline(never)]
    fn try_again(&mut self, to: Option<&Address>, flags: i32) -> io::Error {
        let error = self.burst.count_one(self.kept.socket.as_fd(), to, flags);
        let is_tried =
            self.kept.doubt.as_mut().is_none_or(|doubt| std::mem::replace(&mut doubt.is_tried, true));
        match error.kind() {
            io::ErrorKind::WouldBlock => error,
            _ if is_tried => io::Error::from_raw_os_error(libc::ENOBUFS),
            _ => io::ErrorKind::Interrupted.into(),
        }
    }

    /// Makes the ring, with the pool's memory registered, unless it is there.
    pub(super) fn open_ring(&mut self, pool: &Pool) -> Result<(), UringRefused> {
        if self.kept.ring.is_none() {
            self.kept.open_ring(pool, RING_SENDS)?;
            self.send_buffer_bytes = udp_send::send_buffer_bytes(&self.kept.socket).unwrap_or(0);
        }
        Ok(())
    }

    /// How much of the send buffer the ring may fill, so that no send waits in the kernel and is overtaken; `None` while one does.
    fn ring_room(&self) -> io::Result<Option<usize>> {
        if self.kept.ring.as_ref().is_none_or(|ring| ring.sender.is_undecided()) {
            return Ok(None);
        }
        let unsent_bytes = udp_send::unsent_bytes(&self.kept.socket)?;
        Ok(Some(self.send_buffer_bytes.saturating_sub(unsent_bytes)))
    }

    /// Hands datagrams of the run to the ring, as many as there is room for, by one call.
    ///
    /// # Errors
    /// The kernel took nothing.
    pub(super) fn send_by_ring(
        &mut self,
        run: &Run,
        how: How,
        destinations: &Destinations,
        free: &mut impl FnMut(Ticket, Message, Evidence),
    ) -> io::Result<Taken> {
        self.kept.check_process()?;
        let address = destinations.get(run.destination).address.as_ref();
        let mut taken = Taken::default();
        let Some(mut room) = self.ring_room()? else { return Ok(taken) };
        while self.has(run) {
            let mark = self.measure(how.method, self.next, run);
            let needed = mark.bytes as usize + BESIDE_BYTES;
            if room < needed && taken.calls + self.in_flight() as u64 > 0 {
                break; // in the kernel it would be overtaken by the next
            }
            room = room.saturating_sub(needed);
            let segment_bytes = (mark.datagrams > 1).then_some(run.datagram_bytes as u16);
            let Kept { messages, ring, .. } = &mut self.kept;
            let Some(Ring { sender, calls, .. }) = ring else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            let pieces = (mark.from.ticket..=mark.last)
                .flat_map(|ticket| pieces_of(queued(messages, ticket), ticket, mark));
            // SAFETY: the messages are held until `calls` has seen the completion, or the reaper has, or they were abandoned for good.
            if unsafe { sender.queue(calls.end(), pieces, address, segment_bytes) }.is_err() {
                break; // the ring is full
            }
            messages.called(mark.from.ticket..=mark.last);
            calls.push(call(mark, run, how));
            taken.datagrams += u64::from(mark.datagrams);
            taken.bytes += u64::from(mark.bytes);
            taken.calls += 1;
            self.pass_to(mark, None, free);
        }
        match &mut self.kept.ring {
            // What was not taken now is with the next call.
            Some(ring) if taken.calls == 0 => ring.sender.submit().map(|()| taken),
            Some(ring) => {
                // An error is not of these datagrams: they are in the ring, and go with the next call, or when completions are read.
                let _ = ring.sender.submit();
                Ok(taken)
            }
            None => Ok(taken),
        }
    }

    /// Whether calls by the ring were refused.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.kept.ring.as_ref().is_some_and(|ring| !ring.failed.is_empty())
    }

    /// Sends what the kernel refused by the ring once more, by ordinary calls. Returns the call, why it was refused, and what came of it.
    pub(super) fn send_again(
        &mut self,
        evidence: Evidence,
        destinations: &Destinations,
        free: &mut impl FnMut(Ticket, Message, Evidence),
    ) -> Option<(Call, io::Error, Resent)> {
        let (call, error) = self.kept.ring.as_mut()?.failed.pop()?;
        let mut place = Place { ticket: call.first, bytes: call.first_byte as usize };
        let mut resent = Resent::default();
        for _ in 0..call.datagrams {
            let mark = self.measure_one(place);
            match self.send_mark_again(mark, destinations.get(call.destination).address.as_ref()) {
                Ok(()) => {
                    resent.datagrams += 1;
                    resent.bytes += u64::from(mark.bytes);
                }
                Err(error) => {
                    resent.refused += 1;
                    resent.error.get_or_insert(error);
                }
            }
            place = mark.to;
        }
        self.kept.messages.returned(call.reads(), Some(evidence), free);
        Some((call, error, resent))
    }

    /// An error that an earlier datagram left at the socket is told by one call, and gone with it.
    fn send_mark_again(&mut self, mark: Mark, to: Option<&Address>) -> io::Result<()> {
        self.burst.clear();
        if !self.burst.has_room(self.message(mark.from.ticket).pieces().len()) {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        self.burst.begin(to, 0);
        self.add_pieces(mark);
        let mut sent = Ok(0);
        for _ in 0..ATTEMPTS {
            // SAFETY: the pieces lie in messages that are held; the call is an ordinary one.
            sent = unsafe { self.burst.send(self.kept.socket.as_fd(), 0, 0) };
            if sent.is_ok() {
                break;
            }
        }
        sent.map(drop)
    }

    /// Puts datagrams of the run together, from the front of the queue on.
    fn fill_burst(&mut self, method: Method, run: &Run, destinations: &Destinations) {
        self.burst.clear();
        self.marks.clear();
        let address = destinations.get(run.destination).address.as_ref();
        let messages_max = if method == Method::Socket { 1 } else { udp_send::MESSAGES_MAX };
        let mut place = self.next;
        while place.ticket < run.end && self.burst.messages() < messages_max {
            let mark = self.measure(method, place, run);
            let pieces: usize =
                (mark.from.ticket..=mark.last).map(|ticket| self.message(ticket).pieces().len()).sum();
            if !self.burst.has_room(pieces) {
                break;
            }
            self.burst.begin(address, if mark.datagrams > 1 { run.datagram_bytes as u16 } else { 0 });
            self.add_pieces(mark);
            self.marks.push(mark);
            place = mark.to;
        }
    }

    /// What goes into one message of the method.
    #[inline]
    fn measure(&self, method: Method, from: Place, run: &Run) -> Mark {
        if method.is_segmented() { self.measure_long(method, from, run) } else { self.measure_one(from) }
    }

    /// One datagram.
    #[inline]
    fn measure_one(&self, from: Place) -> Mark {
        let message = self.message(from.ticket);
        let bytes = message.datagram_bytes().min(message.bytes() - from.bytes);
        Mark { from, to: behind(from, bytes, message), last: from.ticket, datagrams: 1, bytes: bytes as u32 }
    }

    /// As many datagrams as the kernel cuts one message into: of one buffer that holds many, or of messages of one each.
    fn measure_long(&self, method: Method, from: Place, run: &Run) -> Mark {
        let limit = udp_send::SEGMENTS_MAX.min(DATAGRAM_BYTES_MAX / run.datagram_bytes.max(1)).max(1);
        let message = self.message(from.ticket);
        if message.datagrams() > 1 {
            let bytes = (limit * run.datagram_bytes).min(message.bytes() - from.bytes);
            let datagrams = bytes.div_ceil(run.datagram_bytes) as u32;
            let to = behind(from, bytes, message);
            return Mark { from, to, last: from.ticket, datagrams, bytes: bytes as u32 };
        }
        let mut mark = self.measure_one(from);
        let mut pages = pages_of(message);
        let mut pieces = message.pieces().len();
        while mark.to.ticket < run.end && (mark.datagrams as usize) < limit {
            let message = self.message(mark.to.ticket);
            pages += pages_of(message);
            pieces += message.pieces().len();
            let too_scattered = (method.is_zero_copy() && pages > PAGES_MAX) || pieces > udp_send::PIECES_MAX;
            if message.datagrams() > 1 || too_scattered || message.bytes() == 0 {
                break;
            }
            mark.last = mark.to.ticket;
            mark.to.ticket += 1;
            mark.datagrams += 1;
            mark.bytes += message.bytes() as u32;
        }
        mark
    }

    fn add_pieces(&mut self, mark: Mark) {
        for ticket in mark.from.ticket..=mark.last {
            let message = queued(&self.kept.messages, ticket);
            pieces_of(message, ticket, mark).for_each(|piece| self.burst.piece(piece));
        }
    }

    #[inline]
    fn message(&self, ticket: u64) -> &Message {
        queued(&self.kept.messages, ticket)
    }

    /// Gives up what the kernel still reads, and returns how many calls those were, and the bytes that are lost to the program.
    pub(super) fn abandon(mut self) -> (usize, usize) {
        let kept = self.take();
        (kept.in_flight(), Box::new(kept).abandon())
    }

    fn take(&mut self) -> Kept<Message, u32, Call> {
        self.kept.take()
    }
}

/// The pieces of a message that a mark is of.
#[inline]
fn pieces_of(message: &Message, ticket: u64, mark: Mark) -> impl Iterator<Item = &[u8]> {
    let (first, bytes) =
        if ticket == mark.from.ticket { (mark.from.bytes, mark.bytes as usize) } else { (0, usize::MAX) };
    message.pieces().iter().map(move |piece| match message.pieces() {
        [one] => &one[first..first.saturating_add(bytes).min(one.len())],
        _ => piece,
    })
}

fn call(mark: Mark, run: &Run, how: How) -> Call {
    Call {
        first: mark.from.ticket,
        first_byte: mark.from.bytes as u32,
        last: mark.last,
        datagrams: mark.datagrams,
        datagram_bytes: run.datagram_bytes as u32,
        bytes: mark.bytes,
        destination: run.destination,
        method: how.method,
        since: how.since,
    }
}

/// What is queued has its message.
#[inline]
fn queued(messages: &Messages<Message, u32>, ticket: u64) -> &Message {
    messages.get(ticket).message.as_ref().expect("a message that is queued is held")
}

#[inline]
fn behind(from: Place, bytes: usize, message: &Message) -> Place {
    let next = from.bytes + bytes;
    if next >= message.bytes() {
        Place { ticket: from.ticket + 1, bytes: 0 }
    } else {
        Place { bytes: next, ..from }
    }
}

/// How many pages it lies on.
fn pages_of(message: &Message) -> usize {
    let of = |piece: &Buffer| match piece.len() {
        0 => 0,
        bytes => (piece.as_ptr() as usize % PAGE_BYTES + bytes).div_ceil(PAGE_BYTES),
    };
    message.pieces().iter().map(of).sum()
}

impl Drop for Outbox {
    /// What is queued is not sent. What the kernel still reads stays where it is until it has done.
    fn drop(&mut self) {
        self.kept.leave();
    }
}

#[cfg(test)]
mod tests;
