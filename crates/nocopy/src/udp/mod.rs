//! Datagrams in owned buffers, sent the way that is fastest here, with evidence of every copy.
//!
//! ```no_run
//! use nocopy::udp::{Message, Socket};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut socket = Socket::bind("0.0.0.0:0".parse()?)?;
//! socket.connect("192.0.2.1:9000".parse()?)?;
//! let sender = socket.sender();
//! let mut buffer = sender.buffer().ok_or("all buffers are on their way")?;
//! buffer.resize(44 * 1400); // 44 datagrams, to be written in place
//! sender.send(Message::segments(buffer, 1400))?; // moved: touching it now does not compile
//! sender.flush()?;
//! println!("{}", sender.ledger());
//! # Ok(())
//! # }
//! ```

mod builder;
mod by_port;
mod call;
mod choice;
mod destinations;
mod message;
mod method;
mod multicast;
mod outbox;
pub mod over_port;
mod peer_error;
mod receiver;
mod run;
mod sender;
#[cfg(feature = "tokio")]
pub mod tokio;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use builder::{Builder, OpenError};
pub use message::{DATAGRAM_BYTES_MAX, Message};
pub use method::{Method, UnknownMethod};
pub use peer_error::PeerError;
pub use receiver::{Batch, Dropped, ReceiveError, Receiver};
pub use run::{Datagram, OwnedDatagram, Run};
pub use sender::{Closed, Completed, Counters, Rejected, RejectedReason, SendError, Sender};

use crate::engine::address;
pub use crate::engine::{leaked_bytes, sockets_cut_off};
pub use crate::memory::in_flight::Ticket;
pub use crate::sys::udp_receive::LocalAddress;

/// A UDP socket whose buffers are owned.
#[derive(Debug)]
pub struct Socket {
    socket: Arc<OwnedFd>,
    sender: Sender,
    receiver: Receiver,
}

impl Socket {
    /// A socket with that address; port 0 takes a free one.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn bind(address: SocketAddr) -> Result<Self, OpenError> {
        Self::builder().bind(address)
    }

    /// Settings, to be bound.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Makes that address the one [`Sender::send`] sends to, and the only one that is received from.
    ///
    /// # Errors
    /// The kernel's refusal: no route to it, or the socket is of the other IP version.
    pub fn connect(&mut self, to: SocketAddr) -> io::Result<()> {
        socket2::SockRef::from(&self.socket).connect(&to.into())?;
        self.sender.connected(to);
        Ok(())
    }

    /// The address it was bound to.
    ///
    /// # Errors
    /// The kernel's refusal to tell.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        address::local(&self.socket)
    }

    /// The half that sends.
    pub fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// The half that receives.
    pub fn receiver(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    /// Both halves, for a thread each.
    pub fn split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }
}

impl AsFd for Socket {
    /// As that of its [`Receiver`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}
