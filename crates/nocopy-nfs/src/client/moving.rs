//! Bytes of files: read into posted buffers, and written from buffers until they are on the server's disk.

use std::io;
use std::time::{Duration, Instant};

use nocopy::{Buffer, Cause, Counter, Evidence, Explanation, Ledger, Reason, Rejected, Stats, Wait};

use super::core::{CallError, Done, Limits};
use super::{Client, ClientError, Place, ReadEnd, Ticket};
use crate::wire::nfs3::FileHandle;

/// Calls that may be in flight; what is posted or written beyond waits in the program.
const IN_FLIGHT_MAX: usize = 256;

/// A posted buffer that has come back.
#[derive(Debug)]
pub struct Filled {
    /// What [`post`](Client::post) returned.
    pub ticket: Ticket,
    /// As long as what was read, with it.
    pub buffer: Buffer,
    /// Where in the file that lies.
    pub place: Place,
    /// How the read ended.
    pub outcome: Result<ReadEnd, CallError>,
}

impl Filled {
    /// The buffer and how the read ended, or what went wrong, with what to do.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn read(self) -> Result<(Buffer, ReadEnd), ClientError> {
        let Self { buffer, outcome, place, .. } = self;
        let subject = || format!("the file, from byte {} on", place.offset);
        outcome.map(|end| (buffer, end)).map_err(|error| ClientError::of(subject(), "read", error, false))
    }
}

impl Client {
    // ---- buffers and waits -------------------------------------------------------------------------------------

    /// An empty buffer of the client's [pool](super::Builder::pool), to be posted or filled; `None` while all are in use. Dropped anywhere, it
    /// goes home.
    pub fn buffer(&self) -> Option<Buffer> {
        self.pool.take()
    }

    /// Takes a buffer back: the next [`buffer`](Self::buffer) is this one, which is in the processor's cache still.
    pub fn recycle(&self, buffer: Buffer) {
        drop(buffer);
    }

    /// Changes how to wait for replies, from the next wait on. [`Wait::Spin`] looks again and again, each time a system call;
    /// [`Wait::Interrupt`], the default, sleeps in the kernel; [`Wait::Adaptive`] looks for a while, then sleeps. [`Wait::Coalesced`] sleeps
    /// for its `delay` first, so that more has come at each wake-up.
    pub fn set_wait(&mut self, wait: Wait) {
        self.transport.set_wait(wait);
    }

    // ---- reading -----------------------------------------------------------------------------------------------

    /// Posts a buffer to be read into: as many bytes as it has, or as it has room for if it has none. The file's bytes go there and nowhere
    /// else; [`receive`](Self::receive) gives it back. Many can be posted, and come back in any order. Those of the client's
    /// [pool](super::Builder::pool) that are of one length are alike: each reply goes into the one that was posted last, which is most likely in
    /// the processor's cache.
    ///
    /// Nothing is sent before the next call that receives, waits, or [`try_flush`](Self::try_flush)es. Reads of places that follow one another
    /// in a file, and are posted one after the other, are asked for by one call of up to 512 KiB.
    ///
    /// # Errors
    /// Too many are in flight ([`Reason::Full`]), or its memory cannot be written to.
    pub fn post(&mut self, buffer: Buffer, place: Place) -> Result<Ticket, Rejected<Buffer>> {
        if self.core().in_flight() >= IN_FLIGHT_MAX {
            return Err(Rejected { item: buffer, reason: Reason::Full });
        }
        self.core().post(buffer, place)
    }

    /// Waits for the next posted buffer that comes back; `None` if none is posted.
    ///
    /// # Errors
    /// The server was given up. All buffers that were posted come back by the next calls.
    pub fn receive(&mut self) -> Result<Option<Filled>, ClientError> {
        self.receive_until(None)
    }

    /// The same, for at most so long.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Option<Filled>, ClientError> {
        self.receive_until(Some(Instant::now() + timeout))
    }

    /// The same, without waiting.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn try_receive(&mut self) -> Result<Option<Filled>, ClientError> {
        self.receive_until(Some(Instant::now()))
    }

    fn receive_until(&mut self, until: Option<Instant>) -> Result<Option<Filled>, ClientError> {
        let mut has_turned = false;
        loop {
            self.keep_all();
            if let Some(filled) = self.filled.pop_front() {
                return Ok(Some(filled));
            }
            let is_over = has_turned && until.is_some_and(|until| Instant::now() >= until);
            if is_over || self.core().in_flight() == 0 {
                return Ok(None);
            }
            self.transport.turn_to_receive(until)?;
            has_turned = true;
        }
    }

    /// Sends what is queued, as far as the sockets take it without waiting. `false`: something is left.
    ///
    /// # Errors
    /// The server was given up.
    pub fn try_flush(&mut self) -> Result<bool, ClientError> {
        self.transport.turn(Some(Instant::now()))?;
        Ok(self.core().queued() == 0)
    }

    /// Reads into a buffer, and waits for that.
    ///
    /// # Errors
    /// See [`ClientError`].
    ///
    /// # Panics
    /// The buffer's memory cannot be written to.
    pub fn read(&mut self, buffer: Buffer, place: Place) -> Result<(Buffer, ReadEnd), ClientError> {
        let ticket = self.core().post(buffer, place).expect("memory that can be written to");
        let done = self.wait_for(|done| matches!(done, Done::Filled { ticket: of, .. } if *of == ticket))?;
        let Done::Filled { buffer, outcome, .. } = done else { unreachable!("that is what was waited for") };
        Filled { ticket, buffer, place, outcome }.read()
    }

    // ---- writing -----------------------------------------------------------------------------------------------

    /// Writes a buffer, which goes home once a [`commit`](Self::commit) has said that its bytes are on the server's disk. Until then it is
    /// kept, to be sent again if the server loses it. Writes to the same bytes between two commits have no order.
    ///
    /// Nothing is sent before the next call that waits or [`try_flush`](Self::try_flush)es.
    ///
    /// # Errors
    /// Too many are in flight ([`Reason::Full`]), or it holds no bytes.
    pub fn write(&mut self, buffer: Buffer, place: Place) -> Result<(), Rejected<Buffer>> {
        if self.core().in_flight() >= IN_FLIGHT_MAX {
            return Err(Rejected { item: buffer, reason: Reason::Full });
        }
        self.core().write(buffer, place)
    }

    /// Sends what was written and is queued, and waits until fewer than so many calls are in flight.
    ///
    /// # Errors
    /// The server was given up.
    pub fn wait_for_room(&mut self, in_flight: usize) -> Result<(), ClientError> {
        while self.core().in_flight() >= in_flight.max(1) {
            self.transport.turn(None)?;
        }
        Ok(())
    }

    /// Waits until all that was written to a file before is on the server's disk. What a server lost meanwhile, because it was started again,
    /// is sent again.
    ///
    /// # Errors
    /// Something that was written since the last commit is not, or not known to be, on the disk. See [`ClientError`].
    pub fn commit(&mut self, file: FileHandle) -> Result<(), ClientError> {
        let Some(ticket) = self.core().commit(file) else { unreachable!("the commit before was waited for") };
        let done =
            self.wait_for(|done| matches!(done, Done::Committed { ticket: of, .. } if *of == ticket))?;
        let Done::Committed { outcome, .. } = done else { unreachable!("that is what was waited for") };
        outcome.map_err(|error| ClientError::of(self.export.clone(), "written", error, false))
    }

    /// Bytes that were written and are not known to be on the server's disk, without those whose calls have no reply yet.
    pub fn uncommitted_bytes(&self) -> usize {
        self.transport.core.uncommitted_bytes()
    }

    // ---- what is known -----------------------------------------------------------------------------------------

    /// Calls without a reply.
    pub fn in_flight(&self) -> usize {
        self.transport.core.in_flight()
    }

    /// What is known of copies of the bytes that were read: by the kernel, out of the socket, into the posted buffer; and those that came along
    /// with a head, and were copied once more.
    pub fn ledger(&self) -> Ledger {
        let counts = self.transport.core.counts();
        let mut ledger = Ledger::default();
        ledger.extend([
            (Evidence::Copied(Cause::SocketCall), counts.read_bytes.saturating_sub(counts.moved_bytes)),
            (Evidence::Copied(Cause::Gathered), counts.moved_bytes.min(counts.read_bytes)),
        ]);
        ledger
    }

    /// How bytes are moved, and why so.
    pub fn explain(&self) -> Explanation {
        let Limits { read_bytes_max, write_bytes_max } = self.limits();
        let text = format!(
            "{}: reads of up to {read_bytes_max} bytes a call, each by one readv into the posted buffer and the next head; mapped pages would \
             have to begin where the data of a reply do\nwrites of up to {write_bytes_max} bytes a call, sent from where they lie by writev, and \
             kept until they are committed",
            self.export
        );
        (text, Evidence::Copied(Cause::SocketCall)).into()
    }

    /// Everything that was counted; `moved` are reads of posted buffers.
    ///
    /// # Errors
    /// None; other kinds of halves have some.
    pub fn stats(&self) -> io::Result<Stats> {
        let (counts, sockets) = (self.transport.core.counts(), self.transport.counts());
        let mut stats = Stats::default();
        (stats.moved, stats.bytes, stats.faults) = (counts.reads, counts.read_bytes, counts.bad_replies);
        stats.flushes = sockets.sends;
        let counter =
            |(name, meaning, value): (&'static str, _, _)| Counter { name: name.into(), meaning, value };
        stats.extend(
            [
                ("calls", "Calls made, each once", counts.calls),
                ("replies", "Replies that came whole", counts.replies),
                ("repeated", "Calls sent again because their connection was lost", counts.repeated),
                ("bad_replies", "Replies that no correct server gives", counts.bad_replies),
                (
                    "moved_bytes",
                    "Bytes read that came along with a head, and were copied once more",
                    counts.moved_bytes,
                ),
                ("joined", "Reads that were asked for by the call of the read before them", counts.joined),
                ("writes", "Writes that have a reply", counts.writes),
                ("written_bytes", "Bytes written, each time the server says so", counts.written_bytes),
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
        Ok(stats)
    }
}
