//! The client. Its core knows what bytes mean, without sockets.

pub mod core;
