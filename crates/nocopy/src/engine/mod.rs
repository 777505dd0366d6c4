//! What all kinds of sockets, and ports, share: waiting, the choice by measurement, what the kernel still reads.
//!
//! **Forked children** have the same sockets, and copies of their parent's halves. What the kernel still reads stays as it is for the
//! parent, whatever the child does: its copy of a sender copies what it sends, takes no completions (its `in_flight` stays what it was), and
//! ends no stream when it is dropped. The buffers of a [`Pool`](crate::Pool) are not there: touching one ends the child.

pub(crate) mod address;
pub(crate) mod choice;
pub(crate) mod half;
pub(crate) mod path;
pub(crate) mod policy;
pub(crate) mod reaper;
pub(crate) mod route;
pub(crate) mod sending;
pub(crate) mod wait;

#[cfg(test)]
#[path = "../../tests/common/calls.rs"]
#[allow(dead_code)] // used by the integration tests
pub(crate) mod calls;

pub use reaper::process_stats;
