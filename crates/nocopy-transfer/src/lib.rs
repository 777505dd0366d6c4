//! What moves data from host to host: send, receive, ping, serve and call, with the exchange of messages that the bench measures too.
// Read by the crates of this workspace alone: what a name does not say, a comment does.
#![allow(missing_docs)]

pub mod arguments;
pub mod arrivals;
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
mod transfer;

pub use failure::Failure;
