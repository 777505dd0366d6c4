//! Programs over `tokio::net::{TcpStream, TcpListener}`, and the same text over `nocopy::tcp`.
//!
//! `programs.rs` is compiled twice: its parent names the two types, and makes a listener.
#![cfg(feature = "tokio")]
#![allow(clippy::duplicate_mod)]

mod over_nocopy;
mod over_tokio;
