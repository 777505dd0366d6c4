//! The server over real sockets, by a client of its own and by programs of others.
#![allow(missing_docs, clippy::disallowed_macros)] // a test may print

mod callers;
mod changes;
mod client;
mod forged;
mod interrupted_writes;
mod library;
mod many_clients;
mod model;
mod modes;
mod reading;
mod removed_files;
mod scene;
mod users;
mod utilities;
