//! Errors of the client.

use super::core::{BadReply, CallError, StatusText};
use super::transport::TransportError;
use super::url::UrlError;
use crate::wire::mount;
use crate::wire::nfs3::Status;
use nocopy_proto::errno::ErrorCause;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server cannot be reached, or its replies are wrong.
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error("{host}: has no address{cause}; check the name, or give the address itself", cause = ErrorCause(.source))]
    Host { host: String, source: std::io::Error },
    /// None of its addresses accepts connections.
    #[error("{host}: cannot be connected to{cause}; check that an NFS server listens there ('nocopy serve nfs'), and that no firewall is in between", cause = ErrorCause(.source))]
    Unreachable { host: String, source: std::io::Error },
    #[error(
        "{export}: cannot be mounted ({}); {}; {}",
        mount_status_text(*status)[0],
        mount_status_text(*status)[1],
        mount_status_advice(*status)
    )]
    Mount { export: String, status: mount::Status },
    #[error("{subject}: cannot be {what} {}; {}", StatusText(*status), status_advice(*status))]
    Status { subject: String, what: &'static str, status: Status },
    /// The server returned an error, but the call was sent more than once, and an earlier copy may have
    /// succeeded.
    #[error(
        "{subject}: may or may not have been {what} {}; the call was sent again after the connection was lost, and this is the second reply; look at the directory",
        StatusText(*status)
    )]
    Uncertain { subject: String, what: &'static str, status: Status },
    #[error(
        "{subject}: cannot be {what}; the server refuses the call ({reply}); check that it serves NFS version 3 to this user"
    )]
    Refused { subject: String, what: &'static str, reply: String },
    /// A reply that no correct server gives.
    #[error("{subject}: cannot be {what}; {source}; check that the server speaks NFS version 3")]
    BadReply { subject: String, what: &'static str, source: BadReply },
    #[error("buffers of the client: no memory{cause}; free memory, or ask for fewer buffers", cause = ErrorCause(.0))]
    Memory(#[source] std::io::Error),
    /// The client gave up all calls, because the server did not answer.
    #[error("{subject}: cannot be {what}; the client stopped waiting for the server; try again")]
    GivenUp { subject: String, what: &'static str },
}

impl ClientError {
    pub(super) fn from_call_error(
        subject: String,
        what: &'static str,
        error: CallError,
        is_repeated: bool,
    ) -> Self {
        match error {
            CallError::Status(StatusText(status)) if is_repeated && is_ambiguous_when_repeated(status) => {
                Self::Uncertain { subject, what, status }
            }
            CallError::Status(StatusText(status)) => Self::Status { subject, what, status },
            CallError::Refused(reply) => Self::Refused { subject, what, reply: format!("{reply:?}") },
            CallError::BadReply(source) => Self::BadReply { subject, what, source },
            CallError::Unanswered => Self::GivenUp { subject, what },
        }
    }

    /// The server's status, if that is the cause.
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

/// Statuses that a server also returns to a repetition of a call that has succeeded.
fn is_ambiguous_when_repeated(status: Status) -> bool {
    matches!(status, Status::NoEntry | Status::Exists | Status::Stale | Status::NotEmpty)
}

fn status_advice(status: Status) -> &'static str {
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

fn mount_status_text(status: mount::Status) -> [&'static str; 2] {
    match status {
        mount::Status::NotPermitted => ["EPERM", "not permitted"],
        mount::Status::NoEntry => ["ENOENT", "the server exports no such path"],
        mount::Status::Io => ["EIO", "the server's disk failed"],
        mount::Status::Access => ["EACCES", "permission denied"],
        mount::Status::NotDirectory => ["ENOTDIR", "not a directory"],
        mount::Status::Invalid => ["EINVAL", "the server does not understand the path"],
        mount::Status::NameTooLong => ["ENAMETOOLONG", "the path is too long"],
        mount::Status::NotSupported => ["MNT3ERR_NOTSUPP", "the server cannot do that"],
        mount::Status::ServerFault => ["MNT3ERR_SERVERFAULT", "the server failed"],
    }
}

fn mount_status_advice(status: mount::Status) -> &'static str {
    match status {
        mount::Status::NoEntry => "'showmount -e HOST' lists what is exported",
        mount::Status::NotPermitted | mount::Status::Access => {
            "see to which hosts it is exported, and whether it takes calls from ports above 1023 ('insecure')"
        }
        mount::Status::NotDirectory => "name a directory",
        _ => "see what the server says about it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::rpc::Reply;
    use crate::wire::xdr::XdrError;

    fn error_text(error: impl Into<CallError>, is_repeated: bool) -> String {
        let text = ClientError::from_call_error("F".into(), "read", error.into(), is_repeated).to_string();
        text.strip_prefix("F: ").expect("the subject comes first").to_owned()
    }

    #[test]
    fn errors_of_calls_have_cause_and_remedy() {
        assert_eq!(
            error_text(Status::IsDirectory, true),
            "cannot be read (EISDIR); a directory; name a file, or use -r"
        );
        assert_eq!(
            error_text(Status::NoEntry, true),
            "may or may not have been read (ENOENT); no such file or directory; the call was sent again after the connection was lost, and this is the second reply; look at the directory"
        );
        assert_eq!(
            error_text(CallError::Refused(Reply::ProgramUnavailable), false),
            "cannot be read; the server refuses the call (ProgramUnavailable); check that it serves NFS version 3 to this user"
        );
        assert_eq!(
            error_text(CallError::Unanswered, false),
            "cannot be read; the client stopped waiting for the server; try again"
        );
        let mount = ClientError::Mount { export: "E".into(), status: mount::Status::NoEntry };
        assert_eq!(
            mount.to_string(),
            format!(
                "E: cannot be mounted (ENOENT); the server exports no such path; {}",
                mount_status_advice(mount::Status::NoEntry)
            )
        );
    }

    #[test]
    fn errors_of_wrong_replies_have_cause_and_remedy() {
        for (reply, cause) in [
            (BadReply::UnknownCall { xid: 7 }, "the reply has the number 0x00000007, which no call has"),
            (
                XdrError::TooShort { missing: 3 }.into(),
                "the reply cannot be decoded (the message ends 3 bytes too early)",
            ),
            (
                XdrError::TooLong { bytes: 3 }.into(),
                "the reply cannot be decoded (3 bytes follow the end of the message)",
            ),
            (
                XdrError::AboveLimit { bytes: 9, max: 8 }.into(),
                "the reply cannot be decoded (a field has 9 bytes, and at most 8 are allowed)",
            ),
            (
                XdrError::Value { what: "a status", value: 9 }.into(),
                "the reply cannot be decoded (9 is not a valid value of a status)",
            ),
            (
                BadReply::TooLong { bytes: 9, max: 8 },
                "the reply has 9 bytes, more than the 8 that are possible",
            ),
            (BadReply::EmptyFragment, "a fragment of the reply is empty"),
            (
                BadReply::MoreThanAsked { bytes: 9, asked: 8 },
                "the reply has 9 bytes of the file, more than the 8 asked for",
            ),
            (
                BadReply::Counts { count: 9, data_bytes: 8 },
                "the reply counts 9 bytes read, and has 8 bytes of data",
            ),
            (
                BadReply::Length { data_bytes: 9, behind: 8 },
                "the reply announces 9 bytes of the file, and 8 follow",
            ),
            (
                BadReply::NoProgress { bytes: 0, asked: 8 },
                "the reply counts 0 bytes read or written of the 8 asked for, and the file does not end there",
            ),
            (BadReply::Name, "a name in the directory is empty, or has a slash or a zero byte"),
            (BadReply::EndlessDirectory, "the directory listing does not end"),
            (
                BadReply::NeverCommitted { rounds: 16 },
                "the server lost written data 16 times (each reply has a different write verifier)",
            ),
        ] {
            assert_eq!(
                error_text(reply, false),
                format!("cannot be read; {cause}; check that the server speaks NFS version 3")
            );
        }
    }

    /// Of calls that the client makes for itself, and of memory.
    #[test]
    fn disk_and_memory_errors_have_cause_and_remedy() {
        let none = || std::io::Error::from_raw_os_error(12);
        for (said, expected) in [
            (
                CallError::Status(StatusText(Status::Io)).to_string(),
                "NFS call: failed (EIO); the server's disk failed; look at the log of the server",
            ),
            (
                ClientError::Memory(none()).to_string(),
                "buffers of the client: no memory (ENOMEM); cannot allocate memory; free memory, or ask for fewer buffers",
            ),
        ] {
            assert_eq!(said, expected);
        }
    }
}
