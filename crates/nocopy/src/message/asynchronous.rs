//! The endpoint in tokio programs.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::task::{Context, Poll};

use nocopy_proto::message::{Kind, Peer};

use super::{Endpoint, Error, Message, NonblockingEndpoint, Payload};
use crate::engine::address;
use crate::engine::asynchronous::AsyncSender;
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::pool::BufferMut;

/// An endpoint in a tokio program, made by [`Endpoint::into_async`](super::Endpoint::into_async): what waits
/// is `async`. It derefs to the methods that never wait.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use nocopy::message::{Endpoint, Kind, Message};
/// let mut server = Endpoint::bind("127.0.0.1:0")?.into_async()?;
/// let address = server.local_addr();
/// tokio::spawn(async move {
///     loop {
///         let request = server.receive().await.expect("the network is up").map(Message::take);
///         let Some(request) = request else { continue }; // an event
///         if let Kind::Request(call) = request.kind() {
///             let client = request.peer();
///             server.respond(request, client, call).expect("there is room"); // an echo
///         }
///     }
/// });
/// let mut client = Endpoint::bind("127.0.0.1:0")?.into_async()?;
/// let peer = client.connect(address).await?;
/// let response = client.call(b"hello".to_vec(), peer).await?;
/// assert_eq!(response.to_vec(), b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })
/// # }
/// ```
///
/// No thread works for an endpoint: it sends, acknowledges and answers while one of its futures is polled, or
/// a method is called. A task that has nothing to do waits in [`receive`](Self::receive), or its peers take
/// it for dead after [`dead_after`](super::Builder::dead_after).
///
/// A limit of time is `tokio::time::timeout`. What a dropped future leaves is said at each method: none loses
/// a message or an event.
#[derive(Debug)]
pub struct AsyncEndpoint {
    inner: AsyncSender<NonblockingEndpoint>,
    /// A message that a sink accepted, and for which its peer has no room yet.
    waiting: Option<(Payload, Peer)>,
}

impl Endpoint {
    /// The endpoint for a tokio program: what waits here is `async` there.
    ///
    /// # Errors
    /// No descriptor is left; the endpoint is dropped then.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn into_async(self) -> io::Result<AsyncEndpoint> {
        AsyncEndpoint::new(self.0)
    }
}

impl AsyncEndpoint {
    pub(super) fn new(endpoint: NonblockingEndpoint) -> io::Result<Self> {
        Ok(Self { inner: AsyncSender::new(endpoint)?, waiting: None })
    }

    /// Resolves with the next message. `None`: there is an event
    /// ([`poll_event`](NonblockingEndpoint::poll_event)). Dropping the future loses nothing.
    ///
    /// # Errors
    /// The interface is down or was removed.
    pub async fn receive(&mut self) -> io::Result<Option<Message<'_>>> {
        self.wait().await?;
        self.inner.try_receive()
    }

    /// Resolves when there is a message or an event; each event ends one wait only. What a sender without
    /// room waits with: [`Event::Writable`](super::Event::Writable) ends it. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub async fn wait(&mut self) -> io::Result<()> {
        self.inner.until(|endpoint| endpoint.arm_until(NonblockingEndpoint::look_for_news)).await
    }

    /// Connects to that address, or to the first of several that answers. Messages and events of other peers
    /// that arrive meanwhile are kept.
    ///
    /// If the future is dropped, the attempt under way goes on, as after
    /// [`start_connect`](NonblockingEndpoint::start_connect): [`Event::Connected`](super::Event::Connected)
    /// or [`Event::Lost`](super::Event::Lost) follows, at the latest after
    /// [`dead_after`](super::Builder::dead_after). [`abort`](NonblockingEndpoint::abort) ends a connection
    /// that is not wanted any more.
    ///
    /// # Errors
    /// [`Error`]; that of the last address. An address that does not answer is given up after `dead_after`.
    pub async fn connect(&mut self, to: impl tokio::net::ToSocketAddrs) -> Result<Peer, Error> {
        let mut error = None;
        for to in tokio::net::lookup_host(to).await? {
            match self.connect_to(to).await {
                Ok(peer) => return Ok(peer),
                Err(failed) => error = Some(failed),
            }
        }
        Err(error.unwrap_or_else(|| Error::Network(address::no_address())))
    }

    async fn connect_to(&mut self, to: SocketAddr) -> Result<Peer, Error> {
        let peer = self.start_connect(to)?;
        let look = |endpoint: &mut NonblockingEndpoint| endpoint.outcome_of(peer);
        let outcome = self.inner.until(|endpoint| endpoint.arm_until(look)).await?;
        outcome.map(|()| peer).map_err(|reason| Error::NotConnected { address: to, reason })
    }

    /// Sends a request as soon as there is room, and resolves with its response. Other messages that come
    /// meanwhile are [received](Self::receive) afterwards. Until then they stay in the memory of their
    /// address: many from the address of `to` leave no room for the response.
    ///
    /// If the future is dropped, the request was sent as a whole or not at all. A response that comes later
    /// is received as any other message. Its number ([`Kind::Response`]) is that of no other request, so no
    /// other call takes it for its own.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn call(&mut self, request: impl Into<Payload>, to: Peer) -> Result<Message<'_>, Error> {
        let wanted = (to, Kind::Response(self.request_with_room(request.into(), to).await?));
        let look = |endpoint: &mut NonblockingEndpoint| match endpoint.find_response(wanted) {
            Ok(None) => endpoint.is_gone(to).then_some(Err(Error::Lost)),
            found => found.transpose(),
        };
        let next = self.inner.until(|endpoint| endpoint.arm_until(look)).await??;
        Ok(self.inner.read(next))
    }

    /// Sends a request as soon as there is room.
    async fn request_with_room(&mut self, request: Payload, to: Peer) -> Result<u32, Error> {
        let mut request = Some(request);
        let mut attempt = |endpoint: &mut NonblockingEndpoint| match endpoint.request(request.take()?, to) {
            Ok(call) => Some(Ok(call)),
            Err(Rejected { item, reason: Reason::Full }) => {
                request = Some(item);
                None
            }
            Err(Rejected { reason, .. }) => Some(Err(Error::NotSent(reason))),
        };
        self.inner.until(|endpoint| endpoint.arm_until(&mut attempt)).await?
    }

    /// Resolves with an empty buffer for a message or a part of one. Until there is one, it hands over what
    /// is queued. Dropping the future loses no buffer.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub async fn buffer(&mut self) -> io::Result<BufferMut> {
        self.inner.buffer().await
    }

    /// Resolves when everything that was put into packets is handed to the kernel. What the window of a peer
    /// has no room for follows when the peer has acknowledged more, whenever the endpoint works. If the
    /// future is dropped, the rest stays queued.
    ///
    /// # Errors
    /// The interface is down or was removed; nothing is lost by that.
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_send_waiting(cx)).await?;
        self.inner.flush().await
    }

    /// Sends everything; resolves when the peers have acknowledged it. If the future is dropped, what is in
    /// flight stays so.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub async fn drain(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_send_waiting(cx)).await?;
        self.inner.drain().await
    }

    /// [Finishes](NonblockingEndpoint::finish) all connections, and resolves when the peers have acknowledged
    /// everything; then the endpoint is closed. If the future is dropped, it is closed at once, and what is
    /// left is given up.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub async fn close(mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_send_waiting(cx)).await?;
        self.inner.until(|endpoint| endpoint.arm_until(|endpoint| endpoint.finish_each().then_some(()))).await
    }

    /// Resolves when the message that waits for room is queued.
    pub(crate) fn poll_send_waiting(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { inner, waiting } = self;
        if waiting.is_none() {
            return Poll::Ready(Ok(()));
        }
        let mut attempt = |endpoint: &mut NonblockingEndpoint| {
            let (message, to) = waiting.take()?;
            match endpoint.send_to(message, to) {
                Err(Rejected { item, reason: Reason::Full }) => {
                    *waiting = Some((item, to));
                    None
                }
                sent => Some(sent.map_err(io::Error::from)),
            }
        };
        inner
            .poll_until(cx, |endpoint| endpoint.arm_until(&mut attempt))
            .map(|sent| -> io::Result<()> { sent? })
    }

    /// Sends a message when its peer has room; returns an error if it never can.
    #[cfg(feature = "futures")]
    pub(crate) fn send_or_wait(&mut self, message: Payload, to: Peer) -> io::Result<()> {
        debug_assert!(self.waiting.is_none(), "a sink is ready before the next item");
        match self.inner.send_to(message, to) {
            Err(Rejected { item, reason: Reason::Full }) => {
                self.waiting = Some((item, to));
                Ok(())
            }
            sent => Ok(sent?),
        }
    }

    /// Resolves with what `look` finds after the endpoint has worked.
    #[cfg(feature = "futures")]
    pub(crate) fn poll_look<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut look: impl FnMut(&mut NonblockingEndpoint) -> Option<T>,
    ) -> Poll<io::Result<T>> {
        self.inner.poll_until(cx, |endpoint| endpoint.arm_until(&mut look))
    }

    #[cfg(feature = "futures")]
    pub(crate) fn as_sender(&mut self) -> &mut AsyncSender<NonblockingEndpoint> {
        &mut self.inner
    }
}

impl Deref for AsyncEndpoint {
    type Target = NonblockingEndpoint;

    fn deref(&self) -> &NonblockingEndpoint {
        &self.inner
    }
}

impl DerefMut for AsyncEndpoint {
    fn deref_mut(&mut self) -> &mut NonblockingEndpoint {
        &mut self.inner
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::super::endpoint::ARM_LOOKS_MAX;
    use super::*;

    /// Counts polls: only a future that yields is polled twice.
    #[test]
    fn a_flooded_endpoint_yields_after_64_looks() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (polls, looks) = runtime.block_on(async {
            let mut endpoint = Endpoint::bind("127.0.0.1:0").unwrap().into_async().unwrap();
            let (flood, to) = (UdpSocket::bind("127.0.0.1:0").unwrap(), endpoint.local_addr());
            let (mut polls, mut looks) = (0, 0);
            let mut look = |_: &mut NonblockingEndpoint| {
                looks += 1;
                flood.send_to(b"no message", to).unwrap(); // so another look has something to read
                (looks > ARM_LOOKS_MAX).then_some(())
            };
            let found = poll_fn(|cx| {
                polls += 1;
                endpoint.inner.poll_until(cx, |endpoint| endpoint.arm_until(&mut look))
            });
            found.await.unwrap();
            (polls, looks)
        });
        assert_eq!((polls, looks), (2, ARM_LOOKS_MAX + 1));
    }
}
