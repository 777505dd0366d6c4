//! Everything that ends a command with exit code 2. One line each: fact, cause, action.

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Report(#[from] nocopy_report::Failure),
    #[error(transparent)]
    Bench(#[from] nocopy_bench::Failure),
    #[error(transparent)]
    Profile(#[from] nocopy_profile::Failure),
    #[error(transparent)]
    Transfer(#[from] nocopy_transfer::Failure),
    #[error(transparent)]
    Nfs(#[from] nocopy_nfs::command::Failure),
    #[error(transparent)]
    Open(#[from] nocopy::port::OpenError),
    #[error("interfaces: cannot be listed{cause}; start it where netlink sockets are allowed", cause = ErrorCause(.0))]
    Interfaces(#[source] io::Error),
    #[error(transparent)]
    Statistics(#[from] nocopy::integration::statistics::SnapshotError),
    #[error("{path}: cannot be read as results of nocopy; {source}; give a file of 'nocopy bench --json' or 'nocopy profile sweep --json'", path = path.display())]
    Results { path: PathBuf, source: serde_json::Error },
    #[error("{path}: cannot be shown; its results are of the kind '{schema}', which this version does not know; give results of 'nocopy bench' or 'nocopy profile sweep', or use the version of nocopy that wrote them", path = path.display())]
    Schema { path: PathBuf, schema: String },
    #[error("{path}: the page cannot be written there; it would overwrite the results, or another page; name another file with --html or --markdown", path = path.display())]
    PageOverOther { path: PathBuf },
    #[error(transparent)]
    Filter(#[from] nocopy::filter::CompileError),
    #[error("{path}: cannot be read as a filter; {source}", path = path.display())]
    Bytecode { path: PathBuf, source: nocopy_proto::filter::ParseError },
    #[error(transparent)]
    Capture(#[from] nocopy::capture::OpenError),
    #[error(
        "--rotate-size, --rotate-time: cannot be used with '-o -'; standard output is one stream; leave them out, or name a file"
    )]
    RotatedOutput,
    #[error("{option}: cannot be used alone; it needs {needed}; {action}")]
    Needs { option: &'static str, needed: &'static str, action: &'static str },
    #[error("{path}: the recording ended early{cause}; {}; the packets in the file are complete", write_failure_advice(source), path = path.display(), cause = ErrorCause(.source))]
    RecordWrite { path: PathBuf, source: io::Error },
    #[error("{path}: the recording ended early{cause}; the last packet may be incomplete; check the program that reads it", path = path.display(), cause = ErrorCause(.source))]
    RecordStream { path: PathBuf, source: io::Error },
    #[error("{interface}: the recording ended early{cause}; the packets in the file are complete; look at 'ip link show {interface}'", cause = ErrorCause(.source))]
    RecordSource { interface: String, source: io::Error },
    #[error("man: no page for '{name}'; nocopy has no such command; 'nocopy --help' lists them")]
    NoSuchCommand { name: String },
    #[error(transparent)]
    Receive(io::Error),
    #[error(
        "{interface}: its packets cannot be taken from the host; {why}; leave out '--take' to only watch them"
    )]
    CannotTake { interface: String, why: String },
}

impl Failure {
    /// Whether the reader of the output closed it, which is no error.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        let report = match self {
            Failure::Report(failure)
            | Failure::Bench(nocopy_bench::Failure::Report(failure))
            | Failure::Profile(nocopy_profile::Failure::Report(failure))
            | Failure::Transfer(nocopy_transfer::Failure::Report(failure))
            | Failure::Nfs(nocopy_nfs::command::Failure::Report(failure)) => failure,
            _ => return false,
        };
        report.is_broken_pipe()
    }
}

/// Advice for a recording that cannot be written.
fn write_failure_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space, or keep only the last files with --rotate-size and --files"
        }
        io::ErrorKind::FileTooLarge => "raise 'ulimit -f', or use --rotate-size",
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::AlreadyExists => {
            "check the directory"
        }
        _ => "check the disk",
    }
}
