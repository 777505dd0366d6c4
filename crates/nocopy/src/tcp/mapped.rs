//! Receiving by mapping pages, and what it has brought so far.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

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

/// Calls that copied, in a row, after which the window is given back, with pages that were dropped and not unmapped yet. More than a trial
/// of the policy makes in between.
const UNUSED_CALLS: u8 = 128;

/// The mapping way of a receiver.
#[derive(Debug, Default)]
pub(super) struct Mapper {
    /// Made when it is first needed.
    window: Option<Window>,
    /// Calls in a row that did without.
    unused_calls: u8,
    /// What it costs to unmap a byte, smoothed: it comes for all of a slot at once, in the call that finds it full.
    unmapping_ns: f64,
    /// Bytes since it was last judged.
    mapped_bytes: u64,
    copied_bytes: u64,
}

impl Mapper {
    /// Whether the next call has to unmap what others mapped before, which is no cost of its own.
    pub(super) fn is_full(&self) -> bool {
        self.window.as_ref().is_some_and(Window::is_full)
    }

    /// Maps what is there. Does not wait; at the end of the stream nothing arrives.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<Arrived, Refused> {
        self.unused_calls = 0;
        let window = match &mut self.window {
            Some(window) => window,
            none => none.insert(Window::new(SLOTS).map_err(Refused::Unavailable)?),
        };
        match window.receive(socket) {
            // What it is the end of, the call that copies knows better.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(Arrived::default()),
            arrived => arrived.map_err(Refused::Unavailable),
        }
    }

    /// Makes room in a window that is full.
    pub(super) fn make_room(&mut self) -> Result<(), Refused> {
        let Some(window) = &mut self.window else { return Ok(()) };
        let started = Instant::now();
        let bytes = window.make_room().map_err(Refused::Unavailable)?.ok_or(Refused::NoSlot)?;
        if bytes > 0 {
            let each_ns = started.elapsed().as_nanos() as f64 / bytes as f64;
            let weight = if self.unmapping_ns > 0.0 { 0.25 } else { 1.0 };
            self.unmapping_ns += weight * (each_ns - self.unmapping_ns);
        }
        Ok(())
    }

    /// What it will cost to unmap so many bytes.
    pub(super) fn unmapping(&self, bytes: usize) -> Duration {
        Duration::from_nanos((self.unmapping_ns * bytes as f64) as u64)
    }

    /// A call did without it.
    #[inline]
    pub(super) fn unused(&mut self) {
        if self.window.is_some() {
            self.unused_calls += 1;
            if self.unused_calls == UNUSED_CALLS {
                self.unused_calls = 0;
                self.window.take_if(|window| window.is_idle());
            }
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
