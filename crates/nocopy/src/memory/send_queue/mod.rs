//! The queue of sends: the only owner of bytes from `send` until the kernel no longer reads them.
//!
//! ```text
//!   program ── push ──▶ ENTRY queued ── call that copies ───── advance(evidence) ──────────────▶ FREE
//!                          │                                                                       ▲
//!                          ├─ MSG_ZEROCOPY, io_uring ── advance(no evidence yet)                   │
//!                          ▼                                                                       │
//!                      ENTRY handed over, open calls                                               │
//!                          │  the kernel reports ── collect ──▶ COMPLETION ── settle(evidence) ────┤  with the last open call
//!                          │                                                                       │
//!                          ├─ a datagram call failed ──▶ UNCERTAIN CALL (`numbering`) ── collect ──┤  if it has no number
//!                          │
//!                          └─ the sender is dropped: `detach`, for the reaper; closed by force: `abandon`
//! ```
//!
//! An entry is free when all of it was handed over *and* no call that reads it is open; nothing else frees
//! it, except `take_unsent` (never handed over) and `abandon`. Only this module hands bytes of entries to
//! calls (`calls`) and counts them (`numbering`). Reports are checked: one of a call that was never made, or
//! is finished, frees nothing.
#![allow(unsafe_code)]

mod calls;
mod ends;
mod numbering;
#[cfg(feature = "tcp")]
mod stream;

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use calls::UringCalls;
pub(crate) use calls::{Burst, is_no_buffers, is_of_method};
pub(crate) use numbering::{CallReport, Completion, KernelSocket, NoZeroCopyReason};
use numbering::{NumberedCalls, OpenCall};
#[cfg(feature = "tcp")]
pub(crate) use stream::SendMode;

use crate::facts::evidence::Evidence;
use crate::memory::pieces::Buffers;
use crate::memory::pool::{Buffer, BufferCache};
use crate::sys::fork::Generation;
use crate::sys::poll::{Wakeup, wait_for_completions};
use crate::sys::readiness::Readiness;

/// Number of open calls from which completions are read: often enough that buffers return while they are in
/// the cache.
pub(crate) const REAP_AT: usize = 16;

/// The most entries from the first to the last that the kernel reads, before the first is moved aside.
const SPAN_MAX: usize = 4096;

/// The number of a send, counted from 0 for each sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// A finished send, whose memory is free again.
#[derive(Debug)]
pub struct Completed<T> {
    /// The ticket that `send` returned.
    pub ticket: Ticket,
    /// The evidence for its bytes; if it differs between parts, that of the worst part.
    pub evidence: Evidence,
    /// The buffer or the message itself.
    pub item: T,
}

/// What an entry sends: a message of datagrams, a piece of a stream.
///
/// Moving it must not change its buffers, and it must return all of them, because memory that the kernel
/// reads must not change.
pub(crate) trait Payload: Sized + Send + 'static {
    fn buffers(&self) -> &[Buffer];

    /// Its buffers, when it is free.
    fn into_buffers(self) -> Buffers;

    /// Whether completions return it as a whole to the program.
    fn returns_to_program(&self) -> bool {
        true
    }
}

fn payload_bytes(payload: &impl Payload) -> usize {
    payload.buffers().iter().map(|buffer| buffer.len()).sum()
}

/// Information kept about a call until it is finished.
pub(crate) trait CallNote: Copy + Send + 'static {
    /// The note for a failed call that sent nothing, although the kernel may have numbered it (datagrams).
    #[must_use]
    fn for_failed_call(self) -> Self {
        self
    }
}

/// A byte of the queue: an entry, and how many of its bytes are in front. Never the end of an entry: that is
/// the next one's begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) ticket: u64,
    pub(crate) bytes: usize,
}

impl Position {
    /// The first byte of an entry.
    #[inline]
    pub(crate) fn start_of(ticket: u64) -> Self {
        Self { ticket, bytes: 0 }
    }
}

/// Bytes of consecutive entries. It begins inside of an entry only if that has one buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) start: Position,
    pub(crate) end: Position,
    pub(crate) bytes: usize,
}

impl Extent {
    /// The entries from which it takes bytes, or which it takes whole.
    #[inline]
    pub(crate) fn tickets(self) -> Range<u64> {
        self.start.ticket..self.end.ticket + u64::from(self.end.bytes > 0)
    }
}

/// Something that is queued, or that the kernel still reads.
#[derive(Debug)]
struct QueueEntry<P> {
    /// `None` once it is free but an earlier entry is not.
    payload: Option<P>,
    /// Calls that read it and are not settled.
    open_calls: u32,
    is_handed_over: bool,
    evidence: Option<Evidence>,
}

/// All entries, in the order of their tickets.
#[derive(Debug)]
pub(crate) struct Entries<P> {
    first: u64,
    entries: VecDeque<QueueEntry<P>>,
    /// Entries before `first` that the kernel reads much longer than many after them, moved aside because
    /// their slots are needed.
    late: BTreeMap<u64, QueueEntry<P>>,
    /// Calls that are not settled.
    open_calls: usize,
}

/// Where free memory goes.
#[derive(Debug)]
struct FreedPayloads<P> {
    cache: BufferCache,
    completed: Option<VecDeque<Completed<P>>>,
}

/// Entries with payloads `P`, and the calls that carry them, each with a note `C`.
///
/// If it is dropped while the kernel reads some of its memory, all of it is leaked. That happens if a panic
/// unwinds the reaper, and in forked children: they have a copy, whose socket belongs to their parent, and
/// whose ring is not mapped.
#[derive(Debug)]
pub(crate) struct SendQueue<P: Payload, C: CallNote> {
    entries: Entries<P>,
    /// The next byte to hand over.
    head: Position,
    /// MSG_ZEROCOPY calls, which the error queue completes.
    numbered: NumberedCalls<C>,
    ring: Option<UringCalls<C>>,
    /// Calls that are finished and not settled.
    finished: VecDeque<(OpenCall<C>, io::Result<CallReport>)>,
    freed: FreedPayloads<P>,
    socket: Arc<KernelSocket>,
    readiness: Readiness,
    /// Completions of calls that were never made.
    unknown_completions: u64,
    /// Counts this sender among those that share its pool, even after it was dropped while calls are in
    /// flight.
    _sharer: Option<Arc<()>>,
    /// The process that makes the calls and receives their completions.
    generation: Generation,
    /// Other queues have other numbers.
    number: u64,
}

impl<P: Payload> FreedPayloads<P> {
    #[inline(always)]
    fn store(&mut self, ticket: Ticket, payload: P, evidence: Evidence) {
        match &mut self.completed {
            Some(completed) if payload.returns_to_program() => {
                completed.push_back(Completed { ticket, evidence, item: payload });
            }
            _ => match payload.into_buffers() {
                Buffers::One(buffer) => self.cache.put(buffer),
                buffers => buffers.into_iter().for_each(|buffer| self.cache.put(buffer)),
            },
        }
    }
}

impl<P> Entries<P> {
    /// No entries; the first one gets the ticket `first`.
    fn starting_at(first: u64) -> Self {
        Self { first, entries: VecDeque::new(), late: BTreeMap::new(), open_calls: 0 }
    }

    #[inline(always)]
    fn push(&mut self, payload: P) -> Ticket {
        let ticket = Ticket(self.next_ticket());
        let payload = Some(payload);
        self.entries.push_back(QueueEntry { payload, open_calls: 0, is_handed_over: false, evidence: None });
        if self.entries.len() > SPAN_MAX {
            self.move_late_entries_aside();
        }
        ticket
    }

    /// Moves late entries aside, so that later ones need not be kept.
    #[cold]
    fn move_late_entries_aside(&mut self) {
        // Entries are handed over in order: if the first is still queued, all behind it are, and none is in
        // the way.
        if self.entries.front().is_some_and(|first| first.is_handed_over)
            && let Some(first) = self.entries.pop_front()
        {
            self.late.insert(self.first, first);
            self.first += 1;
            self.forget_front();
        }
    }

    /// The ticket that the next entry gets.
    #[inline]
    pub(crate) fn next_ticket(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    #[inline]
    fn get(&self, ticket: u64) -> &QueueEntry<P> {
        // A ticket below `first` is of an entry moved aside: others leave only when free, and are not asked
        // for then.
        match ticket.checked_sub(self.first) {
            Some(place) => &self.entries[place as usize],
            None => &self.late[&ticket],
        }
    }

    #[inline]
    fn get_mut(&mut self, ticket: u64) -> &mut QueueEntry<P> {
        match ticket.checked_sub(self.first) {
            Some(place) => &mut self.entries[place as usize],
            None => self.late.get_mut(&ticket).expect("held until it is free"),
        }
    }

    /// Panics if it is free.
    #[inline]
    pub(crate) fn payload(&self, ticket: u64) -> &P {
        self.get(ticket).payload.as_ref().expect("what is queued or read is held")
    }

    /// Whether a call reads it.
    #[cfg(feature = "tcp")]
    pub(crate) fn is_read(&self, ticket: u64) -> bool {
        self.get(ticket).open_calls > 0
    }

    /// Payloads that are not free yet.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = &P> {
        self.late.values().chain(&self.entries).filter_map(|entry| entry.payload.as_ref())
    }

    /// Payloads that the kernel may still read.
    pub(crate) fn in_kernel(&self) -> impl Iterator<Item = &P> {
        let all = self.late.values().chain(&self.entries);
        all.filter(|entry| entry.open_calls > 0).filter_map(|entry| entry.payload.as_ref())
    }

    /// Records a call that reads all or part of these entries.
    fn open_call(&mut self, tickets: Range<u64>) {
        self.open_calls += 1;
        for ticket in tickets {
            self.get_mut(ticket).open_calls += 1;
        }
    }

    /// Gives up the first slots, as far as they are of free entries.
    #[inline]
    fn forget_front(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.payload.is_none()) {
            self.entries.pop_front();
            self.first += 1;
        }
    }

    /// Removes an entry that was not handed over, unless a call reads it: then it counts as handed over.
    fn take_unsent(&mut self, ticket: u64) -> Option<P> {
        let entry = self.get_mut(ticket);
        entry.is_handed_over = true;
        let payload = if entry.open_calls == 0 { entry.payload.take() } else { None };
        self.forget_front();
        payload
    }

    /// Returns the payloads that the kernel may still read; the rest is dropped.
    fn abandon(self) -> impl Iterator<Item = P> {
        let all = self.late.into_values().chain(self.entries);
        all.filter(|entry| entry.open_calls > 0).filter_map(|entry| entry.payload)
    }
}

impl<P: Payload> Entries<P> {
    /// The pieces to pass to the kernel.
    #[inline]
    pub(crate) fn pieces(&self, extent: Extent) -> impl Iterator<Item = &[u8]> {
        let (mut at, mut left) = (extent.start.bytes, extent.bytes);
        let payloads = extent.tickets().filter_map(|ticket| self.get(ticket).payload.as_ref());
        payloads.flat_map(Payload::buffers).map(move |buffer| {
            let piece = &buffer[std::mem::take(&mut at)..];
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            piece
        })
    }

    /// The extent of so many bytes; of none, it has no entries.
    #[cfg(feature = "tcp")]
    fn extent(&self, start: Position, bytes: usize) -> Extent {
        let (mut end, mut left) = (start, bytes);
        if bytes == 0 {
            end = Position::start_of(start.ticket);
        }
        // Ends within the queue: callers ask for no more bytes than the extent that they passed to the
        // kernel.
        while left > 0 {
            // No underflow: a position is never past the end of its entry.
            let rest = payload_bytes(self.payload(end.ticket)) - end.bytes;
            if left < rest {
                end.bytes += left;
                break;
            }
            left -= rest;
            end = Position::start_of(end.ticket + 1);
        }
        Extent { start, end, bytes }
    }

    /// Records the end of such a call, with its evidence, if it sent anything.
    fn end_call(&mut self, tickets: Range<u64>, evidence: Option<Evidence>, freed: &mut FreedPayloads<P>) {
        // No underflow: a call ends once, because that consumes its record.
        self.open_calls -= 1;
        for ticket in tickets {
            let entry = self.get_mut(ticket);
            entry.open_calls -= 1;
            entry.merge_evidence(evidence);
            self.release(ticket, freed);
        }
    }

    /// Notes that a whole entry was handed over; `evidence` is for the parts that no call reports.
    #[inline]
    fn mark_handed_over(&mut self, ticket: u64, evidence: Option<Evidence>, freed: &mut FreedPayloads<P>) {
        let entry = self.get_mut(ticket);
        entry.is_handed_over = true;
        entry.merge_evidence(evidence);
        self.release(ticket, freed);
    }

    /// Frees an entry, if all of it was handed over and no call reads it.
    #[inline]
    fn release(&mut self, ticket: u64, freed: &mut FreedPayloads<P>) {
        let order = ticket.cmp(&self.first);
        let entry = self.get_mut(ticket);
        if entry.open_calls > 0 || !entry.is_handed_over {
            return;
        }
        let evidence = entry.evidence.unwrap_or(Evidence::Unknown);
        let payload = match order {
            Ordering::Less => self.late.remove(&ticket).and_then(|entry| entry.payload),
            Ordering::Equal => {
                self.first += 1;
                self.entries.pop_front().and_then(|entry| entry.payload)
            }
            // Its slot stays until all entries before it are free.
            Ordering::Greater => entry.payload.take(),
        };
        // There is none if `take_front` took it out, and it was sent by other means.
        if let Some(payload) = payload {
            freed.store(Ticket(ticket), payload, evidence);
        }
        self.forget_front();
    }

    /// The bytes, if they are in one buffer.
    #[inline]
    fn contiguous(&self, extent: Extent) -> Option<&[u8]> {
        let Extent { start, bytes, .. } = extent;
        match self.payload(start.ticket).buffers() {
            [buffer] if extent.tickets() == (start.ticket..start.ticket + 1) => {
                Some(&buffer[start.bytes..][..bytes])
            }
            _ => None,
        }
    }
}

impl<P> QueueEntry<P> {
    /// The evidence for an entry is that of its worst part.
    #[inline]
    fn merge_evidence(&mut self, evidence: Option<Evidence>) {
        let Some(evidence) = evidence else { return };
        self.evidence = Some(match (self.evidence, evidence) {
            (None, new) => new,
            (Some(Evidence::Copied(cause)), _) | (_, Evidence::Copied(cause)) => Evidence::Copied(cause),
            (Some(Evidence::Unknown), _) | (_, Evidence::Unknown) => Evidence::Unknown,
            (Some(Evidence::ZeroCopy), Evidence::ZeroCopy) => Evidence::ZeroCopy,
        });
    }
}

impl<P: Payload, C: CallNote> SendQueue<P, C> {
    /// `keeps_completed`: free payloads are kept for [`completed`](Self::completed).
    pub(crate) fn new(socket: Arc<KernelSocket>, cache: BufferCache, keeps_completed: bool) -> Self {
        let sharer = cache.count_sharer();
        let freed = FreedPayloads { cache, completed: keeps_completed.then(VecDeque::new) };
        Self::starting_at(0, socket, freed, sharer)
    }

    fn starting_at(
        first: u64,
        socket: Arc<KernelSocket>,
        freed: FreedPayloads<P>,
        sharer: Option<Arc<()>>,
    ) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self {
            entries: Entries::starting_at(first),
            head: Position::start_of(first),
            numbered: NumberedCalls::without_calls(),
            ring: None,
            finished: VecDeque::new(),
            freed,
            socket,
            readiness: Readiness::for_sending(),
            unknown_completions: 0,
            _sharer: sharer,
            generation: Generation::current(),
            // Relaxed: only that the number is unique matters.
            number: NUMBERS.fetch_add(1, Relaxed),
        }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, payload: P) -> Ticket {
        self.entries.push(payload)
    }

    #[inline]
    pub(crate) fn head(&self) -> Position {
        self.head
    }

    #[inline]
    pub(crate) fn entries(&self) -> &Entries<P> {
        &self.entries
    }

    /// Entries that were not handed over whole.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        // No underflow: the head moves only over entries of the queue.
        (self.entries.next_ticket() - self.head.ticket) as usize
    }

    /// The payload at the head, and the socket.
    /// Panics if a call reads it, or nothing is queued.
    #[cfg(feature = "tcp")]
    pub(crate) fn front_mut(&mut self) -> (&mut P, BorrowedFd<'_>) {
        let entry = self.entries.get_mut(self.head.ticket);
        assert!(entry.open_calls == 0, "the kernel reads it");
        (entry.payload.as_mut().expect("what is queued is held"), self.socket.as_fd())
    }

    /// Removes the payload at the head, if it is wanted and no call reads it. To be [put
    /// back](Self::restore_front), or [passed](Self::advance).
    #[cfg(feature = "port")]
    pub(crate) fn take_front(&mut self, is_wanted: impl FnOnce(&P) -> bool) -> Option<P> {
        let entry = self.entries.get_mut(self.head.ticket);
        if entry.open_calls > 0 {
            return None;
        }
        entry.payload.take_if(|payload| is_wanted(payload))
    }

    /// Panics if nothing was removed.
    #[cfg(feature = "port")]
    pub(crate) fn restore_front(&mut self, payload: P) {
        let entry = self.entries.get_mut(self.head.ticket);
        assert!(entry.payload.is_none() && entry.open_calls == 0, "there is a payload");
        entry.payload = Some(payload);
    }

    /// Continues at `to`; `evidence` is that of the skipped bytes, if no call reports it.
    #[inline]
    pub(crate) fn advance(&mut self, to: Position, evidence: Option<Evidence>) {
        let from = std::mem::replace(&mut self.head, to);
        // Not the entry at `to`, of which some bytes are still queued.
        for ticket in from.ticket..to.ticket {
            self.entries.mark_handed_over(ticket, evidence, &mut self.freed);
        }
        if to.bytes > 0 && to != from {
            self.entries.get_mut(to.ticket).merge_evidence(evidence);
        }
    }

    /// Continues behind the only entry, which a call has copied: it is free. To be called if one is
    /// [queued](Self::queued) and none is [in flight](Self::in_flight).
    #[inline(always)]
    pub(crate) fn free_only(&mut self, evidence: Evidence) {
        assert!(self.entries.entries.len() == 1, "no other entry is queued, and none is read");
        let ticket = self.head.ticket;
        self.head = Position::start_of(ticket + 1);
        self.entries.first = ticket + 1;
        if let Some(payload) = self.entries.entries.pop_front().and_then(|entry| entry.payload) {
            self.freed.store(Ticket(ticket), payload, evidence);
        }
    }

    /// Reads the kernel's reports of MSG_ZEROCOPY calls and of the ring, and the network's errors. Finished
    /// calls wait to be [pulled](Self::next_completion).
    pub(crate) fn collect(&mut self) {
        if self.is_inherited() {
            return; // its parent collects
        }
        loop {
            let was_quiet = self.numbered.kernel_holds_no_call(&self.socket);
            let before = self.finished.len();
            while let Some(report) = self.numbered.next_report(&self.socket) {
                self.unknown_completions += self.numbered.finish_reported_calls(report, &mut self.finished);
            }
            if let Some(failed) = self.numbered.resolve_uncertain(was_quiet) {
                self.entries.end_call(failed.extent.tickets(), None, &mut self.freed);
            }
            // After the last completions it may be quiet.
            if self.finished.len() == before || !self.is_next_number_uncertain() {
                break;
            }
        }
        self.collect_ring();
    }

    /// The next finished call: to be [settled](Self::settle). None in a forked child: memory of its parent's
    /// calls is not its own.
    pub(crate) fn next_completion(&mut self) -> Option<Completion<C>> {
        let (call, outcome) =
            if self.finished.is_empty() || self.is_inherited() { None } else { self.finished.pop_front() }?;
        Some(Completion { call, outcome, queue: self.number })
    }

    /// Ends a finished call, with the evidence for its bytes, if it sent any. Entries that no other call
    /// reads are free. Panics if it is one of another queue.
    pub(crate) fn settle(&mut self, done: Completion<C>, evidence: Option<Evidence>) {
        assert!(done.queue == self.number, "a call of another queue");
        self.entries.end_call(done.call.extent.tickets(), evidence, &mut self.freed);
    }

    /// The next payload that is free again, if they are kept.
    pub(crate) fn completed(&mut self) -> Option<Completed<P>> {
        self.freed.completed.as_mut()?.pop_front()
    }

    /// Calls whose memory the kernel still reads, or may read.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.entries.open_calls
    }

    /// Whether this process is a forked child of the one that made the calls.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation.is_outdated()
    }

    #[inline]
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn kernel_socket(&self) -> &Arc<KernelSocket> {
        &self.socket
    }

    #[inline]
    pub(crate) fn cache(&self) -> &BufferCache {
        &self.freed.cache
    }

    #[inline]
    pub(crate) fn cache_mut(&mut self) -> &mut BufferCache {
        &mut self.freed.cache
    }

    /// Waits for completions of earlier sends.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<Wakeup> {
        let busy_ring = self.ring.as_ref().filter(|ring| ring.calls.open_count() > 0);
        wait_for_completions(self.socket(), busy_ring.map(|ring| ring.sender.as_fd()), timeout)
    }

    /// Whether the descriptor also reports room to send.
    #[inline]
    pub(crate) fn wants_room(&self) -> bool {
        self.readiness.reports_room()
    }

    /// Sets whether the descriptor also reports room to send.
    #[inline]
    pub(crate) fn set_wants_room(&self, wanted: bool) {
        self.readiness.set_reports_room(self.socket(), wanted);
    }

    /// Sets whether the descriptor is also readable while another one is.
    pub(crate) fn watch_other(&self, other: BorrowedFd<'_>, wanted: bool) {
        self.readiness.watch_other(other, wanted);
    }

    /// A descriptor that is readable while the kernel has something to report about sends, by the socket or
    /// by its ring, or, if wanted, there is room to send. Panics at the first call, if the process has no
    /// descriptor left.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.readiness.descriptor_with_others(self.socket(), self.ring_descriptor())
    }

    /// Makes [`descriptor`](Self::descriptor). Errors: no descriptor is left.
    #[cfg(any(feature = "tcp", feature = "tokio"))]
    pub(crate) fn open_descriptor(&self) -> io::Result<()> {
        self.readiness.open(self.socket(), self.ring_descriptor())
    }
}

#[cfg(test)]
mod tests;
