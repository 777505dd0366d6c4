//! Which file it is, whatever it is called.

use rustix::fs::{Statx, StatxFlags};

/// Device, inode number and time of birth. Inode numbers are used again; together with the birth they are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Nanoseconds since 1970; 0 on a file system that keeps no time of birth.
    pub(crate) born_ns: i64,
}

impl Identity {
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn of(about: &Statx) -> Self {
        let has_birth = StatxFlags::from_bits_retain(about.stx_mask).contains(StatxFlags::BTIME);
        let born = about.stx_btime;
        let born_ns = born.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(i64::from(born.tv_nsec));
        Self { device: device(about), inode: about.stx_ino, born_ns: if has_birth { born_ns } else { 0 } }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.device.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.inode.to_be_bytes());
        bytes[16..].copy_from_slice(&self.born_ns.to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Self { device: word(0), inode: word(8), born_ns: word(16) as i64 }
    }
}

/// The number of the file system, as one word.
pub(crate) fn device(about: &Statx) -> u64 {
    u64::from(about.stx_dev_major) << 32 | u64::from(about.stx_dev_minor)
}
