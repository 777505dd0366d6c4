//! How a stream ends: finished, cut, closed by force, or dropped.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::NonblockingSender;
use crate::engine::reaper::{self, CloseTimeouts};
use crate::memory::pool::Buffer;
use crate::tcp::item::{QueuedBytes, StreamItem};

/// How long the peer of a dropped socket may need to acknowledge.
const TIMEOUTS: CloseTimeouts =
    CloseTimeouts { patience: Duration::from_secs(120), cut_off: Some(reset_connection) };

/// Whether the stream goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamState {
    Open,
    /// Data was removed from the queue, so that the peer will not get the whole.
    Cut,
    Finished,
}

impl NonblockingSender {
    /// Takes back buffers that were queued and not handed over, in order, for example to send them by another
    /// connection after an error. A part of the first one may have been sent; if the kernel still reads it
    /// (briefly, once the connection is closed), it is returned like sent buffers instead. The peer sees a
    /// reset at the end, because it did not get everything.
    ///
    /// Files and published data are not returned.
    ///
    /// ```
    /// # use nocopy::tcp::{Listener, Stream};
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let mut stream = Stream::connect(listener.local_addr()?)?;
    /// # let mut peer = listener.accept()?.0;
    /// stream.sender().send(b"hello".to_vec())?;
    /// let unsent = stream.sender().take_unsent(); // before it was flushed
    /// assert_eq!((unsent.len(), &unsent[0][..]), (1, &b"hello"[..]));
    /// assert!(stream.sender().try_flush()?); // nothing is left
    /// # let _ = &mut peer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_unsent(&mut self) -> Vec<Buffer> {
        self.reap();
        self.queue.set_wants_room(false);
        self.outcome.unsent += self.queued() as u64;
        self.drop_unsent()
    }

    /// Empties the queue of what was not handed over.
    fn drop_unsent(&mut self) -> Vec<Buffer> {
        if self.queued_bytes.total() > 0 && self.end == StreamState::Open {
            self.end = StreamState::Cut;
        }
        // Below, everything is removed that was not handed over.
        self.queued_bytes = QueuedBytes::default();
        self.queue.take_unsent().into_iter().filter_map(StreamItem::into_buffer).collect()
    }

    /// Gives up memory that the kernel still reads, and continues to send: all of it if its pages can be
    /// replaced; otherwise none, and the reaper keeps it.
    pub(super) fn give_up_memory(&mut self) {
        self.outcome.counters.abandoned_calls += self.in_flight() as u64;
        if self.queue.can_replace_pages() {
            reaper::count_leaked(self.queue.detach().abandon());
        } else {
            self.outcome.counters.kept_bytes += self.queue.read_bytes() as u64;
            reaper::hand_over_to_reaper(&mut self.queue, TIMEOUTS);
        }
    }

    /// The peer sees the end after the bytes that were handed over. If some are left, it sees a reset
    /// instead, so that it does not mistake a part for the whole.
    pub(super) fn end_stream(&mut self) {
        let end = std::mem::replace(&mut self.end, StreamState::Finished);
        if end == StreamState::Open && self.queued_bytes.total() == 0 {
            // Fails if the connection is closed already, which does not matter.
            let _ = rustix::net::shutdown(self.queue.socket(), rustix::net::Shutdown::Write);
        } else if end != StreamState::Finished {
            reset_connection(self.queue.socket());
        }
    }
}

impl Drop for NonblockingSender {
    /// Queued data is not sent. Memory is kept while the kernel still reads it. In a forked child the stream
    /// belongs to the parent, and continues.
    fn drop(&mut self) {
        if !self.queue.is_inherited() {
            // First: whether something is still queued decides between an end and a reset.
            self.end_stream();
            drop(self.drop_unsent());
        }
        reaper::hand_over_to_reaper(&mut self.queue, TIMEOUTS);
    }
}

/// Ends a connection at once, in both directions: the kernel drops unacknowledged data, and completes all
/// calls.
pub(super) fn reset_connection(socket: BorrowedFd<'_>) {
    if rustix::net::connect_unspec(socket).is_err() {
        // If another thread receives, some kernels refuse (`EBUSY`): then the reset comes when the last half
        // is closed.
        let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
    }
}
