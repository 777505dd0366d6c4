//! One frame by the packet socket, sent by the call while it holds nothing of the handle.

use std::ffi::{c_int, c_void};
use std::io;

unsafe extern "C-unwind" {
    // Cancellation points: a thread may end in them (pthread_cancel(3)), and leave this library's functions.
    fn send(socket: c_int, bytes: *const c_void, len: usize, flags: c_int) -> isize;
    fn poll(polled: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
}

/// How to send a frame. Plain data: the thread may leave the call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SingleSend {
    pub(super) socket: c_int,
    pub(super) nonblocking: bool,
}

/// How that ended: the kernel's error, if there was one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendResult(Option<c_int>);

impl SingleSend {
    /// Sends; waits for room, unless the call must not wait.
    pub(crate) fn send_frame(self, frame: &[u8]) -> SendResult {
        let flags = if self.nonblocking { libc::MSG_DONTWAIT } else { 0 };
        loop {
            // SAFETY: the pointer and length are those of `frame`.
            if unsafe { send(self.socket, frame.as_ptr().cast(), frame.len(), flags) } >= 0 {
                return SendResult(None);
            }
            let error = SendResult(Some(errno()));
            if self.nonblocking || error.0 != Some(libc::EAGAIN) {
                return error;
            }
            // The capture's descriptor may be non-blocking although the handle is not.
            let mut wait = libc::pollfd { fd: self.socket, events: libc::POLLOUT, revents: 0 };
            // SAFETY: one entry, which outlives the call.
            if unsafe { poll(&raw mut wait, 1, -1) } < 0 {
                return SendResult(Some(errno()));
            }
        }
    }
}

impl SendResult {
    pub(crate) fn into_io_result(self) -> io::Result<()> {
        self.0.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}

fn errno() -> c_int {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() }
}
