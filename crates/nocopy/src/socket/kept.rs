//! What has to stay as long as the kernel reads it, and by what the kernel tells that it has done.
#![allow(unsafe_code)]

use std::io;
use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::in_flight::{Calls, Messages, Ticket};
use super::reaper::Orphan;
use crate::evidence::Evidence;
use crate::pool::{Pool, Registration};
use crate::sys::error_queue::{Notice, next_notice};
use crate::sys::uring_send::{UringRefused, UringSender};

/// What is queued as one: a message of datagrams, a piece of a stream.
pub(super) trait Load: Send {
    /// Gives it up while the kernel may still read it, and returns how many bytes are lost to the program.
    fn abandon(self) -> usize;
}

/// A call that the kernel took.
pub(super) trait Call: Send {
    /// The tickets of what it reads all or part of.
    fn reads(&self) -> RangeInclusive<u64>;
}

/// What has to stay as long as the kernel reads it: loads, and the calls that carry them.
#[derive(Debug)]
pub(super) struct Kept<M, T, C> {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) messages: Messages<M, T>,
    /// Of MSG_ZEROCOPY; the error queue tells of them.
    pub(super) calls: Calls<C>,
    pub(super) ring: Option<Ring<C>>,
    /// How long the kernel may take when nobody has the socket any more.
    patience: Duration,
}

/// Calls by io_uring. The ring is dropped before the pool whose memory it has registered.
#[derive(Debug)]
pub(super) struct Ring<C> {
    pub(super) sender: UringSender,
    pub(super) calls: Calls<C>,
    /// Those the kernel refused, whose loads are still held.
    pub(super) failed: Vec<(C, io::Error)>,
    _memory: Registration,
}

impl<M, T, C: Call> Kept<M, T, C> {
    pub(super) fn new(socket: Arc<OwnedFd>, patience: Duration) -> Self {
        Self { socket, messages: Messages::default(), calls: Calls::default(), ring: None, patience }
    }

    /// All of it, to be kept by another.
    pub(super) fn take(&mut self) -> Self {
        let none = Self::new(Arc::clone(&self.socket), self.patience);
        std::mem::replace(self, none)
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Makes the ring, with the pool's memory registered.
    pub(super) fn open_ring(&mut self, pool: &Pool, sends: u32) -> Result<(), UringRefused> {
        // First: from here on none of its pages is replaced by others.
        let memory = pool.register();
        // SAFETY: the ring and the pool, whose memory it is, stay together.
        let sender = unsafe { UringSender::new(self.socket.as_fd(), Some(pool.memory()), sends)? };
        self.ring = Some(Ring { sender, calls: Calls::default(), failed: Vec::new(), _memory: memory });
        Ok(())
    }

    /// What becomes readable when calls by the ring are over.
    pub(super) fn ring(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().filter(|ring| ring.calls.open() > 0).map(|ring| ring.sender.as_fd())
    }

    /// Whether there is a ring that takes nothing more for now.
    pub(super) fn is_ring_full(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.sender.is_full())
    }

    /// The same, for good.
    pub(super) fn is_ring_broken(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.sender.is_broken())
    }

    /// Completions of calls by the ring that were never made.
    pub(super) fn ring_faults(&self) -> u64 {
        self.ring.as_ref().map_or(0, |ring| ring.sender.faults())
    }

    /// Calls whose memory the kernel still reads.
    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.calls.open() + self.ring.as_ref().map_or(0, |ring| ring.calls.open() + ring.failed.len())
    }

    /// The kernel says that the calls from `first` to `last` are over. `judge` tells what that proves of one, and `free` takes what
    /// nobody reads any more. Returns how many were over, and the numbers that were named.
    pub(super) fn done(
        &mut self,
        first: u32,
        last: u32,
        mut judge: impl FnMut(&C) -> Evidence,
        free: &mut impl FnMut(Ticket, M, Evidence),
    ) -> (usize, Range<i64>) {
        let count = i64::from(last.wrapping_sub(first)) + 1;
        let first = self.calls.number(first);
        let named = first..first + count;
        let mut over = 0;
        for number in self.calls.among(&named) {
            let Some(call) = self.calls.take(number) else { continue };
            let evidence = judge(&call);
            self.messages.returned(call.reads(), evidence, free);
            over += 1;
        }
        (over, named)
    }

    /// The same of calls by the ring. Those the kernel refused are put aside, for who can send them again.
    pub(super) fn done_by_ring(
        &mut self,
        mut judge: impl FnMut(&C, bool) -> Evidence,
        free: &mut impl FnMut(Ticket, M, Evidence),
    ) -> usize {
        let (Some(ring), messages) = (&mut self.ring, &mut self.messages) else { return 0 };
        let (calls, failed) = (&mut ring.calls, &mut ring.failed);
        // What the kernel did not take when it was short of memory. It may be again: then the next time.
        let _ = ring.sender.submit();
        ring.sender.reap(|number, done| {
            let Some(call) = calls.take(number) else { return };
            match done.result {
                Ok(_) => messages.returned(call.reads(), judge(&call, done.copied), free),
                Err(error) => failed.push((call, error)),
            }
        })
    }

    /// Lets go of what the kernel refused: nobody is there who could send it again.
    pub(super) fn drop_failed(&mut self) {
        let failed = self.ring.iter_mut().flat_map(|ring| ring.failed.drain(..));
        for (call, _) in failed {
            self.messages.returned(call.reads(), Evidence::Unknown, &mut |_, message, _| drop(message));
        }
    }
}

impl<M: Load, T: Send, C: Call> Orphan for Kept<M, T, C> {
    fn reap(&mut self) {
        let free = &mut |_, message: M, _| drop(message);
        while let Ok(Some(notice)) = next_notice(self.socket()) {
            if let Notice::Done { first, last, .. } = notice {
                self.done(first, last, |_| Evidence::Unknown, free);
            }
        }
        self.done_by_ring(|_, _| Evidence::Unknown, free);
        self.drop_failed();
    }

    fn is_read(&self) -> bool {
        self.in_flight() > 0
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn abandon(mut self: Box<Self>) -> usize {
        if let Some(ring) = &mut self.ring {
            ring.sender.cancel();
        }
        self.done_by_ring(|_, _| Evidence::Unknown, &mut |_, message, _| drop(message));
        self.drop_failed();
        // Pages that come in the place of others are not those the ring has registered: it ends first.
        drop(self.ring.take());
        self.messages.abandon().map(Load::abandon).sum()
    }
}
