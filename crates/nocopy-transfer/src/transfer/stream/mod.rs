//! The protocol between `nocopy send tcp://…` and `nocopy recv tcp://…` (docs/recv.md), without sockets and
//! clocks: bytes and times in, messages and counts out.
//!
//! One connection is for *control*: the sender probes, the receiver reports, from before the first byte to
//! after the last. The others carry *data*: a header, then unchanged bytes, to the end of the connection. So
//! data need no framing, which pages sent by reference could not have, and results that are known only at the
//! end use the control connection.
//!
//! One thread per stream moves bytes and one more exchanges messages, so a receiver that waits for its disk,
//! or a sender that waits for its pipe, still reports. For a pipe the next stream is read when the previous
//! one has ended; until then flow control stops the others.

mod message;
mod ranges;
mod receiver_control;
mod report;
mod sender_control;

pub(crate) use message::{
    ByteCount, ControlMessage, MalformedMessage, MessageBuffer, Refusal, StreamHead, refusal_message,
};
pub(crate) use ranges::{StreamRanges, split_into_ranges};
pub(crate) use receiver_control::ReceiverControl;
pub(crate) use report::RunCounts;
pub(crate) use sender_control::{ControlState, SenderControl};
