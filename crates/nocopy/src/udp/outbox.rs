//! The queue of a sender, cut into calls of as many datagrams as the method allows.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Method;
use super::call::Call;
use super::destinations::Destinations;
use super::message::{DATAGRAM_BYTES_MAX, Message};
use smallvec::SmallVec;

use crate::engine::path::Paths;
use crate::engine::reaper::{self, Parting};
use crate::engine::sending::{Place, Sending};
use crate::facts::evidence::Evidence;
use crate::memory::area::{Chain, Frame};
use crate::memory::in_flight::kernel_socket::KernelSocket;
use crate::memory::in_flight::{Burst, Filling, Messages, Span};
use crate::memory::pool::{Buffer, Cache};
use crate::sys::udp_send::{self, Address};
use crate::sys::uring_send::UringRefused;

/// The most pages of a message from the program's memory (`MAX_SKB_FRAGS` of `linux/skbuff.h`).
const PAGES_MAX: usize = 17;
const PAGE_BYTES: usize = 4096;

const RING_SENDS: u32 = 128;

/// The most bytes of the send buffer that a message needs in addition to its own: its buffer's head, and parts of two pages.
const BESIDE_BYTES: usize = 12 << 10;

/// How long the kernel may need for a dropped socket: longer than resolving a neighbour takes (3 s, arp(7)), or a queue stalls.
const PARTING: Parting = Parting { patience: Duration::from_secs(10), cut_off: None };

/// How often to try a datagram that the ring refused.
const ATTEMPTS: usize = 4;

/// The content of one message of a burst.
#[derive(Debug, Clone, Copy)]
struct Mark {
    from: Place,
    to: Place,
    last: u64,
    datagrams: u32,
    bytes: u32,
}

impl Mark {
    /// The content's bytes: a part of one buffer with several datagrams, or whole messages.
    #[inline]
    fn span(self) -> Span {
        Span { first: self.from.ticket, last: self.last, at: self.from.bytes, bytes: self.bytes as usize }
    }
}

/// The messages that are held, with the numbers of their destinations.
type Held = Messages<Message, u32>;

/// Equal datagrams at the front of the queue, for one destination.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) destination: u32,
    pub(super) datagram_bytes: usize,
    pub(super) datagrams: usize,
    /// The position after the last message.
    end: u64,
}

#[cfg(test)]
impl Run {
    pub(super) fn of(destination: u32, datagram_bytes: usize, datagrams: usize) -> Self {
        Self { destination, datagram_bytes, datagrams, end: 0 }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    /// Zero-copy calls, which will have completions.
    pub(super) calls: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(super) method: Method,
    pub(super) flags: i32,
    /// The evidence known at once; `None`: the completion will report it.
    pub(super) evidence: Option<Evidence>,
    /// Start of the policy's measurement, if there is one.
    pub(super) since: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) sending: Sending<Message, u32, Call>,
    /// The socket's send buffer, for a ring, whose sends must not wait in the kernel.
    send_buffer_bytes: usize,
    burst: Burst<Call>,
    marks: Vec<Mark>,
}

/// The result of a second attempt by ordinary calls.
#[derive(Debug, Default)]
pub(super) struct Resent {
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    /// The error of each datagram that was refused again.
    pub(super) refused: Vec<io::Error>,
    pub(super) refused_bytes: u64,
}

impl Outbox {
    pub(super) fn new(socket: Arc<KernelSocket>, cache: Cache, paths: Paths, return_buffers: bool) -> Self {
        Self {
            sending: Sending::new(socket, cache, paths, return_buffers),
            send_buffer_bytes: 0,
            burst: Burst::new(),
            marks: Vec::with_capacity(udp_send::MESSAGES_MAX),
        }
    }

    /// The equal datagrams at the front of the queue.
    #[inline]
    pub(super) fn run(&self) -> Option<Run> {
        let end = self.sending.messages().end();
        if self.sending.next().ticket == end {
            return None;
        }
        let first = self.sending.messages().get(self.sending.next().ticket);
        let message = self.message(self.sending.next().ticket);
        let datagram_bytes = message.datagram_bytes();
        let mut run = Run {
            destination: first.to,
            datagram_bytes,
            datagrams: message.datagrams()
                - self.sending.next().bytes.checked_div(datagram_bytes).unwrap_or(0),
            end: self.sending.next().ticket + 1,
        };
        while run.end < end {
            let message = self.message(run.end);
            if self.sending.messages().get(run.end).to != run.destination
                || message.datagram_bytes() != datagram_bytes
            {
                break;
            }
            run.datagrams += message.datagrams();
            run.end += 1;
        }
        Some(run)
    }

    #[inline]
    pub(super) fn has(&self, run: &Run) -> bool {
        self.sending.next().ticket < run.end
    }

    /// The bytes of the next datagram, if they are a whole message in one piece.
    #[inline]
    pub(super) fn next_in_one_piece(&self) -> Option<&[u8]> {
        self.message(self.sending.next().ticket).single()
    }

    /// The bytes of the only message, and its destination, if it is one datagram in one piece and was not handed over.
    #[inline(always)]
    pub(super) fn only(&self) -> Option<(&[u8], u32)> {
        let held = self.sending.messages().only().filter(|_| self.sending.queued() == 1)?;
        Some((held.message.as_ref()?.single()?, held.to))
    }

    /// Removes the only message, which was sent by an ordinary call.
    #[inline(always)]
    pub(super) fn pop_only(&mut self, evidence: Evidence) {
        self.sending.pop_only(Message::pop_buffer, evidence);
    }

    /// Removes the next message if it is one frame that no call reads.
    pub(super) fn take_frame(&mut self) -> Option<Frame> {
        if self.sending.messages().is_read(self.sending.next().ticket) {
            return None;
        }
        let (message, _) = self.sending.unread_mut();
        let is_frame = message.as_ref().and_then(Message::single_buffer).is_some_and(Buffer::is_frame);
        let buffer = message.take_if(|_| is_frame)?.into_iter().next()?;
        Frame::try_from(buffer).ok()
    }

    /// Removes the next message if it is several frames that no call reads.
    pub(super) fn take_chain(&mut self) -> Option<Chain<Frame>> {
        if self.sending.messages().is_read(self.sending.next().ticket) {
            return None;
        }
        let (message, _) = self.sending.unread_mut();
        let is_chain = |message: &mut Message| {
            message.pieces().len() > 1 && message.pieces().iter().all(Buffer::is_frame)
        };
        let pieces = message.take_if(is_chain)?.into_iter();
        Some(pieces.map(|piece| Frame::try_from(piece).expect("looked at above")).collect())
    }

    /// Puts back frames that were just removed and not sent.
    pub(super) fn put_chain_back(&mut self, chain: Chain<Frame>) {
        *self.sending.unread_mut().0 = Some(Message::from_iter(chain.into_iter().map(Buffer::from)));
    }

    /// Puts back a frame that was just removed and not sent.
    pub(super) fn put_frame_back(&mut self, frame: Frame) {
        *self.sending.unread_mut().0 = Some(Buffer::from(frame).into());
    }

    /// Advances past frames that were just removed and sent; they return to their pool by themselves.
    pub(super) fn pass_frame(&mut self) {
        let ticket = self.sending.next().ticket + 1;
        self.sending.pass_to(Place { ticket, bytes: 0 }, None);
    }

    pub(super) fn next_bytes(&self) -> usize {
        self.measure_one(self.sending.next()).bytes as usize
    }

    pub(super) fn next_pieces(&self) -> SmallVec<[&[u8]; 4]> {
        let mark = self.measure_one(self.sending.next());
        mark.span().pieces(self.sending.messages()).collect()
    }

    /// Advances past the next datagram, with its evidence.
    #[inline]
    pub(super) fn pass(&mut self, evidence: Option<Evidence>) {
        let mark = self.measure_one(self.sending.next());
        self.sending.pass_to(mark.to, evidence);
    }

    /// Sends as many datagrams of the run as fit into one call.
    ///
    /// # Errors
    /// The kernel's, of the first datagram: nothing was handed over.
    ///
    /// With a zero-copy call also the errors of [`Filling::send_zero_copy`].
    pub(super) fn send(&mut self, run: &Run, how: How, destinations: &Destinations) -> io::Result<Taken> {
        let is_zero_copy = how.evidence.is_none();
        let address = destinations.get(run.destination).address.as_ref();
        let filling = fill(&mut self.sending, &mut self.burst, &mut self.marks, run, how, address);
        if self.marks.is_empty() {
            // In more pieces than the kernel allows (`UIO_MAXIOV`).
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let sent = match is_zero_copy {
            true => filling.send_zero_copy(how.flags)?,
            false => filling.send_copied(how.flags)?,
        };
        let mut taken = Taken::default();
        for number in 0..sent.min(self.marks.len()) {
            let mark = self.marks[number];
            taken.datagrams += u64::from(mark.datagrams);
            taken.bytes += u64::from(mark.bytes);
            taken.calls += u64::from(is_zero_copy);
            self.sending.pass_to(mark.to, how.evidence);
        }
        Ok(taken)
    }

    /// Makes the ring, with the pool's memory registered, if there is none.
    pub(super) fn open_ring(&mut self) -> Result<(), UringRefused> {
        if self.sending.open_ring(RING_SENDS)? {
            self.send_buffer_bytes = udp_send::send_buffer_bytes(&self.sending.socket()).unwrap_or(0);
        }
        Ok(())
    }

    /// How much of the send buffer the ring may fill, so that no send waits in the kernel and is overtaken; `None` while a send waits.
    fn ring_room(&self) -> io::Result<Option<usize>> {
        if !self.sending.kept().is_ring_decided() {
            return Ok(None);
        }
        let unsent_bytes = udp_send::unsent_bytes(&self.sending.socket())?;
        Ok(Some(self.send_buffer_bytes.saturating_sub(unsent_bytes)))
    }

    /// Passes datagrams of the run to the ring, as many as there is room for, by one call.
    pub(super) fn send_by_ring(
        &mut self,
        run: &Run,
        how: How,
        destinations: &Destinations,
    ) -> io::Result<Taken> {
        self.sending.kept().check_process()?;
        let address = destinations.get(run.destination).address.as_ref();
        let mut taken = Taken::default();
        let Some(mut room) = self.ring_room()? else { return Ok(taken) };
        while self.has(run) {
            let mark = measure(self.sending.messages(), how.method, self.sending.next(), run);
            let needed = mark.bytes as usize + BESIDE_BYTES;
            if room < needed && taken.calls + self.sending.in_flight() as u64 > 0 {
                break; // in the kernel it would be overtaken by the next
            }
            room = room.saturating_sub(needed);
            let segment_bytes = (mark.datagrams > 1).then_some(run.datagram_bytes as u16);
            if self
                .sending
                .kept_mut()
                .queue_by_ring(mark.span(), address, segment_bytes, call(mark, run, how))
                .is_err()
            {
                break; // the ring is full
            }
            taken.datagrams += u64::from(mark.datagrams);
            taken.bytes += u64::from(mark.bytes);
            taken.calls += 1;
            self.sending.pass_to(mark.to, None);
        }
        let submitted = self.sending.kept_mut().submit();
        // If the ring holds something, an error does not concern it: it is submitted with the next call, or when completions are read.
        if taken.calls == 0 { submitted.map(|()| taken) } else { Ok(taken) }
    }

    /// Sends a datagram again by ordinary calls that the kernel refused by the ring. Returns the call, why it was refused, and the result.
    pub(super) fn send_again(
        &mut self,
        evidence: Evidence,
        destinations: &Destinations,
    ) -> Option<(Call, io::Error, Resent)> {
        let (first, &call) = self.sending.kept().failed()?;
        let mut place = Place { ticket: first, bytes: call.first_byte as usize };
        let mut resent = Resent::default();
        for _ in 0..call.datagrams {
            let mark = self.measure_one(place);
            match self.send_mark_again(mark, call, destinations.get(call.destination).address.as_ref()) {
                Ok(()) => {
                    resent.datagrams += 1;
                    resent.bytes += u64::from(mark.bytes);
                }
                Err(error) => {
                    resent.refused.push(error);
                    resent.refused_bytes += u64::from(mark.bytes);
                }
            }
            place = mark.to;
        }
        let error = self.sending.settle_failed(evidence)?;
        Some((call, error, resent))
    }

    /// An error that an earlier datagram left at the socket is returned by one call, which clears it.
    fn send_mark_again(&mut self, mark: Mark, call: Call, to: Option<&Address>) -> io::Result<()> {
        let mut sent = Ok(0);
        for _ in 0..ATTEMPTS {
            let mut filling = self.sending.kept_mut().fill(&mut self.burst, to);
            if !filling.has_room(queued(filling.messages(), mark.from.ticket).pieces().len()) {
                return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
            }
            filling.add(mark.span(), 0, call);
            sent = filling.send_copied(0);
            if sent.is_ok() {
                break;
            }
        }
        sent.map(drop)
    }

    #[inline]
    fn message(&self, ticket: u64) -> &Message {
        queued(self.sending.messages(), ticket)
    }

    #[inline]
    fn measure_one(&self, from: Place) -> Mark {
        measure_one(self.sending.messages(), from)
    }

    /// Gives up memory that the kernel still reads, and returns for how many calls, and how many bytes the program cannot use again.
    pub(super) fn abandon(&mut self) -> (usize, usize) {
        drop(self.sending.take_unsent());
        let kept = self.sending.kept_mut().take();
        (kept.in_flight(), kept.abandon())
    }
}

/// Collects datagrams of the run for a call, from the front of the queue; their description is put into `marks`.
fn fill<'a>(
    sending: &'a mut Sending<Message, u32, Call>,
    burst: &'a mut Burst<Call>,
    marks: &mut Vec<Mark>,
    run: &Run,
    how: How,
    address: Option<&'a Address>,
) -> Filling<'a, Message, u32, Call> {
    marks.clear();
    let next = sending.next();
    let mut filling = sending.kept_mut().fill(burst, address);
    let messages_max = if how.method == Method::Socket { 1 } else { udp_send::MESSAGES_MAX };
    let mut place = next;
    while place.ticket < run.end && marks.len() < messages_max {
        let messages = filling.messages();
        let mark = measure(messages, how.method, place, run);
        let pieces: usize =
            (mark.from.ticket..=mark.last).map(|ticket| queued(messages, ticket).pieces().len()).sum();
        if !filling.has_room(pieces) {
            break;
        }
        let segment_bytes = if mark.datagrams > 1 { run.datagram_bytes as u16 } else { 0 };
        filling.add(mark.span(), segment_bytes, call(mark, run, how));
        marks.push(mark);
        place = mark.to;
    }
    filling
}

#[inline]
fn measure(messages: &Held, method: Method, from: Place, run: &Run) -> Mark {
    if method.is_segmented() {
        measure_long(messages, method, from, run)
    } else {
        measure_one(messages, from)
    }
}

#[inline]
fn measure_one(messages: &Held, from: Place) -> Mark {
    let message = queued(messages, from.ticket);
    let bytes = message.datagram_bytes().min(message.bytes() - from.bytes);
    Mark { from, to: behind(from, bytes, message), last: from.ticket, datagrams: 1, bytes: bytes as u32 }
}

/// As many datagrams as the kernel cuts from one long message: those of one buffer with several, or messages of one datagram each.
fn measure_long(messages: &Held, method: Method, from: Place, run: &Run) -> Mark {
    let limit = udp_send::SEGMENTS_MAX.min(DATAGRAM_BYTES_MAX / run.datagram_bytes.max(1)).max(1);
    let message = queued(messages, from.ticket);
    if message.datagrams() > 1 {
        let bytes = (limit * run.datagram_bytes).min(message.bytes() - from.bytes);
        let datagrams = bytes.div_ceil(run.datagram_bytes) as u32;
        let to = behind(from, bytes, message);
        return Mark { from, to, last: from.ticket, datagrams, bytes: bytes as u32 };
    }
    let mut mark = measure_one(messages, from);
    let mut pages = pages_of(message);
    let mut pieces = message.pieces().len();
    while mark.to.ticket < run.end && (mark.datagrams as usize) < limit {
        let message = queued(messages, mark.to.ticket);
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

fn call(mark: Mark, run: &Run, how: How) -> Call {
    Call {
        first_byte: mark.from.bytes as u32,
        datagrams: mark.datagrams,
        datagram_bytes: run.datagram_bytes as u32,
        destination: run.destination,
        method: how.method,
        since: how.since,
    }
}

#[inline]
fn queued(messages: &Held, ticket: u64) -> &Message {
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

fn pages_of(message: &Message) -> usize {
    let of = |piece: &Buffer| match piece.len() {
        0 => 0,
        bytes => (piece.as_ptr() as usize % PAGE_BYTES + bytes).div_ceil(PAGE_BYTES),
    };
    message.pieces().iter().map(of).sum()
}

impl Drop for Outbox {
    /// Queued messages are not sent. Memory is kept while the kernel still reads it.
    fn drop(&mut self) {
        reaper::leave(self.sending.kept_mut(), PARTING);
    }
}
