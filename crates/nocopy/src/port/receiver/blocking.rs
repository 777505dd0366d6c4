//! The half that receives, with the methods that wait.

use std::io;
use std::time::{Duration, Instant};

use super::super::Wait;
use super::{Batch, NonblockingReceiver};
#[cfg(feature = "tokio")]
use crate::engine::asynchronous::AsyncReceiver;
use crate::engine::half::blocking_half;
use crate::engine::wait::{self, WaitSource};
#[cfg(feature = "tokio")]
use crate::sys::timed_epoll::TimedEpoll;

/// The receiving half of a port.
///
/// In addition to sums, [`stats`](NonblockingReceiver::stats) has these counters: of dropped packets
/// `rx_dropped`, `rx_ring_full`, `tp_drops` and `filter_lost`; of faults `rx_fault_…` and `rx_invalid_descs`;
/// others are `rx_fill_ring_empty_descs`, `tp_freeze_q_cnt`, `filter_to_host` and `rx_copied_out`. A packet
/// in several buffers that is read buffer by buffer counts as several.
///
/// ```
/// # let (mut left, mut right) = nocopy::Port::memory_pair()?;
/// left.sender().send_copy(b"hello")?;
/// left.sender().flush()?;
/// for packet in right.receiver().receive()? {
///     assert_eq!(&*packet, b"hello");
///     let frame = packet.take(); // owned: it may go to another thread, or be sent
///     assert_eq!(frame.len(), 5);
/// }
/// assert_eq!(right.receiver().stats().moved, 1);
/// assert_eq!(right.receiver().ledger().to_string(), "copied (memory port) 5 B");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Receiver(pub(crate) NonblockingReceiver);

blocking_half!(Receiver, NonblockingReceiver);

impl Receiver {
    /// Waits for packets, in the way set by [`Receiver::set_wait`], and returns them as one batch. A signal
    /// may end the wait early, with an empty batch.
    ///
    /// # Errors
    /// The interface is down or was removed.
    pub fn receive(&mut self) -> io::Result<Batch<'_>> {
        let half = &mut self.0;
        if !half.is_ready() {
            wait::wait(half, half.wait, None)?;
        }
        Ok(half.take_batch())
    }

    /// Like [`Receiver::receive`], but returns an empty batch if nothing arrives for `timeout`.
    ///
    /// ```
    /// # let (mut left, mut right) = nocopy::Port::memory_pair()?;
    /// # use std::time::Duration;
    /// assert_eq!(right.receiver().receive_timeout(Duration::from_millis(1))?.count(), 0);
    /// left.sender().send_copy(b"hello")?;
    /// left.sender().flush()?;
    /// assert_eq!(right.receiver().receive_timeout(Duration::from_secs(5))?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The interface is down or was removed.
    pub fn receive_timeout(&mut self, timeout: Duration) -> io::Result<Batch<'_>> {
        let half = &mut self.0;
        if !half.is_ready() {
            wait::wait(half, half.wait, Instant::now().checked_add(timeout))?;
        }
        Ok(half.take_batch())
    }

    /// Changes how to wait, from the next [`Receiver::receive`] on.
    pub fn set_wait(&mut self, wait: Wait) {
        self.0.set_wait_setting(wait);
    }

    /// The half for a tokio program, whose `receive` is a future.
    ///
    /// # Errors
    /// No descriptor is left.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn into_async(mut self) -> io::Result<AsyncReceiver<NonblockingReceiver>> {
        self.0.timed_epoll = TimedEpoll::open()?; // now, because a lack of descriptors would panic later
        AsyncReceiver::new(self.0)
    }
}
