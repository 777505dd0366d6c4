//! Files made by CREATE with EXCLUSIVE: a client that repeats the call with the same verifier, because no
//! reply arrived, gets its file, also from the next server.
//!
//! The verifier is stored in the times of the file, 32 bits each in whole seconds, which the client sets
//! next. File systems whose times have fewer bits (FAT) do not return it: then it is kept in the directory of
//! the state, as long as the file is not changed.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags, Statx, Timespec, Timestamps, futimens, openat};

use super::identity::FileIdentity;
use crate::wire::nfs3::Verifier;

const NAME: &str = "exclusive";

/// The most verifiers; of more, the last.
const FILES_MAX: usize = 256;

const ENTRY_BYTES: usize = FileIdentity::BYTES + 8 + 8 + 4;

#[derive(Debug)]
pub(super) struct ExclusiveFiles {
    directory: File,
    files: Mutex<VecDeque<ExclusiveFile>>,
}

/// A file, and what it was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ExclusiveFile {
    identity: FileIdentity,
    verifier: Verifier,
    /// The time of its last change.
    changed: (i64, u32),
}

impl ExclusiveFiles {
    /// Reads the file in the directory of the state, if there is one.
    pub(super) fn read(directory: File) -> io::Result<Self> {
        let mut bytes = Vec::new();
        match open_verifier_file(&directory, OFlags::RDONLY) {
            Ok(file) => drop((&file).read_to_end(&mut bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let made = bytes.as_chunks().0.iter().map(ExclusiveFile::from_bytes).collect();
        Ok(Self { directory, files: Mutex::new(made) })
    }

    /// Keeps the verifier of a new file whose times do not have it, and writes it to the disk.
    pub(super) fn record_verifier(
        &self,
        identity: FileIdentity,
        stat: &Statx,
        verifier: Verifier,
    ) -> io::Result<()> {
        let mut made = self.lock_files();
        made.retain(|one| one.identity != identity);
        if made.len() >= FILES_MAX {
            made.pop_front();
        }
        made.push_back(ExclusiveFile { identity, verifier, changed: change_time(stat) });
        let bytes: Vec<u8> = made.iter().copied().flat_map(ExclusiveFile::to_bytes).collect();
        let file = open_verifier_file(&self.directory, OFlags::WRONLY | OFlags::CREATE)?;
        file.write_all_at(&bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_data()
    }

    /// Whether a file was made with this verifier, and not changed since.
    pub(super) fn was_created_with(&self, identity: FileIdentity, stat: &Statx, verifier: Verifier) -> bool {
        let made = ExclusiveFile { identity, verifier, changed: change_time(stat) };
        stat.stx_size == 0 && (times_have_verifier(stat, verifier) || self.lock_files().contains(&made))
    }

    fn lock_files(&self) -> MutexGuard<'_, VecDeque<ExclusiveFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExclusiveFile {
    fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..24].copy_from_slice(&self.identity.to_bytes());
        bytes[24..32].copy_from_slice(&self.verifier);
        bytes[32..40].copy_from_slice(&self.changed.0.to_be_bytes());
        bytes[40..].copy_from_slice(&self.changed.1.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let part = |at| bytes[at..at + 8].try_into().expect("eight bytes");
        Self {
            identity: FileIdentity::from_bytes(bytes[..24].try_into().expect("24 bytes")),
            verifier: part(24),
            changed: (
                i64::from_be_bytes(part(32)),
                u32::from_be_bytes(bytes[40..].try_into().expect("four bytes")),
            ),
        }
    }
}

/// Stores a verifier in the times of a file, as far as they have room.
pub(super) fn store_verifier_in_times(file: impl AsFd, verifier: Verifier) -> rustix::io::Result<()> {
    let time = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
    let [accessed, modified] = verifier_seconds(verifier);
    futimens(file, &Timestamps { last_access: time(accessed), last_modification: time(modified) })
}

/// Whether its times have the whole verifier.
pub(super) fn times_have_verifier(stat: &Statx, verifier: Verifier) -> bool {
    [stat.stx_atime.tv_sec, stat.stx_mtime.tv_sec] == verifier_seconds(verifier)
}

/// Signed, because older file systems have times from 1901 to 2038.
fn verifier_seconds(verifier: Verifier) -> [i64; 2] {
    let part = |at| i32::from_be_bytes(verifier[at..at + 4].try_into().expect("four bytes")).into();
    [part(0), part(4)]
}

fn change_time(stat: &Statx) -> (i64, u32) {
    (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec)
}

fn open_verifier_file(directory: &File, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, NAME, flags, Mode::RUSR | Mode::WUSR)?.into())
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    /// As on a file system whose times lose the verifier.
    #[test]
    fn verifiers_not_stored_in_times_are_kept() {
        let state = tempfile::tempdir().unwrap();
        let read = || ExclusiveFiles::read(File::open(state.path()).unwrap()).unwrap();
        let exclusive = read();
        let stat = file::stat(tempfile::tempfile().unwrap()).unwrap();
        let identity = |inode| FileIdentity { file_system: 1, inode, generation: 2 };
        for inode in 0..=FILES_MAX as u64 {
            exclusive.record_verifier(identity(inode), &stat, inode.to_be_bytes()).unwrap();
        }
        for exclusive in [&exclusive, &read()] {
            let has = |inode: u64| exclusive.was_created_with(identity(inode), &stat, inode.to_be_bytes());
            assert!(!has(0) && (1..=FILES_MAX as u64).all(has));
            assert!(!exclusive.was_created_with(identity(1), &stat, [7; 8]));
            let mut later = stat;
            later.stx_ctime.tv_nsec ^= 1;
            assert!(!exclusive.was_created_with(identity(1), &later, 1_u64.to_be_bytes()), "it was changed");
        }
    }

    #[test]
    fn verifiers_fit_into_whole_seconds() {
        let file = tempfile::tempfile().unwrap();
        for verifier in [[0; 8], [0xff; 8], [0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff], [1, 2, 3, 4, 5, 6, 7, 8]]
        {
            store_verifier_in_times(&file, verifier).unwrap();
            let mut stat = file::stat(&file).unwrap();
            stat.stx_atime.tv_nsec = 0;
            stat.stx_mtime.tv_nsec = 0;
            assert!(
                times_have_verifier(&stat, verifier) && !times_have_verifier(&stat, [1; 8]),
                "{verifier:?}"
            );
        }
    }
}
