//! Whether parts of a file are in memory.

use std::os::fd::{AsFd, AsRawFd};

/// `struct cachestat_range` of linux/mman.h.
#[repr(C)]
struct CachestatRange {
    offset: u64,
    bytes: u64,
}

/// `struct cachestat` of linux/mman.h, all in pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

const PAGE_BYTES: u64 = 4096;

/// cachestat(2), since Linux 6.5; the same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// Whether all pages of a range of a file are in the page cache now; `None` if the kernel does not report it.
///
/// This may change at any time. A range beyond the end of the file has no pages there, so limit it first.
pub fn is_cached(file: impl AsFd, offset: u64, bytes: u64) -> Option<bool> {
    let pages = (offset + bytes).div_ceil(PAGE_BYTES) - offset / PAGE_BYTES;
    let range = CachestatRange { offset, bytes };
    let mut found = Cachestat::default();
    // SAFETY: both structures are those of the call, and live until it returns.
    let done = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_fd().as_raw_fd(), &raw const range, &raw mut found, 0_u32)
    };
    (done == 0).then_some(found.cached >= pages)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::facts::kernel::KernelVersion;

    #[test]
    fn written_pages_are_cached_and_holes_are_not() {
        let mut file = File::from(memfd_create("pages", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(&[7; 3 * 4096 + 1]).unwrap();
        file.set_len(1 << 20).unwrap();
        let answers = [(0, 4096), (4095, 2), (0, 3 * 4096 + 1), (8 << 12, 4096), (2 << 12, 4 << 12)]
            .map(|(offset, bytes)| is_cached(&file, offset, bytes));
        let expected = match KernelVersion::running() >= Some(KernelVersion(6, 5)) {
            true => [Some(true), Some(true), Some(true), Some(false), Some(false)],
            false => [None; 5],
        };
        assert_eq!(answers, expected);
    }
}
