//! What file systems are known by on the disk, so that it stays the same on another device number.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, ioctl, opcode};

/// `struct fsuuid2` of linux/fs.h.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Uuid {
    bytes: u8,
    uuid: [u8; 16],
}

/// The UUID of the file system of an open file (not of one opened with `O_PATH`), as it tells itself: since Linux 6.9, and not all of them.
pub fn file_system_uuid(file: impl AsFd) -> Option<[u8; 16]> {
    // SAFETY: FS_IOC_GETFSUUID, _IOR(0x15, 0, struct fsuuid2), fills in that structure, in which all bytes are values.
    let asked = unsafe { ioctl(file, Getter::<{ opcode::read::<Uuid>(0x15, 0) }, Uuid>::new()) };
    asked.ok().filter(|told| told.bytes == 16 && told.uuid != [0; 16]).map(|told| told.uuid)
}

/// The number of the FAT volume of an open file, as [`file_system_uuid`].
pub fn fat_volume(file: impl AsFd) -> Option<u32> {
    // SAFETY: FAT_IOCTL_GET_VOLUME_ID, _IOR('r', 0x13, __u32), writes that number. To be asked of FAT: elsewhere it has no meaning.
    let asked = unsafe { ioctl(file, Getter::<{ opcode::read::<u32>(b'r', 0x13) }, u32>::new()) };
    asked.ok().filter(|&number| number != 0)
}

/// Whether names in an open directory that differ only by case are the same (`chattr +F`).
///
/// # Errors
/// Its file system does not tell.
pub fn ignores_case(directory: impl AsFd) -> Result<bool, Errno> {
    const CASEFOLD: u32 = 0x4000_0000; // FS_CASEFOLD_FL of linux/fs.h
    rustix::fs::ioctl_getflags(directory).map(|flags| flags.bits() & CASEFOLD != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// Below /proc are no disks.
    #[test]
    fn what_is_not_on_a_disk_has_no_uuid() {
        let opened = File::open("/proc").unwrap();
        assert_eq!(file_system_uuid(&opened), None);
        assert!(ignores_case(&opened).is_err());
    }
}
