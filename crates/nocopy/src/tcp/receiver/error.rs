//! Why nothing was received.

use nocopy_proto::errno::ErrorCause;
use std::io;

/// Why nothing was received; usually the inner error of a returned [`io::Error`].
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error("receive: nothing received; no data has arrived yet; wait until the socket is readable")]
    WouldBlock,
    /// Data waits in the kernel until there is a buffer, and flow control stops the sender.
    #[error(
        "receive: no buffer; all {total} of the pool are in use; drop or send some of what was received, or make the pool larger"
    )]
    NoBuffers { total: usize },
    /// Everything received before was returned; what the peer sent after that is lost.
    #[error("connection: broken{cause}; the bytes before were received, and the rest is lost; connect again", cause = ErrorCause(.0))]
    Broken(#[source] io::Error),
    /// The kernel returns the reason only once, and another call got it, usually one of the sending half.
    #[error("connection: broken, as the sending half has reported; the stream is incomplete; connect again")]
    BrokenBefore,
    #[error("receive: failed{cause}; check that the socket is connected", cause = ErrorCause(.0))]
    Socket(#[source] io::Error),
}

impl ReceiveError {
    pub(super) fn from_errno(error: io::Error) -> Self {
        // What ends a connection, or is reported of its path: `tcp_reset`, `tcp_write_err`, `tcp_v4_err`.
        const BREAKS: [i32; 9] = [
            libc::ECONNRESET,
            libc::ETIMEDOUT,
            libc::EPIPE,
            libc::ECONNREFUSED,
            libc::ECONNABORTED,
            libc::EHOSTUNREACH,
            libc::ENETUNREACH,
            libc::EHOSTDOWN,
            libc::EPROTO,
        ];
        match error.raw_os_error() {
            _ if error.kind() == io::ErrorKind::WouldBlock => Self::WouldBlock,
            Some(errno) if BREAKS.contains(&errno) => Self::Broken(error),
            _ => Self::Socket(error),
        }
    }
}

impl From<ReceiveError> for io::Error {
    fn from(error: ReceiveError) -> Self {
        let kind = match &error {
            ReceiveError::Broken(error) | ReceiveError::Socket(error) => error.kind(),
            ReceiveError::WouldBlock => io::ErrorKind::WouldBlock,
            ReceiveError::BrokenBefore => io::ErrorKind::ConnectionReset,
            ReceiveError::NoBuffers { .. } => io::ErrorKind::OutOfMemory,
        };
        Self::new(kind, error)
    }
}
