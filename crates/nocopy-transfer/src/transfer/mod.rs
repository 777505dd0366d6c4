//! The protocol between `nocopy send udp://…` and `nocopy recv udp://…` (docs/recv.md), without sockets and
//! clocks: datagrams and times in, datagrams and counts out.
//!
//! There are three kinds of datagrams. *Data* carry a number and an offset in the stream. The sender
//! *probes* regularly: first whether the receiver is there, last what arrived. The receiver only
//! *reports* its counts, in reply to probes.

mod datagram;
mod receiver_run;
mod report;
mod sender_run;
pub(crate) mod stream;
mod wire;

pub(crate) use receiver_run::{HandledDatagram, ReceiverPhase, ReceiverRun};
pub(crate) use report::RunRow;
pub(crate) use sender_run::{SenderRun, SenderState};
pub(crate) use wire::{CONTROL_BYTES, HEADER_BYTES};
