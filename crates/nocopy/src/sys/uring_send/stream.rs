//! Sends on a stream, each decided before the next.

use std::io;

use super::{RingFull, UringSender};
use crate::sys::udp_send::KernelDestination;

/// How often to submit a send of a stream while the kernel is short of memory.
const ATTEMPTS_MAX: u32 = 1000;

impl UringSender {
    /// Sends on a stream by one system call, as much as the socket accepts at once, and returns how many
    /// bytes that is. Like any other send it is reaped once its memory is free, also if it failed. Errors:
    /// the kernel's, `WouldBlock` if there is no room in the send buffer or the ring; no byte was sent. Only
    /// if the ring had no room ([`is_full`](Self::is_full) before) there is nothing to be reaped. `EIO`: the
    /// ring [is broken](Self::is_broken). Panics if it is used on after it broke: queued sends then never
    /// leave the queue.
    ///
    /// # Safety
    /// The memory of the pieces stays in place, unchanged, until `user_data` was reaped.
    pub(crate) unsafe fn send_at_once<'p>(
        &mut self,
        user_data: u64,
        pieces: impl IntoIterator<Item = &'p [u8]>,
    ) -> io::Result<usize> {
        // The next send would overtake a waiting one. Since Linux 6.10, a send that shares a packet with the
        // one before is reported as copied although it is not (`io_link_skb` of io_uring/notif.c: the
        // evidence is noted only for the first): so each ends its packet.
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_EOR;
        // SAFETY: by contract.
        let place = unsafe {
            self.queue_send_with_flags(user_data, pieces, KernelDestination::CONNECTED, None, flags)
        }
        .map_err(|RingFull| io::ErrorKind::WouldBlock)?;
        let mut attempts = 0;
        loop {
            let submitted = match self.queued {
                0 => self.uring.submit_and_wait(1).map(drop), // taken, and not decided: it does not wait for room, so not for long
                _ => self.submit(),
            };
            self.read_completions();
            if let Some(result) = self.flights[place].result {
                return usize::try_from(result)
                    .map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()));
            }
            attempts += 1;
            if submitted.is_err() && self.queued > 0 && attempts >= ATTEMPTS_MAX {
                self.stop_submitting(place);
                // An error of the ring, not of the connection: other methods still work.
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
        }
    }

    /// The kernel refuses what is in the ring. Later it would be out of order in the stream, so nothing is
    /// submitted any more.
    fn stop_submitting(&mut self, place: usize) {
        // The kernel has not taken the entry, and nothing is submitted from now on: it never reads this
        // memory.
        self.is_broken = true;
        self.flights[place].result = Some(-libc::EIO);
        // No underflow: it had no result until now.
        self.undecided -= 1;
        self.over.push(place as u32);
    }

    /// Whether the kernel refused a send of a stream: nothing may be queued any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }
}
