//! What becomes of what is sent: given back, refused, counted.

use std::io;

use super::by_reference::RangeError;
use crate::facts::evidence::{Evidence, Ledger};
use crate::memory::in_flight::Ticket;
use crate::memory::pool::Buffer;

/// The most bytes that are queued before they must be flushed.
pub(super) const QUEUE_BYTES_MAX: u64 = 1 << 30;

/// A buffer that is free again.
#[derive(Debug)]
pub struct Completed {
    /// Which.
    pub ticket: Ticket,
    /// What is known of its bytes; if of some more than of others, of the worst part.
    pub evidence: Evidence,
    /// It.
    pub buffer: Buffer,
}

/// What a sender counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Bytes the kernel took. Not: delivered.
    pub sent_bytes: u64,
    /// Bytes of zero-copy calls that the kernel had no memory to remember, or the ring no place, and that were copied instead.
    pub no_buffers_bytes: u64,
    /// Completions of calls that were never made: a fault of the kernel's.
    pub strange_completions: u64,
}

/// A buffer was not queued; here it is.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Rejected {
    /// As it was given.
    pub buffer: Buffer,
    /// Why.
    pub reason: RejectedReason,
}

/// Why a buffer was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectedReason {
    /// Very much is queued.
    #[error("{} MiB are queued; flush them first", QUEUE_BYTES_MAX >> 20)]
    QueueFull,
    /// The stream was ended.
    #[error("the stream was ended by this side; nothing can be sent behind its end")]
    Finished,
}

/// What is sent by reference was not queued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotQueued {
    /// There are no such bytes.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The stream takes nothing more.
    #[error(transparent)]
    Rejected(#[from] RejectedReason),
}

/// The connection is over, and so many bytes that were queued were not handed over. [`Sender::take_unsent`](super::Sender::take_unsent) gives them back; of what was
/// handed over before nobody knows how much arrived.
#[derive(Debug, thiserror::Error)]
#[error("{unsent_bytes} bytes were not sent ({source}): {}", advice(.source))]
pub struct SendError {
    /// How many were still queued.
    pub unsent_bytes: u64,
    /// The kernel's reason.
    pub source: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::BrokenPipe => "the stream was ended or reset; connect again",
        io::ErrorKind::ConnectionReset => {
            "the peer closed without reading everything, or its program died; look there"
        }
        io::ErrorKind::TimedOut => {
            "the peer was silent for too long; look at the network, 'ss -ti', and TCP_USER_TIMEOUT"
        }
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "there is no way to the peer any more; look at 'ip route get'"
        }
        io::ErrorKind::NotConnected => "connect it first",
        io::ErrorKind::UnexpectedEof => "the file or the pipe is to stay as long as was said",
        _ => "look at 'ss -ti' and the interface",
    }
}

/// How a sender ended.
#[derive(Debug)]
pub struct Closed {
    /// Calls the peer had not acknowledged. What they carried is not in the ledger; the kernel goes on sending it.
    pub abandoned_calls: usize,
    /// Bytes of theirs that stay as they are, and come back later: see [`Sender::close`](super::Sender::close).
    pub kept_bytes: usize,
    /// Bytes that were never handed over.
    pub queued_bytes: u64,
    /// Why they were not.
    pub error: Option<SendError>,
    /// What is known of all other bytes.
    pub ledger: Ledger,
    /// What was counted.
    pub counters: Counters,
}
