//! The sending half that all sockets share: a queue of loads, which of them are in flight, and the buffers that return.
//!
//! Each kind of socket defines how its queue is cut into calls, and what a finished call proves about copies.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::path::{Path, Paths};
use crate::facts::evidence::{Evidence, Ledger};
use crate::memory::in_flight::kernel_socket::KernelSocket;
use crate::memory::in_flight::{Kept, Load, Messages, Ticket, Told};
use crate::memory::pool::{Buffer, Cache};
use crate::sys::poll::{Wakeup, wait_for_completions};
use crate::sys::readiness::Readiness;
use crate::sys::uring_send::UringRefused;

/// Number of open zero-copy calls from which completions are read: often enough that buffers return while they are in the cache.
pub(crate) const REAP_AT: usize = 16;

/// A position in the queue: a load, and how many of its bytes are in front of the position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) ticket: u64,
    pub(crate) bytes: usize,
}

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

/// Loads `M`, each with a note `T`, and the calls that carry them, each with a note `C`.
#[derive(Debug)]
pub(crate) struct Sending<M, T, C> {
    kept: Kept<M, T, C>,
    /// The next load: the first that was not handed over whole, and how many of its bytes were.
    next: Place,
    home: Home<M>,
    pub(crate) books: Books,
    readiness: Readiness,
    /// Completions of calls that were never made.
    strange_completions: u64,
}

/// Where free buffers are returned to.
#[derive(Debug)]
struct Home<M> {
    cache: Cache,
    completed: Option<VecDeque<Completed<M>>>,
}

impl<M: Load> Home<M> {
    #[inline]
    fn taker(&mut self) -> impl FnMut(Ticket, M, Evidence) {
        |ticket, load, evidence| match &mut self.completed {
            Some(completed) if load.comes_back() => {
                completed.push_back(Completed { ticket, evidence, item: load })
            }
            _ => load.into_buffers().for_each(|buffer| self.cache.put(buffer)),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) tally: Ledger,
    paths: Paths,
    /// The path to the destination of the last finished call, which is usually that of the next.
    last_path: Option<(u32, Path)>,
    /// The path of the first call among those that one completion covers.
    of_range: Option<Path>,
}

impl Books {
    pub(crate) fn new(paths: Paths) -> Self {
        Self { tally: Ledger::default(), paths, last_path: None, of_range: None }
    }

    /// Forgets the path that was looked up last: its number now means another destination.
    pub(crate) fn forget_path(&mut self) {
        self.last_path = None;
    }

    fn refresh(&mut self) {
        self.paths.refresh();
        self.last_path = None;
    }

    /// The evidence of a completion of a call to that destination.
    pub(crate) fn judge(
        &mut self,
        destination: u32,
        to: impl FnOnce() -> Option<IpAddr>,
        told: Told,
    ) -> Evidence {
        if told.is_first {
            self.of_range = None;
        }
        let path = match self.last_path {
            Some((last, path)) if last == destination => path,
            _ => self.paths.to(to()),
        };
        self.last_path = Some((destination, path));
        // The kernel joins consecutive completions, and reports "copied" of the first only (`skb_zerocopy_notify_extend`).
        let is_spoken_for = *self.of_range.get_or_insert(path) == path;
        if is_spoken_for { path.evidence(told.copied) } else { Evidence::Unknown }
    }
}

impl<M: Load, T, C> Sending<M, T, C> {
    pub(crate) fn new(socket: Arc<KernelSocket>, cache: Cache, paths: Paths, return_buffers: bool) -> Self {
        Self {
            kept: Kept::new(socket, cache.share()),
            next: Place { ticket: 0, bytes: 0 },
            home: Home { cache, completed: return_buffers.then(VecDeque::new) },
            books: Books::new(paths),
            readiness: Readiness::to_send(),
            strange_completions: 0,
        }
    }

    #[inline]
    pub(crate) fn kept(&self) -> &Kept<M, T, C> {
        &self.kept
    }

    #[inline]
    pub(crate) fn kept_mut(&mut self) -> &mut Kept<M, T, C> {
        &mut self.kept
    }

    #[inline]
    pub(crate) fn messages(&self) -> &Messages<M, T> {
        self.kept.messages()
    }

    #[inline]
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.kept.socket()
    }

    #[inline]
    pub(crate) fn cache(&self) -> &Cache {
        &self.home.cache
    }

    #[inline]
    pub(crate) fn cache_mut(&mut self) -> &mut Cache {
        &mut self.home.cache
    }

    #[inline]
    pub(crate) fn recycle(&mut self, buffer: Buffer) {
        self.home.cache.put(buffer);
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, load: M, note: T) -> Ticket {
        self.kept.push(load, note)
    }

    /// Makes the ring with the pool's memory registered, if there is none; returns whether it was made now.
    pub(crate) fn open_ring(&mut self, sends: u32) -> Result<bool, UringRefused> {
        let is_new = self.kept.open_ring(self.home.cache.pool(), sends)?;
        if let Some(ring) = self.kept.ring_descriptor().filter(|_| is_new) {
            self.readiness.watch_also(ring, true);
        }
        Ok(is_new)
    }

    /// The socket, and the load at the front of the queue, to be taken out and put back.
    pub(crate) fn unread_mut(&mut self) -> (&mut Option<M>, BorrowedFd<'_>) {
        self.kept.unread_mut(self.next.ticket)
    }

    #[inline]
    pub(crate) fn next(&self) -> Place {
        self.next
    }

    #[inline]
    pub(crate) fn queued(&self) -> usize {
        (self.kept.messages().end() - self.next.ticket) as usize
    }

    /// Calls whose memory the kernel still reads.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.kept.in_flight()
    }

    /// Continues at `to`; `evidence` is that of the skipped bytes, if no call reports it.
    #[inline]
    pub(crate) fn pass_to(&mut self, to: Place, evidence: Option<Evidence>) {
        let from = std::mem::replace(&mut self.next, to);
        for ticket in from.ticket..to.ticket {
            self.kept.handed_over(ticket, evidence, &mut self.home.taker());
        }
        if to.bytes > 0
            && to != from
            && let Some(evidence) = evidence
        {
            self.kept.learn(to.ticket, evidence);
        }
    }

    /// Removes the only load, which a copying call sent; `take` removes its buffer.
    #[inline(always)]
    pub(crate) fn pop_only(&mut self, take: impl FnOnce(&mut M) -> Option<Buffer>, evidence: Evidence)
    where
        M: From<Buffer>,
    {
        let ticket = Ticket(self.next.ticket);
        self.next.ticket += 1;
        match (self.kept.pop(take).flatten(), &mut self.home.completed) {
            (Some(buffer), None) => self.home.cache.put(buffer),
            (Some(buffer), Some(all)) => all.push_back(Completed { ticket, evidence, item: buffer.into() }),
            (None, _) => {} // there is one, as was looked at
        }
    }

    /// Removes the loads that were not handed over, in order. Those that the kernel reads in part stay.
    pub(crate) fn take_unsent(&mut self) -> Vec<M> {
        let end = self.kept.messages().end();
        let mut unsent = Vec::new();
        for ticket in self.next.ticket..end {
            self.kept.handed_over(ticket, None, &mut |_, load, _| unsent.push(load));
        }
        self.next = Place { ticket: end, bytes: 0 };
        unsent
    }

    /// Reads the completions of MSG_ZEROCOPY calls, and the network's errors; returns how many calls are finished. `judge` books a
    /// finished call, and returns its evidence.
    pub(crate) fn reap(&mut self, mut judge: impl FnMut(&mut Books, &C, Told) -> Evidence) -> usize {
        if self.in_flight() > 0 {
            self.books.refresh();
        }
        let Self { kept, home, books, strange_completions, .. } = self;
        let (over, strange) = kept.reap(&mut |call, told| judge(books, call, told), &mut home.taker());
        *strange_completions += strange;
        over
    }

    /// As [`reap`](Self::reap), for calls by io_uring. Refused calls [stay](Kept::failed) until [`settle_failed`](Self::settle_failed).
    pub(crate) fn reap_ring(&mut self, mut judge: impl FnMut(&mut Books, &C, Told) -> Evidence) -> usize {
        let Self { kept, home, books, .. } = self;
        kept.reap_ring(&mut |call, told| judge(books, call, told), &mut home.taker())
    }

    /// Settles a call that the ring refused and other calls replaced, with their evidence; returns the ring's reason.
    pub(crate) fn settle_failed(&mut self, evidence: Evidence) -> Option<io::Error> {
        self.kept.settle_failed(evidence, &mut self.home.taker())
    }

    /// Waits for completions of earlier sends.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<Wakeup> {
        wait_for_completions(self.kept.socket(), self.kept.ring(), timeout)
    }

    /// The next load that is free again, if completions are kept.
    pub(crate) fn completed(&mut self) -> Option<Completed<M>> {
        self.home.completed.as_mut()?.pop_front()
    }

    /// Completions of calls that were never made: kernel faults.
    pub(crate) fn strange_completions(&self) -> u64 {
        self.strange_completions + self.kept.ring_faults()
    }

    /// Whether the descriptor also reports room to send.
    #[inline]
    pub(crate) fn wants_room(&self) -> bool {
        self.readiness.wants_room()
    }

    /// Sets whether the descriptor also reports room to send.
    #[inline]
    pub(crate) fn want_room(&self, wanted: bool) {
        self.readiness.want_room(self.kept.socket(), wanted);
    }

    /// Sets whether the descriptor is also readable while another one is.
    pub(crate) fn watch_also(&self, other: BorrowedFd<'_>, wanted: bool) {
        self.readiness.watch_also(other, wanted);
    }

    /// A descriptor that is readable while the kernel has something to report about sends, by the socket or by its ring, or, if wanted,
    /// there is room to send.
    /// Panics at the first call, if the process has no descriptor left.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.readiness.descriptor_of(self.kept.socket(), self.kept.ring_descriptor())
    }
}
