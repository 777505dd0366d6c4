//! One end of a conversation in messages, whatever carries them: what `bench`, `ping` and `serve` talk through.
//!
//! What is received is passed on piece by piece where it lies, so no transport pays for a copy that another one needs.

pub mod message;
pub mod over_port;
pub mod tcp;
pub mod udp;
mod waiting;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nocopy::Ledger;

pub use waiting::{Waiting, attend};

/// How long a receiver that sleeps does so before it looks whether all is over.
pub const PATIENCE: Duration = Duration::from_millis(10);

/// How long an adaptive receiver looks again and again before it sleeps: longer than a round trip within a rack takes.
pub const SPIN: Duration = Duration::from_micros(100);

/// How long a send may take before it is an error: the other end does not read.
pub const SEND_MAX: Duration = Duration::from_secs(5);

/// The bit of a datagram's first byte that the answering side sets. What has it is not answered, so two that answer cannot be made to
/// answer each other for ever.
pub const MARK: u8 = 0x80;

/// One end of a conversation.
pub trait Exchange: Send {
    /// Sends a message now.
    ///
    /// # Errors
    /// Those of the kernel, and that the other end has taken nothing for [`SEND_MAX`].
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// Sends several, by as few calls as this way has for them.
    fn send_all<'m>(&mut self, messages: impl Iterator<Item = &'m [u8]>) -> io::Result<()> {
        let mut messages = messages;
        messages.try_for_each(|message| self.send(message))
    }

    /// Sends a message of two parts: what is new of it, and what lies ready and is not written any more while it is being sent.
    ///
    /// # Errors
    /// As [`Exchange::send`].
    fn send_ready(&mut self, new: &[u8], ready: &Arc<[u8]>) -> io::Result<()> {
        self.send(&[new, ready].concat())
    }

    /// Gives what came of the next message to `take`, piece by piece; true when that was its last piece. False when there is no more
    /// for now: at once, or after [`PATIENCE`], as it waits; or when a signal came.
    ///
    /// # Errors
    /// Those of the kernel; `UnexpectedEof` when the other end has said that there is no more.
    fn receive(&mut self, take: impl FnMut(&[u8])) -> io::Result<bool>;

    /// What became of the bytes it moved, where a ledger is kept.
    fn ledger(&self) -> Option<Ledger> {
        None
    }

    /// Does what is due meanwhile, for who neither sends nor receives for a while.
    fn idle(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Says that there is no more to send, and waits, for so long at most, until all of it has arrived, where that can be known.
    fn finish(&mut self, _patience: Duration) -> io::Result<()> {
        Ok(())
    }
}
