//! Receiving by number: the payload of each datagram is copied into its row of a chunk of memory.
//!
//! [`window`] decides which row of which chunk a number is; [`placer`] has the chunks; [`receiver`] the
//! sources of datagrams.

mod chunk;
mod held;
mod kernel_source;
mod placer;
mod receiver;
mod settings;
mod window;

pub use chunk::PlacedChunk;
pub use receiver::{NonblockingPlacedReceiver, PlacedReceiver};
pub use settings::{Field, Placing};
