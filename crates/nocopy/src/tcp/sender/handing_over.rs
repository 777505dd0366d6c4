//! How a sender hands over its queue: the method for each part, and the fallback if a method fails.
//!
//! Sends of io_uring are made one by one, without waiting, because the next send could overtake one that waits inside the kernel. Only the
//! time of the calls is measured, because the time that a peer does not read does not depend on the method.

use std::io;
use std::time::{Duration, Instant};

use super::{ByReference, Sender};
use crate::facts::evidence::{Cause, Evidence};
use crate::tcp::Method;
use crate::tcp::by_reference::{Circumstances, Step, TransferError};
use crate::tcp::choice::pages;
use crate::tcp::outbox::{How, Next, Run};

/// The evidence for data that a stream sends beyond its share of a pool.
const OVER_SHARE: Evidence = Evidence::Copied(Cause::ShareInFlight);

const RING_BROKEN: &str = "the kernel took no more from io_uring: it was short of memory for long";

impl Sender {
    pub(super) fn hand_over_all(&mut self, waits: bool) -> io::Result<bool> {
        while let Some(next) = self.outbox.next() {
            if self.left == 0 {
                return Ok(false);
            }
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

    /// Sends the front of the queue by reference. Returns `false` if the socket accepts no more now.
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
            let now = Circumstances { more, waits };
            let step = by_reference.step(transfer, socket, now).map_err(of_transfer)?;
            match step {
                Step::Sent { bytes, evidence } => {
                    self.left = self.left.saturating_sub(bytes as usize);
                    self.outbox.reference_went(bytes);
                    self.counted.bytes += bytes;
                    self.outbox.sending.books.tally.add(evidence, 0, bytes);
                    if self.left == 0 {
                        return Ok(false);
                    }
                    continue;
                }
                Step::Done => {
                    self.outbox.pass_reference();
                    return Ok(true);
                }
                Step::SocketFull => {}
            }
            if !waits {
                return Ok(false);
            }
            self.make_room()?;
        }
    }

    /// Sends a run by one method, in as many calls as needed. Returns `false` if the socket accepts no more now.
    ///
    /// Only the time of the calls is measured, without the time that the socket had no room, which depends on the peer, not on the method.
    fn send_run(&mut self, run: Run, waits: bool) -> io::Result<bool> {
        let chosen = self.chosen.take().filter(|(bytes, _)| *bytes == run.bytes);
        let choice = chosen.map_or_else(|| self.chooser.choose(run), |(_, choice)| choice);
        let is_over_share = choice.method.is_zero_copy() && self.is_over_share(run);
        let mut method = if is_over_share { Method::Plain } else { choice.method };
        let (mut sent_bytes, mut cost) = (0, Duration::ZERO);
        let is_done = loop {
            let since = (choice.measured && !is_over_share).then(Instant::now);
            let how = self.how(method, run, waits && since.is_none(), since);
            let how = if is_over_share { How { evidence: Some(OVER_SHARE), ..how } } else { how };
            let sent = self.send_some_of((run.bytes - sent_bytes).min(self.left), how);
            self.reap_if_many();
            cost += since.map_or(Duration::ZERO, |since| since.elapsed());
            match sent {
                Ok(sent) => {
                    sent_bytes += sent;
                    self.left -= sent.min(self.left);
                }
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
            if self.left == 0 {
                break false;
            }
        };
        if method == choice.method && sent_bytes > 0 {
            self.chooser.record(choice, Run { bytes: sent_bytes }, cost);
        }
        Ok(is_done)
    }

    /// Whether the run, sent without a copy, would leave too few buffers to the other streams that share the pool: each may have as many in
    /// flight as it leaves free, however long its peer does not read. A stream with its own pool may have all.
    fn is_over_share(&self, run: Run) -> bool {
        let pool = self.outbox.sending.cache().pool();
        pool.sharers() > 1 && self.outbox.exceeds_share(run)
    }

    fn how(&self, method: Method, run: Run, waits: bool, since: Option<Instant>) -> How {
        let evidence = (!method.is_zero_copy()).then(|| self.chooser.copied(pages(run.bytes), run.bytes));
        How { method, waits, evidence, since, run_bytes: run.bytes }
    }

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
                // Completions make room. Without any, a copy is sent.
                self.reap();
                if self.in_flight() < in_flight { Ok(0) } else { self.send_copied(bytes, how) }
            }
            sent => sent,
        }
    }

    fn call(&mut self, bytes: usize, how: How) -> io::Result<usize> {
        let sent = self.outbox.send(bytes, how)?;
        self.counted.bytes += sent as u64;
        if let Some(evidence) = how.evidence {
            self.outbox.sending.books.tally.add(evidence, 0, sent as u64);
        }
        Ok(sent)
    }

    /// Sends by a copy, because there is no memory to record a zero-copy call, or no room in the ring.
    #[cold]
    fn send_copied(&mut self, bytes: usize, how: How) -> io::Result<usize> {
        let evidence = Some(Evidence::Copied(Cause::NoBuffers));
        let sent = self.call(bytes, How { method: Method::Plain, evidence, ..how })?;
        self.counted.no_buffers_bytes += sent as u64;
        self.chooser.no_room(how.method, self.outbox.sending.kept().is_ring_full());
        Ok(sent)
    }

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
}

fn is_no_buffers(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// The kernel's reason, if there is one; `UnexpectedEof` if the source has ended.
fn of_transfer(error: TransferError) -> io::Error {
    match error {
        TransferError::Connection(source) => source,
        ended @ TransferError::Ended { .. } => io::Error::new(io::ErrorKind::UnexpectedEof, ended),
        other => io::Error::other(other),
    }
}
