//! File systems that answer by themselves.

use std::os::fd::AsFd;

use rustix::fs::fstatfs;

/// Of disks of this host, and in its memory. Others may ask another host or another program for attributes, such as NFS, CIFS and FUSE.
/// One that is missing here is only served a little slower. (`statfs(2)`, `linux/magic.h`.)
const LOCAL: [u32; 18] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x0102_1994, // tmpfs
    0x794c_7630, // overlayfs
    0x8584_58f6, // ramfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
    0x7371_7368, // SquashFS
    0xe0f5_e1e2, // EROFS
    0x4d44,      // FAT
    0x2011_bab0, // exFAT
    0x7366_746e, // NTFS
    0x9660,      // ISO 9660
    0x1501_3346, // UDF
    0x3153_464a, // JFS
    0x3434,      // NILFS2
];

/// Whether the attributes of a file need no other host and no other program.
pub(super) fn is_local(file: impl AsFd) -> bool {
    // The type of the field differs between processors.
    fstatfs(file).is_ok_and(|about| LOCAL.contains(&(about.f_type as u32)))
}
