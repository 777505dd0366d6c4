//! One end of a conversation in messages, over any transport: used by `bench`, `ping` and `serve`.
//!
//! Received data is passed on in place, piece by piece, so no transport pays for a copy that only another one
//! needs.

pub mod message;
pub mod over_port;
pub mod tcp;
pub mod udp;
mod waiting;

use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use nocopy::Ledger;
use nocopy_proto::errno::is_interface_down;

pub use waiting::{WaitMode, retry_until_ready};

/// How long a receiver sleeps before it checks whether to end.
pub const PATIENCE: Duration = Duration::from_millis(10);

/// How long an adaptive receiver spins before it sleeps: longer than a round trip within a rack.
pub const SPIN: Duration = Duration::from_micros(100);

/// How long a send may wait for the other end to read, before it is an error.
pub const SEND_MAX: Duration = Duration::from_secs(5);

/// The bit of a datagram's first byte that the answering side sets. Datagrams with it are not answered, so
/// that two answering ends cannot be made to answer each other for ever.
pub const MARK: u8 = 0x80;

/// What a wait at a port returned. `None`, after a pause, while its interface is down: it may come up again.
pub fn none_while_interface_down<T>(waited: io::Result<T>) -> io::Result<Option<T>> {
    match waited {
        Err(error) if is_interface_down(&error) => {
            sleep(PATIENCE);
            Ok(None)
        }
        waited => waited.map(Some),
    }
}

/// One end of a conversation.
pub trait Exchange: Send {
    /// Sends a message now. Errors: the kernel's error (by which a datagram may only be lost:
    /// `errno::is_transient`), also if the other end has accepted nothing for [`SEND_MAX`].
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// Sends several, by as few calls as possible.
    fn send_all<'m>(&mut self, messages: impl Iterator<Item = &'m [u8]>) -> io::Result<()> {
        let mut messages = messages;
        messages.try_for_each(|message| self.send(message))
    }

    /// Sends a message of two parts: new bytes, and prepared bytes that do not change while they are sent.
    fn send_with_prepared(&mut self, new: &[u8], ready: &Arc<[u8]>) -> io::Result<()> {
        self.send(&[new, ready].concat())
    }

    /// Passes received bytes of the next message to `take`, piece by piece; true if that was its last piece.
    /// False if there is nothing more now (returned at once or after [`PATIENCE`], depending on how it
    /// waits), or if a signal arrived. Errors: the kernel's error; `UnexpectedEof` if the other end has ended
    /// its direction.
    fn receive(&mut self, take: impl FnMut(&[u8])) -> io::Result<bool>;

    /// As [`receive`](Self::receive), for up to about `most` messages, by as few calls as possible: `take`
    /// gets the pieces of each, and `None` at its end. Returns how many ended.
    fn receive_several(&mut self, most: usize, mut take: impl FnMut(Option<&[u8]>)) -> io::Result<usize> {
        let mut count = 0;
        while count < most && self.receive(|piece| take(Some(piece)))? {
            take(None);
            count += 1;
        }
        Ok(count)
    }

    /// The evidence for the moved bytes, if there is a ledger.
    fn ledger(&self) -> Option<Ledger> {
        None
    }

    /// How often the library copied each received byte in user space, if bytes are received into memory that
    /// the program chose.
    fn user_copies(&self) -> Option<f64> {
        None
    }

    /// Does pending work, for callers that neither send nor receive for some time.
    fn do_pending_work(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Ends sending, and waits, at most for `timeout`, until everything has arrived, if that can be known.
    fn finish(&mut self, _patience: Duration) -> io::Result<()> {
        Ok(())
    }
}
