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

use super::file::{self, refusal};
use super::identity::{self, FileSystem, Identity};
use super::index::Index;
use super::known_by::{KnownBy, Mount};
use super::numbers::Numbers;
use super::{known_by, name_of_descriptor, waiting};
use crate::wire::nfs3::Status;

/// With more file systems, those of before are asked again.
const OTHERS_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct FileSystems {
    exported: PathBuf,
    root_device: u64,
    root: Identity,
    of_root: FileSystem,
    /// Whether the kernel's numbers of mounts are never used again (since Linux 6.8).
    has_unique_mounts: bool,
    /// When handles end, in words; `None` if they outlive a reboot.
    end: Option<&'static str>,
    /// Others below the exported directory, by device and mount.
    others: RwLock<HashMap<(u64, u64), FileSystem>>,
    numbers: Mutex<Numbers>,
}

impl FileSystems {
    /// Begins with that of the exported directory, which the user may have named.
    pub(super) fn new(
        exported: &Path,
        directory: impl AsFd,
        about: &Statx,
        named: Option<u64>,
        (mut numbers, index): (Numbers, &Index),
    ) -> io::Result<Self> {
        let has_passing_inodes = known_by::has_passing_inodes(&directory)?;
        let known = match named {
            Some(name) => KnownBy::Name(name),
            None => KnownBy::find(&directory, about, Mount::of(&directory).as_ref())?,
        };
        let natural = natural(&known, Path::new(""));
        let (inode, generation) =
            (about.stx_ino, identity::generation(about, &directory, c"", has_passing_inodes));
        let device = identity::device(about);
        let number = numbers.number(natural, |unclaimed| {
            let roots = index.roots();
            let is_it = |one: &u64| roots.contains(&Identity { file_system: *one, inode, generation });
            let mut found = unclaimed.iter().copied().filter(is_it);
            if is_it(&device) { found.find(|one| *one == device) } else { only(found) }
        });
        let root = Identity { file_system: number, inode, generation };
        numbers.note_root(root)?;
        Ok(Self {
            exported: exported.to_owned(),
            root_device: device,
            root,
            of_root: FileSystem { number, has_passing_inodes },
            has_unique_mounts: about.stx_mask & file::UNIQUE_MOUNT.bits() != 0,
            end: known.end(),
            others: RwLock::default(),
            numbers: Mutex::new(numbers),
        })
    }

    /// The identity of the exported directory.
    pub(super) fn root(&self) -> Identity {
        self.root
    }

    /// Those of directories exported before.
    pub(super) fn former(&self) -> Vec<Identity> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).former()
    }

    pub(super) fn end(&self) -> Option<&'static str> {
        self.end
    }

    /// The identity of a name in a directory with these attributes; with an empty name, of the descriptor's
    /// file.
    ///
    /// # Errors
    /// The file system cannot be identified for want of descriptors or memory.
    pub(super) fn identify(
        &self,
        about: &Statx,
        directory: impl AsFd,
        name: &CStr,
        index: &Index,
    ) -> Result<Identity, Status> {
        let file_system = match identity::device(about) == self.root_device {
            true => self.of_root,
            false => self.other(about, directory.as_fd(), name, index)?,
        };
        Ok(Identity::of(file_system, about, directory, name))
    }

    #[cold]
    fn other(
        &self,
        about: &Statx,
        directory: impl AsFd,
        name: &CStr,
        index: &Index,
    ) -> Result<FileSystem, Status> {
        let key = (identity::device(about), about.stx_mnt_id);
        if let Some(known) = self.others.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(*known);
        }
        if !waiting::may_wait() {
            return Err(Status::Jukebox);
        }
        let opened: OwnedFd;
        let file = if name.is_empty() {
            directory.as_fd()
        } else {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            opened = openat(&directory, name, flags, Mode::empty()).map_err(refusal)?;
            opened.as_fd()
        };
        // Another file may have the name by now, on another file system.
        let again = file::about(file).map_err(refusal)?;
        if (identity::device(&again), again.stx_mnt_id) != key {
            return Err(Status::Jukebox);
        }
        let mount = Mount::of(file);
        let has_passing_inodes = known_by::has_passing_inodes(file).map_err(refusal)?;
        let known = KnownBy::find(file, about, mount.as_ref()).map_err(refusal)?;
        let natural =
            natural(&known, mount.as_ref().map_or(Path::new("?"), |mount| self.place(&mount.point)));
        let generation = identity::generation(about, file, c"", has_passing_inodes);
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let path = path_of(file);
        let path = path.as_deref().and_then(|path| path.strip_prefix(&self.exported).ok());
        let number = numbers.number(natural, |unclaimed| {
            let identity = |file_system| Identity { file_system, inode: about.stx_ino, generation };
            let is_it =
                |one: &u64| index.path(identity(*one), self.root).is_some_and(|at| Some(&*at) == path);
            only(unclaimed.iter().copied().filter(is_it))
        });
        let found = FileSystem { number, has_passing_inodes };
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        if others.len() >= OTHERS_MAX {
            others.clear();
        }
        others.insert(key, found);
        Ok(found)
    }

    /// Looks again at what is mounted, if another mount may have the number of an earlier one.
    pub(super) fn tidy(&self) {
        if !self.has_unique_mounts {
            self.others.write().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// A mount, as seen from the exported directory; empty if that lies in it.
    fn place<'a>(&self, point: &'a Path) -> &'a Path {
        if self.exported.starts_with(point) {
            return Path::new("");
        }
        point.strip_prefix(&self.exported).unwrap_or(point)
    }
}

/// The element, if there is one and no other.
fn only(mut of: impl Iterator<Item = u64>) -> Option<u64> {
    of.next().filter(|_| of.next().is_none())
}

fn path_of(file: impl AsFd) -> Option<PathBuf> {
    let path = readlinkat(CWD, name_of_descriptor(file.as_fd().as_raw_fd()), Vec::new()).ok()?;
    Some(OsString::from_vec(path.into_bytes()).into())
}

fn natural(known: &KnownBy, place: &Path) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(b"file system");
    known.write_to(&mut hasher);
    hasher.write(place.as_os_str().as_bytes());
    hasher.finish()
}
