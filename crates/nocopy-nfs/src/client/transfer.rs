//! Bytes of files: read into posted buffers, and written from buffers until they are on the server's disk.

use std::time::{Duration, Instant};

use nocopy::{
    Buffer, BufferMut, Cause, Counter, Evidence, Explanation, Ledger, Reason, Rejected, Stats, Wait,
};

use super::core::{CallError, Completion, TransferLimits};
use super::{Client, ClientError, FilePosition, ReadMetadata, Ticket};
use crate::wire::nfs3::FileHandle;

/// The most calls without a reply; further buffers are refused.
const IN_FLIGHT_MAX: usize = 256;

/// A posted buffer, returned after its read.
#[derive(Debug)]
pub struct FilledBuffer {
    /// What [`post`](Client::post) returned.
    pub ticket: Ticket,
    pub buffer: BufferMut,
    /// Where in the file the data lies.
    pub place: FilePosition,
    pub outcome: Result<ReadMetadata, CallError>,
}

impl FilledBuffer {
    /// The buffer and how the read ended.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn into_result(self) -> Result<(BufferMut, ReadMetadata), ClientError> {
        let Self { buffer, outcome, place, .. } = self;
        let subject = || format!("the file, from byte {} on", place.offset);
        outcome
            .map(|end| (buffer, end))
            .map_err(|error| ClientError::from_call_error(subject(), "read", error, false))
    }
}

impl Client {
    /// An empty buffer of the client's [pool](super::Builder::pool); `None` while all are in use. Dropping
    /// it, on any thread, returns it to the pool.
    pub fn buffer(&self) -> Option<BufferMut> {
        self.pool.take()
    }

    /// Returns a buffer to the pool. The next [`buffer`](Self::buffer) is this one, since it is still in the
    /// processor's cache.
    pub fn recycle(&self, buffer: impl Into<Buffer>) {
        drop(buffer.into());
    }

    /// Changes how to wait for replies. [`Wait::Spin`] polls without sleeping, one system call each time;
    /// [`Wait::Interrupt`], the default, sleeps in the kernel; [`Wait::Adaptive`] polls for a while, then
    /// sleeps. [`Wait::Coalesced`] sleeps for its `delay` first, so that more replies have arrived at each
    /// wake-up.
    pub fn set_wait(&mut self, wait: Wait) {
        self.transport.set_wait(wait);
    }

    /// Starts a read into a buffer: of as many bytes as the buffer holds or, if it is empty, has room for.
    /// [`receive`](Self::receive) returns it with the data. Many buffers can be posted, and return in any
    /// order. Among posted buffers of the client's [pool](super::Builder::pool) with the same length, the one
    /// posted last is filled first, as it is most likely still in the processor's cache.
    ///
    /// The call is sent by the next method that receives or waits, or by [`try_flush`](Self::try_flush).
    /// Consecutive reads of consecutive parts of a file share one call of up to 512 KiB.
    ///
    /// # Errors
    /// Too many calls are in flight ([`Reason::Full`]), or the buffer has no capacity.
    pub fn post(&mut self, buffer: BufferMut, place: FilePosition) -> Result<Ticket, Rejected<BufferMut>> {
        if self.core_mut().in_flight() >= IN_FLIGHT_MAX {
            return Err(Rejected { item: buffer, reason: Reason::Full });
        }
        self.core_mut().post(buffer, place)
    }

    /// Waits for the next filled buffer; `None` if none is posted.
    ///
    /// # Errors
    /// The server did not answer in time ([`give_up_after`](super::Builder::give_up_after)). The next calls
    /// return all posted buffers, each with an error.
    pub fn receive(&mut self) -> Result<Option<FilledBuffer>, ClientError> {
        self.receive_until(None)
    }

    /// As [`receive`](Self::receive), for at most `timeout`.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Option<FilledBuffer>, ClientError> {
        self.receive_until(Some(Instant::now() + timeout))
    }

    /// As [`receive`](Self::receive), without waiting.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn try_receive(&mut self) -> Result<Option<FilledBuffer>, ClientError> {
        self.receive_until(Some(Instant::now()))
    }

    fn receive_until(&mut self, until: Option<Instant>) -> Result<Option<FilledBuffer>, ClientError> {
        let mut has_turned = false;
        loop {
            self.collect_completions();
            if let Some(filled) = self.filled.pop_front() {
                return Ok(Some(filled));
            }
            let is_over = has_turned && until.is_some_and(|until| Instant::now() >= until);
            if is_over || self.core_mut().in_flight() == 0 {
                return Ok(None);
            }
            self.transport.drive_to_receive(until)?;
            has_turned = true;
        }
    }

    /// Sends queued calls without waiting. Returns `false` if some could not be sent yet.
    ///
    /// # Errors
    /// The server did not answer in time ([`give_up_after`](super::Builder::give_up_after)).
    pub fn try_flush(&mut self) -> Result<bool, ClientError> {
        self.transport.drive(Some(Instant::now()))?;
        Ok(self.core_mut().queued_count() == 0)
    }

    /// Reads into a buffer, and waits until it is filled.
    ///
    /// # Errors
    /// See [`ClientError`].
    ///
    /// # Panics
    /// The buffer has no capacity.
    pub fn read(
        &mut self,
        buffer: BufferMut,
        place: FilePosition,
    ) -> Result<(BufferMut, ReadMetadata), ClientError> {
        let ticket = self.core_mut().post(buffer, place).expect("memory with a capacity");
        let done = self.wait_for_completion(
            |done| matches!(done, Completion::Filled { ticket: of, .. } if *of == ticket),
        )?;
        let Completion::Filled { buffer, outcome, .. } = done else {
            unreachable!("that is what was waited for")
        };
        FilledBuffer { ticket, buffer, place, outcome }.into_result()
    }

    /// Starts a write. The client keeps the buffer until a [`commit`](Self::commit) has confirmed that its
    /// bytes are on the server's disk, to send them again if the server restarts and loses them. Writes to
    /// the same bytes between two commits have no order.
    ///
    /// The call is sent by the next method that waits, or by [`try_flush`](Self::try_flush).
    ///
    /// # Errors
    /// Too many calls are in flight ([`Reason::Full`]), or the buffer is empty.
    pub fn write(&mut self, buffer: impl Into<Buffer>, place: FilePosition) -> Result<(), Rejected<Buffer>> {
        let buffer = buffer.into();
        if self.core_mut().in_flight() >= IN_FLIGHT_MAX {
            return Err(Rejected { item: buffer, reason: Reason::Full });
        }
        self.core_mut().write(buffer, place)
    }

    /// Sends queued calls, and waits until fewer than `in_flight` have no reply.
    ///
    /// # Errors
    /// The server did not answer in time ([`give_up_after`](super::Builder::give_up_after)).
    pub fn wait_until_fewer_in_flight(&mut self, in_flight: usize) -> Result<(), ClientError> {
        while self.core_mut().in_flight() >= in_flight.max(1) {
            self.transport.drive(None)?;
        }
        Ok(())
    }

    /// Waits until all earlier writes to the file are on the server's disk; if a commit of the file was begun
    /// before, also for that. Writes that the server lost by a restart are sent again.
    ///
    /// # Errors
    /// A write since the last commit failed, or may not be on the disk. See [`ClientError`].
    pub fn commit(&mut self, file: FileHandle) -> Result<(), ClientError> {
        let ticket = loop {
            match self.core_mut().commit(file) {
                Some(ticket) => break ticket,
                None => self.transport.drive(None)?,
            }
        };
        let done = self.wait_for_completion(
            |done| matches!(done, Completion::Committed { ticket: of, .. } if *of == ticket),
        )?;
        let Completion::Committed { outcome, .. } = done else { unreachable!("that is what was waited for") };
        outcome.map_err(|error| ClientError::from_call_error(self.export.clone(), "written", error, false))
    }

    /// Bytes of writes that were acknowledged but not committed.
    pub fn uncommitted_bytes(&self) -> usize {
        self.transport.core.uncommitted_bytes()
    }

    pub fn in_flight(&self) -> usize {
        self.transport.core.in_flight()
    }

    /// How many bytes were read by one copy (by the kernel, into the posted buffer), and how many were copied
    /// a second time, because they were received together with a reply header.
    pub fn ledger(&self) -> Ledger {
        let counts = self.transport.core.counts();
        let mut ledger = Ledger::default();
        ledger.extend([
            (Evidence::Copied(Cause::SocketCall), counts.read_bytes.saturating_sub(counts.moved_bytes)),
            (Evidence::Copied(Cause::Gathered), counts.moved_bytes.min(counts.read_bytes)),
        ]);
        ledger
    }

    /// How data is moved, and why.
    pub fn explain(&self) -> Explanation {
        let TransferLimits { read_bytes_max, write_bytes_max } = self.limits();
        let text = format!(
            "{}: reads of up to {read_bytes_max} bytes a call, each by one readv into the posted buffer and the next head; mapped pages would \
             have to begin where the data of a reply do\nwrites of up to {write_bytes_max} bytes a call, sent from where they lie by writev, and \
             kept until they are committed",
            self.export
        );
        (text, Evidence::Copied(Cause::SocketCall)).into()
    }

    /// All counters; `moved` counts finished reads.
    pub fn stats(&self) -> Stats {
        let (counts, sockets) = (self.transport.core.counts(), self.transport.socket_counts());
        let mut stats = Stats::default();
        (stats.moved, stats.bytes, stats.faults) = (counts.reads, counts.read_bytes, counts.bad_replies);
        stats.flushes = sockets.sends;
        let counter =
            |(name, meaning, value): (&'static str, _, _)| Counter { name: name.into(), meaning, value };
        stats.extend(
            [
                ("calls", "Calls made, each once", counts.calls),
                ("replies", "Complete replies", counts.replies),
                (
                    "retransmitted_calls",
                    "Calls sent again because their connection was lost",
                    counts.retransmitted_calls,
                ),
                ("bad_replies", "Replies that no correct server gives", counts.bad_replies),
                (
                    "moved_bytes",
                    "Bytes received together with a reply header, and copied a second time",
                    counts.moved_bytes,
                ),
                ("joined", "Reads that shared the call of the read before them", counts.joined),
                ("writes", "Writes that have a reply", counts.writes),
                (
                    "written_bytes",
                    "Bytes that the server acknowledged, repetitions included",
                    counts.written_bytes,
                ),
                (
                    "lost_bytes",
                    "Bytes written that the server lost, and that were sent again",
                    counts.lost_bytes,
                ),
                ("connects", "Connections made", sockets.connects),
                ("connections_lost", "Connections that broke, or were given up", sockets.lost),
                ("receives", "System calls that receive", sockets.receives),
                ("waits", "Waits for a socket", sockets.waits),
            ]
            .map(counter),
        );
        stats
    }
}
