//! What file systems are known by on the disk, so that it stays the same on another device number.

use std::os::fd::AsFd;

use rustix::ioctl::{Getter, ioctl, opcode};

/// `struct fsuuid2` of linux/fs.h.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct FsUuid {
    bytes: u8,
    uuid: [u8; 16],
}

/// What a file system is known by, as it tells through an open file (not one opened with `O_PATH`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystemId {
    /// As the file system tells it: since Linux 6.9, and not all of them.
    Uuid([u8; 16]),
    /// The number of a FAT volume.
    Fat(u32),
}

impl FileSystemId {
    /// What the file system of an open file says; `None` if it does not.
    pub fn of(file: impl AsFd, is_fat: bool) -> Option<Self> {
        if is_fat {
            // SAFETY: FAT_IOCTL_GET_VOLUME_ID, _IOR('r', 0x13, __u32), writes that number. Asked of FAT only:
            // elsewhere it has no meaning.
            let asked = unsafe { ioctl(file, Getter::<{ opcode::read::<u32>(b'r', 0x13) }, u32>::new()) };
            return asked.ok().filter(|&number| number != 0).map(Self::Fat);
        }
        // SAFETY: FS_IOC_GETFSUUID, _IOR(0x15, 0, struct fsuuid2), fills in that structure, in which all
        // bytes are values.
        let asked = unsafe { ioctl(file, Getter::<{ opcode::read::<FsUuid>(0x15, 0) }, FsUuid>::new()) };
        let reply = asked.ok().filter(|reply| reply.bytes == 16 && reply.uuid != [0; 16]);
        reply.map(|reply| Self::Uuid(reply.uuid))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// Below /proc are no disks.
    #[test]
    fn file_systems_without_a_disk_have_no_uuid() {
        let opened = File::open("/proc").unwrap();
        assert_eq!(FileSystemId::of(&opened, false), None);
    }
}
