//! Closed files with writes that were not synchronised. They stay open here until they are: the kernel
//! reports lost data only to descriptors that were open when it was lost, so a later COMMIT would not learn
//! of it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{fstat, fsync};

use super::identity::FileIdentity;

#[derive(Debug, Default)]
pub(super) struct UnsyncedFiles(Mutex<VecDeque<Arc<UnsyncedFile>>>);

#[derive(Debug)]
struct UnsyncedFile {
    identity: FileIdentity,
    file: Arc<OwnedFd>,
    is_synced: Mutex<bool>,
}

impl UnsyncedFile {
    /// Synchronises it, or waits until another thread has. `note_lost` is called if data may be lost.
    fn sync(&self, note_lost: impl FnOnce()) {
        let mut is_settled = self.is_synced.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_settled && has_links(&self.file) && fsync(&self.file).is_err() {
            note_lost();
        }
        *is_settled = true;
    }
}

/// A removed file needs no synchronising, and open it would use disk space.
fn has_links(file: &OwnedFd) -> bool {
    fstat(file).is_ok_and(|stat| stat.st_nlink > 0)
}

impl UnsyncedFiles {
    /// Synchronises files until at most `left` remain.
    pub(super) fn sync_until_at_most(&self, left: usize, note_lost: impl Fn()) {
        loop {
            let first = {
                let files = self.lock();
                files.front().filter(|_| files.len() > left).map(Arc::clone)
            };
            let Some(first) = first else { return };
            first.sync(&note_lost);
            self.lock().retain(|file| !Arc::ptr_eq(file, &first));
        }
    }

    /// Synchronises the descriptors of a file.
    pub(super) fn sync_file(&self, identity: FileIdentity, note_lost: impl Fn()) {
        let its = |file: &&Arc<UnsyncedFile>| file.identity == identity;
        let files: Vec<_> = self.lock().iter().filter(its).map(Arc::clone).collect();
        files.iter().for_each(|file| file.sync(&note_lost));
    }

    /// While this is there, closing a file waits.
    #[cfg(test)]
    pub(super) fn hold_lock(&self) -> impl Drop {
        self.lock()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<UnsyncedFile>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a file has writes that were not synchronised. When it is dropped with such writes, the file is
/// kept in [`UnsyncedFiles`].
#[derive(Debug, Default)]
pub(super) struct UnsyncedWrites {
    has_writes: AtomicBool,
    target: OnceLock<(Arc<UnsyncedFiles>, FileIdentity, Arc<OwnedFd>)>,
}

impl UnsyncedWrites {
    /// Notes a write, after it was made: so one that is made while the file is synchronised counts as not
    /// synchronised.
    pub(super) fn record_write(
        &self,
        closing: &Arc<UnsyncedFiles>,
        identity: FileIdentity,
        file: &Arc<OwnedFd>,
    ) {
        self.target.get_or_init(|| (Arc::clone(closing), identity, Arc::clone(file)));
        self.has_writes.store(true, Ordering::Release);
    }

    /// To be called before the file is synchronised.
    pub(super) fn clear(&self) {
        self.has_writes.store(false, Ordering::Release);
    }
}

impl Drop for UnsyncedWrites {
    fn drop(&mut self) {
        if *self.has_writes.get_mut()
            && let Some((closing, identity, file)) = self.target.take()
            && has_links(&file)
        {
            closing.lock().push_back(Arc::new(UnsyncedFile { identity, file, is_synced: Mutex::new(false) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rustix::pipe::pipe;

    use super::*;

    const IDENTITY: FileIdentity = FileIdentity { file_system: 1, inode: 2, generation: 3 };

    /// A pipe stands for a file whose data was lost: it cannot be synchronised either.
    fn close_file(closing: &Arc<UnsyncedFiles>, identity: FileIdentity, is_synced: bool) {
        let unsynced = UnsyncedWrites::default();
        unsynced.record_write(closing, identity, &Arc::new(pipe().unwrap().0));
        if is_synced {
            unsynced.clear();
        }
    }

    #[test]
    fn only_files_with_unsynced_writes_are_kept_open() {
        let closing = Arc::new(UnsyncedFiles::default());
        let lost = Cell::new(0);
        let note_lost = || lost.set(lost.get() + 1);
        close_file(&closing, IDENTITY, true);
        drop(UnsyncedWrites::default());
        assert_eq!(closing.lock().len(), 0);
        (0..5).for_each(|_| close_file(&closing, IDENTITY, false));
        closing.sync_until_at_most(3, note_lost);
        assert_eq!((closing.lock().len(), lost.get()), (3, 2));
        close_file(&closing, FileIdentity { inode: 9, ..IDENTITY }, false);
        closing.sync_file(FileIdentity { inode: 9, ..IDENTITY }, note_lost);
        assert_eq!(lost.get(), 3);
        closing.sync_until_at_most(0, note_lost);
        assert_eq!((closing.lock().len(), lost.get()), (0, 6), "none is synchronised twice");
    }
}
