//! Descriptors in tokio's reactor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with tokio's reactor.
pub(crate) fn register_with_reactor(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is the same open descriptor until it is dropped, and `AsyncFd` drops it after it
    // has deregistered it.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(io::Error::from)
}

/// Descriptors watched together: an epoll instance is readable when something happens to one of its own.
#[derive(Debug)]
pub(crate) struct WatchedDescriptors(AsyncFd<OwnedFd>);

impl WatchedDescriptors {
    /// # Errors
    /// No descriptor is left, or no tokio reactor runs here.
    pub(crate) fn new_empty() -> io::Result<Self> {
        register_with_reactor(epoll::create(CreateFlags::CLOEXEC)?, Interest::READABLE).map(Self)
    }

    /// Adds a descriptor, for reading, room to write, and errors; until it is closed.
    pub(crate) fn add_descriptor(&self, descriptor: impl AsFd) -> io::Result<()> {
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        Ok(epoll::add(self.0.get_ref(), descriptor, EventData::new_u64(0), events)?)
    }

    /// Resolves when an event has occurred since the last call.
    pub(crate) async fn next_event(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}
