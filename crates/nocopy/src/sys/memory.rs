//! Memory mappings: the area itself and the kernel's rings.

#[cfg(feature = "port")]
mod for_area;
#[cfg(any(feature = "port", feature = "tcp"))]
mod populated;

use std::io;
#[cfg(feature = "tcp")]
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

#[cfg(feature = "port")]
pub(crate) use for_area::{MappingError, PageKind};
#[cfg(any(feature = "port", feature = "tcp"))]
pub(super) use populated::PAGE_BYTES;
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::fork::Generation;

/// Bytes in a huge page of this architecture (x86-64, and arm64 with 4 KiB base pages).
const HUGE_PAGE_BYTES: usize = 2 << 20;

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

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is exactly this mapping, and none of the advice used here discards contents.
        unsafe { mm::madvise(self.base.as_ptr().cast(), self.bytes, advice)? };
        Ok(())
    }

    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Shared mappings.
#[cfg(feature = "tcp")]
impl Mapping {
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
