//! Datagrams in owned buffers, sent by the fastest method on this machine, with evidence for every copy.
//!
//! ```no_run
//! use nocopy::udp::{Message, Socket};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut socket = Socket::bind("0.0.0.0:0")?;
//! socket.connect("192.0.2.1:9000")?;
//! let sender = socket.sender();
//! let mut buffer = sender.buffer().ok_or("all buffers are on their way")?;
//! buffer.resize(44 * 1400); // 44 datagrams, to be written in place
//! sender.send(Message::segments(buffer, 1400))?; // moved: touching it now does not compile
//! sender.flush()?;
//! println!("{}", sender.ledger());
//! # Ok(())
//! # }
//! ```
//!
//! # Per datagram
//! [`Datagram::metadata`] has what is known about a received datagram: ECN, the address to which it was sent,
//! its interface, its time, and the length of the datagrams that arrived with it. A kernel socket reports it
//! on [request](Builder::receive_metadata). [`send_with`](NonblockingSender::send_with) sets ECN and the
//! source address of the datagrams of one message, whose length is that of its
//! [segments](Message::segments).
//!
//! # Placed by number
//! Datagrams with a number and a payload of one length, such as samples of a detector, can be received into
//! [chunks](PlacedChunk) of contiguous memory ([`Receiver::place`]): each payload is in the row that its
//! number names, and a flag for each row says whether it arrived.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use nocopy::udp::{Field, Placing, Socket};
//! let socket = Socket::bind("0.0.0.0:9000")?;
//! let placing = Placing::by_number(Field::big_endian(8, 8)).payload(16).shape(4096, 1384);
//! let mut receiver = socket.split().0.place(placing)?;
//! while let Some(chunk) = receiver.receive()? {
//!     println!("rows from {}: {} of {}", chunk.first(), chunk.filled(), chunk.present().len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Over a port
//! Over a [`Port`](crate::Port) ([`Builder::port`]), the same socket writes the headers itself, in front of
//! payloads in frames, and selects its own datagrams among the interface's packets by a filter: they bypass
//! the host's network stack, packet filter (netfilter) and IPsec policies. The socket asks the host for
//! routes, the next hop's hardware address and the MTU, and is notified of changes. Everything else goes
//! through an ordinary socket with the same address:
//!
//! | through the kernel, copied, and counted ([`Sender::stats`](NonblockingSender::stats), [`Receiver::stats`](NonblockingReceiver::stats)) | why |
//! |---|---|
//! | sent to a neighbour whose hardware address is not known yet | the kernel resolves the address, and keeps the datagram until then |
//! | sent, longer than the MTU | the kernel fragments |
//! | sent through another interface, to this host, as a broadcast, into a tunnel | not possible on this port |
//! | sent, if the kernel's methods are measured to be faster | [`Sender::explain`](NonblockingSender::explain) |
//! | received in fragments, with IP options or a VLAN tag, on another queue, from this host | the filter passes it to the host |
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use nocopy::{Port, udp::Socket};
//! let socket = Socket::builder().port(Port::builder("eth0")).bind("10.0.0.1:9000")?;
//! let (mut receiver, mut sender) = socket.split();
//! loop {
//!     for datagram in receiver.receive()? {
//!         let from = datagram.source();
//!         sender.send_to(datagram.take(), from)?; // the frame that it came in
//!     }
//!     sender.flush()?;
//! }
//! # }
//! ```
//!
//! A socket of the same machine, or of its VM host, can send several datagrams as one packet (`UDP_SEGMENT`),
//! and a port in packet ring or generic mode receives that packet whole. If the packet is longer than the
//! MTU, it is lost and counted; **otherwise it is received as one datagram**. With such senders, use native
//! mode, in which veth cuts the packet, or turn this segmentation off at the sender's interface
//! (`ethtool -K IF tx-udp-segmentation off`). In packet ring mode, datagrams that arrived in fragments but
//! are no longer than the MTU are lost, counted in `sk_drops`.

mod ancillary;
mod batch;
mod builder;
#[cfg_attr(not(feature = "port"), path = "by_port/absent.rs")]
mod by_port;
mod choice;
mod destinations;
mod drops;
pub(crate) mod kernel;
mod message;
mod metadata;
mod method;
mod open_error;
mod outcome;
#[cfg_attr(not(feature = "port"), path = "over_port/absent.rs")]
pub(crate) mod over_port;
mod peer_error;
mod placed;
mod receiver;
mod row_method;
mod rows;
pub(crate) mod run;
mod sender;
mod settings;
pub(crate) mod strangers;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

pub use ancillary::Ancillary;
pub use batch::{Batch, Burst, Datagram, OwnedDatagram};
pub use builder::Builder;
pub use message::{DATAGRAM_BYTES_MAX, Message};
pub use metadata::Metadata;
pub use method::Method;
pub use nocopy_proto::UdpChecksum;
pub use nocopy_proto::wire::Ecn;
pub use open_error::OpenError;
pub use outcome::SendError;
pub use peer_error::PeerError;
pub use placed::{Field, NonblockingPlacedReceiver, PlacedChunk, PlacedReceiver, Placing};
pub use receiver::{NonblockingReceiver, NotPlaced, Receiver};
pub use rows::{FilledRow, FilledRows, RowFiller};
pub use sender::{NonblockingSender, Sender};

use crate::engine::address;

/// The receiving half of a socket in a tokio program.
#[cfg(feature = "tokio")]
pub type AsyncReceiver = crate::engine::asynchronous::AsyncReceiver<NonblockingReceiver>;

/// A receiving half that places rows, in a tokio program.
#[cfg(feature = "tokio")]
pub type AsyncPlacedReceiver = crate::engine::asynchronous::AsyncReceiver<NonblockingPlacedReceiver>;

/// The sending half of a socket in a tokio program.
#[cfg(feature = "tokio")]
pub type AsyncSender = crate::engine::asynchronous::AsyncSender<NonblockingSender>;

/// A UDP socket with owned buffers: a kernel socket, or UDP written into a [port](Builder::port)'s frames.
#[derive(Debug)]
pub struct Socket {
    /// The address of a socket over a port.
    address: Option<SocketAddr>,
    sender: Sender,
    receiver: Receiver,
}

impl Socket {
    /// Binds a socket to that address, as [`Builder::bind`] does.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn bind(address: impl ToSocketAddrs) -> Result<Self, OpenError> {
        Self::builder().bind(address)
    }

    /// Settings for a socket to be bound.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Sets the peer: the default destination, and the only address from which datagrams are received. Of
    /// several addresses the first is used to which there is a route.
    ///
    /// # Errors
    /// The name was not found; or the kernel's refusal: no route to it, or the socket has the other IP
    /// version.
    pub fn connect(&mut self, to: impl ToSocketAddrs) -> io::Result<()> {
        address::first_success(to, |error| error, |to| self.connect_to(to))
    }

    fn connect_to(&mut self, to: SocketAddr) -> io::Result<()> {
        match self.address {
            None => socket2::SockRef::from(self.sender.queue.kernel_socket()).connect(&to.into())?,
            Some(address) if address.is_ipv4() != to.is_ipv4() => {
                return Err(io::ErrorKind::AddrNotAvailable.into());
            }
            Some(_) => {}
        }
        self.sender.set_peer(to);
        self.receiver.set_peer(to);
        Ok(())
    }

    /// The local address.
    ///
    /// # Errors
    /// The kernel refuses to report it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.address.map_or_else(|| address::local_addr(self.sender.queue.kernel_socket()), Ok)
    }

    /// The half that sends.
    pub fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// The half that receives.
    pub fn receiver(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    /// Both halves, for two threads.
    pub fn split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }
}
