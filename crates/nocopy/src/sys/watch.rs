//! Descriptors in tokio's reactor.

#[cfg(feature = "tcp")]
mod stream;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
#[cfg(feature = "tcp")]
pub(crate) use stream::{CallOutcome, wait_connected};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor in tokio's reactor: a socket, or an epoll instance with several. Clones share it, so that one
/// task may wait to read and another to write.
///
/// The reactor is told of each change once (`EPOLLET`), so a wait begins only when a call was blocked, or,
/// for a socket, when it achieved less than it might have.
#[derive(Debug, Clone)]
pub(crate) struct WatchedDescriptors {
    descriptor: Arc<AsyncFd<Arc<OwnedFd>>>,
    /// Then the reactor remembers for good that the peer has ended the stream (`EPOLLRDHUP`), and a wait for
    /// the end is not missed if the last bytes came together with it. An epoll instance shows only that there
    /// is something.
    is_socket: bool,
}

impl WatchedDescriptors {
    /// An epoll instance without descriptors.
    /// Errors: no descriptor is left. Panics outside of a tokio runtime.
    pub(crate) fn new_empty() -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(Self { descriptor: Arc::new(register_with_reactor(epoll, Interest::READABLE)?), is_socket: false })
    }

    /// Adds a descriptor to an epoll instance, for reading, room to write, and errors; until it is closed.
    pub(crate) fn add_descriptor(&self, descriptor: impl AsFd) -> io::Result<()> {
        debug_assert!(!self.is_socket);
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        Ok(epoll::add(&**self.descriptor.get_ref(), descriptor, EventData::new_u64(0), events)?)
    }

    /// Resolves when an event has occurred since the last call. Only the last task that polled is woken.
    pub(crate) fn poll_event(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.descriptor.poll_read_ready(cx))?.clear_ready();
        Poll::Ready(Ok(()))
    }
}

/// Registers a descriptor with tokio's reactor.
fn register_with_reactor(descriptor: Arc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: an `Arc<OwnedFd>` refers to the same open descriptor until it is dropped, `AsyncFd` drops it
    // after it has deregistered it, and this module never replaces it.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(io::Error::from)
}
