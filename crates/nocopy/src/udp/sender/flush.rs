//! How a sender hands over its queue: cut into calls of as many datagrams as the method allows, with a
//! fallback for each failure.

use std::io;
use std::time::{Duration, Instant};

use super::NonblockingSender;
use crate::engine::policy::{Work, saturating_size};
use crate::engine::wait::LOOK_AGAIN;
use crate::events::{self, Half};
use crate::facts::evidence::{Cause, Evidence};
use crate::facts::rejected::Reason;
use crate::memory::pool::Buffer;
use crate::memory::send_queue::{
    CallNote, Completion, Entries, Extent, Position, REAP_AT, is_no_buffers, is_of_method,
};
use crate::sys::poll::wait_writable;
use crate::sys::udp_send;
use crate::udp::Method;
use crate::udp::message::{Message, Outgoing};
use crate::udp::outcome::SendError;
use crate::udp::over_port;
use crate::udp::peer_error::PENDING_ERRORS_MAX;

const RING_SENDS: u32 = 128;

/// The most bytes of the send buffer that a message needs in addition to its own: its buffer's head, and
/// parts of two pages.
const BESIDE_BYTES: usize = 12 << 10;

/// The most pages of a message from the program's memory (`MAX_SKB_FRAGS` of `linux/skbuff.h`).
const PAGES_MAX: usize = 17;
const PAGE_BYTES: usize = 4096;

/// How often to try a datagram that the ring refused.
const ATTEMPTS: usize = 4;

/// How long one wait for room lasts at most, because the completion that made room may have been read
/// already.
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// Equal datagrams at the front of the queue, for one destination.
#[derive(Debug, Clone, Copy)]
pub(in crate::udp) struct QueuedRun {
    pub(in crate::udp) destination: u32,
    pub(in crate::udp) datagram_bytes: usize,
    pub(in crate::udp) datagrams: u32,
    /// The ticket after the last message.
    pub(in crate::udp) end: u64,
}

/// One message of a call: a part of one buffer with several datagrams, or whole messages.
#[derive(Debug, Clone, Copy)]
struct CallPart {
    extent: Extent,
    datagrams: u32,
}

/// A call that the kernel accepted and has not completed.
#[derive(Debug, Clone, Copy)]
pub(in crate::udp) struct OpenCallNote {
    datagrams: u32,
    datagram_bytes: u32,
    destination: u32,
    method: Method,
    /// When it was made, if the policy measures it.
    since: Option<Instant>,
}

impl OpenCallNote {
    fn for_part(cut: CallPart, run: &QueuedRun, plan: CallPlan) -> Self {
        let (destination, datagram_bytes) = (run.destination, run.datagram_bytes as u32);
        Self { datagrams: cut.datagrams, datagram_bytes, destination, method: plan.method, since: plan.since }
    }
}

impl CallNote for OpenCallNote {
    fn for_failed_call(self) -> Self {
        Self { datagrams: 0, since: None, ..self }
    }
}

#[derive(Debug, Clone, Copy)]
pub(in crate::udp) struct CallPlan {
    method: Method,
    pub(in crate::udp) flags: i32,
    /// The evidence known at once; `None`: the completion will report it.
    evidence: Option<Evidence>,
    /// Start of the policy's measurement, if there is one.
    since: Option<Instant>,
}

/// Errors that were waiting at the socket when a datagram was sent.
#[derive(Debug, Default)]
struct PendingErrors {
    count: usize,
    /// Errors of the network known before the call.
    known: u64,
}

impl NonblockingSender {
    /// `false` if not everything was handed over in that time.
    #[inline(never)]
    pub(super) fn flush_all(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let flags = if timeout.is_some() { libc::MSG_DONTWAIT } else { 0 };
        loop {
            let (is_all, is_taken) = self.flush_queue_and_port(flags)?;
            if is_all && is_taken {
                return Ok(true);
            }
            self.awaits_completions |= !is_taken;
            let left = deadline.map_or(LOOK_AGAIN, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(false);
            }
            // Completions would end the wait at once, again and again (`POLLERR` cannot be turned off).
            if self.reap() == 0 {
                let wait = left.min(if self.awaits_completions { ROOM_WAIT } else { LOOK_AGAIN });
                // The socket itself does not wait. If waiting fails, trying again finds the reason.
                let _ = match self.awaits_completions {
                    true => self.queue.wait(wait),
                    false => wait_writable(self.queue.socket(), wait),
                };
            }
        }
    }

    /// Whether all of the queue was handed over, and everything given to the port was accepted.
    pub(super) fn flush_queue_and_port(&mut self, flags: i32) -> io::Result<(bool, bool)> {
        // Refused datagrams do not delay others.
        let handed_over = self.flush_queue(flags);
        let flush =
            |port: &mut Box<over_port::Sender>| if port.has_queued() { port.flush() } else { Ok(true) };
        let taken = self.port.as_mut().map_or(Ok(true), flush);
        Ok((handed_over?, taken?))
    }

    fn flush_queue(&mut self, flags: i32) -> Result<bool, SendError> {
        let mut refused: Option<SendError> = None;
        let mut is_all = true;
        self.awaits_completions = false;
        // Ends: each round hands over a run, refuses a datagram, or leaves the loop.
        while let Some(run) = QueuedRun::run_at_head(self.queue.entries(), self.queue.head()) {
            let choice = self.policy.choose(&run);
            let since = choice.measured.then(Instant::now);
            let plan = CallPlan { method: choice.method, flags, evidence: None, since };
            let done = self.send_run(plan, &run);
            let open = self.queue.in_flight();
            if open >= REAP_AT || (open > 0 && self.queue.cache().is_empty()) {
                self.reap();
            }
            if let (Some(since), Ok(true)) = (since, &done) {
                self.policy.record(choice, &run, since.elapsed());
            }
            match done {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    is_all = false;
                    break;
                }
                Err(source) => {
                    self.count_refused(&source);
                    let to = Some(self.destinations.get(run.destination).to);
                    refused.get_or_insert(SendError { to, refused: 0, source }).refused += 1;
                }
            }
        }
        self.queue.set_wants_room(!is_all && !self.awaits_completions);
        refused.or_else(|| self.outcome.late.take()).map_or(Ok(is_all), Err)
    }

    #[inline]
    pub(in crate::udp) fn has_run_left(&self, run: &QueuedRun) -> bool {
        self.queue.head().ticket < run.end
    }

    /// Makes one call after the other until the run is sent. `false`: another method than the chosen one was
    /// used.
    #[inline]
    fn send_run(&mut self, mut plan: CallPlan, run: &QueuedRun) -> io::Result<bool> {
        let (mut pending, chosen) = (PendingErrors::default(), plan.method);
        while self.has_run_left(run) {
            pending.known = self.network_error_count();
            let sent = match plan.method {
                Method::Socket => self.send_one(plan, run),
                Method::Xdp => self.send_over_port(plan, run),
                _ => self.send_many(plan, run),
            };
            let Err(error) = sent else { continue };
            if !self.is_error_of_earlier_datagram(&error, &mut pending) {
                plan.method = self.fallback_method(plan.method, run, &error).ok_or(error)?;
            }
        }
        Ok(plan.method == chosen)
    }

    /// Sends the next datagram by its own call.
    #[inline]
    fn send_one(&mut self, plan: CallPlan, run: &QueuedRun) -> io::Result<()> {
        let ticket = self.queue.head().ticket;
        let Some(bytes) = self.queue.entries().payload(ticket).message.single_datagram() else {
            return self.send_many(plan, run);
        };
        let to = self.destinations.get(run.destination).kernel();
        udp_send::send_to_destination(self.queue.socket(), bytes, None, to, plan.flags)?;
        let bytes = bytes.len();
        let evidence = self.policy.copied_evidence(run.datagrams, bytes);
        self.count_sent(1, bytes, Some(evidence));
        self.queue.advance(Position::start_of(ticket + 1), Some(evidence));
        Ok(())
    }

    /// Sends as many datagrams of the run as fit into one call.
    fn send_many(&mut self, plan: CallPlan, run: &QueuedRun) -> io::Result<()> {
        if plan.method.is_by_ring() {
            return self.send_by_ring(plan, run);
        }
        let evidence = (!plan.method.is_zero_copy())
            .then(|| self.policy.copied_evidence(run.datagrams, run.datagram_bytes));
        let open = self.queue.unreported_call_count();
        match self.call_and_advance(run, CallPlan { evidence, ..plan }) {
            Err(error) if evidence.is_none() && is_no_buffers(&error) => {
                // Completions make room, so recent ones are read. Without any, a copy is sent.
                if self.queue.unreported_call_count() < open { Ok(()) } else { self.send_copied(plan, run) }
            }
            sent => sent.map(drop),
        }
    }

    /// Makes one call for as many datagrams as it may carry; returns how many the kernel took.
    fn call_and_advance(&mut self, run: &QueuedRun, plan: CallPlan) -> io::Result<u64> {
        let to = self.destinations.get(run.destination).kernel();
        let mut place = self.queue.head();
        let mut batch = self.queue.begin_batch(&mut self.burst, to);
        let messages_max = if plan.method == Method::Socket { 1 } else { udp_send::MESSAGES_MAX };
        while place.ticket < run.end && batch.len() < messages_max {
            let cut = CallPart::next_part(batch.entries(), plan.method, place, run);
            if !batch.add(cut.extent, cut.segment_bytes(run), OpenCallNote::for_part(cut, run, plan)) {
                break;
            }
            place = cut.extent.end;
        }
        if batch.len() == 0 {
            // In more pieces than the kernel allows (`UIO_MAXIOV`).
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let sent = match plan.evidence {
            None => batch.send_zero_copy(plan.flags),
            Some(_) => batch.send_copied(plan.flags),
        };
        let (mut datagrams, mut bytes) = (0, 0);
        let accepted = self.burst.accepted(*sent.as_ref().unwrap_or(&0));
        for (extent, call) in accepted {
            datagrams += call.datagrams;
            bytes += extent.bytes;
        }
        if let Some((extent, _)) = accepted.last() {
            self.queue.advance(extent.end, plan.evidence);
        }
        self.count_sent(datagrams, bytes, plan.evidence);
        if self.queue.is_next_number_uncertain() {
            self.reap();
        }
        sent.map(|_| u64::from(datagrams))
    }

    /// Sends by copies, because the kernel has no memory to record zero-copy calls.
    #[cold]
    #[inline(never)]
    fn send_copied(&mut self, plan: CallPlan, run: &QueuedRun) -> io::Result<()> {
        let method = plan.method.fallback().unwrap_or(Method::SendMmsg);
        let evidence = Some(Evidence::Copied(Cause::NoBuffers));
        self.outcome.counters.no_buffers +=
            self.call_and_advance(run, CallPlan { method, evidence, ..plan })?;
        self.policy.rule_out_for_enobufs(plan.method);
        Ok(())
    }

    /// Makes the ring, with the pool's memory registered, if there is none.
    pub(in crate::udp) fn open_ring(&mut self) -> io::Result<()> {
        self.queue.open_ring(RING_SENDS).map_err(io::Error::other)
    }

    /// Passes as many datagrams of the run to the ring as there is room for, by one call.
    fn send_by_ring(&mut self, plan: CallPlan, run: &QueuedRun) -> io::Result<()> {
        if let Err(refused) = self.queue.open_ring(RING_SENDS) {
            self.policy.mark_unavailable(plan.method, refused.why());
            return Err(io::ErrorKind::Unsupported.into());
        }
        if !self.queue_on_ring(plan, run)? {
            return self.wait_for_room(plan.flags);
        }
        // Most results have arrived already, and reading them needs no call.
        self.queue.collect_ring();
        self.settle_finished();
        Ok(())
    }

    /// Whether there was room for any.
    fn queue_on_ring(&mut self, plan: CallPlan, run: &QueuedRun) -> io::Result<bool> {
        self.queue.check_not_forked()?;
        let Some(mut room) = self.queue.ring_room()? else { return Ok(false) };
        let (mut datagrams, mut bytes) = (0, 0);
        while self.has_run_left(run) {
            let cut = CallPart::next_part(self.queue.entries(), plan.method, self.queue.head(), run);
            let needed = cut.extent.bytes + BESIDE_BYTES;
            if room < needed && self.queue.in_flight() > 0 {
                break; // in the kernel it would be overtaken by the next
            }
            room = room.saturating_sub(needed);
            let to = self.destinations.get(run.destination).kernel();
            let (segment_bytes, call) = (cut.segment_bytes(run), OpenCallNote::for_part(cut, run, plan));
            if self.queue.queue_on_ring(cut.extent, to, segment_bytes, call).is_err() {
                break; // the ring is full
            }
            datagrams += cut.datagrams;
            bytes += cut.extent.bytes;
            self.queue.advance(cut.extent.end, None);
        }
        self.count_sent(datagrams, bytes, None);
        let submitted = self.queue.submit_ring();
        // If the ring holds something, an error does not concern it: it is submitted with the next call, or
        // when completions are read.
        if datagrams == 0 { submitted.map(|()| false) } else { Ok(true) }
    }

    /// Makes room by completions, because the ring or the send buffer is full.
    #[cold]
    #[inline(never)]
    fn wait_for_room(&mut self, flags: i32) -> io::Result<()> {
        if self.reap() == 0 {
            if flags & libc::MSG_DONTWAIT != 0 {
                // With nothing in flight, it waits for room in the socket.
                self.awaits_completions = self.queue.in_flight() > 0;
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.queue.wait(ROOM_WAIT)?;
        }
        Ok(())
    }

    /// Sends a copy of the bytes by a plain call. `Full`: the socket has no room, and `MSG_DONTWAIT` is set.
    pub(in crate::udp) fn copy_by_call(
        &mut self,
        bytes: &[u8],
        destination: u32,
        flags: i32,
    ) -> Result<(), Reason> {
        let mut pending = PendingErrors::default();
        loop {
            pending.known = self.network_error_count();
            let to = self.destinations.get(destination).kernel();
            match udp_send::send_to_destination(self.queue.socket(), bytes, None, to, flags) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if flags & libc::MSG_DONTWAIT != 0 {
                        self.queue.set_wants_room(true);
                        return Err(Reason::Full);
                    }
                    // The socket behind a port does not wait.
                    let _ = wait_writable(self.queue.socket(), LOOK_AGAIN);
                }
                Err(error) if self.is_error_of_earlier_datagram(&error, &mut pending) => {}
                Err(source) => {
                    self.outcome.count_refused(&source);
                    let to = Some(self.destinations.get(destination).to);
                    return Err(Reason::System(SendError { to, refused: 1, source }.into()));
                }
            }
        }
        self.count_sent(1, bytes.len(), Some(Evidence::Copied(Cause::Slice)));
        Ok(())
    }

    /// Counts what was handed over; without evidence if the completion, or the port, reports it.
    #[inline(always)]
    pub(in crate::udp) fn count_sent(&mut self, datagrams: u32, bytes: usize, evidence: Option<Evidence>) {
        self.outcome.sent += u64::from(datagrams);
        self.outcome.sent_bytes += bytes as u64;
        if let Some(evidence) = evidence {
            self.add_to_ledger(evidence, datagrams, bytes);
        }
    }

    #[inline(always)]
    fn add_to_ledger(&mut self, evidence: Evidence, datagrams: u32, bytes: usize) {
        let (datagrams, bytes) = (u64::from(datagrams), bytes as u64);
        match &mut self.port {
            // It copies for some of the same causes.
            Some(port) if events::ENABLED => {
                port.report(evidence, bytes);
                self.ledger.add(evidence, datagrams, bytes);
            }
            _ => events::add_to_ledger(&mut self.ledger, Half::UdpSender, evidence, datagrams, bytes),
        }
    }

    /// Whether the error belongs to an earlier datagram and was waiting at the socket; its description is
    /// kept for [`errors`](Self::errors).
    #[cold]
    #[inline(never)]
    fn is_error_of_earlier_datagram(&mut self, error: &io::Error, pending: &mut PendingErrors) -> bool {
        match error.kind() {
            io::ErrorKind::Interrupted => return true,
            io::ErrorKind::WouldBlock => return false,
            _ => {}
        }
        self.reap();
        pending.count += 1;
        // An error without a notice may still have been waiting; the datagram's own error comes again.
        let is_first = pending.count == 1 && !is_of_method(error) && !is_no_buffers(error);
        is_first || (self.network_error_count() > pending.known && pending.count <= PENDING_ERRORS_MAX)
    }

    /// The method for sends that the kernel refuses by this one; `None` if there is none.
    #[cold]
    #[inline(never)]
    fn fallback_method(&mut self, method: Method, run: &QueuedRun, error: &io::Error) -> Option<Method> {
        if !is_of_method(error) {
            return None;
        }
        let other = method.fallback()?;
        self.policy.record_refusal(run.destination, method, run.datagram_bytes as u32);
        Some(other)
    }

    /// Removes the first datagram, which no method could send.
    #[cold]
    #[inline(never)]
    fn count_refused(&mut self, error: &io::Error) {
        self.outcome.count_refused(error);
        self.queue.advance(self.next_datagram().end, None); // no completion will arrive
    }

    /// The next datagram.
    pub(in crate::udp) fn next_datagram(&self) -> Extent {
        CallPart::one_datagram(self.queue.entries(), self.queue.head()).extent
    }

    /// Takes back memory that the kernel no longer reads, and returns how many calls and frames are complete
    /// by that.
    pub fn reap(&mut self) -> usize {
        let frames = self.port.as_mut().map_or(0, |port| port.reap());
        if self.queue.in_flight() > 0 {
            self.paths.refresh();
        }
        self.queue.collect();
        frames + self.settle_finished()
    }

    fn settle_finished(&mut self) -> usize {
        let mut count = 0;
        while let Some(done) = self.queue.next_completion() {
            let evidence = match &done.outcome {
                Ok(report) => {
                    let OpenCallNote { datagrams, datagram_bytes, destination, method, since } = done.note();
                    let to = || Some(self.destinations.get(destination).to.ip());
                    let evidence = self.paths.evidence(destination, to, *report);
                    self.add_to_ledger(evidence, datagrams, done.bytes());
                    let after = since.map(|since| since.elapsed());
                    self.policy.record_completion(destination, method, datagram_bytes, report.copied, after);
                    evidence
                }
                Err(error) => self.resend(&done, error),
            };
            self.queue.settle(done, Some(evidence));
            count += 1;
        }
        count
    }

    /// Repeats a call that the ring refused by ordinary ones, one for each datagram: for the program it was
    /// handed over already.
    #[cold]
    #[inline(never)]
    fn resend(&mut self, done: &Completion<OpenCallNote>, error: &io::Error) -> Evidence {
        let (call, evidence) = (done.note(), Evidence::Copied(Cause::ZeroCopyRefused));
        let mut place = done.start();
        for _ in 0..call.datagrams {
            let extent = CallPart::one_datagram(self.queue.entries(), place).extent;
            place = extent.end;
            match self.send_again(extent, call) {
                Ok(()) => self.add_to_ledger(evidence, 1, extent.bytes),
                Err(source) => {
                    // No underflow: it was counted when it was passed to the ring.
                    self.outcome.sent -= 1;
                    self.outcome.sent_bytes -= extent.bytes as u64;
                    self.outcome.count_refused(&source);
                    let to = Some(self.destinations.get(call.destination).to);
                    self.outcome.late.get_or_insert(SendError { to, refused: 0, source }).refused += 1;
                }
            }
        }
        if is_of_method(error) {
            self.policy.record_refusal(call.destination, call.method, call.datagram_bytes);
        }
        evidence
    }

    /// An error that an earlier datagram left at the socket is returned by one call, which clears it.
    fn send_again(&mut self, extent: Extent, call: OpenCallNote) -> io::Result<()> {
        let mut sent = Ok(0);
        for _ in 0..ATTEMPTS {
            let to = self.destinations.get(call.destination).kernel();
            let mut batch = self.queue.begin_batch(&mut self.burst, to);
            if !batch.add(extent, None, call) {
                return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
            }
            sent = batch.send_copied(0);
            if sent.is_ok() {
                break;
            }
        }
        sent.map(drop)
    }
}

impl QueuedRun {
    /// `None` without any.
    #[inline]
    fn run_at_head(entries: &Entries<Outgoing>, head: Position) -> Option<Self> {
        let end = entries.next_ticket();
        if head.ticket == end {
            return None;
        }
        let Outgoing { message, destination } = entries.payload(head.ticket);
        let datagram_bytes = message.datagram_bytes;
        // Nearly always none; a part that was sent is of whole datagrams.
        let sent_datagrams = if head.bytes > 0 { head.bytes / datagram_bytes } else { 0 };
        let mut run = Self {
            destination: *destination,
            datagram_bytes,
            datagrams: saturating_size(message.datagrams - sent_datagrams),
            end: head.ticket + 1,
        };
        while run.end < end {
            let Outgoing { message, destination } = entries.payload(run.end);
            if *destination != run.destination || message.datagram_bytes != datagram_bytes {
                break;
            }
            run.datagrams = run.datagrams.saturating_add(saturating_size(message.datagrams));
            run.end += 1;
        }
        Some(run)
    }
}

impl From<&QueuedRun> for Work {
    #[inline]
    fn from(run: &QueuedRun) -> Self {
        Self { destination: run.destination, bytes: run.datagram_bytes as u32, count: run.datagrams }
    }
}

impl CallPart {
    #[inline]
    fn next_part(entries: &Entries<Outgoing>, method: Method, from: Position, run: &QueuedRun) -> Self {
        if method.is_segmented() {
            Self::segmented(entries, method, from, run)
        } else {
            Self::one_datagram(entries, from)
        }
    }

    /// One datagram.
    #[inline]
    fn one_datagram(entries: &Entries<Outgoing>, from: Position) -> Self {
        let message = &entries.payload(from.ticket).message;
        // No underflow: a position lies within its message.
        let bytes = message.datagram_bytes.min(message.bytes - from.bytes);
        Self { extent: extent_within(from, bytes, message), datagrams: 1 }
    }

    /// As many datagrams as the kernel cuts from one long message: a part of one buffer, or whole messages,
    /// which are then gathered.
    fn segmented(entries: &Entries<Outgoing>, method: Method, from: Position, run: &QueuedRun) -> Self {
        let first = &entries.payload(from.ticket).message;
        let fits = udp_send::is_cut_by_one_call;
        if from.bytes > 0 || !fits(first.datagrams, first.bytes) {
            // Not 0: a message of no bytes fits.
            let (left, each) = (first.bytes - from.bytes, run.datagram_bytes);
            let most = (udp_send::SEGMENTED_BYTES_MAX / each).clamp(1, udp_send::SEGMENTS_MAX) * each;
            let bytes = if fits(left.div_ceil(each), left) { left } else { most.min(left) };
            let datagrams = bytes.div_ceil(each) as u32;
            return Self { extent: extent_within(from, bytes, first), datagrams };
        }
        let mut cut =
            Self { extent: extent_within(from, first.bytes, first), datagrams: first.datagrams as u32 };
        // Only the kernel's references to memory are limited.
        let page_count = |message| if method.is_zero_copy() { page_count(message) } else { 0 };
        let mut pages = page_count(first);
        let mut pieces = first.pieces().len();
        // A shorter datagram is the last one of its call.
        while cut.extent.end.ticket < run.end && cut.extent.bytes.is_multiple_of(run.datagram_bytes) {
            let message = &entries.payload(cut.extent.end.ticket).message;
            pages += page_count(message);
            pieces += message.pieces().len();
            let is_too_long =
                !fits(cut.datagrams as usize + message.datagrams, cut.extent.bytes + message.bytes);
            let is_too_scattered = pages > PAGES_MAX || pieces > udp_send::PIECES_MAX;
            if is_too_long || is_too_scattered || message.bytes == 0 {
                break;
            }
            cut.extent.end.ticket += 1;
            cut.extent.bytes += message.bytes;
            cut.datagrams += message.datagrams as u32;
        }
        cut
    }

    /// Into datagrams of how many bytes the kernel has to cut it; `None` if it is one.
    fn segment_bytes(self, run: &QueuedRun) -> Option<u16> {
        // Fits in 16 bits: `NonblockingSender::queue` refuses longer datagrams.
        (self.datagrams > 1).then_some(run.datagram_bytes as u16)
    }
}

/// That many bytes of one message.
#[inline]
fn extent_within(start: Position, bytes: usize, message: &Message) -> Extent {
    let next = start.bytes + bytes;
    let end = if next >= message.bytes {
        Position::start_of(start.ticket + 1)
    } else {
        Position { bytes: next, ..start }
    };
    Extent { start, end, bytes }
}

fn page_count(message: &Message) -> usize {
    let of = |piece: &Buffer| match piece.len() {
        0 => 0,
        bytes => (piece.as_ptr() as usize % PAGE_BYTES + bytes).div_ceil(PAGE_BYTES),
    };
    message.pieces().iter().map(of).sum()
}
