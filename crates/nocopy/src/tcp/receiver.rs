//! The half that receives.

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod error;
mod read;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub use blocking::Receiver;

use super::OpenError;
use super::chunk::{Chunk, Mapped};
use super::diagnosis::{MappingDiagnosis, PeerContext};
use super::mapped::{MapRefusal, PageMapper};
use super::receiving::{CHUNK_BYTES_MAX, ReceiveMethod, ReceiveMethodChooser};
use crate::counter::Counter;
use crate::engine::half::receiver_half;
use crate::engine::policy::ExclusionReason;
use crate::engine::wait::Wait;
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::method_explanation::Explanation;
use crate::memory::pool::{Buffer, BufferCache, BufferMut, Pool};
use crate::stats::Stats;
use crate::sys::option;
use crate::sys::readiness::Readiness;
use crate::sys::tcp_receive::{self, EndCause, PAGE_BYTES, ReceivedPages};
use error::ReceiveError;

/// Buffers of the default pool; each has the largest chunk's length, and memory is allocated when used.
const BUFFERS: u32 = 16;

/// Bytes to copy at a time while there is no room to map pages.
const INSTEAD_BYTES: usize = 64 << 10;

/// For how many chunks a cause of copies is reused before it is looked up again.
const CAUSE_CHUNKS: u32 = 256;

/// The data of a full Ethernet packet, with timestamps.
const PACKET_BYTES: usize = 1448;

/// What never waits of a [`Receiver`]: both it and its asynchronous form deref to this.
pub struct NonblockingReceiver {
    socket: Arc<OwnedFd>,
    readiness: Readiness,
    buffers: BufferCache,
    chooser: ReceiveMethodChooser,
    mapper: PageMapper,
    peer_context: PeerContext,
    /// Why whole pages were not mapped, and for how many more chunks to reuse that.
    cause: Option<(Cause, u32)>,
    failure: Option<io::Error>,
    /// The present timeout of the socket; `None` is for ever.
    timeout: Option<Duration>,
    wait: Wait,
    is_finished: bool,
    /// A chunk without mapped pages, of which [`io::BufRead`] has read a part.
    unread: Option<Chunk>,
    /// The last call that copied into a buffer found less than fits in: the socket had no more.
    found_less: bool,
    /// Calls that failed because no buffer was free.
    starved: u64,
    tally: Ledger,
    /// Bytes on mapped pages that were copied into buffers afterwards.
    copied_later: Arc<AtomicU64>,
}

impl NonblockingReceiver {
    /// The receiving half of a connected socket. To be called in the network namespace of the socket, whose
    /// own settings for waiting (`O_NONBLOCK` and `SO_RCVTIMEO`) are cleared.
    pub(super) fn new(
        socket: Arc<OwnedFd>,
        method: Option<ReceiveMethod>,
        buffers: BufferCache,
    ) -> Result<Self, OpenError> {
        let buffer_bytes = buffers.pool().buffer_bytes();
        if let Some(ReceiveMethod::Recv { bytes }) = method
            && !(1..=buffer_bytes).contains(&(bytes as usize))
        {
            return Err(OpenError::ChunkLength { bytes, buffer_bytes });
        }
        rustix::io::ioctl_fionbio(&socket, false).map_err(|error| OpenError::Socket(error.into()))?;
        option::set_receive_timeout(&socket, None).map_err(OpenError::Socket)?;
        Ok(Self {
            buffers,
            chooser: ReceiveMethodChooser::new(method, buffer_bytes),
            mapper: PageMapper::default(),
            peer_context: PeerContext::of_socket(&socket),
            cause: None,
            failure: None,
            timeout: None,
            wait: Wait::Interrupt,
            is_finished: false,
            unread: None,
            found_less: false,
            starved: 0,
            tally: Ledger::default(),
            copied_later: Arc::default(),
            socket,
            readiness: Readiness::for_receiving(),
        })
    }

    /// Returns received bytes, without waiting: `None` if there are none, and at the end of the stream; see
    /// [`is_finished`](Self::is_finished).
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    #[inline]
    pub fn try_receive(&mut self) -> io::Result<Option<Chunk>> {
        self.deliver(|half| half.next_chunk(false))
    }

    /// What the program gets: the rest of a chunk, or else the received one, which is counted. That nothing
    /// has arrived yet is no error.
    #[inline]
    fn deliver(
        &mut self,
        receive: impl FnOnce(&mut Self) -> Result<Option<Chunk>, ReceiveError>,
    ) -> io::Result<Option<Chunk>> {
        if self.unread.is_some() {
            return Ok(self.unread.take());
        }
        match receive(self) {
            Ok(chunk) => {
                if let Some(chunk) = &chunk {
                    chunk.add_to_ledger(&mut self.tally);
                }
                Ok(chunk)
            }
            Err(ReceiveError::WouldBlock) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the end of the stream was returned: the peer has sent everything, and all of it was received.
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Whether something can be received at once: bytes, the end of the stream, or an error that has not been
    /// returned. If not, the descriptor ([`AsFd`]) becomes readable when something can be received.
    ///
    /// ```
    /// # use nocopy::tcp::{Listener, Stream};
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let mut stream = Stream::connect(listener.local_addr()?)?;
    /// # let mut peer = listener.accept()?.0;
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// assert!(!peer.receiver().arm()?); // nothing is there: wait
    /// stream.sender().send_copy(b"hello")?;
    /// poll(&mut [PollFd::new(peer.receiver(), PollFlags::IN)], None)?; // or epoll, with other descriptors
    /// assert!(peer.receiver().try_receive()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    pub fn arm(&mut self) -> io::Result<bool> {
        if self.unread.is_some() {
            return Ok(true);
        }
        match tcp_receive::has_data(self.socket.as_fd(), false) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(ReceiveError::from_errno(error).into()),
        }
    }

    /// Takes a chunk's memory back, more cheaply than dropping it.
    pub fn recycle(&mut self, chunk: Chunk) {
        if let Some(buffer) = chunk.into_copied() {
            self.buffers.put(buffer);
        }
    }

    fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        // No other part of the library sets the socket's timeout, so this is what it has.
        if timeout != self.timeout {
            option::set_receive_timeout(&self.socket, timeout).map_err(ReceiveError::Socket)?;
            self.timeout = timeout;
        }
        Ok(())
    }

    /// The next chunk, or `None` at the end of the stream; if it `waits`, for as long as the socket's timeout
    /// allows. The caller counts it.
    fn next_chunk(&mut self, waits: bool) -> Result<Option<Chunk>, ReceiveError> {
        let way = self.chooser.start_call();
        let received = self.wait_for_enough(waits).and_then(|()| match way {
            ReceiveMethod::Recv { bytes } => {
                self.mapper.note_unused_call();
                self.receive_by_copy(waits, bytes as usize, self.chooser.cause_of_copying())
            }
            ReceiveMethod::Mapped => self.receive_by_mapping(waits),
        });
        if matches!(received, Err(ReceiveError::WouldBlock)) {
            self.chooser.note_empty_call();
        }
        received
    }

    /// If receives are coalesced: once some data has arrived, waits until there is as much as requested.
    fn wait_for_enough(&mut self, waits: bool) -> Result<(), ReceiveError> {
        let Wait::Coalesced { packets, delay } = self.wait else { return Ok(()) };
        let bytes = packets as usize * PACKET_BYTES;
        if !waits || bytes == 0 || delay.is_zero() || self.has_queued(bytes)? {
            return Ok(());
        }
        if self.has_arrived(waits)? && !self.has_queued(bytes)? {
            let timeout = self.timeout;
            self.set_timeout(Some(delay))?;
            // If it fails, the receiving call gets the error again, or returns it after the bytes.
            self.failure =
                tcp_receive::wait_for_bytes(self.socket.as_fd(), bytes).err().or(self.failure.take());
            self.set_timeout(timeout)?;
            self.chooser.end_wait();
        }
        Ok(())
    }

    fn has_queued(&self, bytes: usize) -> Result<bool, ReceiveError> {
        let queued = tcp_receive::queued_bytes(self.socket.as_fd()).map_err(ReceiveError::Socket)?;
        Ok(queued >= bytes as u64)
    }

    fn receive_by_copy(
        &mut self,
        waits: bool,
        bytes: usize,
        cause: Cause,
    ) -> Result<Option<Chunk>, ReceiveError> {
        let mut buffer = self.take_buffer()?;
        buffer.resize(bytes.min(buffer.capacity()));
        let received = match self.receive_into(&mut buffer, waits) {
            Ok(received) => received,
            Err(error) => {
                self.buffers.put(buffer.freeze());
                return Err(error);
            }
        };
        self.found_less = received < buffer.len();
        if received == 0 {
            self.buffers.put(buffer.freeze());
            return self.note_end().map(|()| None);
        }
        buffer.resize(received);
        self.chooser.note_received(ReceiveMethod::Recv { bytes: bytes as u32 }, received);
        Ok(Some(Chunk::new(None, Some(buffer.freeze()), cause)))
    }

    fn receive_into(&mut self, buffer: &mut [u8], waits: bool) -> Result<usize, ReceiveError> {
        if waits && self.chooser.is_measuring() {
            // Work and waiting are measured apart, so it is done before.
            match tcp_receive::receive(self.socket.as_fd(), buffer, false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.has_arrived(waits)?,
                received => return received.map_err(ReceiveError::from_errno),
            };
        }
        self.retry_interrupted(|socket| tcp_receive::receive(socket, buffer, waits))
    }

    /// Repeats a call that a signal interrupts; with a timeout, a signal ends the wait, because repeated
    /// waits might never end.
    fn retry_interrupted<T>(
        &self,
        mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Result<T, ReceiveError> {
        loop {
            match call(self.socket.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    if self.timeout.is_some() {
                        return Err(ReceiveError::WouldBlock);
                    }
                }
                done => return done.map_err(ReceiveError::from_errno),
            }
        }
    }

    fn take_buffer(&mut self) -> Result<BufferMut, ReceiveError> {
        let total = self.buffers.pool().total();
        self.buffers.take().ok_or_else(|| {
            self.starved += 1;
            ReceiveError::NoBuffers { total }
        })
    }

    /// The meaning of a call that returned no byte: notes that the stream has ended, or returns why it broke.
    fn note_end(&mut self) -> Result<(), ReceiveError> {
        if let Some(error) = self.failure.take() {
            return Err(ReceiveError::from_errno(error));
        }
        if tcp_receive::end_cause(self.socket.as_fd()) == EndCause::Lost {
            return Err(ReceiveError::BrokenBefore);
        }
        self.is_finished = true;
        Ok(())
    }

    /// Copies arrived bytes into the caller's memory, without waiting, and returns how many: 0 at the end of
    /// the stream, `None` if none have arrived. The caller counts them, and does not use [`io::BufRead`].
    #[cfg(feature = "message")]
    #[inline]
    pub(crate) fn read_now(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        debug_assert!(self.unread.is_none(), "these bytes come after those of a chunk");
        match tcp_receive::receive(self.socket.as_fd(), room, false) {
            Ok(0) if !room.is_empty() => self.note_end().map(|()| Some(0)).map_err(io::Error::from),
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The socket, for waits by this crate. Nothing is sent on it.
    #[cfg(any(feature = "message", feature = "tokio"))]
    pub(crate) fn kernel_socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn receive_by_mapping(&mut self, waits: bool) -> Result<Option<Chunk>, ReceiveError> {
        let mut buffer = self.take_buffer()?;
        buffer.resize(buffer.capacity());
        // Before an urgent byte is passed, data cannot be mapped (`tcp_inq`).
        let mut cause = Cause::NotMapped;
        for is_first in [true, false] {
            match self.map_pages() {
                Ok(mut arrived) => {
                    let copied_bytes = self.copy_unmappable(&mut arrived, &mut buffer);
                    if arrived.pages.is_some() || copied_bytes > 0 {
                        buffer.resize(copied_bytes);
                        return Ok(Some(self.make_chunk(arrived, buffer.freeze())));
                    }
                }
                Err(MapRefusal::NoSlot) => {
                    cause = Cause::NoSlot;
                    break;
                }
                Err(MapRefusal::Unavailable(error)) => {
                    self.chooser.rule_out_mapping(mapping_exclusion(&error));
                    break;
                }
            }
            if is_first && !self.has_arrived(waits)? {
                return self.note_end().map(|()| None);
            }
        }
        self.buffers.put(buffer.freeze());
        self.receive_by_copy(waits, INSTEAD_BYTES, cause)
    }

    fn map_pages(&mut self) -> Result<ReceivedPages, MapRefusal> {
        if self.mapper.is_full() {
            let made = self.mapper.make_room();
            // Instead, each chunk is charged with its share.
            self.chooser.restart_clock();
            made?;
        }
        self.mapper.receive_pages(self.socket.as_fd())
    }

    /// Whether data has arrived; may wait for it.
    fn has_arrived(&mut self, waits: bool) -> Result<bool, ReceiveError> {
        let is_there = self.retry_interrupted(|socket| tcp_receive::has_data(socket, waits))?;
        self.chooser.end_wait();
        Ok(is_there)
    }

    /// Copies the following bytes that cannot be mapped; returns how many.
    fn copy_unmappable(&mut self, arrived: &mut ReceivedPages, rest: &mut [u8]) -> usize {
        self.failure = arrived.error.take().or(self.failure.take());
        let bytes = arrived.unmappable_bytes.min(rest.len());
        if bytes == 0 {
            return 0;
        }
        match tcp_receive::receive(self.socket.as_fd(), &mut rest[..bytes], false) {
            Ok(copied_bytes) => copied_bytes,
            Err(error) => {
                if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
                    // Returned after the bytes that have arrived.
                    self.failure = Some(error);
                }
                0
            }
        }
    }

    fn make_chunk(&mut self, arrived: ReceivedPages, buffer: Buffer) -> Chunk {
        let (mapped_bytes, copied_bytes) = (arrived.mapped_bytes(), buffer.len());
        let cause = if copied_bytes < PAGE_BYTES { Cause::PartOfPage } else { self.cause_of_not_mapping() };
        self.chooser.add_unmapping_cost(self.mapper.unmapping_cost(mapped_bytes));
        self.chooser.note_received(ReceiveMethod::Mapped, mapped_bytes + copied_bytes);
        if self.mapper.should_stop_mapping(mapped_bytes, copied_bytes) {
            self.chooser.rule_out_mapping(ExclusionReason::Temporary(useless_mapping_text(cause)));
        }
        let copied = if copied_bytes > 0 {
            Some(buffer)
        } else {
            self.buffers.put(buffer);
            None
        };
        let mapped = |pages| Mapped { pages, copied_later: Arc::clone(&self.copied_later) };
        Chunk::new(arrived.pages.map(mapped), copied, cause)
    }

    /// Why pages were not mapped. It is looked up from time to time, because routes change, and the kernel's
    /// estimate of a full segment grows.
    fn cause_of_not_mapping(&mut self) -> Cause {
        let (cause, chunks) = match self.cause {
            Some((cause, chunks @ 1..)) => (cause, chunks - 1),
            _ => (self.peer_context.gather_facts(&self.socket).not_mapped_cause(), CAUSE_CHUNKS),
        };
        self.cause = Some((cause, chunks));
        cause
    }

    /// The evidence for the received bytes. Its *datagrams* are chunks. Bytes on mapped pages count as copied
    /// when [`Chunk::take`] copies them.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.tally;
        ledger.count_as_gathered(self.copied_later.load(Relaxed)); // a number alone
        ledger
    }

    /// All counters; `moved` counts chunks. Nothing is ever dropped: unreceived data waits in the kernel.
    pub fn stats(&self) -> Stats {
        let starved = Counter {
            name: "no_buffers".into(),
            meaning: "Calls that found all buffers of the pool in use",
            value: self.starved,
        };
        Stats::with_moved(self.tally.datagrams(), self.tally.bytes()).with_counters([starved])
    }

    /// The method in use, and the methods it was compared with; if pages were to be mapped and some were not,
    /// also why: fact, cause, what to do. Makes some system calls.
    pub fn explain(&self) -> Explanation {
        let (method, diagnosis) = (self.chooser.explain(), self.diagnosis());
        if diagnosis.mapped_fraction().is_none() {
            return Explanation::from_choice(&method, Evidence::Unknown);
        }
        Explanation::from_choice(&format_args!("{method}\n{diagnosis}"), Evidence::Unknown)
    }

    fn diagnosis(&self) -> MappingDiagnosis {
        MappingDiagnosis::new(self.peer_context.gather_facts(&self.socket), &self.tally)
    }
}

receiver_half!(NonblockingReceiver, Option<Chunk>);

/// A pool for a receiver: enough buffers of the largest chunk for some chunks in use. Its memory is allocated
/// when used.
pub(super) fn default_receive_pool() -> io::Result<Pool> {
    Pool::new(BUFFERS, CHUNK_BYTES_MAX)
}

fn mapping_exclusion(error: &io::Error) -> ExclusionReason {
    match error.raw_os_error() {
        Some(libc::ENOPROTOOPT) => {
            ExclusionReason::Unavailable("this kernel has no TCP_ZEROCOPY_RECEIVE: Linux 4.18 or newer has")
        }
        Some(libc::ENOMEM) => {
            ExclusionReason::Temporary("no memory to map into (ENOMEM): see 'sysctl vm.max_map_count'")
        }
        _ if error.kind() == io::ErrorKind::Unsupported => {
            ExclusionReason::Unavailable("this machine's pages are not of 4096 bytes")
        }
        _ => ExclusionReason::Temporary("the kernel refuses to map what was received"),
    }
}

fn useless_mapping_text(cause: Cause) -> &'static str {
    match cause {
        Cause::LocalPages => "next to nothing maps: the pages of a sender on this machine",
        Cause::HeadersNotSplit => "next to nothing maps: the card does not split headers off",
        Cause::SegmentSize => "next to nothing maps: segments are not whole pages of 4096 bytes",
        Cause::PartOfPage => "next to nothing maps: less than a page comes at a time",
        _ => "next to nothing maps",
    }
}

impl AsFd for NonblockingReceiver {
    /// A descriptor that is readable while something can be received, or completions of the sending half wait
    /// to be read; nothing can be sent on it.
    ///
    /// # Panics
    /// At the first call, if the process has no descriptor left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness.descriptor(self.socket.as_fd())
    }
}

impl fmt::Debug for NonblockingReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receiver({}, {})", self.chooser.explain(), self.tally)
    }
}

#[cfg(test)]
mod tests;
