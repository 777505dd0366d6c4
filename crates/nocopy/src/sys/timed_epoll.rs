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
pub(crate) struct TimedEpoll {
    instance: OnceLock<EpollAndTimer>,
    watches: OnceLock<()>,
    is_set: bool,
}

#[derive(Debug)]
struct EpollAndTimer {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl TimedEpoll {
    /// A descriptor that is opened now, so that a lack of descriptors is reported here.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { instance: OnceLock::from(EpollAndTimer::new()?), ..Self::default() })
    }

    /// The descriptor, for [`AsFd`], on the sockets given at the first call.
    /// Panics at the first call, if no descriptor is left.
    pub(crate) fn descriptor<'a>(&self, sockets: impl IntoIterator<Item = BorrowedFd<'a>>) -> BorrowedFd<'_> {
        let no_descriptor = |error| -> ! {
            panic!("make a descriptor to wait on: {error}; raise the limit of open files ('ulimit -n')")
        };
        let instance =
            self.instance.get_or_init(|| EpollAndTimer::new().unwrap_or_else(|error| no_descriptor(error)));
        self.watches.get_or_init(|| {
            sockets
                .into_iter()
                .try_for_each(|socket| instance.watch_readable(socket))
                .unwrap_or_else(|error| no_descriptor(error));
        });
        instance.epoll.as_fd()
    }

    /// Makes the descriptor readable once `after` has passed, or not at all.
    pub(crate) fn set_timer(&mut self, after: Option<Duration>) -> io::Result<()> {
        let Some(EpollAndTimer { timer, .. }) =
            self.instance.get().filter(|_| self.is_set || after.is_some())
        else {
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

impl EpollAndTimer {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let instance = Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, timer };
        instance.watch_readable(instance.timer.as_fd())?;
        Ok(instance)
    }

    fn watch_readable(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, descriptor, EventData::new_u64(0), EventFlags::IN)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::sys::poll::{Wakeup, wait_readable};

    #[test]
    fn the_descriptor_is_readable_by_socket_or_timer() {
        let (one, other) = UnixDatagram::pair().unwrap();
        let mut timed_epoll = TimedEpoll::default();
        timed_epoll.set_timer(Some(Duration::from_millis(1))).unwrap(); // not asked for: nothing to set
        let is_readable = |timed_epoll: &TimedEpoll, wait| {
            wait_readable(timed_epoll.descriptor(Some(other.as_fd())), wait).unwrap() == Wakeup::Ready
        };
        assert!(!is_readable(&timed_epoll, Duration::from_millis(5)));
        one.send(b"something").unwrap();
        assert!(is_readable(&timed_epoll, Duration::ZERO));
        other.recv(&mut [0; 16]).unwrap();
        timed_epoll.set_timer(Some(Duration::from_millis(1))).unwrap();
        assert!(is_readable(&timed_epoll, Duration::from_secs(60)));
        timed_epoll.set_timer(None).unwrap();
        assert!(!is_readable(&timed_epoll, Duration::from_millis(5)), "stopped");
    }
}
