//! Memory that is not Rust's: pages that are unmapped when their owner is dropped.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nocopy::BufferMut;

/// The owner of the pages, which counts its drops.
struct Pages(NonNull<u8>, usize, Arc<AtomicUsize>);

// SAFETY: only an address and a number, and pages are unmapped by any thread.
unsafe impl Send for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `RawMemory::map`; the buffer that used them is dropped.
        unsafe { libc::munmap(self.0.as_ptr().cast(), self.1) };
        self.2.fetch_add(1, Relaxed);
    }
}

/// The address of such memory, as the code that allocated it has it.
pub(crate) struct RawMemory {
    first: NonNull<u8>,
    bytes: usize,
    dropped: Arc<AtomicUsize>,
}

impl RawMemory {
    /// Memory of zeros, and the buffer that has it. Pages that are not touched take no memory.
    pub(crate) fn map(bytes: usize) -> (Self, BufferMut) {
        Self::map_if_allowed(bytes).expect("a few pages")
    }

    /// `None`: the machine counts also pages that are not touched (`vm.overcommit_memory`).
    pub(crate) fn map_if_allowed(bytes: usize) -> Option<(Self, BufferMut)> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new pages.
        let first = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if first == libc::MAP_FAILED {
            return None;
        }
        let (first, dropped) = (NonNull::new(first.cast::<u8>()).unwrap(), Arc::<AtomicUsize>::default());
        let owner = Pages(first, bytes, Arc::clone(&dropped));
        // SAFETY: mapped until the owner is dropped; `read` and `write` are used between calls, from the
        // thread of the test.
        let buffer = unsafe { BufferMut::from_raw(first, bytes, owner) };
        Some((Self { first, bytes, dropped }, buffer))
    }

    pub(crate) fn address(&self) -> *const u8 {
        self.first.as_ptr()
    }

    pub(crate) fn range(&self) -> Range<*const u8> {
        self.address()..self.address().wrapping_add(self.bytes)
    }

    /// Writes one value to all bytes, past the library.
    pub(crate) fn write(&self, value: u8) {
        assert!(!self.is_returned());
        // SAFETY: mapped, and no call of the library runs.
        unsafe { self.first.as_ptr().write_bytes(value, self.bytes) };
    }

    /// Reads a byte, past the library.
    pub(crate) fn read(&self, index: usize) -> u8 {
        assert!(index < self.bytes && !self.is_returned());
        // SAFETY: mapped, and no call of the library runs.
        unsafe { self.first.add(index).read() }
    }

    /// Whether the owner was dropped.
    pub(crate) fn is_returned(&self) -> bool {
        match self.dropped.load(Relaxed) {
            0 => false,
            1 => true,
            drops => panic!("dropped {drops} times"),
        }
    }
}
