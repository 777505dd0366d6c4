//! Waits for several descriptors that an alarm ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use smallvec::SmallVec;

use super::Alarm;
use crate::sys::poll::{Wakeup, poll};

impl Alarm {
    /// Waits until any of several descriptors is readable, at most for `timeout`, and rarely less.
    pub(crate) fn wait_readable<'fd>(
        &'fd mut self,
        fds: impl Iterator<Item = BorrowedFd<'fd>>,
        timeout: Duration,
    ) -> io::Result<Wakeup> {
        self.set_no_later_than(timeout)?;
        let all = std::iter::once(self.timer.as_fd()).chain(fds);
        let mut waited: SmallVec<[_; 4]> =
            all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let wakeup = poll(&mut waited, None)?;
        let mut events = waited.iter().map(|fd| !fd.revents().is_empty());
        let rang = wakeup == Wakeup::Ready && events.next() == Some(true);
        if rang {
            self.expires_ns = None;
        }
        Ok(if rang && !events.any(|is_readable| is_readable) { Wakeup::TimedOut } else { wakeup })
    }
}
