//! What programs expect of a writable directory, as checks that run on a mount and on controls.
//!
//! They check the same as the parts *basic* and *special* of the Connectathon suite, which no package
//! registry has. The programs are our own.

mod contents;
mod names;
mod open_files;
mod random;

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, chown};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::thread::{Gid, Uid, set_thread_gid, set_thread_groups, set_thread_uid};

use super::nfs::NOBODY;
use super::patience::wait_until;
use crate::failure::Failure;

/// One expectation of programs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FilesystemCheck {
    pub(crate) name: &'static str,
    run: fn(&CheckDirectory) -> CheckResult,
}

pub(crate) fn all_checks() -> impl Iterator<Item = FilesystemCheck> {
    [names::ALL, contents::ALL, open_files::ALL, random::ALL].into_iter().flatten().copied()
}

/// A directory to check in, which was empty at first.
#[derive(Debug)]
pub(crate) struct CheckDirectory {
    here: PathBuf,
    /// The same directory through another client.
    there: PathBuf,
    /// Whether to repeat each check many times.
    pub(crate) is_long: bool,
    pub(crate) seed: u64,
}

impl CheckDirectory {
    fn path(&self, name: &str) -> PathBuf {
        self.here.join(name)
    }

    fn path_at_other_client(&self, name: &str) -> PathBuf {
        self.there.join(name)
    }

    /// Repetitions; ten times as many when there is time.
    fn repetitions(&self, times: usize) -> usize {
        if self.is_long { 10 * times } else { times }
    }
}

/// Why a check ended.
#[derive(Debug)]
pub(crate) struct CheckFailure(String);

type CheckResult = Result<(), CheckFailure>;

impl CheckFailure {
    fn from_failure(Failure(why): Failure) -> Self {
        Self(why)
    }
}

/// Converts an error, with the line of the check.
impl<E: Error> From<E> for CheckFailure {
    #[track_caller]
    fn from(error: E) -> Self {
        let at = Location::caller();
        Self(format!("{error} ({}:{})", at.file(), at.line()))
    }
}

/// Where to check: two paths to the same directory, which the user without privileges may write.
#[derive(Debug, Clone)]
pub(crate) struct SharedDirectory {
    pub(crate) here: PathBuf,
    pub(crate) there: PathBuf,
}

impl SharedDirectory {
    /// The check; returns the reason if a result is not as expected.
    pub(crate) fn run_check(&self, check: FilesystemCheck, is_long: bool, seed: u64) -> Option<String> {
        let directory = CheckDirectory {
            here: self.here.join(check.name),
            there: self.there.join(check.name),
            is_long,
            seed,
        };
        let run = || {
            fs::create_dir(&directory.here)?;
            (check.run)(&directory)?;
            remove_all(&directory.here).map_err(CheckFailure::from_failure)
        };
        match run_as_unprivileged_user(run) {
            Ok(Ok(())) => None,
            Ok(Err(CheckFailure(why))) | Err(why) => Some(why),
        }
    }
}

/// Removes a directory with everything in it. The client's hidden copies of files that were open until a
/// moment ago disappear by themselves.
pub(crate) fn remove_all(path: &Path) -> Result<(), Failure> {
    let is_gone = || match fs::remove_dir_all(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
        Err(error) => Err(error.into()),
    };
    wait_until("a directory can be removed", is_gone)
}

/// Makes a directory of the user without privileges.
pub(crate) fn make_for_unprivileged_user(path: &Path) -> Result<(), Failure> {
    fs::create_dir(path)?;
    Ok(chown(path, Some(NOBODY), Some(NOBODY))?)
}

/// Runs a closure on a thread of the user without privileges, which also applies to all that it starts;
/// returns the message of a panic.
pub(crate) fn run_as_unprivileged_user<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, String> {
    run_as_user(NOBODY, run)
}

/// As another user, with a group of the same number and no others.
pub(crate) fn run_as_user<T: Send>(user: u32, run: impl FnOnce() -> T + Send) -> Result<T, String> {
    let powerless = || {
        set_thread_groups(&[])
            .and_then(|()| set_thread_gid(Gid::from_raw(user)))
            .and_then(|()| set_thread_uid(Uid::from_raw(user)))
            .expect("root may become another user");
        run()
    };
    thread::scope(|scope| {
        scope.spawn(powerless).join().map_err(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            words
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("a panic without words")
                .to_owned()
        })
    })
}

pub(crate) fn errno_of_result<T>(done: io::Result<T>) -> Option<rustix::io::Errno> {
    done.err().and_then(|error| rustix::io::Errno::from_io_error(&error))
}

/// Bytes of a file from an offset on; fewer at its end.
pub(crate) fn read_piece(file: &File, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let (mut found, mut filled) = (vec![0; bytes], 0);
    while filled < bytes {
        match file.read_at(&mut found[filled..], at + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    found.truncate(filled);
    Ok(found)
}

/// Bytes that differ by their place and by `seed`.
pub(crate) fn random_pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(bytes).collect()
}
