//! Counts and errors of sending.

use nocopy_proto::errno::{ErrorCause, ErrorCounts};
use std::io;
use std::net::SocketAddr;

use crate::counter::{Counter, counters};
use crate::facts::io_error::convert_to_io_error;
use crate::stats::Stats;

counters! {
    pub(crate) struct SenderCounters {
        /// Datagrams that the kernel refused for good; flush returns the reason.
        refused,
        /// Datagrams that were copied because the kernel had no memory to record a zero-copy call.
        no_buffers,
        /// Errors of the network (ICMP) that were reported.
        peer_errors,
        /// Completions of calls that were never made: a fault of the kernel.
        unknown_completions,
        /// Queued messages that close did not hand over in time.
        given_up,
        /// Zero-copy calls that close gave up before the kernel completed them. Their bytes are not in the
        /// ledger.
        abandoned_calls,
        /// Bytes of these calls that lie in memory not from a pool, which the program cannot use again.
        leaked_bytes,
    }
}

/// What became of the datagrams of one sender.
#[derive(Debug, Default)]
pub(super) struct SendOutcome {
    /// Datagrams the kernel accepted (not: delivered).
    pub(super) sent: u64,
    pub(super) sent_bytes: u64,
    /// Calls to flush that handed over queued messages.
    pub(super) flushes: u64,
    pub(super) counters: SenderCounters,
    pub(super) by_error: ErrorCounts,
    /// Datagrams that were refused after they were handed over; the next flush or drain returns this error.
    pub(super) late: Option<SendError>,
    /// Errors of the network that were read at the socket before this sender was made.
    pub(super) errors_before: u64,
}

impl SendOutcome {
    /// Counts a datagram that is not sent.
    pub(super) fn count_refused(&mut self, error: &io::Error) {
        self.counters.refused += 1;
        self.by_error.add(error, 1);
    }

    /// `network_errors`: those read at the socket so far, `None` if another sender reports them.
    pub(super) fn stats(&self, network_errors: Option<u64>, unknown_completions: u64) -> Stats {
        // No underflow: the count at the socket only grows.
        let peer_errors = network_errors.map_or(0, |errors| errors - self.errors_before);
        let counters = SenderCounters { peer_errors, unknown_completions, ..self.counters };
        let by_error = self.by_error.counts_by_name().into_iter().map(|(name, value)| {
            let meaning = "Of the refused datagrams, those by this error of the kernel.";
            Counter { name: format!("refused_{name}").into(), meaning, value }
        });
        let mut stats = Stats::with_moved(self.sent, self.sent_bytes)
            .with_counters(by_error)
            .with_sender_counters(counters.counters());
        stats.flushes = self.flushes;
        stats
    }
}

/// A datagram was refused for good, and removed from the queue; those after it were handed over. This is the
/// inner error of errors of [`Sender::flush`](super::Sender::flush).
#[derive(Debug, thiserror::Error)]
#[error("send: {refused} of the datagrams were not sent, the first to {}{cause}; {}", peer_name(.to), send_error_advice(.source), cause = ErrorCause(.source))]
pub struct SendError {
    /// The destination of the first refused datagram; `None`: the peer to which the socket is connected.
    pub to: Option<SocketAddr>,
    /// How many were refused in this flush.
    pub refused: u64,
    /// The kernel's reason for the first.
    pub source: io::Error,
}

convert_to_io_error!(SendError {
    Self { source, .. } => source.kind(),
});

fn peer_name(to: &Option<SocketAddr>) -> String {
    to.map_or_else(|| "the connected peer".into(), |to| to.to_string())
}

fn send_error_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => "there is no way to it; look at 'ip route get'",
        Some(libc::EPERM) => "a packet filter of this host forbids it; look at 'nft list ruleset'",
        Some(libc::EACCES) => "broadcasts are to be allowed when the socket is made",
        Some(libc::EMSGSIZE) => "longer than the way allows without fragments; make them shorter",
        Some(libc::ENOBUFS | libc::ENOMEM) => "the interface's queue is full; send more slowly",
        Some(libc::ENETDOWN) => "the interface is down; bring it up",
        _ => "look at 'ip route get' and the interface",
    }
}
