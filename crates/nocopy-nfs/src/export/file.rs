//! An open file, and its attributes.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{
    Access, AtFlags, CWD, FileType as Kind, Mode, OFlags, Statx, StatxFlags, StatxTimestamp, chmodat, openat,
    readlinkat, statx,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::caller::{Caller, User, may_access};
use super::closing::{UnsyncedFiles, UnsyncedWrites};
use super::descriptor_path;
use super::identity::FileIdentity;
use super::local::is_local_file_system;
use super::time::is_past_time_step;
use crate::wire::nfs3::{Attributes, FileType, Status, Time};

/// For files that are used less often (made, written and closed), opening their link costs more than it
/// saves.
const UNOPENED_READS: u32 = 3;

#[derive(Debug)]
pub struct OpenFile {
    file: Arc<OwnedFd>,
    identity: FileIdentity,
    file_type: FileType,
    /// The file, opened for reading and not only for its attributes.
    is_readable: bool,
    is_writable: bool,
    /// Whether threads that serve others may ask for its attributes.
    is_local: bool,
    /// Its name below /proc.
    link: CString,
    /// The link in /proc, opened after a few uses: reading it then costs half as much as by name.
    opened_link: OnceLock<Option<OwnedFd>>,
    /// How often the link was read.
    link_reads: AtomicU32,
    /// The last answer of the kernel, since asking takes as long as a short read.
    permission: Mutex<Option<CachedPermission>>,
    /// Held while it is synchronised.
    sync_lock: Mutex<()>,
    unsynced: UnsyncedWrites,
}

/// Held while the permissions of a file are changed, also for a moment only, so that no change by a client is
/// undone. Files share them by their inode numbers.
static MODE_LOCKS: [Mutex<()>; 16] = [const { Mutex::new(()) }; 16];

/// A permission of a user, valid as long as the file was not changed: permissions and owners do not change
/// without that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CachedPermission {
    user: User,
    access: Access,
    changed: Time,
}

impl OpenFile {
    pub(super) fn new(file: OwnedFd, identity: FileIdentity, file_type: FileType) -> Self {
        let is_local = is_local_file_system(&file);
        Self::with_locality(file, identity, file_type, is_local)
    }

    /// As [`new`](Self::new); what is on the file system of `root` is not asked again where it is.
    pub(super) fn new_below(file: OwnedFd, identity: FileIdentity, file_type: FileType, root: &Self) -> Self {
        match identity.file_system == root.identity.file_system {
            true => Self::with_locality(file, identity, file_type, root.is_local),
            false => Self::new(file, identity, file_type),
        }
    }

    /// As [`new`](Self::new), on a file system that is known.
    fn with_locality(file: OwnedFd, identity: FileIdentity, file_type: FileType, is_local: bool) -> Self {
        let link = descriptor_path(file.as_raw_fd());
        Self {
            file: Arc::new(file),
            identity,
            file_type,
            is_readable: false,
            is_writable: false,
            is_local,
            link,
            opened_link: OnceLock::new(),
            link_reads: AtomicU32::new(0),
            permission: Mutex::default(),
            sync_lock: Mutex::default(),
            unsynced: UnsyncedWrites::default(),
        }
    }

    /// A new file in a directory, open for reading and writing.
    pub(super) fn new_created(file: OwnedFd, identity: FileIdentity, directory: &Self) -> Self {
        let made = Self::with_locality(file, identity, FileType::Regular, directory.is_local);
        Self { is_readable: true, is_writable: true, ..made }
    }

    pub(super) fn is_local(&self) -> bool {
        self.is_local
    }

    /// The same file by another descriptor.
    fn with_descriptor(&self, file: OwnedFd) -> Self {
        Self::with_locality(file, self.identity, self.file_type, self.is_local)
    }

    pub(super) fn identity(&self) -> FileIdentity {
        self.identity
    }

    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    pub(super) fn is_readable(&self) -> bool {
        self.is_readable
    }

    /// The same file, opened for reading: never a device, a FIFO or a link.
    pub(super) fn reopen(&self) -> Result<Self, Status> {
        let flags = match self.file_type {
            FileType::Regular => OFlags::NONBLOCK | OFlags::NOCTTY,
            FileType::Directory => OFlags::DIRECTORY,
            _ => return Err(Status::Invalid),
        };
        // Opened through the descriptor, so it is this very file even if it was moved.
        let file = openat(CWD, &self.link, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| status_from_errno(error, Status::Stale))?;
        Ok(Self { is_readable: true, ..self.with_descriptor(file) })
    }

    /// Notes a write that was made, and is not synchronised.
    pub(super) fn record_write(&self, closing: &Arc<UnsyncedFiles>) {
        self.unsynced.record_write(closing, self.identity, &self.file);
    }

    /// To be held while it is synchronised; writes from now on are not.
    pub(super) fn begin_sync(&self) -> MutexGuard<'_, ()> {
        let settling = self.sync_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.unsynced.clear();
        settling
    }

    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The same file, opened for writing, and for reading if that is allowed, too.
    pub(super) fn reopen_for_writing(&self) -> Result<Self, Status> {
        match self.file_type {
            FileType::Regular => {}
            FileType::Directory => return Err(Status::IsDirectory),
            _ => return Err(Status::Invalid),
        }
        let always = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = |flags| openat(CWD, &self.link, flags | always, Mode::empty());
        let opened = match open(OFlags::RDWR) {
            Err(Errno::ACCESS) => open(OFlags::WRONLY).map(|file| (file, false)),
            opened => opened.map(|file| (file, true)),
        };
        let (file, is_readable) = match opened {
            Err(Errno::ACCESS) => (self.open_as_owner()?, true),
            opened => opened.map_err(|error| status_from_errno(error, Status::Stale))?,
        };
        Ok(Self { is_readable, is_writable: true, ..self.with_descriptor(file) })
    }

    fn lock_mode(&self) -> MutexGuard<'static, ()> {
        let number = self.identity.inode as usize % MODE_LOCKS.len();
        MODE_LOCKS[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the permissions, as the user as whom this thread acts.
    pub(super) fn set_mode(&self, mode: Mode) -> rustix::io::Result<()> {
        let _changing = self.lock_mode();
        chmodat(CWD, &self.link, mode, AtFlags::empty())
    }

    /// Clients may continue to write an open file whatever its permissions become, and NFS does not report
    /// when a file is opened: so its owner, who could change the permissions, may always write it. Not a file
    /// with set-user-ID or set-group-ID, which chmod(2) may clear for good.
    fn open_as_owner(&self) -> Result<OwnedFd, Status> {
        let _changing = self.lock_mode();
        let stat = self.stat()?;
        let mode = u32::from(stat.stx_mode) & 0o7777;
        if stat.stx_uid != geteuid().as_raw() || mode & 0o6000 != 0 {
            return Err(Status::Access);
        }
        let set = |mode| chmodat(CWD, &self.link, Mode::from_raw_mode(mode), AtFlags::empty());
        let refused = |error| status_from_errno(error, Status::Stale);
        let opening = mode | 0o600;
        set(opening).map_err(refused)?;
        let opened = openat(CWD, &self.link, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        // A program of this host may have set others meanwhile: those stay.
        if u32::from(self.stat()?.stx_mode) & 0o7777 == opening {
            set(mode).map_err(refused)?;
        }
        opened.map_err(refused)
    }

    /// Its link below /proc, through which the file itself is changed, wherever it was moved.
    pub(super) fn proc_link(&self) -> &CStr {
        &self.link
    }

    /// Whether a caller may read, write, or execute or search it.
    pub fn may_access(&self, caller: &Caller, access: Access) -> bool {
        let refused = |error| status_from_errno(error, Status::Stale);
        caller.act_as(|| may_access(&self.link, access).map_err(refused)).is_ok()
    }

    /// Checks that a caller may read or write it. (The rights of the server's own user are checked when it is
    /// opened.) NFS does not report when a file is opened, and clients continue to read and write open files:
    /// so a file's owner always may, and users who may execute it may read it. Errors: the caller may not.
    pub(super) fn check_access(&self, caller: &Caller, access: Access) -> Result<(), Status> {
        let Caller::User(user) = caller else { return Ok(()) };
        let attributes = self.attributes()?;
        let found = CachedPermission { user: *user, access, changed: attributes.changed };
        if *self.lock_permission() == Some(found) {
            return Ok(());
        }
        let is_regular = self.file_type == FileType::Regular;
        let is_allowed = self.may_access(caller, access)
            || is_regular && access == Access::READ_OK && self.may_access(caller, Access::EXEC_OK)
            || is_regular && user.is_user_id(attributes.user);
        if !is_allowed {
            return Err(Status::Access);
        }
        if is_past_time_step(attributes.changed) {
            *self.lock_permission() = Some(found);
        }
        Ok(())
    }

    fn lock_permission(&self) -> MutexGuard<'_, Option<CachedPermission>> {
        self.permission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its present path, as the kernel reports it.
    pub(super) fn path(&self) -> rustix::io::Result<CString> {
        let (flags, room) = (OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Vec::with_capacity(256));
        if self.link_reads.fetch_add(1, Ordering::Relaxed) < UNOPENED_READS {
            return readlinkat(CWD, &self.link, room);
        }
        match self.opened_link.get_or_init(|| openat(CWD, &self.link, flags, Mode::empty()).ok()) {
            Some(link) => readlinkat(link, c"", room),
            None => readlinkat(CWD, &self.link, room),
        }
    }

    pub(super) fn stat(&self) -> Result<Statx, Status> {
        let stat = stat(&self.file).map_err(|error| status_from_errno(error, Status::Stale))?;
        // It has no name any more; only this descriptor keeps it.
        if stat.stx_nlink == 0 { Err(Status::Stale) } else { Ok(stat) }
    }

    /// # Errors
    /// [`Status::Stale`]: the file was removed.
    pub fn attributes(&self) -> Result<Attributes, Status> {
        self.stat().map(|stat| attributes_from_stat(&stat, self.identity.file_system))
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// `STATX_MNT_ID_UNIQUE` of linux/stat.h (since Linux 6.8; earlier kernels ignore it).
pub(super) const UNIQUE_MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(UNIQUE_MOUNT);

pub(super) fn stat(file: impl AsFd) -> rustix::io::Result<Statx> {
    statx(file, c"", AtFlags::EMPTY_PATH, WANTED)
}

/// The attributes of a name in a directory, of a link itself.
pub(super) fn stat_at(directory: impl AsFd, name: &CStr) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(directory, name, flags, WANTED)
}

pub(super) fn file_type_from_stat(stat: &Statx) -> FileType {
    match Kind::from_raw_mode(stat.stx_mode.into()) {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::SymbolicLink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        _ => FileType::Regular,
    }
}

/// The attributes of a file on a file system with this number.
pub(super) fn attributes_from_stat(stat: &Statx, file_system: u64) -> Attributes {
    Attributes {
        file_type: file_type_from_stat(stat),
        mode: u32::from(stat.stx_mode) & 0o7777,
        links: stat.stx_nlink,
        user: stat.stx_uid,
        group: stat.stx_gid,
        size: stat.stx_size,
        used: stat.stx_blocks.saturating_mul(512),
        device_major: stat.stx_rdev_major,
        device_minor: stat.stx_rdev_minor,
        file_system,
        file_id: stat.stx_ino,
        accessed: wire_time(stat.stx_atime),
        modified: wire_time(stat.stx_mtime),
        changed: wire_time(stat.stx_ctime),
    }
}

/// Times on the wire range from 1970 to 2106; others are clamped.
fn wire_time(of: StatxTimestamp) -> Time {
    match u32::try_from(of.tv_sec) {
        Ok(seconds) => Time { seconds, nanoseconds: of.tv_nsec },
        Err(_) if of.tv_sec < 0 => Time { seconds: 0, nanoseconds: 0 },
        Err(_) => Time { seconds: u32::MAX, nanoseconds: 999_999_999 },
    }
}

/// The status for an error; `missing` if the file does not exist.
pub fn status_from_errno(error: Errno, missing: Status) -> Status {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => missing,
        Errno::PERM => Status::NotPermitted,
        Errno::ACCESS => Status::Access,
        Errno::NAMETOOLONG => Status::NameTooLong,
        Errno::STALE => Status::Stale,
        Errno::INVAL => Status::Invalid,
        Errno::ISDIR => Status::IsDirectory,
        // Too few descriptors or too little memory, or a concurrent renaming: a later attempt may succeed.
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::INTR => Status::Jukebox,
        _ => Status::Io,
    }
}

/// As [`status_from_errno`], for a change.
pub(super) fn change_status_from_errno(error: Errno) -> Status {
    match error {
        Errno::EXIST => Status::Exists,
        Errno::NOTDIR => Status::NotDirectory,
        Errno::NOTEMPTY => Status::NotEmpty,
        Errno::XDEV => Status::CrossDevice,
        Errno::NOSPC => Status::NoSpace,
        Errno::DQUOT => Status::QuotaExceeded,
        Errno::FBIG => Status::FileTooBig,
        Errno::ROFS => Status::ReadOnlyFileSystem,
        Errno::MLINK => Status::TooManyLinks,
        Errno::TXTBSY => Status::Access,
        Errno::OPNOTSUPP => Status::NotSupported,
        error => status_from_errno(error, Status::NoEntry),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::super::identity::FileSystem;
    use rustix::process::Uid;
    use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

    use super::*;

    /// A user without privileges.
    const OWNER: u32 = 1001;

    fn run_as_owner<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let (user, group) = (Uid::from_raw(OWNER), rustix::process::Gid::from_raw(OWNER));
                set_thread_res_gid(group, group, group).unwrap();
                set_thread_res_uid(user, user, user).unwrap();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A file of that user; `None`, and the test is skipped, if this process may not give files away.
    fn create_owned_file(path: &Path) -> Option<OpenFile> {
        fs::write(path, b"content").unwrap();
        if std::os::unix::fs::chown(path, Some(OWNER), Some(OWNER)).is_err() {
            nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_CHOWN"));
            return None;
        }
        let file = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let of = FileSystem { number: 1, has_volatile_inodes: false };
        let identity = FileIdentity::from_stat(of, &stat(&file).unwrap(), &file, c"");
        Some(OpenFile::new(file, identity, FileType::Regular))
    }

    /// Proves that a change of permissions while a read-only file is opened to write is not undone.
    #[test]
    fn permissions_set_during_an_open_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let Some(file) = create_owned_file(&path) else { return };
        for round in 0..100 {
            file.set_mode(Mode::from_raw_mode(0o444)).unwrap();
            let (start, is_set) = (Barrier::new(2), AtomicBool::new(false));
            let wanted = if round % 2 == 0 { 0o400 } else { 0o440 };
            let open = || {
                start.wait();
                while !is_set.load(Ordering::Relaxed) {
                    assert!(file.reopen_for_writing().unwrap().is_writable());
                }
            };
            thread::scope(|scope| {
                scope.spawn(|| run_as_owner(open));
                start.wait();
                file.set_mode(Mode::from_raw_mode(wanted)).unwrap();
                is_set.store(true, Ordering::Relaxed);
            });
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, wanted, "round {round}");
        }
    }

    #[test]
    fn owners_open_read_only_files_unless_set_id_bits_would_be_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let Some(file) = create_owned_file(&path) else { return };
        for (mode, is_opened) in [(0o444, true), (0o2454, false), (0o4555, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let opened = run_as_owner(|| file.reopen_for_writing().map(drop));
            assert_eq!(opened, if is_opened { Ok(()) } else { Err(Status::Access) }, "{mode:o}");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
        }
    }

    #[test]
    fn times_out_of_range_are_clamped() {
        let at = |tv_sec, tv_nsec| {
            let mut of = stat(std::fs::File::open(".").unwrap()).unwrap().stx_mtime;
            (of.tv_sec, of.tv_nsec) = (tv_sec, tv_nsec);
            wire_time(of)
        };
        assert_eq!(at(7, 9), Time { seconds: 7, nanoseconds: 9 });
        assert_eq!(at(-1, 9), Time { seconds: 0, nanoseconds: 0 });
        assert_eq!(at(1 << 33, 9), Time { seconds: u32::MAX, nanoseconds: 999_999_999 });
    }
}
