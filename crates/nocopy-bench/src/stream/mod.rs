//! Streams between processes, as programs that talk over TCP are: sender, receiver, and a proxy between them.
//!
//! ```text
//!   bench ── task (argument), phases (stdin) ──▶ nocopy bench-child stream ── words (stdout) ──▶ bench
//! ```
//! Each process opens its own socket: it is started inside the namespace of its side. It ends when its work
//! is done, or when its standard input ends, which happens when the bench ends, for any reason.
//!
//! Threads of one process would not do: a receiver that maps and unmaps pages has to notify every processor
//! that runs its process, and would slow down the sender, too.

mod amount;
mod cast;
mod meter;
mod ours;
mod peer;
mod process;
mod proxy;
mod receive;
mod send;
mod source;
mod task;
mod transfer;
mod words;

pub(crate) use amount::Amount;
pub(crate) use cast::{Cast, Side};
pub(crate) use process::run;
pub(crate) use proxy::ProxyWay;
pub(crate) use receive::ReceiveWay;
pub(crate) use send::SendWay;
pub(crate) use source::{CHUNK_BYTES, SOURCE_BYTES, SOURCE_BYTES_WARM};
pub(crate) use transfer::Transfer;

/// Set explicitly: bbr, a common default, paces, and would be a different competitor.
pub(crate) const CONGESTION_CONTROL: &str = super::baseline::tcp::CONGESTION_CONTROL;
