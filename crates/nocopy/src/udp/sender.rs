//! The half that sends.
#![expect(clippy::result_large_err, reason = "what is rejected comes back, and allocates nothing")]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::Call;
use super::choice::Chooser;
use super::destinations::Destinations;
use super::message::{DATAGRAM_BYTES_MAX, Message};
use super::outbox::{How, Outbox, Run, Taken};
use super::peer_error::PeerError;
use super::{Method, Ticket, over_port};
use crate::engine::path::Paths;
use crate::engine::reaper;
use crate::engine::sending::{self as engine, Books, REAP_AT};
use crate::engine::wait::{LOOK_AGAIN, Look, look_until_done};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::explanation::Explanation;
use crate::memory::in_flight::kernel_socket::KernelSocket;
use crate::memory::in_flight::{NoZeroCopy, Told};
use crate::memory::pool::{Buffer, Cache, Pool};
use crate::sys::poll::wait_writable;
use crate::sys::udp_send;

/// The most messages that are queued before they must be flushed.
const QUEUE_MAX: usize = 1024;

/// How long to wait at a time for room, of which a result may have told just before.
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// How often a datagram may meet errors that were waiting at the socket because of others.
const PENDING_ERRORS_MAX: usize = 16;

/// The sending half of a socket.
///
/// [`send`](Self::send) queues; [`flush`](Self::flush) hands over what is queued, in as few calls as the method allows. What is queued
/// when it is dropped is not sent; what the kernel still reads then stays where it is until it has done.
#[derive(Debug)]
pub struct Sender {
    pub(super) outbox: Outbox,
    pub(super) destinations: Destinations,
    pub(super) port: Option<over_port::Sender>,
    chooser: Chooser,
    /// Errors of the network that were told at the socket before it had this sender.
    errors_before: u64,
    /// Datagrams that were handed over, and refused later; the next flush or drain says so.
    late_refusals: Option<SendError>,
    pub(super) counters: Counters,
}

/// A message whose buffers are free again.
#[derive(Debug)]
pub struct Completed {
    /// Which.
    pub ticket: Ticket,
    /// What is known of its bytes; if of some more than of others, of the worst part.
    pub evidence: Evidence,
    /// Its buffers.
    pub message: Message,
}

/// What a sender counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Datagrams the kernel took. Not: delivered.
    pub sent: u64,
    /// Datagrams the kernel refused for good; the flush that met one says why.
    pub refused: u64,
    /// Errors of the network (ICMP) that were told.
    pub peer_errors: u64,
    /// Datagrams of zero-copy calls that the kernel had no memory to remember, and that were copied instead.
    pub no_buffers: u64,
    /// Completions of calls that were never made: a fault of the kernel's.
    pub strange_completions: u64,
}

/// A message was not queued; here it is.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Rejected {
    /// As it was given.
    pub message: Message,
    /// Why.
    pub reason: RejectedReason,
}

/// Why a message was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectedReason {
    /// The queue is full.
    #[error("{QUEUE_MAX} messages are queued; flush them first")]
    QueueFull,
    /// A datagram is longer than any may be.
    #[error("a datagram of {0} bytes is longer than UDP takes ({DATAGRAM_BYTES_MAX}); cut it")]
    TooLong(usize),
    /// Nobody said whom it is for.
    #[error("the socket is not connected; connect it, or say whom the message is for")]
    NotConnected,
}

/// A datagram was refused for good, and is no longer queued; what was behind it was handed over.
#[derive(Debug, thiserror::Error)]
#[error("{refused} of the datagrams were not sent, the first to {} ({source}): {}", whom(.to), advice(.source))]
pub struct SendError {
    /// Whom the first was for; `None`: the peer the socket is connected to.
    pub to: Option<SocketAddr>,
    /// How many were refused in this flush.
    pub refused: u64,
    /// The kernel's reason for the first.
    pub source: io::Error,
}

fn whom(to: &Option<SocketAddr>) -> String {
    to.map_or_else(|| "the connected peer".into(), |to| to.to_string())
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => "there is no way to it; look at 'ip route get'",
        Some(libc::EPERM) => "a packet filter of this host forbids it; look at 'nft list ruleset'",
        Some(libc::EACCES) => "broadcasts are to be allowed when the socket is made",
        Some(libc::EMSGSIZE) => "longer than the way allows without fragments; make them shorter",
        Some(libc::ENOBUFS | libc::ENOMEM) => "the interface's queue is full; send more slowly",
        Some(libc::ENETDOWN) => "the interface is down; bring it up",
        _ => "look at 'ip route get' and the interface",
    }
}

impl Sender {
    pub(super) fn new(
        socket: Arc<KernelSocket>,
        pool: Pool,
        chooser: Chooser,
        paths: Paths,
        return_buffers: bool,
    ) -> Self {
        Self {
            errors_before: socket.errors_told(),
            outbox: Outbox::new(socket, Cache::new(pool), paths, return_buffers),
            destinations: Destinations::new(),
            port: None,
            chooser,
            late_refusals: None,
            counters: Counters::default(),
        }
    }

    #[inline(always)]
    fn tally_mut(&mut self) -> &mut Ledger {
        &mut self.outbox.sending.books.tally
    }

    pub(super) fn connected(&mut self, to: SocketAddr) {
        if self.destinations.is_full() {
            self.forget_destinations();
        }
        self.destinations.connect(to);
    }

    /// Makes this sender the one that makes the `MSG_ZEROCOPY` calls of its socket.
    pub(super) fn allow_zero_copy(&mut self) -> Result<(), NoZeroCopy> {
        self.outbox.sending.kept_mut().allow_zero_copy()
    }

    pub(super) fn without_zero_copy(&mut self, why: &'static str) {
        self.chooser.without_zero_copy(why);
    }

    /// Sends over a port, too.
    pub(super) fn set_port(&mut self, port: over_port::Sender) {
        self.port = Some(port);
    }

    /// Makes the ring now, rather than when it is first sent by.
    pub(super) fn open_ring(&mut self) -> io::Result<()> {
        self.outbox.open_ring().map(drop).map_err(io::Error::other)
    }

    /// An empty buffer of the socket's pool; `None` while all are away: [`flush`](Self::flush) and [`reap`](Self::reap) bring them back.
    #[inline]
    pub fn buffer(&mut self) -> Option<Buffer> {
        self.outbox.sending.cache_mut().take()
    }

    /// Takes a buffer that was not sent back, more cheaply than dropping it.
    #[inline]
    pub fn recycle(&mut self, buffer: Buffer) {
        self.outbox.sending.recycle(buffer);
    }

    /// Whether it is a buffer of the pool.
    #[cfg(feature = "tokio")]
    pub(super) fn owns(&self, buffer: &Buffer) -> bool {
        self.outbox.sending.cache().owns(buffer)
    }

    /// The pool the buffers are of.
    pub fn pool(&self) -> &Pool {
        self.outbox.sending.cache().pool()
    }

    /// Buffers to be had at once.
    pub fn buffers_free(&self) -> usize {
        self.outbox.sending.cache().available()
    }

    /// Queues a message for the peer the socket is connected to.
    ///
    /// # Errors
    /// The message, and why it was not queued.
    #[inline(always)]
    pub fn send(&mut self, message: impl Into<Message>) -> Result<Ticket, Rejected> {
        let message = message.into();
        match self.destinations.connected() {
            Some(peer) => self.queue(message, peer),
            None => Err(Rejected { message, reason: RejectedReason::NotConnected }),
        }
    }

    /// Queues a message for that address.
    ///
    /// # Errors
    /// The message, and why it was not queued.
    #[inline]
    pub fn send_to(&mut self, message: impl Into<Message>, to: SocketAddr) -> Result<Ticket, Rejected> {
        let destination = self.destination(to);
        self.queue(message.into(), destination)
    }

    /// That address, or the peer the socket is connected to.
    #[inline]
    fn whom(&mut self, to: Option<SocketAddr>) -> Option<u32> {
        match to {
            Some(to) => Some(self.destination(to)),
            None => self.destinations.connected(),
        }
    }

    #[inline]
    fn destination(&mut self, to: SocketAddr) -> u32 {
        if self.destinations.is_full() {
            self.forget_destinations();
        }
        self.destinations.number(to)
    }

    /// Forgets destinations of which nothing is queued, nor on its way.
    #[cold]
    fn forget_destinations(&mut self) {
        self.destinations.forget(self.outbox.sending.messages().iter().map(|held| held.to));
        self.outbox.sending.books.forget_path();
        self.chooser.forget_all();
    }

    #[inline(always)]
    fn queue(&mut self, message: Message, destination: u32) -> Result<Ticket, Rejected> {
        let reason = if message.datagram_bytes() > DATAGRAM_BYTES_MAX {
            RejectedReason::TooLong(message.datagram_bytes())
        } else if self.queued() >= QUEUE_MAX {
            RejectedReason::QueueFull
        } else {
            return Ok(self.outbox.sending.push(message, destination));
        };
        Err(Rejected { message, reason })
    }

    /// Sends one datagram now, behind what is queued: the kernel copies it, so the bytes are the caller's again at once.
    ///
    /// # Errors
    /// As [`flush`](Self::flush); the datagram was not sent then.
    pub fn send_slice(&mut self, bytes: &[u8], to: Option<SocketAddr>) -> Result<(), SendError> {
        self.flush()?;
        let Some(destination) = self.whom(to) else { return Err(not_connected()) };
        let mut pending = Pending::default();
        loop {
            pending.told = self.errors_told();
            let address = self.destinations.get(destination).address;
            match udp_send::send(self.outbox.sending.socket(), bytes, address.as_ref(), 0) {
                Ok(()) => break,
                Err(error) if self.was_pending(&error, &mut pending) => {}
                Err(source) => {
                    self.counters.refused += 1;
                    return Err(SendError { to: self.destinations.get(destination).to, refused: 1, source });
                }
            }
        }
        self.counters.sent += 1;
        self.tally_mut().add(Evidence::Copied(Cause::Slice), 1, bytes.len() as u64);
        Ok(())
    }

    /// Sends one datagram now, behind what is queued: for programs that have one at a time. What the queue costs is saved where a
    /// plain call is the way.
    ///
    /// # Errors
    /// As [`flush`](Self::flush); `NotConnected` without an address, `EMSGSIZE` if it is longer than UDP takes.
    #[inline]
    pub fn send_now(&mut self, buffer: Buffer, to: Option<SocketAddr>) -> Result<(), SendError> {
        let Some(destination) = self.whom(to) else { return Err(not_connected()) };
        let is_alone =
            self.queued() == 0 && !self.outbox.sending.returns_buffers() && self.late_refusals.is_none();
        if is_alone && self.chooser.is_plain(destination, buffer.len()) {
            let address = self.destinations.get(destination).address.as_ref();
            if udp_send::send(self.outbox.sending.socket(), &buffer, address, 0).is_ok() {
                self.counters.sent += 1;
                let evidence = self.chooser.copied(1, buffer.len());
                self.tally_mut().add(evidence, 1, buffer.len() as u64);
                self.outbox.sending.recycle(buffer);
                return Ok(());
            }
        }
        // Where the call failed it is tried anew, and the error looked into.
        self.queue_and_flush(buffer, to)
    }

    #[inline(never)]
    fn queue_and_flush(&mut self, buffer: Buffer, to: Option<SocketAddr>) -> Result<(), SendError> {
        self.flush()?;
        let queued = match to {
            None => self.send(buffer),
            Some(to) => self.send_to(buffer, to),
        };
        match queued.map_err(|rejected| rejected.reason) {
            Ok(_) | Err(RejectedReason::QueueFull) => self.flush(), // the queue was just emptied
            Err(RejectedReason::TooLong(_)) => {
                Err(SendError { to, refused: 1, source: io::Error::from_raw_os_error(libc::EMSGSIZE) })
            }
            Err(RejectedReason::NotConnected) => Err(not_connected()),
        }
    }

    /// Messages that are queued and not handed over.
    #[inline]
    pub fn queued(&self) -> usize {
        self.outbox.sending.queued()
    }

    /// Calls whose memory the kernel still reads.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.outbox.sending.in_flight()
    }

    /// Hands over everything queued; waits while the socket's send buffer is full.
    ///
    /// # Errors
    /// Datagrams were refused for good: they are counted, and the rest was handed over all the same.
    #[inline]
    pub fn flush(&mut self) -> Result<(), SendError> {
        if self.send_only() { Ok(()) } else { self.flush_all() }
    }

    /// Sends the only message, if it is a datagram that goes by a plain call: without the bookkeeping that others need. `false`: nothing
    /// was done.
    #[inline(always)]
    fn send_only(&mut self) -> bool {
        let Some((bytes, destination)) = self.outbox.only() else { return false };
        // What waits for room is to be told that there is no need to any more.
        let is_alone = self.late_refusals.is_none() && !self.outbox.sending.wants_room();
        if !is_alone || !self.chooser.is_plain(destination, bytes.len()) {
            return false;
        }
        let address = self.destinations.get(destination).address.as_ref();
        if udp_send::send(self.outbox.sending.socket(), bytes, address, 0).is_err() {
            return false; // it is tried anew, and the error looked into
        }
        let bytes = bytes.len();
        let evidence = self.chooser.copied(1, bytes);
        self.tally_mut().add(evidence, 1, bytes as u64);
        self.counters.sent += 1;
        self.outbox.pop_only(evidence);
        true
    }

    #[inline(never)]
    fn flush_all(&mut self) -> Result<(), SendError> {
        while !self.hand_over(0)? {
            // What the kernel tells of others would end the wait at once, again and again (`POLLERR` cannot be turned off).
            if self.reap() == 0 {
                // The socket itself does not wait. What waiting fails for, trying again tells.
                let _ = wait_writable(self.outbox.sending.socket(), LOOK_AGAIN);
            }
        }
        Ok(())
    }

    /// Hands over as much as the socket's send buffer takes at once. `false`: not everything.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn try_flush(&mut self) -> Result<bool, SendError> {
        self.hand_over(libc::MSG_DONTWAIT)
    }

    fn hand_over(&mut self, flags: i32) -> Result<bool, SendError> {
        let mut refused: Option<SendError> = None;
        let mut is_all = true;
        while let Some(run) = self.outbox.run() {
            let choice = self.chooser.choose(&run);
            let since = choice.measured.then(Instant::now);
            let how = How { method: choice.method, flags, evidence: None, since };
            let done = self.send_run(how, &run);
            self.reap_if_many();
            if let (Some(since), Ok(true)) = (since, &done) {
                self.chooser.record(choice, &run, since.elapsed());
            }
            match done {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    is_all = false;
                    break;
                }
                Err(source) => {
                    self.refuse();
                    let to = self.destinations.get(run.destination).to;
                    refused.get_or_insert(SendError { to, refused: 0, source }).refused += 1;
                }
            }
        }
        self.outbox.sending.want_room(!is_all);
        refused.or_else(|| self.late_refusals.take()).map_or(Ok(is_all), Err)
    }

    /// Sends one call's worth after the other until the run is over. `false`: in another way than was chosen.
    #[inline]
    fn send_run(&mut self, mut how: How, run: &Run) -> io::Result<bool> {
        let (mut pending, chosen) = (Pending::default(), how.method);
        while self.outbox.has(run) {
            pending.told = self.errors_told();
            let sent = match how.method {
                Method::Socket => self.send_one(how, run),
                Method::Xdp => self.send_over_port(how, run),
                _ => self.send_many(how, run),
            };
            let Err(error) = sent else { continue };
            if !self.was_pending(&error, &mut pending) {
                how.method = self.instead(how.method, run, &error).ok_or(error)?;
            }
        }
        Ok(how.method == chosen)
    }

    /// Sends the next datagram by a call of its own.
    #[inline]
    fn send_one(&mut self, how: How, run: &Run) -> io::Result<()> {
        let Some(bytes) = self.outbox.next_in_one_piece() else { return self.send_many(how, run) };
        let address = self.destinations.get(run.destination).address.as_ref();
        udp_send::send(self.outbox.sending.socket(), bytes, address, how.flags)?;
        let bytes = bytes.len();
        let evidence = self.chooser.copied(run.datagrams, bytes);
        self.counters.sent += 1;
        self.tally_mut().add(evidence, 1, bytes as u64);
        self.outbox.pass(Some(evidence));
        Ok(())
    }

    /// Sends as many datagrams of the run as go into one call.
    fn send_many(&mut self, how: How, run: &Run) -> io::Result<()> {
        if how.method.is_by_ring() {
            return self.send_by_ring(how, run);
        }
        let evidence =
            (!how.method.is_zero_copy()).then(|| self.chooser.copied(run.datagrams, run.datagram_bytes));
        let open = self.outbox.sending.kept().numbered_calls();
        match self.call(run, How { evidence, ..how }) {
            Err(error) if evidence.is_none() && is_no_buffers(&error) => {
                // Completions make room: those that came meanwhile are read. Without any it is a copy.
                if self.outbox.sending.kept().numbered_calls() < open {
                    Ok(())
                } else {
                    self.send_copied(how, run)
                }
            }
            sent => sent.map(drop),
        }
    }

    /// Sends as many datagrams of the run as the ring has room for.
    fn send_by_ring(&mut self, how: How, run: &Run) -> io::Result<()> {
        if let Err(refused) = self.outbox.open_ring() {
            self.chooser.unavailable(how.method, refused.why());
            return Err(io::ErrorKind::Unsupported.into());
        }
        let taken = self.outbox.send_by_ring(run, how, &self.destinations)?;
        self.counters.sent += taken.datagrams;
        if taken.calls == 0 {
            return self.make_room(how.flags);
        }
        // Most results are there already, and it takes no call to see them.
        self.reap_ring();
        Ok(())
    }

    /// The ring is full, or the send buffer: completions make room.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, flags: i32) -> io::Result<()> {
        if self.reap() == 0 {
            if flags & libc::MSG_DONTWAIT != 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.outbox.sending.wait(ROOM_WAIT)?;
        }
        Ok(())
    }

    fn call(&mut self, run: &Run, how: How) -> io::Result<Taken> {
        let taken = self.outbox.send(run, how, &self.destinations);
        if self.outbox.sending.kept().is_unsure() {
            self.reap();
        }
        let taken = taken?;
        self.counters.sent += taken.datagrams;
        if let Some(evidence) = how.evidence {
            self.tally_mut().add(evidence, taken.datagrams, taken.bytes);
        }
        Ok(taken)
    }

    /// The kernel has no memory to remember zero-copy calls by.
    #[cold]
    #[inline(never)]
    fn send_copied(&mut self, how: How, run: &Run) -> io::Result<()> {
        let method = how.method.instead().unwrap_or(Method::SendMmsg);
        let evidence = Some(Evidence::Copied(Cause::NoBuffers));
        let taken = self.call(run, How { method, evidence, ..how })?;
        self.counters.no_buffers += taken.datagrams;
        self.chooser.no_buffers(how.method);
        Ok(())
    }

    /// Whether the error was waiting at the socket, because of an earlier datagram; what it is of is kept for
    /// [`errors`](Self::errors).
    #[cold]
    #[inline(never)]
    fn was_pending(&mut self, error: &io::Error, pending: &mut Pending) -> bool {
        match error.kind() {
            io::ErrorKind::Interrupted => return true,
            io::ErrorKind::WouldBlock => return false,
            _ => {}
        }
        self.reap();
        pending.count += 1;
        // One that nothing was told of may still have been waiting; an error of the datagram's own comes again.
        let is_first = pending.count == 1 && !is_of_method(error) && !is_no_buffers(error);
        is_first || (self.errors_told() > pending.told && pending.count <= PENDING_ERRORS_MAX)
    }

    /// Another way for what this one does not take; `None` if no other would.
    #[cold]
    #[inline(never)]
    fn instead(&mut self, method: Method, run: &Run, error: &io::Error) -> Option<Method> {
        if !is_of_method(error) {
            return None;
        }
        let other = method.instead()?;
        self.chooser.refused(method, run.destination, run.datagram_bytes as u32);
        Some(other)
    }

    /// Takes the first datagram off the queue, which no way could send.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self) {
        self.counters.refused += 1;
        self.pass_next();
    }

    /// Goes on behind the next datagram, of which no call will tell.
    pub(super) fn pass_next(&mut self) {
        self.outbox.pass(None);
    }

    #[inline]
    fn reap_if_many(&mut self) {
        let open = self.in_flight();
        if open >= REAP_AT || (open > 0 && self.outbox.sending.cache().is_empty()) {
            self.reap();
        }
    }

    /// Takes what the kernel says of earlier sends, and returns how many calls are over.
    pub fn reap(&mut self) -> usize {
        if let Some(port) = &mut self.port {
            port.reap();
        }
        let Self { outbox, destinations, chooser, .. } = self;
        let over = outbox.sending.reap(|books, call, told| book(books, call, told, destinations, chooser));
        over + self.reap_ring()
    }

    fn reap_ring(&mut self) -> usize {
        let Self { outbox, destinations, chooser, .. } = self;
        let over =
            outbox.sending.reap_ring(|books, call, told| book(books, call, told, destinations, chooser));
        if self.outbox.sending.kept().has_failed() {
            self.send_again();
        }
        over
    }

    /// What the ring did not take goes by ordinary calls: it was handed over, so it is not for the program to do.
    #[cold]
    #[inline(never)]
    fn send_again(&mut self) {
        let evidence = Evidence::Copied(Cause::ZeroCopyRefused);
        loop {
            let Some((call, error, resent)) = self.outbox.send_again(evidence, &self.destinations) else {
                return;
            };
            self.tally_mut().add(evidence, resent.datagrams, resent.bytes);
            self.counters.sent -= resent.refused;
            self.counters.refused += resent.refused;
            if let Some(source) = resent.error {
                let to = self.destinations.get(call.destination).to;
                let refused = SendError { to, refused: 0, source };
                self.late_refusals.get_or_insert(refused).refused += resent.refused;
            }
            if is_of_method(&error) {
                self.chooser.refused(call.method, call.destination, call.datagram_bytes);
            }
        }
    }

    #[inline]
    fn errors_told(&self) -> u64 {
        self.outbox.sending.kept().kernel_socket().errors_told()
    }

    /// What the network said since the last time, oldest first; at most the last 64, while all are [counted](Counters::peer_errors).
    /// Senders that share a socket (over ports on several queues) share its errors: each is told once.
    pub fn errors(&mut self) -> impl Iterator<Item = PeerError> + '_ {
        self.reap();
        self.outbox.sending.kept().kernel_socket().take_errors().into_iter().map(PeerError::from)
    }

    /// The next message whose buffers are free again, if the builder was told to
    /// [return them](super::Builder::return_buffers).
    pub fn completed(&mut self) -> Option<Completed> {
        let engine::Completed { ticket, evidence, load } = self.outbox.sending.completed()?;
        Some(Completed { ticket, evidence, message: load })
    }

    /// From now on messages whose memory is free go to [`completed`](Self::completed).
    #[cfg(feature = "tokio")]
    pub(super) fn set_return_buffers(&mut self) {
        self.outbox.sending.set_return_buffers();
    }

    /// Whether all of a message was handed over.
    #[cfg(feature = "tokio")]
    pub(super) fn is_handed_over(&self, ticket: Ticket) -> bool {
        self.outbox.is_handed_over(ticket)
    }

    /// Hands over everything queued, and waits until the kernel has let go of all memory. `false`: not in that time.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, SendError> {
        let start = Instant::now();
        // What was refused is told at the end: what is on its way is waited for all the same.
        let refused = self.flush().err();
        let look = |sender: &mut Self| {
            let left = timeout.saturating_sub(start.elapsed());
            Ok(match sender.reap() {
                _ if sender.in_flight() == 0 && sender.port_is_drained(left) => Look::Done(()),
                0 => Look::Nothing,
                _ => Look::Moved,
            })
        };
        let wait = |sender: &mut Self, timeout| {
            // What waiting fails for, looking again tells.
            if sender.outbox.sending.wait(timeout).is_ok() {
                // An error without a notice would end every wait at once; it is of an earlier datagram, and told nowhere else.
                let _ = rustix::net::sockopt::socket_error(sender.outbox.sending.socket());
            }
            Ok(())
        };
        let is_drained =
            look_until_done(self, timeout.saturating_sub(start.elapsed()), look, wait)?.is_some();
        refused.or_else(|| self.late_refusals.take()).map_or(Ok(is_drained), Err)
    }

    /// The kernel's socket, for options and calls that are missing here. ([`AsFd`] gives a descriptor that can only be waited on.)
    ///
    /// From then on nothing is sent by `MSG_ZEROCOPY`: the kernel numbers such calls of all who send on a socket together, and tells only
    /// the numbers when memory is free. Plain calls go on, and io_uring, whose completions say which call they are of. The error queue is
    /// this sender's: memory whose completion was read by others does not come back before the sender is dropped.
    ///
    /// # Errors
    /// `ResourceBusy`: another sender makes such calls on this socket (over a port on another queue), or one failed, and the kernel has not
    /// told yet whether it counted it; [`drain`](Self::drain), and try again. `Unsupported` in a forked child, unless its parent asked for
    /// the socket before the fork: the parent would go on with such calls.
    pub fn kernel_socket(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.reap();
        self.outbox.sending.kept_mut().give_numbering_away()?;
        self.chooser.without_zero_copy(NoZeroCopy::Shared.why());
        Ok(self.outbox.sending.socket())
    }

    /// What is known of the bytes sent, as soon as their memory is free.
    pub fn ledger(&self) -> Ledger {
        let tally = self.outbox.sending.books.tally;
        self.port.as_ref().map_or(tally, |port| tally.plus(&port.ledger()))
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        let strange = self.outbox.sending.strange_completions();
        let peer_errors = self.errors_told() - self.errors_before;
        Counters { strange_completions: strange, peer_errors, ..self.counters }
    }

    /// Which ways are taken, and why. Of single datagrams under 4 KiB there is nothing to tell: without a port they go by a plain call,
    /// and are booked as [below threshold](Cause::BelowThreshold).
    pub fn explain(&self) -> Explanation {
        Explanation::of(&self.chooser.explain())
    }

    /// Drains as long as `timeout`, then lets go of the socket. Memory that the kernel still reads then is given up for good: pages
    /// of a pool are replaced by others, while the kernel keeps the old ones; any other memory is leaked. (Dropping the sender instead
    /// leaves all of it where it is, for up to 10 s.)
    pub fn close(mut self, timeout: Duration) -> Closed {
        let error = self.drain(timeout).err();
        let (queued, ledger, counters) = (self.queued(), self.ledger(), self.counters());
        let (abandoned_calls, leaked_bytes) = self.outbox.abandon();
        reaper::leaked(leaked_bytes);
        Closed { abandoned_calls, leaked_bytes, queued, error, ledger, counters }
    }
}

/// How a sender ended.
#[derive(Debug)]
pub struct Closed {
    /// Calls the kernel had not completed. What they carried is not in the ledger.
    pub abandoned_calls: usize,
    /// Bytes of foreign memory among them, which nobody gets back.
    pub leaked_bytes: usize,
    /// Messages that were never handed over.
    pub queued: usize,
    /// Why datagrams were refused at the end.
    pub error: Option<SendError>,
    /// What is known of all other bytes.
    pub ledger: Ledger,
    /// What was counted.
    pub counters: Counters,
}

/// Errors that were waiting at the socket when something was sent.
#[derive(Debug, Default)]
struct Pending {
    count: usize,
    /// Errors of the network that were known before the call.
    told: u64,
}

fn not_connected() -> SendError {
    SendError { to: None, refused: 1, source: io::ErrorKind::NotConnected.into() }
}

/// Whether another method might do what this one could not.
fn is_of_method(error: &io::Error) -> bool {
    let limits = [libc::EMSGSIZE, libc::EINVAL, libc::EIO, libc::EOPNOTSUPP, libc::ENOPROTOOPT, libc::EFAULT];
    error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error().is_some_and(|errno| limits.contains(&errno))
}

fn is_no_buffers(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// Books a call that is over, and returns what that proves.
fn book(
    books: &mut Books,
    call: &Call,
    told: Told,
    destinations: &Destinations,
    chooser: &mut Chooser,
) -> Evidence {
    let to = || destinations.get(call.destination).to.map(|to| to.ip());
    let evidence = books.judge(call.destination, to, told);
    books.tally.add(evidence, u64::from(call.datagrams), told.bytes as u64);
    chooser.completed(call.method, call.destination, call.datagram_bytes, told.copied, call.since);
    evidence
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
