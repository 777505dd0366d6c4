//! The server over real sockets, by a client of its own and by programs of others.
#![allow(missing_docs, clippy::disallowed_macros)] // a test may print

mod callers;
mod changing;
mod client;
mod forged;
mod library;
mod losing;
mod many;
mod model;
mod modes;
mod reading;
mod running;
mod stopping;
mod users;
mod utilities;
