//! How a sender hands over its queue: cut into calls of as many datagrams as the method allows, with a fallback for each failure.

use std::io;
use std::time::{Duration, Instant};

use super::Sender;
use crate::engine::reaper;
use crate::engine::wait::{LOOK_AGAIN, Look, look_until_done};
use crate::facts::evidence::{Cause, Evidence};
use crate::memory::send_queue::{
    CallNote, Completion, Extent, Position, REAP_AT, is_no_buffers, is_of_method,
};
use crate::sys::poll::wait_writable;
use crate::sys::udp_send;
use crate::udp::Method;
use crate::udp::cut::{Cut, Run};
use crate::udp::message::Outgoing;
use crate::udp::outcome::SendError;

const RING_SENDS: u32 = 128;

/// The most bytes of the send buffer that a message needs in addition to its own: its buffer's head, and parts of two pages.
const BESIDE_BYTES: usize = 12 << 10;

/// How often to try a datagram that the ring refused.
const ATTEMPTS: usize = 4;

/// How long one wait for room lasts at most, because the completion that made room may have been read already.
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// How many errors of other datagrams a call may return before it gives up.
const PENDING_ERRORS_MAX: usize = 16;

/// A call that the kernel accepted and has not completed.
#[derive(Debug, Clone, Copy)]
pub(in crate::udp) struct Call {
    datagrams: u32,
    datagram_bytes: u32,
    destination: u32,
    method: Method,
    /// When it was made, if the policy measures it.
    since: Option<Instant>,
}

impl Call {
    fn of(cut: Cut, run: &Run, how: How) -> Self {
        let (destination, datagram_bytes) = (run.destination, run.datagram_bytes as u32);
        Self { datagrams: cut.datagrams, datagram_bytes, destination, method: how.method, since: how.since }
    }
}

impl CallNote for Call {
    fn of_failed(self) -> Self {
        Self { datagrams: 0, since: None, ..self }
    }
}

#[derive(Debug, Clone, Copy)]
pub(in crate::udp) struct How {
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

impl Sender {
    /// If the only message is to be sent by a plain call, sends it, without the bookkeeping of other methods. Returns `false` if it did
    /// nothing.
    #[inline(always)]
    pub(super) fn send_only(&mut self) -> bool {
        let Some(Outgoing { message, destination }) = self.queue.only() else { return false };
        let (Some(bytes), destination) = (message.single(), *destination) else { return false };
        // Messages wait for room no longer, so the descriptor must not either.
        let is_alone = self.outcome.late.is_none() && !self.queue.wants_room();
        if !is_alone || !self.policy.is_plain(destination, bytes.len()) {
            return false;
        }
        let address = self.destinations.get(destination).address.as_ref();
        if udp_send::send(self.queue.socket(), bytes, address, 0).is_err() {
            return false; // it is tried anew, and the error looked into
        }
        let bytes = bytes.len();
        let evidence = self.policy.copied(1, bytes);
        self.count_sent(1, bytes, Some(evidence));
        self.queue.pop_only(|outgoing| outgoing.message.pop_buffer(), evidence);
        true
    }

    /// `false` if not everything was handed over in that time.
    #[inline(never)]
    pub(super) fn flush_all(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
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
                    true => self.queue.wait(wait),
                    false => wait_writable(self.queue.socket(), wait),
                };
            }
        }
    }

    /// Whether all of the queue was handed over, and everything given to the port was accepted.
    pub(super) fn hand_over_to_all(&mut self, flags: i32) -> io::Result<(bool, bool)> {
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
        self.outcome.flushes += 1;
        let refused = self.flush_all(Some(timeout)).err();
        let look = |sender: &mut Self| {
            let left = timeout.saturating_sub(start.elapsed());
            Ok::<_, io::Error>(match sender.reap() {
                _ if sender.queue.in_flight() == 0 && sender.port_is_drained(left)? => Look::Done(()),
                0 => Look::Nothing,
                _ => Look::Moved,
            })
        };
        let wait = |sender: &mut Self, timeout| {
            // If waiting fails, looking again finds the reason.
            if sender.queue.wait(timeout).is_ok() {
                // An error without a notice would end every wait at once; it concerns an earlier datagram, and is reported only here.
                let _ = rustix::net::sockopt::socket_error(sender.queue.socket());
            }
            Ok(())
        };
        let is_drained =
            look_until_done(self, timeout.saturating_sub(start.elapsed()), look, wait)?.is_some();
        let late = self.outcome.late.take().map(io::Error::from);
        refused.or(late).map_or(Ok(is_drained), Err)
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
        self.outcome.counters.given_up += self.queued() as u64;
        drop(self.queue.take_unsent());
        let given_up = self.queue.detach();
        let abandoned_calls = given_up.in_flight();
        let leaked_bytes = given_up.abandon();
        self.outcome.counters.abandoned_calls += abandoned_calls as u64;
        self.outcome.counters.leaked_bytes += leaked_bytes as u64;
        reaper::leaked(leaked_bytes);
        drained
    }

    fn hand_over(&mut self, flags: i32) -> Result<bool, SendError> {
        let mut refused: Option<SendError> = None;
        let mut is_all = true;
        self.awaits_completions = false;
        while let Some(run) = Run::first(self.queue.entries(), self.queue.head()) {
            let choice = self.policy.choose(&run);
            let since = choice.measured.then(Instant::now);
            let how = How { method: choice.method, flags, evidence: None, since };
            let done = self.send_run(how, &run);
            self.reap_if_many();
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
                    self.refuse(&source);
                    let to = self.destinations.get(run.destination).to;
                    refused.get_or_insert(SendError { to, refused: 0, source }).refused += 1;
                }
            }
        }
        self.queue.want_room(!is_all && !self.awaits_completions);
        refused.or_else(|| self.outcome.late.take()).map_or(Ok(is_all), Err)
    }

    #[inline]
    pub(in crate::udp) fn has(&self, run: &Run) -> bool {
        self.queue.head().ticket < run.end
    }

    /// Makes one call after the other until the run is sent. `false`: another method than the chosen one was used.
    #[inline]
    fn send_run(&mut self, mut how: How, run: &Run) -> io::Result<bool> {
        let (mut pending, chosen) = (PendingErrors::default(), how.method);
        while self.has(run) {
            pending.known = self.network_errors();
            let sent = match how.method {
                Method::Socket => self.send_one(how, run),
                Method::Xdp => self.send_over_port(how, run),
                _ => self.send_many(how, run),
            };
            let Err(error) = sent else { continue };
            if !self.belongs_to_earlier(&error, &mut pending) {
                how.method = self.fallback(how.method, run, &error).ok_or(error)?;
            }
        }
        Ok(how.method == chosen)
    }

    /// Sends the next datagram by its own call.
    #[inline]
    fn send_one(&mut self, how: How, run: &Run) -> io::Result<()> {
        let ticket = self.queue.head().ticket;
        let Some(bytes) = self.queue.entries().payload(ticket).message.single() else {
            return self.send_many(how, run);
        };
        let address = self.destinations.get(run.destination).address.as_ref();
        udp_send::send(self.queue.socket(), bytes, address, how.flags)?;
        let bytes = bytes.len();
        let evidence = self.policy.copied(run.datagrams, bytes);
        self.count_sent(1, bytes, Some(evidence));
        self.queue.advance(Position::of(ticket + 1), Some(evidence));
        Ok(())
    }

    /// Sends as many datagrams of the run as fit into one call.
    fn send_many(&mut self, how: How, run: &Run) -> io::Result<()> {
        if how.method.is_by_ring() {
            return self.send_by_ring(how, run);
        }
        let evidence =
            (!how.method.is_zero_copy()).then(|| self.policy.copied(run.datagrams, run.datagram_bytes));
        let open = self.queue.numbered_calls();
        match self.call(run, How { evidence, ..how }) {
            Err(error) if evidence.is_none() && is_no_buffers(&error) => {
                // Completions make room, so recent ones are read. Without any, a copy is sent.
                if self.queue.numbered_calls() < open { Ok(()) } else { self.send_copied(how, run) }
            }
            sent => sent.map(drop),
        }
    }

    /// Makes one call for as many datagrams as it may carry; returns how many the kernel took.
    fn call(&mut self, run: &Run, how: How) -> io::Result<u64> {
        let address = self.destinations.get(run.destination).address.as_ref();
        let mut place = self.queue.head();
        let mut batch = self.queue.batch(&mut self.burst, address);
        let messages_max = if how.method == Method::Socket { 1 } else { udp_send::MESSAGES_MAX };
        while place.ticket < run.end && batch.len() < messages_max {
            let cut = Cut::next(batch.entries(), how.method, place, run);
            if !batch.add(cut.extent, cut.segment_bytes(run), Call::of(cut, run, how)) {
                break;
            }
            place = cut.extent.end;
        }
        if batch.len() == 0 {
            // In more pieces than the kernel allows (`UIO_MAXIOV`).
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let sent = match how.evidence {
            None => batch.send_zero_copy(how.flags),
            Some(_) => batch.send_copied(how.flags),
        };
        let (mut datagrams, mut bytes) = (0, 0);
        let accepted = self.burst.accepted(*sent.as_ref().unwrap_or(&0));
        for (extent, call) in accepted {
            datagrams += call.datagrams;
            bytes += extent.bytes;
        }
        if let Some((extent, _)) = accepted.last() {
            self.queue.advance(extent.end, how.evidence);
        }
        self.count_sent(datagrams, bytes, how.evidence);
        if self.queue.is_uncertain() {
            self.reap();
        }
        sent.map(|_| u64::from(datagrams))
    }

    /// Sends by copies, because the kernel has no memory to record zero-copy calls.
    #[cold]
    #[inline(never)]
    fn send_copied(&mut self, how: How, run: &Run) -> io::Result<()> {
        let method = how.method.instead().unwrap_or(Method::SendMmsg);
        let evidence = Some(Evidence::Copied(Cause::NoBuffers));
        self.outcome.counters.no_buffers += self.call(run, How { method, evidence, ..how })?;
        self.policy.no_buffers(how.method);
        Ok(())
    }

    /// Makes the ring, with the pool's memory registered, if there is none.
    pub(in crate::udp) fn open_ring(&mut self) -> io::Result<()> {
        self.queue.open_ring(RING_SENDS).map_err(io::Error::other)
    }

    /// Passes as many datagrams of the run to the ring as there is room for, by one call.
    fn send_by_ring(&mut self, how: How, run: &Run) -> io::Result<()> {
        if let Err(refused) = self.queue.open_ring(RING_SENDS) {
            self.policy.unavailable(how.method, refused.why());
            return Err(io::ErrorKind::Unsupported.into());
        }
        if !self.queue_on_ring(how, run)? {
            return self.make_room(how.flags);
        }
        // Most results have arrived already, and reading them needs no call.
        self.reap_ring();
        Ok(())
    }

    /// Whether there was room for any.
    fn queue_on_ring(&mut self, how: How, run: &Run) -> io::Result<bool> {
        self.queue.check_process()?;
        let Some(mut room) = self.queue.ring_room()? else { return Ok(false) };
        let (mut datagrams, mut bytes) = (0, 0);
        while self.has(run) {
            let cut = Cut::next(self.queue.entries(), how.method, self.queue.head(), run);
            let needed = cut.extent.bytes + BESIDE_BYTES;
            if room < needed && self.queue.in_flight() > 0 {
                break; // in the kernel it would be overtaken by the next
            }
            room = room.saturating_sub(needed);
            let address = self.destinations.get(run.destination).address.as_ref();
            let (segment_bytes, call) = (cut.segment_bytes(run), Call::of(cut, run, how));
            if self.queue.queue_on_ring(cut.extent, address, segment_bytes, call).is_err() {
                break; // the ring is full
            }
            datagrams += cut.datagrams;
            bytes += cut.extent.bytes;
            self.queue.advance(cut.extent.end, None);
        }
        self.count_sent(datagrams, bytes, None);
        let submitted = self.queue.submit();
        // If the ring holds something, an error does not concern it: it is submitted with the next call, or when completions are read.
        if datagrams == 0 { submitted.map(|()| false) } else { Ok(true) }
    }

    /// Makes room by completions, because the ring or the send buffer is full.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, flags: i32) -> io::Result<()> {
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

    pub(in crate::udp) fn copy_by_call(&mut self, bytes: &[u8], destination: u32) -> Result<(), SendError> {
        let mut pending = PendingErrors::default();
        loop {
            pending.known = self.network_errors();
            let address = self.destinations.get(destination).address;
            match udp_send::send(self.queue.socket(), bytes, address.as_ref(), 0) {
                Ok(()) => break,
                // The socket behind a port does not wait.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let _ = wait_writable(self.queue.socket(), LOOK_AGAIN);
                }
                Err(error) if self.belongs_to_earlier(&error, &mut pending) => {}
                Err(source) => {
                    self.outcome.refuse(&source);
                    return Err(SendError { to: self.destinations.get(destination).to, refused: 1, source });
                }
            }
        }
        self.count_sent(1, bytes.len(), Some(Evidence::Copied(Cause::Slice)));
        Ok(())
    }

    /// Counts what was handed over; without evidence if the completion, or the port, reports it.
    #[inline(always)]
    pub(in crate::udp) fn count_sent(&mut self, datagrams: u32, bytes: usize, evidence: Option<Evidence>) {
        let (datagrams, bytes) = (u64::from(datagrams), bytes as u64);
        self.outcome.sent += datagrams;
        self.outcome.sent_bytes += bytes;
        if let Some(evidence) = evidence {
            self.ledger.add(evidence, datagrams, bytes);
        }
    }

    /// Whether the error belongs to an earlier datagram and was waiting at the socket; its description is kept for
    /// [`errors`](Self::errors).
    #[cold]
    #[inline(never)]
    fn belongs_to_earlier(&mut self, error: &io::Error, pending: &mut PendingErrors) -> bool {
        match error.kind() {
            io::ErrorKind::Interrupted => return true,
            io::ErrorKind::WouldBlock => return false,
            _ => {}
        }
        self.reap();
        pending.count += 1;
        // An error without a notice may still have been waiting; the datagram's own error comes again.
        let is_first = pending.count == 1 && !is_of_method(error) && !is_no_buffers(error);
        is_first || (self.network_errors() > pending.known && pending.count <= PENDING_ERRORS_MAX)
    }

    /// The method for sends that the kernel refuses by this one; `None` if there is none.
    #[cold]
    #[inline(never)]
    fn fallback(&mut self, method: Method, run: &Run, error: &io::Error) -> Option<Method> {
        if !is_of_method(error) {
            return None;
        }
        let other = method.instead()?;
        self.policy.refused(run.destination, method, run.datagram_bytes as u32);
        Some(other)
    }

    /// Removes the first datagram, which no method could send.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, error: &io::Error) {
        self.outcome.refuse(error);
        self.queue.advance(self.next().end, None); // no completion will arrive
    }

    /// The next datagram.
    pub(in crate::udp) fn next(&self) -> Extent {
        Cut::one(self.queue.entries(), self.queue.head()).extent
    }

    #[inline]
    fn reap_if_many(&mut self) {
        let open = self.queue.in_flight();
        if open >= REAP_AT || (open > 0 && self.queue.cache().is_empty()) {
            self.reap();
        }
    }

    /// Takes back memory that the kernel no longer reads, and returns how many calls and frames are complete by that.
    pub fn reap(&mut self) -> usize {
        let frames = self.port.as_mut().map_or(0, |port| port.reap());
        if self.queue.in_flight() > 0 {
            self.paths.refresh();
        }
        self.queue.collect();
        frames + self.settle_finished()
    }

    fn reap_ring(&mut self) {
        self.queue.collect_ring();
        self.settle_finished();
    }

    fn settle_finished(&mut self) -> usize {
        let mut count = 0;
        while let Some(done) = self.queue.next_completion() {
            let evidence = match &done.outcome {
                Ok(report) => {
                    let Call { datagrams, datagram_bytes, destination, method, since } = done.note();
                    let to = || self.destinations.get(destination).to.map(|to| to.ip());
                    let evidence = self.paths.evidence(destination, to, *report);
                    self.ledger.add(evidence, u64::from(datagrams), done.bytes() as u64);
                    let after = since.map(|since| since.elapsed());
                    self.policy.completed(destination, method, datagram_bytes, report.copied, after);
                    evidence
                }
                Err(error) => self.resend(&done, error),
            };
            self.queue.settle(done, Some(evidence));
            count += 1;
        }
        count
    }

    /// Repeats a call that the ring refused by ordinary ones, one for each datagram: for the program it was handed over already.
    #[cold]
    #[inline(never)]
    fn resend(&mut self, done: &Completion<Call>, error: &io::Error) -> Evidence {
        let (call, evidence) = (done.note(), Evidence::Copied(Cause::ZeroCopyRefused));
        let mut place = done.start();
        for _ in 0..call.datagrams {
            let extent = Cut::one(self.queue.entries(), place).extent;
            place = extent.end;
            match self.send_again(extent, call) {
                Ok(()) => self.ledger.add(evidence, 1, extent.bytes as u64),
                Err(source) => {
                    self.outcome.sent -= 1;
                    self.outcome.sent_bytes -= extent.bytes as u64;
                    self.outcome.refuse(&source);
                    let to = self.destinations.get(call.destination).to;
                    self.outcome.late.get_or_insert(SendError { to, refused: 0, source }).refused += 1;
                }
            }
        }
        if is_of_method(error) {
            self.policy.refused(call.destination, call.method, call.datagram_bytes);
        }
        evidence
    }

    /// An error that an earlier datagram left at the socket is returned by one call, which clears it.
    fn send_again(&mut self, extent: Extent, call: Call) -> io::Result<()> {
        let mut sent = Ok(0);
        for _ in 0..ATTEMPTS {
            let address = self.destinations.get(call.destination).address.as_ref();
            let mut batch = self.queue.batch(&mut self.burst, address);
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
