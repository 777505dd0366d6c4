//! What is answered by a peer: connecting, and calls.

use nocopy_proto::errno::{ErrorCause, advice};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use nocopy_proto::message::{ConnectError, Event, Kind, LostReason, Next, Peer};
use nocopy_proto::quantity::time_text;

use super::NonblockingEndpoint;
use super::carrier::Carrier;
use crate::engine::address;
use crate::facts::io_error::convert_to_io_error;
use crate::facts::rejected::Reason;

/// The most messages from the same peer that are kept during a wait for its response. Those of other peers
/// stay where they are, in shares.
const ASIDE_MAX: usize = 4096;

/// Why there is no connection, or no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The endpoint has as many peers as it was opened for.
    #[error(
        "message endpoint: no room for another peer; it has {peers_max}, as many as it may; raise peers_max"
    )]
    TooManyPeers {
        /// How many that is.
        peers_max: usize,
    },
    /// The peer refused the connection, or did not answer.
    #[error("{address}: not connected; {reason}")]
    NotConnected {
        /// The address of the peer.
        address: SocketAddr,
        /// What happened.
        reason: LostReason,
    },
    /// The connection was not established in time.
    #[error(
        "{address}: not connected within {}; no answer came; check that an endpoint is bound there, and that no firewall drops UDP",
        time_text(timeout.as_secs_f64())
    )]
    ConnectTimedOut {
        /// The address of the peer.
        address: SocketAddr,
        /// How long that was.
        timeout: Duration,
    },
    /// The request was not sent.
    #[error("request: not sent; {0}")]
    NotSent(#[source] Reason),
    /// The connection ended before the response came.
    #[error(
        "request: no response; the connection ended before; its event 'Lost' has the reason: connect again"
    )]
    Lost,
    /// No response came in time.
    #[error(
        "request: no response within {}; the peer has the request, or will get it; ask again only if that does no harm",
        time_text(timeout.as_secs_f64())
    )]
    TimedOut {
        /// How long that was.
        timeout: Duration,
    },
    /// Other messages fill the memory for those that are kept.
    #[error("request: no response yet; too many other messages came before it; receive them first")]
    TooManyOthers,
    /// The interface is down or was removed, or the kernel refused a call.
    #[error("message endpoint: the network cannot be used{cause}; {}", advice(.0), cause = ErrorCause(.0))]
    Network(#[from] io::Error),
}

convert_to_io_error!(Error {
    Self::TooManyPeers { .. } => io::ErrorKind::QuotaExceeded,
    Self::NotConnected { reason, .. } => io::Error::from(*reason).kind(),
    Self::NotSent(reason) => reason.io_kind(),
    Self::Lost => io::ErrorKind::ConnectionAborted,
    Self::ConnectTimedOut { .. } | Self::TimedOut { .. } => io::ErrorKind::TimedOut,
    Self::TooManyOthers => io::ErrorKind::OutOfMemory,
    Self::Network(error) => error.kind(),
});

impl NonblockingEndpoint {
    /// Begins to connect, to the first address if several are given; [`Event::Connected`] or [`Event::Lost`]
    /// follows. The look-up of a name blocks the thread, in a tokio program, too, where `connect` does not.
    ///
    /// # Errors
    /// [`Error::TooManyPeers`]; the name was not found ([`Error::Network`]).
    pub fn start_connect(&mut self, to: impl ToSocketAddrs) -> Result<Peer, Error> {
        let to = address::first_of(to).map_err(Error::Network)?;
        self.unsent += 1;
        self.protocol.connect(self.now(), to).map_err(|error| match error {
            ConnectError::TooManyPeers { peers_max } => Error::TooManyPeers { peers_max },
            other => Error::Network(io::Error::other(other)),
        })
    }

    /// Removes and returns the event that ends a connection attempt, if there is one, however many others
    /// have not been read.
    pub(super) fn outcome_of(&mut self, peer: Peer) -> Option<Result<(), LostReason>> {
        let is_outcome = |event: &Event| match event {
            Event::Connected(other, _) | Event::Lost(other, _) => *other == peer,
            _ => false,
        };
        let here = self.events.iter().position(is_outcome).and_then(|place| self.events.remove(place));
        self.unreported |= !self.events.is_empty();
        match here.or_else(|| self.protocol.take_event(is_outcome))? {
            Event::Lost(_, reason) => Some(Err(reason)),
            _ => Some(Ok(())),
        }
    }

    /// Finds the response to a request: `wanted` is its peer, and its kind. Other messages of that peer that
    /// came before it are put aside, and [received](Self::try_receive) later.
    ///
    /// # Errors
    /// [`Error::TooManyOthers`].
    #[inline]
    pub(super) fn find_response(&mut self, wanted: (Peer, Kind)) -> Result<Option<Next>, Error> {
        while let Some(next) = self.protocol.peek_of(wanted.0) {
            if next.is_of() == wanted {
                return Ok(Some(next));
            }
            if self.aside.len() >= ASIDE_MAX || self.is_full() {
                return Err(Error::TooManyOthers);
            }
            let other = self.read(next).into_owned();
            self.aside.push_back(other);
        }
        match self.is_full() && self.protocol.has_message() {
            true => Err(Error::TooManyOthers),
            false => Ok(None),
        }
    }

    /// Whether the connection has ended, so that no response will come.
    #[inline]
    pub(super) fn is_gone(&self, peer: Peer) -> bool {
        self.protocol.room(peer).is_err()
    }

    /// Whether only the last window is free, which those have in turns whose messages are read: a response
    /// might never be kept.
    fn is_full(&self) -> bool {
        self.carrier.free_to_receive() <= self.window_packets
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use nocopy_lab::patience::{PATIENCE, wait_until};

    use super::*;
    use crate::message::Endpoint;
    use crate::message::endpoint::EVENTS_MAX;

    /// However many messages another peer sends meanwhile, a call has its response, and they are received
    /// afterwards.
    #[test]
    fn messages_of_another_peer_end_no_call() {
        const OTHERS: usize = ASIDE_MAX + 1000;
        let bind = || Endpoint::bind("127.0.0.1:0").unwrap();
        let [mut caller, mut server, mut other] = [bind(), bind(), bind()];
        let (to_server, to_caller) = (server.local_addr(), caller.local_addr());
        let (all_came, may_answer) = mpsc::channel();
        let server = thread::spawn(move || {
            let (client, call) = loop {
                let Some(message) = server.receive().unwrap() else { continue }; // an event
                let Kind::Request(call) = message.kind() else { panic!("{message:?}") };
                break (message.peer(), call);
            };
            may_answer.recv().unwrap();
            server.respond(b"answer".to_vec(), client, call).unwrap();
            assert!(server.drain(PATIENCE).unwrap());
        });
        let other = thread::spawn(move || {
            let peer = other.connect(to_caller, PATIENCE).unwrap();
            for _ in 0..OTHERS {
                while other.send_copy_to(&[], peer).is_err() {
                    other.wait(Duration::from_millis(1)).unwrap();
                }
            }
            assert!(other.drain(PATIENCE).unwrap());
            all_came.send(()).unwrap();
            other
        });
        let peer = caller.connect(to_server, PATIENCE).unwrap();
        assert_eq!(caller.call(b"question".to_vec(), peer, PATIENCE).unwrap().to_vec(), b"answer");
        let mut left = OTHERS;
        wait_until("the other messages", || {
            while let Some(message) = caller.try_receive().unwrap() {
                assert!(message.peer() != peer && message.is_empty());
                left -= 1;
            }
            left == 0
        });
        server.join().unwrap();
        drop(other.join().unwrap());
    }

    #[test]
    fn errors_have_times_in_units_for_people() {
        let timeout = Duration::from_nanos(708_900);
        let address = "127.0.0.1:9".parse().unwrap();
        for error in [Error::TimedOut { timeout }, Error::ConnectTimedOut { address, timeout }] {
            assert!(error.to_string().contains("within 709 us; "), "{error}");
        }
    }

    /// Events that the program does not read are as many as they may be.
    #[test]
    fn connections_succeed_behind_events_that_nobody_reads() {
        let bind = || Endpoint::bind("127.0.0.1:0").unwrap();
        let (mut left, servers) = (bind(), [bind(), bind()]);
        let addresses = servers.each_ref().map(|server| server.local_addr());
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for mut server in servers {
                let is_over = &is_over;
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        server.wait(Duration::from_millis(1)).unwrap();
                        while server.poll_event().is_some() {}
                    }
                });
            }
            let first = left.connect(addresses[0], PATIENCE);
            if let Ok(first) = first {
                left.events.extend(std::iter::repeat_n(Event::Writable(first), EVENTS_MAX));
            }
            let second = left.connect(addresses[1], PATIENCE);
            is_over.store(true, Ordering::Relaxed);
            assert!(first.is_ok() && second.is_ok(), "{first:?}, {second:?}");
        });
        assert_eq!(left.events.len(), EVENTS_MAX);
    }

    #[test]
    fn events_kept_while_connecting_each_end_a_wait() {
        let bind = || Endpoint::bind("127.0.0.1:0").unwrap();
        let (mut left, mut others) = (bind(), [bind(), bind(), bind()]);
        let peers = others.each_ref().map(|other| left.start_connect(other.local_addr()).unwrap());
        // No wait, which would report the events.
        wait_until("three connections", || {
            others.iter_mut().for_each(|other| assert!(other.try_receive().unwrap().is_none()));
            assert!(left.try_receive().unwrap().is_none());
            peers.iter().all(|peer| left.protocol.payload_bytes_max(*peer).unwrap() > 0)
        });
        assert!(matches!(left.outcome_of(peers[2]), Some(Ok(()))));
        for _ in 0..2 {
            assert!(left.wait(Duration::ZERO).unwrap(), "would wait over an event");
            assert!(matches!(left.poll_event(), Some(Event::Connected(..))));
        }
        assert!(!left.wait(Duration::ZERO).unwrap(), "all were taken");
    }
}
