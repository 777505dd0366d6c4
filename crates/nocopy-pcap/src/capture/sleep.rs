//! Waits for packets, made by the reading call while it holds nothing of the capture.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::StopRequest;

unsafe extern "C-unwind" {
    /// ppoll(2): a cancellation point, so that a thread may end in it (pthread_cancel(3)), and leave this
    /// library's functions.
    fn ppoll(
        polled: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        signals: *const libc::sigset_t,
    ) -> c_int;
}

/// A wait that is to be made. Plain data, as everything that a reading call has on its stack then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannedSleep {
    /// For packets, and for a stop; a negative one is passed over.
    polled: [libc::pollfd; 2],
    timeout: libc::timespec,
}

/// How a wait ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SleepResult {
    /// The events of the descriptor for packets, if it is not `errno`.
    pub(super) events: i16,
    is_stop: bool,
    errno: Option<c_int>,
}

impl PlannedSleep {
    /// Until packets arrive (if given), a stop is requested, or the time is over. There always is one: if
    /// another thread closes the handle before this sleeps, the descriptors are of something else.
    pub(super) fn new(packets: Option<BorrowedFd<'_>>, stop: &StopRequest, timeout: Duration) -> Self {
        let descriptor = |fd: Option<BorrowedFd<'_>>| libc::pollfd {
            fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
            events: libc::POLLIN,
            revents: 0,
        };
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        Self { polled: [descriptor(packets), descriptor(stop.descriptor())], timeout }
    }

    /// Sleeps. The thread may leave this in every way.
    #[inline]
    pub(crate) fn perform_sleep(mut self) -> SleepResult {
        let timeout = &raw const self.timeout;
        // SAFETY: two descriptors, and a time that outlives the call.
        let result = unsafe { ppoll(self.polled.as_mut_ptr(), 2, timeout, std::ptr::null()) };
        // SAFETY: this thread's errno.
        let errno = (result < 0).then(|| unsafe { *libc::__errno_location() });
        let [packets, stop] = self.polled;
        SleepResult { events: packets.revents, is_stop: stop.revents & libc::POLLIN != 0, errno }
    }
}

impl SleepResult {
    /// Whether packets may be there; or the error, unless it was a signal.
    pub(super) fn is_readable(self) -> io::Result<bool> {
        match self.errno {
            Some(libc::EINTR) => Ok(false),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(self.events != 0),
        }
    }

    /// Whether the descriptor of the stop was readable.
    pub(super) fn woke_for_stop(self) -> bool {
        self.errno.is_none() && self.is_stop
    }
}
