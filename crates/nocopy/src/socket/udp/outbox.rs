//! What is queued, and what the kernel still reads.
//!
//! A message is held from `push` until all of it was handed over and every zero-copy call that reads it is over. The kernel's word
//! for that is checked: a completion of a call that was never made, or is over, frees nothing.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use super::destinations::Destinations;
use super::in_flight::{Call, Calls, Messages, Ticket};
use super::message::{DATAGRAM_BYTES_MAX, Message};
use super::{Method, reaper};
use crate::evidence::Evidence;
use crate::pool::Buffer;
use crate::sys::udp_send::{self, Burst};

/// How many pages a message from the program's memory may lie on (`MAX_SKB_FRAGS` of `linux/skbuff.h`).
const PAGES_MAX: usize = 17;
const PAGE_BYTES: usize = 4096;

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
    socket: Arc<OwnedFd>,
    messages: Messages,
    /// What goes next: the first message that was not handed over whole, and how many of its bytes were.
    next: Place,
    calls: Calls,
    burst: Burst,
    marks: Vec<Mark>,
    /// A zero-copy call failed, and the kernel may have counted it. It does if it had made the packet before it found that it cannot
    /// send it (`udp_send_skb`): then it has told of its completion, too, before the call returned.
    is_unsure: bool,
}

impl Outbox {
    pub(super) fn new(socket: Arc<OwnedFd>) -> Self {
        Self {
            socket,
            messages: Messages::default(),
            next: Place { ticket: 0, bytes: 0 },
            calls: Calls::default(),
            burst: Burst::new(),
            marks: Vec::with_capacity(udp_send::MESSAGES_MAX),
            is_unsure: false,
        }
    }

    /// Whether completions are to be read before the next zero-copy call, or its number would be another than the kernel's.
    #[inline]
    pub(super) fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// They were: if the call had been counted, [`done`](Self::done) has seen it.
    pub(super) fn is_sure(&mut self) {
        self.is_unsure = false;
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    #[inline]
    pub(super) fn push(&mut self, message: Message, destination: u32) -> Ticket {
        self.messages.push(message, destination)
    }

    /// Messages that were not handed over.
    #[inline]
    pub(super) fn queued(&self) -> usize {
        (self.messages.end() - self.next.ticket) as usize
    }

    /// Whether all of a message was.
    #[cfg(feature = "tokio")]
    pub(super) fn is_handed_over(&self, ticket: Ticket) -> bool {
        ticket.0 < self.next.ticket
    }

    /// Calls whose memory the kernel still reads.
    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.calls.open()
    }

    /// The datagrams at the front of the queue that are alike.
    #[inline]
    pub(super) fn run(&self) -> Option<Run> {
        let end = self.messages.end();
        if self.next.ticket == end {
            return None;
        }
        let first = self.messages.get(self.next.ticket);
        let message = self.message(self.next.ticket);
        let datagram_bytes = message.datagram_bytes();
        let mut run = Run {
            destination: first.destination,
            datagram_bytes,
            datagrams: message.datagrams() - self.next.bytes.checked_div(datagram_bytes).unwrap_or(0),
            end: self.next.ticket + 1,
        };
        while run.end < end {
            let message = self.message(run.end);
            if self.messages.get(run.end).destination != run.destination
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
            self.messages.handed_over(ticket, evidence, free);
        }
        if mark.to.bytes > 0
            && let Some(evidence) = evidence
        {
            self.messages.learn(mark.to.ticket, evidence);
        }
    }

    /// Sends as many datagrams of the run as go into one call.
    ///
    /// # Errors
    /// The kernel's, of the first datagram: nothing was handed over.
    ///
    /// # Panics
    /// If it [is unsure](Self::is_unsure) how the kernel counts.
    pub(super) fn send(
        &mut self,
        run: &Run,
        how: How,
        destinations: &Destinations,
        free: &mut impl FnMut(Ticket, Message, Evidence),
    ) -> io::Result<Taken> {
        self.fill_burst(how.method, run, destinations);
        let is_zero_copy = how.evidence.is_none();
        let flags = if is_zero_copy { how.flags | libc::MSG_ZEROCOPY } else { how.flags };
        assert!(!self.is_unsure, "completions are read before the next call");
        // SAFETY: the pieces were just put together from messages that `self.messages` holds; those of zero-copy calls are
        // held until `self.calls` has seen the completion, or the reaper has, or they were abandoned for good.
        let sent = unsafe { self.burst.send(self.socket.as_fd(), 0, flags) };
        self.is_unsure = is_zero_copy && !sent.as_ref().is_ok_and(|sent| *sent == self.burst.messages());
        let sent = sent?;
        let mut taken = Taken::default();
        for number in 0..sent.min(self.marks.len()) {
            let mark = self.marks[number];
            taken.datagrams += u64::from(mark.datagrams);
            taken.bytes += u64::from(mark.bytes);
            if is_zero_copy {
                taken.calls += 1;
                self.called(mark, run, how);
            }
            self.pass_to(mark, how.evidence, free);
        }
        Ok(taken)
    }

    fn called(&mut self, mark: Mark, run: &Run, how: How) {
        self.messages.called(mark.from.ticket, mark.last);
        self.calls.push(Call {
            first: mark.from.ticket,
            last: mark.last,
            datagrams: mark.datagrams,
            datagram_bytes: run.datagram_bytes as u32,
            bytes: mark.bytes,
            destination: run.destination,
            method: how.method,
            since: how.since,
        });
    }

    /// The kernel says that the calls from `first` to `last` are over. `judge` tells what that proves of one, and `free` takes what
    /// nobody reads any more. Returns how many were over, and how many of those named were not open.
    pub(super) fn done(
        &mut self,
        first: u32,
        last: u32,
        mut judge: impl FnMut(&Call) -> Evidence,
        free: &mut impl FnMut(Ticket, Message, Evidence),
    ) -> (usize, u64) {
        let count = u64::from(last.wrapping_sub(first)) + 1;
        let first = self.calls.number(first);
        let mut over = 0;
        // A range that claims more than there are would take long to walk, and be wrong.
        for number in first..first.saturating_add(count).min(self.calls.end()) {
            let Some(call) = self.calls.take(number) else { continue };
            let evidence = judge(&call);
            self.messages.returned(call.first, call.last, evidence, free);
            over += 1;
        }
        let is_of_failed = self.is_unsure && first.saturating_add(count) == self.calls.end() + 1;
        if is_of_failed {
            self.calls.skip();
            self.is_unsure = false;
        }
        (over, count - over as u64 - u64::from(is_of_failed))
    }

    /// Puts datagrams of the run together, from the front of the queue on.
    fn fill_burst(&mut self, method: Method, run: &Run, destinations: &Destinations) {
        self.burst.clear();
        self.marks.clear();
        let address = destinations.get(run.destination).address.as_ref();
        let messages_max = if method == Method::Socket { 1 } else { udp_send::MESSAGES_MAX };
        let mut place = self.next;
        while place.ticket < run.end && self.burst.messages() < messages_max {
            let mark = match method.is_segmented() {
                true => self.measure_long(method, place, run),
                false => self.measure_one(place),
            };
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
            let message = queued(&self.messages, ticket);
            match message.pieces() {
                [one] if mark.from.ticket == mark.last => {
                    self.burst.piece(&one[mark.from.bytes..][..mark.bytes as usize]);
                }
                all => all.iter().for_each(|piece| self.burst.piece(piece)),
            }
        }
    }

    #[inline]
    fn message(&self, ticket: u64) -> &Message {
        queued(&self.messages, ticket)
    }

    /// Gives up what the kernel still reads, and returns how many calls those were, and the bytes that are lost to the program.
    pub(super) fn abandon(mut self) -> (usize, usize) {
        let (calls, messages) = (self.in_flight(), std::mem::take(&mut self.messages));
        self.calls = Calls::default();
        (calls, messages.abandon())
    }
}

/// What is queued has its message.
#[inline]
fn queued(messages: &Messages, ticket: u64) -> &Message {
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
        if self.in_flight() > 0 {
            let (calls, messages) = (std::mem::take(&mut self.calls), std::mem::take(&mut self.messages));
            reaper::adopt(Arc::clone(&self.socket), calls, messages);
        }
    }
}
