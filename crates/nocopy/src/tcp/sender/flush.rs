//! How a sender hands over its queue: the method for each part, and the fallback if a method fails.
//!
//! Data sent without a copy is held until the peer has acknowledged its last byte. The kernel numbers only
//! calls that sent something (in `tcp_sendmsg_locked`, `net_zcopy_put_abort` takes back the number of a
//! failed call).
//!
//! Sends of io_uring are made one by one, without waiting, because the next send could overtake one that
//! waits inside the kernel. Only the time of the calls is measured, because the time that a peer does not
//! read does not depend on the method.

use std::io;
use std::time::{Duration, Instant};

use super::NonblockingSender;
use crate::engine::policy::saturating_size;
use crate::engine::wait::LOOK_AGAIN;
use crate::events::{self, Half};
use crate::facts::evidence::{Cause, Evidence};
use crate::memory::pool;
use crate::memory::send_queue::{CallNote, Extent, Position, REAP_AT, SendMode, is_no_buffers, is_of_method};
use crate::sys::poll::{Wakeup, wait_writable};
use crate::sys::stream;
use crate::tcp::Method;
use crate::tcp::by_reference::{ReferenceSender, StepOptions, StepOutcome, TransferError};
use crate::tcp::choice::{page_count, write_work};
use crate::tcp::item::StreamItem;
use crate::tcp::outcome::SendError;

/// How long to sleep while an event that stays would end every wait at once.
const SHORT_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The evidence for data that a stream sends beyond its share of a pool.
const OVER_SHARE: Evidence = Evidence::Copied(Cause::ShareInFlight);

const RING_BROKEN: &str = "the kernel took no more from io_uring: it was short of memory for long";

/// The most bytes of a call: enough that the call itself costs little, and few enough that memory returns
/// while the next call is made.
const RUN_BYTES_MAX: usize = 1 << 20;

/// The most bytes in front of ones sent by reference that wait for them. So few that the smallest send buffer
/// has room for both: otherwise the kernel would hold them back for 200 ms.
pub(super) const HEAD_BYTES_MAX: usize = 1 << 10;

const RUN_PIECES_MAX: u64 = 64;

const RINGS_MANY: &str = "this process already has many io_uring rings, each of which locks memory; choose `uring-zerocopy` explicitly";

pub(in crate::tcp) const RING_SENDS: u32 = 256;

/// The number of pools registered with rings in this process from which on streams make rings only if asked:
/// registered memory is locked, and thousands of connections must not lock all memory.
const RINGS_MAX: usize = 64;

/// A call that the kernel accepted and has not completed.
#[derive(Debug, Clone, Copy)]
pub(in crate::tcp) struct OpenCallNote {
    run_bytes: usize,
    method: Method,
    /// Whether its first packet may be shared with the previous call, so that its completion may report
    /// *copied* although it was not.
    may_share: bool,
    /// When it was made, if the policy measures it.
    since: Option<Instant>,
}

impl CallNote for OpenCallNote {}

#[derive(Debug, Clone, Copy)]
pub(super) struct CallPlan {
    method: Method,
    waits: bool,
    /// The evidence known at once; `None`: the completion will report it.
    evidence: Option<Evidence>,
    /// Start of the policy's measurement, if there is one.
    since: Option<Instant>,
    run_bytes: usize,
}

/// The limits of a flush.
#[derive(Debug, Clone, Copy)]
struct FlushLimits {
    /// Whether it waits for room.
    waits: bool,
    /// It ends when the stream has sent so many bytes.
    until: u64,
}

impl NonblockingSender {
    pub(super) fn flush_queue(&mut self, waits: bool, bytes_max: usize) -> io::Result<bool> {
        self.outcome.flushes += u64::from(self.queued() > 0);
        let until = self.outcome.bytes.saturating_add(bytes_max as u64);
        let is_all = self.hand_over_all(FlushLimits { waits, until });
        self.watch_for_room();
        is_all
    }

    /// Bytes that it may still hand over.
    fn remaining_bytes(&self, limits: FlushLimits) -> usize {
        limits.until.saturating_sub(self.outcome.bytes) as usize
    }

    /// Makes the descriptor watch for room to send what is queued.
    pub(super) fn watch_for_room(&self) {
        self.queue.set_wants_room(self.queued() > 0);
    }

    pub(super) fn send_error(&self, source: io::Error) -> io::Error {
        SendError { unsent_bytes: self.queued_bytes.total(), source }.into()
    }

    /// Reaps completions because the socket's send buffer is full, and waits for room.
    #[cold]
    fn wait_for_room(&mut self, timeout: Duration) -> io::Result<()> {
        // Completions would end the wait at once.
        self.reap();
        wait_writable(self.queue.socket(), timeout).map(drop)
    }

    fn hand_over_all(&mut self, limits: FlushLimits) -> io::Result<bool> {
        // Ends: each round hands over bytes, passes entries without any, or returns.
        while self.queue.queued() > 0 {
            if self.remaining_bytes(limits) == 0 {
                return Ok(false);
            }
            let is_done = match self.queue.entries().payload(self.queue.head().ticket) {
                StreamItem::Buffer(_) => self.send_run(self.next_run(RUN_BYTES_MAX).bytes, limits),
                StreamItem::Reference(_) => self.send_reference(limits),
            };
            if !is_done.map_err(|error| self.send_error(error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Buffers from the front of the queue, at most that many bytes. Those without bytes are not passed to
    /// the kernel, which would take them for the end of a failed call.
    fn next_run(&self, bytes_max: usize) -> Extent {
        let (entries, start) = (self.queue.entries(), self.queue.head());
        let (mut end, mut bytes) = (start, 0);
        let stop = entries.next_ticket().min(start.ticket + RUN_PIECES_MAX);
        while end.ticket < stop {
            let StreamItem::Buffer(buffer) = entries.payload(end.ticket) else { break };
            // No underflow: only the first position may be inside of an entry, and none is at its end.
            let left = buffer.len() - end.bytes;
            if left > bytes_max - bytes {
                end.bytes += bytes_max - bytes;
                bytes = bytes_max;
                break;
            }
            end = Position::start_of(end.ticket + 1);
            bytes += left;
        }
        Extent { start, end, bytes }
    }

    /// Sends the front of the queue by reference. Returns `false` if the socket accepts no more now.
    fn send_reference(&mut self, limits: FlushLimits) -> io::Result<bool> {
        let waits = limits.waits;
        let behind = Position::start_of(self.queue.head().ticket + 1);
        // Only in front of more bytes may a segment be held back.
        let more = (behind.ticket..self.queue.entries().next_ticket())
            .any(|ticket| self.queue.entries().payload(ticket).unsent_bytes() > 0);
        if self.by_reference.is_none() {
            self.by_reference = Some(ReferenceSender::new(self.queue.socket(), self.published_method)?);
        }
        loop {
            let (Some(by_reference), (StreamItem::Reference(transfer), socket)) =
                (&mut self.by_reference, self.queue.front_mut())
            else {
                unreachable!("looked at before");
            };
            match by_reference
                .send_next_piece(transfer, socket, StepOptions { more, waits })
                .map_err(io_error_of_transfer)?
            {
                StepOutcome::Sent { bytes, evidence } => {
                    self.queued_bytes.referred -= u128::from(bytes);
                    self.outcome.bytes += bytes;
                    events::add_to_ledger(&mut self.ledger, Half::TcpSender, evidence, 0, bytes);
                    if self.remaining_bytes(limits) == 0 {
                        return Ok(false);
                    }
                }
                StepOutcome::Done => {
                    self.queue.advance(behind, None);
                    return Ok(true);
                }
                StepOutcome::SocketFull if !waits => return Ok(false),
                StepOutcome::SocketFull => self.wait_for_room(LOOK_AGAIN)?,
            }
        }
    }

    /// Sends a run by one method, in as many calls as needed. Returns `false` if the socket accepts no more
    /// now.
    ///
    /// Only the time of the calls is measured, without the time that the socket had no room, which depends on
    /// the peer, not on the method.
    fn send_run(&mut self, run_bytes: usize, limits: FlushLimits) -> io::Result<bool> {
        let chosen = self.chosen.take().filter(|(bytes, _)| *bytes == run_bytes);
        let choice = chosen.map_or_else(|| self.policy.choose(write_work(run_bytes)), |(_, choice)| choice);
        let is_over_share = choice.method.is_zero_copy() && self.is_over_share(run_bytes);
        let mut method = if is_over_share { Method::Plain } else { choice.method };
        let (mut sent_bytes, mut cost) = (0, Duration::ZERO);
        let is_done = loop {
            let since = (choice.measured && !is_over_share).then(Instant::now);
            let evidence = match method {
                _ if is_over_share => Some(OVER_SHARE),
                Method::Plain => Some(self.policy.copied_evidence(page_count(run_bytes), run_bytes)),
                Method::ZeroCopy | Method::UringZeroCopy => None,
            };
            let plan =
                CallPlan { method, waits: limits.waits && since.is_none(), evidence, since, run_bytes };
            let sent = self.try_call((run_bytes - sent_bytes).min(self.remaining_bytes(limits)), plan);
            self.reap_if_many();
            cost += since.map_or(Duration::ZERO, |since| since.elapsed());
            match sent {
                Ok(sent) => sent_bytes += sent,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock if limits.waits => self.wait_for_room(LOOK_AGAIN)?,
                    io::ErrorKind::WouldBlock => break false,
                    _ => method = self.fallback_method(method, error)?,
                },
            }
            if sent_bytes == run_bytes {
                break true;
            }
            if self.remaining_bytes(limits) == 0 {
                break false;
            }
        };
        if method == choice.method && sent_bytes > 0 {
            self.policy.record(choice, write_work(sent_bytes), cost);
        }
        Ok(is_done)
    }

    /// Whether the run, sent without a copy, would leave too few buffers to the other streams that share the
    /// pool: each may have as many in flight as it leaves free, however long its peer does not read. A stream
    /// with its own pool may have all.
    fn is_over_share(&self, run_bytes: usize) -> bool {
        let (cache, entries) = (self.queue.cache(), self.queue.entries());
        if cache.pool().sharer_count() <= 1 || run_bytes == 0 {
            return false;
        }
        let of_pool = |item: &&StreamItem| item.buffer().is_some_and(|buffer| cache.owns(buffer));
        let fresh = self.next_run(run_bytes).tickets().filter(|&ticket| !entries.is_read(ticket));
        let fresh = fresh.map(|ticket| entries.payload(ticket)).filter(of_pool).count();
        fresh > 0 && entries.in_kernel().filter(of_pool).count() + fresh > cache.pool().available()
    }

    fn try_call(&mut self, bytes: usize, plan: CallPlan) -> io::Result<usize> {
        let ready = match plan.method {
            Method::Plain => Ok(()),
            Method::ZeroCopy => self.queue.allow_zero_copy().map_err(|refused| refused.why()),
            Method::UringZeroCopy => self.open_ring_if_few(),
        };
        if let Err(why) = ready {
            self.policy.mark_unavailable(plan.method, why);
            return Err(io::ErrorKind::Unsupported.into());
        }
        let in_flight = self.in_flight();
        let sent = self.call_and_advance(bytes, plan);
        match sent {
            Err(error) if plan.method.is_zero_copy() && is_no_buffers(&error) => {
                // Completions make room. Without any, a copy is sent.
                self.reap();
                if self.in_flight() < in_flight { Ok(0) } else { self.send_copied(bytes, plan) }
            }
            sent => sent,
        }
    }

    /// Sends bytes from the front of the queue, by one call, and returns how many. On an error of the kernel
    /// no byte was handed over.
    fn call_and_advance(&mut self, bytes_max: usize, plan: CallPlan) -> io::Result<usize> {
        let extent = self.next_run(bytes_max);
        let sent = if extent.bytes == 0 { 0 } else { self.call_kernel(extent, plan)? };
        let end = if sent == extent.bytes { extent.end } else { self.next_run(sent).end };
        self.queue.advance(end, plan.evidence);
        // No underflow: these bytes were added when their buffers were queued.
        self.queued_bytes.buffered -= sent as u64;
        self.outcome.bytes += sent as u64;
        if let Some(evidence) = plan.evidence {
            events::add_to_ledger(&mut self.ledger, Half::TcpSender, evidence, 0, sent as u64);
        }
        Ok(sent)
    }

    fn call_kernel(&mut self, extent: Extent, plan: CallPlan) -> io::Result<usize> {
        let CallPlan { method, waits, since, run_bytes, .. } = plan;
        let call = OpenCallNote { run_bytes, method, may_share: false, since };
        let may_share = self.has_open_packet;
        match method {
            Method::Plain => self.queue.send(
                extent,
                SendMode::Copied { waits, more: self.is_head_of_reference(extent) },
                call,
            ),
            Method::ZeroCopy => self.queue.send(extent, SendMode::ZeroCopy { waits }, call),
            Method::UringZeroCopy => {
                let sent = self.queue.send(extent, SendMode::Ring, OpenCallNote { may_share, ..call })?;
                self.has_open_packet = if sent > 0 { sent < extent.bytes } else { may_share };
                Ok(sent)
            }
        }
    }

    /// Whether these are few bytes in front of others sent by reference, which can share their segment.
    #[inline]
    fn is_head_of_reference(&self, extent: Extent) -> bool {
        let (entries, next) = (self.queue.entries(), extent.end);
        extent.bytes <= HEAD_BYTES_MAX
            && next.bytes == 0
            && next.ticket < entries.next_ticket()
            && matches!(
                entries.payload(next.ticket),
                StreamItem::Reference(transfer) if transfer.remaining() > 0
            )
    }

    /// Makes the ring, with the pool's memory registered, if there is none and this process has few.
    fn open_ring_if_few(&mut self) -> Result<(), &'static str> {
        if !self.queue.has_ring() && pool::registration_count() >= RINGS_MAX {
            return Err(RINGS_MANY);
        }
        self.queue.open_ring(RING_SENDS).map_err(|refused| refused.why())
    }

    /// Sends by a copy, because there is no memory to record a zero-copy call, or no room in the ring.
    #[cold]
    fn send_copied(&mut self, bytes: usize, plan: CallPlan) -> io::Result<usize> {
        let evidence = Some(Evidence::Copied(Cause::NoBuffers));
        let sent = self.call_and_advance(bytes, CallPlan { method: Method::Plain, evidence, ..plan })?;
        self.outcome.counters.no_buffers_bytes += sent as u64;
        self.policy.rule_out_for_no_room(plan.method, self.queue.is_ring_full());
        Ok(sent)
    }

    #[cold]
    fn fallback_method(&mut self, method: Method, error: io::Error) -> io::Result<Method> {
        if self.queue.is_ring_broken() {
            self.policy.mark_unavailable(Method::UringZeroCopy, RING_BROKEN);
        }
        if !method.is_zero_copy() || !is_of_method(&error) {
            return Err(error);
        }
        self.policy.rule_out_for_refusal(method);
        Ok(Method::Plain)
    }

    /// Sends bytes now if nothing is queued before them and copying them is the method for so many; returns
    /// how many the socket accepted, which may be none.
    #[cfg(feature = "message")]
    #[inline]
    pub(crate) fn try_send_copy(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.queued() > 0 || self.end == super::ends::StreamState::Finished {
            return Ok(0);
        }
        let choice = self.policy.choose(write_work(bytes.len()));
        if choice.method != Method::Plain || choice.measured {
            self.chosen = Some((bytes.len(), choice));
            return Ok(0);
        }
        let sent = match stream::send_copied(self.queue.socket(), bytes, false) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            sent => sent.map_err(|error| self.send_error(error))?,
        };
        let evidence = self.policy.copied_evidence(page_count(bytes.len()), bytes.len());
        self.outcome.bytes += sent as u64;
        events::add_to_ledger(&mut self.ledger, Half::TcpSender, evidence, 0, sent as u64);
        Ok(sent)
    }

    /// Sends as many bytes as the socket accepts; waits while it accepts none.
    pub(super) fn send_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = loop {
            match stream::send_copied(self.queue.socket(), bytes, true) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A blocking socket returns this, too, after data was sent by reference.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_for_room(LOOK_AGAIN)?,
                sent => break sent?,
            }
        };
        self.outcome.bytes += sent as u64;
        let evidence = Evidence::Copied(Cause::Slice);
        events::add_to_ledger(&mut self.ledger, Half::TcpSender, evidence, 0, sent as u64);
        Ok(sent)
    }

    /// Waits for room for the queue; with an empty queue, for completions of earlier sends, and reads them.
    pub(super) fn wait_for_room_or_completions(&mut self, timeout: Duration) -> io::Result<()> {
        if self.queued() > 0 {
            return self.wait_for_room(timeout).map_err(|error| self.send_error(error));
        }
        let woken = self.queue.wait(timeout).map_err(|error| self.send_error(error))?;
        if self.reap() == 0 && woken == Wakeup::Ready {
            // After both sides have ended the stream every wait ends at once (POLLHUP), while the last bytes
            // are under way.
            std::thread::sleep(SHORT_POLL_INTERVAL.min(timeout));
        }
        Ok(())
    }

    #[inline]
    fn reap_if_many(&mut self) {
        let open = self.in_flight();
        if open >= REAP_AT || (open > 0 && self.queue.cache().is_low()) {
            self.reap();
        }
    }

    /// Reads the kernel's completions of earlier sends, and returns how many zero-copy calls are complete.
    /// Makes no system call while none is in flight.
    pub fn reap(&mut self) -> usize {
        if self.in_flight() == 0 {
            return 0;
        }
        self.paths.refresh();
        self.queue.collect();
        let mut count = 0;
        while let Some(done) = self.queue.next_completion() {
            // A call that the ring refused took nothing.
            let report = done.outcome.as_ref().ok().copied();
            let evidence = report.map(|report| {
                let OpenCallNote { run_bytes, method, may_share, since } = done.note();
                let proven = self.paths.evidence(0, || self.peer, report);
                let is_doubtful = report.copied && may_share;
                let evidence = if is_doubtful { Evidence::Unknown } else { proven };
                let bytes = done.bytes() as u64;
                events::add_to_ledger(&mut self.ledger, Half::TcpSender, evidence, 0, bytes);
                let after = since.map(|since| since.elapsed());
                self.policy.record_completion(
                    0,
                    method,
                    saturating_size(run_bytes),
                    report.copied && !is_doubtful,
                    after,
                );
                evidence
            });
            self.queue.settle(done, evidence);
            count += 1;
        }
        count
    }
}

/// The kernel's reason, if there is one; `UnexpectedEof` if the source has ended.
fn io_error_of_transfer(error: TransferError) -> io::Error {
    match error {
        TransferError::Connection(source) => source,
        ended @ TransferError::Ended { .. } => io::Error::new(io::ErrorKind::UnexpectedEof, ended),
        other => io::Error::other(other),
    }
}
