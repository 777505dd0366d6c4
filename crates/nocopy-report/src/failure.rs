//! Errors of reading, printing and writing that end a command with exit code 2.

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{path}: cannot be written{cause}; {}", output_advice(source), path = path.display(), cause = ErrorCause(.source))]
    Output { path: PathBuf, source: io::Error },
    #[error("{path}: cannot be read{cause}; {}", input_advice(source), path = path.display(), cause = ErrorCause(.source))]
    Input { path: PathBuf, source: io::Error },
    #[error("{path}: not read to its end; it is longer than {} MiB, or has no end; name another file", bytes_max >> 20, path = path.display())]
    LongInput { path: PathBuf, bytes_max: usize },
    #[error("{path}: not written; the file exists; give --force to overwrite it, or another name", path = path.display())]
    Exists { path: PathBuf },
    #[error("standard output: cannot be written{cause}; check where the output goes", cause = ErrorCause(.0))]
    Print(#[source] io::Error),
    #[error("capabilities: cannot be given up{cause}; start it where capset(2) and prctl(2) are allowed", cause = ErrorCause(.0))]
    Capabilities(#[source] io::Error),
    #[error("signals: cannot be caught{cause}; start it where sigaction(2) is allowed", cause = ErrorCause(.0))]
    Signals(#[source] io::Error),
}

impl Failure {
    /// Whether the reader of the output closed it, which is no error.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Print(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The error for a file that cannot be opened for writing.
    pub fn output(path: &Path, source: io::Error) -> Failure {
        match source.kind() {
            io::ErrorKind::AlreadyExists => Failure::Exists { path: path.into() },
            _ => Failure::Output { path: path.into(), source },
        }
    }
}

/// What to do about a file that cannot be read.
pub fn input_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "read it while no other program changes it",
        io::ErrorKind::IsADirectory => "name a file in it",
        _ if error.raw_os_error() == Some(libc::ENXIO) => {
            "a socket is not opened by its name: if it is standard input, give '-'"
        }
        _ => "name a file that exists and may be read",
    }
}

fn output_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space, or name a file elsewhere",
        io::ErrorKind::FileTooLarge => "raise 'ulimit -f', or name a file on another file system",
        io::ErrorKind::Interrupted => "no program had opened it to read; start that first",
        _ if error.raw_os_error() == Some(libc::ENXIO) => {
            "a socket is not opened by its name: if it is standard output, give '-'"
        }
        _ if error.raw_os_error() == Some(libc::ELOOP) => "name the file itself, and no symbolic link to it",
        _ if error.raw_os_error() == Some(libc::EPERM) => {
            "the file is protected, or its file system has no permissions: name another file"
        }
        _ => "name a file in a directory that exists and is writable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_depends_on_the_error() {
        let message = |errno: i32| {
            let source = io::Error::from_raw_os_error(errno);
            Failure::Output { path: "/mnt/file".into(), source }.to_string()
        };
        assert!(
            message(libc::ENOSPC).ends_with("free space, or name a file elsewhere"),
            "{}",
            message(libc::ENOSPC)
        );
        assert!(message(libc::EACCES).contains("directory that exists and is writable"));
    }
}
