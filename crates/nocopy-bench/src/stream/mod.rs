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
mod asynchronous;
mod messages;
mod meter;
mod ours;
mod peer;
mod process;
mod proxy;
mod receive;
mod send;
mod setup;
mod source;
mod task;
mod transfer;

pub(crate) use amount::TransferAmount;
pub(crate) use process::child_main;
pub(crate) use proxy::ProxyMode;
pub(crate) use receive::ReceiveMode;
pub(crate) use send::SendMode;
pub(crate) use setup::{ReportingSide, StreamSetup};
pub(crate) use source::{CHUNK_BYTES, SOURCE_BYTES, SOURCE_BYTES_WARM};
pub(crate) use transfer::AmountTransfer;
