//! The half that receives chunks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use either::Either::{self, Left, Right};

use super::chunk::PlacedChunk;
use super::kernel_source::{Blocking, KernelSource};
use super::placer::Placer;
use super::settings::Placing;
use crate::engine::half::{blocking_half, receiver_half};
use crate::engine::wait::Wait;
use crate::events::{self, Half};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::method_explanation::Explanation;
use crate::stats::Stats;
use crate::udp::open_error::OpenError;
use crate::udp::{kernel, over_port};

/// So many batches are placed by one call that does not wait, so that datagrams that fill no chunk cannot
/// hold it for ever.
const BATCHES_MAX: usize = 64;

/// What a receiving half receives from.
type Backend = Either<Box<kernel::Receiver>, Box<over_port::Receiver>>;

/// A receiving half that puts the payload of each datagram into its row of a [chunk](PlacedChunk), by a
/// number in the datagram: made by [`Receiver::place`](super::super::Receiver::place).
///
/// Two chunks are open at a time (one, if the ring has fewer than three), so that datagrams may overtake each
/// other. A chunk is returned, once and in order, when all its rows are there, or when a number is beyond the
/// open ones: rows that are missing then are zeros, and not [`present`](PlacedChunk::present). Chunks for
/// which no datagram arrived are not returned. [`finish`](NonblockingPlacedReceiver::finish) returns what is
/// open when the sender pauses or stops.
///
/// A number up to `ring` chunks beyond the open ones moves this window at once. A number further ahead, or
/// behind the window, does not: the sender may have started again, or the datagram may be a stray one. Its
/// row is kept aside, and if 16 datagrams in a row have numbers near each other, the window moves to them,
/// and none of them is lost. If a datagram inside the window arrives before, those kept are lost.
///
/// All datagrams of the socket are placed, whatever their source, because several senders may share the rows.
/// [Connect](super::super::Socket::connect) the socket to receive from one alone.
///
/// What was not placed is counted in [`stats`](NonblockingPlacedReceiver::stats):
///
/// | counter | of datagrams |
/// |---|---|
/// | `late` | behind the window |
/// | `strays` | far ahead of it |
/// | `short`, `long` | with a payload that is not exactly a row |
/// | `foreign` | with an offset in the heap that is not the offset of a row |
/// | `double` | whose row was there already; the first one stays |
///
/// `missing` counts the missing rows of returned chunks, `skipped` the rows of chunks in between that were
/// not returned; `jumps` and `restarts` count moves of the window far ahead and back.
///
/// ```
/// use nocopy::udp::{Field, Placing, Socket};
/// let socket = Socket::bind("127.0.0.1:0")?;
/// # let sender = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// # sender.connect(socket.local_addr()?)?;
/// let placing = Placing::by_number(Field::big_endian(0, 4)).shape(3, 5); // 3 rows of 5 bytes
/// let mut receiver = socket.split().0.place(placing)?;
/// for datagram in [b"\0\0\0\x08third", b"\0\0\0\x06first", b"\0\0\0\x09other"] {
///     sender.send(datagram)?;
/// }
/// # while receiver.try_receive()?.is_none() && receiver.stats().moved < 3 {}
/// let chunk = receiver.finish().expect("rows of it arrived"); // the sender has stopped
/// assert_eq!((chunk.first(), chunk.present()), (6, &[true, false, true][..]));
/// assert_eq!(&chunk[..], b"first\0\0\0\0\0third");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PlacedReceiver(NonblockingPlacedReceiver);

impl PlacedReceiver {
    /// Takes datagrams from a half's backend, which comes back with an error.
    pub(in crate::udp) fn new(source: Backend, placing: &Placing) -> Result<Self, (Backend, OpenError)> {
        let datagram_bytes_max = source.as_ref().left().map_or(usize::MAX, |kernel| kernel.buffer_bytes());
        let checked = placing.check(datagram_bytes_max);
        match checked.and_then(|layout| Placer::new(layout).map_err(OpenError::Memory)) {
            Ok(placer) => {
                let source = source.map_left(|kernel| KernelSource::new(kernel, &placer));
                Ok(Self(NonblockingPlacedReceiver { source, placer, copies: Ledger::default() }))
            }
            Err(reason) => Err((source, reason)),
        }
    }

    /// Waits until a chunk is complete, and returns it. Returns `None` if a signal ended the wait, or, over a
    /// port, packets that were no datagrams for the socket.
    ///
    /// # Errors
    /// `OutOfMemory`: all chunks of the ring are in use; datagrams wait in the kernel until one is dropped.
    /// Other errors as those of [`Receiver::receive`](super::super::Receiver::receive).
    pub fn receive(&mut self) -> io::Result<Option<PlacedChunk>> {
        loop {
            if let Some(chunk) = self.0.placer.next_complete()? {
                return Ok(Some(chunk));
            }
            if !self.0.place_batch(Blocking::UntilArrival)? {
                return Ok(None);
            }
        }
    }

    /// Like [`receive`](Self::receive), but returns `None` if no chunk is complete after `timeout`, rounded
    /// up to milliseconds. Rows that have arrived stay in their chunk.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_timeout(&mut self, timeout: Duration) -> io::Result<Option<PlacedChunk>> {
        let Some(deadline) = Instant::now().checked_add(timeout) else { return self.receive() };
        loop {
            if let Some(chunk) = self.0.placer.next_complete()? {
                return Ok(Some(chunk));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.0.try_receive();
            }
            // Up to whole milliseconds, because each other timeout is another system call.
            let left = Duration::from_millis(
                u64::try_from(left.as_millis()).map_or(u64::MAX, |ms| ms.saturating_add(1)),
            );
            if !self.0.place_batch(Blocking::AtMost(left))? {
                return self.0.placer.next_complete();
            }
        }
    }

    /// Changes how to wait, from the next wait on; see [`Builder::wait`](super::super::Builder::wait).
    pub fn set_wait(&mut self, wait: Wait) {
        match &mut self.0.source {
            Left(kernel) => kernel.receiver.set_wait(wait),
            Right(port) => port.set_wait(wait),
        }
    }

    /// The half for a tokio program, whose waits are futures. Its `receive` also resolves, with `None`, when
    /// datagrams arrived that complete no chunk.
    ///
    /// # Errors
    /// No descriptor is left.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn into_async(self) -> io::Result<super::super::AsyncPlacedReceiver> {
        if let Left(kernel) = &self.0.source {
            kernel.receiver.open_descriptor()?;
        }
        super::super::AsyncPlacedReceiver::new(self.0)
    }
}

blocking_half!(PlacedReceiver, NonblockingPlacedReceiver);

/// What never waits of a [`PlacedReceiver`]: both it and its asynchronous form deref to this.
#[derive(Debug)]
pub struct NonblockingPlacedReceiver {
    source: Either<KernelSource, Box<over_port::Receiver>>,
    placer: Placer,
    /// The copies into rows.
    copies: Ledger,
}

impl NonblockingPlacedReceiver {
    /// Places waiting datagrams, without waiting, and returns a chunk if one is complete.
    ///
    /// # Errors
    /// As [`PlacedReceiver::receive`].
    pub fn try_receive(&mut self) -> io::Result<Option<PlacedChunk>> {
        for _ in 0..BATCHES_MAX {
            let chunk = self.placer.next_complete()?;
            if chunk.is_some() || !self.place_batch(Blocking::Never)? {
                return Ok(chunk);
            }
        }
        self.placer.next_complete()
    }

    /// Ends the open chunks, and returns the first of them; the others follow, until it returns `None`.
    /// Nothing is read from the socket: if datagrams may be waiting, receive first.
    ///
    /// The next datagram begins anew, as after opening. If its row belongs to a chunk that was returned
    /// before, that chunk is returned again, with other rows.
    pub fn finish(&mut self) -> Option<PlacedChunk> {
        if let Left(kernel) = &mut self.source {
            while self.placer.can_place() && kernel.place_received(&mut self.placer) {}
        }
        self.count_copies();
        self.placer.finish()
    }

    /// Places one batch of datagrams, or what is left of it, and returns whether there were any.
    fn place_batch(&mut self, blocking: Blocking) -> io::Result<bool> {
        let has_placed = match &mut self.source {
            Left(kernel) => {
                kernel.receive(blocking, &mut self.placer)?;
                kernel.place_received(&mut self.placer)
            }
            Right(port) => {
                let mut batch = match blocking {
                    Blocking::Never => port.try_receive()?,
                    Blocking::UntilArrival => port.receive_within(None)?,
                    Blocking::AtMost(timeout) => port.receive_within(Some(timeout))?,
                };
                // Datagrams behind the last one that was placed stay for the next batch.
                let first = batch.next();
                let is_any = first.is_some();
                let mut datagrams = first.into_iter().chain(batch);
                while let Some(datagram) = datagrams.next()
                    && self.placer.place(&datagram)
                {}
                is_any
            }
        };
        self.count_copies();
        Ok(has_placed)
    }

    fn count_copies(&mut self) {
        let bytes = self.placer.copied_rows() * self.placer.layout().row_bytes as u64;
        let evidence = Evidence::Copied(Cause::Gathered);
        let new_bytes = bytes - self.copies.bytes_of(evidence); // what was counted only grows
        events::add_to_ledger(&mut self.copies, Half::UdpReceiver, evidence, 0, new_bytes);
    }

    /// Prepares for a wait on the descriptor ([`AsFd`]), and returns true if datagrams or a complete chunk
    /// are waiting already, so that no wait is needed.
    ///
    /// # Errors
    /// As [`PlacedReceiver::receive`].
    pub fn arm(&mut self) -> io::Result<bool> {
        if self.placer.has_complete() {
            return Ok(true);
        }
        match &mut self.source {
            Left(kernel) => Ok(kernel.has_received() || kernel.receiver.arm()?),
            Right(port) => port.arm(),
        }
    }

    /// Takes a chunk's memory back, as dropping the chunk does.
    pub fn recycle(&mut self, chunk: PlacedChunk) {
        drop(chunk);
    }

    /// The evidence for the received datagrams, as of an ordinary receiver, and for later copies of rows
    /// ([`Cause::Gathered`](crate::Cause::Gathered)). So bytes that were copied twice are counted twice.
    pub fn ledger(&self) -> Ledger {
        let received = match &self.source {
            Left(kernel) => kernel.receiver.ledger(),
            Right(port) => port.ledger(),
        };
        [received, self.copies].into_iter().sum()
    }

    /// All counters: those of an ordinary receiver, and those of the table [above](PlacedReceiver). `moved`
    /// and `bytes` are rows that were filled.
    pub fn stats(&self) -> Stats {
        let mut stats = match &self.source {
            Left(kernel) => kernel.receiver.stats(),
            Right(port) => port.stats(),
        };
        stats.moved = self.placer.filled_rows();
        stats.bytes = stats.moved * self.placer.layout().row_bytes as u64;
        let (lost, others): (Vec<_>, Vec<_>) = self.placer.counters().partition();
        stats.with_dropped(lost).with_counters(others)
    }

    /// How datagrams are received, and how rows get into chunks. A kernel's socket copies datagrams into
    /// buffers, from where the rows are copied; or each row straight to where the next one belongs, which
    /// costs more if it is another row that arrives. What is faster here is measured while receiving.
    pub fn explain(&self) -> Explanation {
        let layout = self.placer.layout();
        let (rows, bytes, ring) = (layout.rows(), layout.row_bytes, layout.ring());
        let shape = format!("placed by number: chunks of {rows} rows of {bytes} bytes, {ring} in the ring");
        match &self.source {
            Left(kernel) => {
                let chosen = kernel.chooser().explain();
                kernel.receiver.explain().prefixed_with(&format_args!("{shape}\n{chosen}"))
            }
            Right(port) => {
                port.explain().prefixed_with(&format_args!("{shape}, copied from the port's frames"))
            }
        }
    }
}

receiver_half!(NonblockingPlacedReceiver, Option<PlacedChunk>);

impl AsFd for NonblockingPlacedReceiver {
    /// A descriptor that is readable while datagrams can be received; nothing can be sent on it.
    ///
    /// # Panics
    /// At the first call, if the process has no descriptor left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.source {
            Left(kernel) => kernel.receiver.as_fd(),
            Right(port) => port.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests;
