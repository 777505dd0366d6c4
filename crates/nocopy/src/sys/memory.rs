//! Memory mappings: the area itself and the kernel's rings.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

/// Bytes in a huge page of this architecture (x86-64, and arm64 with 4 KiB base pages).
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What kind of pages an area was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pages {
    /// Pages of the huge-page pool (`MAP_HUGETLB`).
    Huge,
    /// Base pages that the kernel was asked to merge (`MADV_HUGEPAGE`): the huge-page pool is empty.
    Transparent,
    /// Base pages: the pool is empty and transparent huge pages are off.
    Base,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge => "huge pages",
            Self::Transparent => "transparent huge pages as the kernel sees fit: the pool of huge pages (vm.nr_hugepages) is empty",
            Self::Base => "base pages: the pool of huge pages (vm.nr_hugepages) is empty and transparent ones are off",
        })
    }
}

/// Why there is no memory for an area.
#[derive(Debug)]
pub(crate) enum AreaRefused {
    Memory(io::Error),
    /// The NUMA node cannot be had.
    Node(io::Error),
}

impl From<io::Error> for AreaRefused {
    fn from(error: io::Error) -> Self {
        Self::Memory(error)
    }
}

/// A mapping that lives until it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory; who may touch which part is the business of the types built on it.
unsafe impl Send for Mapping {}
// SAFETY: as above; `Mapping` itself gives no access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Anonymous, populated, zeroed memory on the largest pages to be had, kept out of forked children unless they are to have it, too;
    /// of one NUMA node as far as it has memory left, if that matters.
    pub(crate) fn area(
        bytes: usize,
        node: Option<u32>,
        inherited: bool,
    ) -> Result<(Self, Pages), AreaRefused> {
        // Private memory would be copied by the fork, and the kernel go on with the pages of one process only.
        let sharing = if inherited { MapFlags::SHARED } else { MapFlags::PRIVATE };
        let keep_out =
            |mapping: &Self| if inherited { Ok(()) } else { mapping.advise(Advice::LinuxDontFork) };
        if let Ok(mapping) =
            Self::anonymous(bytes.next_multiple_of(HUGE_PAGE_BYTES), sharing | MapFlags::HUGETLB)
        {
            node.map_or(Ok(()), |node| mapping.prefer(node)).map_err(AreaRefused::Node)?;
            keep_out(&mapping)?;
            return Ok((mapping, Pages::Huge));
        }
        let mapping = Self::anonymous(bytes, sharing)?;
        // Advice comes before the first touch, or the base pages are there already.
        node.map_or(Ok(()), |node| mapping.prefer(node)).map_err(AreaRefused::Node)?;
        let pages = match mapping.advise(Advice::LinuxHugepage) {
            Ok(()) => Pages::Transparent,
            Err(_) => Pages::Base,
        };
        keep_out(&mapping)?;
        // Shared memory is merged by the way of files, which is off by default; asked for it at once, the kernel does so all the same.
        let is_merged = inherited && mapping.merge();
        match mapping.advise(Advice::LinuxPopulateWrite) {
            Ok(()) => {}
            // Before Linux 5.14 pages come with the first touch; the kernel touches them all when it pins the area.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(error.into()),
        }
        Ok((mapping, if is_merged { Pages::Transparent } else { pages }))
    }

    /// Anonymous, zeroed memory for buffers of sockets, kept out of forked children.
    ///
    /// Not on huge pages: they cannot be given up in parts, and io_uring charges a registered datagram with all of its page in front of
    /// it (`io_sg_from_iter`: `PAGE_ALIGN(bv_len + bv_offset)`), up to 2 MiB, so that one fills a socket's buffer.
    pub(crate) fn buffers(bytes: usize) -> io::Result<Self> {
        let mapping = Self::pages(bytes)?;
        // Where the kernel knows no huge pages, there is nothing to turn off.
        let _ = mapping.advise(Advice::LinuxNoHugepage);
        mapping.advise(Advice::LinuxDontFork)?;
        Ok(mapping)
    }

    /// Takes pages out; new, zeroed ones come in their place where the mapping is anonymous. Who still has the old ones, as the kernel
    /// may, keeps them.
    ///
    /// # Safety
    /// The range is whole pages of this mapping, and nobody needs what is in them.
    pub(crate) unsafe fn replace(&self, first: NonNull<u8>, bytes: usize) -> io::Result<()> {
        // SAFETY: by contract.
        unsafe { mm::madvise(first.as_ptr().cast(), bytes, Advice::LinuxDontNeed)? };
        Ok(())
    }

    /// Anonymous, zeroed pages.
    pub(crate) fn pages(bytes: usize) -> io::Result<Self> {
        Self::anonymous(bytes, MapFlags::PRIVATE)
    }

    /// Merges pages that are not there yet into huge ones now (Linux 6.1); whether that could be done.
    ///
    /// It takes one page of each huge one to be there. Were all, the kernel would clear and then copy them: 64 MiB took 55-95 ms, and
    /// take 10-30 so.
    fn merge(&self) -> bool {
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

    fn anonymous(bytes: usize, flags: MapFlags) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let place =
            if flags.contains(MapFlags::SHARED) { Self::aligned_place(bytes) } else { std::ptr::null_mut() };
        // SAFETY: a fresh mapping at an address of the kernel's choosing overlaps nothing.
        let base = unsafe { mm::mmap_anonymous(place, bytes, prot, flags)? };
        Ok(Self { base: NonNull::new(base.cast()).expect("mmap never returns null"), bytes })
    }

    /// An address that is free just now and a multiple of huge pages, for a hint to the kernel, which gives shared memory any; null for
    /// none.
    fn aligned_place(bytes: usize) -> *mut libc::c_void {
        // SAFETY: as in `anonymous`; it is unmapped again, untouched.
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

    /// One of a socket's rings.
    pub(crate) fn ring(socket: BorrowedFd<'_>, offset_bytes: u64, bytes: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a fresh mapping at an address of the kernel's choosing overlaps nothing.
        let base = unsafe { mm::mmap(std::ptr::null_mut(), bytes, prot, flags, socket, offset_bytes)? };
        Ok(Self { base: NonNull::new(base.cast()).expect("mmap never returns null"), bytes })
    }

    /// The first bytes of a file, shared with all who have it mapped; at least a page, which is not to be touched where the file ends
    /// before it. To be written, it is kept out of forked children: the kernel seals no file that a child could write.
    pub(crate) fn of_file(file: &impl AsFd, bytes: usize, is_writable: bool) -> io::Result<Self> {
        let prot = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let mapping = Self::shared(file, bytes.max(1), prot)?;
        if is_writable {
            mapping.advise(Advice::LinuxDontFork)?;
        }
        Ok(mapping)
    }

    /// Address space that pages received by TCP can be mapped into, kept out of forked children.
    pub(crate) fn of_tcp(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let mapping = Self::shared(&socket, bytes, ProtFlags::READ)?;
        mapping.advise(Advice::LinuxDontFork)?;
        Ok(mapping)
    }

    fn shared(file: &impl AsFd, bytes: usize, prot: ProtFlags) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choosing overlaps nothing.
        let base = unsafe { mm::mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, file, 0)? };
        Ok(Self { base: NonNull::new(base.cast()).expect("mmap never returns null"), bytes })
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is exactly this mapping, and none of the advice used here discards contents.
        unsafe { mm::madvise(self.base.as_ptr().cast(), self.bytes, advice)? };
        Ok(())
    }

    /// Takes the pages of the mapping from a NUMA node as they are touched (mbind(2)).
    fn prefer(&self, node: u32) -> io::Result<()> {
        const WORD_BITS: u32 = libc::c_ulong::BITS;
        let mut nodes: [libc::c_ulong; 16] = [0; 16];
        let word = nodes.get_mut((node / WORD_BITS) as usize);
        *word.ok_or(io::ErrorKind::InvalidInput)? = 1 << (node % WORD_BITS);
        // SAFETY: the range is exactly this mapping, whose contents the call leaves alone; the mask outlives it. (The kernel
        // reads one bit less than it is told of.)
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
    pub(crate) fn node(&self) -> Option<u32> {
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
        // SAFETY: exactly the range that was mapped, and nobody holds a pointer into it any more.
        // A failure would leak the range, which harms nobody.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
