//! What is served to be read: one file that is in memory, one that is not, and a directory with many files.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise, statfs};

use super::Contents;
use super::exported::Exported;

pub(super) const CACHED: &str = "cached";
pub(super) const COLD: &str = "cold";
pub(super) const MANY: &str = "many";

/// A magic number of statfs(2).
const TMPFS: u64 = 0x0102_1994;

/// What must be free there.
const ROOM_BYTES: u64 = 2 << 30;

/// More than any server makes of files within a window.
const MEMORY_ROOM_BYTES: u64 = 1 << 30;

/// Removed when dropped.
#[derive(Debug)]
pub(super) struct Files {
    /// Of this process: no other user is let into it.
    own: PathBuf,
    contents: Contents,
}

impl Files {
    pub(super) fn make(contents: Contents) -> io::Result<Self> {
        let directory = disk().unwrap_or_else(std::env::temp_dir);
        let own = directory.join(format!("nocopy-bench-nfs-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&own)?;
        let files = Self { own, contents };
        for name in ["exported", "scratch"] {
            fs::create_dir(files.own.join(name))?;
        }
        write(&files.path(CACHED), contents.cached_bytes)?;
        write(&files.path(COLD), contents.cold_bytes)?;
        fs::create_dir(files.path(MANY))?;
        for number in 0..contents.many {
            File::create(files.path(MANY).join(name_of(number)))?;
        }
        Ok(files)
    }

    pub(super) fn exported(&self) -> Exported {
        let [directory, scratch] = ["exported", "scratch"].map(|name| self.own.join(name));
        Exported { directory, scratch, is_writable: false }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.own.join("exported").join(name)
    }

    /// How many files the long directory has.
    pub(super) fn many(&self) -> usize {
        self.contents.many
    }

    pub(super) fn cached_bytes(&self) -> u64 {
        self.contents.cached_bytes
    }

    pub(super) fn cold_bytes(&self) -> u64 {
        self.contents.cold_bytes
    }

    /// The file that is not in memory, to be dropped from it again and again.
    pub(super) fn cold(&self) -> io::Result<Cold> {
        Ok(Cold(File::open(self.path(COLD))?))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.own); // what is left over does no harm
    }
}

/// A file of the long directory.
pub(super) fn name_of(number: usize) -> String {
    format!("measurement-{number:06}.dat")
}

/// What the file has from `offset` on, both in steps of eight bytes.
pub(super) fn is_content(offset: u64, bytes: &[u8]) -> bool {
    let words = bytes.chunks_exact(8);
    words.remainder().is_empty() && words.zip(offset / 8..).all(|(word, place)| word == word_at(place))
}

/// Another one at each place.
pub(super) fn word_at(place: u64) -> [u8; 8] {
    place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn write(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    for place in 0..bytes / 8 {
        file.write_all(&word_at(place))?;
    }
    // Only pages that are on the disk can be dropped, and writing them later would disturb.
    file.into_inner()?.sync_all()
}

#[derive(Debug)]
pub(super) struct Cold(File);

impl Cold {
    /// Drops its pages, and returns whether there is one at this place that is not in memory now: those that are being read, or sent,
    /// stay. Where the kernel does not say, it is taken to have done what it was told.
    pub(super) fn drop_pages(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        fadvise(&self.0, 0, None, Advice::DontNeed)?;
        Ok(nocopy::integration::is_cached(&self.0, offset, bytes) != Some(true))
    }
}

/// Whether there is a file system whose files can be dropped from memory.
pub(super) fn is_on_disk() -> bool {
    disk().is_some()
}

/// The first directory that is on no tmpfs, with room enough.
fn disk() -> Option<PathBuf> {
    [std::env::temp_dir(), "/var/tmp".into()]
        .into_iter()
        .find(|directory| has_room(directory, false, ROOM_BYTES))
}

/// The first directory whose files are memory, with room enough.
pub(super) fn memory() -> Option<PathBuf> {
    let directories = ["/dev/shm".into(), std::env::temp_dir(), "/run".into()];
    directories.into_iter().find(|directory| has_room(directory, true, MEMORY_ROOM_BYTES))
}

fn has_room(directory: &Path, is_memory: bool, bytes: u64) -> bool {
    statfs(directory).is_ok_and(|found| {
        let is_on_tmpfs = found.f_type.unsigned_abs() == TMPFS;
        found.f_bavail * found.f_bsize.unsigned_abs() >= bytes && is_on_tmpfs == is_memory
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_told_from_that_of_another_place() {
        let words = |from: u64| (from..from + 4).flat_map(word_at).collect::<Vec<u8>>();
        assert!(is_content(64, &words(8)) && !is_content(72, &words(8)));
        let mut changed = words(8);
        changed[31] ^= 1;
        assert!(!is_content(64, &changed) && !is_content(64, &words(8)[..31]));
    }
}
