//! The half that sends, with the methods that wait.

use std::io;
use std::time::{Duration, Instant};

use super::{NonblockingSender, POLL_INTERVAL};
#[cfg(feature = "tokio")]
use crate::engine::asynchronous::AsyncSender;
use crate::engine::half::blocking_half;
#[cfg(feature = "tokio")]
use crate::sys::timed_epoll::TimedEpoll;

/// The sending half of a port.
///
/// [`send`](NonblockingSender::send) only writes the ring; [`flush`](Sender::flush) makes the kernel read it,
/// once for a whole batch.
///
/// In addition to sums, [`stats`](NonblockingSender::stats) has these counters: of dropped packets
/// `tx_dropped` and `tx_invalid_descs`, of faults `tx_fault_…`, and `tx_ring_empty_descs`. Packets that are
/// still queued are not counted.
///
/// ```
/// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
/// let sender = port.sender();
/// let mut frame = sender.buffer().expect("a fresh port has free frames");
/// frame.append(5).expect("there is room").copy_from_slice(b"hello");
/// sender.send(frame)?; // gives the frame away
/// sender.send_copy(b"more")?; // leaves the slice alone
/// sender.flush()?;
/// let stats = sender.stats();
/// assert_eq!((stats.moved, stats.bytes, stats.flushes), (2, 9, 1));
/// assert_eq!(sender.ledger().to_string(), "copied (memory port) 5 B, copied (given as a slice) 4 B");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Sender(pub(crate) NonblockingSender);

blocking_half!(Sender, NonblockingSender);

impl Sender {
    /// Hands everything that is queued to the kernel, which sends it, and takes back finished frames: one
    /// system call for a whole batch if the kernel allows. Waits while the kernel has no room: in copy mode,
    /// the socket's send buffer limits the bytes in flight.
    ///
    /// # Errors
    /// The interface is down or was removed; the frames stay queued.
    pub fn flush(&mut self) -> io::Result<()> {
        self.flush_timeout(Duration::MAX).map(drop)
    }

    /// Like [`Sender::flush`], but waits for `timeout` at most. Returns `false` if frames are still queued.
    ///
    /// ```
    /// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
    /// use std::time::Duration;
    /// port.sender().send_copy(b"now, as far as there is room")?;
    /// let mut is_all = port.sender().try_flush()?;
    /// if !is_all {
    ///     is_all = port.sender().flush_timeout(Duration::from_secs(5))?; // waits for room
    /// }
    /// assert!(is_all);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Sender::flush`].
    pub fn flush_timeout(&mut self, timeout: Duration) -> io::Result<bool> {
        if self.0.try_flush()? {
            return Ok(true);
        }
        let started = Instant::now();
        while started.elapsed() < timeout {
            std::thread::sleep(POLL_INTERVAL);
            if self.0.flush_once(false)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Flushes until nothing is in flight, for at most `timeout`; returns whether nothing is in flight.
    ///
    /// ```
    /// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
    /// let sender = port.sender();
    /// sender.send_copy(b"hello")?;
    /// assert_eq!(sender.in_flight(), 1); // queued counts as well
    /// assert!(sender.drain(std::time::Duration::from_secs(5))?);
    /// assert_eq!(sender.in_flight(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The interface is down or was removed.
    pub fn drain(&mut self, timeout: Duration) -> io::Result<bool> {
        self.0.drain_within(timeout)
    }

    /// Drains for at most `timeout`, and refuses to send from then on. Returns `false` if the kernel still
    /// has frames: it may still send them, and they return when the port is closed. (Dropping the sender also
    /// drains it, for a limited time.)
    ///
    /// ```
    /// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
    /// use nocopy::Reason;
    /// port.sender().send_copy(b"the last one")?;
    /// assert!(port.sender().close(std::time::Duration::from_secs(5))?);
    /// assert!(matches!(port.sender().send_copy(b"one more"), Err(Reason::Finished)));
    /// assert_eq!(port.sender().stats().moved, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Sender::drain`].
    pub fn close(&mut self, timeout: Duration) -> io::Result<bool> {
        let half = &mut self.0;
        let drained = half.drain_within(timeout);
        // No packet is short enough from now on, so the send path needs no check for a closed sender.
        (half.frame_bytes_max, half.packet_bytes_max, half.chain_bytes_max) = (0, 0, 0);
        drained
    }

    /// The half for a tokio program, whose `buffer`, `flush`, `drain` and `close` are futures. Dropping it
    /// does not wait for the frames that the kernel has: `close` it.
    ///
    /// # Errors
    /// No descriptor is left.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn into_async(mut self) -> io::Result<AsyncSender<NonblockingSender>> {
        self.0.timed_epoll = TimedEpoll::open()?; // now, because a lack of descriptors would panic later
        self.0.drop_timeout = Duration::ZERO;
        AsyncSender::new(self.0)
    }

    /// Gives the sender up in a forked child, without changing the parent's: the child's descriptor and rings
    /// are closed, so that the queue is free when the parent closes its own, and nothing is sent or waited
    /// for. Needs `PortTuning::inherited`; for a whole port, see
    /// [`Queues::disown`](crate::port::Queues::disown).
    #[doc(hidden)]
    pub fn disown(self) {
        self.0.inner.disown();
    }
}
