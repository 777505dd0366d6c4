//! One connection, and how bytes get into it.

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nocopy::pool::{Buffer, Pool};
use nocopy::socket::tcp::{Method, OpenError, SendError, Sender, Socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, sendfile};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::ledger::Ledger;
use crate::send::pause;

/// The longest wait for the other end to take something: after it the user may want the end.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// So much is handed over at a time, unless there is a reason to do it before.
const BATCH_BYTES: u64 = 256 << 10;

/// Memory of a connection for what is on its way, and the least and most buffers it is.
const POOL_BYTES: usize = 4 << 20;
const BUFFERS_MIN: usize = 4;
const BUFFERS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Carrier {
    socket: Socket,
    /// The range of a file that is not handed over yet.
    file: Option<(Arc<File>, Range<u64>)>,
    referred_bytes: u64,
}

/// What a carrier did.
#[derive(Debug)]
pub(super) struct Account {
    /// Which ways were taken, and why, in lines.
    pub(super) report: Vec<String>,
    pub(super) ledger: Ledger,
}

impl Carrier {
    /// Takes over a connection, for pieces up to that length; by the method given, or as it measures best.
    pub(super) fn new(
        stream: TcpStream,
        method: Option<Method>,
        piece_bytes: usize,
    ) -> Result<Self, OpenError> {
        let buffers = (POOL_BYTES / piece_bytes.max(1)).clamp(BUFFERS_MIN, BUFFERS_MAX);
        let pool = Pool::new(buffers as u32, piece_bytes).map_err(OpenError::Memory)?;
        // The kernel waits with what sendfile leaves behind, else.
        let flags = fcntl_getfl(&stream).map(|flags| flags | OFlags::NONBLOCK);
        flags
            .and_then(|flags| fcntl_setfl(&stream, flags))
            .map_err(|errno| OpenError::Socket(errno.into()))?;
        let mut builder = Socket::builder().send_pool(&pool);
        if let Some(method) = method {
            builder = builder.method(method);
        }
        Ok(Self { socket: builder.wrap(stream)?, file: None, referred_bytes: 0 })
    }

    /// A buffer to be written and [sent](Self::send); none while all are on their way.
    pub(super) fn buffer(&mut self) -> io::Result<Option<Buffer>> {
        if let Some(buffer) = self.socket.sender().buffer() {
            return Ok(Some(buffer));
        }
        if self.advance()? && self.socket.sender().reap() == 0 {
            pause::for_room(); // until something is acknowledged
        }
        Ok(self.socket.sender().buffer())
    }

    pub(super) fn recycle(&mut self, buffer: Buffer) {
        self.socket.sender().recycle(buffer);
    }

    pub(super) fn send(&mut self, buffer: Buffer) -> io::Result<()> {
        let sender = self.socket.sender();
        sender.send(buffer).map_err(|rejected| io::Error::other(rejected.reason))?;
        if sender.queued_bytes() >= BATCH_BYTES {
            sender.try_flush().map_err(of_kernel)?;
        }
        Ok(())
    }

    /// Sends a range of a file, once [everything before](Self::advance) was handed over.
    pub(super) fn refer(&mut self, file: &Arc<File>, range: Range<u64>) {
        self.file = Some((Arc::clone(file), range));
    }

    /// Hands over what is queued, perhaps after waiting for the other end to take some. `false`: it has not taken all yet.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        let is_done = self.socket.sender().try_flush().map_err(of_kernel)? && self.refer_some()?;
        if !is_done {
            // Completions would end the wait at once.
            self.socket.sender().reap();
            match poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&WAIT)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(is_done)
    }

    fn refer_some(&mut self) -> io::Result<bool> {
        while let Some((file, range)) = &mut self.file {
            if range.start == range.end {
                self.file = None;
                break;
            }
            let bytes = (range.end - range.start).min(1 << 30) as usize;
            match sendfile(&self.socket, &*file, Some(&mut range.start), bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()), // the file became shorter
                Ok(sent) => self.referred_bytes += sent as u64,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    /// Tells the other end that nothing more comes.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.socket.sender().finish().map_err(of_kernel)
    }

    /// Waits until the other end has closed too, or has had time to: who closes a connection on which something has come, which nobody
    /// reads, breaks it.
    pub(super) fn hear_out(&self, patience: Duration) {
        let start = Instant::now();
        let mut buffer = [0; 4096];
        while start.elapsed() < patience {
            match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((_, 1..)) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => pause::for_input(),
                Ok((_, 0)) | Err(_) => return,
            }
        }
    }

    /// What it did, once the other end has acknowledged it or was given the time to.
    pub(super) fn account(&mut self, patience: Duration) -> Account {
        let sender: &mut Sender = self.socket.sender();
        // What is wrong with the connection was told before.
        let _ = sender.drain(patience);
        let mut ledger = Ledger::from(sender.ledger());
        let mut report = Vec::new();
        if sender.counters().sent_bytes > 0 || self.referred_bytes == 0 {
            report.extend(sender.explain().to_string().lines().map(|line| line.trim().to_owned()));
        }
        if self.referred_bytes > 0 {
            let bytes = self.referred_bytes;
            report.push(format!(
                "sendfile: {bytes} bytes, by reference to the file's pages, which nobody completes"
            ));
            ledger.unknown_bytes += bytes;
        }
        Account { report, ledger }
    }
}

fn of_kernel(error: SendError) -> io::Error {
    error.source
}
