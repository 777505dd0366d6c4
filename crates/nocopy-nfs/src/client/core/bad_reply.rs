//! Replies that no correct server sends.

use crate::wire::xdr::XdrError;

/// Why a reply is wrong, as a cause within an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// No call with this number waits for a reply on this connection.
    #[error("the reply has the number {xid:#010x}, which no call has")]
    UnknownCall { xid: u32 },
    /// It cannot be decoded as the results of the call.
    #[error("the reply cannot be decoded ({0})")]
    Malformed(#[from] XdrError),
    /// Longer than a reply to this call can be.
    #[error("the reply has {bytes} bytes, more than the {max} that are possible")]
    TooLong { bytes: usize, max: usize },
    /// A fragment of a record, but not its last.
    #[error("a fragment of the reply is empty")]
    EmptyFragment,
    /// A read returned more than it was to read.
    #[error("the reply has {bytes} bytes of the file, more than the {asked} asked for")]
    MoreThanAsked { bytes: usize, asked: usize },
    /// The two counts of a read.
    #[error("the reply counts {count} bytes read, and has {data_bytes} bytes of data")]
    Counts { count: u32, data_bytes: u32 },
    /// The record ends elsewhere.
    #[error("the reply announces {data_bytes} bytes of the file, and {behind} follow")]
    Length { data_bytes: usize, behind: usize },
    /// A read of no bytes before the end of the file, or a write of none or of too many.
    #[error(
        "the reply counts {bytes} bytes read or written of the {asked} asked for, and the file does not end there"
    )]
    NoProgress { bytes: usize, asked: usize },
    /// A name that would be in another directory.
    #[error("a name in the directory is empty, or has a slash or a zero byte")]
    Name,
    /// A listing that never ends, or does not advance.
    #[error("the directory listing does not end")]
    EndlessDirectory,
    /// At each commit the server reports that it was restarted.
    #[error("the server lost written data {rounds} times (each reply has a different write verifier)")]
    NeverCommitted { rounds: u32 },
}
