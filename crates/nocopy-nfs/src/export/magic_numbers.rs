//! Kinds of file systems, by the number that statfs(2) returns (`linux/magic.h`).

pub(super) const EXT: u32 = 0xef53; // ext2, ext3, ext4
pub(super) const XFS: u32 = 0x5846_5342;
pub(super) const BTRFS: u32 = 0x9123_683e;
pub(super) const TMPFS: u32 = 0x0102_1994;
pub(super) const OVERLAY: u32 = 0x794c_7630;
pub(super) const RAMFS: u32 = 0x8584_58f6;
pub(super) const F2FS: u32 = 0xf2f5_2010;
pub(super) const ZFS: u32 = 0x2fc1_2fc1;
pub(super) const BCACHEFS: u32 = 0xca45_1a4e;
pub(super) const SQUASHFS: u32 = 0x7371_7368;
pub(super) const EROFS: u32 = 0xe0f5_e1e2;
pub(super) const FAT: u32 = 0x4d44;
pub(super) const EXFAT: u32 = 0x2011_bab0;
pub(super) const NTFS: u32 = 0x7366_746e;
pub(super) const ISO_9660: u32 = 0x9660;
pub(super) const UDF: u32 = 0x1501_3346;
pub(super) const JFS: u32 = 0x3153_464a;
pub(super) const NILFS2: u32 = 0x3434;
pub(super) const HFS: u32 = 0x4244;
pub(super) const HFS_PLUS: u32 = 0x482b;

/// Of disks of this host, and in its memory. Others may ask another host or another program for attributes,
/// such as NFS, CIFS and FUSE. One that is missing here is only served a little slower.
pub(super) const LOCAL: [u32; 18] = [
    EXT, XFS, BTRFS, TMPFS, OVERLAY, RAMFS, F2FS, ZFS, BCACHEFS, SQUASHFS, EROFS, FAT, EXFAT, NTFS, ISO_9660,
    UDF, JFS, NILFS2,
];
