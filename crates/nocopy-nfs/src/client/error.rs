//! What goes wrong, with the fact, its cause, and what to do.

use super::core::{BadReply, CallError, StatusText};
use super::transport::TransportError;
use super::url::UrlError;
use crate::wire::mount;
use crate::wire::nfs3::Status;
use nocopy_proto::errno::Why;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server cannot be reached any more, or says nothing that makes sense.
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error(transparent)]
    Url(#[from] UrlError),
    /// A host that has no address.
    #[error("{host}: has no address{cause}; check the name, or give the address itself", cause = Why(.source))]
    Host { host: String, source: std::io::Error },
    /// The export cannot be mounted.
    #[error("{export}: cannot be mounted: {}; {}", mount_text(*status), mount_advice(*status))]
    Mount { export: String, status: mount::Status },
    /// The server says why.
    #[error("{subject}: cannot be {what}: {}; {}", StatusText(*status), advice(*status))]
    Status { subject: String, what: &'static str, status: Status },
    /// The same, but the call was sent more than once.
    #[error(
        "{subject}: may or may not have been {what}; the call was sent again after the connection was lost, and the second reply was: {}; look at the directory",
        StatusText(*status)
    )]
    Uncertain { subject: String, what: &'static str, status: Status },
    /// The server does not take the call.
    #[error(
        "{subject}: cannot be {what}; the server refuses the call ({reply}); check that it serves NFS version 3 to this user"
    )]
    Refused { subject: String, what: &'static str, reply: String },
    /// A reply that no correct server gives.
    #[error(
        "{subject}: cannot be {what}; the reply is malformed: {source}; check that the server speaks NFS version 3"
    )]
    BadReply { subject: String, what: &'static str, source: BadReply },
    /// There is none for the buffers.
    #[error("buffers of the client: no memory{cause}; free some", cause = Why(.0))]
    Memory(#[source] std::io::Error),
    /// It was given up with everything else.
    #[error("{subject}: cannot be {what}; the client stopped waiting for the server; try again")]
    GivenUp { subject: String, what: &'static str },
}

impl ClientError {
    /// What a call's error means for what was to be done.
    pub(super) fn of(subject: String, what: &'static str, error: CallError, is_repeated: bool) -> Self {
        match error {
            CallError::Status(StatusText(status)) if is_repeated && is_doubtful(status) => {
                Self::Uncertain { subject, what, status }
            }
            CallError::Status(StatusText(status)) => Self::Status { subject, what, status },
            CallError::Refused(reply) => Self::Refused { subject, what, reply: format!("{reply:?}") },
            CallError::BadReply(source) => Self::BadReply { subject, what, source },
            CallError::Unanswered => Self::GivenUp { subject, what },
        }
    }

    /// What the server said, if that is the cause.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } | Self::Uncertain { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl From<ClientError> for std::io::Error {
    fn from(error: ClientError) -> Self {
        Self::other(error)
    }
}

/// What a server answers to a call that it has made before, and does not remember.
fn is_doubtful(status: Status) -> bool {
    matches!(status, Status::NoEntry | Status::Exists | Status::Stale | Status::NotEmpty)
}

fn advice(status: Status) -> &'static str {
    match status {
        Status::Access | Status::NotPermitted => {
            "check its permissions, and as which user the server takes this client"
        }
        Status::NoEntry => "'nocopy ls' shows what is there",
        Status::Exists => "remove it, or take another name",
        Status::NotDirectory => "name a directory",
        Status::IsDirectory => "name a file, or use -r",
        Status::NoSpace | Status::QuotaExceeded => "free space there",
        Status::ReadOnlyFileSystem => {
            "have the server export it to be written ('nocopy serve nfs --writable')"
        }
        Status::Stale | Status::BadHandle => "look it up again: it was removed or replaced",
        Status::NotEmpty => "remove what is in it first",
        Status::NameTooLong => "take a shorter name",
        Status::Jukebox => "try again later",
        _ => "see what the server says about it",
    }
}

fn mount_text(status: mount::Status) -> &'static str {
    match status {
        mount::Status::NotPermitted => "not permitted (EPERM)",
        mount::Status::NoEntry => "the server exports no such path (ENOENT)",
        mount::Status::Io => "the server's disk failed (EIO)",
        mount::Status::Access => "permission denied (EACCES)",
        mount::Status::NotDirectory => "not a directory (ENOTDIR)",
        mount::Status::Invalid => "the server does not understand the path (EINVAL)",
        mount::Status::NameTooLong => "the path is too long (ENAMETOOLONG)",
        mount::Status::NotSupported => "the server cannot do that (MNT3ERR_NOTSUPP)",
        mount::Status::ServerFault => "the server failed (MNT3ERR_SERVERFAULT)",
    }
}

fn mount_advice(status: mount::Status) -> &'static str {
    match status {
        mount::Status::NoEntry => "'showmount -e HOST' lists what is exported",
        mount::Status::NotPermitted | mount::Status::Access => {
            "see to which hosts it is exported, and whether it takes calls from ports above 1023 ('insecure')"
        }
        mount::Status::NotDirectory => "name a directory",
        _ => "see what the server says about it",
    }
}
