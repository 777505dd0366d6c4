//! A descriptor that is readable when a socket is, or when it is time to look again for something that no
//! event reports.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// Watches sockets from the first request of its descriptor on; without that they cost nothing, while a
/// watched socket tells of each packet that comes and of each that has gone.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    made: OnceLock<Made>,
    watches: OnceLock<()>,
    is_set: bool,
}

#[derive(Debug)]
struct Made {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Lookout {
    /// A lookout whose descriptor is made now, so that a lack of descriptors is reported here.
    pub(crate) fn made() -> io::Result<Self> {
        Ok(Self { made: OnceLock::from(Made::new()?), ..Self::default() })
    }

    /// The descriptor, for [`AsFd`], on the sockets given at the first call.
    /// Panics at the first call, if no descriptor is left.
    pub(crate) fn descriptor<'a>(&self, sockets: impl IntoIterator<Item = BorrowedFd<'a>>) -> BorrowedFd<'_> {
        let no_descriptor = |error| -> ! {
            panic!("make a descriptor to wait on: {error}; raise the limit of open files ('ulimit -n')")
        };
        let made = self.made.get_or_init(|| Made::new().unwrap_or_else(|error| no_descriptor(error)));
        self.watches.get_or_init(|| {
            sockets
                .into_iter()
                .try_for_each(|socket| made.watch(socket))
                .unwrap_or_else(|error| no_descriptor(error));
        });
        made.epoll.as_fd()
    }

    /// Makes the descriptor readable once `after` has passed, or not at all.
    pub(crate) fn look_again(&mut self, after: Option<Duration>) -> io::Result<()> {
        let Some(Made { timer, .. }) = self.made.get().filter(|_| self.is_set || after.is_some()) else {
            return Ok(());
        };
        // 0 stops the timer. An earlier expiry is cleared in any case.
        let it_value = Timespec::try_from(after.unwrap_or_default()).expect("a short time");
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
        self.is_set = after.is_some();
        Ok(())
    }
}

impl Made {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let made = Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, timer };
        made.watch(made.timer.as_fd())?;
        Ok(made)
    }

    fn watch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, descriptor, EventData::new_u64(0), EventFlags::IN)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::sys::poll::{Wakeup, wait_readable};

    #[test]
    fn it_is_readable_by_the_socket_or_by_time() {
        let (one, other) = UnixDatagram::pair().unwrap();
        let mut lookout = Lookout::default();
        lookout.look_again(Some(Duration::from_millis(1))).unwrap(); // not asked for: nothing to set
        let is_readable = |lookout: &Lookout, wait| {
            wait_readable(lookout.descriptor(Some(other.as_fd())), wait).unwrap() == Wakeup::Ready
        };
        assert!(!is_readable(&lookout, Duration::from_millis(5)));
        one.send(b"something").unwrap();
        assert!(is_readable(&lookout, Duration::ZERO));
        other.recv(&mut [0; 16]).unwrap();
        lookout.look_again(Some(Duration::from_millis(1))).unwrap();
        assert!(is_readable(&lookout, Duration::from_secs(60)));
        lookout.look_again(None).unwrap();
        assert!(!is_readable(&lookout, Duration::from_millis(5)), "stopped");
    }
}
