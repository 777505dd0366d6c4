//! One connection, and how bytes get into it.

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nocopy::pool::{Buffer, Pool};
use nocopy::socket::tcp::{
    ByReference, Method, OpenError, Published, SendError, Sender, Socket, Step, Transfer, TransferError,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
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
    /// What goes by reference, and is not handed over yet; and what that takes, once it was needed.
    transfer: Option<Transfer>,
    by_reference: Option<ByReference>,
    is_published: bool,
    /// Of what went by reference.
    referred: Ledger,
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
        // What goes by reference would wait for room, else, whatever the user wants.
        let flags = fcntl_getfl(&stream).map(|flags| flags | OFlags::NONBLOCK);
        flags
            .and_then(|flags| fcntl_setfl(&stream, flags))
            .map_err(|errno| OpenError::Socket(errno.into()))?;
        let mut builder = Socket::builder().send_pool(&pool);
        if let Some(method) = method {
            builder = builder.method(method);
        }
        Ok(Self {
            socket: builder.wrap(stream)?,
            transfer: None,
            by_reference: None,
            is_published: false,
            referred: Ledger::default(),
        })
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

    /// That goes by reference, once [everything before](Self::advance) was handed over.
    fn refer(&mut self, transfer: Transfer) {
        self.transfer = Some(transfer);
    }

    /// Sends published bytes so.
    pub(super) fn refer_published(&mut self, bytes: &Published, range: Range<u64>) -> io::Result<()> {
        self.is_published = true;
        self.refer(Transfer::published(bytes, range).map_err(io::Error::other)?);
        Ok(())
    }

    /// Sends a range of a file so.
    pub(super) fn refer_file(&mut self, file: &Arc<File>, range: Range<u64>) -> io::Result<()> {
        let transfer = Transfer::file(Arc::clone(file), range);
        self.refer(transfer.map_err(|error| io::Error::new(io::ErrorKind::UnexpectedEof, error))?);
        Ok(())
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
        let Self { socket, transfer: waiting, by_reference, referred, .. } = self;
        let Some(transfer) = waiting else { return Ok(true) };
        let by_reference = match by_reference {
            Some(opened) => opened,
            None => by_reference.insert(ByReference::new(socket.as_fd(), None)?),
        };
        loop {
            match by_reference.step(transfer, socket.as_fd(), false).map_err(of_transfer)? {
                Step::Sent { bytes, evidence } => referred.add(evidence, bytes),
                Step::SocketFull | Step::SourceEmpty => return Ok(false),
                Step::Done => {
                    *waiting = None;
                    return Ok(true);
                }
            }
        }
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
        let owned = Ledger::from(sender.ledger());
        let lines = |said: String| said.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
        let mut report = Vec::new();
        if sender.counters().sent_bytes > 0 || self.by_reference.is_none() {
            report.extend(lines(sender.explain().to_string()));
        }
        if let Some(by_reference) = &self.by_reference {
            let bytes = Ledger::together([&self.referred].into_iter()).words;
            report.push(format!("by reference to pages, of which no completion ever comes: {bytes}"));
            // Of a file there is one way, which is not measured.
            if self.is_published {
                report.extend(lines(by_reference.explain().to_string()));
            }
        }
        Account { report, ledger: Ledger::together([&owned, &self.referred].into_iter()) }
    }
}

fn of_kernel(error: SendError) -> io::Error {
    error.source
}

/// What it means that nothing more goes by reference. [`io::ErrorKind::UnexpectedEof`]: the file became shorter.
fn of_transfer(error: TransferError) -> io::Error {
    match error {
        TransferError::Connection(source) => source,
        ended @ TransferError::Ended { .. } => io::Error::new(io::ErrorKind::UnexpectedEof, ended),
        other => io::Error::new(io::ErrorKind::Unsupported, other),
    }
}
