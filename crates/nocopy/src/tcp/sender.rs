//! The half that sends.

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod ends;
mod flush;

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

pub use blocking::Sender;
use ends::StreamState;
use flush::OpenCallNote;
pub(super) use flush::RING_SENDS;

use super::by_reference::{RangeTransfer, ReferenceSender};

use super::item::{QueuedBytes, StreamItem};
use super::outcome::{QUEUE_BYTES_MAX, SendOutcome, SenderCounters};
use super::{Method, Published, PublishedMethod};
use crate::engine::half::sender_half;
use crate::engine::path::{PathEvidence, SocketPaths};
use crate::engine::policy::{Choice, Policy};
use crate::events::Half;
use crate::facts::evidence::{Evidence, Ledger};
use crate::facts::method_explanation::Explanation;
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::pool::{Buffer, BufferMut};
use crate::memory::send_queue::{Completed, NoZeroCopyReason, SendQueue, Ticket};
use crate::stats::Stats;
use crate::sys::stream;

pub(super) type StreamQueue = SendQueue<StreamItem, OpenCallNote>;

/// What never waits of a [`Sender`]: both it and its asynchronous form deref to this.
///
/// If one of its methods returns an error of the connection, that is closed; see [`Sender`].
#[derive(Debug)]
pub struct NonblockingSender {
    queue: StreamQueue,
    queued_bytes: QueuedBytes,
    end: StreamState,
    paths: PathEvidence,
    peer: Option<IpAddr>,
    ledger: Ledger,
    policy: Policy<Method>,
    /// The choice for a run of so many bytes, if it was made already.
    chosen: Option<(usize, Choice<Method>)>,
    outcome: SendOutcome,
    /// The last call by io_uring sent a part, so its last packet is unfinished.
    has_open_packet: bool,
    published_method: Option<PublishedMethod>,
    /// Made when data is first sent by reference.
    by_reference: Option<ReferenceSender>,
}

impl NonblockingSender {
    pub(super) fn new(
        queue: StreamQueue,
        mut policy: Policy<Method>,
        paths: SocketPaths,
        peer: Option<IpAddr>,
        published_method: Option<PublishedMethod>,
    ) -> Self {
        policy.report_as(Half::TcpSender);
        Self {
            queue,
            queued_bytes: QueuedBytes::default(),
            end: StreamState::Open,
            paths: PathEvidence::new(paths),
            peer,
            ledger: Ledger::default(),
            policy,
            chosen: None,
            outcome: SendOutcome::default(),
            has_open_packet: false,
            published_method,
            by_reference: None,
        }
    }

    /// An empty buffer of the stream's pool; `None` while all are in use: [`flush`](Sender::flush) and
    /// [`reap`](Self::reap) free them.
    ///
    /// If other streams that share the pool hold all of it, and this stream has no buffer in flight, it
    /// allocates memory outside the pool: as many buffers as its share, at least one.
    #[inline]
    pub fn buffer(&mut self) -> Option<BufferMut> {
        self.queue.cache_mut().take().or_else(|| self.reserved_buffer())
    }

    #[cold]
    fn reserved_buffer(&mut self) -> Option<BufferMut> {
        let waits_for_own = self.queued() > 0 || self.in_flight() > 0;
        if waits_for_own { None } else { self.queue.cache_mut().take_reserved() }
    }

    /// Takes back a buffer that was not sent, more cheaply than dropping it.
    #[inline]
    pub fn recycle(&mut self, buffer: impl Into<Buffer>) {
        self.queue.cache_mut().put(buffer.into());
    }

    /// Queues a buffer, a [`Chunk`](super::Chunk), or something that converts into a buffer; one call sends
    /// several without joining them.
    ///
    /// ```
    /// # use nocopy::tcp::{Listener, Stream};
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let mut stream = Stream::connect(listener.local_addr()?)?;
    /// # let mut peer = listener.accept()?.0;
    /// use nocopy::{Buffer, Reason};
    /// stream.sender().send(b"two buffers, ".to_vec())?; // memory of the program's own
    /// stream.sender().send(Buffer::from_owner("no copy to join them"))?;
    /// stream.sender().finish()?; // hands over what is queued, and ends the stream
    /// let mut text = Vec::new();
    /// while let Some(chunk) = peer.receiver().receive()? {
    ///     text.extend_from_slice(&chunk.to_vec());
    /// }
    /// assert_eq!(text, b"two buffers, no copy to join them");
    /// let rejected = stream.sender().send(b"too late".to_vec()).unwrap_err();
    /// assert!(matches!(rejected.reason, Reason::Finished) && &rejected.item[..] == b"too late");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The buffer, and why it was not queued: [`Reason::Full`] or [`Reason::Finished`].
    pub fn send(&mut self, buffer: impl Into<Buffer>) -> Result<Ticket, Rejected<Buffer>> {
        let buffer = buffer.into();
        match self.check_can_queue(buffer.len() as u64) {
            Ok(()) => Ok(self.push(StreamItem::Buffer(buffer))),
            Err(reason) => Err(Rejected { item: buffer, reason }),
        }
    }

    /// Queues a range of published data, in bytes, which is sent by reference to its pages if that is faster.
    /// The same data may be sent to any number of peers. No completion is reported, and none is needed,
    /// because the data never changes. A buffer of up to 1 KiB queued in front of it, such as a header,
    /// shares its first segment.
    ///
    /// ```
    /// # use nocopy::tcp::{Listener, Stream};
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let mut stream = Stream::connect(listener.local_addr()?)?;
    /// # let mut peer = listener.accept()?.0;
    /// use nocopy::{Reason, tcp::Published};
    /// let page = Published::written(16, |bytes| bytes.copy_from_slice(b"hello, everybody"))?; // for any number of streams
    /// stream.sender().send_published(&page, 0..5)?;
    /// assert!(matches!(stream.sender().send_published(&page, 5..50), Err(Reason::OutOfRange { bytes: 16, .. })));
    /// stream.sender().flush()?;
    /// assert_eq!(peer.receiver().receive()?.expect("bytes").to_vec(), b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Reason::OutOfRange`] or [`Reason::Finished`].
    pub fn send_published(&mut self, data: &Published, range: Range<u64>) -> Result<Ticket, Reason> {
        self.queue_reference(RangeTransfer::published(data, range)?)
    }

    /// Queues a range of a file, in bytes, which is sent by reference to the file's pages (sendfile(2)). A
    /// buffer of up to 1 KiB queued in front of it, such as a header, shares its first segment.
    ///
    /// The kernel never reports when it no longer reads the pages: a program that writes to the file in place
    /// changes the bytes that the peer receives, until the peer has read them. ([`Published`] data never
    /// changes.)
    ///
    /// ```
    /// # use nocopy::tcp::{Listener, Stream};
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let mut stream = Stream::connect(listener.local_addr()?)?;
    /// # let mut peer = listener.accept()?.0;
    /// use std::{fs::File, sync::Arc};
    /// let program = Arc::new(File::open(std::env::current_exe()?)?);
    /// stream.sender().send_file(program, 1..4)?;
    /// stream.sender().flush()?;
    /// assert_eq!(peer.receiver().receive()?.expect("bytes").to_vec(), b"ELF"); // what every program here begins with
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Reason::OutOfRange`] or [`Reason::Finished`]; [`Reason::System`] if the kernel does not report the
    /// file's length.
    pub fn send_file(&mut self, file: Arc<File>, range: Range<u64>) -> Result<Ticket, Reason> {
        self.queue_reference(RangeTransfer::file(file, range)?)
    }

    fn queue_reference(&mut self, transfer: RangeTransfer) -> Result<Ticket, Reason> {
        self.check_can_queue(0)?; // sends by reference are not limited
        Ok(self.push(StreamItem::Reference(transfer)))
    }

    fn push(&mut self, item: StreamItem) -> Ticket {
        self.queued_bytes.add(&item);
        self.queue.push(item)
    }

    /// Whether so many bytes can be queued in a buffer.
    fn check_can_queue(&self, bytes: u64) -> Result<(), Reason> {
        if self.end == StreamState::Finished {
            return Err(Reason::Finished);
        }
        let is_full = self.queued_bytes.buffered.saturating_add(bytes) > QUEUE_BYTES_MAX;
        if bytes > 0 && is_full && self.queued() > 0 { Err(Reason::Full) } else { Ok(()) }
    }

    /// Buffers and references that are queued and were not handed over whole.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.queue.queued()
    }

    /// The number of zero-copy calls whose memory the kernel still reads.
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// Hands over as much as the socket accepts now. Returns `false` if something is left; [`arm`](Self::arm)
    /// prepares a wait for that.
    ///
    /// # Errors
    /// As [`flush`](Sender::flush).
    pub fn try_flush(&mut self) -> io::Result<bool> {
        self.flush_queue(false, usize::MAX)
    }

    /// Like `try_flush`, for at most that many bytes, so that other streams have their turn.
    #[cfg(feature = "message")]
    pub(crate) fn try_flush_some(&mut self, bytes: usize) -> io::Result<bool> {
        self.flush_queue(false, bytes)
    }

    /// The next buffer that is free again, if the builder was set to [return
    /// them](super::Builder::return_buffers).
    ///
    /// ```
    /// # use nocopy::tcp::{Listener, Stream};
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let to = listener.local_addr()?;
    /// let mut stream = Stream::builder().return_buffers(true).connect(to)?;
    /// # let mut peer = listener.accept()?.0;
    /// let ticket = stream.sender().send(vec![7; 100])?;
    /// assert!(stream.sender().drain(std::time::Duration::from_secs(5))?);
    /// let completed = stream.sender().completed().expect("the kernel is done with it");
    /// assert_eq!((completed.ticket, &completed.item[..]), (ticket, &[7; 100][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn completed(&mut self) -> Option<Completed<Buffer>> {
        let Completed { ticket, evidence, item } = self.queue.completed()?;
        let StreamItem::Buffer(item) = item else { return None }; // what was referred to does not come back
        Some(Completed { ticket, evidence, item })
    }

    /// Prepares for a wait on the descriptor ([`AsFd`]): it becomes readable when a flush can continue, or
    /// memory is free. Returns true if it is readable already; free memory was then taken back.
    ///
    /// # Errors
    /// As [`flush`](Sender::flush).
    pub fn arm(&mut self) -> io::Result<bool> {
        self.queue.open_descriptor()?; // here a lack of descriptors is an error
        let is_free = self.reap() > 0;
        self.watch_for_room();
        if is_free || self.queued() == 0 {
            return Ok(is_free);
        }
        stream::is_sendable(self.queue.socket()).map_err(|error| self.send_error(error))
    }

    /// The kernel socket, for options and calls that this type lacks. ([`AsFd`] returns a descriptor that can
    /// only be waited on.)
    ///
    /// From then on nothing is sent by `MSG_ZEROCOPY`: the kernel numbers the calls of all descriptors of a
    /// socket together, and reports only numbers when memory is free. Plain calls and io_uring, whose
    /// completions name their call, are still used. Only this sender may read the error queue: memory whose
    /// completion was read elsewhere returns only when the sender is dropped.
    ///
    /// ```
    /// # use nocopy::tcp::{Listener, Stream};
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let mut stream = Stream::connect(listener.local_addr()?)?;
    /// use rustix::net::sockopt;
    /// let socket = stream.sender().kernel_socket()?;
    /// sockopt::set_socket_keepalive(socket, true)?;
    /// assert!(sockopt::socket_keepalive(socket)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Unsupported` in a forked child, unless its parent asked for the socket before the fork, because the
    /// parent may continue such calls.
    pub fn kernel_socket(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.allow_other_senders()?;
        Ok(self.queue.socket())
    }

    /// Allows others to send on the socket.
    pub(super) fn allow_other_senders(&mut self) -> io::Result<()> {
        self.queue.share_socket()?;
        self.policy.mark_unavailable(Method::ZeroCopy, NoZeroCopyReason::Shared.why());
        Ok(())
    }

    /// The evidence for the bytes sent, complete when their memory is free.
    pub fn ledger(&self) -> Ledger {
        self.ledger
    }

    /// All counters; `moved` counts buffers, ranges and slices that the kernel accepted whole. Only
    /// [`close`](Sender::close) drops anything: otherwise unsent data stays queued.
    pub fn stats(&self) -> Stats {
        let unknown_completions = self.queue.unknown_completions();
        let ended_early = self.by_reference.as_ref().map_or(0, |by| by.ended_early);
        let counters = SenderCounters { unknown_completions, ended_early, ..self.outcome.counters };
        self.outcome.stats(self.queue.head().ticket, counters)
    }

    /// The methods in use for owned buffers and, if any was sent, for published data, and the methods they
    /// were compared with. Unless a method was set, writes shorter than a page use a plain call, and count as
    /// [below threshold](crate::Cause::BelowThreshold).
    pub fn explain(&self) -> Explanation {
        let owned = self.policy.explain();
        let published = self.by_reference.as_ref().map(ReferenceSender::explain).map(|found| {
            format!("\npublished data, by reference to its pages, of which no completion ever comes: {found}")
        });
        Explanation::from_choice(&format_args!("{owned}{}", published.unwrap_or_default()), Evidence::Unknown)
    }
}

sender_half!(NonblockingSender, BufferMut);

impl AsFd for NonblockingSender {
    /// A descriptor that is readable when memory is free ([`reap`](Self::reap)), and, after
    /// [`try_flush`](Self::try_flush) or [`arm`](Self::arm) found something in the queue, when a flush can
    /// continue. Nothing can be sent on it: see [`kernel_socket`](Self::kernel_socket).
    ///
    /// # Panics
    /// At the first call, if the process has no descriptor left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.descriptor()
    }
}

#[cfg(test)]
mod tests;
