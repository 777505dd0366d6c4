//! The messages of a process to the bench, a line of JSON each.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::window::WindowReading;
use nocopy_report::result::Evidence;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum PeerMessage {
    /// The address at which it accepts a connection.
    Listening(SocketAddr),
    /// Bytes have been transferred.
    UnderWay,
    Measuring,
    /// All bytes have arrived; it waits until it is ended.
    Received,
    Done(PeerReport),
    Failed(String),
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PeerReport {
    /// Bytes and times; for a proxy only the times.
    pub reading: WindowReading,
    /// Evidence from the side that has it; absent from the other.
    pub evidence: Option<Evidence>,
    /// The fraction of received bytes that were mapped, not copied.
    pub mapped_fraction: Option<f64>,
}
