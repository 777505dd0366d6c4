//! The calls that hand bytes of entries to the kernel. Each is recorded before any other step that could
//! fail.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::numbering::{CallReport, CallTable, NoZeroCopyReason, OpenCall};
use super::{CallNote, Entries, Extent, Payload, SendQueue};
use crate::memory::pool::Registration;
use crate::sys::udp_send::{self, KernelDestination};
use crate::sys::uring_send::{RingFull, UringError, UringSender};

/// Calls by io_uring. The order of the fields matters: the ring is dropped before the pool whose memory it
/// has registered.
#[derive(Debug)]
pub(super) struct UringCalls<C> {
    pub(super) sender: UringSender,
    pub(super) calls: CallTable<OpenCall<C>>,
    #[cfg_attr(not(feature = "tcp"), expect(dead_code, reason = "held; only a closed stream asks it"))]
    pub(super) memory: Registration,
    /// The socket's send buffer.
    buffer_bytes: usize,
}

/// Whether the kernel had no memory for a call, or to record one without a copy.
pub(crate) fn is_no_buffers(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// Whether another method may succeed where this one failed.
pub(crate) fn is_of_method(error: &io::Error) -> bool {
    let limits = [libc::EMSGSIZE, libc::EINVAL, libc::EIO, libc::EOPNOTSUPP, libc::ENOPROTOOPT, libc::EFAULT];
    error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error().is_some_and(|errno| limits.contains(&errno))
}

/// Memory for a call of several messages, each with a note.
#[derive(Debug)]
pub(crate) struct Burst<C> {
    burst: udp_send::Burst,
    calls: Vec<(Extent, C)>,
}

impl<C> Burst<C> {
    pub(crate) fn new() -> Self {
        Self { burst: udp_send::Burst::new(), calls: Vec::with_capacity(udp_send::MESSAGES_MAX) }
    }

    /// The messages of the last call of which the kernel accepted so many.
    pub(crate) fn accepted(&self, count: usize) -> &[(Extent, C)] {
        // The count is the kernel's, and not trusted.
        &self.calls[..count.min(self.calls.len())]
    }
}

/// Messages for one call and one destination, made of entries, which do not change until the call was made.
#[derive(Debug)]
pub(crate) struct Batch<'a, P: Payload, C: CallNote> {
    queue: &'a mut SendQueue<P, C>,
    burst: &'a mut Burst<C>,
    to: KernelDestination<'a>,
}

impl<P: Payload, C: CallNote> SendQueue<P, C> {
    /// Makes this sender the one that makes MSG_ZEROCOPY calls on the socket; called before the first.
    pub(crate) fn allow_zero_copy(&mut self) -> Result<(), NoZeroCopyReason> {
        self.numbered.become_zero_copy_sender(&self.socket)
    }

    /// Lets others make MSG_ZEROCOPY calls on the socket; this sender makes no more. Errors: `ResourceBusy`:
    /// another sender may make them, or it is not known whether a failed call has a number. `Unsupported` in
    /// a forked child, because its parent may make further calls.
    pub(crate) fn share_socket(&mut self) -> io::Result<()> {
        let is_inherited = self.is_inherited();
        self.numbered.share_socket(&self.socket, is_inherited)
    }

    /// MSG_ZEROCOPY calls without a report.
    pub(crate) fn unreported_call_count(&self) -> usize {
        self.numbered.calls.open_count()
    }

    /// Whether reports must be read before the next MSG_ZEROCOPY call, because its number is uncertain.
    #[inline]
    pub(crate) fn is_next_number_uncertain(&self) -> bool {
        self.numbered.uncertain.is_some()
    }

    pub(super) fn check_zero_copy(&self) -> io::Result<()> {
        self.check_not_forked()?;
        if self.numbered.is_zero_copy_sender() { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    /// Refuses zero-copy calls in a forked child, because they would use up numbers of the socket, and its
    /// parent would mistake them for its own. Errors: `Unsupported` in a child, which can only send copies.
    pub(crate) fn check_not_forked(&self) -> io::Result<()> {
        if self.is_inherited() { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
    }

    /// Begins a call of several messages.
    pub(crate) fn begin_batch<'a>(
        &'a mut self,
        burst: &'a mut Burst<C>,
        to: KernelDestination<'a>,
    ) -> Batch<'a, P, C> {
        burst.burst.clear();
        burst.calls.clear();
        Batch { queue: self, burst, to }
    }

    /// Makes the ring, with the pool's memory registered, unless it exists.
    pub(crate) fn open_ring(&mut self, sends: u32) -> Result<(), UringError> {
        if self.ring.is_some() {
            return Ok(());
        }
        let pool = self.freed.cache.pool();
        // First: from here on none of the pool's pages is replaced.
        let memory = pool.register();
        // SAFETY: `memory` holds the pool, stays beside the ring, and is dropped after it.
        let sender = unsafe { UringSender::new(self.socket.as_fd(), Some(pool.memory_range()), sends)? };
        let buffer_bytes = udp_send::send_buffer_bytes(&*self.socket).unwrap_or(0);
        self.ring = Some(UringCalls { sender, calls: CallTable::starting_at(0), memory, buffer_bytes });
        if let Some(ring) = self.ring_descriptor() {
            self.readiness.watch_other(ring, true);
        }
        Ok(())
    }

    /// How much of the send buffer the ring may fill with datagrams, so that none waits in the kernel and is
    /// overtaken; `None` while one waits, and without a ring.
    pub(crate) fn ring_room(&self) -> io::Result<Option<usize>> {
        let Some(ring) = self.ring.as_ref().filter(|ring| !ring.sender.has_waiting_sends()) else {
            return Ok(None);
        };
        let unsent_bytes = udp_send::unsent_bytes(&*self.socket)?;
        Ok(Some(ring.buffer_bytes.saturating_sub(unsent_bytes)))
    }

    /// The ring's descriptor, if this process has one.
    pub(super) fn ring_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().filter(|_| !self.is_inherited()).map(|ring| ring.sender.as_fd())
    }

    /// Completions of calls that were never made: faults of the kernel.
    pub(crate) fn unknown_completions(&self) -> u64 {
        self.unknown_completions + self.ring.as_ref().map_or(0, |ring| ring.sender.faults())
    }

    /// Queues a message of datagrams with the ring. Fails if the ring is full, if there is none, and in a
    /// forked child.
    pub(crate) fn queue_on_ring(
        &mut self,
        extent: Extent,
        to: KernelDestination<'_>,
        segment_bytes: Option<u16>,
        note: C,
    ) -> Result<(), RingFull> {
        if self.is_inherited() {
            return Err(RingFull);
        }
        let Self { entries, ring, .. } = self;
        let ring = ring.as_mut().ok_or(RingFull)?;
        let pieces = entries.pieces(extent);
        // SAFETY: the entries are held, unchanged, until the call, recorded below, was reported, or they were
        // abandoned for good.
        unsafe { ring.sender.queue_send(ring.calls.next_number(), pieces, to, segment_bytes)? };
        entries.open_call(extent.tickets());
        ring.calls.push(OpenCall { extent, note });
        Ok(())
    }

    /// Submits the queued sends of the ring. Errors: the kernel's error; the next call repeats sends that
    /// were not accepted. `Unsupported` in a forked child.
    pub(crate) fn submit_ring(&mut self) -> io::Result<()> {
        self.check_not_forked()?;
        self.ring.as_mut().map_or(Ok(()), |ring| ring.sender.submit())
    }

    /// As [`collect`](Self::collect), for calls by the ring: no system call, unless the ring asks for one.
    pub(crate) fn collect_ring(&mut self) {
        let is_inherited = self.is_inherited();
        let Some(UringCalls { sender, calls, .. }) = self.ring.as_mut().filter(|_| !is_inherited) else {
            return;
        };
        // Repeats sends that the kernel refused for lack of memory. If that fails, the next call repeats
        // them.
        let _ = sender.submit();
        sender.reap(|number, result, copied| {
            // A number that is not open frees nothing.
            let Some(call) = calls.take(number) else { return };
            let report = CallReport { copied, is_first: true };
            self.finished.push_back((call, result.map(|_| report)));
        });
    }
}

impl<P: Payload, C: CallNote> Batch<'_, P, C> {
    #[inline]
    pub(crate) fn entries(&self) -> &Entries<P> {
        &self.queue.entries
    }

    /// Messages that were added.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.burst.calls.len()
    }

    /// Adds a message, cut into datagrams of so many bytes. `false`: there is no room for it.
    #[inline]
    pub(crate) fn add(&mut self, extent: Extent, segment_bytes: Option<u16>, note: C) -> bool {
        let Burst { burst, calls } = &mut *self.burst;
        let entries = &self.queue.entries;
        let contiguous = entries.contiguous(extent);
        let pieces = match contiguous {
            Some(_) => 1,
            None => extent.tickets().map(|ticket| entries.payload(ticket).buffers().len()).sum(),
        };
        // Before `begin_message`, so that a message is added whole or not at all.
        if !burst.has_room(pieces) {
            return false;
        }
        burst.begin_message(self.to.address);
        if let Some(controls) = self.to.controls {
            burst.add_controls(controls);
        }
        if let Some(bytes) = segment_bytes {
            burst.set_segment_bytes(bytes);
        }
        match contiguous {
            Some(piece) => burst.push_piece(piece),
            None => entries.pieces(extent).for_each(|piece| burst.push_piece(piece)),
        }
        calls.push((extent, note));
        true
    }

    /// Sends the messages with a copy; returns how many the kernel accepted. Returns the kernel's error for
    /// the first message.
    pub(crate) fn send_copied(self, flags: i32) -> io::Result<usize> {
        // SAFETY: the pieces were just made of entries, and stay until the call was made, which copies.
        unsafe { self.burst.burst.send(self.queue.socket.as_fd(), 0, flags & !libc::MSG_ZEROCOPY) }
    }

    /// Sends the messages without a copy; returns how many the kernel accepted. Errors: the kernel's, for the
    /// first message. `Unsupported` if this sender may make no such calls. While it [is
    /// uncertain](SendQueue::is_next_number_uncertain) whether a call was numbered: `EINTR` (read reports and
    /// try again), then `ENOBUFS` (no memory to find out).
    pub(crate) fn send_zero_copy(mut self, flags: i32) -> io::Result<usize> {
        self.queue.check_zero_copy()?;
        if self.queue.is_next_number_uncertain() {
            return Err(self.probe_call_number(flags));
        }
        let Self { queue, burst: Burst { burst, calls }, .. } = &mut self;
        // SAFETY: the pieces were just made of entries, which are held, unchanged, until their calls,
        // recorded below, were reported, or they were abandoned for good.
        let sent = unsafe { burst.send(queue.socket.as_fd(), 0, flags | libc::MSG_ZEROCOPY) };
        let count = *sent.as_ref().unwrap_or(&0);
        // In the order in which the kernel numbers the messages of a burst.
        for &(extent, note) in calls.iter().take(count) {
            queue.entries.open_call(extent.tickets());
            queue.numbered.calls.push(OpenCall { extent, note });
        }
        if let Some(&(extent, note)) = calls.get(count) {
            self.on_failed_call(extent, note, sent.as_ref().err(), flags);
        }
        sent
    }

    /// Handles a failed call; `error` is its own, unless others of its burst were taken. The call may have a
    /// number, so its entries are held until that is known.
    #[cold]
    #[inline(never)]
    fn on_failed_call(&mut self, extent: Extent, note: C, error: Option<&io::Error>, flags: i32) {
        let errno = error.and_then(io::Error::raw_os_error);
        if errno.is_some_and(|errno| [libc::EAGAIN, libc::EINTR].contains(&errno)) {
            return; // it waited, or would have, for room to make the packet in
        }
        let Self { queue, burst, to } = self;
        // Before the probe, so that the memory is held whatever becomes of that.
        queue.entries.open_call(extent.tickets());
        let failed = OpenCall { extent: Extent { bytes: 0, ..extent }, note: note.for_failed_call() };
        let uncertain = queue.numbered.push_uncertain(failed);
        let again = burst.burst.make_refused_call(queue.socket.as_fd(), to.address, flags).raw_os_error();
        // The memory may suffice for one call and not for the other.
        let is_of_memory = |errno| [libc::ENOBUFS, libc::ENOMEM, libc::EAGAIN].contains(&errno);
        uncertain.is_uncounted = errno.is_some_and(|errno| again == Some(errno) && !is_of_memory(errno));
    }

    /// Makes a further call, whose number shows whether the failed one was numbered.
    #[cold]
    #[inline(never)]
    fn probe_call_number(&mut self, flags: i32) -> io::Error {
        let error = self.burst.burst.make_refused_call(self.queue.socket.as_fd(), self.to.address, flags);
        let uncertain = self.queue.numbered.uncertain.as_mut();
        let is_tried = uncertain.is_none_or(|call| std::mem::replace(&mut call.is_tried, true));
        match error.kind() {
            io::ErrorKind::WouldBlock => error,
            _ if is_tried => io::Error::from_raw_os_error(libc::ENOBUFS),
            _ => io::ErrorKind::Interrupted.into(),
        }
    }
}
