//! Closed files with writes that were not synchronised. They stay open here until they are: the kernel
//! reports lost data only to descriptors that were open when it was lost, so a later COMMIT would not learn
//! of it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{fstat, fsync};

use super::identity::Identity;

#[derive(Debug, Default)]
pub(super) struct Closing(Mutex<VecDeque<Arc<Closed>>>);

#[derive(Debug)]
struct Closed {
    identity: Identity,
    file: Arc<OwnedFd>,
    is_settled: Mutex<bool>,
}

impl Closed {
    /// Synchronises it, or waits until another thread has. `note_lost` is called if data may be lost.
    fn settle(&self, note_lost: impl FnOnce()) {
        let mut is_settled = self.is_settled.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_settled && has_name(&self.file) && fsync(&self.file).is_err() {
            note_lost();
        }
        *is_settled = true;
    }
}

/// A removed file needs no synchronising, and open it would use disk space.
fn has_name(file: &OwnedFd) -> bool {
    fstat(file).is_ok_and(|about| about.st_nlink > 0)
}

impl Closing {
    /// Synchronises files until at most `left` remain.
    pub(super) fn settle(&self, left: usize, note_lost: impl Fn()) {
        loop {
            let first = {
                let files = self.lock();
                files.front().filter(|_| files.len() > left).map(Arc::clone)
            };
            let Some(first) = first else { return };
            first.settle(&note_lost);
            self.lock().retain(|file| !Arc::ptr_eq(file, &first));
        }
    }

    /// Synchronises the descriptors of a file.
    pub(super) fn settle_file(&self, identity: Identity, note_lost: impl Fn()) {
        let its = |file: &&Arc<Closed>| file.identity == identity;
        let files: Vec<_> = self.lock().iter().filter(its).map(Arc::clone).collect();
        files.iter().for_each(|file| file.settle(&note_lost));
    }

    /// While this is there, closing a file waits.
    #[cfg(test)]
    pub(super) fn held(&self) -> impl Drop {
        self.lock()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Closed>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a file has writes that were not synchronised. When it is dropped with such writes, the file is
/// kept in [`Closing`].
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    is_any: AtomicBool,
    to: OnceLock<(Arc<Closing>, Identity, Arc<OwnedFd>)>,
}

impl Unsynced {
    /// Notes a write, after it was made: so one that is made while the file is synchronised counts as not
    /// synchronised.
    pub(super) fn note(&self, closing: &Arc<Closing>, identity: Identity, file: &Arc<OwnedFd>) {
        self.to.get_or_init(|| (Arc::clone(closing), identity, Arc::clone(file)));
        self.is_any.store(true, Ordering::Release);
    }

    /// To be called before the file is synchronised.
    pub(super) fn clear(&self) {
        self.is_any.store(false, Ordering::Release);
    }
}

impl Drop for Unsynced {
    fn drop(&mut self) {
        if *self.is_any.get_mut()
            && let Some((closing, identity, file)) = self.to.take()
            && has_name(&file)
        {
            closing.lock().push_back(Arc::new(Closed { identity, file, is_settled: Mutex::new(false) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rustix::pipe::pipe;

    use super::*;

    const IDENTITY: Identity = Identity { file_system: 1, inode: 2, generation: 3 };

    /// A pipe stands for a file whose data was lost: it cannot be synchronised either.
    fn close_one(closing: &Arc<Closing>, identity: Identity, is_synced: bool) {
        let unsynced = Unsynced::default();
        unsynced.note(closing, identity, &Arc::new(pipe().unwrap().0));
        if is_synced {
            unsynced.clear();
        }
    }

    #[test]
    fn only_files_with_unsynced_writes_are_kept_open() {
        let closing = Arc::new(Closing::default());
        let lost = Cell::new(0);
        let note_lost = || lost.set(lost.get() + 1);
        close_one(&closing, IDENTITY, true);
        drop(Unsynced::default());
        assert_eq!(closing.lock().len(), 0);
        (0..5).for_each(|_| close_one(&closing, IDENTITY, false));
        closing.settle(3, note_lost);
        assert_eq!((closing.lock().len(), lost.get()), (3, 2));
        close_one(&closing, Identity { inode: 9, ..IDENTITY }, false);
        closing.settle_file(Identity { inode: 9, ..IDENTITY }, note_lost);
        assert_eq!(lost.get(), 3);
        closing.settle(0, note_lost);
        assert_eq!((closing.lock().len(), lost.get()), (0, 6), "none is synchronised twice");
    }
}
