//! The part of the address space that received pages are mapped into, and which of them are in use.
//!
//! The window belongs to a socket that was closed at once, so chunks outlive their connection and do not keep
//! it open. Slots of 2 MiB are filled from front to back, and unmapped as a whole when all chunks of a slot
//! are dropped, because each unmapping flushes address translation caches (TLB).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::MappedBytes;
use crate::sys::memory::Mapping;
use crate::sys::sockets;

/// Mappings consist of whole pages of this size; on a machine with others there is no window.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Bytes that are unmapped together, with one flush of the processors' address caches: the range of one page
/// table.
const SLOT_BYTES: usize = 2 << 20;

/// Slots of address space. One after the other is filled from front to back, and unmapped as a whole when the
/// program has dropped all its pages.
///
/// It belongs to no connection: the kernel maps into any mapping of any TCP socket (`find_tcp_vma`), so this
/// is one of a socket that was closed at once. A mapping of the connection's own socket would hold its file,
/// and closing the connection would send no FIN until the last page was dropped.
#[derive(Debug)]
pub(crate) struct MappingWindow {
    shared: Arc<WindowMemory>,
    /// Bytes of each slot with pages in them, dropped or not.
    filled: Box<[usize]>,
    current: usize,
}

#[derive(Debug)]
struct WindowMemory {
    mapping: Mapping,
    /// The number of [`MappedPages`] of each slot.
    held: Box<[AtomicU32]>,
}

/// The result of one call, in the order of the stream: pages, then bytes to be received by another call.
#[derive(Debug, Default)]
pub(crate) struct ReceivedPages {
    pub(crate) pages: Option<MappedPages>,
    /// Following bytes that cannot be mapped.
    pub(crate) unmappable_bytes: usize,
    /// The connection's error, which the kernel reports once.
    pub(crate) error: Option<io::Error>,
}

impl ReceivedPages {
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.pages.as_ref().map_or(0, MappedPages::len)
    }
}

impl MappingWindow {
    /// Reserves address space for `slots` slots. Errors: the kernel's error; `Unsupported` on a machine with
    /// another page size.
    pub(crate) fn new(slots: usize) -> io::Result<Self> {
        assert!(slots > 0, "a window of no slots");
        if rustix::param::page_size() != PAGE_BYTES {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mapping = Mapping::of_tcp(sockets::tcp_socket()?.as_fd(), slots * SLOT_BYTES)?;
        let held = (0..slots).map(|_| AtomicU32::new(0)).collect();
        Ok(Self {
            shared: Arc::new(WindowMemory { mapping, held }),
            filled: vec![0; slots].into(),
            current: 0,
        })
    }

    /// Whether pages must be unmapped before more can be mapped.
    pub(crate) fn is_full(&self) -> bool {
        self.filled[self.current] == SLOT_BYTES
    }

    pub(crate) fn is_idle(&self) -> bool {
        (0..self.filled.len()).all(|slot| self.shared.is_free(slot))
    }

    /// Continues in a slot whose pages were all dropped, and returns the bytes that had to be unmapped;
    /// `None` while the program holds pages of every slot. Errors: the kernel's, to unmap.
    pub(crate) fn make_room(&mut self) -> io::Result<Option<usize>> {
        // The same slot again if possible: its page table is in the cache, and the other slots stay empty.
        let mut order = [self.current].into_iter().chain(0..self.filled.len());
        let Some(free) = order.find(|&slot| self.shared.is_free(slot)) else { return Ok(None) };
        let unmapped = self.filled[free];
        if unmapped > 0 {
            // SAFETY: whole pages of this slot, of which nobody holds any.
            unsafe { self.shared.mapping.replace_pages(self.shared.slot_start(free), unmapped)? };
        }
        (self.current, self.filled[free]) = (free, 0);
        Ok(Some(unmapped))
    }

    /// Maps received data that consists of whole pages, while there is room. Does not wait.
    ///
    /// The kernel offers to copy the bytes after them in the same call, which is not used: where room ends it
    /// would copy the beginning of a page that could be mapped, so that the rest of its packet could not, and
    /// it would copy past the mark of an urgent byte (`tcp_zc_handle_leftover` checks only the packet's
    /// length). Errors: the kernel's: `EIO` at the end of the stream. Nothing was then received. Panics if
    /// there is no room.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<ReceivedPages> {
        let (slot, start) = (self.current, self.filled[self.current]);
        let room = SLOT_BYTES - start;
        assert!(room > 0, "asked for room before");
        // SAFETY: `start` is within the slot.
        let first = unsafe { self.shared.slot_start(slot).add(start) };
        let mut request = ZeroCopyReceive {
            address: first.as_ptr() as u64,
            length: room as u32,
            flags: ZeroCopyReceive::IS_UNMAPPED,
            ..ZeroCopyReceive::default()
        };
        request.request_pages(socket)?;
        let mapped = request.length as usize;
        if mapped > room || !mapped.is_multiple_of(PAGE_BYTES) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the kernel claims to have mapped what it cannot have",
            ));
        }
        self.filled[slot] += mapped;
        Ok(ReceivedPages {
            pages: (mapped > 0).then(|| MappedPages::new(&self.shared, slot, start, mapped)),
            unmappable_bytes: request.skip as usize,
            error: (request.error < 0).then(|| io::Error::from_raw_os_error(-request.error)),
        })
    }
}

impl WindowMemory {
    fn is_free(&self, slot: usize) -> bool {
        // Pairs with the release of `MappedPages::drop`: the holders of pages have finished with them.
        self.held[slot].load(Ordering::Acquire) == 0
    }

    fn slot_start(&self, slot: usize) -> NonNull<u8> {
        assert!(slot < self.held.len(), "slot {slot}");
        // SAFETY: within the mapping.
        unsafe { self.mapping.base().add(slot * SLOT_BYTES) }
    }
}

/// Received pages, which this process cannot write to. They stay mapped until dropped, on any thread, even
/// after the connection was closed.
pub(crate) struct MappedPages {
    shared: Arc<WindowMemory>,
    first: NonNull<u8>,
    bytes: u32,
    slot: u32,
}

// SAFETY: memory that is accessible only as `MappedBytes`, held by a counter that any thread may change.
unsafe impl Send for MappedPages {}
// SAFETY: as above.
unsafe impl Sync for MappedPages {}

impl MappedPages {
    fn new(shared: &Arc<WindowMemory>, slot: usize, start: usize, bytes: usize) -> Self {
        // Only this thread increments it, so it cannot become zero by other threads and be reused meanwhile.
        shared.held[slot].fetch_add(1, Ordering::Relaxed);
        // SAFETY: `start` is within the slot.
        let first = unsafe { shared.slot_start(slot).add(start) };
        Self { shared: Arc::clone(shared), first, bytes: bytes as u32, slot: slot as u32 }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes as usize
    }

    /// The bytes of the pages.
    ///
    /// The kernel maps no page of a file or of a process's ordinary memory (`can_map_frag`), but it does map
    /// a page of a ring (of packets or of io_uring) that a process sends by vmsplice(2); and that process can
    /// still write to it.
    pub(crate) fn bytes(&self) -> MappedBytes<'_> {
        // SAFETY: the kernel said that it mapped so many bytes here. They are unmapped only when nobody holds
        // pages of the slot, or with the mapping, which this keeps.
        unsafe { MappedBytes::new(self.first, self.len()) }
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // Pairs with the acquire of `is_free`.
        self.shared.held[self.slot as usize].fetch_sub(1, Ordering::Release);
    }
}

impl fmt::Debug for MappedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({} bytes in slot {})", self.bytes, self.slot)
    }
}

/// `struct tcp_zerocopy_receive` of `linux/tcp.h`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct ZeroCopyReceive {
    address: u64,
    /// Bytes requested, and then mapped.
    length: u32,
    skip: u32,
    queued: u32,
    /// Zero, or the negative of an `errno`.
    error: i32,
    copy_address: u64,
    copy_length: i32,
    flags: u32,
    control: [u64; 2],
    message_flags: u32,
    reserved: u32,
}

impl ZeroCopyReceive {
    const OPTION: libc::c_int = 35;
    /// `TCP_RECEIVE_ZEROCOPY_FLAG_TLB_CLEAN_HINT`: nothing is mapped there, so nothing need be unmapped.
    const IS_UNMAPPED: u32 = 1;
    /// Ends with `recv_skip_hint`: the kernel then does not report the connection's error.
    const SHORT_BYTES: usize = 16;

    fn request_pages(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.get_option(socket, size_of::<Self>())
    }

    /// Asks the kernel without mapping, copying, or taking an error away from other calls.
    pub(super) fn query(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.get_option(socket, Self::SHORT_BYTES)
    }

    fn get_option(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        assert!(bytes <= size_of::<Self>());
        let mut bytes = bytes as libc::socklen_t;
        // SAFETY: pointer and length describe `self`, which outlives the call. What it points to is set by
        // `MappingWindow::receive` only: a part of the window that nobody holds pages of; all zeros map
        // nothing, and no buffer to copy to is ever given.
        let result = unsafe {
            let (socket, request) = (socket.as_raw_fd(), std::ptr::from_mut(self).cast());
            libc::getsockopt(socket, libc::IPPROTO_TCP, Self::OPTION, request, &raw mut bytes)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

const _: () = assert!(size_of::<ZeroCopyReceive>() == 64);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::{Duration, Instant};

    use socket2::SockRef;

    use super::*;
    use crate::sys::option;

    #[test]
    fn the_rest_of_a_packet_stays_mappable() {
        // Less than a first segment over loopback (32741 bytes).
        const PAGES: usize = 7;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = listener.accept().unwrap().0;
        option::allow_zero_copy(&sender).unwrap();
        let pages = vec![7; PAGES * PAGE_BYTES];
        let sent = SockRef::from(&sender).send_with_flags(&pages, libc::MSG_ZEROCOPY).unwrap();
        assert_eq!(sent, pages.len());
        let started = Instant::now();
        while rustix::io::ioctl_fionread(&receiver).unwrap() < pages.len() as u64 {
            assert!(started.elapsed() < Duration::from_secs(60), "not queued");
            thread::sleep(Duration::from_millis(1));
        }

        let mut window = MappingWindow::new(2).unwrap();
        window.filled[0] = SLOT_BYTES - 2 * PAGE_BYTES;
        let first = window.receive(receiver.as_fd()).unwrap();
        assert_eq!((first.mapped_bytes(), first.unmappable_bytes), (2 * PAGE_BYTES, 0));
        assert!(window.is_full() && !window.is_idle());
        assert_eq!(window.make_room().unwrap(), Some(0), "the other slot");
        let rest = window.receive(receiver.as_fd()).unwrap();
        assert_eq!((rest.mapped_bytes(), rest.unmappable_bytes), ((PAGES - 2) * PAGE_BYTES, 0));
        assert!(
            first.pages.iter().chain(&rest.pages).all(|pages| pages
                .bytes()
                .to_vec()
                .iter()
                .all(|&byte| byte == 7))
        );
        drop((first, rest));
        assert!(window.is_idle());
    }
}
