//! Finds files in the index that do not exist any more, because a program of this host has removed them.

use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use super::identity::FileIdentity;
use super::index::FileLocation;
use super::{Export, file};

/// With fewer files in the index none is searched for.
const COUNT_MIN: usize = 1 << 16;

/// How many files are checked at a time.
const CHECKED_AT_ONCE: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct IndexSweep(Mutex<IndexSweepState>);

#[derive(Debug, Default)]
struct IndexSweepState {
    /// Files to be checked.
    unchecked: Vec<FileIdentity>,
    /// The number of files after the last time.
    last_count: usize,
}

impl Export {
    /// Checks some files, if the index has twice as many as after the last time: so it has at most twice as
    /// many as exist.
    pub(super) fn sweep_index(&self) {
        let mut state = self.sweep.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.unchecked.is_empty() {
            if self.index.len() < COUNT_MIN.max(2 * state.last_count) {
                return;
            }
            state.unchecked = self.index.identities();
        }
        let checked = state.unchecked.len().saturating_sub(CHECKED_AT_ONCE);
        for identity in state.unchecked.drain(checked..) {
            self.forget_if_removed(identity);
        }
        if state.unchecked.is_empty() {
            state.last_count = self.index.len();
        }
    }

    /// Forgets a file that is not at its location, unless the kernel's handle shows that it exists elsewhere.
    pub(super) fn forget_if_removed(&self, identity: FileIdentity) {
        let Some(location) = self.index.location(identity) else { return };
        let is_open = self.open_files.peek(identity).is_some_and(|open| open.stat().is_ok());
        if is_open || self.is_at_location(identity) {
            return;
        }
        if location.handle.is_none() || self.handle_mount_of(identity).is_none() || self.is_removed(&location)
        {
            self.index.remove(identity);
        }
    }

    /// Whether a file is where the index says; also if that cannot be told.
    fn is_at_location(&self, identity: FileIdentity) -> bool {
        let Some(path) = self.index.path(identity, self.root.identity()) else { return false };
        match self.open_below(&path) {
            Ok((opened, stat)) => self.identify(&stat, &opened, c"").map_or(true, |found| found == identity),
            Err(error) => !matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV),
        }
    }

    /// Whether the kernel says that there is no such file any more.
    pub(super) fn is_removed(&self, location: &FileLocation) -> bool {
        let Some((mount, handle)) = self.handle_mount.as_ref().zip(location.handle.as_ref()) else {
            return false;
        };
        match handle.open(mount) {
            Ok(opened) => file::stat(&opened).is_ok_and(|stat| stat.stx_nlink == 0),
            Err(error) => error.raw_os_error() == Some(Errno::STALE.raw_os_error()),
        }
    }
}
