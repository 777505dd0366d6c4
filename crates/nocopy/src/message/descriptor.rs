//! The descriptor of an endpoint: one for datagrams that come, and for the timers of the protocol.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;

use super::carrier::{AnyCarrier, Carrier};
use crate::sys::alarm::Alarm;

/// An epoll instance, readable when a datagram came or the alarm rang.
#[derive(Debug)]
pub(super) struct Descriptor {
    poll: Arc<OwnedFd>,
    alarm: Alarm,
    /// Datagrams make it readable. Only once it was armed, since each costs a little more from then on.
    has_carrier: bool,
}

impl Descriptor {
    pub(super) fn new() -> io::Result<Self> {
        let (poll, alarm) = (Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?), Alarm::new()?);
        epoll::add(&poll, &alarm, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { poll, alarm, has_carrier: false })
    }

    /// Makes it readable when the carrier is, and after `due` at the latest.
    pub(super) fn arm(&mut self, carrier: &AnyCarrier, due: Option<Duration>) -> io::Result<()> {
        if !self.has_carrier {
            carrier.watch(self.poll.as_fd())?;
            self.has_carrier = true;
        }
        self.alarm.set(due)
    }

    /// Makes it readable when something else is, too.
    pub(super) fn watch(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.poll, other, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
    }

    /// To wait on without the endpoint.
    pub(super) fn shared(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.poll)
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}
