//! The calls that hand bytes of a stream to the kernel.

use std::io;
use std::os::fd::AsFd;

use rustix::net::SendFlags;
use smallvec::SmallVec;

use super::numbering::OpenCall;
use super::{CallNote, Extent, Payload, SendQueue};
use crate::sys::stream;

/// How a stream is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendMode {
    /// `more`: other bytes follow at once, and may share a segment with the last of these (`MSG_MORE`).
    Copied {
        waits: bool,
        more: bool,
    },
    ZeroCopy {
        waits: bool,
    },
    Ring,
}

impl<P: Payload, C: CallNote> SendQueue<P, C> {
    /// Sends on a stream, by one call, and returns how many bytes the kernel took. On an error of the kernel
    /// it took none, and the call has no number. Zero-copy: `Unsupported` if this sender may make no such
    /// calls, without a working ring, and in a forked child; `ENOBUFS` if the ring is full.
    pub(crate) fn send(&mut self, extent: Extent, mode: SendMode, note: C) -> io::Result<usize> {
        match mode {
            // SAFETY: the entries are borrowed for the call, which copies.
            SendMode::Copied { waits, more } => unsafe {
                let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
                let taken = stream::send_pieces(self.socket.as_fd(), &self.io_slices(extent), waits, flags)?;
                Ok(taken.min(extent.bytes))
            },
            SendMode::ZeroCopy { waits } => self.send_numbered(extent, waits, note),
            SendMode::Ring => self.send_by_ring(extent, note),
        }
    }

    fn send_numbered(&mut self, extent: Extent, waits: bool, note: C) -> io::Result<usize> {
        self.check_zero_copy()?;
        // SAFETY: the entries are held, unchanged, until the call, recorded below, was reported, or they were
        // abandoned for good.
        let taken = unsafe {
            stream::send_pieces(self.socket.as_fd(), &self.io_slices(extent), waits, stream::ZERO_COPY)?
        };
        // The kernel's count is not trusted: more bytes would be those of entries that were not passed.
        let taken = taken.min(extent.bytes);
        let extent = self.entries.extent(extent.start, taken);
        self.entries.open_call(extent.tickets());
        self.numbered.calls.push(OpenCall { extent, note });
        Ok(taken)
    }

    /// By the ring, which reports every call, even one that sent nothing.
    fn send_by_ring(&mut self, extent: Extent, note: C) -> io::Result<usize> {
        self.check_not_forked()?;
        let Self { entries, ring, .. } = self;
        // Below, `end` is the number that `push` gives: nothing else adds to the table in between.
        let ring = match ring {
            Some(ring) if !ring.sender.is_broken() => ring,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        if ring.sender.is_full() {
            // Not `WouldBlock`: the socket has room, so a wait for room would end at once.
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        // SAFETY: the entries are held, unchanged, until the call, recorded below, was reported, or they were
        // abandoned for good.
        let sent = unsafe { ring.sender.send_at_once(ring.calls.next_number(), entries.pieces(extent)) };
        let extent = entries.extent(extent.start, extent.bytes.min(*sent.as_ref().unwrap_or(&0)));
        entries.open_call(extent.tickets());
        ring.calls.push(OpenCall { extent, note });
        sent
    }

    fn io_slices(&self, extent: Extent) -> SmallVec<[io::IoSlice<'_>; 16]> {
        self.entries.pieces(extent).map(io::IoSlice::new).collect()
    }

    pub(crate) fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    pub(crate) fn is_ring_full(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.sender.is_full())
    }

    pub(crate) fn is_ring_broken(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.sender.is_broken())
    }
}
