//! Sockets of the kernel's own protocols that own their buffers, choose by measurement how to send, and say what was copied:
//! datagrams by [`udp`].

pub mod udp;
