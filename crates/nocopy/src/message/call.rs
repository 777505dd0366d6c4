//! Calls: a request, and the wait for its response.

use std::io;
use std::time::{Duration, Instant};

use nocopy_proto::message::{Kind, Peer};

use super::endpoint::Patience;
use super::{Endpoint, Message, SendError};

/// Messages of others that are kept at most while somebody waits for a response.
const ASIDE_MAX: usize = 4096;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The request could not be sent.
    #[error("request: {0}")]
    Send(#[from] SendError),
    /// The connection ended meanwhile.
    #[error("the connection ended before the response came; its event says why")]
    Lost,
    /// None came in time.
    #[error(
        "no response within {timeout:?}; the peer has the request, or gets it yet: ask again only if that does no harm"
    )]
    TimedOut {
        /// How long that was.
        timeout: Duration,
    },
    /// Messages of others are piling up.
    #[error("too many other messages came before the response; receive them first")]
    TooManyOthers,
    /// The interface is down or gone, or the kernel refused.
    #[error("the network cannot be used: {0}")]
    Network(#[from] io::Error),
}

impl Endpoint {
    /// Sends a request and waits for its response. Other messages that come meanwhile are [received](Self::receive) afterwards.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call(&mut self, peer: Peer, request: &[u8], timeout: Duration) -> Result<Message<'_>, CallError> {
        let deadline = Instant::now().checked_add(timeout);
        let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let call = loop {
            match self.request(peer, request) {
                Err(SendError::WouldBlock) if !is_over() => self.work(Patience::Until(deadline))?,
                done => break done?,
            }
        };
        let wanted = (peer, Kind::Response(call));
        loop {
            while let Some(next) = self.protocol.next_message() {
                if next == wanted {
                    let home = self.carrier.home();
                    let response = self.protocol.receive().expect("it was just there");
                    return Ok(Message::here(response, home));
                }
                // The last window is the response's: it would never be kept.
                let is_full = self.carrier.free_to_receive() <= self.window_packets;
                if self.aside.len() >= ASIDE_MAX || is_full {
                    return Err(CallError::TooManyOthers);
                }
                let other = self.protocol.receive().expect("it was just there");
                self.aside.push_back(Message::here(other, self.carrier.home()).take());
            }
            if self.protocol.room(peer).is_err() {
                return Err(CallError::Lost);
            }
            if is_over() {
                return Err(CallError::TimedOut { timeout });
            }
            self.work(Patience::Until(deadline))?;
        }
    }
}
