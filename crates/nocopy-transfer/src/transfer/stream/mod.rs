//! What `nocopy send tcp://…` and `nocopy recv tcp://…` say to each other (docs/recv.md), decided without sockets and clocks: bytes and
//! times come in, messages and findings go out.
//!
//! One connection is for *control*: the sender asks, the receiver answers, from before the first byte to after the last. The others
//! carry *data*: a header, then bytes as they are, to the end of the connection. So data need no frames, which pages that go by reference
//! could not have, and what is known of them at the end only has its own way.
//!
//! One thread per stream moves bytes and one more exchanges messages, so a receiver that waits for its disk, or a sender that waits
//! for its pipe, still answers. Down a pipe the next stream is read when the one before has ended; the kernel's flow control holds the
//! others back.

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
