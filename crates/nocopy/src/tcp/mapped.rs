//! Receives by mapping pages, and remembers how well that worked.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::sys::tcp_receive::{MappingWindow, ReceivedPages};

/// Slots of a window, in use or waiting to be unmapped: the limit of mapped memory, 16 MiB.
const SLOTS: usize = 8;

/// Bytes after which the share of mapped ones is judged; and the smallest share worth continuing: one in this
/// many.
const JUDGED_BYTES: u64 = 256 << 10;
const WORTHWHILE_SHARE: u64 = 10;

#[derive(Debug)]
pub(super) enum MapRefusal {
    /// The program holds pages of all slots.
    NoSlot,
    /// The kernel or the machine does not support it.
    Unavailable(io::Error),
}

/// Consecutive copying calls after which the window is released, with dropped pages that are still mapped;
/// more than the policy makes to try a method.
const UNUSED_CALLS: u8 = 128;

#[derive(Debug, Default)]
pub(super) struct PageMapper {
    /// Made when it is first needed.
    window: Option<MappingWindow>,
    /// Consecutive calls that did not map.
    unused_calls: u8,
    /// The cost of unmapping a byte, smoothed: all of a slot is unmapped at once, in the call that finds it
    /// full.
    unmapping_ns: f64,
    /// Bytes since the last judgement.
    mapped_bytes: u64,
    copied_bytes: u64,
}

impl PageMapper {
    /// Whether the next call must unmap pages of earlier calls, which is not its own cost.
    pub(super) fn is_full(&self) -> bool {
        self.window.as_ref().is_some_and(MappingWindow::is_full)
    }

    /// Maps received data. Does not wait; at the end of the stream nothing arrives.
    pub(super) fn receive_pages(&mut self, socket: BorrowedFd<'_>) -> Result<ReceivedPages, MapRefusal> {
        self.unused_calls = 0;
        let window = match &mut self.window {
            Some(window) => window,
            none => none.insert(MappingWindow::new(SLOTS).map_err(MapRefusal::Unavailable)?),
        };
        match window.receive(socket) {
            // The copying call finds out which end it is.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(ReceivedPages::default()),
            arrived => arrived.map_err(MapRefusal::Unavailable),
        }
    }

    pub(super) fn make_room(&mut self) -> Result<(), MapRefusal> {
        let Some(window) = &mut self.window else { return Ok(()) };
        let started = Instant::now();
        let bytes = window.make_room().map_err(MapRefusal::Unavailable)?.ok_or(MapRefusal::NoSlot)?;
        if bytes > 0 {
            let each_ns = started.elapsed().as_nanos() as f64 / bytes as f64;
            let weight = if self.unmapping_ns > 0.0 { 0.25 } else { 1.0 };
            self.unmapping_ns += weight * (each_ns - self.unmapping_ns);
        }
        Ok(())
    }

    pub(super) fn unmapping_cost(&self, bytes: usize) -> Duration {
        Duration::from_nanos((self.unmapping_ns * bytes as f64) as u64)
    }

    /// Notes a call that did not map.
    #[inline]
    pub(super) fn note_unused_call(&mut self) {
        if self.window.is_some() {
            // No overflow: it is reset below.
            self.unused_calls += 1;
            if self.unused_calls == UNUSED_CALLS {
                self.unused_calls = 0;
                self.window.take_if(|window| window.is_idle());
            }
        }
    }

    /// Adds up the results of calls that tried to map; returns whether to give up for now, because almost
    /// nothing is mapped.
    pub(super) fn should_stop_mapping(&mut self, mapped_bytes: usize, copied_bytes: usize) -> bool {
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
