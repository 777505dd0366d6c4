//! Directories of this host that are copied, or in which copies are made, by their descriptors: a link that
//! somebody puts into the path meanwhile leads nowhere, because only names in a directory are used, and links
//! are not followed.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions, set_permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dev, Dir, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, linkat, mkdirat,
    mknodat, open, openat, readlinkat, renameat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::record::CopyNames;
use super::replaced_error;

/// Files of this copy are private until they are complete.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// What the owner of a directory needs while it is copied into.
pub(super) const OWNER_MODE: u32 = 0o700;

#[derive(Debug)]
pub(super) struct OpenDirectory {
    descriptor: OwnedFd,
    /// For messages.
    path: PathBuf,
}

impl OpenDirectory {
    /// A directory that the user names: links in that path are followed.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Self::open_with_flags(path, OFlags::empty())
    }

    /// As [`open`](Self::open), of a directory that this process need not be able to list.
    pub(super) fn open_path(path: &Path) -> io::Result<Self> {
        Self::open_with_flags(path, OFlags::PATH)
    }

    fn open_with_flags(path: &Path, flags: OFlags) -> io::Result<Self> {
        let path = if path == Path::new("") { Path::new(".") } else { path };
        let descriptor = open(path, flags | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Makes a directory in this one, or opens the one that is there. Its owner may write in it;
    /// [`set_mode_and_time`](Self::set_mode_and_time) gives it its own permissions.
    pub(super) fn make_or_open(&self, name: &OsStr, mode: u32) -> io::Result<Self> {
        match mkdirat(&self.descriptor, name, Mode::from_raw_mode(mode & 0o777 | OWNER_MODE)) {
            Err(Errno::EXIST) => {}
            made => made?,
        }
        let made = self.open_file(name, OFlags::PATH | OFlags::DIRECTORY)?;
        let mode = made.metadata()?.mode();
        if mode & OWNER_MODE != OWNER_MODE {
            // Of another user, it may be writable nevertheless.
            let _ = set_permissions(proc_fd_path(&made), Permissions::from_mode(mode & 0o7777 | OWNER_MODE));
        }
        let descriptor = openat(&made, c".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { descriptor, path: self.entry_path(name) })
    }

    /// Gives this directory, which is complete, its permissions and its time. Returns the permissions that it
    /// has now.
    pub(super) fn set_mode_and_time(&self, mode: u32, modified: Timespec) -> io::Result<u32> {
        rustix::fs::fchmod(&self.descriptor, Mode::from_raw_mode(mode))?;
        rustix::fs::futimens(&self.descriptor, &modification_timestamps(modified))?;
        Ok(self.metadata()?.mode() & 0o7777)
    }

    /// Opens a directory in this one.
    pub(super) fn open_subdirectory(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = openat(&self.descriptor, name, flags, Mode::empty())?;
        Ok(Self { descriptor, path: self.entry_path(name) })
    }

    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        File::from(self.descriptor.try_clone()?).metadata()
    }

    /// The directory at a path below this one, without links.
    pub(super) fn open_descendant(&self, below: &Path) -> io::Result<Self> {
        let mut at = Self { descriptor: self.descriptor.try_clone()?, path: self.path.clone() };
        for part in below.components() {
            let Component::Normal(name) = part else { return Err(Errno::INVAL.into()) };
            let descriptor = OwnedFd::from(at.open_file(name, OFlags::PATH | OFlags::DIRECTORY)?);
            at = Self { descriptor, path: at.entry_path(name) };
        }
        Ok(at)
    }

    /// The path of this directory, for messages.
    pub(super) fn own_path(&self) -> &Path {
        &self.path
    }

    /// The names of everything in it, in order.
    pub(super) fn entry_names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.descriptor)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn entry_path(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// A new file; an existing one is an error, whatever it is.
    pub(super) fn create_file(&self, name: &OsStr) -> io::Result<File> {
        self.open_file(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    /// A file that is there, to be read and written. It need not be a regular one.
    pub(super) fn open_existing(&self, name: &OsStr) -> io::Result<File> {
        self.open_file(name, OFlags::RDWR | OFlags::NONBLOCK)
    }

    /// A file that is there, to be read. It need not be a regular one; a pipe is not waited for.
    pub(super) fn open_to_read(&self, name: &OsStr) -> io::Result<File> {
        self.open_file(name, OFlags::RDONLY | OFlags::NONBLOCK)
    }

    /// What has this name; `None` if nothing has.
    pub(super) fn look_up(&self, name: &OsStr) -> io::Result<Option<Metadata>> {
        match self.open_file(name, OFlags::PATH) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => Ok(Some(found?.metadata()?)),
        }
    }

    /// The target of a symbolic link.
    pub(super) fn link_target(&self, name: &OsStr) -> io::Result<Vec<u8>> {
        Ok(readlinkat(&self.descriptor, name, Vec::new())?.into_bytes())
    }

    /// Makes something that is not written to. What has the name is replaced, once the new one is complete.
    pub(super) fn make_special(
        &self,
        names: &CopyNames,
        what: &SpecialFile<'_>,
        modified: Timespec,
    ) -> io::Result<()> {
        match self.make_special_at(&names.complete, what, modified) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            done => return done,
        }
        self.remove(&names.part)?;
        self.make_special_at(&names.part, what, modified)?;
        self.rename(&names.part, &names.complete).inspect_err(|_| drop(self.remove(&names.part)))
    }

    /// Makes it with all that it has, or not at all.
    fn make_special_at(&self, name: &OsStr, what: &SpecialFile<'_>, modified: Timespec) -> io::Result<()> {
        match what {
            SpecialFile::Link(target) => symlinkat(OsStr::from_bytes(target), &self.descriptor, name)?,
            SpecialFile::Node { kind, device, .. } => {
                mknodat(&self.descriptor, name, *kind, PRIVATE, *device)?
            }
            SpecialFile::HardLink(file) => {
                let link = proc_fd_path(file);
                return Ok(linkat(CWD, &link, &self.descriptor, name, AtFlags::SYMLINK_FOLLOW)?);
            }
        }
        let made = self.open_file(name, OFlags::PATH)?;
        let metadata = made.metadata()?;
        let kind = FileType::from_raw_mode(metadata.mode());
        let expected = if let SpecialFile::Node { kind, .. } = what { *kind } else { FileType::Symlink };
        // Another one that was put there meanwhile is left as it is.
        if kind != expected || metadata.nlink() != 1 {
            return Err(replaced_error());
        }
        let set_all = || -> io::Result<()> {
            if let SpecialFile::Node { mode, .. } = what {
                set_permissions(proc_fd_path(&made), Permissions::from_mode(*mode))?;
            }
            Ok(utimensat(CWD, proc_fd_path(&made), &modification_timestamps(modified), AtFlags::empty())?)
        };
        set_all().inspect_err(|_| drop(self.remove(name)))
    }

    fn open_file(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.descriptor, name, flags, PRIVATE)?))
    }

    /// As [`look_up`](Self::look_up), by a descriptor of the file that cannot read it.
    pub(super) fn open_path_descriptor(&self, name: &OsStr) -> io::Result<File> {
        self.open_file(name, OFlags::PATH)
    }

    /// Whether this name is still that of the file.
    pub(super) fn still_names_file(&self, name: &OsStr, file: &File) -> io::Result<bool> {
        let (own, found) = (file.metadata()?, self.look_up(name)?);
        Ok(found.is_some_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())))
    }

    /// Returns whether the file was there.
    pub(super) fn remove(&self, name: &OsStr) -> io::Result<bool> {
        match unlinkat(&self.descriptor, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(false),
            removed => Ok(removed.map(|()| true)?),
        }
    }

    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.descriptor, from, &self.descriptor, to)?)
    }

    /// Waits until its names are on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.descriptor)?)
    }
}

/// What is made at once, as there is nothing to be written to it.
#[derive(Debug)]
pub(super) enum SpecialFile<'a> {
    /// A symbolic link to this target.
    Link(&'a [u8]),
    /// A FIFO, a socket or a device.
    Node { kind: FileType, mode: u32, device: Dev },
    /// One more name of a file.
    HardLink(&'a File),
}

/// The name of a descriptor's file below /proc: of this very file, whatever has its name now.
fn proc_fd_path(file: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

fn modification_timestamps(modified: Timespec) -> Timestamps {
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: modified }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_inside_a_directory_are_not_followed() {
        let around = tempfile::tempdir().unwrap();
        let elsewhere = around.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("file"), b"of another").unwrap();
        let top = around.path().join("top");
        fs::create_dir(&top).unwrap();
        symlink(&elsewhere, top.join("directory")).unwrap();
        symlink(elsewhere.join("file"), top.join("file")).unwrap();
        symlink(elsewhere.join("new"), top.join("dangling")).unwrap();
        let directory = OpenDirectory::open(&top).unwrap();
        directory.make_or_open(OsStr::new("directory"), 0o755).unwrap_err();
        directory.open_existing(OsStr::new("file")).unwrap_err();
        for name in ["file", "dangling"] {
            let error = directory.create_file(OsStr::new(name)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{name}");
        }
        // The directory that the user names may be a link.
        let through = OpenDirectory::open(&top.join("directory")).unwrap();
        assert!(through.look_up(OsStr::new("file")).unwrap().is_some_and(|found| found.is_file()));
        assert_eq!(fs::read(elsewhere.join("file")).unwrap(), b"of another");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
    }

    #[test]
    fn directories_are_used_by_descriptor_not_by_path() {
        let around = tempfile::tempdir().unwrap();
        let [top, moved, elsewhere] = ["top", "moved", "elsewhere"].map(|name| around.path().join(name));
        fs::create_dir(&top).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        let below = OpenDirectory::open(&top).unwrap().make_or_open(OsStr::new("below"), 0o755).unwrap();
        fs::rename(&top, &moved).unwrap();
        symlink(&elsewhere, &top).unwrap();
        fs::create_dir(elsewhere.join("below")).unwrap();
        let file = below.create_file(OsStr::new("file")).unwrap();
        assert!(moved.join("below/file").exists() && !elsewhere.join("below/file").exists());
        assert!(below.still_names_file(OsStr::new("file"), &file).unwrap());
        fs::remove_file(moved.join("below/file")).unwrap();
        assert!(!below.still_names_file(OsStr::new("file"), &file).unwrap());
    }
}
