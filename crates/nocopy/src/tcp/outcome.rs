//! Counts and errors of sending, and its limits.

use nocopy_proto::errno::ErrorCause;
use std::io;

use crate::counter::counters;
use crate::stats::Stats;

counters! {
    pub(super) struct SenderCounters {
        /// Items of the queue that close did not hand over in time.
        given_up,
        /// Completions of calls that were never made: a fault of the kernel.
        unknown_completions,
        /// Bytes that were copied because the kernel had no memory to record a zero-copy call.
        no_buffers_bytes,
        /// Files that ended before the range that was to be sent.
        ended_early,
        /// Zero-copy calls that close gave up before the peer acknowledged them.
        abandoned_calls,
        /// Bytes of these calls that come back when the peer acknowledges them or is reset.
        kept_bytes,
    }
}

/// What became of the data of one sender.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SendOutcome {
    /// Slices that were copied; queued items are counted by their tickets instead.
    pub(super) slices: u64,
    /// Items that were taken back unsent.
    pub(super) unsent: u64,
    pub(super) bytes: u64,
    pub(super) flushes: u64,
    pub(super) counters: SenderCounters,
}

impl SendOutcome {
    /// `handed_over`: items that left the queue.
    pub(super) fn stats(&self, handed_over: u64, counters: SenderCounters) -> Stats {
        // No underflow: items that were taken back also count as having left the queue.
        let mut stats = Stats::with_moved(handed_over - self.unsent + self.slices, self.bytes);
        stats.flushes = self.flushes;
        stats.with_sender_counters(counters.counters())
    }
}

/// The most bytes that are queued before they must be flushed.
pub(super) const QUEUE_BYTES_MAX: u64 = 1 << 30;

/// The connection is closed: the inner error of a sender's errors.
#[derive(Debug, thiserror::Error)]
#[error(
    "send: {unsent_bytes} bytes were not sent{cause}; {}",
    send_error_advice(.source),
    cause = ErrorCause(.source)
)]
pub(super) struct SendError {
    pub(super) unsent_bytes: u64,
    pub(super) source: io::Error,
}

impl From<SendError> for io::Error {
    /// An error of the same kind as the kernel's reason.
    fn from(error: SendError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

fn send_error_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::BrokenPipe => "the stream was ended or reset; connect again",
        io::ErrorKind::ConnectionReset => {
            "the peer closed without reading everything, or its program died; look there"
        }
        io::ErrorKind::TimedOut => {
            "the peer was silent for too long; see the network, 'ss -ti', and TCP_USER_TIMEOUT"
        }
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "there is no longer a route to the peer; see 'ip route get'"
        }
        io::ErrorKind::NotConnected => "connect it first",
        io::ErrorKind::UnexpectedEof => "close the connection, since the peer lacks them",
        _ => "see 'ss -ti' and the interface",
    }
}
