//! Reads one connection.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use nocopy::Ledger;
use nocopy::pool::Pool;
use nocopy::tcp::{Chunk, ReceiveMethod, Stream};

/// The longest wait for bytes: the user may interrupt after it.
const WAIT: Duration = Duration::from_millis(50);

/// One buffer is written while the next is filled.
const BUFFERS: u32 = 2;

#[derive(Debug)]
pub(super) struct StreamReader {
    stream: Stream,
}

impl StreamReader {
    pub(super) fn new(stream: TcpStream, method: Option<ReceiveMethod>) -> io::Result<Self> {
        let mut builder = Stream::builder();
        if let Some(method) = method {
            builder = builder.receive_method(method);
        }
        if let Some(ReceiveMethod::Recv { bytes }) = method {
            builder = builder.receive_pool(&Pool::new(BUFFERS, bytes as usize)?);
        }
        Ok(Self { stream: builder.wrap(stream).map_err(io::Error::other)? })
    }

    /// Received bytes, possibly after waiting; `None` if nothing arrived for some time, or [at the end](Self::is_finished).
    pub(super) fn take(&mut self) -> io::Result<Option<Chunk>> {
        self.stream.receiver().receive_timeout(WAIT)
    }

    pub(super) fn is_finished(&mut self) -> bool {
        self.stream.receiver().is_finished()
    }

    pub(super) fn recycle(&mut self, chunk: Chunk) {
        self.stream.receiver().recycle(chunk);
    }

    pub(super) fn ledger(&mut self) -> Ledger {
        self.stream.receiver().ledger()
    }

    /// The method used and why, in lines; and if pages were to be mapped, why some were not.
    pub(super) fn report(&mut self) -> Vec<String> {
        let said = self.stream.receiver().explain().to_string();
        said.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    }
}
