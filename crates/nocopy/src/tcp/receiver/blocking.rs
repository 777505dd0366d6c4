//! What waits of the receiving half.

use std::io;
#[cfg(feature = "tokio")]
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::NonblockingReceiver;
use super::error::ReceiveError;
use crate::engine::half::blocking_half;
use crate::engine::wait::Wait;
use crate::tcp::Chunk;

/// The receiving half of a stream.
///
/// It returns the stream in [`Chunk`]s as they arrive, each owned: in buffers of a pool, or on pages that the
/// kernel mapped. How much is received at a time, and by which
/// [`ReceiveMethod`](crate::tcp::ReceiveMethod), is measured while receiving, because the cost of a byte
/// includes reading it afterwards. [`explain`](NonblockingReceiver::explain) returns the result.
///
/// **The end**: all three receiving methods return `None` if nothing has arrived, and at the end of the
/// stream; [`is_finished`](NonblockingReceiver::is_finished) distinguishes these. [`receive`](Self::receive)
/// waits without limit, so its `None` is always the end. A broken connection is always an error, never
/// `None`.
///
/// **Memory**: a program that drops each chunk before it receives the next always gets the same memory, warm
/// in the cache. A program that keeps chunks runs out of buffers (an error of kind
/// [`OutOfMemory`](io::ErrorKind::OutOfMemory), until some return), or, at 16 MiB, out of room to map pages;
/// data that cannot be mapped is copied. Dropped mapped pages are unmapped 2 MiB at a time, or after some
/// time without mapping.
///
/// **Waiting** is done in the kernel's receiving call, because completions of the sending half would wake a
/// poll.
///
/// ```
/// # use nocopy::tcp::{Listener, Stream};
/// # use std::time::Duration;
/// # let listener = Listener::bind("127.0.0.1:0")?;
/// # let mut peer = Stream::connect(listener.local_addr()?)?;
/// # let mut stream = listener.accept()?.0;
/// assert!(stream.receiver().try_receive()?.is_none() && !stream.receiver().is_finished());
/// // An echo: what was received is sent, without a copy of its own.
/// peer.sender().send_copy(b"hello")?;
/// if let Some(chunk) = stream.receiver().receive()? {
///     stream.sender().send(chunk)?;
///     stream.sender().flush()?;
/// }
/// let echo = peer.receiver().receive()?.expect("an answer");
/// assert_eq!(echo.to_vec(), b"hello");
/// peer.sender().finish()?;
/// assert!(stream.receiver().receive()?.is_none() && stream.receiver().is_finished());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Receiver(pub(in crate::tcp) NonblockingReceiver);

impl Receiver {
    /// Changes how to wait, from the next wait on. [`Wait::Spin`] repeats a system call; [`Wait::Interrupt`]
    /// sleeps in the kernel; [`Wait::Adaptive`] spins for some time, then sleeps. [`Wait::Coalesced`] sleeps
    /// until something arrives, and then until the given number of full packets has arrived (each counted as
    /// 1448 bytes), the stream ends, or `delay` is over, rounded up to ticks of the kernel's clock (1 to 10
    /// ms): one wake-up for many small packets (`SO_RCVLOWAT`). It is for long, busy streams; a shorter
    /// answer is delayed by `delay`.
    pub fn set_wait(&mut self, wait: Wait) {
        self.0.wait = wait;
    }

    /// Waits for bytes and returns those that have arrived, up to a chunk's length; `None` at the end of the
    /// stream.
    ///
    /// # Errors
    /// The connection broke: everything received before was returned, and the rest is lost. With kind
    /// [`OutOfMemory`](io::ErrorKind::OutOfMemory): all buffers are in use; data waits in the kernel.
    pub fn receive(&mut self) -> io::Result<Option<Chunk>> {
        self.0.deliver(|half| half.receive_within(None, NonblockingReceiver::next_chunk))
    }

    /// Like [`receive`](Self::receive), but also returns `None` if a signal arrived, or nothing else did
    /// within `timeout`, which is rounded up to ticks of the kernel's clock (1 to 10 ms) unless the half
    /// spins: see [`is_finished`](NonblockingReceiver::is_finished).
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_timeout(&mut self, timeout: Duration) -> io::Result<Option<Chunk>> {
        if timeout.is_zero() {
            return self.try_receive();
        }
        self.0.deliver(|half| half.receive_within(Some(timeout), NonblockingReceiver::next_chunk))
    }

    /// The half for a tokio program, whose waits are futures.
    ///
    /// # Errors
    /// No descriptor is left, or the program has registered the socket with the reactor itself.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn into_async(self) -> io::Result<crate::tcp::AsyncReceiver> {
        use crate::sys::watch::WatchedDescriptors;
        let socket = Arc::clone(&self.0.socket);
        let socket = WatchedDescriptors::of_socket(socket, tokio::io::Interest::READABLE)?;
        Ok(crate::tcp::AsyncReceiver::of_socket(self.0, socket))
    }
}

blocking_half!(Receiver, NonblockingReceiver);

impl NonblockingReceiver {
    /// The `next` chunk; waits for at most `timeout`, if there is one: for the blocking half.
    pub(super) fn receive_within(
        &mut self,
        timeout: Option<Duration>,
        next: impl Fn(&mut Self, bool) -> Result<Option<Chunk>, ReceiveError>,
    ) -> Result<Option<Chunk>, ReceiveError> {
        let spin = match self.wait {
            Wait::Spin => Duration::MAX,
            Wait::Adaptive { spin } => spin,
            _ => {
                self.set_timeout(timeout)?;
                return next(self, true);
            }
        };
        let start = Instant::now();
        let spin = timeout.map_or(spin, |timeout| timeout.min(spin));
        let found = self.spin_for_chunk(start, spin, &next);
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        if !matches!(found, Err(ReceiveError::WouldBlock)) || left == Some(Duration::ZERO) {
            return found;
        }
        self.set_timeout(left)?;
        next(self, true)
    }

    /// Repeats the call for that long.
    fn spin_for_chunk(
        &mut self,
        start: Instant,
        limit: Duration,
        next: impl Fn(&mut Self, bool) -> Result<Option<Chunk>, ReceiveError>,
    ) -> Result<Option<Chunk>, ReceiveError> {
        loop {
            match next(self, false) {
                Err(ReceiveError::WouldBlock) if start.elapsed() < limit => std::hint::spin_loop(),
                received => return received,
            }
        }
    }
}
