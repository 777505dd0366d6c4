//! The part of the address space that received pages are mapped into, and who holds which of them.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::memory::Mapping;
use crate::sys::sockets;

/// What is mapped is whole pages of this size; on a machine with others there is no window.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Bytes that are unmapped together, at the cost of one flush of the processors' address caches: what one table of pages covers.
const SLOT_BYTES: usize = 2 << 20;

/// Address space of slots. One is filled from front to back by one call after the other, and emptied as a whole, when the program has
/// dropped all pages of it.
///
/// It belongs to no connection: the kernel maps into any mapping of any TCP socket (`find_tcp_vma`), so this is one of a socket that was
/// closed at once. One of the connection's own would hold its file, and closing the connection would send no FIN until the last page
/// was dropped.
#[derive(Debug)]
pub(crate) struct Window {
    shared: Arc<Shared>,
    /// Bytes of each slot with pages in them, dropped or not.
    filled: Box<[usize]>,
    current: usize,
}

#[derive(Debug)]
struct Shared {
    mapping: Mapping,
    /// Of each slot, how many [`Pages`] there are.
    held: Box<[AtomicU32]>,
}

/// What one call brought, in the order of the stream: pages, bytes that were copied, and bytes to be received by another call.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) pages: Option<Pages>,
    /// Bytes copied to the front of the buffer.
    pub(crate) copied_bytes: usize,
    /// Bytes that come next and cannot be mapped.
    pub(crate) unmappable_bytes: usize,
    /// What the kernel has to say of the connection. It will not say so again.
    pub(crate) error: Option<io::Error>,
}

impl Arrived {
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.pages.as_deref().map_or(0, <[u8]>::len)
    }

    /// Whether it is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_none() && self.copied_bytes == 0
    }
}

impl Window {
    /// Address space of so many slots.
    ///
    /// # Errors
    /// The kernel's; `Unsupported` on a machine whose pages are of another size.
    pub(crate) fn new(slots: usize) -> io::Result<Self> {
        assert!(slots > 0, "a window of no slots");
        if rustix::param::page_size() != PAGE_BYTES {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mapping = Mapping::of_tcp(sockets::tcp()?.as_fd(), slots * SLOT_BYTES)?;
        let held = (0..slots).map(|_| AtomicU32::new(0)).collect();
        Ok(Self { shared: Arc::new(Shared { mapping, held }), filled: vec![0; slots].into(), current: 0 })
    }

    /// Bytes that can be mapped by the next call; `None` while the program holds pages of every slot. Unmaps what was dropped where
    /// that makes the room.
    ///
    /// # Errors
    /// The kernel's, to unmap.
    pub(crate) fn make_room(&mut self) -> io::Result<Option<usize>> {
        if self.filled[self.current] == SLOT_BYTES {
            // The same one again where it can be: its table of pages is in the cache, and the other slots stay empty.
            let order = [self.current].into_iter().chain(0..self.filled.len());
            let Some(free) = order.into_iter().find(|&slot| self.shared.is_free(slot)) else {
                return Ok(None);
            };
            self.empty(free)?;
            self.current = free;
        }
        Ok(Some(SLOT_BYTES - self.filled[self.current]))
    }

    fn empty(&mut self, slot: usize) -> io::Result<()> {
        if self.filled[slot] > 0 {
            // SAFETY: whole pages of this slot, of which nobody holds any.
            unsafe { self.shared.mapping.replace(self.shared.slot(slot), self.filled[slot])? };
            self.filled[slot] = 0;
        }
        Ok(())
    }

    /// Maps what has come, as far as it lies on whole pages of its own and there is room, and copies what is less than a page to the
    /// front of `rest`. Does not wait.
    ///
    /// # Errors
    /// The kernel's: `EIO` at the end of the stream. Nothing was received then.
    ///
    /// # Panics
    /// If there is no room.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, rest: &mut [u8]) -> io::Result<Arrived> {
        let (slot, start) = (self.current, self.filled[self.current]);
        let room = SLOT_BYTES - start;
        assert!(room > 0, "asked for room before");
        // Less than a page, or the kernel would copy pages that can be mapped (`receive_fallback_to_copy`).
        let rest_bytes = rest.len().min(PAGE_BYTES - 1);
        // SAFETY: `start` is within the slot.
        let first = unsafe { self.shared.slot(slot).add(start) };
        let mut request = Request {
            address: first.as_ptr() as u64,
            length: room as u32,
            copy_address: rest.as_mut_ptr() as u64,
            copy_length: rest_bytes as i32,
            flags: Request::IS_UNMAPPED,
            ..Request::default()
        };
        request.ask(socket)?;
        // A length below zero is an error of the copying, and nothing was copied.
        let (mapped, copied) = (request.length as usize, usize::try_from(request.copy_length).unwrap_or(0));
        if mapped > room || mapped % PAGE_BYTES != 0 || copied > rest_bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the kernel claims to have mapped what it cannot have",
            ));
        }
        self.filled[slot] += mapped;
        Ok(Arrived {
            pages: (mapped > 0).then(|| Pages::new(&self.shared, slot, start, mapped)),
            copied_bytes: copied,
            unmappable_bytes: request.skip as usize,
            error: (request.error < 0).then(|| io::Error::from_raw_os_error(-request.error)),
        })
    }
}

impl Shared {
    /// Whether nobody holds pages of a slot.
    fn is_free(&self, slot: usize) -> bool {
        // With the release of `Pages::drop`: who held pages has done with them.
        self.held[slot].load(Ordering::Acquire) == 0
    }

    fn slot(&self, slot: usize) -> NonNull<u8> {
        assert!(slot < self.held.len(), "slot {slot}");
        // SAFETY: within the mapping.
        unsafe { self.mapping.base().add(slot * SLOT_BYTES) }
    }
}

/// Pages that were received, read-only. They stay mapped until dropped, wherever that is, and whatever became of the connection.
pub(crate) struct Pages {
    shared: Arc<Shared>,
    first: NonNull<u8>,
    bytes: u32,
    slot: u32,
}

// SAFETY: memory that nobody writes to, held by a counter that any thread may change.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(shared: &Arc<Shared>, slot: usize, start: usize, bytes: usize) -> Self {
        // Only this thread makes it more, so nobody can find it to be zero meanwhile but this thread.
        shared.held[slot].fetch_add(1, Ordering::Relaxed);
        // SAFETY: `start` is within the slot.
        let first = unsafe { shared.slot(slot).add(start) };
        Self { shared: Arc::clone(shared), first, bytes: bytes as u32, slot: slot as u32 }
    }
}

impl Deref for Pages {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the kernel said that it mapped so many bytes here. They are unmapped only when nobody holds pages of the slot, or
        // with the mapping, which this keeps. Nobody writes to them: they were a packet's, and are of no file, no memory of a
        // process, and no larger page (`can_map_frag`).
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.bytes as usize) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // With the acquire of `is_free`.
        self.shared.held[self.slot as usize].fetch_sub(1, Ordering::Release);
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({} bytes in slot {})", self.bytes, self.slot)
    }
}

/// `struct tcp_zerocopy_receive` of `linux/tcp.h`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Request {
    address: u64,
    /// Asked for, and then mapped.
    length: u32,
    skip: u32,
    queued: u32,
    /// Zero, or the negative of an `errno`.
    error: i32,
    copy_address: u64,
    /// To be had, and then copied.
    copy_length: i32,
    flags: u32,
    control: [u64; 2],
    message_flags: u32,
    reserved: u32,
}

impl Request {
    const OPTION: libc::c_int = 35;
    /// `TCP_RECEIVE_ZEROCOPY_FLAG_TLB_CLEAN_HINT`: nothing is mapped there, so nothing need be unmapped.
    const IS_UNMAPPED: u32 = 1;
    /// As far as `recv_skip_hint`: then the kernel keeps the connection's error to itself.
    const SHORT_BYTES: usize = 16;

    fn ask(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.get(socket, size_of::<Self>())
    }

    /// Maps and copies nothing, whatever there is, and takes no error away from others.
    pub(super) fn ask_shortly(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.get(socket, Self::SHORT_BYTES)
    }

    fn get(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        assert!(bytes <= size_of::<Self>());
        let mut bytes = bytes as libc::socklen_t;
        // SAFETY: pointer and length describe `self`, which outlives the call. What it points to is set by `Window::receive` only: a
        // part of the window that nobody holds pages of, and a buffer that is borrowed exclusively meanwhile; all zeros map nothing.
        let result = unsafe {
            let (socket, request) = (socket.as_raw_fd(), std::ptr::from_mut(self).cast());
            libc::getsockopt(socket, libc::IPPROTO_TCP, Self::OPTION, request, &raw mut bytes)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

const _: () = assert!(size_of::<Request>() == 64);
