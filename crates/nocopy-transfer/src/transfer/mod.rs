//! What `nocopy send udp://…` and `nocopy recv udp://…` say to each other (docs/recv.md), decided without sockets and clocks: datagrams
//! and times come in, datagrams and findings go out.
//!
//! Three kinds of datagrams. *Data* carry a number and a place in the stream. The sender *asks* now and then, first of all for whether
//! the receiver is there, last for what arrived; the receiver only ever *answers*, with what it counted.

mod datagram;
mod receiving;
mod report;
mod sending;
pub(crate) mod stream;
mod wire;

pub(crate) use datagram::{Received, Sent};
pub(crate) use receiving::{Handled, Phase, Receiving};
pub(crate) use report::Findings;
pub(crate) use sending::{Sending, State};
pub(crate) use wire::{CONTROL_BYTES, HEADER_BYTES};
