//! Files that are kept open between calls. They are closed when the table is not locked: closing may wait for
//! the disk.

use std::iter;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use rustix::process::{Resource, getrlimit};

use super::file::OpenFile;
use super::identity::FileIdentity;
use super::waiting;

/// The most, if a quarter of the descriptors that this process may have is not less.
const FILES_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();

#[derive(Debug)]
pub(super) struct OpenFiles {
    files: Mutex<FileTable>,
}

#[derive(Debug)]
struct FileTable {
    /// Each file with the number of its last use.
    cache: LruCache<FileIdentity, (Arc<OpenFile>, u64)>,
    uses: u64,
    /// The number of uses when unused files were last closed.
    uses_before: u64,
}

impl OpenFiles {
    pub(super) fn new() -> Self {
        let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let files_max = NonZeroUsize::try_from((descriptors / 4).try_into().unwrap_or(usize::MAX));
        let open = LruCache::new(files_max.map_or(NonZeroUsize::MIN, |most| most.min(FILES_MAX)));
        Self { files: Mutex::new(FileTable { cache: open, uses: 0, uses_before: 0 }) }
    }

    /// The file, if it is open and still valid.
    pub(super) fn get_valid(
        &self,
        identity: FileIdentity,
        is_good: impl FnOnce(&OpenFile) -> bool,
    ) -> Option<Arc<OpenFile>> {
        let file = {
            let mut files = self.lock();
            files.uses += 1;
            let uses = files.uses;
            let (file, used) = files.cache.get_mut(&identity)?;
            *used = uses;
            Arc::clone(file)
        };
        if is_good(&file) {
            return Some(file);
        }
        // Closing a removed file frees its disk space, for which a thread must be allowed to wait.
        if !waiting::may_block() {
            return None;
        }
        self.close(identity);
        None
    }

    /// The file, if it is open; it may no longer be valid.
    pub(super) fn peek(&self, identity: FileIdentity) -> Option<Arc<OpenFile>> {
        self.lock().cache.peek(&identity).map(|(file, _)| Arc::clone(file))
    }

    /// Keeps it instead of the same file, or of the least recently used one.
    pub(super) fn insert(&self, file: Arc<OpenFile>) {
        let closed = {
            let mut files = self.lock();
            files.uses += 1;
            let used = files.uses;
            files.cache.push(file.identity(), (file, used))
        };
        drop(closed);
    }

    /// Closes the file when its last user has finished.
    pub(super) fn close(&self, identity: FileIdentity) {
        let closed = self.lock().cache.pop(&identity);
        drop(closed);
    }

    /// Closes files not used since the last call: an open file that was removed still uses disk space.
    pub(super) fn close_unused(&self) {
        let unused: Vec<_> = {
            let mut files = self.lock();
            let (before, now) = (files.uses_before, files.uses);
            files.uses_before = now;
            let oldest = |files: &mut FileTable| {
                files.cache.peek_lru().filter(|(_, (_, used))| *used <= before)?;
                files.cache.pop_lru()
            };
            iter::from_fn(|| oldest(&mut files)).collect()
        };
        drop(unused);
    }

    fn lock(&self) -> MutexGuard<'_, FileTable> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use nocopy_lab::patience::wait_until;

    use super::super::closing::UnsyncedFiles;
    use super::*;
    use crate::wire::nfs3::FileType;

    /// Closing a file may wait for the disk; other files are found meanwhile.
    #[test]
    fn closing_a_file_does_not_lock_the_table() {
        let (open, closing) = (OpenFiles::new(), Arc::new(UnsyncedFiles::default()));
        let closes: [&(dyn Fn(FileIdentity) + Sync); 3] = [
            &|identity| open.close(identity),
            &|identity| drop(open.get_valid(identity, |_| false)),
            &|_| (0..2).for_each(|_| open.close_unused()),
        ];
        for (number, close) in closes.into_iter().enumerate() {
            let identity = FileIdentity { file_system: 1, inode: number as u64, generation: 0 };
            let named = tempfile::NamedTempFile::new().unwrap();
            let file = OpenFile::new(named.reopen().unwrap().into(), identity, FileType::Regular);
            file.record_write(&closing);
            open.insert(Arc::new(file));
            thread::scope(|scope| {
                // With this its last user waits.
                let held = closing.hold_lock();
                let is_closed = || open.files.try_lock().is_ok_and(|files| files.cache.is_empty());
                scope.spawn(|| close(identity));
                wait_until("the file to be closed", is_closed);
                drop(held);
            });
        }
    }
}
