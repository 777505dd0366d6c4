//! The server: calls come in, replies go out.

pub mod core;
