//! Both halves for tokio (feature `tokio`).
//!
//! Sending resolves twice: [`AsyncSender::send`] when the message was handed over to the kernel, and the [`Free`] it returns when the
//! kernel has let go of the memory.
#![expect(clippy::result_large_err, reason = "what is rejected comes back, and allocates nothing")]

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Poll;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::Ticket;
use super::receiver::{Batch, ReceiveError, Receiver};
use super::{Completed, Message, Rejected, RejectedReason, SendError, Sender};
use crate::memory::pool::Buffer;
use crate::sys::watch::{Watched, watch};

/// The sending half of a socket in a tokio program. Clones are the same socket.
#[derive(Debug, Clone)]
pub struct AsyncSender {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The socket, and its ring once it has one: each tells of completions of its own.
    watched: Watched,
    /// Told to all who wait when one of them has seen an event: it may be for any.
    news: Notify,
    state: Mutex<State>,
    /// Messages that nobody waits for any more; a lock of its own, for those who drop a [`Free`] while the state is locked.
    dropped: Mutex<Vec<Ticket>>,
}

/// The state, locked.
struct Locked<'a> {
    /// In this order: the lock is over when the memory goes.
    state: MutexGuard<'a, State>,
    foreign: Vec<Buffer>,
    shared: &'a Shared,
}

#[derive(Debug)]
struct State {
    sender: Sender,
    /// Free memory that is not of the pool. It is dropped where nothing is locked: the program's `Drop` may use the sender.
    foreign: Vec<Buffer>,
    /// Messages that somebody waits for; with their buffers once these are free.
    awaited: HashMap<Ticket, Option<Completed>>,
    ring_is_watched: bool,
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AsyncSendError {
    /// It was not queued; here it is.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// A datagram of it, or of one that others had queued, was refused for good.
    #[error(transparent)]
    Refused(#[from] SendError),
    /// Waiting failed.
    #[error("waiting for the socket: {0}")]
    Waiting(#[source] io::Error),
}

impl AsyncSender {
    /// Takes a half over.
    ///
    /// # Errors
    /// No descriptor is left, no tokio reactor runs here, or the half sends over a port.
    pub fn new(mut sender: Sender) -> io::Result<Self> {
        if sender.port().is_some() {
            let why =
                "a sender over a port gives its frames to the port, and tells of none; use it without tokio";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let watched = Watched::none()?;
        watched.add(sender.outbox.sending.socket())?;
        sender.set_return_buffers();
        let state = State { sender, foreign: Vec::new(), awaited: HashMap::new(), ring_is_watched: false };
        let (state, dropped) = (Mutex::new(state), Mutex::default());
        Ok(Self { shared: Arc::new(Shared { watched, news: Notify::new(), state, dropped }) })
    }

    /// What there is to do with the half itself: taking buffers, counters, the ledger. Not to be held across an await. The
    /// sender and its clones are locked meanwhile: used in `work`, they wait for it for ever.
    pub fn with<T>(&self, work: impl FnOnce(&mut Sender) -> T) -> T {
        work(&mut self.shared.state().sender)
    }

    /// Sends to the peer the socket is connected to: resolves when the kernel has taken the message.
    ///
    /// # Errors
    /// See [`AsyncSendError`].
    pub async fn send(&self, message: impl Into<Message>) -> Result<Free, AsyncSendError> {
        self.queue_and_flush(message.into(), None).await
    }

    /// The same, to that address.
    ///
    /// # Errors
    /// See [`AsyncSendError`].
    pub async fn send_to(&self, message: impl Into<Message>, to: SocketAddr) -> Result<Free, AsyncSendError> {
        self.queue_and_flush(message.into(), Some(to)).await
    }

    async fn queue_and_flush(
        &self,
        message: Message,
        to: Option<SocketAddr>,
    ) -> Result<Free, AsyncSendError> {
        let free = self.queue(message, to).await?;
        self.shared
            .until(|state| state.flush_up_to(free.ticket))
            .await
            .map_err(AsyncSendError::Waiting)??;
        Ok(free)
    }

    async fn queue(&self, mut message: Message, to: Option<SocketAddr>) -> Result<Free, AsyncSendError> {
        loop {
            let rejected = match self.shared.state().queue(message, to) {
                Ok(ticket) => return Ok(Free { shared: Arc::clone(&self.shared), ticket }),
                Err(rejected) => rejected,
            };
            if rejected.reason != RejectedReason::QueueFull {
                return Err(rejected.into());
            }
            message = rejected.message;
            self.shared.until(State::make_room).await.map_err(AsyncSendError::Waiting)??;
        }
    }
}

impl Shared {
    fn state(&self) -> Locked<'_> {
        // What panicked left the sender as it was between two calls.
        self.locked(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn locked<'a>(&'a self, state: MutexGuard<'a, State>) -> Locked<'a> {
        let mut locked = Locked { state, foreign: Vec::new(), shared: self };
        locked.forget_dropped();
        locked
    }

    fn dropped(&self) -> MutexGuard<'_, Vec<Ticket>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks until something is found, again after each event.
    async fn until<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> io::Result<T> {
        loop {
            // From here on: what others see between the look below and the wait is not missed.
            let mut told = pin!(self.news.notified());
            told.as_mut().enable();
            if let Some(found) = self.look(&mut look)? {
                return Ok(found);
            }
            self.event(told).await?;
        }
    }

    fn look<T>(&self, look: &mut impl FnMut(&mut State) -> Option<T>) -> io::Result<Option<T>> {
        let mut state = self.state();
        let found = look(&mut state);
        if !state.ring_is_watched
            && let Some(ring) = state.sender.outbox.sending.kept().ring()
        {
            self.watched.add(ring)?;
            state.ring_is_watched = true;
        }
        Ok(found)
    }

    /// Waits for an event, or until somebody else has seen one.
    async fn event(&self, mut told: Pin<&mut Notified<'_>>) -> io::Result<()> {
        let mut seen = pin!(self.watched.event());
        let seen = poll_fn(|context| match told.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => seen.as_mut().poll(context).map(Some),
        });
        if let Some(seen) = seen.await {
            self.state().collect();
            self.news.notify_waiters();
            seen?;
        }
        Ok(())
    }
}

impl Locked<'_> {
    fn forget_dropped(&mut self) {
        let dropped = std::mem::take(&mut *self.shared.dropped());
        dropped.into_iter().for_each(|ticket| self.state.forget(ticket));
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.forget_dropped();
        self.foreign = std::mem::take(&mut self.state.foreign);
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl State {
    fn queue(&mut self, message: Message, to: Option<SocketAddr>) -> Result<Ticket, Rejected> {
        let ticket = match to {
            None => self.sender.send(message)?,
            Some(to) => self.sender.send_to(message, to)?,
        };
        self.awaited.insert(ticket, None);
        Ok(ticket)
    }

    fn flush(&mut self) -> Result<bool, SendError> {
        let done = self.sender.try_flush();
        self.collect();
        done
    }

    /// Whether the message was handed over.
    fn flush_up_to(&mut self, ticket: Ticket) -> Option<Result<(), SendError>> {
        match self.flush() {
            Ok(_) if !self.sender.is_handed_over(ticket) => None,
            flushed => Some(flushed.map(drop)),
        }
    }

    /// Whether the queue is shorter than it was.
    fn make_room(&mut self) -> Option<Result<(), SendError>> {
        let queued = self.sender.queued();
        match self.flush() {
            Ok(_) if queued > 0 && self.sender.queued() == queued => None,
            flushed => Some(flushed.map(drop)),
        }
    }

    /// Takes what is free now; what nobody waits for goes home.
    fn collect(&mut self) {
        self.sender.reap();
        while let Some(completed) = self.sender.completed() {
            match self.awaited.get_mut(&completed.ticket) {
                Some(place) => *place = Some(completed),
                None => self.recycle(completed.message),
            }
        }
    }

    /// Nobody waits for it any more.
    fn forget(&mut self, ticket: Ticket) {
        if let Some(Some(completed)) = self.awaited.remove(&ticket) {
            self.recycle(completed.message);
        }
    }

    fn recycle(&mut self, message: Message) {
        for buffer in message.into_pieces() {
            if self.sender.owns(&buffer) {
                self.sender.recycle(buffer);
            } else {
                self.foreign.push(buffer);
            }
        }
    }

    fn take(&mut self, ticket: Ticket) -> Option<Completed> {
        self.awaited.get_mut(&ticket)?.take()
    }
}

/// A message that was handed over, until its memory is free. Dropped, its buffers go home by themselves.
#[derive(Debug)]
#[must_use = "wait for it, or drop it on purpose"]
pub struct Free {
    shared: Arc<Shared>,
    ticket: Ticket,
}

impl Free {
    /// Which message it is.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Resolves when the kernel has let go of the memory, to the buffers and what is known of their bytes.
    ///
    /// # Errors
    /// Waiting failed.
    pub async fn wait(self) -> io::Result<Completed> {
        self.shared.until(|state| state.take(self.ticket)).await
    }
}

impl Drop for Free {
    fn drop(&mut self) {
        self.shared.dropped().push(self.ticket);
        // If it is locked, maybe by this thread, whoever has it locked forgets the message, or the next one does.
        let state = match self.shared.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        drop(self.shared.locked(state));
    }
}

/// The receiving half of a socket in a tokio program.
#[derive(Debug)]
pub struct AsyncReceiver {
    /// A duplicate: an epoll instance takes each descriptor once, and the halves may be in one.
    socket: AsyncFd<OwnedFd>,
    receiver: Receiver,
}

impl AsyncReceiver {
    /// Takes a half over.
    ///
    /// # Errors
    /// No descriptor is left, or no tokio reactor runs here.
    pub fn new(receiver: Receiver) -> io::Result<Self> {
        let socket = receiver.socket().try_clone_to_owned()?;
        Ok(Self { socket: watch(socket, Interest::READABLE)?, receiver })
    }

    /// Resolves to what has come, as soon as there is something.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub async fn receive(&mut self) -> Result<Batch<'_>, ReceiveError> {
        loop {
            let mut ready = self.socket.readable().await.map_err(ReceiveError::Socket)?;
            if !self.receiver.try_receive()?.is_empty() {
                break;
            }
            ready.clear_ready();
        }
        Ok(self.receiver.last())
    }

    /// The half itself.
    pub fn get_ref(&self) -> &Receiver {
        &self.receiver
    }
}
