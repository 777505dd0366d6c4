//! One connection, and how bytes get out of it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nocopy::Ledger;
use nocopy::pool::Pool;
use nocopy::tcp::{Chunk, ReceiveMethod, Receiver};

/// The longest wait for bytes: after it the user may want the end.
const WAIT: Duration = Duration::from_millis(50);

/// One is written while the next comes.
const BUFFERS: u32 = 2;

#[derive(Debug)]
pub(super) struct Intake {
    receiver: Receiver,
}

impl Intake {
    pub(super) fn new(socket: Arc<OwnedFd>, method: Option<ReceiveMethod>) -> io::Result<Self> {
        let pool = match method {
            Some(ReceiveMethod::Recv { bytes }) => Some(Pool::new(BUFFERS, bytes as usize)?),
            _ => None,
        };
        let receiver = Receiver::new(socket, method, pool).map_err(io::Error::other)?;
        Ok(Self { receiver })
    }

    /// What has come, perhaps after waiting; nothing if nothing came in a while, or [at the end](Self::is_finished).
    pub(super) fn take(&mut self) -> io::Result<Option<Chunk>> {
        self.receiver.receive_timeout(WAIT)
    }

    pub(super) fn is_finished(&self) -> bool {
        self.receiver.is_finished()
    }

    pub(super) fn recycle(&mut self, chunk: Chunk) {
        self.receiver.recycle(chunk);
    }

    pub(super) fn ledger(&self) -> Ledger {
        self.receiver.ledger()
    }

    /// Which way was taken, and why, in lines; and where pages were to be mapped, why some were not.
    pub(super) fn report(&self) -> Vec<String> {
        let said = self.receiver.explain().to_string();
        said.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    }
}
