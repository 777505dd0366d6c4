//! Memory that is sent without a copy: queued, then read by the kernel until it reports completion.
//!
//! A load (one queued item) is held from [`push`](Kept::push) until all of it was handed over and every zero-copy call that reads it is
//! finished. Only this module hands its bytes to such calls (`sending`), numbers the calls, and takes completions, which are checked: a
//! completion of a call that was never made, or is finished, frees nothing.
#![allow(unsafe_code)]

mod calls;
pub(crate) mod kernel_socket;
mod queue;
mod sending;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use calls::Calls;
use kernel_socket::KernelSocket;
pub(crate) use queue::Messages;
pub use queue::Ticket;
pub(crate) use sending::{Burst, Filling, Span};

use crate::facts::evidence::Evidence;
use crate::memory::pool::{Buffer, Pool, Registration, Sharer};
use crate::sys::error_queue::Done;
use crate::sys::fork::Generation;
use crate::sys::option;
use crate::sys::uring_send::{UringRefused, UringSender};

const BUSY: &str = "socket: cannot be shared now; the kernel has not reported yet how many MSG_ZEROCOPY calls were made on it; \
                    drain them, and try again";

const FORKED: &str = "socket: cannot be shared here; this process is a forked child, and its parent still numbers the MSG_ZEROCOPY \
                      calls; ask in the parent, before the fork";

/// One item of the queue: a message of datagrams, a piece of a stream.
///
/// Moving it must not change its buffers, and it must return all of them, because memory that the kernel reads must not change.
pub(crate) trait Load: Send {
    fn buffers(&self) -> &[Buffer];

    /// As `buffers`, by value.
    fn into_buffers(self) -> impl Iterator<Item = Buffer>;

    /// Whether completions return it as a whole to the program.
    fn comes_back(&self) -> bool {
        true
    }
}

fn bytes_of(load: &impl Load) -> usize {
    load.buffers().iter().map(|buffer| buffer.len()).sum()
}

/// Information kept about a call until it is finished.
pub(crate) trait Note: Copy + Send {
    /// The note for a failed call that sent nothing, although the kernel may have numbered it (datagrams).
    #[must_use]
    fn of_nothing(self) -> Self {
        self
    }
}

/// The kernel's report of a finished call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    /// Bytes that the call took.
    pub(crate) bytes: usize,
    pub(crate) copied: bool,
    /// Whether this is the first call of the kernel's report, which may cover several.
    pub(crate) is_first: bool,
}

/// A call that the kernel has accepted and not completed.
#[derive(Debug)]
struct Made<C> {
    /// The tickets of the loads that it reads in whole or in part.
    reads: Range<u64>,
    taken: usize,
    note: C,
}

/// Loads `M`, each with a note `T`, and the calls that carry them, each with a note `C`.
///
/// If it is dropped while the kernel reads some of its memory, all of it is leaked. That happens if a panic unwinds the reaper, and in
/// forked children: they have a copy, whose socket belongs to their parent, and whose ring is not mapped.
#[derive(Debug)]
pub(crate) struct Kept<M, T, C> {
    socket: Arc<KernelSocket>,
    messages: Messages<M, T>,
    /// MSG_ZEROCOPY calls, which the error queue completes.
    calls: Calls<Made<C>>,
    numbering: Numbering,
    /// The failed call in doubt; no other call is made until it is resolved.
    doubt: Option<Doubt<C>>,
    ring: Option<Ring<C>>,
    /// Counts this sender among those that share its pool, even after it was dropped while calls are in flight.
    _sharer: Option<Sharer>,
    /// The process that makes the calls and receives their completions.
    generation: Generation,
}

/// Whether this sender makes MSG_ZEROCOPY calls. All such calls on a socket share one numbering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbering {
    /// This sender makes none.
    NotOurs,
    /// Only this sender makes them. Before the first call, the kernel kept `idle_bytes` [in addition to
    /// data](KernelSocket::option_memory_bytes).
    Ours { idle_bytes: Option<u32> },
    /// This sender made them and waits for the last completions. Other senders may make such calls now.
    GivenAway,
}

/// A MSG_ZEROCOPY call of datagrams failed. The kernel has numbered it if it made the packet before it found that it cannot send it.
///
/// Usually its completion is reported before the call returns. But parts of the packet may still be in flight, and read their memory: the
/// first fragments of a long datagram, a copy for local receivers of a multicast group. Then nothing is reported yet, and mistaking the
/// next call's number for this one's would free memory that the kernel reads. So a second call that fails deliberately (`fell_short` of
/// `sending`) follows: its reported number shows whether the first was numbered. Until that is known the memory is held, even if the kernel
/// had no memory for the second call.
#[derive(Debug)]
struct Doubt<C> {
    /// Recorded as if it had sent nothing.
    failed: Made<C>,
    /// Whether the next number, and the one after it, were reported.
    told: [bool; 2],
    /// The deliberate call failed with the same error, in the route look-up: neither call made a packet.
    is_uncounted: bool,
    /// The deliberate call was repeated, and not reported.
    is_tried: bool,
}

impl<C> Doubt<C> {
    fn new(failed: Made<C>) -> Self {
        Self { failed, told: [false; 2], is_uncounted: false, is_tried: false }
    }
}

/// Why a sender makes no MSG_ZEROCOPY calls.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.why())]
pub(crate) enum NoZeroCopy {
    /// Another sender makes them, or gave up calls that the kernel has not completed.
    Taken,
    /// There may be other descriptors of the socket, through which such calls may be made.
    Shared,
    /// Such calls were made before the socket was handed over, so their number is not known.
    Used,
    Kernel(#[source] io::Error),
}

impl NoZeroCopy {
    pub(crate) fn why(&self) -> &'static str {
        match self {
            Self::Taken => {
                "another sender makes the MSG_ZEROCOPY calls of this socket, which the kernel numbers together; use io_uring, or one sender"
            }
            Self::Shared => {
                "the program may have other descriptors of this socket, and the kernel numbers the MSG_ZEROCOPY calls of all together; use \
                 io_uring, or a socket that was made here"
            }
            Self::Used => {
                "the socket was used for zero-copy sends before it was handed over (SO_ZEROCOPY is set); hand it over unused"
            }
            Self::Kernel(_) => {
                "the kernel refuses SO_ZEROCOPY; use Linux 4.14 or newer for TCP sockets, 5.0 for UDP sockets"
            }
        }
    }
}

/// Calls by io_uring. The ring is dropped before the pool whose memory it has registered.
#[derive(Debug)]
struct Ring<C> {
    sender: UringSender,
    calls: Calls<Made<C>>,
    /// Calls the kernel refused, whose loads are still held.
    failed: Vec<(Made<C>, io::Error)>,
    memory: Registration,
}

impl<M, T, C> Kept<M, T, C> {
    /// `sharer`: this stream's membership among the streams that share a pool.
    pub(crate) fn new(socket: Arc<KernelSocket>, sharer: Option<Sharer>) -> Self {
        let (messages, calls) = (Messages::default(), Calls::default());
        let (numbering, generation) = (Numbering::NotOurs, Generation::current());
        Self { socket, messages, calls, numbering, doubt: None, ring: None, _sharer: sharer, generation }
    }

    /// Moves all loads out. Later loads get the following tickets.
    pub(crate) fn take(&mut self) -> Self {
        let mut none = Self::new(Arc::clone(&self.socket), None);
        none.messages = Messages::beginning_at(self.messages.end());
        std::mem::replace(self, none)
    }

    #[inline]
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn kernel_socket(&self) -> &Arc<KernelSocket> {
        &self.socket
    }

    #[inline]
    pub(crate) fn messages(&self) -> &Messages<M, T> {
        &self.messages
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, message: M, note: T) -> Ticket {
        self.messages.push(message, note)
    }

    #[inline(always)]
    pub(crate) fn pop<B>(&mut self, take: impl FnOnce(&mut M) -> B) -> Option<B> {
        self.messages.pop(take)
    }

    /// The socket, and a load that no call reads, which may be removed and put back.
    pub(crate) fn unread_mut(&mut self, ticket: u64) -> (&mut Option<M>, BorrowedFd<'_>) {
        (self.messages.unread_mut(ticket), self.socket.as_fd())
    }

    #[inline]
    pub(crate) fn handed_over(
        &mut self,
        ticket: u64,
        evidence: Option<Evidence>,
        free: &mut impl FnMut(Ticket, M, Evidence),
    ) {
        self.messages.handed_over(ticket, evidence, free);
    }

    #[inline]
    pub(crate) fn learn(&mut self, ticket: u64, evidence: Evidence) {
        self.messages.learn(ticket, evidence);
    }

    /// MSG_ZEROCOPY calls without a completion.
    pub(crate) fn numbered_calls(&self) -> usize {
        self.calls.open()
    }

    /// Whether completions must be read before the next MSG_ZEROCOPY call, because its number is uncertain.
    #[inline]
    pub(crate) fn is_unsure(&self) -> bool {
        self.doubt.is_some()
    }

    /// Makes this sender the one that makes MSG_ZEROCOPY calls on the socket; called before the first.
    pub(crate) fn allow_zero_copy(&mut self) -> Result<(), NoZeroCopy> {
        if let Numbering::Ours { .. } = self.numbering {
            return Ok(());
        }
        if self.numbering == Numbering::GivenAway {
            return Err(NoZeroCopy::Shared);
        }
        option::allow_zero_copy(&*self.socket).map_err(NoZeroCopy::Kernel)?;
        let first = self.socket.claim().ok_or(NoZeroCopy::Taken)?;
        self.numbering = Numbering::Ours { idle_bytes: self.socket.option_memory_bytes() };
        self.calls = Calls::starting_at(first);
        Ok(())
    }

    /// Lets others make MSG_ZEROCOPY calls on the socket; this sender makes no more. Errors: `ResourceBusy`: another sender may make them,
    /// or it is not known whether a failed call has a number. `Unsupported` in a forked child, because its parent may make further calls.
    pub(crate) fn give_numbering_away(&mut self) -> io::Result<()> {
        match self.numbering {
            Numbering::GivenAway => return Ok(()),
            _ if self.is_inherited() => return Err(io::Error::new(io::ErrorKind::Unsupported, FORKED)),
            Numbering::Ours { .. } if self.doubt.is_none() => {}
            Numbering::NotOurs if self.socket.claim().is_some() => {}
            Numbering::Ours { .. } | Numbering::NotOurs => {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, BUSY));
            }
        }
        self.numbering = Numbering::GivenAway;
        Ok(())
    }

    /// Checks whether a MSG_ZEROCOPY call may be made; called before each.
    fn check_zero_copy(&self) -> io::Result<()> {
        self.check_process()?;
        match self.numbering {
            Numbering::Ours { .. } => Ok(()),
            Numbering::NotOurs | Numbering::GivenAway => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Refuses zero-copy calls in a forked child, because they would use up numbers of the socket, and its parent would mistake them for
    /// its own. Errors: `Unsupported` in a child, which can only send copies.
    pub(crate) fn check_process(&self) -> io::Result<()> {
        if self.is_inherited() { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
    }

    /// The next completion of MSG_ZEROCOPY calls; also reads the other entries of the error queue.
    fn next_done(&self) -> Option<Done> {
        if self.numbering == Numbering::NotOurs {
            self.socket.read();
            return None;
        }
        self.socket.next_done()
    }

    /// Makes the ring, with the pool's memory registered, unless it exists; returns whether it was made now.
    pub(crate) fn open_ring(&mut self, pool: &Pool, sends: u32) -> Result<bool, UringRefused> {
        if self.ring.is_some() {
            return Ok(false);
        }
        // First: from here on none of the pool's pages is replaced.
        let memory = pool.register();
        // SAFETY: `memory` holds the pool, stays beside the ring, and is dropped after it.
        let sender = unsafe { UringSender::new(self.socket.as_fd(), Some(pool.memory()), sends)? };
        self.ring = Some(Ring { sender, calls: Calls::default(), failed: Vec::new(), memory });
        Ok(true)
    }

    pub(crate) fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Whether there is a ring, and the results of all sends are known.
    pub(crate) fn is_ring_decided(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| !ring.sender.is_undecided())
    }

    /// A descriptor that is readable when calls by the ring are finished.
    pub(crate) fn ring(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().filter(|ring| ring.calls.open() > 0).map(|ring| ring.sender.as_fd())
    }

    /// The ring's descriptor, if this process has one.
    pub(crate) fn ring_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().filter(|_| !self.is_inherited()).map(|ring| ring.sender.as_fd())
    }

    pub(crate) fn is_ring_full(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.sender.is_full())
    }

    pub(crate) fn is_ring_broken(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.sender.is_broken())
    }

    /// Completions of calls by the ring that were never made.
    pub(crate) fn ring_faults(&self) -> u64 {
        self.ring.as_ref().map_or(0, |ring| ring.sender.faults())
    }

    /// Takes completions of MSG_ZEROCOPY calls, and reads the other entries of the error queue. `judge` returns the evidence of a
    /// finished call, `free` takes loads that no call reads any more. Returns how many calls were finished, and how many of the completions
    /// named calls that were never made or already finished.
    pub(crate) fn reap(
        &mut self,
        judge: &mut impl FnMut(&C, Told) -> Evidence,
        free: &mut impl FnMut(Ticket, M, Evidence),
    ) -> (usize, u64) {
        let (mut over, mut strange) = (0, 0);
        loop {
            let was_quiet = self.is_quiet();
            let before = over;
            while let Some(done) = self.next_done() {
                let (more, unknown) = self.done(done, judge, free);
                (over, strange) = (over + more, strange + unknown);
            }
            self.conclude(was_quiet, free);
            // After the last completions it may be quiet.
            if over == before || !self.is_unsure() {
                return (over, strange);
            }
        }
    }

    fn done(
        &mut self,
        done: Done,
        judge: &mut impl FnMut(&C, Told) -> Evidence,
        free: &mut impl FnMut(Ticket, M, Evidence),
    ) -> (usize, u64) {
        let first = self.calls.number(done.first);
        let named = first..first + i64::from(done.last.wrapping_sub(done.first)) + 1;
        let mut over = 0;
        for number in self.calls.among(&named) {
            let Some(call) = self.calls.take(number) else { continue };
            let told = Told { bytes: call.taken, copied: done.copied, is_first: over == 0 };
            let evidence = judge(&call.note, told);
            self.messages.returned(call.reads, Some(evidence), free);
            over += 1;
        }
        let mut expected = over as i64;
        if let Some(doubt) = &mut self.doubt {
            let next = self.calls.end().cast_signed();
            for (number, told) in (next..).zip(&mut doubt.told) {
                if named.contains(&number) && !std::mem::replace(told, true) {
                    expected += 1;
                }
            }
        }
        let strange = (named.end - named.start - expected).cast_unsigned();
        // The calls of other senders are reported here, too.
        (over, if self.numbering == Numbering::GivenAway { 0 } else { strange })
    }

    /// Whether there is a call in doubt, and the kernel has no open calls: it reads no memory, and all completions were read. Call it
    /// before completions are read, for [`conclude`](Self::conclude), because another half may read some at the same time.
    fn is_quiet(&self) -> bool {
        let Numbering::Ours { idle_bytes: Some(idle) } = self.numbering else { return false };
        self.doubt.is_some() && self.socket.option_memory_bytes().is_some_and(|bytes| bytes <= idle)
    }

    /// Finds out from the completions whether the failed call was numbered, if they suffice.
    fn conclude(&mut self, was_quiet: bool, free: &mut impl FnMut(Ticket, M, Evidence)) {
        let Some(doubt) = self.doubt.take() else { return };
        let numbers = match doubt.told {
            [false, false] if doubt.is_uncounted || was_quiet => 0,
            [false, false] => {
                // The kernel had too little memory for the call on purpose.
                self.doubt = Some(doubt);
                return;
            }
            [true, false] => 1,
            [true, true] => 2,
            [false, true] => {
                self.calls.push(doubt.failed);
                self.calls.skip();
                return;
            }
        };
        (0..numbers).for_each(|_| self.calls.skip());
        self.messages.returned(doubt.failed.reads, None, free);
    }

    /// As `reap`, for calls by the ring. Refused calls [stay](Self::failed) until they are settled.
    pub(crate) fn reap_ring(
        &mut self,
        judge: &mut impl FnMut(&C, Told) -> Evidence,
        free: &mut impl FnMut(Ticket, M, Evidence),
    ) -> usize {
        if self.is_inherited() {
            return 0;
        }
        let (Some(ring), messages) = (&mut self.ring, &mut self.messages) else { return 0 };
        let (calls, failed) = (&mut ring.calls, &mut ring.failed);
        // Repeats sends that the kernel refused for lack of memory. If that fails, the next call repeats them.
        let _ = ring.sender.submit();
        ring.sender.reap(|number, done| {
            let Some(call) = calls.take(number) else { return };
            match done.result {
                Ok(_) => {
                    let told = Told { bytes: call.taken, copied: done.copied, is_first: true };
                    let evidence = judge(&call.note, told);
                    messages.returned(call.reads, Some(evidence), free);
                }
                Err(error) => failed.push((call, error)),
            }
        })
    }

    /// Whether calls by the ring were refused.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| !ring.failed.is_empty())
    }

    /// A call by the ring that the kernel refused: its first load, and its note. Its loads stay until it is [settled](Self::settle_failed).
    pub(crate) fn failed(&self) -> Option<(u64, &C)> {
        self.ring.as_ref()?.failed.last().map(|(call, _)| (call.reads.start, &call.note))
    }

    /// Settles that call with the evidence of the calls that replaced it; returns why it was refused.
    pub(crate) fn settle_failed(
        &mut self,
        evidence: Evidence,
        free: &mut impl FnMut(Ticket, M, Evidence),
    ) -> Option<io::Error> {
        let (call, error) = self.ring.as_mut()?.failed.pop()?;
        self.messages.returned(call.reads, Some(evidence), free);
        Some(error)
    }

    /// Releases the loads of refused calls, which will not be sent again.
    pub(crate) fn drop_failed(&mut self) {
        let failed = self.ring.iter_mut().flat_map(|ring| ring.failed.drain(..));
        for (call, _) in failed {
            self.messages.returned(call.reads, None, &mut |_, message, _| drop(message));
        }
    }

    /// Takes all completions, for a dropped socket.
    pub(crate) fn reap_unseen(&mut self) {
        let (judge, free) = (&mut |_: &C, _| Evidence::Unknown, &mut |_, message: M, _| drop(message));
        self.reap(judge, free);
        self.reap_ring(judge, free);
        self.drop_failed();
    }

    /// Whether all pages that the kernel reads can be replaced, once this sender's ring has ended.
    pub(crate) fn is_replaceable(&self) -> bool
    where
        M: Load,
    {
        let ring = self.ring.as_ref().map(|ring| &ring.memory);
        self.messages.read().flat_map(Load::buffers).all(|buffer| buffer.is_replaceable(ring))
    }

    /// Bytes that the kernel reads.
    pub(crate) fn read_bytes(&self) -> usize
    where
        M: Load,
    {
        self.messages.read().map(bytes_of).sum()
    }

    /// Gives up the memory that the kernel still reads, and returns how many bytes the program cannot use again.
    pub(crate) fn abandon(mut self) -> usize
    where
        M: Load,
    {
        if self.is_inherited() {
            return 0; // nothing of this process is read
        }
        if let Some(ring) = &mut self.ring {
            ring.sender.cancel();
        }
        self.reap_ring(&mut |_, _| Evidence::Unknown, &mut |_, message, _| drop(message));
        self.drop_failed();
        // The ring has the old pages registered: it must end before they are replaced.
        drop(self.ring.take());
        std::mem::take(&mut self.messages).abandon().flat_map(Load::into_buffers).map(Buffer::abandon).sum()
    }

    /// Calls whose memory the kernel still reads, or may read.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        let in_doubt = usize::from(self.doubt.is_some());
        in_doubt
            + self.calls.open()
            + self.ring.as_ref().map_or(0, |ring| ring.calls.open() + ring.failed.len())
    }

    /// Whether this process is a forked child of the one that made the calls.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation.is_past()
    }
}

impl<M, T, C> Drop for Kept<M, T, C> {
    fn drop(&mut self) {
        let is_read = self.in_flight() > 0 || self.messages.read().next().is_some();
        if is_read || (self.ring.is_some() && self.is_inherited()) {
            std::mem::forget((std::mem::take(&mut self.messages), self.ring.take()));
        }
        if self.numbering != Numbering::NotOurs {
            let is_ours = matches!(self.numbering, Numbering::Ours { .. });
            let is_known = is_ours && self.calls.open() == 0 && self.doubt.is_none();
            self.socket.give_back(is_known.then(|| self.calls.end()));
        }
    }
}

#[cfg(test)]
mod tests;
