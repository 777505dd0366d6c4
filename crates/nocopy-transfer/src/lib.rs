//! Part of the `nocopy` command, without a promised API: moves data between hosts by send, recv, ping, serve
//! and call. The bench measures the same exchange of messages.
// Used only by the crates of this workspace: comments are needed only where a name does not suffice.
#![allow(missing_docs)]

mod answer;
pub mod arguments;
pub mod arrivals;
mod attempts;
pub mod call;
mod control;
pub mod endpoint;
pub mod exchange;
mod failure;
mod ledger;
pub mod ping;
mod processor;
pub mod recv;
pub mod send;
pub mod serve;
mod source;
mod streams;
mod transfer;

pub use failure::Failure;
