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
//! * [`port`]: opening, receiving, sending, waiting; granting to processes without privileges.
//! * [`area`]: the memory, who owns which frame of it, the balance.
//! * [`capture`]: all packets of an interface that leaves them to the host, in blocks that are owned.
//! * [`disk`]: files written past the page cache from where packets lie.
//! * [`ring`]: the queues shared with the kernel.
//! * [`probe`]: what this machine and an interface would let a port do, looked at without changing anything.
//! * [`statistics`]: everything counted for an interface and the ports on it, also those of other processes.
//! * [`tc`]: a sink where packets enter the host's stack.
//! * [`xdp`]: programs on an interface; the kernel as a packet source.
//! * [`message`]: reliable messages between nodes, over ports or sockets.
//! * [`filter`]: which packets come to a port, decided before they are copied.
//! * [`metadata`]: checksums and times, left to the card or told by it.
//! * [`Evidence`]: whether bytes were copied: *zero-copy*, *copied* with the cause, or *unknown*.

pub mod area;
pub mod capture;
mod counter;
pub mod disk;
mod evidence;
pub mod filter;
pub mod message;
pub mod metadata;
#[cfg(any(feature = "fuzzing", test))]
#[doc(hidden)]
pub mod model;
pub mod policy;
pub mod pool;
pub mod port;
pub mod probe;
pub mod ring;
mod route;
pub mod socket;
pub mod statistics;
mod sync;
mod sys;
pub mod tc;
pub mod xdp;

pub use area::{Area, Chain, Draft, Drafts, Frame, Packet, SharedFrame};
pub use evidence::{Cause, Evidence, Tally};
pub use pool::{Buffer, Pool};
pub use port::{Mode, Port, Receiver, Sender, ToHost, Wait};

/// The hardware (MAC) address of an interface of the calling thread's network namespace.
///
/// # Errors
/// No such interface.
pub fn hardware_address(interface: &str) -> std::io::Result<[u8; 6]> {
    sys::interface::hardware_address(interface)
}
