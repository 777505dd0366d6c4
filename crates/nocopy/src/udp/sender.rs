//! The half that sends.
#![expect(clippy::result_large_err, reason = "what is rejected comes back, and allocates nothing")]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nocopy_proto::errno::Counts;
use rustix::event::PollFlags;

use super::call::Call;
use super::choice::Chooser;
use super::destinations::Destinations;
use super::message::{DATAGRAM_BYTES_MAX, Message};
use super::outbox::{How, Outbox, Run, Taken};
use super::outcome::{Counters, SendError};
use super::peer_error::PeerError;
use super::strangers::Strangers;
use super::{Method, over_port};
use crate::counter::Counter;
use crate::engine::half::sender_half;
use crate::engine::path::Paths;
use crate::engine::reaper;
use crate::engine::sending::{Books, Completed, REAP_AT};
use crate::engine::wait::{LOOK_AGAIN, Look, look_until_done};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::explanation::Explanation;
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::area::Frame;
use crate::memory::in_flight::kernel_socket::KernelSocket;
use crate::memory::in_flight::{NoZeroCopy, Ticket, Told};
use crate::memory::pool::{Buffer, Cache, Pool};
use crate::stats::Stats;
use crate::sys::poll::{ready_for, wait_writable};
use crate::sys::udp_send;

/// The most messages that are queued before they must be flushed.
const QUEUE_MAX: usize = 1024;

/// How long one wait for room lasts at most, because the completion that made room may have been read already.
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// How many errors of other datagrams a call may return before it gives up.
const PENDING_ERRORS_MAX: usize = 16;

/// The sending half of a socket.
///
/// [`send`](Self::send) queues; [`flush`](Self::flush) hands the queue to the kernel, in as few calls as the method allows. When the sender
/// is dropped, queued messages are not sent, and memory is kept while the kernel still reads it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use nocopy::udp::{Message, Socket};
/// let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// let mut socket = Socket::bind("127.0.0.1:0".parse()?)?;
/// let sender = socket.sender();
/// let mut buffer = sender.buffer().ok_or("all buffers are on their way")?;
/// buffer.fill(b"hello").ok_or("longer than a buffer")?;
/// sender.send(buffer, peer.local_addr()?)?; // moved: touching it now does not compile
/// sender.send_copy(b"world", peer.local_addr()?)?; // copied, and the ledger says so
/// sender.flush()?;
/// assert_eq!(sender.stats()?.moved, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sender {
    pub(super) outbox: Outbox,
    /// 0 after close.
    queue_max: usize,
    pub(super) destinations: Destinations,
    pub(super) port: Option<Box<over_port::Sender>>,
    copies_over_port: bool,
    /// Unsent messages wait for completions, not for room in the socket.
    pub(super) awaits_completions: bool,
    chooser: Chooser,
    /// Errors of the network that were read at the socket before this sender was made.
    errors_before: u64,
    /// Datagrams that were refused after they were handed over; the next flush or drain returns this error.
    late_refusals: Option<SendError>,
    refusals: Counts,
    strangers: Strangers,
    pub(super) counters: Counters,
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
            queue_max: QUEUE_MAX,
            destinations: Destinations::new(),
            port: None,
            copies_over_port: false,
            awaits_completions: false,
            chooser,
            late_refusals: None,
            refusals: Counts::default(),
            strangers: Strangers::default(),
            counters: Counters::default(),
        }
    }

    #[inline(always)]
    fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.outbox.sending.books.tally
    }

    /// Sets the default destination. The socket behind a port is not connected itself.
    pub(super) fn connected(&mut self, to: SocketAddr) {
        if self.destinations.is_full() {
            self.forget_destinations();
        }
        self.destinations.connect(to, self.port.is_some());
    }

    /// Makes this sender the one that makes `MSG_ZEROCOPY` calls on its socket.
    pub(super) fn allow_zero_copy(&mut self) -> Result<(), NoZeroCopy> {
        self.outbox.sending.kept_mut().allow_zero_copy()
    }

    pub(super) fn without_zero_copy(&mut self, why: &'static str) {
        self.chooser.without_zero_copy(why);
    }

    /// Adds a port as a method, and sets whether copies use only the port.
    pub(super) fn set_port(&mut self, port: over_port::Sender, copies: bool) {
        self.port = Some(Box::new(port));
        self.copies_over_port = copies;
    }

    /// Makes the ring now, instead of at its first use.
    pub(super) fn open_ring(&mut self) -> io::Result<()> {
        self.outbox.open_ring().map(drop).map_err(io::Error::other)
    }

    /// An empty buffer; `None` while all are in use: [`flush`](Self::flush) and [`reap`](Self::reap) free them.
    ///
    /// Over a port it is a frame, for one datagram that the port sends without a copy, as long as frames are free. Otherwise it is memory
    /// of the socket's pool, for up to 64 KiB. [`Buffer::capacity`] shows which.
    #[inline]
    pub fn buffer(&mut self) -> Option<Buffer> {
        if let Some(port) = &mut self.port
            && let Some(frame) = port.frame()
        {
            return Some(frame.into());
        }
        self.outbox.sending.cache_mut().take()
    }

    /// Takes back a buffer that was not sent, more cheaply than dropping it.
    #[inline]
    pub fn recycle(&mut self, buffer: Buffer) {
        match (&mut self.port, buffer.is_frame()) {
            (Some(port), true) => {
                if let Ok(frame) = Frame::try_from(buffer) {
                    port.recycle(frame);
                }
            }
            _ => self.outbox.sending.recycle(buffer),
        }
    }

    /// Queues a message for an address; with `None`, for the peer to which the socket is connected.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// use nocopy::{Buffer, Frame, udp::{Message, Socket}};
    /// let mut socket = Socket::bind("127.0.0.1:0".parse()?)?;
    /// socket.connect(peer.local_addr()?)?;
    /// let many = Buffer::from(vec![0; 10_000]); // memory of the program's own: three datagrams
    /// socket.sender().send(Message::segments(many, 4000), None)?;
    /// socket.sender().flush()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The unchanged message: the queue is full ([`Reason::Full`]; flush it), a datagram is longer than UDP allows, or there is no
    /// destination.
    #[inline(always)]
    pub fn send(
        &mut self,
        message: impl Into<Message>,
        to: impl Into<Option<SocketAddr>>,
    ) -> Result<Ticket, Rejected<Message>> {
        let destination = self.whom(to.into());
        let message = message.into();
        match destination {
            Some(destination) => self.queue(message, destination),
            None => Err(Rejected { item: message, reason: Reason::NotConnected }),
        }
    }

    /// The number of that address, or of the peer to which the socket is connected.
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

    /// Forgets destinations without messages queued or in flight.
    #[cold]
    fn forget_destinations(&mut self) {
        self.destinations.forget(self.outbox.sending.messages().iter().map(|held| held.to));
        self.outbox.sending.books.forget_path();
        self.chooser.forget_all();
    }

    #[inline(always)]
    fn queue(&mut self, message: Message, destination: u32) -> Result<Ticket, Rejected<Message>> {
        let reason = if message.datagram_bytes() > DATAGRAM_BYTES_MAX {
            Reason::TooLong { bytes_max: DATAGRAM_BYTES_MAX }
        } else if self.queued() >= self.queue_max {
            self.why_full()
        } else {
            return Ok(self.outbox.sending.push(message, destination));
        };
        Err(Rejected { item: message, reason })
    }

    #[cold]
    fn why_full(&self) -> Reason {
        if self.queue_max == 0 { Reason::Finished } else { Reason::Full }
    }

    /// Sends a copy of the bytes as one datagram, after queued messages, to an address, or with `None` to the peer to which the socket is
    /// connected. The caller may reuse the bytes at once. A kernel socket sends the datagram now; a port sends it at the next
    /// [`flush`](Self::flush), together with others.
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0".parse()?)?;
    /// use nocopy::Reason;
    /// assert!(matches!(socket.sender().send_copy(b"hello", None), Err(Reason::NotConnected)));
    /// socket.connect(client.local_addr()?)?;
    /// socket.sender().send_copy(b"hello", None)?; // to the peer it is connected to
    /// assert_eq!(client.recv(&mut [0; 10])?, 5);
    /// assert!(matches!(socket.sender().send_copy(&[0; 65_508], None), Err(Reason::TooLong { bytes_max: 65_507 })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no destination, or no room (over a port: flush it), or the kernel refused the datagram; also errors of messages queued
    /// before, as returned by [`flush`](Self::flush). On an error the datagram was not sent.
    pub fn send_copy(&mut self, bytes: &[u8], to: impl Into<Option<SocketAddr>>) -> Result<(), Reason> {
        let destination = self.whom(to.into()).ok_or(Reason::NotConnected)?;
        if bytes.len() > DATAGRAM_BYTES_MAX {
            return Err(Reason::TooLong { bytes_max: DATAGRAM_BYTES_MAX });
        }
        if self.queue_max == 0 {
            return Err(Reason::Finished);
        }
        if self.queued() > 0 {
            self.flush().map_err(Reason::System)?;
        }
        let sent = if self.copies_over_port {
            self.copy_over_port(bytes, destination)
        } else {
            self.copy_by_call(bytes, destination).map_err(|error| Reason::System(error.into()))
        };
        sent.inspect(|()| self.count_sent(1, bytes.len() as u64))
    }

    pub(super) fn copy_by_call(&mut self, bytes: &[u8], destination: u32) -> Result<(), SendError> {
        let mut pending = Pending::default();
        loop {
            pending.told = self.errors_told();
            let address = self.destinations.get(destination).address;
            match udp_send::send(self.outbox.sending.socket(), bytes, address.as_ref(), 0) {
                Ok(()) => break,
                // The socket behind a port does not wait.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let _ = wait_writable(self.outbox.sending.socket(), LOOK_AGAIN);
                }
                Err(error) if self.was_pending(&error, &mut pending) => {}
                Err(source) => {
                    self.count_refused(&source);
                    return Err(SendError { to: self.destinations.get(destination).to, refused: 1, source });
                }
            }
        }
        self.ledger_mut().add(Evidence::Copied(Cause::Slice), 1, bytes.len() as u64);
        Ok(())
    }

    /// Whether a datagram of that many bytes to an address that may be forged leaves room for those to others: to be asked before it is sent.
    #[doc(hidden)]
    pub fn has_room_for(&mut self, to: SocketAddr, bytes: usize) -> bool {
        self.strangers.may_send(self.outbox.sending.socket(), bytes, to)
    }

    #[inline(always)]
    pub(super) fn count_sent(&mut self, datagrams: u64, bytes: u64) {
        self.counters.sent += datagrams;
        self.counters.sent_bytes += bytes;
    }

    #[inline]
    pub(super) fn queued(&self) -> usize {
        self.outbox.sending.queued()
    }

    /// The number of calls and frames whose memory the kernel still reads.
    #[inline]
    pub fn in_flight(&mut self) -> usize {
        self.outbox.sending.in_flight() + self.port.as_mut().map_or(0, |port| port.in_flight())
    }

    /// Hands over everything queued; waits while the socket's send buffer or the port's ring is full.
    ///
    /// # Errors
    /// Some datagrams were refused for good: they are counted, and the others were handed over. The inner error is a [`SendError`].
    #[inline]
    pub fn flush(&mut self) -> io::Result<()> {
        self.counters.flushes += 1;
        if self.send_only() { Ok(()) } else { self.flush_all(None).map(drop) }
    }

    /// If the only message is to be sent by a plain call, sends it, without the bookkeeping of other methods. Returns `false` if it did
    /// nothing.
    #[inline(always)]
    fn send_only(&mut self) -> bool {
        let Some((bytes, destination)) = self.outbox.only() else { return false };
        // Messages wait for room no longer, so the descriptor must not either.
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
        self.ledger_mut().add(evidence, 1, bytes as u64);
        self.count_sent(1, bytes as u64);
        self.outbox.pop_only(evidence);
        true
    }

    /// `false` if not everything was handed over in that time.
    #[inline(never)]
    fn flush_all(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let flags = if timeout.is_some() { libc::MSG_DONTWAIT } else { 0 };
        loop {
            let (is_all, is_taken) = self.hand_over_to_all(flags)?;
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
                    true => self.outbox.sending.wait(wait),
                    false => wait_writable(self.outbox.sending.socket(), wait),
                };
            }
        }
    }

    /// Whether all of the queue was handed over, and everything given to the port was accepted.
    fn hand_over_to_all(&mut self, flags: i32) -> io::Result<(bool, bool)> {
        // Refused datagrams do not delay others.
        let (handed_over, taken) = (self.hand_over(flags), self.flush_port());
        Ok((handed_over?, taken?))
    }

    /// Makes the port send. `false`: the interface has not accepted everything yet.
    fn flush_port(&mut self) -> io::Result<bool> {
        let Some(port) = &mut self.port else { return Ok(true) };
        if !port.has_queued() {
            return Ok(true);
        }
        port.flush()
    }

    /// Hands over as much as there is room for now. Returns `false` if something is left.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn try_flush(&mut self) -> io::Result<bool> {
        self.counters.flushes += 1;
        let (is_all, is_taken) = self.hand_over_to_all(libc::MSG_DONTWAIT)?;
        Ok(is_all && is_taken)
    }

    /// Hands over as much as there is room for within `timeout`. Returns `false` if something is left.
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0".parse()?)?;
    /// use std::time::Duration;
    /// socket.sender().send(b"hello".to_vec(), client.local_addr()?)?;
    /// let mut is_all = socket.sender().try_flush()?;
    /// if !is_all {
    ///     is_all = socket.sender().flush_timeout(Duration::from_secs(5))?; // waits for room
    /// }
    /// assert!(is_all);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn flush_timeout(&mut self, timeout: Duration) -> io::Result<bool> {
        self.counters.flushes += 1;
        self.flush_all(Some(timeout))
    }

    fn hand_over(&mut self, flags: i32) -> Result<bool, SendError> {
        let mut refused: Option<SendError> = None;
        let mut is_all = true;
        self.awaits_completions = false;
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
                    self.refuse(&source);
                    let to = self.destinations.get(run.destination).to;
                    refused.get_or_insert(SendError { to, refused: 0, source }).refused += 1;
                }
            }
        }
        self.outbox.sending.want_room(!is_all && !self.awaits_completions);
        refused.or_else(|| self.late_refusals.take()).map_or(Ok(is_all), Err)
    }

    /// Makes one call after the other until the run is sent. `false`: another method than the chosen one was used.
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

    /// Sends the next datagram by its own call.
    #[inline]
    fn send_one(&mut self, how: How, run: &Run) -> io::Result<()> {
        let Some(bytes) = self.outbox.next_in_one_piece() else { return self.send_many(how, run) };
        let address = self.destinations.get(run.destination).address.as_ref();
        udp_send::send(self.outbox.sending.socket(), bytes, address, how.flags)?;
        let bytes = bytes.len();
        let evidence = self.chooser.copied(run.datagrams, bytes);
        self.count_sent(1, bytes as u64);
        self.ledger_mut().add(evidence, 1, bytes as u64);
        self.outbox.pass(Some(evidence));
        Ok(())
    }

    /// Sends as many datagrams of the run as fit into one call.
    fn send_many(&mut self, how: How, run: &Run) -> io::Result<()> {
        if how.method.is_by_ring() {
            return self.send_by_ring(how, run);
        }
        let evidence =
            (!how.method.is_zero_copy()).then(|| self.chooser.copied(run.datagrams, run.datagram_bytes));
        let open = self.outbox.sending.kept().numbered_calls();
        match self.call(run, How { evidence, ..how }) {
            Err(error) if evidence.is_none() && is_no_buffers(&error) => {
                // Completions make room, so recent ones are read. Without any, a copy is sent.
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
        self.count_sent(taken.datagrams, taken.bytes);
        if taken.calls == 0 {
            return self.make_room(how.flags);
        }
        // Most results have arrived already, and reading them needs no call.
        self.reap_ring();
        Ok(())
    }

    /// Makes room by completions, because the ring or the send buffer is full.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, flags: i32) -> io::Result<()> {
        if self.reap() == 0 {
            if flags & libc::MSG_DONTWAIT != 0 {
                // With nothing in flight, it waits for room in the socket.
                self.awaits_completions = self.outbox.sending.in_flight() > 0;
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
        self.count_sent(taken.datagrams, taken.bytes);
        if let Some(evidence) = how.evidence {
            self.ledger_mut().add(evidence, taken.datagrams, taken.bytes);
        }
        Ok(taken)
    }

    /// Sends by copies, because the kernel has no memory to record zero-copy calls.
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

    /// Whether the error belongs to an earlier datagram and was waiting at the socket; its description is kept for
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
        // An error without a notice may still have been waiting; the datagram's own error comes again.
        let is_first = pending.count == 1 && !is_of_method(error) && !is_no_buffers(error);
        is_first || (self.errors_told() > pending.told && pending.count <= PENDING_ERRORS_MAX)
    }

    /// The fallback for sends that the kernel refuses by this method; `None` without a fallback.
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

    /// Removes the first datagram, which no method could send.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, error: &io::Error) {
        self.count_refused(error);
        self.pass_next();
    }

    /// Counts a datagram that is not sent.
    pub(super) fn count_refused(&mut self, error: &io::Error) {
        self.counters.refused += 1;
        self.refusals.add(error, 1);
    }

    /// Skips the next datagram, for which no completion will arrive.
    pub(super) fn pass_next(&mut self) {
        self.outbox.pass(None);
    }

    #[inline]
    fn reap_if_many(&mut self) {
        let open = self.outbox.sending.in_flight();
        if open >= REAP_AT || (open > 0 && self.outbox.sending.cache().is_empty()) {
            self.reap();
        }
    }

    /// Takes back memory that the kernel no longer reads, and returns how many calls and frames are complete by that.
    pub fn reap(&mut self) -> usize {
        let frames = self.port.as_mut().map_or(0, |port| port.reap());
        let Self { outbox, destinations, chooser, .. } = self;
        let over = outbox.sending.reap(|books, call, told| book(books, call, told, destinations, chooser));
        frames + over + self.reap_ring()
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

    // Sends that the ring refused are repeated by ordinary calls: for the program they were handed over already.
    #[cold]
    #[inline(never)]
    fn send_again(&mut self) {
        let evidence = Evidence::Copied(Cause::ZeroCopyRefused);
        loop {
            let Some((call, error, resent)) = self.outbox.send_again(evidence, &self.destinations) else {
                return;
            };
            self.ledger_mut().add(evidence, resent.datagrams, resent.bytes);
            self.counters.sent -= resent.refused.len() as u64;
            self.counters.sent_bytes -= resent.refused_bytes;
            resent.refused.iter().for_each(|error| self.count_refused(error));
            let to = self.destinations.get(call.destination).to;
            for source in resent.refused {
                self.late_refusals.get_or_insert(SendError { to, refused: 0, source }).refused += 1;
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

    /// Errors that the network reported since the last call, oldest first; at most the last 64, but all are counted (`peer_errors` of the
    /// [stats](Self::stats)). Senders that share a socket (over ports on several queues) share its errors; each error is returned once.
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0".parse()?)?;
    /// # let closed = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # closed.connect(client.local_addr()?)?; // takes nothing from others
    /// # let to = closed.local_addr()?;
    /// let error = loop {
    ///     socket.sender().send_copy(b"hello", to)?; // no socket receives there
    ///     if let Some(error) = socket.sender().errors().next() {
    ///         break error;
    ///     }
    /// };
    /// assert_eq!(error.to, Some(to));
    /// assert_eq!(error.error.kind(), std::io::ErrorKind::ConnectionRefused);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn errors(&mut self) -> impl Iterator<Item = PeerError> + use<> {
        self.reap();
        self.outbox.sending.kept().kernel_socket().take_errors().into_iter().map(PeerError::from)
    }

    /// The next message whose buffers are free again, if the builder was set to [return them](super::Builder::return_buffers).
    ///
    /// ```
    /// use nocopy::udp::Socket;
    /// # let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let mut socket = Socket::builder().return_buffers(true).bind("127.0.0.1:0".parse()?)?;
    /// let ticket = socket.sender().send(vec![7; 100], peer.local_addr()?)?;
    /// assert!(socket.sender().completed().is_none()); // queued only
    /// assert!(socket.sender().drain(std::time::Duration::from_secs(5))?);
    /// let completed = socket.sender().completed().expect("it was sent");
    /// assert_eq!(completed.ticket, ticket);
    /// println!("{}", completed.evidence); // whether this message was copied
    /// let bytes: Vec<u8> = completed.item.into_iter().next().unwrap().into_owner().unwrap();
    /// assert_eq!(bytes, [7; 100]); // the program's own memory again
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn completed(&mut self) -> Option<Completed<Message>> {
        self.outbox.sending.completed()
    }

    /// Hands over everything queued, and waits for at most `timeout` until the kernel no longer reads any memory. Returns whether that is
    /// so.
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0".parse()?)?;
    /// use std::time::Duration;
    /// let (to, pool) = (client.local_addr()?, nocopy::Pool::new(4, 4096)?);
    /// let mut socket = Socket::builder().send_pool(&pool).bind("127.0.0.1:0".parse()?)?;
    /// let mut buffer = socket.sender().buffer().expect("a fresh pool has buffers");
    /// buffer.fill(b"hello").expect("it fits");
    /// socket.sender().send(buffer, to)?;
    /// assert!(socket.sender().drain(Duration::from_secs(5))?);
    /// assert_eq!(socket.sender().in_flight(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn drain(&mut self, timeout: Duration) -> io::Result<bool> {
        let start = Instant::now();
        // Refusals are returned at the end: the wait for sends in flight continues.
        self.counters.flushes += 1;
        let refused = self.flush_all(Some(timeout)).err();
        let look = |sender: &mut Self| {
            let left = timeout.saturating_sub(start.elapsed());
            Ok::<_, io::Error>(match sender.reap() {
                _ if sender.outbox.sending.in_flight() == 0 && sender.port_is_drained(left)? => {
                    Look::Done(())
                }
                0 => Look::Nothing,
                _ => Look::Moved,
            })
        };
        let wait = |sender: &mut Self, timeout| {
            // If waiting fails, looking again finds the reason.
            if sender.outbox.sending.wait(timeout).is_ok() {
                // An error without a notice would end every wait at once; it concerns an earlier datagram, and is reported only here.
                let _ = rustix::net::sockopt::socket_error(sender.outbox.sending.socket());
            }
            Ok(())
        };
        let is_drained =
            look_until_done(self, timeout.saturating_sub(start.elapsed()), look, wait)?.is_some();
        let late = self.late_refusals.take().map(io::Error::from);
        refused.or(late).map_or(Ok(is_drained), Err)
    }

    /// Prepares for a wait on the descriptor ([`AsFd`]): it becomes readable when memory is free again, and, if
    /// [`try_flush`](Self::try_flush) left something, when there is room. Returns true if it is readable already; free memory was then
    /// taken back.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn arm(&mut self) -> io::Result<bool> {
        if self.reap() > 0 {
            return Ok(true);
        }
        if let Some(port) = &mut self.port {
            // Without reading completions: arming the port detects those.
            let is_away = !port.is_idle();
            self.outbox.sending.descriptor(); // made before what it is to watch
            self.outbox.sending.watch_also(port.port().as_fd(), is_away);
            if is_away && port.arm()? {
                return Ok(true);
            }
        }
        let socket = self.outbox.sending.socket();
        let events = ready_for(socket, PollFlags::OUT)?;
        if events.contains(PollFlags::ERR) {
            // An error without a notice would make the descriptor readable for good; it concerns an earlier datagram.
            let _ = rustix::net::sockopt::socket_error(socket);
        }
        Ok(self.outbox.sending.wants_room() && events.contains(PollFlags::OUT))
    }

    /// The kernel socket, for options and calls that this type lacks. ([`AsFd`] returns a descriptor that can only be waited on.)
    ///
    /// From then on nothing is sent by `MSG_ZEROCOPY`: the kernel numbers such calls of all senders on a socket together, and reports only
    /// numbers when memory is free. Plain calls and io_uring, whose completions name their call, are still used. Only this sender may read
    /// the error queue: memory whose completion was read elsewhere returns only when the sender is dropped.
    ///
    /// ```
    /// # let mut socket = nocopy::udp::Socket::bind("127.0.0.1:0".parse()?)?;
    /// use rustix::net::sockopt;
    /// let socket = socket.sender().kernel_socket()?;
    /// sockopt::set_ip_tos(socket, 0x10)?;
    /// assert_eq!(sockopt::ip_tos(socket)?, 0x10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `ResourceBusy`: another sender makes such calls on this socket (over a port on another queue), or such a call failed, and the kernel
    /// has not reported yet whether it was numbered; [`drain`](Self::drain), and try again. `Unsupported` in a forked child, unless its
    /// parent asked for the socket before the fork, because the parent may continue such calls.
    pub fn kernel_socket(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.reap();
        self.outbox.sending.kept_mut().give_numbering_away()?;
        self.chooser.without_zero_copy(NoZeroCopy::Shared.why());
        Ok(self.outbox.sending.socket())
    }

    /// The evidence for the bytes sent, complete when their memory is free.
    pub fn ledger(&self) -> Ledger {
        let mut tally = self.outbox.sending.books.tally;
        tally += self.port.as_ref().map(|port| port.ledger()).unwrap_or_default();
        tally
    }

    /// All counters. `moved` counts datagrams that the kernel accepted, not those that arrived; over a port there is a counter for each
    /// path: `over_port`, and each reason to send through the kernel. Refused datagrams are also counted by the kernel's error:
    /// `refused_ENETUNREACH`, and so on. With sockets over all queues, the first has the `peer_errors` of all.
    ///
    /// # Errors
    /// Never, in this version.
    pub fn stats(&self) -> io::Result<Stats> {
        let Counters { sent, sent_bytes, flushes, .. } = self.counters;
        let counts_elsewhere = self.port.as_ref().is_some_and(|port| port.counts_elsewhere());
        let peer_errors = if counts_elsewhere { 0 } else { self.errors_told() - self.errors_before };
        let strange_completions = self.outbox.sending.strange_completions();
        let counters = Counters { peer_errors, strange_completions, ..self.counters };
        let by_error = self.refusals.by_name().into_iter().map(|(name, value)| {
            let meaning = "Of the refused datagrams, those by this error of the kernel.";
            Counter { name: format!("refused_{name}").into(), meaning, value }
        });
        let mut stats = Stats::moved(sent, sent_bytes).with(by_error);
        stats.flushes = flushes;
        for counter in counters.counters() {
            stats = match &*counter.name {
                "sent" | "sent_bytes" | "flushes" => stats,
                "refused" | "given_up" => stats.with_dropped([counter]),
                "strange_completions" => stats.with_faults([counter]),
                _ => stats.with([counter]),
            };
        }
        Ok(match &self.port {
            None => stats,
            Some(port) => {
                let below = port.port().stats()?;
                let all = stats.with(port.sent().counters()).with([port.sent().all_through_kernel()]);
                let all = all.with([port.sent().still_queued(below.moved)]);
                all.with_dropped(below.only(&["tx_dropped", "tx_invalid_descs"]))
                    .with_faults(below.only(&crate::port::TX_FAULTS))
            }
        })
    }

    /// The methods in use, and why. Single datagrams under 4 KiB are not mentioned: without a port they use a plain call, and the ledger
    /// has them as [below threshold](Cause::BelowThreshold). Over a port, the port's explanation is included.
    pub fn explain(&self) -> Explanation {
        let ways = self.chooser.explain();
        match self.port.as_ref().map(|port| port.port().explain()) {
            None => Explanation::of(&ways, Evidence::Unknown),
            Some(port) => port.below(&ways),
        }
    }

    /// Drains for at most `timeout`, and refuses to send from then on. Returns `false` if something was given up, which
    /// [`stats`](Self::stats) counts. Memory that the kernel still reads is then given up for good: pages of a pool are replaced, while the
    /// kernel keeps the old ones; other memory is leaked. (Dropping the sender instead keeps all memory, for up to 10 s.)
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0".parse()?)?;
    /// use nocopy::Reason;
    /// let to = client.local_addr()?;
    /// socket.sender().send(b"the last one".to_vec(), to)?;
    /// assert!(socket.sender().close(std::time::Duration::from_secs(5))?); // nothing was given up
    /// assert!(matches!(socket.sender().send_copy(b"one more", to), Err(Reason::Finished)));
    /// assert_eq!(socket.sender().stats()?["given_up"], 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn close(&mut self, timeout: Duration) -> io::Result<bool> {
        let drained = self.drain(timeout);
        self.queue_max = 0;
        self.counters.given_up += self.queued() as u64;
        let (abandoned_calls, leaked_bytes) = self.outbox.abandon();
        self.counters.abandoned_calls += abandoned_calls as u64;
        self.counters.leaked_bytes += leaked_bytes as u64;
        reaper::leaked(leaked_bytes);
        drained
    }
}

sender_half!(Sender, Buffer);

/// Errors that were waiting at the socket when a datagram was sent.
#[derive(Debug, Default)]
struct Pending {
    count: usize,
    /// Errors of the network known before the call.
    told: u64,
}

/// Whether another method may succeed where this one failed.
fn is_of_method(error: &io::Error) -> bool {
    let limits = [libc::EMSGSIZE, libc::EINVAL, libc::EIO, libc::EOPNOTSUPP, libc::ENOPROTOOPT, libc::EFAULT];
    error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error().is_some_and(|errno| limits.contains(&errno))
}

fn is_no_buffers(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// Records a finished call, and returns its evidence.
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
    /// A descriptor that is readable while memory is free again ([`reap`](Sender::reap)), and, after [`try_flush`](Sender::try_flush) left
    /// something in the queue, while there is room for more. Nothing can be sent on it: see [`kernel_socket`](Sender::kernel_socket).
    ///
    /// # Panics
    /// At the first call, if the process has no descriptor left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.outbox.sending.descriptor()
    }
}
