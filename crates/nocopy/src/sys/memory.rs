//! Memory mappings: the area itself and the kernel's rings.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::fork::Generation;

/// Bytes in a huge page of this architecture (x86-64, and arm64 with 4 KiB base pages).
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The smallest page size.
pub(super) const PAGE_BYTES: usize = 4096;

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

#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// The only process that has the mapping, if it was kept out of forked children, where something else may
    /// be at its address.
    only_in: Option<Generation>,
}

// SAFETY: plain memory; the types built on it decide which part may be used.
unsafe impl Send for Mapping {}
// SAFETY: as above; `Mapping` itself gives no access.
unsafe impl Sync for Mapping {}

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

    /// Anonymous, zeroed memory for buffers of sockets, kept out of forked children.
    ///
    /// Not on huge pages: they cannot be given up in parts, and io_uring charges a registered datagram with
    /// all of its page in front of it (`io_sg_from_iter`: `PAGE_ALIGN(bv_len + bv_offset)`), up to 2 MiB, so
    /// that one fills a socket's buffer.
    pub(crate) fn for_buffers(bytes: usize) -> io::Result<Self> {
        let mut mapping = Self::zeroed_pages(bytes)?;
        // Without huge pages in the kernel, there is nothing to turn off.
        let _ = mapping.advise(Advice::LinuxNoHugepage);
        mapping.exclude_from_children()?;
        Ok(mapping)
    }

    /// Removes pages; in an anonymous mapping, new zeroed ones replace them. Other users of the old pages,
    /// such as the kernel, keep them.
    ///
    /// # Safety
    /// The range must be whole pages of this mapping, and no reference to their contents may be used
    /// afterwards.
    pub(crate) unsafe fn replace_pages(&self, first: NonNull<u8>, bytes: usize) -> io::Result<()> {
        if self.is_absent_in_child() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let place = first.as_ptr().cast();
        // SAFETY: by contract.
        match unsafe { mm::madvise(place, bytes, Advice::LinuxDontNeed) } {
            // Locked (`mlockall`). Linux 5.18 has an advice for that; before, they are unlocked first.
            Err(Errno::INVAL) => {}
            replaced => return Ok(replaced?),
        }
        // SAFETY: by contract.
        if unsafe { libc::madvise(place, bytes, libc::MADV_DONTNEED_LOCKED) } == 0 {
            return Ok(());
        }
        // SAFETY: by contract; what is unlocked keeps its contents.
        unsafe {
            mm::munlock(place, bytes)?;
            Ok(mm::madvise(place, bytes, Advice::LinuxDontNeed)?)
        }
    }

    /// Anonymous, zeroed pages.
    pub(crate) fn zeroed_pages(bytes: usize) -> io::Result<Self> {
        Self::map_anonymous(bytes, MapFlags::PRIVATE)
    }

    /// Merges pages that are not populated yet into huge ones now (Linux 6.1); returns whether that worked.
    ///
    /// One page of each huge one must be populated. If all were, the kernel would clear and then copy them:
    /// 64 MiB then take 55-95 ms instead of 10-30.
    fn merge_into_huge_pages(&self) -> bool {
        let populate = |first: usize| {
            // SAFETY: the page at `first` is one of this mapping's, whose contents stay.
            unsafe { libc::madvise(self.base.as_ptr().add(first).cast(), 1, libc::MADV_POPULATE_WRITE) == 0 }
        };
        // SAFETY: the range is exactly this mapping, whose contents stay.
        let collapse =
            || unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_COLLAPSE) == 0 };
        let is_long = self.bytes >= HUGE_PAGE_BYTES;
        is_long && (0..self.bytes).step_by(HUGE_PAGE_BYTES).all(populate) && collapse()
    }

    fn map_anonymous(bytes: usize, flags: MapFlags) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let place = if flags.contains(MapFlags::SHARED) {
            Self::aligned_address_hint(bytes)
        } else {
            std::ptr::null_mut()
        };
        // SAFETY: a fresh mapping at an address of the kernel's choosing overlaps nothing.
        let base = unsafe { mm::mmap_anonymous(place, bytes, prot, flags)? };
        Ok(Self::from_base(base, bytes))
    }

    /// An address that is free now and aligned to huge pages, as a hint for shared memory, which the kernel
    /// does not align; null if there is none.
    fn aligned_address_hint(bytes: usize) -> *mut libc::c_void {
        // SAFETY: as in `map_anonymous`; it is unmapped again, untouched.
        let found = unsafe {
            mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes + HUGE_PAGE_BYTES,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )
            .and_then(|base| mm::munmap(base, bytes + HUGE_PAGE_BYTES).map(|()| base))
        };
        found.map_or(std::ptr::null_mut(), |base| {
            base.map_addr(|address| address.next_multiple_of(HUGE_PAGE_BYTES))
        })
    }

    pub(crate) fn of_ring(socket: BorrowedFd<'_>, offset_bytes: u64, bytes: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a fresh mapping at an address of the kernel's choosing overlaps nothing.
        let base = unsafe { mm::mmap(std::ptr::null_mut(), bytes, prot, flags, socket, offset_bytes)? };
        Ok(Self::from_base(base, bytes))
    }

    /// Maps the first bytes of a file, shared with all its other mappings; at least a page, whose part beyond
    /// the file's end must not be touched. A writable mapping is kept out of forked children: the kernel
    /// seals no file that a child could write.
    pub(crate) fn of_file(file: &impl AsFd, bytes: usize, is_writable: bool) -> io::Result<Self> {
        let prot = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let mut mapping = Self::map_shared(file, bytes.max(1), prot)?;
        if is_writable {
            mapping.exclude_from_children()?;
        }
        Ok(mapping)
    }

    /// Address space that pages received by TCP can be mapped into, kept out of forked children.
    pub(crate) fn of_tcp(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let mut mapping = Self::map_shared(&socket, bytes, ProtFlags::READ)?;
        mapping.exclude_from_children()?;
        Ok(mapping)
    }

    fn map_shared(file: &impl AsFd, bytes: usize, prot: ProtFlags) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choosing overlaps nothing.
        let base = unsafe { mm::mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, file, 0)? };
        Ok(Self::from_base(base, bytes))
    }

    fn from_base(base: *mut libc::c_void, bytes: usize) -> Self {
        Self { base: NonNull::new(base.cast()).expect("mmap never returns null"), bytes, only_in: None }
    }

    fn exclude_from_children(&mut self) -> io::Result<()> {
        self.advise(Advice::LinuxDontFork)?;
        self.only_in = Some(Generation::current());
        Ok(())
    }

    /// Whether this process is a forked child without the mapping.
    #[inline]
    pub(crate) fn is_absent_in_child(&self) -> bool {
        self.only_in.is_some_and(Generation::is_outdated)
    }

    /// Allocates all pages, of that size, so that no access fails later.
    pub(super) fn populate(&self, page_bytes: usize) -> io::Result<()> {
        match self.advise(Advice::LinuxPopulateWrite) {
            // Before Linux 5.14.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (0..self.bytes).step_by(page_bytes).try_for_each(|offset| self.touch_page(offset))
            }
            populated => populated,
        }
    }

    /// Makes the kernel write to a page: if none is available, that is an error (`EFAULT`), where the
    /// program's own write would be a signal.
    fn touch_page(&self, offset: usize) -> io::Result<()> {
        assert!(offset.is_multiple_of(size_of::<u64>()) && offset < self.bytes);
        // SAFETY: eight bytes of a page of this mapping, which is not in use before it is populated. The
        // kernel writes this thread's signal mask there, which is of so many bytes, and changes nothing else.
        unsafe {
            let place = self.base.as_ptr().add(offset).cast::<u64>();
            let (how, no_mask) = (libc::SIG_BLOCK, std::ptr::null::<u64>());
            if libc::syscall(libc::SYS_rt_sigprocmask, how, no_mask, place, size_of::<u64>()) < 0 {
                return Err(io::Error::last_os_error());
            }
            place.write(0);
        }
        Ok(())
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is exactly this mapping, and none of the advice used here discards contents.
        unsafe { mm::madvise(self.base.as_ptr().cast(), self.bytes, advice)? };
        Ok(())
    }

    /// Takes the pages of the mapping from a NUMA node as they are touched (mbind(2)).
    fn prefer_node(&self, node: u32) -> io::Result<()> {
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

    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_absent_in_child() {
            return;
        }
        // SAFETY: exactly the range that was mapped, and there is no pointer into it any more. A failure
        // would only leak the range.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More memory than exists, without a reservation: some page is not available.
    fn unobtainable_huge_pages() -> Option<Mapping> {
        const MANY_BYTES: usize = 1 << 40;
        Mapping::map_anonymous(MANY_BYTES, MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::NORESERVE).ok()
    }

    #[test]
    fn missing_huge_pages_are_an_error_not_a_signal() {
        let Some(mapping) = unobtainable_huge_pages() else { return }; // a kernel without them
        assert!(mapping.populate(HUGE_PAGE_BYTES).is_err());
        // As before Linux 5.14.
        let touched =
            (0..mapping.bytes).step_by(HUGE_PAGE_BYTES).try_for_each(|offset| mapping.touch_page(offset));
        assert_eq!(touched.unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn touching_a_page_leaves_it_zeroed() {
        let mapping = Mapping::zeroed_pages(3 * PAGE_BYTES).unwrap();
        (0..3).for_each(|page| mapping.touch_page(page * PAGE_BYTES).unwrap());
        // SAFETY: anonymous memory of this length that nobody writes to.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.base().as_ptr(), mapping.bytes()) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
}
