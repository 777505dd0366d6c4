//! How a queue ends: what was not sent is taken back, and memory that the kernel still reads is left to the
//! reaper, or given up.

use std::sync::Arc;

use super::{CallNote, Entries, FreedPayloads, Payload, Position, SendQueue, payload_bytes};
use crate::memory::pool::BufferCache;

impl<P: Payload, C: CallNote> SendQueue<P, C> {
    /// Removes the payloads that were not handed over, in order. Those that the kernel reads in part stay
    /// until it has.
    pub(crate) fn take_unsent(&mut self) -> Vec<P> {
        let end = self.entries.next_ticket();
        let unsent = (self.head.ticket..end).filter_map(|ticket| self.entries.take_unsent(ticket)).collect();
        self.head = Position::start_of(end);
        unsent
    }

    /// Moves everything out that the kernel may read or report, into a queue that drops what becomes free.
    /// Later entries get the following tickets.
    pub(crate) fn detach(&mut self) -> Self {
        let pool = self.freed.cache.pool().clone();
        let freed = FreedPayloads { cache: BufferCache::without_buffers(pool), completed: None };
        let end = self.entries.next_ticket();
        // It makes no MSG_ZEROCOPY calls: the detached queue keeps that role, and gives it back when its
        // calls are over.
        let next = Self::starting_at(end, Arc::clone(&self.socket), freed, None);
        let mut detached = std::mem::replace(self, next);
        std::mem::swap(&mut self.freed, &mut detached.freed);
        std::mem::swap(&mut self.readiness, &mut detached.readiness);
        std::mem::swap(&mut self.unknown_completions, &mut detached.unknown_completions);
        detached
    }

    /// Ends all finished calls, without evidence.
    pub(crate) fn settle_without_evidence(&mut self) {
        while let Some(done) = self.next_completion() {
            self.settle(done, None);
        }
    }

    /// Whether all pages that the kernel reads can be replaced, once this sender's ring has ended.
    #[cfg(feature = "tcp")]
    pub(crate) fn can_replace_pages(&self) -> bool {
        let ring = self.ring.as_ref().map(|ring| &ring.memory);
        self.entries.in_kernel().flat_map(Payload::buffers).all(|buffer| buffer.can_replace_pages(ring))
    }

    /// Bytes that the kernel reads.
    pub(crate) fn read_bytes(&self) -> usize {
        self.entries.in_kernel().map(payload_bytes).sum()
    }

    /// Gives up the memory that the kernel still reads, and returns how many bytes the program cannot use
    /// again.
    pub(crate) fn abandon(mut self) -> usize {
        if self.is_inherited() {
            return 0; // nothing of this process is read
        }
        if let Some(ring) = &mut self.ring {
            ring.sender.cancel_waiting_sends(); // calls that wait for room are reported as refused
        }
        self.collect_ring();
        self.settle_without_evidence();
        // The ring has the old pages registered: it must end before they are replaced.
        drop(self.ring.take());
        // Taken out, so that `drop`, which would leak the entries of open calls, finds none.
        let entries = std::mem::replace(&mut self.entries, Entries::starting_at(0));
        let mut lost_bytes = 0;
        for payload in entries.abandon() {
            payload.into_buffers().into_iter().for_each(|buffer| lost_bytes += buffer.abandon());
        }
        lost_bytes
    }
}

impl<P: Payload, C: CallNote> Drop for SendQueue<P, C> {
    fn drop(&mut self) {
        if self.in_flight() > 0 || (self.ring.is_some() && self.is_inherited()) {
            let entries = std::mem::replace(&mut self.entries, Entries::starting_at(0));
            std::mem::forget((entries, self.ring.take()));
        }
        self.numbered.release_numbering(&self.socket);
    }
}
