//! Zero-copy network I/O for stock Linux: owned buffers over AF_XDP, with evidence of every copy.
//!
//! A [`Port`] is one queue of one interface. Packets come in as borrowed [`Packet`]s, or, taken, as owned [`Frame`]s;
//! frames go out by being given away. What was sent cannot be touched: it does not compile.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mut receiver, mut sender) = nocopy::Port::open("eth0")?.split();
//! loop {
//!     for mut packet in receiver.receive()? {
//!         if packet.len() >= 12 {
//!             let (to, from) = packet[..12].split_at_mut(6);
//!             to.swap_with_slice(from);
//!             sender.send(packet.take())?; // no byte moves
//!         }
//!     }
//!     sender.flush()?;
//! }
//! # }
//! ```
//!
//! * [`port`]: packets of an interface: opening, receiving, sending, waiting; granting to processes without privileges.
//! * [`udp`], [`tcp`]: sockets that own their buffers, choose by measurement how to send, and say what was copied.
//! * [`message`]: reliable messages between nodes, over ports or sockets.
//! * [`capture`]: all packets of an interface that leaves them to the host, in blocks that are owned.
//! * [`area`], [`pool`]: the memory, who owns which part of it, the balance.
//! * [`filter`]: which packets come to a port, decided before they are copied; [`metadata`]: checksums and times, left to the card or
//!   told by it.
//! * [`Evidence`]: whether bytes were copied: *zero-copy*, *copied* with the cause, or *unknown*.
//!
//! The modules in their layers: each uses those below it only (`cargo xtask check` reads this list).
//!
//! ```text
//! integration
//! message
//! udp  tcp  tokio
//! inspect
//! port  capture
//! engine
//! memory
//! sys
//! ring
//! stats
//! sync  counter  facts
//! ```

pub mod capture;
mod counter;
mod engine;
mod facts;
mod inspect;
#[doc(hidden)]
pub mod integration;
mod memory;
pub mod message;
#[cfg(any(feature = "fuzzing", test))]
#[doc(hidden)]
pub mod model;
pub mod port;
mod ring;
mod stats;
mod sync;
mod sys;
pub mod tcp;
#[cfg(feature = "tokio")]
pub mod tokio;
pub mod udp;

pub use capture::Capture;
pub use counter::Counter;
pub use engine::half::{ReceiverHalf, SenderHalf};
pub use engine::{leaked_bytes, sockets_cut_off};
pub use facts::evidence::{Cause, Evidence, Ledger};
pub use facts::explanation::Explanation;
pub use facts::rejected::{Reason, Rejected};
pub use memory::area::{Area, Chain, Draft, Drafts, Frame, Packet, SharedFrame};
pub use memory::pool::{Buffer, Pool};
pub use memory::{area, pool};
pub use port::{Mode, Port, Receiver, Sender, ToHost, Wait, filter, metadata};
pub use stats::Stats;

/// The hardware (MAC) address of an interface of the calling thread's network namespace.
///
/// # Errors
/// No such interface.
pub fn hardware_address(interface: &str) -> std::io::Result<[u8; 6]> {
    sys::interface::hardware_address(interface)
}
