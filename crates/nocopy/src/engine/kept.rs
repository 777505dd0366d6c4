//! What has to stay as long as the kernel reads it, and by what the kernel tells that it has done.
#![allow(unsafe_code)]

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::in_flight::{Calls, Messages, Ticket};
use super::kernel_socket::KernelSocket;
use super::reaper::{self, Orphan};
use crate::facts::evidence::Evidence;
use crate::memory::pool::{Pool, Registration, Sharer};
use crate::sys::error_queue::Done;
use crate::sys::fork::Generation;
use crate::sys::option;
use crate::sys::udp_send::unsent_bytes;
use crate::sys::uring_send::{UringRefused, UringSender};

const BUSY: &str = "the kernel has not told yet how many MSG_ZEROCOPY calls were made on this socket, by this sender or another one: \
                    drain them, and try again";

const FORKED: &str = "this process is a forked child of the one that sends on this socket, which would go on numbering its MSG_ZEROCOPY \
                      calls: ask in the parent, before the fork";

/// What is queued as one: a message of datagrams, a piece of a stream.
pub(crate) trait Load: Send {
    /// Bytes of memory.
    fn bytes(&self) -> usize;

    /// Gives it up while the kernel may still read it, and returns how many bytes are lost to the program.
    fn abandon(self) -> usize;
}

/// A call that the kernel took.
pub(crate) trait Call: Send {
    /// The tickets of what it reads all or part of.
    fn reads(&self) -> RangeInclusive<u64>;

    /// Makes the kernel drop what it has not sent, or may have to send again. Datagrams are sent once, and soon.
    fn cut_off(_socket: BorrowedFd<'_>) {}
}

/// What has to stay as long as the kernel reads it: loads, and the calls that carry them.
///
/// Dropped while the kernel reads some of it, all of it stays where it is for good. That happens where a fault unwinds the reaper, and in
/// forked children: what they have is a copy, whose socket is their parent's, and whose ring is not mapped there.
#[derive(Debug)]
pub(crate) struct Kept<M, T, C> {
    pub(crate) socket: Arc<KernelSocket>,
    pub(crate) messages: Messages<M, T>,
    /// Of MSG_ZEROCOPY; the error queue tells of them.
    pub(crate) calls: Calls<C>,
    numbering: Numbering,
    /// At most one: no call is made until it is over.
    pub(crate) doubt: Option<Doubt<C>>,
    pub(crate) ring: Option<Ring<C>>,
    /// What is in flight after the sender was dropped is away from those that share its pool, too.
    pub(crate) sharer: Option<Sharer>,
    /// How long the kernel may take when nobody has the socket any more.
    patience: Duration,
    /// Of the process that makes the calls, and gets their completions.
    generation: Generation,
}

/// Whether this sender makes MSG_ZEROCOPY calls. All that are made on a socket have one numbering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbering {
    /// It makes none.
    NotOurs,
    /// It alone makes them. Before the first the kernel kept so much [beside data](KernelSocket::option_memory_bytes).
    Ours { idle_bytes: Option<u32> },
    /// It made them, and waits for the last. From now on others may make such calls.
    GivenAway,
}

/// A MSG_ZEROCOPY call of datagrams failed. The kernel has counted it if it had made the packet before it found that it cannot send it.
///
/// Most often it has told of its completion, too, before the call returned. But parts of the packet may be under way, and read their
/// memory: the first fragments of a long datagram, a copy for the receivers of a group on this host. Then nothing is told yet, and to
/// take the next call's number for this one's would free memory that the kernel reads. So a call that fails on purpose
/// (`Burst::count_one`) follows: the number it is told by says whether the one before was counted. Until that is known the
/// memory is held, also where there was no memory to find out.
#[derive(Debug)]
pub(crate) struct Doubt<C> {
    /// As if it had carried nothing.
    failed: C,
    /// Whether the next number, and the one behind it, were told.
    told: [bool; 2],
    /// The call on purpose met the same error, and that is one of looking for the way: no packet was made of either.
    is_uncounted: bool,
    /// It was tried again, and not told.
    pub(crate) is_tried: bool,
}

/// Why a sender makes no MSG_ZEROCOPY calls.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.why())]
pub(crate) enum NoZeroCopy {
    /// Another sender does, or gave calls up that the kernel has not completed.
    Taken,
    /// There may be other descriptors of the socket, by which others may make such calls.
    Shared,
    /// Such calls were made before the socket was handed over, so their number is not known.
    Used,
    Kernel(#[source] io::Error),
}

impl NoZeroCopy {
    pub(crate) fn why(&self) -> &'static str {
        match self {
            Self::Taken => {
                "another sender makes the MSG_ZEROCOPY calls of this socket, which the kernel numbers together: use io_uring, or one sender"
            }
            Self::Shared => {
                "the program may have other descriptors of this socket, and the kernel numbers the MSG_ZEROCOPY calls of all together: use \
                 io_uring, or a socket that was made here"
            }
            Self::Used => {
                "the socket was used for zero-copy sends before it was handed over (SO_ZEROCOPY is set): hand it over unused"
            }
            Self::Kernel(_) => {
                "the kernel refuses SO_ZEROCOPY: Linux 4.14 or later takes it for TCP sockets, 5.0 for UDP sockets"
            }
        }
    }
}

/// Calls by io_uring. The ring is dropped before the pool whose memory it has registered.
#[derive(Debug)]
pub(crate) struct Ring<C> {
    pub(crate) sender: UringSender,
    pub(crate) calls: Calls<C>,
    /// Those the kernel refused, whose loads are still held.
    pub(crate) failed: Vec<(C, io::Error)>,
    pub(crate) memory: Registration,
}

impl<M, T, C: Call> Kept<M, T, C> {
    pub(crate) fn new(socket: Arc<KernelSocket>, patience: Duration) -> Self {
        let (messages, calls) = (Messages::default(), Calls::default());
        let (numbering, generation) = (Numbering::NotOurs, Generation::current());
        let (doubt, ring, sharer) = (None, None, None);
        Self { socket, messages, calls, numbering, doubt, ring, sharer, patience, generation }
    }

    /// All of it, to be kept by another.
    pub(crate) fn take(&mut self) -> Self {
        let none = Self::new(Arc::clone(&self.socket), self.patience);
        std::mem::replace(self, none)
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Before the first MSG_ZEROCOPY call: makes this sender the one that makes such calls on the socket.
    ///
    /// # Errors
    /// See [`NoZeroCopy`].
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

    /// From now on others may make MSG_ZEROCOPY calls on the socket; this sender makes none any more.
    ///
    /// # Errors
    /// `ResourceBusy`: another sender may make them, or a call failed of which it is not known yet whether it has a number. `Unsupported`
    /// in a forked child, whose parent goes on making them.
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

    /// Before each MSG_ZEROCOPY call, beside [`check_process`](Self::check_process).
    ///
    /// # Errors
    /// `Unsupported` where this sender may not make them.
    pub(crate) fn check_numbering(&self) -> io::Result<()> {
        match self.numbering {
            Numbering::Ours { .. } => Ok(()),
            Numbering::NotOurs | Numbering::GivenAway => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Before each zero-copy call: a forked child would take a number of the socket's, and its parent that call for one of its own.
    ///
    /// # Errors
    /// `Unsupported` in a child: what is copied can be sent all the same.
    pub(crate) fn check_process(&self) -> io::Result<()> {
        if self.is_inherited() { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
    }

    /// The next completion of MSG_ZEROCOPY calls; reads what else is in the error queue, too.
    pub(crate) fn next_done(&self) -> Option<Done> {
        if self.numbering == Numbering::NotOurs {
            self.socket.read();
            return None;
        }
        self.socket.next_done()
    }

    /// Makes the ring, with the pool's memory registered.
    pub(crate) fn open_ring(&mut self, pool: &Pool, sends: u32) -> Result<(), UringRefused> {
        // First: from here on none of its pages is replaced by others.
        let memory = pool.register();
        // SAFETY: the ring and the pool, whose memory it is, stay together.
        let sender = unsafe { UringSender::new(self.socket.as_fd(), Some(pool.memory()), sends)? };
        self.ring = Some(Ring { sender, calls: Calls::default(), failed: Vec::new(), memory });
        Ok(())
    }

    /// What becomes readable when calls by the ring are over.
    pub(crate) fn ring(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().filter(|ring| ring.calls.open() > 0).map(|ring| ring.sender.as_fd())
    }

    /// Whether there is a ring that takes nothing more for now.
    pub(crate) fn is_ring_full(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.sender.is_full())
    }

    /// The same, for good.
    pub(crate) fn is_ring_broken(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.sender.is_broken())
    }

    /// Completions of calls by the ring that were never made.
    pub(crate) fn ring_faults(&self) -> u64 {
        self.ring.as_ref().map_or(0, |ring| ring.sender.faults())
    }

    /// The kernel says that calls are over. `judge` tells what that proves of one, and `free` takes what nobody reads any more. Returns
    /// how many were over, and how many of those named were never made, or over before.
    pub(crate) fn done(
        &mut self,
        done: Done,
        mut judge: impl FnMut(&C) -> Evidence,
        free: &mut impl FnMut(Ticket, M, Evidence),
    ) -> (usize, u64) {
        let first = self.calls.number(done.first);
        let named = first..first + i64::from(done.last.wrapping_sub(done.first)) + 1;
        let mut over = 0;
        for number in self.calls.among(&named) {
            let Some(call) = self.calls.take(number) else { continue };
            let evidence = judge(&call);
            self.messages.returned(call.reads(), Some(evidence), free);
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
        // Once others make calls their numbers are told here, too.
        (over, if self.numbering == Numbering::GivenAway { 0 } else { strange })
    }

    /// A MSG_ZEROCOPY call failed, and may have a number; [`conclude`](Self::conclude) finds out. What it was to carry stays until then.
    pub(crate) fn doubt(&mut self, failed: C, is_uncounted: bool) {
        self.messages.called(failed.reads());
        self.doubt = Some(Doubt { failed, told: [false; 2], is_uncounted, is_tried: false });
    }

    /// Whether there is such a call, and the kernel remembers none: it reads no memory, and all completions were read. To be asked before
    /// completions are read, for [`conclude`](Self::conclude): of what was read by another half meanwhile this says nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        let Numbering::Ours { idle_bytes: Some(idle) } = self.numbering else { return false };
        self.doubt.is_some() && self.socket.option_memory_bytes().is_some_and(|bytes| bytes <= idle)
    }

    /// Completions were read: concludes from them how the kernel counts, as far as they say enough.
    pub(crate) fn conclude(&mut self, was_quiet: bool, free: &mut impl FnMut(Ticket, M, Evidence)) {
        let Some(doubt) = self.doubt.take() else { return };
        let numbers = match doubt.told {
            [false, false] if doubt.is_uncounted || was_quiet => 0,
            [false, false] => {
                // The kernel was too short of memory for the call on purpose.
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
        self.messages.returned(doubt.failed.reads(), None, free);
    }

    /// The same of calls by the ring. Those the kernel refused are put aside, for who can send them again.
    pub(crate) fn done_by_ring(
        &mut self,
        mut judge: impl FnMut(&C, bool) -> Evidence,
        free: &mut impl FnMut(Ticket, M, Evidence),
    ) -> usize {
        if self.is_inherited() {
            return 0;
        }
        let (Some(ring), messages) = (&mut self.ring, &mut self.messages) else { return 0 };
        let (calls, failed) = (&mut ring.calls, &mut ring.failed);
        // What the kernel did not take when it was short of memory. It may be again: then the next time.
        let _ = ring.sender.submit();
        ring.sender.reap(|number, done| {
            let Some(call) = calls.take(number) else { return };
            match done.result {
                Ok(_) => messages.returned(call.reads(), Some(judge(&call, done.copied)), free),
                Err(error) => failed.push((call, error)),
            }
        })
    }

    /// Lets go of what the kernel refused: nobody is there who could send it again.
    pub(crate) fn drop_failed(&mut self) {
        let failed = self.ring.iter_mut().flat_map(|ring| ring.failed.drain(..));
        for (call, _) in failed {
            self.messages.returned(call.reads(), None, &mut |_, message, _| drop(message));
        }
    }
}

impl<M, T, C> Kept<M, T, C> {
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

impl<M: Load + 'static, T: Send + 'static, C: Call + 'static> Kept<M, T, C> {
    /// Leaves what the kernel still reads to the reaper.
    pub(crate) fn leave(&mut self) {
        if self.in_flight() > 0 && !self.is_inherited() {
            reaper::adopt(Box::new(self.take()));
        }
    }
}

impl<M, T, C> Drop for Kept<M, T, C> {
    fn drop(&mut self) {
        if self.in_flight() > 0 || (self.ring.is_some() && self.is_inherited()) {
            std::mem::forget((std::mem::take(&mut self.messages), self.ring.take()));
        }
        if self.numbering != Numbering::NotOurs {
            let is_ours = matches!(self.numbering, Numbering::Ours { .. });
            let is_known = is_ours && self.calls.open() == 0 && self.doubt.is_none();
            self.socket.give_back(is_known.then(|| self.calls.end()));
        }
    }
}

impl<M: Load, T: Send, C: Call> Orphan for Kept<M, T, C> {
    fn reap(&mut self) {
        let free = &mut |_, message: M, _| drop(message);
        let was_quiet = self.is_quiet();
        while let Some(done) = self.next_done() {
            self.done(done, |_| Evidence::Unknown, free);
        }
        self.conclude(was_quiet, free);
        self.done_by_ring(|_, _| Evidence::Unknown, free);
        self.drop_failed();
    }

    fn is_read(&self) -> bool {
        self.in_flight() > 0 && !self.is_inherited()
    }

    fn bytes(&self) -> usize {
        self.messages.read().map(Load::bytes).sum()
    }

    fn outstanding_bytes(&self) -> usize {
        unsent_bytes(&self.socket()).unwrap_or(0)
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    /// The program may still receive on it.
    fn cut_off(&mut self) {
        if !self.is_inherited() && !KernelSocket::is_shared(&self.socket) {
            C::cut_off(self.socket());
        }
    }

    fn abandon(mut self: Box<Self>) -> usize {
        if self.is_inherited() {
            return 0; // nothing of this process is read
        }
        if let Some(ring) = &mut self.ring {
            ring.sender.cancel();
        }
        self.done_by_ring(|_, _| Evidence::Unknown, &mut |_, message, _| drop(message));
        self.drop_failed();
        // Pages that come in the place of others are not those the ring has registered: it ends first.
        drop(self.ring.take());
        std::mem::take(&mut self.messages).abandon().map(Load::abandon).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    impl Load for Arc<()> {
        fn bytes(&self) -> usize {
            0
        }

        fn abandon(self) -> usize {
            0
        }
    }

    struct One;

    impl Call for One {
        fn reads(&self) -> RangeInclusive<u64> {
            0..=0
        }
    }

    #[test]
    fn what_is_dropped_while_it_is_read_stays() {
        for is_read in [false, true] {
            let load = Arc::new(());
            let descriptor = UdpSocket::bind("127.0.0.1:0").unwrap().into();
            let mut kept = Kept::new(KernelSocket::new(Arc::new(descriptor)), Duration::ZERO);
            kept.messages.push(Arc::clone(&load), ());
            if is_read {
                kept.messages.called(0..=0);
                kept.calls.push(One);
            }
            drop(kept);
            assert_eq!(Arc::strong_count(&load), if is_read { 2 } else { 1 });
        }
    }
}
