//! Reliable messages, over sockets and over ports.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod bytes;
mod dropped_futures;
mod errors;
#[cfg(feature = "tracing")]
mod events;
mod exchange;
mod faults;
mod futures;
mod memory;
mod placing;
mod port;
mod streams;
mod threads;
mod tokio;
