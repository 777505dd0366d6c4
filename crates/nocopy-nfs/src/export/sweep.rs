//! Finds files in the index that do not exist any more, because a program of this host has removed them.

use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use super::identity::Identity;
use super::index::Place;
use super::{Export, file};

/// With fewer files in the index none is searched for.
const COUNT_MIN: usize = 1 << 16;

/// How many files are checked at a time.
const CHECKED_AT_ONCE: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Sweep(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Files to be checked.
    left: Vec<Identity>,
    /// The number of files after the last time.
    count: usize,
}

impl Export {
    /// Checks some files, if the index has twice as many as after the last time: so it has at most twice as
    /// many as exist.
    pub(super) fn sweep(&self) {
        let mut state = self.sweep.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.left.is_empty() {
            if self.index.count() < COUNT_MIN.max(2 * state.count) {
                return;
            }
            state.left = self.index.identities();
        }
        let checked = state.left.len().saturating_sub(CHECKED_AT_ONCE);
        for identity in state.left.drain(checked..) {
            self.forget_if_removed(identity);
        }
        if state.left.is_empty() {
            state.count = self.index.count();
        }
    }

    /// Forgets a file that is not at its place, unless the kernel's handle shows that it exists elsewhere.
    pub(super) fn forget_if_removed(&self, identity: Identity) {
        let Some(place) = self.index.place(identity) else { return };
        let is_open = self.open.peek(identity).is_some_and(|open| open.about().is_ok());
        if is_open || self.is_at_its_place(identity) {
            return;
        }
        if place.handle.is_none() || self.mount_of(identity).is_none() || self.is_removed(&place) {
            self.index.forget(identity);
        }
    }

    /// Whether a file is where the index says; also if that cannot be told.
    fn is_at_its_place(&self, identity: Identity) -> bool {
        let Some(path) = self.index.path(identity, self.root.identity()) else { return false };
        match self.open_below(&path) {
            Ok((opened, about)) => {
                self.identify(&about, &opened, c"").map_or(true, |found| found == identity)
            }
            Err(error) => !matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV),
        }
    }

    /// Whether the kernel says that there is no such file any more.
    pub(super) fn is_removed(&self, place: &Place) -> bool {
        let Some((mount, handle)) = self.mount.as_ref().zip(place.handle.as_ref()) else { return false };
        match handle.open(mount) {
            Ok(opened) => file::about(&opened).is_ok_and(|about| about.stx_nlink == 0),
            Err(error) => error.raw_os_error() == Some(Errno::STALE.raw_os_error()),
        }
    }
}
