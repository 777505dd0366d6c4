//! Halves in tokio programs (feature `tokio`).
//!
//! An asynchronous half has no way to a method that blocks the runtime's thread: both kinds of halves deref
//! to the methods that never wait.

use std::future::poll_fn;
use std::io;
use std::ops::{Deref, DerefMut};
use std::task::{Context, Poll, ready};

use tokio::task::coop::{consume_budget, poll_proceed};

use crate::engine::half::{ReceiverHalf, SenderHalf};
use crate::engine::wait::STARVED_INTERVAL;
use crate::sys::timed_epoll::TimedEpoll;
#[cfg(feature = "tcp")]
use crate::sys::watch::CallOutcome;
use crate::sys::watch::WatchedDescriptors;

/// Polls as tokio's own types do: a task that always finds something to do lets others run
/// (`tokio::task::coop`).
#[inline]
fn poll_within_budget<T>(cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    let budget = ready!(poll_proceed(cx));
    let outcome = poll(cx);
    if outcome.is_ready() {
        budget.made_progress();
    }
    outcome
}

/// A half that receives, in a tokio program: made by `into_async` of a half. It derefs to the methods that
/// never wait.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use nocopy::udp::Socket;
/// let socket = Socket::bind("127.0.0.1:0")?;
/// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// # client.send_to(b"hello", socket.local_addr()?)?;
/// let (receiver, sender) = socket.split();
/// let (mut receiver, mut sender) = (receiver.into_async()?, sender.into_async()?);
/// for datagram in receiver.receive().await? {
///     let to = datagram.source();
///     sender.send_to(datagram.take(), to)?; // what never waits is the same method everywhere
/// }
/// let mut buffer = sender.buffer().await?; // waits while all are in use
/// buffer.fill(b"more")?;
/// sender.send_to(buffer, client.local_addr()?)?;
/// sender.flush().await?;
/// assert_eq!((client.recv(&mut [0; 10])?, client.recv(&mut [0; 10])?), (5, 4));
/// sender.drain().await?; // all memory is back
/// assert_eq!(sender.in_flight(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })
/// # }
/// ```
///
/// A limit of time is `tokio::time::timeout`: a future that is dropped loses and repeats nothing.
#[derive(Debug)]
pub struct AsyncReceiver<R> {
    watched: WatchedDescriptors,
    half: R,
}

impl<R: ReceiverHalf> AsyncReceiver<R> {
    /// For halves of other crates; those of this crate have `into_async`.
    ///
    /// # Errors
    /// No descriptor is left.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(half: R) -> io::Result<Self> {
        let watched = WatchedDescriptors::new_empty()?;
        watched.add_descriptor(&half)?;
        Ok(Self { watched, half })
    }

    /// Resolves when there is something to receive, and returns it. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Errors of the half.
    pub async fn receive(&mut self) -> io::Result<R::Received<'_>> {
        poll_fn(|cx| poll_within_budget(cx, |cx| self.poll_arrival(cx))).await?;
        self.half.try_receive()
    }

    /// Resolves when there is something to receive.
    fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.half.arm()? {
            ready!(self.watched.poll_event(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Resolves with what `take` finds in the half, as an item of a stream. Only the last task that polled is
    /// woken.
    #[cfg(feature = "futures")]
    #[inline]
    pub(crate) fn poll_item<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&mut R) -> Option<io::Result<T>>,
    ) -> Poll<Option<io::Result<T>>> {
        poll_within_budget(cx, |cx| {
            loop {
                if let item @ Some(_) = take(&mut self.half) {
                    return Poll::Ready(item);
                }
                ready!(self.poll_arrival(cx))?;
            }
        })
    }
}

#[cfg(feature = "tcp")]
impl<R> AsyncReceiver<R> {
    /// A half whose only descriptor is a socket that is registered already.
    pub(crate) fn of_socket(half: R, socket: WatchedDescriptors) -> Self {
        Self { watched: socket, half }
    }

    /// Makes a call of the half whenever there may be something to receive, until it is not blocked.
    pub(crate) fn poll_call<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut call: impl FnMut(&mut R) -> io::Result<CallOutcome<T>>,
    ) -> Poll<io::Result<T>> {
        let Self { watched, half } = self;
        watched.poll_read(cx, || call(half))
    }
}

/// A half that sends, in a tokio program: made by `into_async` of a half, as in the example of
/// [`AsyncReceiver`]. It derefs to the methods that never wait. (Give `send_to` an address: looking up a name
/// waits.)
#[derive(Debug)]
pub struct AsyncSender<S> {
    /// The half's descriptor. Made at the first wait for it, if there is a `socket`.
    watched: Option<WatchedDescriptors>,
    /// The socket of a stream, which its receiving half has registered: it reports room until the first
    /// completion, which is enough for a stream that sends only copies.
    #[cfg(feature = "tcp")]
    socket: Option<WatchedDescriptors>,
    /// Ends waits for buffers that other tasks hold, because no event reports their return.
    timed_epoll: TimedEpoll,
    half: S,
}

impl<S: SenderHalf> AsyncSender<S> {
    /// For halves of other crates; those of this crate have `into_async`.
    ///
    /// # Errors
    /// No descriptor is left.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(half: S) -> io::Result<Self> {
        let mut sender = Self {
            watched: None,
            #[cfg(feature = "tcp")]
            socket: None,
            timed_epoll: TimedEpoll::default(),
            half,
        };
        sender.watched()?;
        Ok(sender)
    }

    /// Resolves when there is an empty buffer. Until then it hands over queued data, since that frees
    /// buffers.
    ///
    /// # Errors
    /// Errors of [`SenderHalf::try_flush`].
    pub async fn buffer(&mut self) -> io::Result<S::Buffer> {
        consume_budget().await;
        loop {
            if let Some(buffer) = self.half.buffer() {
                return Ok(buffer);
            }
            self.half.try_flush()?;
            // The buffers of copied sends are free at once, and no event reports them.
            if let Some(buffer) = self.half.buffer() {
                return Ok(buffer);
            }
            self.wait_for_memory().await?;
        }
    }

    /// Resolves when everything that was queued is handed over. If the future is dropped, the rest stays
    /// queued.
    ///
    /// # Errors
    /// Errors of [`SenderHalf::try_flush`].
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush_queue(cx)).await
    }

    /// Resolves when everything is handed over and the kernel no longer reads any of the memory.
    ///
    /// # Errors
    /// Errors of [`SenderHalf::try_flush`].
    pub async fn drain(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_drain(cx)).await
    }

    /// Resolves when everything is sent and all memory is free, and ends sending. If the future is dropped,
    /// what is unsent is given up.
    ///
    /// # Errors
    /// Errors of [`SenderHalf::try_flush`].
    pub async fn close(mut self) -> io::Result<()> {
        self.drain().await
    }

    /// Resolves with what `look` finds, which arms the half if it finds nothing: for halves that wait for
    /// more than completions and room to send.
    #[cfg(feature = "message")]
    pub(crate) async fn until<T>(
        &mut self,
        mut look: impl FnMut(&mut S) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        poll_fn(|cx| self.poll_until(cx, &mut look)).await
    }

    /// [`until`](Self::until), for traits whose methods are polled. Only the last task that polled is woken.
    #[cfg(feature = "message")]
    pub(crate) fn poll_until<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut look: impl FnMut(&mut S) -> io::Result<Option<T>>,
    ) -> Poll<io::Result<T>> {
        poll_within_budget(cx, |cx| {
            loop {
                if let Some(found) = look(&mut self.half)? {
                    return Poll::Ready(Ok(found));
                }
                ready!(self.watched()?.poll_event(cx))?;
            }
        })
    }

    /// Waits for an event (completions, room to send), and handles completions.
    pub(crate) async fn wait_for_event(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_wait(cx)).await
    }

    /// [`wait_for_event`](Self::wait_for_event), for traits whose methods are polled. Only the last task that
    /// polled is woken.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.half.arm()? {
            ready!(self.watched()?.poll_event(cx))?;
        }
        self.half.reap();
        Poll::Ready(Ok(()))
    }

    /// As `wait_for_event`, also for memory that other tasks hold.
    pub(crate) async fn wait_for_memory(&mut self) -> io::Result<()> {
        let are_with_others = self.half.in_flight() == 0;
        if !self.half.arm()? {
            self.watched()?; // before its timer is set
            self.timed_epoll.set_timer(are_with_others.then_some(STARVED_INTERVAL))?;
            let watched = self.watched()?;
            poll_fn(|cx| watched.poll_event(cx)).await?;
        }
        self.half.reap();
        Ok(())
    }

    /// [`flush`](Self::flush), likewise.
    pub(crate) fn poll_flush_queue(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_within_budget(cx, |cx| {
            while !self.half.try_flush()? {
                ready!(self.poll_wait(cx))?;
            }
            Poll::Ready(Ok(()))
        })
    }

    /// [`drain`](Self::drain), likewise.
    pub(crate) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush_queue(cx))?;
        while self.half.in_flight() > 0 {
            ready!(self.poll_wait(cx))?;
        }
        self.half.reap(); // what finished after the last event
        Poll::Ready(Ok(()))
    }

    /// Makes a call of the half whenever the stream may have room, until it is not blocked. `arm` prepares
    /// the half's descriptor for a wait for room, and returns true if there is some.
    #[cfg(feature = "tcp")]
    pub(crate) fn poll_call<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut call: impl FnMut(&mut S) -> io::Result<CallOutcome<T>>,
        mut arm: impl FnMut(&mut S) -> io::Result<bool>,
    ) -> Poll<io::Result<T>> {
        if let Some(socket) = &self.socket {
            if let Some(result) = ready!(socket.poll_write(cx, || call(&mut self.half)))? {
                return Poll::Ready(Ok(result));
            }
            self.socket = None;
        }
        poll_within_budget(cx, |cx| {
            loop {
                if let CallOutcome::Done(result) | CallOutcome::Exhausted(result) = call(&mut self.half)? {
                    return Poll::Ready(Ok(result));
                }
                if !arm(&mut self.half)? {
                    ready!(self.watched()?.poll_event(cx))?;
                }
            }
        })
    }

    /// The registered descriptor of the half.
    fn watched(&mut self) -> io::Result<&WatchedDescriptors> {
        if self.watched.is_none() {
            let watched = WatchedDescriptors::new_empty()?;
            watched.add_descriptor(&self.half)?;
            self.timed_epoll = TimedEpoll::open()?; // now, because a lack of descriptors would panic below
            watched.add_descriptor(self.timed_epoll.descriptor(None))?;
            self.watched = Some(watched);
        }
        Ok(self.watched.as_ref().expect("made above"))
    }
}

#[cfg(feature = "tcp")]
impl<S> AsyncSender<S> {
    /// A half of a stream whose socket is registered already.
    pub(crate) fn of_socket(half: S, socket: WatchedDescriptors) -> Self {
        Self { watched: None, socket: Some(socket), timed_epoll: TimedEpoll::default(), half }
    }
}

impl<R> Deref for AsyncReceiver<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.half
    }
}

impl<R> DerefMut for AsyncReceiver<R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.half
    }
}

impl<S> Deref for AsyncSender<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.half
    }
}

impl<S> DerefMut for AsyncSender<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.half
    }
}
