//! What waits of the sending half.

use std::io;
use std::time::{Duration, Instant};

use super::NonblockingSender;
use crate::engine::half::blocking_half;
use crate::engine::wait::{PollOutcome, poll_until_done};
use crate::memory::pool::BufferMut;
use crate::tcp::outcome::SendError;

const ALL_HELD: &str = "send: no free buffer; the program holds all of the pool; send, recycle or drop some, or make the pool larger";

/// The sending half of a stream.
///
/// [`send`](NonblockingSender::send) queues; [`flush`](Self::flush) hands the queue to the kernel. A buffer
/// sent without a copy returns when the peer has acknowledged it.
///
/// Dropping it ends the stream: the peer sees the end after the last byte that was handed over, or, if
/// something was still queued, a reset, so that it does not mistake a part for the whole. Memory that the
/// kernel still reads is kept until the peer has acknowledged it; a peer that acknowledges nothing for two
/// minutes is reset.
///
/// **Errors**: if a method returns an error, the connection is closed. Queued data stays queued, and
/// [`take_unsent`](NonblockingSender::take_unsent) returns it; how much of the data handed over before has
/// arrived is unknown.
#[derive(Debug)]
pub struct Sender(pub(in crate::tcp) NonblockingSender);

impl Sender {
    /// An empty buffer; while all are in use it flushes, and waits for at most `timeout` until the peer has
    /// acknowledged data in flight. `None` if no buffer returned.
    ///
    /// # Errors
    /// As [`flush`](Self::flush). With kind [`WouldBlock`](io::ErrorKind::WouldBlock), waiting is useless
    /// because the program holds all buffers, or in a shared pool this stream's share.
    ///
    /// ```
    /// # use nocopy::{Pool, tcp::{Listener, Stream}};
    /// # use std::time::Duration;
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// let pool = Pool::new(2, 4096)?;
    /// let mut stream = Stream::builder().send_pool(&pool).connect(listener.local_addr()?)?;
    /// # let peer = listener.accept()?.0;
    /// for _ in 0..8 { // more than there are: they come back meanwhile
    ///     let mut buffer = stream.sender().wait_buffer(Duration::MAX)?.expect("no limit was given");
    ///     buffer.resize(4096);
    ///     stream.sender().send(buffer)?;
    /// }
    /// assert!(stream.sender().drain(Duration::from_secs(5))?);
    /// assert_eq!(stream.sender().stats().moved, 8);
    ///
    /// let _held = [pool.take(), pool.take()]; // by the program: waiting would bring none back
    /// let error = stream.sender().wait_buffer(Duration::MAX).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_buffer(&mut self, timeout: Duration) -> io::Result<Option<BufferMut>> {
        let look = |sender: &mut NonblockingSender| {
            if let Some(buffer) = sender.buffer() {
                return Ok(PollOutcome::Done(buffer));
            }
            let is_flushed = sender.try_flush()?;
            if sender.reap() > 0 || sender.queue.cache().available() > 0 {
                return Ok(PollOutcome::Moved);
            }
            let is_nothing_away = !timeout.is_zero() && is_flushed && sender.in_flight() == 0;
            if is_nothing_away {
                Err(io::Error::new(io::ErrorKind::WouldBlock, ALL_HELD))
            } else {
                Ok(PollOutcome::Nothing)
            }
        };
        self.poll_until_done(timeout, look)
    }

    /// Sends bytes now, after the queue: the kernel copies them, so the caller may reuse them at once. Waits
    /// while the socket's send buffer is full.
    ///
    /// # Errors
    /// As [`flush`](Self::flush); part of the bytes may have been sent.
    pub fn send_copy(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.flush()?;
        while !bytes.is_empty() {
            let sent = self.0.send_some(bytes);
            let sent = sent.map_err(|source| SendError { unsent_bytes: bytes.len() as u64, source })?;
            bytes = &bytes[sent..];
        }
        self.0.outcome.slices += 1;
        Ok(())
    }

    /// Hands over everything queued; waits while the socket's send buffer is full, so as long as the peer
    /// does not read.
    ///
    /// # Errors
    /// The connection is closed, or a queued file has ended (kind
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof)).
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.flush_queue(true, usize::MAX).map(drop)
    }

    /// Hands over as much as the peer makes room for within `timeout`. Returns `false` if something is left.
    ///
    /// ```
    /// # use nocopy::tcp::{Listener, Stream};
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let mut stream = Stream::builder().send_buffer(64 << 10).connect(listener.local_addr()?)?;
    /// # let _peer = listener.accept()?.0;
    /// use std::time::Duration;
    /// stream.sender().send(vec![0; 64 << 20])?;
    /// assert!(!stream.sender().try_flush()?); // more than there is room for
    /// assert!(!stream.sender().flush_timeout(Duration::from_millis(10))?); // the peer does not read
    /// assert!(stream.sender().stats().bytes > 0); // a part is on its way
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn flush_timeout(&mut self, timeout: Duration) -> io::Result<bool> {
        let look = |sender: &mut NonblockingSender| {
            Ok(if sender.try_flush()? { PollOutcome::Done(()) } else { PollOutcome::Nothing })
        };
        self.poll_until_done(timeout, look).map(|done| done.is_some())
    }

    /// Hands over everything queued, and waits for at most `timeout` until the kernel no longer reads any
    /// memory: for data sent without a copy, until the peer has acknowledged it. Returns whether that is so.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn drain(&mut self, timeout: Duration) -> io::Result<bool> {
        let look = |sender: &mut NonblockingSender| {
            let is_flushed = sender.try_flush()?;
            Ok(match sender.reap() {
                _ if is_flushed && sender.in_flight() == 0 => PollOutcome::Done(()),
                0 => PollOutcome::Nothing,
                _ => PollOutcome::Moved,
            })
        };
        self.poll_until_done(timeout, look).map(|done| done.is_some())
    }

    /// Hands over everything queued, and ends the stream: the peer sees its end after the last byte. This
    /// side can still receive.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn finish(&mut self) -> io::Result<()> {
        self.flush()?;
        self.0.end_stream();
        Ok(())
    }

    /// Hands over everything queued and ends the stream, then waits for at most `timeout` until the peer has
    /// acknowledged data sent without a copy. Returns `false` if something was given up, which
    /// [`stats`](NonblockingSender::stats) counts; the kernel still sends the memory that it reads. If that
    /// is only pages of pools that no other stream's io_uring instance has registered, they are replaced, so
    /// their buffers are free at once. Otherwise all of it is kept, like that of a dropped sender, until the
    /// peer has acknowledged it or, after two minutes, the connection is reset. Queued data is not sent, and
    /// then the peer sees a reset.
    ///
    /// ```
    /// # use nocopy::tcp::{Listener, Stream};
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let mut stream = Stream::connect(listener.local_addr()?)?;
    /// # let mut peer = listener.accept()?.0;
    /// stream.sender().send(b"the last one".to_vec())?;
    /// assert!(stream.sender().close(std::time::Duration::from_secs(5))?); // nothing was given up
    /// assert_eq!(stream.sender().stats().get("given_up").unwrap(), 0);
    /// assert_eq!(peer.receiver().receive()?.expect("bytes").len(), 12);
    /// assert!(peer.receiver().receive()?.is_none()); // the end
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn close(&mut self, timeout: Duration) -> io::Result<bool> {
        let start = Instant::now();
        let flushed = self.flush_timeout(timeout);
        self.0.end_stream();
        // Nothing that could fail is queued any more.
        let drained = if matches!(flushed, Ok(true)) {
            self.drain(timeout.saturating_sub(start.elapsed()))
        } else {
            self.reap();
            Ok(false)
        };
        self.0.outcome.counters.given_up += self.queued() as u64;
        drop(self.take_unsent());
        self.0.give_up_memory();
        flushed.and(drained)
    }

    /// The half for a tokio program, whose waits are futures.
    ///
    /// # Errors
    /// No descriptor is left.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn into_async(self) -> io::Result<crate::tcp::AsyncSender> {
        self.0.queue.open_descriptor()?;
        crate::tcp::AsyncSender::new(self.0)
    }

    /// Polls until done, and between two polls waits for room or completions. `None`: not done in time.
    fn poll_until_done<T>(
        &mut self,
        timeout: Duration,
        poll: impl FnMut(&mut NonblockingSender) -> io::Result<PollOutcome<T>>,
    ) -> io::Result<Option<T>> {
        poll_until_done(&mut self.0, timeout, poll, NonblockingSender::wait_for_room_or_completions)
    }
}

blocking_half!(Sender, NonblockingSender);

/// The kernel copies, as with [`send_copy`](Sender::send_copy).
impl io::Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::flush(self)?;
        let sent = self.0.send_some(bytes).map_err(|error| self.0.send_error(error))?;
        self.0.outcome.slices += 1;
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::flush(self)
    }
}
