//! A sender on this host that can still write to what it has sent: pages of a packet socket's ring, sent by
//! reference.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::pipe::{SpliceFlags, pipe, splice};
use socket2::{Domain, Socket, Type};

use super::PAGE_BYTES;
use crate::sys::memory::Mapping;

/// Pages that the kernel maps at the receiver, unlike other memory of a process: each is a block of its own,
/// not part of a larger one.
#[derive(Debug)]
pub(crate) struct RingPages {
    ring: Mapping,
    _socket: Socket,
}

impl RingPages {
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_RAW`.
    pub(crate) fn new(count: u32) -> io::Result<Self> {
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?; // of no protocol, so nothing is received
        let bytes = PAGE_BYTES as u32;
        let request = libc::tpacket_req {
            tp_block_size: bytes,
            tp_block_nr: count,
            tp_frame_size: bytes,
            tp_frame_nr: count,
        };
        // SAFETY: pointer and length describe `request`, which outlives the call.
        let result = unsafe {
            let (option, length) = ((&raw const request).cast(), size_of_val(&request) as libc::socklen_t);
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_RX_RING, option, length)
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let ring = Mapping::of_ring(socket.as_fd(), 0, count as usize * PAGE_BYTES)?;
        Ok(Self { ring, _socket: socket })
    }

    pub(crate) fn fill_bytes(&self, byte: u8) {
        for at in 0..self.ring.bytes() {
            // SAFETY: within the mapping, of which nobody has a reference.
            unsafe { self.ring.base().add(at).write_volatile(byte) };
        }
    }

    pub(crate) fn send_by_reference(&self, to: BorrowedFd<'_>) {
        let (reader, writer) = pipe().unwrap();
        let bytes = libc::iovec { iov_base: self.ring.base().as_ptr().cast(), iov_len: self.ring.bytes() };
        // SAFETY: the bytes are mapped, and only read; one vector that describes them.
        let loaded = unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const bytes, 1, 0) };
        let loaded = usize::try_from(loaded).map_err(|_| io::Error::last_os_error()).unwrap();
        assert_eq!(loaded, self.ring.bytes(), "a pipe has room for 16 pages");
        let mut sent = 0;
        while sent < loaded {
            sent += splice(&reader, None, to, None, loaded - sent, SpliceFlags::empty()).unwrap();
        }
    }
}
