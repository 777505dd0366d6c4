//! What a correct server never replies.

use crate::wire::xdr::XdrError;

/// Why a reply is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// Or one whose reply has come, or was sent by another connection.
    #[error("no call has its number {xid:#010x}")]
    UnknownCall {
        /// The number.
        xid: u32,
    },
    /// It is not what the call returns.
    #[error("it cannot be read: {0}")]
    Malformed(#[from] XdrError),
    /// Longer than a reply to this call can be.
    #[error("it is announced with {bytes} bytes, where at most {max} are possible")]
    TooLong {
        /// What it has.
        bytes: usize,
        /// What it may have.
        max: usize,
    },
    /// A fragment of a record, but not its last.
    #[error("a fragment of it is empty")]
    EmptyFragment,
    /// A read returned more than it was to read.
    #[error("it has {bytes} bytes of the file, where {asked} were asked for")]
    MoreThanAsked {
        /// What it has.
        bytes: usize,
        /// What was asked for.
        asked: usize,
    },
    /// The two counts of a read.
    #[error("it counts {count} bytes read, and {data_bytes} bytes of data")]
    Counts {
        /// The first.
        count: u32,
        /// The second.
        data_bytes: u32,
    },
    /// The record ends elsewhere.
    #[error("it announces {data_bytes} bytes of the file, and {behind} bytes follow in its record")]
    Length {
        /// Announced.
        data_bytes: usize,
        /// In the record.
        behind: usize,
    },
    /// A read of no bytes before the end of the file, or a write of none or of too many.
    #[error(
        "{bytes} bytes were read or written, where {asked} were asked for, and the file does not end there"
    )]
    NoProgress {
        /// Those done.
        bytes: usize,
        /// Those asked for.
        asked: usize,
    },
    /// A name that leads elsewhere than into its directory.
    #[error("a name in the directory is none: it is empty, or has a slash or a zero byte")]
    Name,
    /// A directory that goes on and on, or stands still.
    #[error("the directory does not end")]
    EndlessDirectory,
    /// With each commit the server says that it was started again.
    #[error("the server has lost what was written {rounds} times: it gives another write verifier each time")]
    NeverCommitted {
        /// How often it was sent.
        rounds: u32,
    },
}
