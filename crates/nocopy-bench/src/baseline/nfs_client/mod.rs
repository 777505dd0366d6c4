//! Programs that read by NFS, each in its own process: this library's client, one on libnfs, and loops of
//! `recv()` without NFS.
//!
//! ```text
//!   bench ── task (arguments) ──▶ nocopy bench-child read-nfs, or the program on libnfs ── lines of JSON (stdout) ──▶ bench
//! ```
//! Each client opens and closes its own window, so that all are measured in the same way.

mod by_posted_buffers;
mod by_prepared_calls;
mod by_recv;
pub(crate) mod libnfs;

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::child::print_message;
use crate::{Failure, cpu};
use nocopy_report::{Outcome, capability};

/// Reads that are in flight, of all connections together.
pub(crate) const IN_FLIGHT: usize = 16;

/// Time from the first pass over the file, which is compared with the written file, to the window.
pub(crate) const WARM_UP: Duration = Duration::from_millis(25);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NfsReadTask {
    pub(crate) method: ReadMethod,
    pub(crate) connections: usize,
    pub(crate) window: Duration,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ReadMethod {
    /// A file from start to end, repeatedly, by this library's client; its contents are as the bench wrote
    /// them.
    Post { url: String, bytes: usize, file_bytes: u64 },
    /// The same reads by prepared calls; only the length of replies is looked at.
    PreparedCalls { url: String, from: SocketAddr, bytes: usize, file_bytes: u64 },
    /// Any bytes, into a buffer of that length.
    Recv { from: SocketAddr, bytes: usize },
}

/// The process's messages.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ClientMessage {
    Measuring,
    Done(ReadResult),
    Failed(String),
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ReadResult {
    pub(crate) bytes: u64,
    pub(crate) elapsed_ns: u64,
    pub(crate) cpu_ns: u64,
    /// The most memory that it ever had.
    pub(crate) peak_kib: u64,
    /// The received bytes that were copied a second time.
    pub(crate) moved_bytes: u64,
}

/// The main function of the process.
pub(crate) fn child_main(task: &NfsReadTask) -> Result<Outcome, Failure> {
    let result = capability::drop_others(capability::NONE).and_then(|()| read_by_method(task));
    let (message, outcome) = match result {
        Ok(result) => (ClientMessage::Done(result), Outcome::Positive),
        Err(error) => (ClientMessage::Failed(error.to_string()), Outcome::Negative),
    };
    print_message(&message).map_err(nocopy_report::Failure::Print)?;
    Ok(outcome)
}

fn read_by_method(task: &NfsReadTask) -> io::Result<ReadResult> {
    let NfsReadTask { method, connections, window } = task;
    match method {
        ReadMethod::Post { url, bytes, file_bytes } => {
            by_posted_buffers::read_into_posted_buffers(url, *connections, *bytes, *file_bytes, *window)
        }
        ReadMethod::PreparedCalls { url, from, bytes, file_bytes } => {
            by_prepared_calls::read_by_prepared_calls(url, *from, *connections, *bytes, *file_bytes, *window)
        }
        ReadMethod::Recv { from, bytes } => by_recv::read_by_recv(*from, *connections, *bytes, *window),
    }
}

/// The window of a process that only reads.
#[derive(Debug)]
struct ReadWindow {
    length: Duration,
    ready: Instant,
    begin: Option<(Instant, Duration, u64)>,
    bytes: u64,
}

impl ReadWindow {
    fn new(length: Duration) -> Self {
        Self { length, ready: Instant::now(), begin: None, bytes: 0 }
    }

    /// Counts bytes; returns the result, once the window is over.
    fn count_bytes(&mut self, bytes: usize) -> io::Result<Option<ReadResult>> {
        self.bytes += bytes as u64;
        let now = Instant::now();
        match self.begin {
            None if now - self.ready >= WARM_UP => {
                self.begin = Some((now, cpu::process_cpu_time(), self.bytes));
                print_message(&ClientMessage::Measuring)?;
                Ok(None)
            }
            Some((begin, cpu, before)) if now - begin >= self.length => Ok(Some(ReadResult {
                bytes: self.bytes - before,
                elapsed_ns: (now - begin).as_nanos() as u64,
                cpu_ns: (cpu::process_cpu_time() - cpu).as_nanos() as u64,
                peak_kib: cpu::peak_memory_kib("self")?,
                moved_bytes: 0,
            })),
            _ => Ok(None),
        }
    }
}
