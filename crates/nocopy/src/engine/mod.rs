//! Shared by all kinds of sockets, and ports: waiting, the measured choice of method, and the reaper of
//! dropped senders.
//!
//! **Forked children** have the same sockets, and copies of their parent's halves. The child cannot change
//! memory that the kernel still reads for the parent: its copy of a sender sends by copying, takes no
//! completions (its `in_flight` does not change), and ends no stream when it is dropped. The buffers of a
//! [`Pool`](crate::Pool) are not mapped in the child: touching one ends it.

pub(crate) mod address;
#[cfg(feature = "tokio")]
pub(crate) mod asynchronous;
pub(crate) mod half;
pub(crate) mod path;
pub(crate) mod policy;
pub(crate) mod reaper;
pub(crate) mod route;
pub(crate) mod wait;

#[cfg(test)]
#[path = "../../tests/common/calls.rs"]
#[allow(dead_code)] // used by the integration tests
pub(crate) mod calls;

pub use reaper::process_stats;
