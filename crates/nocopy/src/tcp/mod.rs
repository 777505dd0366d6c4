//! Streams in owned buffers, without copies where that is faster here, with evidence of every byte.
//!
//! ```no_run
//! use nocopy::tcp::Socket;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut socket = Socket::connect("192.0.2.1:9000".parse()?)?;
//! let sender = socket.sender();
//! let mut buffer = sender.wait_buffer()?;
//! buffer.resize(64 << 10); // to be written in place
//! sender.send(buffer)?; // moved: touching it now does not compile
//! sender.flush()?;
//! println!("{}", sender.ledger());
//! # Ok(())
//! # }
//! ```

mod builder;
mod by_reference;
mod choice;
mod chunk;
mod diagnosis;
mod mapped;
mod method;
mod outbox;
mod outcome;
mod proxy;
mod published;
mod receiver;
mod receiving;
mod sender;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use builder::{Builder, OpenError};
pub use by_reference::{
    ByReference, PublishedMethod, RangeError, Step, Transfer, TransferError, UnknownPublishedMethod,
};
pub use chunk::Chunk;
pub use diagnosis::{Carrier, Diagnosis, Facts, Finding};
pub use method::{Method, UnknownMethod};
pub use outcome::{Closed, Completed, Counters, NotQueued, Rejected, RejectedReason, SendError};
pub use proxy::{Direction, DirectionError, Flow, Proxied, ProxyError, Side, proxy};
pub use published::{NotPublished, PublishError, Published, Publisher};
pub use receiver::{ReceiveError, Receiver, ReceiverRefused};
pub use receiving::{Explanation, Receiving, Way};
pub use sender::Sender;

use crate::engine::address;
pub use crate::engine::{leaked_bytes, sockets_cut_off};
pub use crate::memory::in_flight::Ticket;
pub use crate::sys::tcp_receive::MappedBytes;

/// A TCP connection whose buffers are owned.
#[derive(Debug)]
pub struct Socket {
    socket: Arc<OwnedFd>,
    sender: Sender,
    receiver: Receiver,
}

/// Waits for connections.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    builder: Builder,
}

impl Socket {
    /// Connects to that address.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn connect(address: SocketAddr) -> Result<Self, OpenError> {
        Self::builder().connect(address)
    }

    /// Settings, to be connected or listened with.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// The address of this end.
    ///
    /// # Errors
    /// The kernel's refusal to tell.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        address::local(&self.socket)
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// The connection is over.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        address::peer(&self.socket)
    }

    /// The half that sends.
    pub fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// The half that receives.
    pub fn receiver(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    /// Both halves, for a thread each. Dropping the sender ends the stream to the peer.
    pub fn split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }
}

impl Listener {
    /// Listens at that address; port 0 takes a free one.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn bind(address: SocketAddr) -> Result<Self, OpenError> {
        Builder::new().listen(address)
    }

    /// The address it listens at.
    ///
    /// # Errors
    /// The kernel's refusal to tell.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Whether [`accept`](Self::accept) does not wait, and says `WouldBlock`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        self.listener.set_nonblocking(on)
    }
}

impl AsFd for Socket {
    /// As that of its [`Receiver`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
