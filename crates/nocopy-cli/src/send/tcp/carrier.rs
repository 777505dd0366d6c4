//! One connection, and how bytes get into it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::sendfile;

use crate::ledger::Ledger;

/// The longest wait for the other end to take something: after it the user may want the end.
const WAIT: Duration = Duration::from_millis(50);

/// What is copied into the kernel, and what it takes where it lies.
#[derive(Debug)]
pub(super) struct Carrier {
    stream: TcpStream,
    buffer: Vec<u8>,
    left: Left,
    copied_bytes: u64,
    referred_bytes: u64,
}

/// What was not handed over yet.
#[derive(Debug)]
enum Left {
    Buffer(Range<usize>),
    File(Arc<File>, Range<u64>),
}

/// What a carrier did.
#[derive(Debug)]
pub(super) struct Account {
    /// Which ways were taken, and why, in lines.
    pub(super) report: Vec<String>,
    pub(super) ledger: Ledger,
}

impl Carrier {
    pub(super) fn new(stream: TcpStream, piece_bytes: usize) -> io::Result<Self> {
        stream.set_write_timeout(Some(WAIT))?;
        stream.set_nodelay(true)?;
        let buffer = vec![0; piece_bytes];
        Ok(Self { stream, buffer, left: Left::Buffer(0..0), copied_bytes: 0, referred_bytes: 0 })
    }

    /// Takes a piece of so many bytes at most, as many as `fill` says it has written. Only where everything before
    /// [was handed over](Self::advance).
    pub(super) fn fill(
        &mut self,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<&[u8]> {
        let filled = fill(&mut self.buffer[..bytes])?;
        self.left = Left::Buffer(0..filled);
        Ok(&self.buffer[..filled])
    }

    /// Takes a range of a file, likewise.
    pub(super) fn refer(&mut self, file: &Arc<File>, range: Range<u64>) {
        self.left = Left::File(Arc::clone(file), range);
    }

    /// Hands over what was taken, perhaps after waiting for the other end to take it. `false`: it has not taken all yet.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        match self.hand_over() {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(false)
            }
            handed => handed,
        }
    }

    fn hand_over(&mut self) -> io::Result<bool> {
        loop {
            match &mut self.left {
                Left::Buffer(range) if range.start < range.end => {
                    let bytes = self.stream.write(&self.buffer[range.clone()])?;
                    range.start += bytes;
                    self.copied_bytes += bytes as u64;
                }
                Left::File(file, range) if range.start < range.end => {
                    let bytes = (range.end - range.start).min(1 << 30) as usize;
                    let sent = sendfile(&self.stream, &*file, Some(&mut range.start), bytes)?;
                    if sent == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into()); // the file became shorter
                    }
                    self.referred_bytes += sent as u64;
                }
                _ => return Ok(true),
            }
        }
    }

    /// Tells the other end that nothing more comes.
    pub(super) fn finish(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn account(&self) -> Account {
        let Self { copied_bytes, referred_bytes, .. } = *self;
        let mut report = Vec::new();
        if copied_bytes > 0 {
            report.push(format!("plain: {copied_bytes} bytes"));
        }
        if referred_bytes > 0 {
            report.push(format!("sendfile: {referred_bytes} bytes, by reference to the file's pages"));
        }
        let copied = (copied_bytes > 0).then(|| ("socket call".to_owned(), copied_bytes));
        let words = format!("copied (socket call) {copied_bytes} B, unknown {referred_bytes} B");
        let copied_bytes = BTreeMap::from_iter(copied);
        let ledger =
            Ledger { datagrams: 0, zero_copy_bytes: 0, copied_bytes, unknown_bytes: referred_bytes, words };
        Account { report, ledger }
    }
}
