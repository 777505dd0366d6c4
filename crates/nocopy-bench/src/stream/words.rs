//! The messages of a process to the bench, a line of JSON each.

use std::io::{self, Write};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::window::Reading;
use nocopy_report::result::Evidence;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// The address at which it accepts a connection.
    Listening(SocketAddr),
    /// Bytes have been transferred.
    UnderWay,
    Measuring,
    /// All bytes have arrived; it waits until it is ended.
    Received,
    Done(Report),
    Failed(String),
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Bytes and times; for a proxy only the times.
    pub reading: Reading,
    /// Evidence from the side that has it; absent from the other.
    pub evidence: Option<Evidence>,
    /// The fraction of received bytes that were mapped, not copied.
    pub mapped_fraction: Option<f64>,
}

impl Word {
    pub(super) fn say(&self) -> io::Result<()> {
        let mut output = io::stdout().lock();
        serde_json::to_writer(&mut output, self)?;
        output.write_all(b"\n")?;
        output.flush()
    }
}
