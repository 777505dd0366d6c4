//! Packets to be sent by one system call, without gathering them first.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const BATCH: usize = 64;

pub(crate) struct OutgoingBatch {
    /// Referenced by `packets`; never grows beyond its capacity.
    pieces: Vec<libc::iovec>,
    packets: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers are used by `send` only, whose caller vouches for what they point to.
unsafe impl Send for OutgoingBatch {}

impl OutgoingBatch {
    /// The most pieces of a packet, and of all the packets of a batch (`UIO_MAXIOV`).
    pub(crate) const PIECES_MAX: usize = 1024;

    pub(crate) fn new() -> Self {
        Self { pieces: Vec::with_capacity(Self::PIECES_MAX), packets: Vec::with_capacity(BATCH) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.packets.clear();
    }

    /// Adds a packet in pieces; false, and no change, if the batch is full.
    ///
    /// # Safety
    /// The pieces stay readable, and are not written, until the batch is cleared.
    pub(crate) unsafe fn push(&mut self, pieces: impl ExactSizeIterator<Item = (*const u8, usize)>) -> bool {
        let count = pieces.len();
        if self.packets.len() == BATCH || self.pieces.len() + count > Self::PIECES_MAX {
            return false;
        }
        let first = self.pieces.len();
        // No more than `count`, whatever the iterator has: beyond its capacity the vector would move, and
        // packets point to it.
        self.pieces.extend(
            pieces
                .take(count)
                .map(|(base, len)| libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len }),
        );
        // SAFETY: all-zero is a valid `mmsghdr`.
        let mut packet: libc::mmsghdr = unsafe { std::mem::zeroed() };
        packet.msg_hdr.msg_iov = &raw mut self.pieces[first];
        packet.msg_hdr.msg_iovlen = count as _;
        self.packets.push(packet);
        true
    }

    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: as many messages as there are, each pointing at its pieces in `self.pieces`, which has not
        // moved since (its capacity is fixed), and those at readable bytes (`push`).
        let sent = unsafe {
            let (packets, count) = (self.packets.as_mut_ptr(), self.packets.len() as libc::c_uint);
            // By its number: musl's function of that name makes a call for each message.
            libc::syscall(libc::SYS_sendmmsg, socket.as_raw_fd(), packets, count, libc::MSG_DONTWAIT)
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}
