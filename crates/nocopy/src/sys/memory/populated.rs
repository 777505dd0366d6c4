//! Memory whose pages are there before they are used.

use std::io;

use rustix::mm::Advice;

use super::Mapping;

/// The smallest page size.
pub(in crate::sys) const PAGE_BYTES: usize = 4096;

impl Mapping {
    /// Allocates all pages, of that size, so that no access fails later.
    pub(in crate::sys) fn populate(&self, page_bytes: usize) -> io::Result<()> {
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
    pub(super) fn touch_page(&self, offset: usize) -> io::Result<()> {
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
}
