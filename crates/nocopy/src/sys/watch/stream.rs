//! The socket of a stream in tokio's reactor.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{WatchedDescriptors, register_with_reactor};

/// What a call achieved that does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome<T> {
    /// Nothing: it would have had to wait.
    Blocked,
    /// A result, and the next call would have to wait: the socket had no more to read, or no more room.
    Exhausted(T),
    /// A result.
    Done(T),
}

impl WatchedDescriptors {
    /// A socket, which may be registered with a reactor only once.
    /// Errors: the kernel's. Panics outside of a tokio runtime.
    pub(crate) fn of_socket(socket: Arc<OwnedFd>, interest: Interest) -> io::Result<Self> {
        Ok(Self { descriptor: Arc::new(register_with_reactor(socket, interest)?), is_socket: true })
    }

    /// Makes the call whenever there may be something to read, until it is not blocked. Several tasks may
    /// wait.
    pub(crate) async fn read<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.descriptor.async_io(Interest::READABLE, |_| call()).await
    }

    /// As [`read`](Self::read); only the last task that polled is woken.
    pub(crate) fn poll_read<T>(
        &self,
        cx: &mut Context<'_>,
        mut call: impl FnMut() -> io::Result<CallOutcome<T>>,
    ) -> Poll<io::Result<T>> {
        loop {
            let mut ready = ready!(self.descriptor.poll_read_ready(cx))?;
            match call()? {
                CallOutcome::Blocked => ready.clear_ready(),
                CallOutcome::Exhausted(result) => {
                    if self.is_socket {
                        ready.clear_ready();
                    }
                    return Poll::Ready(Ok(result));
                }
                CallOutcome::Done(result) => return Poll::Ready(Ok(result)),
            }
        }
    }

    /// Makes the call whenever a socket may have room, until it is not blocked. `None`: it was blocked, and
    /// the reactor can no longer tell when there is room, because completions in the error queue look like an
    /// end of the connection to it, which it remembers for good.
    pub(crate) fn poll_write<T>(
        &self,
        cx: &mut Context<'_>,
        mut call: impl FnMut() -> io::Result<CallOutcome<T>>,
    ) -> Poll<io::Result<Option<T>>> {
        debug_assert!(self.is_socket);
        loop {
            let mut ready = ready!(self.descriptor.poll_write_ready(cx))?;
            match call()? {
                CallOutcome::Blocked if ready.ready().is_write_closed() => return Poll::Ready(Ok(None)),
                CallOutcome::Blocked => ready.clear_ready(),
                CallOutcome::Exhausted(result) => {
                    ready.clear_ready();
                    return Poll::Ready(Ok(Some(result)));
                }
                CallOutcome::Done(result) => return Poll::Ready(Ok(Some(result))),
            }
        }
    }
}

/// Resolves when a socket that is connecting has room to write, or failed.
/// Errors: the kernel's. Panics outside of a tokio runtime.
pub(crate) async fn wait_connected(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, so it stays open until this future has dropped the `AsyncFd`.
    let watched = unsafe { AsyncFd::register_with_interest(socket, Interest::WRITABLE) };
    watched.map_err(io::Error::from)?.writable().await?.retain_ready();
    Ok(())
}
