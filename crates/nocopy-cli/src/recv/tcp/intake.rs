//! One connection, and how bytes get out of it.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::TcpStream;
use std::time::Duration;

use crate::arguments::Taking;
use crate::ledger::Ledger;

/// The longest wait for bytes: after it the user may want the end.
const WAIT: Duration = Duration::from_millis(50);

/// What a read takes unless told.
const READ_BYTES: u64 = 256 << 10;

#[derive(Debug)]
pub(super) struct Intake {
    stream: TcpStream,
    buffer: Vec<u8>,
    bytes: u64,
}

impl Intake {
    pub(super) fn new(stream: TcpStream, taking: Taking) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(WAIT))?;
        let bytes = match taking {
            Taking::Auto | Taking::Recv(None) => READ_BYTES,
            Taking::Recv(Some(bytes)) => bytes,
        };
        Ok(Self { stream, buffer: vec![0; bytes as usize], bytes: 0 })
    }

    /// What has come, perhaps after waiting; nothing at the end. [`io::ErrorKind::WouldBlock`]: nothing came in a while.
    pub(super) fn take(&mut self) -> io::Result<&[u8]> {
        let bytes = self.stream.read(&mut self.buffer)?;
        self.bytes += bytes as u64;
        Ok(&self.buffer[..bytes])
    }

    pub(super) fn ledger(&self) -> Ledger {
        let copied = (self.bytes > 0).then(|| ("socket call".to_owned(), self.bytes));
        Ledger { copied_bytes: BTreeMap::from_iter(copied), ..Ledger::default() }
    }
}
