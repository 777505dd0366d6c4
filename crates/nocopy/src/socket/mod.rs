//! Sockets of the kernel's own protocols that own their buffers, choose by measurement how to send, and say what was copied.
//!
//! * [`udp`]: datagrams.

pub mod udp;
