//! A timer that stays set across many short waits.

#[cfg(feature = "port")]
mod wait;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::clock::boottime_ns;

/// Ends waits instead of a time-out of poll(2). Such a time-out programs the processor's timer for each wait,
/// and again when the wait ends early; in a virtual machine, either is an exit to the host. The alarm stays
/// set. If it expires after its wait is over, the next wait looks once more. It goes on while the machine is
/// suspended: what another host counts on is due then, too.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: OwnedFd,
    /// When it expires; `None`: it is not set.
    expires_ns: Option<u64>,
}

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { timer: timerfd_create(TimerfdClockId::Boottime, flags)?, expires_ns: None })
    }

    /// Makes the descriptor readable after `timeout` at the latest; `None` leaves the setting. It is not
    /// readable until then.
    #[cfg(feature = "message")]
    pub(crate) fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let has_rung = self.expires_ns.is_some_and(|set_ns| set_ns <= boottime_ns());
        if has_rung {
            self.expires_ns = None;
        }
        match timeout {
            Some(timeout) => self.set_no_later_than(timeout),
            None if has_rung => self.program_timer(Timespec::default()),
            None => Ok(()),
        }
    }

    fn set_no_later_than(&mut self, timeout: Duration) -> io::Result<()> {
        // No wait is longer.
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).clamp(1, 1 << 62);
        let expires_ns = boottime_ns() + timeout_ns;
        if self.expires_ns.is_some_and(|set_ns| set_ns <= expires_ns) {
            return Ok(());
        }
        let time = Timespec {
            tv_sec: (expires_ns / 1_000_000_000).cast_signed(),
            tv_nsec: (expires_ns % 1_000_000_000).cast_signed() as _,
        };
        self.program_timer(time)?;
        self.expires_ns = Some(expires_ns);
        Ok(())
    }

    /// Sets the timer to a moment, or stops it at zero; it is then not readable.
    fn program_timer(&self, time: Timespec) -> io::Result<()> {
        let once = Itimerspec { it_interval: Timespec::default(), it_value: time };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::sys::poll::Wakeup;

    #[test]
    fn waits_end_by_an_event_or_by_the_latest_alarm_time() {
        let (one, other) = UnixDatagram::pair().unwrap();
        let mut alarm = Alarm::new().unwrap();
        let mut wait = |timeout| alarm.wait_readable(std::iter::once(other.as_fd()), timeout).unwrap();
        let (short, long) = (Duration::from_millis(5), Duration::from_secs(60));
        for _ in 0..2 {
            assert_eq!(wait(short), Wakeup::TimedOut);
        }
        one.send(b"something").unwrap();
        assert_eq!(wait(long), Wakeup::Ready);
        other.recv(&mut [0; 16]).unwrap();
        // The new time is earlier than the current one.
        assert_eq!(wait(short), Wakeup::TimedOut);
        one.send(b"something").unwrap();
        assert_eq!(wait(short), Wakeup::Ready);
        other.recv(&mut [0; 16]).unwrap();
        // The new time is later than the current one, which may still end one wait.
        let began = boottime_ns();
        while boottime_ns() - began < 50_000_000 {
            assert_eq!(wait(Duration::from_millis(50)), Wakeup::TimedOut);
        }
        assert_eq!(wait(Duration::ZERO), Wakeup::TimedOut);
    }

    #[test]
    fn the_alarm_uses_the_boot_clock() {
        assert!(crate::sys::clock::tests::uses_boot_clock(Alarm::new().unwrap()));
    }

    #[test]
    fn the_descriptor_is_readable_from_expiry_to_reset() {
        let mut alarm = Alarm::new().unwrap();
        let wait =
            |alarm: &Alarm, timeout| super::super::poll::wait_readable(alarm.as_fd(), timeout).unwrap();
        for next in [None, Some(Duration::from_secs(60))] {
            alarm.set_timeout(Some(Duration::ZERO)).unwrap();
            assert_eq!(wait(&alarm, Duration::from_secs(60)), Wakeup::Ready);
            alarm.set_timeout(next).unwrap();
            assert_eq!(wait(&alarm, Duration::ZERO), Wakeup::TimedOut);
        }
    }
}
