//! Streams in tokio programs.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{ToSocketAddrs, lookup_host};

use super::{AsyncReceiver, AsyncSender, Listener, OpenError, Stream};
use crate::engine::address;
use crate::sys::watch::{self, WatchedDescriptors};

/// A TCP connection in a tokio program: made by [`Stream::into_async`], [`connect`](Self::connect), or an
/// [`AsyncListener`].
///
/// Programs written over `tokio::net::TcpStream` find `AsyncRead`, `AsyncBufRead` and `AsyncWrite` here,
/// which copy. The halves of [`into_split`](Self::into_split) have them, too, and also send and receive owned
/// memory. A listener's settings, such as pools, apply to the streams that it accepts.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use nocopy::tcp::{AsyncStream, Listener};
/// use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
/// let listener = Listener::bind("127.0.0.1:0")?.into_async()?;
/// let mut client = AsyncStream::connect(listener.local_addr()?).await?;
/// client.write_all(b"hello\n").await?;
/// let (mut stream, _) = listener.accept().await?;
/// let mut line = String::new();
/// stream.read_line(&mut line).await?;
/// assert_eq!(line, "hello\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncStream {
    receiver: AsyncReceiver,
    sender: AsyncSender,
}

/// Waits for connections in a tokio program: made by [`Listener::into_async`].
#[derive(Debug)]
pub struct AsyncListener {
    watched: WatchedDescriptors,
    listener: Listener,
}

impl Stream {
    /// The stream for a tokio program, whose waits are futures. One registration with the reactor serves both
    /// directions.
    ///
    /// # Errors
    /// No descriptor is left, or the program has registered the socket with the reactor itself.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn into_async(self) -> io::Result<AsyncStream> {
        let socket =
            WatchedDescriptors::of_socket(Arc::clone(&self.socket), Interest::READABLE | Interest::WRITABLE)?;
        Ok(AsyncStream {
            receiver: AsyncReceiver::of_socket(self.receiver.0, socket.clone()),
            sender: AsyncSender::of_socket(self.sender.0, socket),
        })
    }
}

impl AsyncStream {
    /// Connects to that address, or to the first of several that answers. If the future is dropped, the
    /// attempt ends.
    ///
    /// # Errors
    /// An [`OpenError`] is the inner error; that of the last address.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        let mut error = None;
        for address in lookup_host(address).await.map_err(OpenError::Lookup)? {
            match Self::connect_to(address).await {
                Ok(stream) => return Ok(stream),
                Err(failed) => error = Some(failed),
            }
        }
        Err(error.unwrap_or_else(|| OpenError::Lookup(address::no_address()).into()))
    }

    async fn connect_to(address: SocketAddr) -> io::Result<Self> {
        let mut connecting = Stream::builder().start_connect(None, address)?;
        loop {
            watch::wait_connected(connecting.as_fd()).await?;
            match connecting.finish_connect()? {
                Ok(stream) => return stream.into_async(),
                Err(unfinished) => connecting = *unfinished,
            }
        }
    }

    /// The address of this end.
    ///
    /// # Errors
    /// The kernel refuses to report it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        address::local_addr(&self.receiver.kernel_socket())
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        address::peer_addr(&self.receiver.kernel_socket())
    }

    /// As [`Stream::set_nodelay`].
    ///
    /// # Errors
    /// The kernel refused it.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        SockRef::from(&self.receiver.kernel_socket()).set_tcp_nodelay(on)
    }

    /// Both halves, for two tasks. Dropping the sender ends the stream for the peer.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use nocopy::tcp::{AsyncStream, Listener};
    /// # use tokio::io::AsyncReadExt;
    /// # let listener = Listener::bind("127.0.0.1:0")?.into_async()?;
    /// # let mut peer = AsyncStream::connect(listener.local_addr()?).await?;
    /// # let (stream, _) = listener.accept().await?;
    /// let (mut receiver, mut sender) = stream.into_split();
    /// let echo = tokio::spawn(async move {
    ///     while let Some(chunk) = receiver.receive().await? {
    ///         sender.send(chunk)?; // owned memory, which is not copied again
    ///         sender.flush().await?;
    ///     }
    ///     Ok::<_, std::io::Error>(())
    /// });
    /// # use tokio::io::AsyncWriteExt;
    /// # peer.write_all(b"hello").await?;
    /// # peer.shutdown().await?;
    /// # let mut text = String::new();
    /// # peer.read_to_string(&mut text).await?;
    /// # assert_eq!(text, "hello");
    /// # echo.await??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })
    /// # }
    /// ```
    pub fn into_split(self) -> (AsyncReceiver, AsyncSender) {
        (self.receiver, self.sender)
    }
}

/// Reads by the [receiving half](AsyncReceiver).
impl AsyncRead for AsyncStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().receiver).poll_read(cx, buffer)
    }
}

/// Reads by the [receiving half](AsyncReceiver).
impl AsyncBufRead for AsyncStream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.get_mut().receiver).poll_fill_buf(cx)
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        Pin::new(&mut self.get_mut().receiver).consume(bytes);
    }
}

/// Writes by the [sending half](AsyncSender): the kernel has the bytes when a write resolves, and the peer
/// needs no flush to receive them.
impl AsyncWrite for AsyncStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().sender).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().sender).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().sender).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().sender).poll_shutdown(cx)
    }
}

impl Listener {
    /// The listener for a tokio program, whose waits are futures.
    ///
    /// # Errors
    /// No descriptor is left.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn into_async(self) -> io::Result<AsyncListener> {
        self.set_nonblocking(true)?;
        // Of its own, because the listener keeps its descriptor.
        let descriptor = Arc::new(self.as_fd().try_clone_to_owned()?);
        let watched = WatchedDescriptors::of_socket(descriptor, Interest::READABLE)?;
        Ok(AsyncListener { watched, listener: self })
    }
}

impl AsyncListener {
    /// Resolves when there is a connection, and accepts it, with the settings of the listener. Several tasks
    /// may wait. Dropping the future loses no connection.
    ///
    /// # Errors
    /// An [`OpenError`] is the inner error.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn accept(&self) -> io::Result<(AsyncStream, SocketAddr)> {
        let (stream, from) = self.watched.read(|| Ok(self.listener.accept_tcp()?)).await?;
        Ok((self.listener.wrap_accepted(stream)?.into_async()?, from))
    }

    /// The address at which it listens.
    ///
    /// # Errors
    /// The kernel refuses to report it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
