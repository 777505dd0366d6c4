//! The protocol between `nocopy send tcp://…` and `nocopy recv tcp://…` (docs/recv.md), without sockets and
//! clocks: bytes and times in, messages and findings out.
//!
//! One connection is for *control*: the sender asks, the receiver answers, from before the first byte to
//! after the last. The others carry *data*: a header, then unchanged bytes, to the end of the connection. So
//! data need no framing, which pages sent by reference could not have, and results that are known only at the
//! end use the control connection.
//!
//! One thread per stream moves bytes and one more exchanges messages, so a receiver that waits for its disk,
//! or a sender that waits for its pipe, still answers. For a pipe the next stream is read when the previous
//! one has ended; until then flow control stops the others.

mod answering;
mod asking;
mod message;
mod places;
mod report;

pub(crate) use answering::Answering;
pub(crate) use asking::{Asking, State};
pub(crate) use message::{Count, Head, Malformed, Message, MessageBuffer, Refusal, refuse};
pub(crate) use places::{Places, cut};
pub(crate) use report::Findings;
