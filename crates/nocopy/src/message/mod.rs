//! Messages between nodes: reliable, in order, and from user space.
//!
//! An [`Endpoint`] sends messages to any number of peers and receives theirs, each one once and those of a peer in order, whatever the
//! network loses. The protocol is `docs/protocol.md`. It runs over UDP sockets ([`Builder::bind`]).
//!
//! ```no_run
//! use nocopy::message::Endpoint;
//! use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut endpoint = Endpoint::builder().bind("0.0.0.0:0".parse()?)?;
//! let peer = endpoint.connect("192.0.2.1:9000".parse()?, Duration::from_secs(5))?;
//! endpoint.send(peer, b"hello")?; // into the packet that is being filled
//! endpoint.flush()?; // and that goes
//! while let Some(message) = endpoint.receive()? {
//!     println!("{} bytes: {:?}", message.len(), message.as_slice());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # When things happen
//!
//! An endpoint has no thread. It works while it is called: small messages are put together in one packet for each peer, which goes when
//! it is full, with [`flush`](Endpoint::flush), or when the endpoint [receives](Endpoint::receive) and has nothing at hand. So it has to be
//! called: an endpoint that is not acknowledges nothing, and is taken for dead after
//! [`dead_after`](Builder::dead_after). Who has other things to wait for waits on its descriptor ([`Endpoint::arm`]).
//!
//! # Memory
//!
//! All of it is there from the beginning ([`Builder::memory`]); no message costs an allocation. What was sent is kept until the peer has it,
//! and what came until it is read: a peer that reads nothing stops its senders, who are told by [`SendError::WouldBlock`].

mod builder;
mod call;
mod cargo;
mod carrier;
mod counters;
mod endpoint;
mod memory;
mod open_packet;
mod received;

pub use builder::{Builder, OpenError};
pub use call::CallError;
pub use counters::CarrierCounters;
pub use endpoint::{ConnectError, Endpoint, Rejected, SendError};
pub use nocopy_proto::message::{
    Counters as ProtocolCounters, Event, Gone, Kind, MESSAGE_BYTES_MAX, Peer, PeerStatistics, Reason,
    Violation,
};
pub use received::{Message, OwnedMessage, OwnedPiece};

use nocopy_proto::message::wire::HEADER_BYTES;
