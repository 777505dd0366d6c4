//! Memory of areas, and of the rings of ports.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::{HUGE_PAGE_BYTES, Mapping, PAGE_BYTES};

/// Of `linux/mman.h` since Linux 6.1; not every C library has it.
const MADV_COLLAPSE: libc::c_int = 25;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum PageKind {
    /// Pages of the huge-page pool (`MAP_HUGETLB`).
    Huge,
    /// Base pages that the kernel was asked to merge (`MADV_HUGEPAGE`): the huge-page pool has too few free
    /// pages, or a limit of the cgroup keeps them from this process.
    Transparent,
    /// Base pages: the same, and transparent huge pages are off.
    Base,
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge => "huge pages",
            Self::Transparent => "transparent huge pages, where the kernel provides them (the pool of huge pages, vm.nr_hugepages, has none free)",
            Self::Base => "base pages (the pool of huge pages, vm.nr_hugepages, has none free, and transparent ones are off)",
        })
    }
}

#[derive(Debug)]
pub(crate) enum MappingError {
    Memory(io::Error),
    Node(io::Error),
}

impl From<io::Error> for MappingError {
    fn from(error: io::Error) -> Self {
        Self::Memory(error)
    }
}

impl Mapping {
    /// Anonymous, populated, zeroed memory on the largest available pages, kept out of forked children unless
    /// `inherited`; on one NUMA node, if given, as long as that has memory left.
    pub(crate) fn for_area(
        bytes: usize,
        node: Option<u32>,
        inherited: bool,
    ) -> Result<(Self, PageKind), MappingError> {
        // Private memory would be copied by the fork, and the kernel would continue to use one process's
        // pages.
        let sharing = if inherited { MapFlags::SHARED } else { MapFlags::PRIVATE };
        let keep_out = |mapping: &mut Self| if inherited { Ok(()) } else { mapping.exclude_from_children() };
        let huge_bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        if let Ok(mut mapping) = Self::map_anonymous(huge_bytes, sharing | MapFlags::HUGETLB) {
            node.map_or(Ok(()), |node| mapping.prefer_node(node)).map_err(MappingError::Node)?;
            keep_out(&mut mapping)?;
            // What the pool has reserved, a limit of the cgroup or the cpuset may still refuse when it is
            // touched (`SIGBUS`).
            if mapping.populate(HUGE_PAGE_BYTES).is_ok() {
                return Ok((mapping, PageKind::Huge));
            }
        }
        let mut mapping = Self::map_anonymous(bytes, sharing)?;
        // Advice comes before the first touch, or the base pages are there already.
        node.map_or(Ok(()), |node| mapping.prefer_node(node)).map_err(MappingError::Node)?;
        let pages = match mapping.advise(Advice::LinuxHugepage) {
            Ok(()) => PageKind::Transparent,
            Err(_) => PageKind::Base,
        };
        keep_out(&mut mapping)?;
        // Huge pages for shared memory are off by default, as for files; but an immediate request is
        // fulfilled.
        let is_merged = inherited && mapping.merge_into_huge_pages();
        mapping.populate(PAGE_BYTES)?;
        Ok((mapping, if is_merged { PageKind::Transparent } else { pages }))
    }

    /// Merges pages that are not populated yet into huge ones now (Linux 6.1); returns whether that worked.
    ///
    /// One page of each huge one must be populated. If all were, the kernel would clear and then copy them:
    /// 64 MiB then take 55-95 ms instead of 10-30.
    pub(super) fn merge_into_huge_pages(&self) -> bool {
        let populate = |first: usize| {
            // SAFETY: the page at `first` is one of this mapping's, whose contents stay.
            unsafe { libc::madvise(self.base.as_ptr().add(first).cast(), 1, libc::MADV_POPULATE_WRITE) == 0 }
        };
        // SAFETY: the range is exactly this mapping, whose contents stay.
        let collapse = || unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, MADV_COLLAPSE) == 0 };
        let is_long = self.bytes >= HUGE_PAGE_BYTES;
        is_long && (0..self.bytes).step_by(HUGE_PAGE_BYTES).all(populate) && collapse()
    }

    pub(crate) fn of_ring(socket: BorrowedFd<'_>, offset_bytes: u64, bytes: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a fresh mapping at an address of the kernel's choosing overlaps nothing.
        let base = unsafe { mm::mmap(std::ptr::null_mut(), bytes, prot, flags, socket, offset_bytes)? };
        Ok(Self::from_base(base, bytes))
    }

    /// Takes the pages of the mapping from a NUMA node as they are touched (mbind(2)).
    pub(super) fn prefer_node(&self, node: u32) -> io::Result<()> {
        const WORD_BITS: u32 = libc::c_ulong::BITS;
        let mut nodes: [libc::c_ulong; 16] = [0; 16];
        let word = nodes.get_mut((node / WORD_BITS) as usize);
        *word.ok_or(io::ErrorKind::InvalidInput)? = 1 << (node % WORD_BITS);
        // SAFETY: the range is exactly this mapping, whose contents the call does not change; the mask
        // outlives it. (The kernel reads one bit less than the length it is given.)
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.bytes,
                libc::MPOL_PREFERRED,
                nodes.as_ptr(),
                libc::c_ulong::from(WORD_BITS) * nodes.len() as libc::c_ulong + 1,
                0,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The NUMA node that the first page lies on; `None` where the kernel knows of no nodes.
    pub(crate) fn first_page_node(&self) -> Option<u32> {
        const MPOL_F_NODE: libc::c_ulong = 1 << 0;
        const MPOL_F_ADDR: libc::c_ulong = 1 << 1;
        let mut node: libc::c_int = 0;
        let no_mask = std::ptr::null_mut::<libc::c_ulong>();
        // SAFETY: the kernel writes an integer to `node`, which outlives the call, and nothing else.
        let result = unsafe {
            let (how, address) = (MPOL_F_NODE | MPOL_F_ADDR, self.base.as_ptr());
            libc::syscall(libc::SYS_get_mempolicy, &raw mut node, no_mask, 0, address, how)
        };
        if result == 0 { node.try_into().ok() } else { None }
    }
}
