//! Errors of sending, and its limits.

use nocopy_proto::errno::Why;
use std::io;

/// The most bytes that are queued before they must be flushed.
pub(super) const QUEUE_BYTES_MAX: u64 = 1 << 30;

/// The connection is closed: the inner error of a sender's errors.
#[derive(Debug, thiserror::Error)]
#[error("send: {unsent_bytes} bytes were not sent{cause}; {}", advice(.source), cause = Why(.source))]
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

fn advice(error: &io::Error) -> &'static str {
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
