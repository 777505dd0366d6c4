//! The identity of a file, independent of its name.

use std::ffi::CStr;
use std::hash::Hasher;
use std::os::fd::AsFd;

use nocopy::integration::KernelHandle;
use rustix::fs::{Statx, StatxFlags};
use siphasher::sip::SipHasher24;

/// A file system, as handles have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileSystem {
    pub(super) number: u64,
    /// Its inode numbers are not on the disk: another file may have one when the first is no longer in
    /// memory.
    pub(super) has_volatile_inodes: bool,
}

/// File system, inode number, and a value that distinguishes the file from earlier ones with that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    pub(crate) file_system: u64,
    pub(crate) inode: u64,
    /// Time of birth in nanoseconds since 1970; on a file system without it, a hash of the kernel's own
    /// handle, which has the inode's generation; 0 if there is neither.
    pub(crate) generation: i64,
}

impl FileIdentity {
    pub(crate) const BYTES: usize = 24;

    /// The identity of a name in a directory with these attributes; with an empty name, of the descriptor's
    /// file.
    pub(super) fn from_stat(
        file_system: FileSystem,
        stat: &Statx,
        directory: impl AsFd,
        name: &CStr,
    ) -> Self {
        let generation = generation(stat, directory, name, file_system.has_volatile_inodes);
        Self { file_system: file_system.number, inode: stat.stx_ino, generation }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.file_system.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.inode.to_be_bytes());
        bytes[16..].copy_from_slice(&self.generation.to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Self { file_system: word(0), inode: word(8), generation: word(16) as i64 }
    }
}

/// With volatile inode numbers, the kernel's handle distinguishes files, too: it has a new generation for
/// each number.
pub(super) fn generation(stat: &Statx, directory: impl AsFd, name: &CStr, has_volatile_inodes: bool) -> i64 {
    let by_handle = || KernelHandle::of(directory, name).map_or(0, |handle| hash_kernel_handle(&handle));
    let has_birth = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    if !has_birth {
        return by_handle();
    }
    let born = stat.stx_btime;
    let born = born.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(i64::from(born.tv_nsec));
    if has_volatile_inodes { born ^ by_handle() } else { born }
}

fn hash_kernel_handle(handle: &KernelHandle) -> i64 {
    let mut hasher = SipHasher24::new();
    hasher.write(handle.as_bytes());
    hasher.finish().cast_signed()
}

/// Its device number, of this boot.
pub(super) fn device_number(stat: &Statx) -> u64 {
    u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::super::file;
    use super::*;

    #[test]
    fn files_are_distinguished_without_birth_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let identity = || {
            let opened = File::open(&path).unwrap();
            let mut stat = file::stat(&opened).unwrap();
            stat.stx_mask &= !StatxFlags::BTIME.bits();
            // Whether or not the number of the removed file is reused.
            let file_system = FileSystem { number: 1, has_volatile_inodes: false };
            FileIdentity { inode: 0, ..FileIdentity::from_stat(file_system, &stat, &opened, c"") }
        };
        let mut found = Vec::new();
        for _ in 0..3 {
            fs::write(&path, []).unwrap();
            assert!(!found.contains(&identity()));
            found.push(identity());
            assert_ne!(identity().generation, 0);
            fs::remove_file(&path).unwrap();
        }
    }
}
