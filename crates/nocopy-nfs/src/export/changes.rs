//! Changes of files and directories, each with the attributes before and after, by which a client checks its
//! cache.
//!
//! Changes of one file are made one after the other, so the attributes before and after are those of this
//! change; if another program of this host changes the same file at the same moment, that is not noticed.

use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{
    Access, AtFlags, CWD, Mode, OFlags, fdatasync, fsync, ftruncate, linkat, openat, renameat, syncfs,
    unlinkat,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

use super::attributes::{check_attributes, granted_permissions, set_owner, set_times};
use super::file::{self, change_status_from_errno};
use super::identity::FileIdentity;
use super::{Caller, Export, OpenFile, checked_entry_name};
use crate::wire::nfs3::{
    FileHandle, FileType, NewAttributes, SizeAndTimes, Stability, Status, Time, Verifier,
    WeakCacheConsistency,
};

/// The result of a call, and the attributes before and after.
pub type ChangeResult<T> = (Result<T, Status>, WeakCacheConsistency);

/// The most closed files that wait to be synchronised, besides those of changes being made.
pub(super) const CLOSING_MAX: usize = 64;

/// Locks for files; files that share a lock are changed one at a time.
const LOCKS: usize = 64;

/// A number that changes with each start of the server: a change tells clients that unstable writes may be
/// lost.
#[derive(Debug)]
pub(super) struct WriteVerifier(AtomicU64);

impl WriteVerifier {
    pub(super) fn new() -> io::Result<Self> {
        let mut bytes = [0; 8];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        Ok(Self(AtomicU64::new(u64::from_ne_bytes(bytes))))
    }

    fn current_verifier(&self) -> Verifier {
        self.0.load(Ordering::Acquire).to_be_bytes()
    }

    fn change_verifier(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

#[derive(Debug)]
pub(super) struct FileLocks {
    locks: [Mutex<()>; LOCKS],
    changes: [AtomicU64; LOCKS],
}

impl Default for FileLocks {
    fn default() -> Self {
        Self {
            locks: std::array::from_fn(|_| Mutex::default()),
            changes: std::array::from_fn(|_| AtomicU64::default()),
        }
    }
}

impl FileLocks {
    fn slot_index(identity: FileIdentity) -> usize {
        let mut hasher = DefaultHasher::new();
        identity.hash(&mut hasher);
        hasher.finish() as usize % LOCKS
    }

    fn lock(&self, slot: usize) -> MutexGuard<'_, ()> {
        let lock = self.locks[slot].lock().unwrap_or_else(PoisonError::into_inner);
        self.changes[slot].fetch_add(1, Ordering::AcqRel);
        lock
    }

    pub(super) fn lock_file(&self, file: &OpenFile) -> MutexGuard<'_, ()> {
        self.lock(Self::slot_index(file.identity()))
    }

    pub(super) fn change_counter(&self, file: &OpenFile) -> &AtomicU64 {
        &self.changes[Self::slot_index(file.identity())]
    }

    /// The lock of a file being written: if others have changed the file since the last piece, the attributes
    /// before the first piece are useless to a client.
    fn lock_for_next_piece(&self, file: &OpenFile, writing: &mut FileWrite) -> MutexGuard<'_, ()> {
        let lock = self.lock_file(file);
        let changes = self.change_counter(file).load(Ordering::Acquire);
        if changes != writing.changes + 1 {
            writing.before = None;
        }
        writing.changes = changes;
        lock
    }

    /// The locks of two files, always in the same order.
    fn lock_two_files(
        &self,
        one: &OpenFile,
        other: &OpenFile,
    ) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let (one, other) = (Self::slot_index(one.identity()), Self::slot_index(other.identity()));
        let first = self.lock(one.min(other));
        (first, (one != other).then(|| self.lock(one.max(other))))
    }
}

/// A write whose bytes arrive in pieces; other calls may change the file between them.
#[derive(Debug)]
pub struct FileWrite {
    handle: FileHandle,
    caller: Caller,
    /// `None` after it was released.
    file: Option<Arc<OpenFile>>,
    offset: u64,
    written: usize,
    failed: Option<Status>,
    before: Option<SizeAndTimes>,
    /// The lock's number of changes, if this write made the last.
    changes: u64,
}

impl FileWrite {
    /// Whether the write has failed, so that further bytes are discarded.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Closes the file until the next piece: so a client that sends nothing for days holds no descriptor and
    /// no disk space of a removed file, and its permission is checked again.
    pub fn release_file(&mut self) {
        self.file = None;
    }
}

/// Makes a change, and reads the attributes before and after. A removed file cannot be changed.
pub(super) fn change_with_attributes<T>(
    file: &OpenFile,
    change: impl FnOnce() -> Result<T, Status>,
) -> ChangeResult<T> {
    let before = match file.attributes() {
        Ok(attributes) => Some(attributes.size_and_times()),
        Err(status) => return (Err(status), WeakCacheConsistency { before: None, after: None }),
    };
    let done = change();
    (done, WeakCacheConsistency { before, after: file.attributes().ok() })
}

impl Export {
    /// Changes attributes; if `guard` is given, only if the file was last changed at that time.
    pub fn set_attributes(
        &self,
        caller: &Caller,
        file: &Arc<OpenFile>,
        new: &NewAttributes,
        guard: Option<Time>,
    ) -> ChangeResult<()> {
        let (done, changed) = {
            let _lock = self.locks.lock_file(file);
            change_with_attributes(file, || {
                check_attributes(new)?;
                if guard.is_some_and(|guard| file.attributes().is_ok_and(|now| now.changed != guard)) {
                    return Err(Status::NotSynchronized);
                }
                self.apply_attributes(caller, file, new)
            })
        };
        self.sync_closed_files(CLOSING_MAX);
        (done.and_then(|()| self.sync_change(file)), changed)
    }

    fn apply_attributes(
        &self,
        caller: &Caller,
        file: &Arc<OpenFile>,
        new: &NewAttributes,
    ) -> Result<(), Status> {
        if let Some(bytes) = new.size {
            self.truncate(caller, file, bytes)?;
        }
        caller.act_as(|| {
            set_owner(&**file, new).map_err(change_status_from_errno)?;
            if let Some(mode) = new.mode {
                file.set_mode(granted_permissions(caller, file.file_type(), mode))
                    .map_err(change_status_from_errno)?;
            }
            set_times(file.proc_link(), new)
        })
    }

    pub(super) fn truncate(&self, caller: &Caller, file: &Arc<OpenFile>, bytes: u64) -> Result<(), Status> {
        let file = self.open_for_writing(caller, file)?;
        caller.act_as(|| ftruncate(&*file, bytes).map_err(change_status_from_errno))
    }

    /// Begins a write of that many bytes.
    ///
    /// # Errors
    /// Writing is not allowed there.
    pub fn begin_write(
        &self,
        caller: &Caller,
        handle: &FileHandle,
        offset: u64,
        bytes: usize,
    ) -> Result<FileWrite, Status> {
        let file = self.file_by_handle(handle).and_then(|file| self.open_writable_file(caller, &file))?;
        let end = offset.checked_add(bytes as u64);
        if end.is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(Status::FileTooBig);
        }
        let _lock = self.locks.lock_file(&file);
        let changes = self.locks.change_counter(&file).load(Ordering::Acquire);
        let before = Some(file.attributes()?.size_and_times());
        let (handle, caller, file) = (*handle, *caller, Some(file));
        Ok(FileWrite { handle, caller, file, offset, written: 0, failed: None, before, changes })
    }

    /// Writes a piece; `put` writes as much as it can at an offset.
    pub fn write_piece(
        &self,
        writing: &mut FileWrite,
        bytes: usize,
        mut put: impl FnMut(&OpenFile, u64) -> rustix::io::Result<usize>,
    ) {
        let file = match self.open_write_target(writing) {
            Ok(file) => file,
            Err(status) => return writing.failed = Some(status),
        };
        let _lock = self.locks.lock_for_next_piece(&file, writing);
        let FileWrite { caller, offset, written, .. } = &mut *writing;
        let end = *written + bytes;
        let done = caller.act_as(|| {
            while *written < end {
                match retry_on_intr(|| put(&file, *offset + *written as u64))
                    .map_err(change_status_from_errno)?
                {
                    // As if the disk were full: the client sends the rest again, and then receives the
                    // reason.
                    0 => return Err(Status::NoSpace),
                    count => *written += count,
                }
            }
            Ok(())
        });
        if writing.written > 0 {
            file.record_write(&self.closing);
        }
        writing.failed = done.err();
    }

    fn open_write_target(&self, writing: &mut FileWrite) -> Result<Arc<OpenFile>, Status> {
        let FileWrite { handle, caller, file, .. } = writing;
        if file.is_none() {
            *file =
                Some(self.file_by_handle(handle).and_then(|found| self.open_writable_file(caller, &found))?);
        }
        Ok(file.clone().expect("it is open"))
    }

    /// Ends a write, and returns how many bytes were written. A stable write is on the disk by then.
    pub fn end_write(&self, mut writing: FileWrite, stability: Stability) -> ChangeResult<usize> {
        let file = match self.open_write_target(&mut writing) {
            Ok(file) => file,
            Err(status) => return (Err(status), self.unchanged_attributes(&writing.handle)),
        };
        let changed = {
            let _lock = self.locks.lock_for_next_piece(&file, &mut writing);
            WeakCacheConsistency { before: writing.before, after: file.attributes().ok() }
        };
        let done = match writing {
            FileWrite { written: 0, failed: Some(status), .. } => Err(status),
            // The client sends the rest again, and then gets the reason.
            FileWrite { written, .. } => self.sync_file(&file, stability).map(|()| written),
        };
        (done, changed)
    }

    /// Makes sure that what was written to a file is on the disk.
    pub fn commit(&self, caller: &Caller, file: &FileHandle) -> ChangeResult<()> {
        match self.file_by_handle(file).and_then(|file| self.open_writable_file(caller, &file)) {
            Ok(file) => change_with_attributes(&file, || self.sync_file(&file, Stability::FileSync)),
            Err(status) => (Err(status), self.unchanged_attributes(file)),
        }
    }

    /// Synchronises files that were closed before, except for some. More descriptors than that must not wait
    /// for the disk.
    pub(super) fn sync_closed_files(&self, left: usize) {
        self.closing.sync_until_at_most(left, || self.verifier.change_verifier());
    }

    fn sync_file(&self, file: &OpenFile, stability: Stability) -> Result<(), Status> {
        let synchronise = match stability {
            Stability::Unstable => return Ok(()),
            Stability::DataSync => fdatasync::<&OpenFile>,
            Stability::FileSync => fsync::<&OpenFile>,
        };
        self.closing.sync_file(file.identity(), || self.verifier.change_verifier());
        // The kernel reports lost data once per descriptor: later callers notice it by the changed verifier.
        let _settling = file.begin_sync();
        let settled = synchronise(file);
        settled.map_err(|error| self.on_lost_data(error))
    }

    /// Earlier writes may be lost: a changed verifier makes clients send them again.
    fn on_lost_data(&self, error: Errno) -> Status {
        self.verifier.change_verifier();
        change_status_from_errno(error)
    }

    /// Makes sure that a change of a directory, or of attributes, is on the disk: a client does not repeat a
    /// reported change, so all procedures but an unstable WRITE are answered only then (RFC 1813, section
    /// 4.7).
    pub(super) fn sync_change(&self, file: &OpenFile) -> Result<(), Status> {
        if file.is_readable() || file.is_writable() {
            return self.sync_file(file, Stability::FileSync);
        }
        let settled = match file.reopen() {
            Ok(open) => fsync(open),
            // No descriptor of it can be synchronised: it is a link, or the server's user may not read it.
            Err(_) => syncfs(self.root.reopen()?),
        };
        settled.map_err(|error| self.on_lost_data(error))
    }

    /// Adds a name to a file.
    pub fn link(
        &self,
        caller: &Caller,
        file: &OpenFile,
        directory: &OpenFile,
        name: &[u8],
    ) -> ChangeResult<()> {
        let (done, changed) = {
            let _lock = self.locks.lock_file(directory);
            change_with_attributes(directory, || {
                let name = check_new_name(directory, name)?;
                if file.file_type() == FileType::Directory {
                    return Err(Status::IsDirectory);
                }
                let link = || linkat(CWD, file.proc_link(), directory, &*name, AtFlags::SYMLINK_FOLLOW);
                caller.act_as(|| link().map_err(change_status_from_errno))
            })
        };
        (done.and_then(|()| self.sync_change(directory)), changed)
    }

    /// Removes a name of an empty directory or of any other file.
    pub fn remove(
        &self,
        caller: &Caller,
        directory: &OpenFile,
        name: &[u8],
        is_directory: bool,
    ) -> ChangeResult<()> {
        let (done, changed) = {
            let _lock = self.locks.lock_file(directory);
            change_with_attributes(directory, || {
                let name = check_existing_name(directory, name)?;
                let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                let removed = self.open_unlink_target(directory, &name);
                caller.act_as(|| unlinkat(directory, &*name, flags).map_err(change_status_from_errno))?;
                Ok(removed)
            })
        };
        let settle = |removed| {
            self.forget_removed(removed);
            self.sync_change(directory)
        };
        (done.and_then(settle), changed)
    }

    /// Renames, replacing a file with the new name. Also returns the attributes of the target directory.
    pub fn rename(
        &self,
        caller: &Caller,
        (from, name): (&OpenFile, &[u8]),
        (to, new): (&OpenFile, &[u8]),
    ) -> (ChangeResult<()>, WeakCacheConsistency) {
        let locks = self.locks.lock_two_files(from, to);
        let mut target = WeakCacheConsistency { before: None, after: None };
        let done = change_with_attributes(from, || {
            let (done, changed) = change_with_attributes(to, || {
                let (name, entry) = (check_existing_name(from, name)?, check_existing_name(to, new)?);
                let replaced = self.open_unlink_target(to, &entry);
                caller.act_as(|| renameat(from, &*name, to, &*entry).map_err(change_status_from_errno))?;
                // Records its new location, so that its handle stays valid.
                let _ = self.lookup(&Caller::Server, to, new);
                Ok(replaced)
            });
            target = changed;
            done
        });
        drop(locks);
        let (done, source) = done;
        let settle = |replaced| {
            self.forget_removed(replaced);
            self.sync_change(to).and_then(|()| self.sync_change(from))
        };
        ((done.and_then(settle), source), target)
    }

    /// Closes a file that lost a name; if it was the last name, its disk space becomes free, and its handle
    /// is forgotten. May wait for the disk: no lock is held.
    fn forget_removed(&self, file: Option<UnlinkTarget>) {
        let Some(UnlinkTarget { identity, file }) = file else { return };
        self.open_files.close(identity);
        if file::stat(&file).is_ok_and(|stat| stat.stx_nlink == 0) {
            self.index.remove(identity);
        }
    }

    /// A file that will lose a name.
    fn open_unlink_target(&self, directory: &OpenFile, name: &CStr) -> Option<UnlinkTarget> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, name, flags, Mode::empty()).ok()?;
        let stat = file::stat(&file).ok()?;
        Some(UnlinkTarget { identity: self.identify(&stat, &file, c"").ok()?, file })
    }

    /// The file, open to be written. No lock is held, because too many closed files are waited for.
    fn open_writable_file(&self, caller: &Caller, file: &Arc<OpenFile>) -> Result<Arc<OpenFile>, Status> {
        let is_new = !file.is_writable();
        let writable = self.open_for_writing(caller, file)?;
        if is_new {
            self.sync_closed_files(CLOSING_MAX);
        }
        Ok(writable)
    }

    fn open_for_writing(&self, caller: &Caller, file: &Arc<OpenFile>) -> Result<Arc<OpenFile>, Status> {
        file.check_access(caller, Access::WRITE_OK)?;
        if file.is_writable() {
            return Ok(Arc::clone(file));
        }
        let writable = Arc::new(file.reopen_for_writing()?);
        self.open_files.insert(Arc::clone(&writable));
        Ok(writable)
    }

    /// The attributes of a file that was not changed.
    pub fn unchanged_attributes(&self, file: &FileHandle) -> WeakCacheConsistency {
        WeakCacheConsistency::unchanged(self.file_by_handle(file).and_then(|file| file.attributes()).ok())
    }

    /// The verifier for replies to writes; it changes if written data may be lost.
    pub fn write_verifier(&self) -> Verifier {
        self.verifier.current_verifier()
    }
}

/// A file that will lose a name, opened to see whether it has others.
struct UnlinkTarget {
    identity: FileIdentity,
    file: OwnedFd,
}

pub(super) fn check_new_name(directory: &OpenFile, name: &[u8]) -> Result<CString, Status> {
    match name {
        b"." | b".." => Err(Status::Exists),
        name => checked_entry_name(directory, name),
    }
}

fn check_existing_name(directory: &OpenFile, name: &[u8]) -> Result<CString, Status> {
    match name {
        b"." | b".." => Err(Status::Invalid),
        name => checked_entry_name(directory, name),
    }
}
