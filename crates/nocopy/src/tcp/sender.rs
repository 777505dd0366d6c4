//! The half that sends.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::by_reference::{ByReference, Step, Transfer, TransferError};
use super::choice::{Chooser, pages, size};
use super::outbox::{Call, How, Item, Next, Outbox, Run};
use super::outcome::{
    Closed, Completed, Counters, NotQueued, QUEUE_BYTES_MAX, Rejected, RejectedReason, SendError,
};
use super::{Method, Published, PublishedMethod};
use crate::engine::path::Paths;
use crate::engine::policy::Explanation;
use crate::engine::sending::{self as engine, Books, REAP_AT};
use crate::engine::wait::{LOOK_AGAIN, Look, look_until_done};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::memory::in_flight::Ticket;
use crate::memory::in_flight::{NoZeroCopy, Told};
use crate::memory::pool::{Buffer, Cache, Pool};
use crate::sys::poll::{Wakeup, wait_readable, wait_writable};
use crate::sys::stream;

/// How long to wait at a time where nothing can be waited for.
const LOOK_AGAIN_SOON: Duration = Duration::from_millis(1);

/// What is known of what a stream sends beyond its share of a pool.
const OVER_SHARE: Evidence = Evidence::Copied(Cause::ShareInFlight);

const RING_BROKEN: &str = "the kernel took no more from io_uring: it was short of memory for long";

/// The sending half of a stream.
///
/// [`send`](Self::send) queues; [`flush`](Self::flush) hands over what is queued. A buffer that went without a copy comes back when the
/// peer has acknowledged it.
///
/// Dropping it ends the stream: the peer sees the end behind the last byte that was handed over, or, where something was still queued,
/// a reset, lest it take a part for the whole. What the kernel still reads then stays where it is until the peer has it; a peer that
/// acknowledges nothing for two minutes is reset ([`sockets_cut_off`](super::sockets_cut_off)).
#[derive(Debug)]
pub struct Sender {
    outbox: Outbox,
    chooser: Chooser,
    peer: Option<IpAddr>,
    counters: Counters,
    asked_for_ring: bool,
    /// How published data goes, if it was asked for.
    published_method: Option<PublishedMethod>,
    /// Made when something is first sent by reference.
    by_reference: Option<ByReference>,
}

impl Sender {
    pub(super) fn new(
        socket: Arc<OwnedFd>,
        cache: Cache,
        chooser: Chooser,
        paths: Paths,
        peer: Option<IpAddr>,
        published_method: Option<PublishedMethod>,
        return_buffers: bool,
    ) -> Self {
        Self {
            outbox: Outbox::new(socket, cache, paths, return_buffers),
            chooser,
            peer,
            counters: Counters::default(),
            asked_for_ring: false,
            published_method,
            by_reference: None,
        }
    }

    /// Makes the ring now, rather than when it is first sent by.
    pub(super) fn open_ring(&mut self) -> io::Result<()> {
        self.asked_for_ring = true;
        self.outbox.open_ring(true).map_err(io::Error::other)
    }

    /// An empty buffer of the stream's pool; `None` while all are away: [`flush`](Self::flush) and [`reap`](Self::reap) bring them back.
    ///
    /// Where several streams share the pool, and others have all of it, a stream that waits for none of its own takes memory beside the
    /// pool: as many buffers as its share of the pool is, at least one.
    #[inline]
    pub fn buffer(&mut self) -> Option<Buffer> {
        self.outbox.sending.cache_mut().take().or_else(|| self.reserved_buffer())
    }

    #[cold]
    fn reserved_buffer(&mut self) -> Option<Buffer> {
        let waits_for_own = self.queued() > 0 || self.in_flight() > 0;
        if waits_for_own { None } else { self.outbox.sending.cache_mut().take_reserved() }
    }

    /// An empty buffer; flushes, and waits for the peer to acknowledge what is on its way, while all are away.
    ///
    /// # Errors
    /// As [`flush`](Self::flush). `WouldBlock` inside if all buffers are with the program, which nobody can wait for; where others share
    /// the pool, if as many as this stream's share are.
    pub fn wait_buffer(&mut self) -> Result<Buffer, SendError> {
        loop {
            if let Some(buffer) = self.wait_buffer_timeout(Duration::MAX)? {
                return Ok(buffer);
            }
        }
    }

    /// The same, for so long; `None`: none came back.
    ///
    /// # Errors
    /// As [`wait_buffer`](Self::wait_buffer).
    pub fn wait_buffer_timeout(&mut self, timeout: Duration) -> Result<Option<Buffer>, SendError> {
        let look = |sender: &mut Self| {
            if let Some(buffer) = sender.buffer() {
                return Ok(Look::Done(buffer));
            }
            let is_flushed = sender.try_flush()?;
            if sender.reap() > 0 || sender.outbox.sending.cache().available() > 0 {
                return Ok(Look::Moved);
            }
            let is_nothing_away = !timeout.is_zero() && is_flushed && sender.in_flight() == 0;
            if is_nothing_away {
                Err(sender.error(io::ErrorKind::WouldBlock.into()))
            } else {
                Ok(Look::Nothing)
            }
        };
        look_until_done(self, timeout, look, Self::wait)
    }

    /// Takes a buffer that was not sent back, more cheaply than dropping it.
    #[inline]
    pub fn recycle(&mut self, buffer: Buffer) {
        self.outbox.sending.recycle(buffer);
    }

    /// The pool the buffers are of.
    pub fn pool(&self) -> &Pool {
        self.outbox.sending.cache().pool()
    }

    /// Buffers to be had at once.
    pub fn buffers_free(&self) -> usize {
        self.outbox.sending.cache().available()
    }

    /// Queues a buffer; several are gathered into one call without being joined.
    ///
    /// # Errors
    /// The buffer, and why it was not queued.
    pub fn send(&mut self, buffer: impl Into<Buffer>) -> Result<Ticket, Rejected> {
        let buffer = buffer.into();
        match self.refusal(buffer.len() as u64) {
            None => Ok(self.outbox.push(Item::Buffer(buffer))),
            Some(reason) => Err(Rejected { buffer, reason }),
        }
    }

    /// Queues a range of published data, in bytes, which goes by reference to its pages where that is faster. The same data may go to any
    /// number of peers; no completion ever comes, and none is needed, since nobody can change them.
    ///
    /// # Errors
    /// The range does not lie within the data, or [`RejectedReason`].
    pub fn send_published(&mut self, data: &Published, range: Range<u64>) -> Result<Ticket, NotQueued> {
        self.refer(Transfer::published(data, range)?)
    }

    /// Queues a range of a file, in bytes, which goes by reference to the file's pages (sendfile(2)).
    ///
    /// Nobody ever says when the kernel has done with them: who writes to the file in place changes what the peer receives, until it has
    /// read it. (What never changes is [`Published`].)
    ///
    /// # Errors
    /// The range does not lie within the file, or [`RejectedReason`].
    pub fn send_file(&mut self, file: Arc<File>, range: Range<u64>) -> Result<Ticket, NotQueued> {
        self.refer(Transfer::file(file, range)?)
    }

    /// Queues the next bytes that come out of a pipe, so many, which are moved without passing through the program (splice(2)). While the
    /// pipe is empty a flush waits for it.
    ///
    /// # Errors
    /// The descriptor is not that of a pipe, or [`RejectedReason`].
    pub fn send_pipe(&mut self, reader: OwnedFd, bytes: u64) -> Result<Ticket, NotQueued> {
        self.refer(Transfer::pipe(reader, bytes)?)
    }

    fn refer(&mut self, transfer: Transfer) -> Result<Ticket, NotQueued> {
        // Of what is only referred to any amount may be queued.
        match self.refusal(0) {
            None => Ok(self.outbox.push(Item::Reference(transfer))),
            Some(reason) => Err(reason.into()),
        }
    }

    fn refusal(&self, bytes: u64) -> Option<RejectedReason> {
        if self.outbox.is_finished {
            return Some(RejectedReason::Finished);
        }
        let is_full = self.outbox.buffered_bytes().saturating_add(bytes) > QUEUE_BYTES_MAX;
        (bytes > 0 && is_full && self.queued() > 0).then_some(RejectedReason::QueueFull)
    }

    /// Sends bytes now, behind what is queued: the kernel copies them, so they are the caller's again at once.
    ///
    /// # Errors
    /// As [`flush`](Self::flush); part of the bytes may have been sent then.
    pub fn send_slice(&mut self, mut bytes: &[u8]) -> Result<(), SendError> {
        self.flush()?;
        while !bytes.is_empty() {
            let sent = self.send_some(bytes);
            let sent = sent.map_err(|source| SendError { unsent_bytes: bytes.len() as u64, source })?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Sends as many bytes as the socket takes; waits while it takes none.
    fn send_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = loop {
            match stream::send_copied(self.outbox.sending.socket(), bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Also a blocking socket says so, once something went by reference.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.make_room()?,
                sent => break sent?,
            }
        };
        self.counters.sent_bytes += sent as u64;
        self.outbox.sending.books.tally.add(Evidence::Copied(Cause::Slice), 0, sent as u64);
        Ok(sent)
    }

    /// What is queued, buffers and references, and was not handed over whole.
    pub fn queued(&self) -> usize {
        self.outbox.sending.queued()
    }

    /// Bytes that are queued and were not handed over.
    pub fn queued_bytes(&self) -> u64 {
        self.outbox.queued_bytes()
    }

    /// Calls whose memory the kernel still reads.
    pub fn in_flight(&self) -> usize {
        self.outbox.sending.in_flight()
    }

    /// Hands over everything queued; waits while the socket's send buffer is full, for as long as the peer does not read.
    ///
    /// # Errors
    /// The connection is over.
    pub fn flush(&mut self) -> Result<(), SendError> {
        self.hand_over(true).map(drop)
    }

    /// Hands over as much as the socket takes at once. `false`: not everything; wait until the descriptor by [`AsFd`] is readable. (Where
    /// it is an empty [pipe](Self::send_pipe) that holds it up, wait for that: keep a duplicate of its reader.)
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn try_flush(&mut self) -> Result<bool, SendError> {
        self.hand_over(false)
    }

    /// Hands over what the peer makes room for in so long. `false`: not everything.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn flush_timeout(&mut self, timeout: Duration) -> Result<bool, SendError> {
        let look = |sender: &mut Self| Ok(if sender.try_flush()? { Look::Done(()) } else { Look::Nothing });
        look_until_done(self, timeout, look, Self::wait).map(|done| done.is_some())
    }

    fn hand_over(&mut self, waits: bool) -> Result<bool, SendError> {
        let is_all = self.hand_over_all(waits);
        let is_full = self.queued() > 0 && self.outbox.silent_pipe().is_none();
        self.outbox.sending.want_room(is_full);
        is_all
    }

    fn hand_over_all(&mut self, waits: bool) -> Result<bool, SendError> {
        while let Some(next) = self.outbox.next() {
            let is_done = match next {
                Next::Run(run) => self.send_run(run, waits),
                Next::Reference => self.send_reference(waits),
            };
            match is_done {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => return Err(self.error(error)),
            }
        }
        Ok(true)
    }

    /// Sends what is referred to at the front of the queue. `false`: the socket takes no more now, or nothing is in the pipe.
    fn send_reference(&mut self, waits: bool) -> io::Result<bool> {
        if self.by_reference.is_none() {
            self.by_reference = Some(ByReference::new(self.outbox.sending.socket(), self.published_method)?);
        }
        loop {
            let (Some(by_reference), Some((transfer, socket, more))) =
                (&mut self.by_reference, self.outbox.next_reference())
            else {
                return Ok(true);
            };
            let step = by_reference.step(transfer, socket, more).map_err(of_transfer)?;
            match step {
                Step::Sent { bytes, evidence } => {
                    self.outbox.reference_went(bytes);
                    self.counters.sent_bytes += bytes;
                    self.outbox.sending.books.tally.add(evidence, 0, bytes);
                    continue;
                }
                Step::Done => {
                    self.outbox.pass_reference();
                    return Ok(true);
                }
                Step::SourceEmpty => stream::check(socket)?,
                Step::SocketFull => {}
            }
            if !waits {
                return Ok(false);
            }
            self.make_room()?;
        }
    }

    fn error(&self, source: io::Error) -> SendError {
        SendError { unsent_bytes: self.outbox.queued_bytes(), source }
    }

    /// Sends a run by one method, in as many calls as it takes. `false`: the socket takes no more now.
    ///
    /// What is measured is the time of the calls, without the time that the socket had no room: a peer that reads slowly says nothing
    /// of the method.
    fn send_run(&mut self, run: Run, waits: bool) -> io::Result<bool> {
        let choice = self.chooser.choose(run);
        let is_over_share = choice.method.is_zero_copy() && self.is_over_share(run);
        let mut method = if is_over_share { Method::Plain } else { choice.method };
        let (mut sent_bytes, mut cost) = (0, Duration::ZERO);
        let is_done = loop {
            let since = (choice.measured && !is_over_share).then(Instant::now);
            let how = self.how(method, run, waits && since.is_none(), since);
            let how = if is_over_share { How { evidence: Some(OVER_SHARE), ..how } } else { how };
            let sent = self.send_some_of(run.bytes - sent_bytes, how);
            self.reap_if_many();
            cost += since.map_or(Duration::ZERO, |since| since.elapsed());
            match sent {
                Ok(sent) => sent_bytes += sent,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock if waits => self.make_room()?,
                    io::ErrorKind::WouldBlock => break false,
                    _ => method = self.instead(method, error)?,
                },
            }
            if sent_bytes == run.bytes {
                break true;
            }
        };
        if method == choice.method && sent_bytes > 0 {
            self.chooser.record(choice, Run { bytes: sent_bytes }, cost);
        }
        Ok(is_done)
    }

    /// Whether the run, sent without a copy, would leave too little of the pool to the other streams that share it: each may have as many
    /// buffers in flight as it leaves at home, however long its peer does not read. A stream that has the pool for itself may have all.
    fn is_over_share(&self, run: Run) -> bool {
        let pool = self.outbox.sending.cache().pool();
        pool.sharers() > 1 && self.outbox.exceeds_share(run)
    }

    fn how(&self, method: Method, run: Run, waits: bool, since: Option<Instant>) -> How {
        let evidence = (!method.is_zero_copy()).then(|| self.chooser.copied(pages(run.bytes), run.bytes));
        How { method, waits, evidence, since, run_bytes: run.bytes }
    }

    /// Makes one call.
    fn send_some_of(&mut self, bytes: usize, how: How) -> io::Result<usize> {
        if how.method == Method::UringZeroCopy {
            let opened = self.outbox.open_ring(self.asked_for_ring);
            if let Err(refused) = opened {
                self.chooser.unavailable(how.method, refused.why());
                return Err(io::ErrorKind::Unsupported.into());
            }
        }
        if how.method == Method::ZeroCopy
            && let Err(refused) = self.outbox.sending.kept_mut().allow_zero_copy()
        {
            self.chooser.unavailable(how.method, refused.why());
            return Err(io::ErrorKind::Unsupported.into());
        }
        let in_flight = self.in_flight();
        let sent = self.call(bytes, how);
        match sent {
            Err(error) if how.method.is_zero_copy() && is_no_buffers(&error) => {
                // Completions make room. Without any it is a copy.
                self.reap();
                if self.in_flight() < in_flight { Ok(0) } else { self.send_copied(bytes, how) }
            }
            sent => sent,
        }
    }

    fn call(&mut self, bytes: usize, how: How) -> io::Result<usize> {
        let sent = self.outbox.send(bytes, how)?;
        self.counters.sent_bytes += sent as u64;
        if let Some(evidence) = how.evidence {
            self.outbox.sending.books.tally.add(evidence, 0, sent as u64);
        }
        Ok(sent)
    }

    /// There is no memory to remember zero-copy calls by, or no place in the ring.
    #[cold]
    fn send_copied(&mut self, bytes: usize, how: How) -> io::Result<usize> {
        let evidence = Some(Evidence::Copied(Cause::NoBuffers));
        let sent = self.call(bytes, How { method: Method::Plain, evidence, ..how })?;
        self.counters.no_buffers_bytes += sent as u64;
        self.chooser.no_room(how.method, self.outbox.sending.kept().is_ring_full());
        Ok(sent)
    }

    /// The way to go on where a method does not take what another might.
    #[cold]
    fn instead(&mut self, method: Method, error: io::Error) -> io::Result<Method> {
        let is_of_method = error.kind() == io::ErrorKind::Unsupported
            || matches!(
                error.raw_os_error(),
                Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EIO | libc::EFAULT | libc::EMSGSIZE)
            );
        if self.outbox.sending.kept().is_ring_broken() {
            self.chooser.unavailable(Method::UringZeroCopy, RING_BROKEN);
        }
        if !method.is_zero_copy() || !is_of_method {
            return Err(error);
        }
        self.chooser.not_taken(method);
        Ok(Method::Plain)
    }

    /// The socket's send buffer is full.
    #[cold]
    fn make_room(&mut self) -> io::Result<()> {
        self.wait_for_room(LOOK_AGAIN)
    }

    /// Waits until it may go on, be it that the pipe in front was empty.
    fn wait_for_room(&mut self, timeout: Duration) -> io::Result<()> {
        // Completions would end the wait at once.
        self.reap();
        if let Some(pipe) = self.outbox.silent_pipe() {
            return wait_readable(pipe, timeout).map(drop);
        }
        wait_writable(self.outbox.sending.socket(), timeout).map(drop)
    }

    #[inline]
    fn reap_if_many(&mut self) {
        let open = self.outbox.sending.in_flight();
        if open >= REAP_AT || (open > 0 && self.outbox.sending.cache().is_low()) {
            self.reap();
        }
    }

    /// Takes what the kernel says of earlier sends, and returns how many calls are over. Costs nothing where none is on its way.
    pub fn reap(&mut self) -> usize {
        if self.in_flight() == 0 {
            return 0;
        }
        let Self { outbox, chooser, peer, .. } = self;
        let sending = &mut outbox.sending;
        let over = sending.reap(|books, call, told| book(books, call, told, *peer, chooser));
        let over = over + sending.reap_ring(|books, call, told| book(books, call, told, *peer, chooser));
        sending.kept_mut().drop_failed(); // calls that took nothing
        over
    }

    /// The next buffer that is free again, if the builder was told to [return them](super::Builder::return_buffers).
    pub fn completed(&mut self) -> Option<Completed> {
        let engine::Completed { ticket, evidence, load } = self.outbox.sending.completed()?;
        let Item::Buffer(buffer) = load else { return None }; // what was referred to does not come back
        Some(Completed { ticket, evidence, buffer })
    }

    /// Takes back what was queued and not handed over, in order: after an error, to send it by another connection. Of the first part may
    /// have been sent; if the kernel still reads that (never for long, once the connection is over), it is not among them, but comes as
    /// those do that were sent. The peer sees a reset at the end, since what it got is not the whole.
    ///
    /// Of what was only referred to nothing comes back.
    pub fn take_unsent(&mut self) -> Vec<Buffer> {
        self.reap();
        self.outbox.sending.want_room(false);
        let buffer = |item| if let Item::Buffer(buffer) = item { Some(buffer) } else { None };
        self.outbox.take_unsent().into_iter().filter_map(buffer).collect()
    }

    /// Hands over everything queued, and ends the stream: the peer sees its end behind the last byte. This side can still receive.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn finish(&mut self) -> Result<(), SendError> {
        self.flush()?;
        self.outbox.end();
        Ok(())
    }

    /// Hands over everything queued, and waits until the kernel has let go of all memory: of what went without a copy, until the peer
    /// has acknowledged it. `false`: not in that time.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, SendError> {
        let look = |sender: &mut Self| {
            let is_flushed = sender.try_flush()?;
            Ok(match sender.reap() {
                _ if is_flushed && sender.in_flight() == 0 => Look::Done(()),
                0 => Look::Nothing,
                _ => Look::Moved,
            })
        };
        look_until_done(self, timeout, look, Self::wait).map(|done| done.is_some())
    }

    /// Waits for room for what is queued; with nothing queued, for what the kernel tells of earlier sends, which it takes.
    fn wait(&mut self, timeout: Duration) -> Result<(), SendError> {
        if self.queued() > 0 {
            return self.wait_for_room(timeout).map_err(|error| self.error(error));
        }
        let waited = self.outbox.sending.wait(timeout);
        let is_ready = waited.map_err(|error| self.error(error))? == Wakeup::Ready;
        if self.reap() == 0 && is_ready {
            // Where both sides have ended the stream every wait is over at once (POLLHUP), while the last bytes are on their way.
            std::thread::sleep(LOOK_AGAIN_SOON.min(timeout));
        }
        Ok(())
    }

    /// The kernel's socket, for options and calls that are missing here. ([`AsFd`] gives a descriptor that can only be waited on.)
    ///
    /// From then on nothing is sent by `MSG_ZEROCOPY`: the kernel numbers such calls of all who send on a socket together, and tells only
    /// the numbers when memory is free. Plain calls go on, and io_uring, whose completions say which call they are of. The error queue is
    /// this sender's: memory whose completion was read by others does not come back before the sender is dropped.
    ///
    /// # Errors
    /// `Unsupported` in a forked child, unless its parent asked for the socket before the fork: the parent would go on with such calls.
    pub fn kernel_socket(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.share()?;
        Ok(self.outbox.sending.socket())
    }

    /// Others may send on the socket from now on.
    pub(super) fn share(&mut self) -> io::Result<()> {
        self.outbox.sending.kept_mut().give_numbering_away()?;
        self.chooser.unavailable(Method::ZeroCopy, NoZeroCopy::Shared.why());
        Ok(())
    }

    /// What is known of the bytes sent, as soon as their memory is free.
    pub fn ledger(&self) -> Ledger {
        self.outbox.sending.books.tally
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        let strange = self.outbox.sending.strange_completions();
        Counters { strange_completions: strange, ..self.counters }
    }

    /// Which ways are taken for published data, and why; `None` if none was sent.
    pub fn explain_published(&self) -> Option<Explanation<PublishedMethod>> {
        self.by_reference.as_ref().map(ByReference::explain)
    }

    /// Which ways are taken for owned buffers, and why. What is shorter than a page goes by a plain call, and is booked as
    /// [below threshold](Cause::BelowThreshold).
    pub fn explain(&self) -> Explanation<Method> {
        self.chooser.explain()
    }

    /// Hands over everything queued and ends the stream, waits up to `timeout` until the peer has acknowledged what went without a copy,
    /// and lets go. The kernel goes on sending what it still reads then. If that is pages of pools alone, and no io_uring instance of
    /// another stream has them registered, they are replaced by others, so the buffers are home at once. Otherwise all of it stays as it
    /// is, like that of a dropped sender: until the peer has acknowledged it, or, after two minutes, the connection is reset. What is
    /// still queued is not sent, and the peer sees a reset.
    pub fn close(mut self, timeout: Duration) -> Closed {
        let start = Instant::now();
        let flushed = self.flush_timeout(timeout);
        self.outbox.end();
        // Nothing is queued any more that could fail.
        let drained = if matches!(flushed, Ok(true)) {
            self.drain(timeout.saturating_sub(start.elapsed()))
        } else {
            self.reap();
            Ok(false)
        };
        let error = flushed.err().or(drained.err());
        let (queued_bytes, ledger, counters) = (self.queued_bytes(), self.ledger(), self.counters());
        let (abandoned_calls, kept_bytes) = self.outbox.give_up();
        Closed { abandoned_calls, kept_bytes, queued_bytes, error, ledger, counters }
    }
}

fn is_no_buffers(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// Books a call that is over, and returns what that proves.
fn book(books: &mut Books, call: &Call, told: Told, peer: Option<IpAddr>, chooser: &mut Chooser) -> Evidence {
    let evidence = books.judge(0, || peer, told);
    let is_doubtful = told.copied && call.may_share;
    let evidence = if is_doubtful { Evidence::Unknown } else { evidence };
    books.tally.add(evidence, 0, told.bytes as u64);
    chooser.completed(call.method, 0, size(call.run_bytes), told.copied && !is_doubtful, call.since);
    evidence
}

/// The kernel's reason, where it has one; `UnexpectedEof` where what is referred to has ended.
fn of_transfer(error: TransferError) -> io::Error {
    match error {
        TransferError::Connection(source) => source,
        ended @ TransferError::Ended { .. } => io::Error::new(io::ErrorKind::UnexpectedEof, ended),
        other => io::Error::other(other),
    }
}

/// For programs that write: the kernel copies, as [`send_slice`](Sender::send_slice) has it.
impl io::Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::flush(self).map_err(|error| error.source)?;
        self.send_some(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::flush(self).map_err(|error| error.source)
    }
}

impl AsFd for Sender {
    /// A descriptor that is readable while the kernel has something to tell of what was sent ([`reap`](Sender::reap)), and, after
    /// [`try_flush`](Sender::try_flush) left something in the queue, while there is room for more. Nothing can be sent on it: see
    /// [`kernel_socket`](Sender::kernel_socket).
    ///
    /// # Panics
    /// When it is first asked for, if the process has no descriptor left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.outbox.sending.descriptor()
    }
}
