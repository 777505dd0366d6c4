//! Files that are kept open between calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, getrlimit};

use super::file::OpenFile;
use super::identity::Identity;
use super::waiting;

/// The most, if a quarter of the descriptors that this process may have is not less.
const FILES_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct OpenFiles {
    files: Mutex<Files>,
    files_max: usize,
}

#[derive(Debug, Default)]
struct Files {
    /// Each file with the number of its last use.
    open: HashMap<Identity, (Arc<OpenFile>, u64)>,
    uses: u64,
    /// The number of uses when unused files were last closed.
    uses_before: u64,
}

impl OpenFiles {
    pub(super) fn new() -> Self {
        let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let files_max = usize::try_from(descriptors / 4).unwrap_or(usize::MAX).min(FILES_MAX);
        Self { files: Mutex::default(), files_max }
    }

    /// The file, if it is open and still valid.
    pub(super) fn get(
        &self,
        identity: Identity,
        is_good: impl FnOnce(&OpenFile) -> bool,
    ) -> Option<Arc<OpenFile>> {
        let file = {
            let mut files = self.lock();
            files.uses += 1;
            let uses = files.uses;
            let (file, used) = files.open.get_mut(&identity)?;
            *used = uses;
            Arc::clone(file)
        };
        if is_good(&file) {
            return Some(file);
        }
        // Closing a removed file frees its disk space, for which a thread must be allowed to wait.
        if !waiting::may_wait() {
            return None;
        }
        self.lock().open.remove(&identity);
        None
    }

    /// The file, if it is open; it may no longer be valid.
    pub(super) fn peek(&self, identity: Identity) -> Option<Arc<OpenFile>> {
        self.lock().open.get(&identity).map(|(file, _)| Arc::clone(file))
    }

    /// Keeps it instead of the same file, or of the least recently used one.
    pub(super) fn keep(&self, file: Arc<OpenFile>) {
        let mut files = self.lock();
        if files.open.len() >= self.files_max
            && !files.open.contains_key(&file.identity())
            && let Some(oldest) =
                files.open.iter().min_by_key(|(_, (_, used))| *used).map(|(identity, _)| *identity)
        {
            files.open.remove(&oldest);
        }
        files.uses += 1;
        let used = files.uses;
        files.open.insert(file.identity(), (file, used));
    }

    /// Closes the file when its last user has finished.
    pub(super) fn close(&self, identity: Identity) {
        self.lock().open.remove(&identity);
    }

    /// Closes files not used since the last call: an open file that was removed still uses disk space.
    pub(super) fn close_unused(&self) {
        let mut files = self.lock();
        let before = files.uses_before;
        files.open.retain(|_, (_, used)| *used > before);
        files.uses_before = files.uses;
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
