//! The number of a file system in handles. It comes from what stays with the file system, because its device
//! number changes with a reboot, and may be another one's then: a UUID, or what the user has named.
//!
//! Of file systems mounted below the exported directory, the place of the mount belongs to the number: a
//! snapshot has the UUID, the inode numbers and the times of what it was made of, and both can be mounted.
//! Where nothing stays, the number is one of this boot.

use std::collections::HashMap;
use std::ffi::{CStr, OsString};
use std::hash::Hasher;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};

use rustix::fs::{CWD, Mode, OFlags, Statx, openat, readlinkat};
use siphasher::sip::SipHasher24;

use super::file::{self, change_status_from_errno};
use super::file_system_identity::{FileSystemIdentity, Mount};
use super::file_system_numbers::FileSystemNumbers;
use super::identity::{self, FileIdentity, FileSystem};
use super::index::FileIndex;
use super::{descriptor_path, file_system_identity, waiting};
use crate::wire::nfs3::Status;

/// With more file systems, those of before are asked again.
const OTHERS_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct FileSystems {
    exported: PathBuf,
    root_device: u64,
    root: FileIdentity,
    of_root: FileSystem,
    /// Whether the kernel's numbers of mounts are never used again (since Linux 6.8).
    has_unique_mounts: bool,
    /// When handles end, in words; `None` if they outlive a reboot.
    expiry: Option<&'static str>,
    /// Others below the exported directory, by device and mount.
    others: RwLock<HashMap<(u64, u64), FileSystem>>,
    numbers: Mutex<FileSystemNumbers>,
}

impl FileSystems {
    /// Begins with that of the exported directory, which the user may have named.
    pub(super) fn new(
        exported: &Path,
        directory: impl AsFd,
        stat: &Statx,
        named: Option<u64>,
        (mut numbers, index): (FileSystemNumbers, &FileIndex),
    ) -> io::Result<Self> {
        let has_volatile_inodes = file_system_identity::has_volatile_inodes(&directory)?;
        let known = match named {
            Some(name) => FileSystemIdentity::Name(name),
            None => {
                FileSystemIdentity::of_open_file(&directory, stat, Mount::of_open_file(&directory).as_ref())?
            }
        };
        let natural = number_from_identity(&known, Path::new(""));
        let (inode, generation) =
            (stat.stx_ino, identity::generation(stat, &directory, c"", has_volatile_inodes));
        let device = identity::device_number(stat);
        let number = numbers.handle_number(natural, |unclaimed| {
            let roots = index.roots();
            let is_it = |one: &u64| roots.contains(&FileIdentity { file_system: *one, inode, generation });
            let mut found = unclaimed.iter().copied().filter(is_it);
            if is_it(&device) { found.find(|one| *one == device) } else { only_element(found) }
        });
        let root = FileIdentity { file_system: number, inode, generation };
        numbers.record_root(root)?;
        Ok(Self {
            exported: exported.to_owned(),
            root_device: device,
            root,
            of_root: FileSystem { number, has_volatile_inodes },
            has_unique_mounts: stat.stx_mask & file::UNIQUE_MOUNT.bits() != 0,
            expiry: known.expiry_text(),
            others: RwLock::default(),
            numbers: Mutex::new(numbers),
        })
    }

    /// The identity of the exported directory.
    pub(super) fn root(&self) -> FileIdentity {
        self.root
    }

    /// Those of directories exported before.
    pub(super) fn former_roots(&self) -> Vec<FileIdentity> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).former_roots()
    }

    pub(super) fn expiry_text(&self) -> Option<&'static str> {
        self.expiry
    }

    /// The identity of a name in a directory with these attributes; with an empty name, of the descriptor's
    /// file.
    ///
    /// # Errors
    /// The file system cannot be identified for want of descriptors or memory.
    pub(super) fn identify(
        &self,
        stat: &Statx,
        directory: impl AsFd,
        name: &CStr,
        index: &FileIndex,
    ) -> Result<FileIdentity, Status> {
        let file_system = match identity::device_number(stat) == self.root_device {
            true => self.of_root,
            false => self.identify_mounted(stat, directory.as_fd(), name, index)?,
        };
        Ok(FileIdentity::from_stat(file_system, stat, directory, name))
    }

    #[cold]
    fn identify_mounted(
        &self,
        stat: &Statx,
        directory: impl AsFd,
        name: &CStr,
        index: &FileIndex,
    ) -> Result<FileSystem, Status> {
        let key = (identity::device_number(stat), stat.stx_mnt_id);
        if let Some(known) = self.others.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(*known);
        }
        if !waiting::may_block() {
            return Err(Status::Jukebox);
        }
        let opened: OwnedFd;
        let file = if name.is_empty() {
            directory.as_fd()
        } else {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            opened = openat(&directory, name, flags, Mode::empty()).map_err(change_status_from_errno)?;
            opened.as_fd()
        };
        // Another file may have the name by now, on another file system.
        let again = file::stat(file).map_err(change_status_from_errno)?;
        if (identity::device_number(&again), again.stx_mnt_id) != key {
            return Err(Status::Jukebox);
        }
        let mount = Mount::of_open_file(file);
        let has_volatile_inodes =
            file_system_identity::has_volatile_inodes(file).map_err(change_status_from_errno)?;
        let known =
            FileSystemIdentity::of_open_file(file, stat, mount.as_ref()).map_err(change_status_from_errno)?;
        let natural = number_from_identity(
            &known,
            mount.as_ref().map_or(Path::new("?"), |mount| self.path_from_export(&mount.point)),
        );
        let generation = identity::generation(stat, file, c"", has_volatile_inodes);
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let path = path_of_descriptor(file);
        let path = path.as_deref().and_then(|path| path.strip_prefix(&self.exported).ok());
        let number = numbers.handle_number(natural, |unclaimed| {
            let identity = |file_system| FileIdentity { file_system, inode: stat.stx_ino, generation };
            let is_it =
                |one: &u64| index.path(identity(*one), self.root).is_some_and(|at| Some(&*at) == path);
            only_element(unclaimed.iter().copied().filter(is_it))
        });
        let found = FileSystem { number, has_volatile_inodes };
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        if others.len() >= OTHERS_MAX {
            others.clear();
        }
        others.insert(key, found);
        Ok(found)
    }

    /// Looks again at what is mounted, if another mount may have the number of an earlier one.
    pub(super) fn forget_mounts(&self) {
        if !self.has_unique_mounts {
            self.others.write().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// A mount, as seen from the exported directory; empty if that lies in it.
    fn path_from_export<'a>(&self, point: &'a Path) -> &'a Path {
        if self.exported.starts_with(point) {
            return Path::new("");
        }
        point.strip_prefix(&self.exported).unwrap_or(point)
    }
}

/// The element, if there is one and no other.
fn only_element(mut of: impl Iterator<Item = u64>) -> Option<u64> {
    of.next().filter(|_| of.next().is_none())
}

fn path_of_descriptor(file: impl AsFd) -> Option<PathBuf> {
    let path = readlinkat(CWD, descriptor_path(file.as_fd().as_raw_fd()), Vec::new()).ok()?;
    Some(OsString::from_vec(path.into_bytes()).into())
}

fn number_from_identity(known: &FileSystemIdentity, path: &Path) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(b"file system");
    known.hash_into(&mut hasher);
    hasher.write(path.as_os_str().as_bytes());
    hasher.finish()
}
