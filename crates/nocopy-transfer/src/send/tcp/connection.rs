//! Writes one connection.

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nocopy::Ledger;
use nocopy::pool::{BufferMut, Pool};
use nocopy::tcp::{Method, OpenError, Published, Sender, Stream};
use rustix::net::{Shutdown, shutdown};

/// The longest wait for room: the user may interrupt after it.
const WAIT: Duration = Duration::from_millis(50);

/// Bytes handed over at a time, unless there is a reason to do it earlier.
const BATCH_BYTES: u64 = 256 << 10;

/// Memory of a connection for data in flight, and the least and most buffers of it.
const POOL_BYTES: usize = 4 << 20;
const BUFFERS_MIN: usize = 4;
const BUFFERS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Connection {
    socket: Stream,
    queued_bytes: u64,
    /// The bytes among them that were queued since the last hand-over.
    waiting_bytes: u64,
}

#[derive(Debug)]
pub(super) struct ConnectionReport {
    /// The methods used, and why, in lines.
    pub explanation: Vec<String>,
    pub ledger: Ledger,
}

impl Connection {
    /// Takes over an unshared connection, for pieces up to that length; with the given method, or the one
    /// measured to be best.
    pub(super) fn new(
        stream: TcpStream,
        method: Option<Method>,
        piece_bytes: usize,
    ) -> Result<Self, OpenError> {
        let buffers = (POOL_BYTES / piece_bytes.max(1)).clamp(BUFFERS_MIN, BUFFERS_MAX);
        let pool = Pool::new(buffers as u32, piece_bytes).map_err(OpenError::Memory)?;
        let mut builder = Stream::builder().send_pool(&pool);
        if let Some(method) = method {
            builder = builder.method(method);
        }
        // SAFETY: made by `connect`, for the worker that has this; there is no other descriptor of it.
        #[allow(unsafe_code)]
        let socket = unsafe { builder.wrap_unshared(stream)? };
        Ok(Self { socket, queued_bytes: 0, waiting_bytes: 0 })
    }

    /// A buffer to be written and [sent](Self::send); `None` while all are in flight.
    pub(super) fn buffer(&mut self) -> io::Result<Option<BufferMut>> {
        self.socket.sender().wait_buffer(WAIT)
    }

    pub(super) fn recycle(&mut self, buffer: BufferMut) {
        self.socket.sender().recycle(buffer);
    }

    pub(super) fn send(&mut self, buffer: BufferMut) -> io::Result<()> {
        let bytes = buffer.len() as u64;
        self.socket.sender().send(buffer).map_err(|rejected| rejected.reason)?;
        self.queued_bytes += bytes;
        self.waiting_bytes += bytes;
        if self.waiting_bytes >= BATCH_BYTES {
            self.waiting_bytes = 0;
            self.socket.sender().try_flush()?;
        }
        Ok(())
    }

    pub(super) fn send_published_range(&mut self, bytes: &Published, range: Range<u64>) -> io::Result<()> {
        let queued_bytes = range.end - range.start;
        self.socket.sender().send_published(bytes, range)?;
        self.queued_bytes += queued_bytes;
        Ok(())
    }

    pub(super) fn send_file_range(&mut self, file: &Arc<File>, range: Range<u64>) -> io::Result<()> {
        let queued_bytes = range.end - range.start;
        let queued = self.socket.sender().send_file(Arc::clone(file), range);
        queued.map_err(|error| io::Error::new(io::ErrorKind::UnexpectedEof, error))?;
        self.queued_bytes += queued_bytes;
        Ok(())
    }

    /// Hands over queued data, if necessary after waiting for room. Returns `false` if some data is left.
    /// [`io::ErrorKind::UnexpectedEof`]: the file became shorter.
    pub(super) fn flush_queued(&mut self) -> io::Result<bool> {
        self.waiting_bytes = 0;
        self.socket.sender().flush_timeout(WAIT)
    }

    /// Bytes that were queued, and that the kernel did not accept.
    pub(super) fn unsent_bytes(&mut self) -> u64 {
        let accepted_bytes = self.socket.sender().stats().bytes;
        self.queued_bytes.saturating_sub(accepted_bytes)
    }

    /// Tells the other end that no data follows.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.socket.sender().finish()
    }

    /// The same, although not all was handed over.
    pub(super) fn end_early(&mut self) {
        // An error means that the connection has ended already, or ends when it is dropped.
        let _ = self.socket.sender().kernel_socket().map(|socket| shutdown(socket, Shutdown::Write));
    }

    /// Reads from the other end until it has closed, too, or time is over, because closing a connection with
    /// unread bytes resets it.
    pub(super) fn await_peer_close(&mut self, patience: Duration) {
        let end = Instant::now() + patience;
        let receiver = self.socket.receiver();
        while !receiver.is_finished() && Instant::now() < end {
            match receiver.receive_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(Some(chunk)) => receiver.recycle(chunk),
                Ok(None) => {}
                // A connection that failed has ended, too.
                Err(_) => return,
            }
        }
    }

    /// The connection's counts, once the other end has acknowledged everything or the time is over.
    pub(super) fn await_report(&mut self, patience: Duration) -> ConnectionReport {
        let sender: &mut Sender = self.socket.sender();
        // Errors of the connection were reported before.
        let _ = sender.drain(patience);
        let lines = |text: String| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
        ConnectionReport { explanation: lines(sender.explain().to_string()), ledger: sender.ledger() }
    }
}
