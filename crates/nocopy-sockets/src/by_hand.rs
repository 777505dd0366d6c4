//! A minimal implementation: bursts of equal datagrams on one socket, without a deadline or any other rule.
//! The bench measures it as the upper limit (`NOCOPY_BATCH_TUNING=by-hand`). With `by-hand-first`, the first
//! datagram of each burst is sent alone, as in `outgoing`: the limit with that rule.

use std::cell::UnsafeCell;

use crate::environment::MinimalBurstMode;
use crate::run::DatagramShape;
use crate::sys::{self, BurstMessage};

const BUFFER_BYTES: usize = 64 << 10;

struct MinimalBurst {
    descriptor: i32,
    shape: Option<DatagramShape>,
    count: usize,
    /// Whether the next datagram is sent alone.
    is_first: bool,
    bytes: [u8; BUFFER_BYTES],
}

struct SingleThreadCell(UnsafeCell<MinimalBurst>);

// SAFETY: the programs for which this is meant send from one thread.
unsafe impl Sync for SingleThreadCell {}

static BURST: SingleThreadCell = SingleThreadCell(UnsafeCell::new(MinimalBurst {
    descriptor: -1,
    shape: None,
    count: 0,
    is_first: true,
    bytes: [0; BUFFER_BYTES],
}));

/// Sends a datagram; true if it joined the burst, or was sent with it.
pub(crate) fn send_in_minimal_burst(
    descriptor: i32,
    shape: DatagramShape,
    parts: &[libc::iovec],
    mode: MinimalBurstMode,
) -> bool {
    if shape.segments_max() < 2 {
        return false;
    }
    // SAFETY: one thread.
    let burst = unsafe { &mut *BURST.0.get() };
    if (burst.descriptor, burst.shape) != (descriptor, Some(shape)) {
        hand_over(burst);
        (burst.descriptor, burst.shape) = (descriptor, Some(shape));
    }
    if mode == MinimalBurstMode::FirstSingly
        && burst.count == 0
        && std::mem::replace(&mut burst.is_first, false)
    {
        return false;
    }
    let mut at = burst.count * shape.bytes;
    for part in parts {
        // SAFETY: the program's memory; so many datagrams fit (`segments_max`).
        unsafe {
            let to = burst.bytes.as_mut_ptr().add(at);
            std::ptr::copy_nonoverlapping(part.iov_base.cast::<u8>(), to, part.iov_len);
        }
        at += part.iov_len;
    }
    burst.count += 1;
    if burst.count >= shape.segments_max() {
        hand_over(burst);
    }
    true
}

fn hand_over(burst: &mut MinimalBurst) {
    let Some(shape) = burst.shape.filter(|_| burst.count > 0) else { return };
    let bytes = burst.bytes.get(..burst.count * shape.bytes).unwrap_or_default();
    let mut message = BurstMessage::EMPTY;
    message.set_datagrams(shape.destination.sockaddr_bytes(), bytes, shape.bytes as u16, burst.count);
    loop {
        let sent = sys::send_message_unrecorded(burst.descriptor, &message);
        if sys::result_errno(sent) != Some(libc::EAGAIN) {
            break;
        }
        sys::wait_until_writable(burst.descriptor, 100);
    }
    (burst.count, burst.is_first) = (0, true);
}

/// Sends the rest at the end of the program.
pub(crate) fn flush_minimal_burst() {
    // SAFETY: one thread.
    hand_over(unsafe { &mut *BURST.0.get() });
}
