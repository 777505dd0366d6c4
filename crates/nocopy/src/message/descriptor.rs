//! The descriptor of an endpoint: readable when datagrams arrive, and when a timer of the protocol expires.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;

use super::carrier::{AnyCarrier, Carrier};
use crate::sys::alarm::Alarm;

/// An epoll instance that is readable when a datagram has arrived or the alarm has expired.
#[derive(Debug)]
pub(super) struct Descriptor {
    poll: OwnedFd,
    alarm: Alarm,
    /// Datagrams make it readable. Only after it was armed once, since each datagram costs a little more from
    /// then on.
    has_carrier: bool,
}

impl Descriptor {
    pub(super) fn new() -> io::Result<Self> {
        let (poll, alarm) = (epoll::create(epoll::CreateFlags::CLOEXEC)?, Alarm::new()?);
        epoll::add(&poll, &alarm, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { poll, alarm, has_carrier: false })
    }

    /// Makes it readable when the carrier is, and at the latest after `due`.
    pub(super) fn arm(&mut self, carrier: &mut AnyCarrier, due: Option<Duration>) -> io::Result<()> {
        if !self.has_carrier {
            carrier.watch(self.poll.as_fd())?;
            self.has_carrier = true;
        }
        self.alarm.set_timeout(due)
    }

    /// Makes it readable when another descriptor is, too.
    pub(super) fn watch(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.poll, other, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}
