//! Messages between nodes: reliable, in order, and from user space.
//!
//! An [`Endpoint`] sends messages to any number of peers and receives theirs: each message once, and the
//! messages of one peer in order, whatever the network loses. The protocol is `docs/protocol.md`. It runs
//! over a UDP socket, or over a port ([`Builder::port`]).
//!
//! ```no_run
//! use nocopy::message::Endpoint;
//! use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut endpoint = Endpoint::bind("0.0.0.0:0")?;
//! let peer = endpoint.connect("192.0.2.1:9000", Duration::from_secs(5))?;
//! endpoint.send_copy_to(b"hello", peer)?; // into the packet that is being filled
//! endpoint.flush()?; // which goes now
//! while let Some(message) = endpoint.receive()? {
//!     println!("{} bytes: {:?}", message.len(), message.as_slice());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # When things happen
//!
//! An endpoint has no thread, and works only while the program calls it. It puts short messages to one peer
//! together in a packet, and sends the packet when it is full, with [`flush`](Endpoint::flush), or when the
//! program [receives](Endpoint::receive) and no message is there. An endpoint that is not called acknowledges
//! nothing, and its peers take it for dead after their [`dead_after`](Builder::dead_after): peers of a
//! program that computes for longer set a longer one. A program that also waits for other things waits on
//! the endpoint's descriptor ([`arm`](NonblockingEndpoint::arm)); in a tokio program, `Endpoint::into_async`
//! makes what waits `async`.
//!
//! One thread at a time can use an endpoint. Several threads share one by a mutex, which a thread releases
//! while it waits on the descriptor (`examples/threads.rs`).
//!
//! # Memory
//!
//! An endpoint allocates all its memory when it is opened ([`Builder::memory`]), and none for a message. It
//! keeps sent messages until the peer has acknowledged them, and received ones until the program reads them.
//! So a peer that reads nothing stops its senders: their messages are refused as
//! [`Full`](crate::Reason::Full).

mod arrivals;
#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod builder;
mod by_stream;
mod call;
mod cargo;
mod carrier;
mod counters;
mod descriptor;
mod ending;
mod endpoint;
mod figures;
mod memory;
mod open_error;
mod open_packet;
mod payload;
mod placing;
mod received;
mod receiving;
mod repeated;
mod sending;
mod sent_shares;
mod streams;
#[cfg(test)]
mod tests;

#[cfg(feature = "tokio")]
pub use asynchronous::AsyncEndpoint;
pub use blocking::Endpoint;
pub use builder::Builder;
pub use call::Error;
pub use endpoint::NonblockingEndpoint;
pub use nocopy_proto::message::{
    Event, Kind, LostReason, MESSAGE_BYTES_MAX, Peer, PeerStats, PutRefusal, Region,
};
pub use open_error::OpenError;
pub use payload::Payload;
pub use received::Message;

#[cfg(any(feature = "fuzzing", test))]
pub(crate) use streams::model;

use nocopy_proto::message::wire::HEADER_BYTES;
