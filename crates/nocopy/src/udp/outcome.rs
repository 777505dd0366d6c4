//! What comes of what was sent.

use std::io;
use std::net::SocketAddr;

use crate::counter::counters;

counters! {
    /// What a sender counted.
    pub(crate) struct Counters {
        /// Datagrams the kernel took. Not: delivered.
        sent,
        /// Their bytes.
        sent_bytes,
        /// Datagrams the kernel refused for good; the flush that met one says why.
        refused,
        /// Datagrams of zero-copy calls that the kernel had no memory to remember, and that were copied instead.
        no_buffers,
        /// Errors of the network (ICMP) that were reported.
        peer_errors,
        /// Completions of calls that were never made: a fault of the kernel's.
        strange_completions,
        /// Calls that handed over what was queued.
        flushes,
        /// Messages of the queue that close did not hand over in time.
        given_up,
        /// Zero-copy calls that close gave up before the kernel was done with them. What they carried is not in the ledger.
        abandoned_calls,
        /// Bytes of foreign memory among them, which are lost to the program.
        leaked_bytes,
    }
}

/// A datagram was refused for good, and is no longer queued; what was behind it was handed over. It is the inner error of what
/// [`Sender::flush`](super::Sender::flush) returns.
#[derive(Debug, thiserror::Error)]
#[error("{refused} of the datagrams were not sent, the first to {} ({source}); {}", named(.to), advice(.source))]
pub struct SendError {
    /// The destination of the first; `None`: the peer the socket is connected to.
    pub to: Option<SocketAddr>,
    /// How many were refused in this flush.
    pub refused: u64,
    /// The kernel's reason for the first.
    pub source: io::Error,
}

impl From<SendError> for io::Error {
    fn from(error: SendError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

fn named(to: &Option<SocketAddr>) -> String {
    to.map_or_else(|| "the connected peer".into(), |to| to.to_string())
}

fn advice(error: &io::Error) -> &'static str {
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
