//! Datagrams that the kernel dropped at a socket.

use std::borrow::Cow;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use crate::counter::Counter;
use crate::sys::udp_receive;

/// A 64-bit counter of the kernel's drops at a socket, which follows the kernel's 32-bit one.
#[derive(Debug, Default)]
pub(super) struct DropCounter(Mutex<u64>);

impl DropCounter {
    /// The drops since the socket was made.
    ///
    /// Read by a system call (`SO_MEMINFO`). `SO_RXQ_OVFL` would report the same along with each datagram,
    /// but only when the next one arrives. Errors: the kernel's refusal; `Unsupported` before Linux 4.12.
    pub(super) fn read_total(&self, socket: &impl AsFd) -> io::Result<u64> {
        // Read under the lock: otherwise an older number could follow a newer one, and look like an overflow
        // of the counter.
        let mut total = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *total = extend_counter(*total, udp_receive::dropped_packets(socket)?);
        Ok(*total)
    }
}

/// What a count has grown to, of which the kernel reports the lower 32 bits.
fn extend_counter(count: u64, now: u32) -> u64 {
    // Right if fewer than 2^32 were dropped since the last call.
    count + u64::from(now.wrapping_sub(count as u32))
}

/// The kernel's counter of drops at a socket.
pub(super) fn sk_drops_counter(value: u64) -> Counter {
    let meaning =
        "Packets that the kernel dropped at the socket: its receive buffer was full, or a checksum wrong.";
    Counter { name: Cow::Borrowed("sk_drops"), meaning, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_64_bit_drop_counter_follows_the_kernels_wrap() {
        assert_eq!([extend_counter(0, 5), extend_counter(5, u32::MAX)], [5, (1 << 32) - 1]);
        assert_eq!(extend_counter((1 << 32) - 1, 3), (1 << 32) + 3);
    }
}
