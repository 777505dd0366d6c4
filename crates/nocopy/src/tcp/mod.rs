//! TCP streams in owned buffers, without copies if that is faster on this machine, with evidence for every
//! byte.
//!
//! ```
//! use nocopy::tcp::{Listener, Stream};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let mut stream = Stream::connect(listener.local_addr()?)?;
//! let (mut peer, _) = listener.accept()?;
//!
//! let sender = stream.sender();
//! let mut buffer = sender.buffer().expect("a fresh stream has free buffers");
//! buffer.resize(64 << 10); // to be written in place
//! sender.send(buffer)?; // moved: touching it now does not compile
//! sender.flush()?;
//! drop(stream); // the end of the stream
//!
//! let mut bytes = 0;
//! while let Some(chunk) = peer.receiver().receive()? {
//!     bytes += chunk.len(); // owned; its memory is used again when it is dropped
//! }
//! assert!(bytes == 64 << 10 && peer.receiver().is_finished());
//! println!("{}", peer.receiver().ledger());
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "tokio")]
mod async_stream;
mod builder;
pub(crate) mod by_reference;
mod choice;
mod chunk;
mod diagnosis;
mod item;
mod mapped;
mod method;
mod open_error;
#[cfg(any(feature = "message", feature = "tokio"))]
mod opening;
mod outcome;
mod pages;
mod published;
mod receiver;
mod receiving;
mod sender;
mod std_stream;

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

#[cfg(feature = "tokio")]
pub use async_stream::{AsyncListener, AsyncStream};
pub use builder::Builder;
pub use chunk::Chunk;
pub use method::Method;
pub use open_error::OpenError;
#[cfg(feature = "message")]
pub(crate) use opening::ConnectInProgress;
pub use pages::{PagePool, Pages};
pub use published::{PublishError, Published};
pub use receiver::{NonblockingReceiver, Receiver};
pub use receiving::ReceiveMethod;
pub use sender::{NonblockingSender, Sender};

use crate::engine::address;
pub use crate::sys::tcp_receive::MappedBytes;
use by_reference::PublishedMethod;

/// The receiving half of a stream in a tokio program; it has `AsyncRead` and `AsyncBufRead`.
#[cfg(feature = "tokio")]
pub type AsyncReceiver = crate::engine::asynchronous::AsyncReceiver<NonblockingReceiver>;

/// The sending half of a stream in a tokio program; it has `AsyncWrite`.
#[cfg(feature = "tokio")]
pub type AsyncSender = crate::engine::asynchronous::AsyncSender<NonblockingSender>;

/// A TCP connection whose buffers are owned.
///
/// Programs written over `std::net::TcpStream` find [`Read`](io::Read), [`BufRead`](io::BufRead) and
/// [`Write`](io::Write) here, which copy. Instead of `try_clone` there is [`split`](Self::split), and instead
/// of a timeout of the socket [`Receiver::receive_timeout`].
#[derive(Debug)]
pub struct Stream {
    socket: Arc<OwnedFd>,
    pub(crate) sender: Sender,
    receiver: Receiver,
}

/// Waits for connections.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    builder: Builder,
}

impl Stream {
    /// Connects to that address, as [`Builder::connect`] does.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn connect(address: impl ToSocketAddrs) -> Result<Self, OpenError> {
        Self::builder().connect(address)
    }

    /// Settings for connecting or listening.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// The address of this end.
    ///
    /// # Errors
    /// The kernel refuses to report it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        address::local_addr(&self.socket)
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        address::peer_addr(&self.socket)
    }

    /// The half that sends.
    pub fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// The half that receives.
    pub fn receiver(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    /// Both halves, for two threads. Dropping the sender ends the stream for the peer.
    pub fn split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }
}

impl Listener {
    /// Listens at that address, as [`Builder::listen`] does.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn bind(address: impl ToSocketAddrs) -> Result<Self, OpenError> {
        Builder::new().listen(address)
    }

    /// The address at which it listens.
    ///
    /// # Errors
    /// The kernel refuses to report it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Sets whether [`accept`](Self::accept) fails with `WouldBlock` instead of waiting. The descriptor
    /// ([`AsFd`]) is readable when there is a connection.
    ///
    /// ```
    /// use nocopy::tcp::{Listener, OpenError, Stream};
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// listener.set_nonblocking(true)?;
    /// let Err(OpenError::Accept(error)) = listener.accept() else { panic!("there is no connection") };
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// let stream = Stream::connect(listener.local_addr()?)?;
    /// assert_eq!(listener.accept()?.1, stream.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The kernel refused it.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        self.listener.set_nonblocking(on)
    }
}

impl AsFd for Stream {
    /// The [`Receiver`]'s descriptor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
