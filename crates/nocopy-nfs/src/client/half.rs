//! The client as a [`ReceiverHalf`]: for other event loops and for tokio (`nocopy::AsyncReceiver`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use nocopy::ReceiverHalf;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::{Client, FilledBuffer};

/// One descriptor that is readable when a socket is ready or a timeout has passed.
#[derive(Debug)]
pub(super) struct WaitDescriptor {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl WaitDescriptor {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self { epoll, timer })
    }

    /// Watches these sockets for reading, those with `true` for writing too, and the time `end`.
    fn watch_sockets<'a>(
        &self,
        sockets: impl Iterator<Item = (BorrowedFd<'a>, bool)>,
        end: Option<Instant>,
    ) -> io::Result<()> {
        for (socket, is_full) in sockets {
            let flags = if is_full { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            // The kernel removes closed sockets by itself.
            match epoll::add(&self.epoll, socket, EventData::new_u64(1), flags) {
                Err(Errno::EXIST) => epoll::modify(&self.epoll, socket, EventData::new_u64(1), flags)?,
                added => added?,
            }
        }
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A timer of 0 ns never expires.
        let left = |end: Instant| end.saturating_duration_since(Instant::now()).as_nanos().max(1);
        let value = end.map_or(none, |end| {
            let left = left(end);
            Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as _ }
        });
        timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: none, it_value: value },
        )?;
        Ok(())
    }
}

impl Client {
    /// Prepares for a wait until the descriptor ([`AsFd`]) is readable; call it before each such wait.
    /// Returns `true` if there is nothing to wait for: a filled buffer can be received, or none is posted.
    /// Queued calls are sent.
    ///
    /// Replaces a lost connection, and waits until the new one is made.
    ///
    /// # Errors
    /// The server did not answer in time ([`give_up_after`](super::Builder::give_up_after)).
    pub fn arm(&mut self) -> io::Result<bool> {
        self.transport.drive(Some(Instant::now())).map_err(io::Error::other)?;
        self.collect_completions();
        if !self.filled.is_empty() || self.in_flight() == 0 {
            return Ok(true);
        }
        self.wait_descriptor.watch_sockets(self.transport.sockets(), self.transport.next_timeout())?;
        Ok(false)
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wait_descriptor.epoll.as_fd()
    }
}

impl ReceiverHalf for Client {
    type Received<'half> = Option<FilledBuffer>;

    fn try_receive(&mut self) -> io::Result<Option<FilledBuffer>> {
        Self::try_receive(self).map_err(io::Error::other)
    }

    fn arm(&mut self) -> io::Result<bool> {
        Self::arm(self)
    }
}
