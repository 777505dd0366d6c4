//! Receiving by mapping pages, and what it has brought so far.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sys::tcp_receive::{Arrived, Window};

/// Slots of a window: the bound of what is mapped at a time, in use or to be unmapped with the rest of its slot. 16 MiB.
const SLOTS: usize = 8;

/// Bytes by which it is judged whether anything maps, and the share of them that must have: one in so many.
const JUDGED_BYTES: u64 = 256 << 10;
const WORTHWHILE_SHARE: u64 = 10;

/// Why nothing was mapped, though it was tried.
#[derive(Debug)]
pub(super) enum Refused {
    /// The program holds pages of all slots.
    NoSlot,
    /// The kernel, or the machine, does not do it.
    Unavailable(io::Error),
}

/// The mapping way of a receiver.
#[derive(Debug, Default)]
pub(super) struct Mapper {
    /// Made when it is first needed.
    window: Option<Window>,
    /// Bytes since it was last judged.
    mapped_bytes: u64,
    copied_bytes: u64,
}

impl Mapper {
    /// Maps what is there, and copies what is less than a page to the front of `rest`. Does not wait; at the end of the stream nothing
    /// arrives.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>, rest: &mut [u8]) -> Result<Arrived, Refused> {
        let window = match &mut self.window {
            Some(window) => window,
            none => none.insert(Window::new(SLOTS).map_err(Refused::Unavailable)?),
        };
        if window.make_room().map_err(Refused::Unavailable)?.is_none() {
            return Err(Refused::NoSlot);
        }
        match window.receive(socket, rest) {
            // What it is the end of, the call that copies knows better.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(Arrived::default()),
            arrived => arrived.map_err(Refused::Unavailable),
        }
    }

    /// Takes what was received when pages were to be mapped, and says whether this is to be given up for now: nearly nothing maps.
    pub(super) fn is_pointless(&mut self, mapped_bytes: usize, copied_bytes: usize) -> bool {
        self.mapped_bytes += mapped_bytes as u64;
        self.copied_bytes += copied_bytes as u64;
        let (mapped, all) = (self.mapped_bytes, self.mapped_bytes + self.copied_bytes);
        if all < JUDGED_BYTES {
            return false;
        }
        (self.mapped_bytes, self.copied_bytes) = (0, 0);
        mapped * WORTHWHILE_SHARE < all
    }
}
