//! Why a command was not run, or its exit status is unknown. One line each: fact, cause, action.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use nocopy_report::Failure;

use super::kind::Kind;

/// Of `nocopy run` itself, as of env(1) and nohup(1).
const OWN_FAILURE: u8 = 125;
/// The command is there and cannot be run.
const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
const NOT_FOUND: u8 = 127;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "{} is at none of {}: build it with 'cargo build --release', install it there, or name it with --library",
        kind.file(), list(places)
    )]
    NoLibrary { kind: Kind, places: Vec<PathBuf> },
    #[error("{path}: not a library: {why}: name {} with --library", kind.file(), path = path.display())]
    NotALibrary { kind: Kind, path: PathBuf, why: String },
    #[error(
        "{path}: its path has a blank or a colon, where the loader's LD_PRELOAD ends a name: install it elsewhere, and name it \
         with --library",
        path = path.display()
    )]
    LibraryPath { path: PathBuf },
    #[error("{program}: not found: name a program that is in a directory of PATH, or with its path")]
    NotFound { program: String },
    #[error("{program}: cannot be run: {source}: name a program that this user may run")]
    NotExecutable { program: String, source: io::Error },
    #[error(
        "{program}: cannot be started: {source}: free memory, raise 'ulimit -u', or give it fewer arguments"
    )]
    Start { program: String, source: io::Error },
    #[error("{program}: cannot be waited for: {source}: start nocopy where SIGCHLD is not ignored")]
    Wait { program: String, source: io::Error },
    #[error("cannot make a file to count sockets in: {0}: free memory, or raise 'ulimit -n'")]
    Counts(#[source] io::Error),
    #[error("what the library counted cannot be read: {0}: run it once more")]
    Counted(#[source] io::Error),
    #[error("cannot make a socket for the command to report by: {0}: raise 'ulimit -n', or free memory")]
    Socket(#[source] io::Error),
    #[error("cannot catch signals: {0}: start it where sigaction(2) and signalfd(2) are allowed")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Other(#[from] Failure),
}

impl Error {
    /// What a program could not be started for.
    pub(super) fn start(program: &str, source: io::Error) -> Self {
        let program = program.to_owned();
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => Self::NotFound { program },
            Some(libc::EACCES | libc::EPERM | libc::ENOEXEC | libc::EISDIR | libc::ELOOP) => {
                Self::NotExecutable { program, source }
            }
            _ => Self::Start { program, source },
        }
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::NotFound { .. } => NOT_FOUND,
            Self::NotExecutable { .. } => NOT_EXECUTABLE,
            _ => OWN_FAILURE,
        })
    }
}

fn list(places: &[PathBuf]) -> String {
    let names: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
    names.join(", ")
}
