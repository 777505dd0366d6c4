//! What a file system can do, as PATHCONF and FSINFO report it.

use rustix::fs::{fstatfs, fstatvfs, ioctl_getflags};

use super::magic_numbers::{
    BCACHEFS, BTRFS, EXFAT, EXT, F2FS, FAT, HFS, HFS_PLUS, JFS, NILFS2, NTFS, OVERLAY, RAMFS, TMPFS, UDF,
    XFS, ZFS,
};
use super::{Export, OpenFile, status_from_errno};
use crate::wire::nfs3::{FileType, Status};

/// `FS_CASEFOLD_FL` of linux/fs.h.
const CASEFOLD: u32 = 0x4000_0000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemLimits {
    pub links_max: u32,
    pub name_bytes_max: u32,
    pub has_symbolic_links: bool,
    /// Longer names are cut, not refused.
    pub cuts_names: bool,
    pub ignores_case: bool,
    pub preserves_case: bool,
    pub file_bytes_max: u64,
    /// The least difference of times.
    pub time_step_ns: u64,
}

impl FileSystemLimits {
    fn for_file_system_type(kind: u32, name_bytes_max: u64) -> Self {
        // FAT with names of eight and three characters (msdos), which it cuts, and has in capital letters
        // only.
        let is_short = kind == FAT && name_bytes_max < 255;
        Self {
            links_max: links_max(kind),
            name_bytes_max: u32::try_from(name_bytes_max).ok().filter(|&max| max > 0).unwrap_or(255),
            has_symbolic_links: !matches!(kind, FAT | EXFAT),
            cuts_names: is_short,
            ignores_case: matches!(kind, FAT | EXFAT | HFS | HFS_PLUS),
            preserves_case: !is_short,
            file_bytes_max: if kind == FAT { u32::MAX.into() } else { i64::MAX as u64 },
            time_step_ns: match kind {
                FAT => 2_000_000_000,
                HFS | HFS_PLUS => 1_000_000_000,
                EXFAT => 10_000_000,
                NTFS => 100,
                _ => 1,
            },
        }
    }
}

/// The most names of a file. The kernel has no call for it.
fn links_max(kind: u32) -> u32 {
    match kind {
        EXT | OVERLAY => 65_000,
        BTRFS | UDF => 65_535,
        XFS => i32::MAX as u32,
        NILFS2 => 32_000,
        NTFS => 1024,
        TMPFS | RAMFS | F2FS | JFS | BCACHEFS | ZFS => u32::MAX,
        FAT | EXFAT => 1,
        // What the kernel's own server says of all.
        _ => 255,
    }
}

impl Export {
    /// # Errors
    /// The kernel refuses.
    pub fn limits(&self, file: &OpenFile) -> Result<FileSystemLimits, Status> {
        let refused = |error| status_from_errno(error, Status::Stale);
        let kind = fstatfs(file).map_err(refused)?.f_type as u32;
        let limits = FileSystemLimits::for_file_system_type(kind, fstatvfs(file).map_err(refused)?.f_namemax);
        let ignores_case = limits.ignores_case || self.ignores_case_at(file);
        Ok(FileSystemLimits { ignores_case, ..limits })
    }

    /// Whether names that differ only by case are the same in a directory, or in the directory of a file
    /// (`chattr +F`).
    fn ignores_case_at(&self, file: &OpenFile) -> bool {
        let is_caseless = |directory: &OpenFile| {
            let flags = directory.reopen().ok().and_then(|opened| ioctl_getflags(&opened).ok());
            flags.is_some_and(|flags| flags.bits() & CASEFOLD != 0)
        };
        if file.file_type() == FileType::Directory {
            return is_caseless(file);
        }
        self.parent_directory(file.identity()).is_ok_and(|directory| is_caseless(&directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As knfsd has it for FAT, and as the kernel's drivers have it.
    #[test]
    fn limits_depend_on_the_file_system_type() {
        let (ext, long, short) = (
            FileSystemLimits::for_file_system_type(EXT, 255),
            FileSystemLimits::for_file_system_type(FAT, 1530),
            FileSystemLimits::for_file_system_type(FAT, 12),
        );
        assert_eq!((ext.links_max, ext.name_bytes_max, ext.ignores_case), (65_000, 255, false));
        assert_eq!((long.links_max, long.name_bytes_max), (1, 1530));
        assert_eq!((long.ignores_case, long.preserves_case, long.cuts_names), (true, true, false));
        assert_eq!((short.ignores_case, short.preserves_case, short.cuts_names), (true, false, true));
        assert!(ext.has_symbolic_links && !long.has_symbolic_links);
        assert_eq!((long.file_bytes_max, long.time_step_ns), (0xffff_ffff, 2_000_000_000));
        assert_eq!(
            FileSystemLimits::for_file_system_type(0, 0).name_bytes_max,
            255,
            "the kernel does not say it"
        );
    }
}
