//! Why a command was not run, or its exit status is unknown. One line each: fact, cause, action.

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nocopy_lab::PreloadLibrary;
use nocopy_report::Failure;

use super::program::CommandProgram;

/// Of `nocopy run` itself, as of env(1) and nohup(1).
const OWN_FAILURE: u8 = 125;
/// The command is there and cannot be run.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Library(#[from] nocopy_lab::Error),
    #[error("{path}: cannot be used as the library{why}; name {} with --library", which.file_name(), path = path.display())]
    InvalidLibrary {
        which: PreloadLibrary,
        path: PathBuf,
        /// The end of the message: the errno and its meaning, or text that begins with `; `.
        why: String,
    },
    #[error(
        "{program}: not found; there is no such program at that path, or in the directories of PATH; check the name, or give its path"
    )]
    NotFound { program: String },
    #[error(
        "{program}: cannot be run; {loader}, which is to load or interpret it, is not there; the program is for another C library, or needs a \
         package; install that, or a build of the program for this system", loader = loader.display()
    )]
    LoaderNotFound { program: String, loader: PathBuf },
    #[error("{program}: cannot be run{cause}; name a program that this user may run", cause = ErrorCause(.source))]
    NotExecutable { program: String, source: io::Error },
    #[error(
        "{program}: cannot be started{cause}; free memory, raise 'ulimit -u', or give it fewer arguments", cause = ErrorCause(.source))]
    Start { program: String, source: io::Error },
    #[error("{program}: cannot be waited for{cause}; start nocopy where SIGCHLD is not ignored", cause = ErrorCause(.source))]
    Wait { program: String, source: io::Error },
    #[error("counts of the library: no memory file (memfd) for them{cause}; free memory, or raise 'ulimit -n'", cause = ErrorCause(.0))]
    CounterFile(#[source] io::Error),
    #[error("counts of the library: cannot be read{cause}; run it once more", cause = ErrorCause(.0))]
    ReadCounters(#[source] io::Error),
    #[error("report of the program: no socket to receive it{cause}; raise 'ulimit -n', or free memory", cause = ErrorCause(.0))]
    Socket(#[source] io::Error),
    #[error("signals: cannot be caught{cause}; start it where sigaction(2) and signalfd(2) are allowed", cause = ErrorCause(.0))]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Other(#[from] Failure),
}

impl Error {
    /// The error for a program that could not be started.
    pub(super) fn from_start_failure(program: &CommandProgram, source: io::Error) -> Self {
        let missing = program.missing_loader().map(Path::to_owned);
        let program = program.name().to_owned();
        match (source.raw_os_error(), missing) {
            (Some(libc::ENOENT), Some(loader)) => Self::LoaderNotFound { program, loader },
            (Some(libc::ENOENT | libc::ENOTDIR), _) => Self::NotFound { program },
            (Some(libc::EACCES | libc::EPERM | libc::ENOEXEC | libc::EISDIR | libc::ELOOP), _) => {
                Self::NotExecutable { program, source }
            }
            _ => Self::Start { program, source },
        }
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::NotFound { .. } => NOT_FOUND,
            Self::NotExecutable { .. } | Self::LoaderNotFound { .. } => NOT_EXECUTABLE,
            _ => OWN_FAILURE,
        })
    }
}
