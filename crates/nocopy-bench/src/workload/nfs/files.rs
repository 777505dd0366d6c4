//! The files to read: one in memory, one not in memory, and a directory with many files.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, Mode, fadvise, statfs};
use rustix::process::umask;

use super::FileSizes;
use super::export::Export;
use super::owner::change_owner_recursively;
use crate::nfs_content::content_word_at;

pub(super) const CACHED: &str = "cached";
pub(super) const COLD: &str = "cold";
pub(super) const MANY: &str = "many";
pub(super) const SMALL: &str = "small";
pub(super) const LONG: &str = "long";

pub(super) const SMALL_BYTES: usize = 4 << 10;

/// A magic number of statfs(2).
const TMPFS: u64 = 0x0102_1994;

const ROOM_BYTES: u64 = 2 << 30;

/// More than any server makes of files within a window.
const MEMORY_ROOM_BYTES: u64 = 1 << 30;

/// Removed when dropped.
#[derive(Debug)]
pub(super) struct ServedFiles {
    /// A directory of this process, in which other users can only enter the directories that they know.
    own: PathBuf,
    pub(super) contents: FileSizes,
}

impl ServedFiles {
    pub(super) fn make(contents: FileSizes) -> io::Result<Self> {
        let _readable = ReadableUmaskGuard::begin();
        let directory = find_disk_directory().unwrap_or_else(std::env::temp_dir);
        let own = directory.join(format!("nocopy-bench-nfs-{}", std::process::id()));
        DirBuilder::new().mode(0o711).create(&own)?;
        let files = Self { own, contents };
        for name in ["exported", "scratch"] {
            fs::create_dir(files.own.join(name))?;
        }
        write_content(&files.exported_path(CACHED), contents.cached_bytes)?;
        write_content(&files.exported_path(COLD), contents.cold_bytes)?;
        fs::create_dir(files.exported_path(MANY))?;
        for number in 0..contents.many {
            File::create(files.exported_path(MANY).join(numbered_file_name(number)))?;
        }
        fs::create_dir(files.exported_path(SMALL))?;
        for number in 0..contents.small {
            fs::write(files.exported_path(SMALL).join(numbered_file_name(number)), small_content(number))?;
        }
        // A sparse file, which takes no disk space. Its pages are made at the first read.
        File::create(files.exported_path(LONG))?.set_len(contents.long_bytes)?;
        io::copy(
            &mut BufReader::with_capacity(1 << 20, File::open(files.exported_path(LONG))?),
            &mut io::sink(),
        )?;
        // The server owns what it serves, as an ordinary user does.
        change_owner_recursively(&files.own.join("exported"))?;
        Ok(files)
    }

    pub(super) fn export(&self) -> Export {
        let [directory, scratch] = ["exported", "scratch"].map(|name| self.own.join(name));
        Export { directory, scratch, is_writable: false }
    }

    pub(super) fn exported_path(&self, name: &str) -> PathBuf {
        self.own.join("exported").join(name)
    }

    /// A directory beside the exported one, on the same disk.
    pub(super) fn scratch_directory(&self) -> PathBuf {
        self.own.join("scratch")
    }

    /// The file that is not in memory, to be dropped from it again and again.
    pub(super) fn open_cold_file(&self) -> io::Result<UncachedFile> {
        Ok(UncachedFile(File::open(self.exported_path(COLD))?))
    }
}

impl Drop for ServedFiles {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.own); // what is left over does no harm
    }
}

pub(super) fn numbered_file_name(number: usize) -> String {
    format!("measurement-{number:06}.dat")
}

/// The content of a small file; each begins differently.
pub(super) fn small_content(number: usize) -> Vec<u8> {
    (0..SMALL_BYTES / 8).flat_map(|index| content_word_at((number + index) as u64)).collect()
}

fn write_content(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    for index in 0..bytes / 8 {
        file.write_all(&content_word_at(index))?;
    }
    // Only pages that are on the disk can be dropped, and writing them later would disturb.
    file.into_inner()?.sync_all()
}

#[derive(Debug)]
pub(super) struct UncachedFile(File);

impl UncachedFile {
    /// Drops the file's pages, and returns whether some page in this range is not in memory now: pages that
    /// are being read or sent stay. If the kernel cannot report that, the answer is true.
    pub(super) fn drop_pages(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        fadvise(&self.0, 0, None, Advice::DontNeed)?;
        Ok(nocopy::integration::is_cached(&self.0, offset, bytes) != Some(true))
    }
}

/// Until it is dropped, others can read the files that this process makes, whatever the user's umask: the
/// server reads as another user.
pub(super) struct ReadableUmaskGuard(Mode);

impl ReadableUmaskGuard {
    pub(super) fn begin() -> Self {
        Self(umask(Mode::WGRP | Mode::WOTH))
    }
}

impl Drop for ReadableUmaskGuard {
    fn drop(&mut self) {
        umask(self.0);
    }
}

/// Whether there is a file system whose files can be dropped from memory.
pub(super) fn has_disk_directory() -> bool {
    find_disk_directory().is_some()
}

/// The first directory that is on no tmpfs, with room enough.
fn find_disk_directory() -> Option<PathBuf> {
    [std::env::temp_dir(), "/var/tmp".into()]
        .into_iter()
        .find(|directory| has_room(directory, false, ROOM_BYTES))
}

/// The first directory whose files are memory, with room enough.
pub(super) fn find_memory_directory() -> Option<PathBuf> {
    let directories = ["/dev/shm".into(), std::env::temp_dir(), "/run".into()];
    directories.into_iter().find(|directory| has_room(directory, true, MEMORY_ROOM_BYTES))
}

pub(super) fn has_disk_room(bytes: u64) -> bool {
    find_disk_directory().is_some_and(|directory| has_room(&directory, false, bytes))
}

fn has_room(directory: &Path, is_memory: bool, bytes: u64) -> bool {
    statfs(directory).is_ok_and(|found| {
        let is_on_tmpfs = found.f_type.unsigned_abs() == TMPFS;
        found.f_bavail * found.f_bsize.unsigned_abs() >= bytes && is_on_tmpfs == is_memory
    })
}
