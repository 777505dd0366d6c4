//! The messages of a process to the bench, a line of JSON each.

use std::io::{self, Write};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::window::Reading;
use nocopy_report::result::Evidence;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// Whoever connects there is served.
    Listening(SocketAddr),
    /// Bytes have been transferred.
    UnderWay,
    /// Its window has begun.
    Measuring,
    /// All bytes have arrived; it waits until it is ended.
    Received,
    Done(Report),
    Failed(String),
}

/// What a process did.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// In bytes; of a proxy the times only.
    pub reading: Reading,
    /// From the side that knows about copies; absent from the other.
    pub evidence: Option<Evidence>,
    /// Of the bytes received, those that were mapped and not copied.
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
