//! Sockets of the kernel's own protocols that own their buffers, choose by measurement how to send, and say what was copied:
//! datagrams by [`udp`], streams by [`tcp`].
//!
//! **Forked children** have the same sockets, and copies of their parent's halves. What the kernel still reads stays as it is for the
//! parent, whatever the child does: its copy of a sender copies what it sends, takes no completions (its [`in_flight`](udp::Sender::in_flight)
//! stays what it was), and ends no stream when it is dropped. The buffers of a [`Pool`](crate::Pool) are not there: touching one ends the
//! child.

pub(crate) mod address;
#[cfg(test)]
#[path = "../../tests/common/calls.rs"]
#[allow(dead_code)] // used by the integration tests
mod calls;
mod in_flight;
mod kept;
mod kernel_socket;
mod path;
mod reaper;
pub mod tcp;
pub mod udp;

pub use in_flight::Ticket;
pub use reaper::{leaked_bytes, sockets_cut_off};
