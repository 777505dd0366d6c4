//! The exported directory: handles, files, attributes and listings; nothing outside of it is accessible.
//!
//! A handle has the file's *identity* (file system, inode number, time of birth) and a MAC. The index has the
//! file's location: its parent's identity and its name. A file opened there must have the identity of the
//! handle, or the handle is stale. So neither a forged handle, nor a damaged index, nor a symbolic link, nor
//! `..` leads outside: every path is walked beneath the root (`openat2(2)`, `RESOLVE_BENEATH`), and the path
//! of an open file is checked again before each use. With the right to open files by the kernel's own handles
//! (`CAP_DAC_READ_SEARCH`), the process uses them only to find the path of a file that is not where the index
//! says.

mod attributes;
mod caller;
mod changes;
mod closing;
mod creating;
mod exclusive;
mod file;
mod file_system_identity;
mod file_system_numbers;
mod file_systems;
mod handle;
mod identity;
mod index;
mod limits;
mod listing;
mod local;
mod magic_numbers;
mod open_files;
mod state;
mod sweep;
#[cfg(test)]
mod tests;
mod time;
mod waiting;

use nocopy_proto::errno::ErrorCause;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nocopy::integration::KernelHandle;
use rustix::fs::{Access, CWD, Mode, OFlags, ResolveFlags, StatVfs, Statx, openat, openat2, readlinkat};
use rustix::io::Errno;

use crate::wire::nfs3::{Attributes, FileHandle, FileType, Status};
pub use caller::{Caller, ImpersonationError, User};
pub use changes::{ChangeResult, FileWrite};
use changes::{FileLocks, WriteVerifier};
use closing::UnsyncedFiles;
use exclusive::ExclusiveFiles;
use file::file_type_from_stat;
pub use file::{OpenFile, status_from_errno};
pub use file_system_identity::FileSystemName;
use file_systems::FileSystems;
use handle::HandleKey;
use identity::FileIdentity;
use index::{FileIndex, FileLocation, SaveState};
pub use limits::FileSystemLimits;
use listing::ListingCache;
pub use listing::{Listing, ListingEntry};
use open_files::OpenFiles;
use state::ExportState;
pub use state::StateError;
use sweep::IndexSweep;
pub(crate) use waiting::run_without_blocking;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("{path}: cannot be exported{cause}; name a directory that this user can read", path = path.display(), cause = ErrorCause(.source))]
    Directory { path: PathBuf, source: io::Error },
    #[error("{path}: cannot be exported safely{cause}; openat2(2) keeps clients inside the directory, and this kernel lacks it; use Linux 5.6 or newer", path = path.display(), cause = ErrorCause(.source))]
    Kernel { path: PathBuf, source: io::Error },
    #[error("/proc: cannot be read{cause}; mount it, because the server opens and checks files through it", cause = ErrorCause(.source))]
    NoProc { source: io::Error },
    #[error(transparent)]
    State(#[from] StateError),
}

/// A directory whose files can be read by handles. Any thread may use it.
#[derive(Debug)]
pub struct Export {
    root: Arc<OpenFile>,
    path: PathBuf,
    /// The directory as named by the user, possibly through links.
    given_path: PathBuf,
    key: HandleKey,
    file_systems: FileSystems,
    index: FileIndex,
    sweep: IndexSweep,
    open_files: OpenFiles,
    closing: Arc<UnsyncedFiles>,
    listings: ListingCache,
    changes: AtomicU64,
    locks: FileLocks,
    exclusive: ExclusiveFiles,
    verifier: WriteVerifier,
    /// A file on the file system, by which others are opened with kernel handles; `None` if that is not
    /// permitted.
    handle_mount: Option<OwnedFd>,
}

/// A file found in a directory.
#[derive(Debug, Clone, Copy)]
pub struct FileInfo {
    pub handle: FileHandle,
    pub attributes: Attributes,
}

impl Export {
    /// Exports a directory; key and index are kept in `state`, or in a private directory of this user for
    /// each export.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub fn open(directory: &Path, state: Option<&Path>) -> Result<Self, ExportError> {
        Self::open_named(directory, state, None)
    }

    /// As [`open`](Self::open), with a name of the file system by which handles know it.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub fn open_named(
        directory: &Path,
        state: Option<&Path>,
        file_system: Option<FileSystemName>,
    ) -> Result<Self, ExportError> {
        let refused = |source: io::Error| ExportError::Directory { path: directory.to_owned(), source };
        let path = directory.canonicalize().map_err(refused)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, &path, flags, Mode::empty()).map_err(|error| refused(error.into()))?;
        open_beneath(&root, Path::new("."), OFlags::DIRECTORY).map_err(|error| match error {
            Errno::NOSYS => ExportError::Kernel { path: path.clone(), source: error.into() },
            error => refused(error.into()),
        })?;
        let stat = file::stat(&root).map_err(|error| refused(error.into()))?;
        readlinkat(CWD, descriptor_path(root.as_raw_fd()), Vec::new())
            .map_err(|error| ExportError::NoProc { source: error.into() })?;
        let ExportState { key, index, numbers, exclusive } = ExportState::open(state, &path)?;
        let named = file_system.map(|FileSystemName(name)| name);
        let file_systems =
            FileSystems::new(&path, &root, &stat, named, (numbers, &index)).map_err(refused)?;
        let (identity, mount) = (file_systems.root(), open_mount_for_handles(&root));
        let root = Arc::new(OpenFile::new(root, identity, file_type_from_stat(&stat)));
        Ok(Self {
            key: HandleKey::new(key, root.identity(), &file_systems.former_roots()),
            file_systems,
            index,
            sweep: IndexSweep::default(),
            open_files: OpenFiles::new(),
            closing: Arc::default(),
            listings: ListingCache::new(key),
            changes: AtomicU64::new(0),
            locks: FileLocks::default(),
            exclusive,
            verifier: WriteVerifier::new().map_err(refused)?,
            handle_mount: mount,
            given_path: std::path::absolute(directory).map_err(refused)?,
            root,
            path,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The part of a path below the exported directory; `/` means that directory, too.
    pub fn path_inside<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        let below = |root: &Path| path.strip_prefix(root).ok();
        let root = Path::new("/");
        below(&self.path)
            .or_else(|| below(&self.given_path))
            .or_else(|| (path == root).then(|| Path::new("")))
    }

    /// When its handles end although the files exist, in words; `None` if they stay valid.
    pub fn handle_expiry_text(&self) -> Option<&'static str> {
        self.file_systems.expiry_text()
    }

    pub fn root_handle(&self) -> FileHandle {
        self.key.make_handle(self.root.identity())
    }

    /// The handle of the file at a path from the root, through directories only.
    ///
    /// # Errors
    /// There is no such file, or the caller may not search a directory on the way.
    pub fn walk(&self, caller: &Caller, path: &Path) -> Result<FileHandle, Status> {
        let mut at = self.root_handle();
        for part in path.components() {
            match part {
                Component::Normal(name) => {
                    at = self.lookup(caller, &*self.file_by_handle(&at)?, name.as_bytes())?.handle;
                }
                Component::CurDir => {}
                _ => return Err(Status::NoEntry),
            }
        }
        Ok(at)
    }

    /// The file of a handle, open at least for its attributes.
    ///
    /// # Errors
    /// [`Status::BadHandle`]: another server made the handle. [`Status::Stale`]: the file is no longer at its
    /// location, or another file system is exported than before.
    pub fn file_by_handle(&self, handle: &FileHandle) -> Result<Arc<OpenFile>, Status> {
        match self.key.decode_handle(handle) {
            Some(identity) => self.open_by_identity(identity),
            None if self.key.is_from_former_export(handle) => Err(Status::Stale),
            None => Err(Status::BadHandle),
        }
    }

    /// Whether a file, or a name in it, is found without waiting for the disk, another host or another
    /// program. A hint, which may be wrong by the next call.
    pub fn is_found_without_waiting(&self, handle: &FileHandle, name: Option<&[u8]>) -> bool {
        let Some(identity) = self.key.decode_handle(handle) else { return true };
        let root = self.root.identity();
        let open =
            if identity == root { Some(Arc::clone(&self.root)) } else { self.open_files.peek(identity) };
        let from = open.as_ref().unwrap_or(&self.root);
        if !from.is_local() {
            return false;
        }
        let path = if open.is_some() { Some(PathBuf::new()) } else { self.index.path(identity, root) };
        match (path, name) {
            (None, _) => false,
            (Some(_), None) if open.is_some() => true,
            (Some(mut path), name) => {
                // With a slash behind it, what is no directory is found, and not opened.
                path.push(OsStr::from_bytes(name.unwrap_or_default()));
                let how = ResolveFlags::BENEATH | ResolveFlags::CACHED | ResolveFlags::NO_XDEV;
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match openat2(&**from, path, flags, Mode::empty(), how) {
                    // EINVAL: this kernel does not report it (before Linux 5.12).
                    Ok(_) | Err(Errno::INVAL) => true,
                    Err(Errno::NOTDIR) if name.is_none() => true,
                    Err(Errno::AGAIN) => false,
                    // It is on another file system, or above the directory. A name with a slash is refused
                    // without a look.
                    Err(Errno::XDEV) => name.is_some_and(|name| name.contains(&b'/')),
                    // The directory has no such name. Otherwise the file may have been moved, and must be
                    // searched for.
                    Err(_) => open.is_some(),
                }
            }
        }
    }

    /// A file whose content can be read: a regular file or a directory.
    ///
    /// # Errors
    /// As [`file_by_handle`](Self::file_by_handle); also if caller or server may not read it.
    pub fn readable_file(&self, caller: &Caller, handle: &FileHandle) -> Result<Arc<OpenFile>, Status> {
        let file = self.file_by_handle(handle)?;
        file.check_access(caller, Access::READ_OK)?;
        if file.is_readable() {
            return Ok(file);
        }
        let readable = Arc::new(file.reopen()?);
        if file.identity() != self.root.identity() {
            self.open_files.insert(Arc::clone(&readable));
        }
        Ok(readable)
    }

    /// Looks a name up in a directory.
    ///
    /// # Errors
    /// There is no such name, it is invalid, or the caller may not search there.
    pub fn lookup(&self, caller: &Caller, directory: &OpenFile, name: &[u8]) -> Result<FileInfo, Status> {
        if directory.file_type() != FileType::Directory {
            return Err(Status::NotDirectory);
        }
        match name {
            b"." | b".." if !directory.may_access(caller, Access::EXEC_OK) => return Err(Status::Access),
            b"." => return self.file_info_from_stat(directory.identity(), &directory.stat()?),
            b".." => {
                let parent = self.parent_directory(directory.identity())?;
                return self.file_info_from_stat(parent.identity(), &parent.stat()?);
            }
            _ => {}
        }
        // Not followed if it is a link.
        let name = checked_entry_name(directory, name)?;
        let refused = |error| {
            // A removed directory has no names, and is reported as removed.
            directory.stat().err().unwrap_or_else(|| status_from_errno(error, Status::NoEntry))
        };
        let stat = caller.act_as(|| file::stat_at(directory, &name).map_err(refused))?;
        let identity = self.identify(&stat, directory, &name)?;
        self.record_location(identity, directory.identity(), directory, &name);
        self.file_info_from_stat(identity, &stat)
    }

    /// The entries of a directory after a cookie, in the order of their cookies; after 0 the current ones.
    ///
    /// # Errors
    /// It is not a directory, or caller or server may not read it.
    pub fn list(&self, caller: &Caller, directory: &OpenFile, cookie: u64) -> Result<Arc<Listing>, Status> {
        if directory.file_type() != FileType::Directory {
            return Err(Status::NotDirectory);
        }
        directory.check_access(caller, Access::READ_OK)?;
        let parent = self.parent_directory(directory.identity())?;
        self.listings.get(directory, parent.identity(), cookie)
    }

    /// The file of a listed entry, possibly as of a moment ago; `None` if it no longer exists. Permissions
    /// are checked before.
    pub fn listed_file_info(
        &self,
        directory: &OpenFile,
        listing: &Listing,
        name: &ListingEntry,
    ) -> Option<FileInfo> {
        // Read first, so that a change in between counts as not seen.
        let changes = self.changes.load(Ordering::Acquire);
        listing.entry_info(name, changes, || self.lookup(&Caller::Server, directory, &name.bytes).ok())
    }

    /// Notes a change through this server: attributes found before are not reused.
    pub(crate) fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// It is not a link.
    pub fn read_link(&self, link: &OpenFile) -> Result<Vec<u8>, Status> {
        if link.file_type() != FileType::SymbolicLink {
            return Err(Status::Invalid);
        }
        let path = rustix::fs::readlinkat(link, c"", Vec::new());
        path.map(std::ffi::CString::into_bytes).map_err(|error| status_from_errno(error, Status::Stale))
    }

    /// Sizes of the file system of a file.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn file_system_sizes(&self, file: &OpenFile) -> Result<StatVfs, Status> {
        rustix::fs::fstatvfs(file).map_err(|error| status_from_errno(error, Status::Stale))
    }

    /// Makes handles valid for the next server, too: must be called before a reply with a new handle is sent.
    ///
    /// # Errors
    /// The index cannot be written.
    pub fn save_index(&self) -> io::Result<()> {
        // A thread that must not wait has found no new handle.
        if waiting::is_blocking_forbidden() { Ok(()) } else { self.index.save() }
    }

    /// To be called from time to time, by a thread that may wait for disks: closes unused files, and writes
    /// the index to the disk.
    pub fn run_maintenance(&self) {
        self.file_systems.forget_mounts();
        self.open_files.close_unused();
        self.sync_closed_files(0);
        self.listings.drop_expired_attributes();
        self.sweep_index();
        self.index.compact_or_sync();
    }

    fn identify(&self, stat: &Statx, directory: impl AsFd, name: &CStr) -> Result<FileIdentity, Status> {
        self.file_systems.identify(stat, directory, name, &self.index)
    }

    fn record_location(
        &self,
        identity: FileIdentity,
        parent: FileIdentity,
        directory: impl AsFd,
        name: &CStr,
    ) {
        if identity == self.root.identity() {
            return;
        }
        let mount = self.handle_mount_of(identity);
        let known = self.index.save_state(identity, parent, name.to_bytes(), mount.is_some());
        if known == SaveState::Saved || !waiting::may_block() || known == SaveState::Unsaved {
            return;
        }
        let handle = mount.and_then(|_| KernelHandle::of(directory, name).ok());
        self.index.insert(identity, FileLocation { parent, name: name.to_bytes().into(), handle });
    }

    /// Its mount, if the file can be opened there with a kernel handle: it is on the file system of the
    /// exported directory.
    fn handle_mount_of(&self, identity: FileIdentity) -> Option<&OwnedFd> {
        self.handle_mount.as_ref().filter(|_| identity.file_system == self.root.identity().file_system)
    }

    fn file_info_from_stat(&self, identity: FileIdentity, stat: &Statx) -> Result<FileInfo, Status> {
        Ok(FileInfo {
            handle: self.key.make_handle(identity),
            attributes: file::attributes_from_stat(stat, identity.file_system),
        })
    }

    /// The parent of a directory; that of the root is the root.
    fn parent_directory(&self, directory: FileIdentity) -> Result<Arc<OpenFile>, Status> {
        let root = self.root.identity();
        if directory == root {
            return Ok(Arc::clone(&self.root));
        }
        let parent = self.index.parent(directory);
        self.open_by_identity(parent.ok_or(Status::Stale)?)
    }

    fn open_by_identity(&self, identity: FileIdentity) -> Result<Arc<OpenFile>, Status> {
        if identity == self.root.identity() {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(open) = self.open_files.get_valid(identity, |open| self.is_beneath(open)) {
            return Ok(open);
        }
        let file = self.open_at_index_path(identity).or_else(|status| {
            // Renamed, perhaps while no server ran.
            let may_search = status == Status::Stale && waiting::may_block();
            let is_learned = may_search && self.relocate_by_handle(identity).is_some();
            if is_learned { self.open_at_index_path(identity) } else { Err(status) }
        })?;
        self.open_files.insert(Arc::clone(&file));
        Ok(file)
    }

    fn open_at_index_path(&self, identity: FileIdentity) -> Result<Arc<OpenFile>, Status> {
        let path = self.index.path(identity, self.root.identity()).ok_or(Status::Stale)?;
        let (file, stat) = self.open_below(&path).map_err(|error| status_from_errno(error, Status::Stale))?;
        let is_it = self.identify(&stat, &file, c"")? == identity;
        let found = || Arc::new(OpenFile::new_below(file, identity, file_type_from_stat(&stat), &self.root));
        is_it.then(found).ok_or(Status::Stale)
    }

    fn open_below(&self, path: &Path) -> rustix::io::Result<(OwnedFd, Statx)> {
        let file = open_beneath(self.root.as_fd(), path, OFlags::NOFOLLOW)?;
        let stat = file::stat(&file)?;
        Ok((file, stat))
    }

    /// Asks the kernel where a file is now, and notes that in the index. Like every entry it is checked at
    /// use, so a file outside is not found by it.
    fn relocate_by_handle(&self, identity: FileIdentity) -> Option<()> {
        let location = self.index.location(identity)?;
        self.handle_mount_of(identity)?;
        if self.is_removed(&location) {
            self.index.remove(identity);
            return None;
        }
        let file = self.open_by_kernel_handle(&location)?;
        // Since the start of the machine the kernel knows only names that were used, except those of
        // directories.
        let path =
            self.path_below_root(&file).or_else(|| self.path_by_inode(location.parent, identity.inode))?;
        let (mut below, mut parent) = (PathBuf::new(), self.root.identity());
        for name in path.components() {
            let (directory, _) = self.open_below(&Path::new(".").join(&below)).ok()?;
            below.push(name);
            let (file, stat) = self.open_below(&below).ok()?;
            let found = self.identify(&stat, file, c"").ok()?;
            self.record_location(found, parent, directory, &CString::new(name.as_os_str().as_bytes()).ok()?);
            parent = found;
        }
        Some(())
    }

    /// Opens a file by the kernel's handle, only to find its path.
    fn open_by_kernel_handle(&self, location: &FileLocation) -> Option<OpenFile> {
        let file = location.handle.as_ref()?.open(self.handle_mount.as_ref()?).ok()?;
        Some(OpenFile::new(file, self.root.identity(), FileType::Regular))
    }

    fn path_by_inode(&self, directory: FileIdentity, inode: u64) -> Option<PathBuf> {
        let path = if directory == self.root.identity() {
            PathBuf::new()
        } else {
            let location = self.index.location(directory)?;
            self.path_below_root(&self.open_by_kernel_handle(&location)?)?
        };
        let (opened, _) = self.open_below(&Path::new(".").join(&path)).ok()?;
        Some(path.join(OsStr::from_bytes(&listing::find_name_by_inode(opened, inode)?)))
    }

    fn is_beneath(&self, file: &OpenFile) -> bool {
        self.path_below_root(file).is_some()
    }

    /// The path of an open file from the root on; `None` if it lies elsewhere, or that cannot be told.
    fn path_below_root(&self, file: &OpenFile) -> Option<PathBuf> {
        let (root, path) = (self.root.path().ok()?, file.path().ok()?);
        let (root, path) = (root.to_bytes(), path.to_bytes());
        // The kernel's mark of a removed name; the file may have others, outside. (A file with such a name is
        // opened again.)
        if path.ends_with(b" (deleted)") {
            return None;
        }
        let rest = path.strip_prefix(root)?;
        let is_below = root == b"/" || rest.starts_with(b"/");
        is_below.then(|| OsStr::from_bytes(rest.strip_prefix(b"/").unwrap_or(rest)).into())
    }
}

/// The root, opened so that files on its file system can be opened by handles, if this process may do that.
fn open_mount_for_handles(root: impl AsFd) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mount = openat(root, c".", flags, Mode::empty()).ok()?;
    let is_permitted = KernelHandle::of(&mount, c"").is_ok_and(|handle| handle.open(&mount).is_ok());
    is_permitted.then_some(mount)
}

/// Checks a name as one component of a path below a directory. Only '..' could lead out of the directory.
/// (The kernel refuses too long ones.)
fn checked_entry_name(directory: &OpenFile, name: &[u8]) -> Result<CString, Status> {
    if directory.file_type() != FileType::Directory {
        return Err(Status::NotDirectory);
    }
    if name.is_empty() || name.contains(&b'/') {
        return Err(Status::Invalid);
    }
    CString::new(name).map_err(|_| Status::Invalid)
}

/// Opens a path for attributes, without following symbolic links, and not outside of the directory.
fn open_beneath(root: impl AsFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // EAGAIN: a concurrent renaming made the result uncertain.
    (0..8)
        .find_map(|_| match openat2(&root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => None,
            done => Some(done),
        })
        .unwrap_or(Err(Errno::AGAIN))
}

/// The name of a descriptor of this process, below /proc.
fn descriptor_path(number: i32) -> std::ffi::CString {
    std::ffi::CString::new(format!("/proc/self/fd/{number}")).expect("digits have no zero byte")
}
