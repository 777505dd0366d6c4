//! Sockets of the kernel's own protocols that own their buffers, choose by measurement how to send, and say what was copied:
//! datagrams by [`udp`], streams by [`tcp`].

pub(crate) mod address;
#[cfg(test)]
#[path = "../../tests/common/calls.rs"]
#[allow(dead_code)] // used by the integration tests
mod calls;
mod in_flight;
mod kept;
mod path;
mod reaper;
pub mod tcp;
pub mod udp;

pub use in_flight::Ticket;
pub use reaper::leaked_bytes;
