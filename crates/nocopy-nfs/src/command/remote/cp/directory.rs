//! Directories of this host that are copied, or in which copies are made, by their descriptors: a link that somebody puts into the path meanwhile leads nowhere,
//! because only names in a directory are used, and links are not followed.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, mkdirat, open, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Files of this copy are private until they are complete.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

#[derive(Debug)]
pub(super) struct Directory {
    descriptor: OwnedFd,
    /// For messages.
    path: PathBuf,
}

impl Directory {
    /// A directory that the user names: links in that path are followed.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let path = if path == Path::new("") { Path::new(".") } else { path };
        let descriptor = open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// As [`open`](Self::open), of a directory that this process need not be able to list.
    pub(super) fn open_path(path: &Path) -> io::Result<Self> {
        let path = if path == Path::new("") { Path::new(".") } else { path };
        let descriptor = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Makes a directory in this one, or opens the one that is there.
    pub(super) fn make(&self, name: &OsStr) -> io::Result<Self> {
        match mkdirat(&self.descriptor, name, Mode::from_raw_mode(0o777)) {
            Err(Errno::EXIST) => {}
            made => made?,
        }
        self.enter(name)
    }

    /// Opens a directory in this one.
    pub(super) fn enter(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = openat(&self.descriptor, name, flags, Mode::empty())?;
        Ok(Self { descriptor, path: self.path(name) })
    }

    pub(super) fn mode(&self) -> io::Result<u32> {
        Ok(fstat(&self.descriptor)?.st_mode)
    }

    /// The names of everything in it, in order.
    pub(super) fn names(&self) -> io::Result<Vec<OsString>> {
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

    pub(super) fn path(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// A new file; an existing one is an error, whatever it is.
    pub(super) fn create(&self, name: &OsStr) -> io::Result<File> {
        self.open_file(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    /// A file that is there, to be read and written. It need not be a regular one.
    pub(super) fn existing(&self, name: &OsStr) -> io::Result<File> {
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

    fn open_file(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.descriptor, name, flags, PRIVATE)?))
    }

    /// Whether this name is still that of the file.
    pub(super) fn has(&self, name: &OsStr, file: &File) -> io::Result<bool> {
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
        let directory = Directory::open(&top).unwrap();
        directory.make(OsStr::new("directory")).unwrap_err();
        directory.existing(OsStr::new("file")).unwrap_err();
        for name in ["file", "dangling"] {
            let error = directory.create(OsStr::new(name)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{name}");
        }
        // The directory that the user names may be a link.
        let through = Directory::open(&top.join("directory")).unwrap();
        assert!(through.look_up(OsStr::new("file")).unwrap().is_some_and(|found| found.is_file()));
        assert_eq!(fs::read(elsewhere.join("file")).unwrap(), b"of another");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_keeps_its_place_when_its_path_is_replaced() {
        let around = tempfile::tempdir().unwrap();
        let [top, moved, elsewhere] = ["top", "moved", "elsewhere"].map(|name| around.path().join(name));
        fs::create_dir(&top).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        let below = Directory::open(&top).unwrap().make(OsStr::new("below")).unwrap();
        fs::rename(&top, &moved).unwrap();
        symlink(&elsewhere, &top).unwrap();
        fs::create_dir(elsewhere.join("below")).unwrap();
        let file = below.create(OsStr::new("file")).unwrap();
        assert!(moved.join("below/file").exists() && !elsewhere.join("below/file").exists());
        assert!(below.has(OsStr::new("file"), &file).unwrap());
        fs::remove_file(moved.join("below/file")).unwrap();
        assert!(!below.has(OsStr::new("file"), &file).unwrap());
    }
}
