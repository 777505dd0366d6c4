//! Functions that wait for a peer's answer: connecting, and calls.

use nocopy_proto::errno::{ErrorCause, advice};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use nocopy_proto::message::{ConnectError, Event, Kind, LostReason, Peer};
use nocopy_proto::quantity::time_text;

use super::carrier::Carrier;
use super::endpoint::{Patience, is_over};
use super::{Endpoint, Message, Payload};
use crate::engine::address;
use crate::facts::io_error::convert_to_io_error;
use crate::facts::rejected::{Reason, Rejected};

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

impl Endpoint {
    /// Begins to connect, to the first address if several are given; [`Event::Connected`] or [`Event::Lost`]
    /// follows.
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

    /// Connects to that address, or to the first of several that answers, and waits for each for `timeout` at
    /// most. Messages and events of other peers that arrive meanwhile are kept.
    ///
    /// # Errors
    /// [`Error`]; that of the last address.
    pub fn connect(&mut self, to: impl ToSocketAddrs, timeout: Duration) -> Result<Peer, Error> {
        address::first_success(to, Error::Network, |to| self.connect_to(to, timeout))
    }

    fn connect_to(&mut self, to: SocketAddr, timeout: Duration) -> Result<Peer, Error> {
        let deadline = Instant::now().checked_add(timeout);
        let peer = self.start_connect(to)?;
        loop {
            self.work(Patience::Until(deadline))?;
            if let Some(outcome) = self.outcome_of(peer) {
                return outcome.map(|()| peer).map_err(|reason| Error::NotConnected { address: to, reason });
            }
            if is_over(deadline) {
                self.protocol.abort(peer);
                return Err(Error::ConnectTimedOut { address: to, timeout });
            }
        }
    }

    /// Removes and returns the event that ends a connection attempt, if there is one, however many others
    /// have not been read.
    fn outcome_of(&mut self, peer: Peer) -> Option<Result<(), LostReason>> {
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

    /// Sends a request and waits for its response, for `timeout` at most. Other messages that come meanwhile
    /// are [received](Self::receive) afterwards. Until then they stay in the memory of their address: many
    /// from the address of `to` leave no room for the response.
    ///
    /// ```
    /// use nocopy::message::{Endpoint, Kind};
    /// use std::time::Duration;
    /// let mut server = Endpoint::bind("127.0.0.1:0")?;
    /// let address = server.local_addr();
    /// std::thread::spawn(move || -> std::io::Result<()> {
    ///     loop {
    ///         let Some(request) = server.receive()?.map(|message| message.take()) else { continue }; // an event
    ///         if let Kind::Request(call) = request.kind() {
    ///             let client = request.peer();
    ///             server.respond(request, client, call).expect("there is room"); // an echo
    ///         }
    ///     }
    /// });
    /// let mut client = Endpoint::bind("127.0.0.1:0")?;
    /// let peer = client.connect(address, Duration::from_secs(5))?;
    /// let response = client.call(b"hello".to_vec(), peer, Duration::from_secs(5))?;
    /// assert_eq!(response.to_vec(), b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error`].
    pub fn call(
        &mut self,
        request: impl Into<Payload>,
        to: Peer,
        timeout: Duration,
    ) -> Result<Message<'_>, Error> {
        let deadline = Instant::now().checked_add(timeout);
        let wanted = (to, Kind::Response(self.request_by(request.into(), to, deadline)?));
        loop {
            while let Some(next) = self.protocol.peek_of(to) {
                if next.is_of() == wanted {
                    return Ok(self.read(next));
                }
                if self.aside.len() >= ASIDE_MAX || self.is_full() {
                    return Err(Error::TooManyOthers);
                }
                let other = self.read(next).into_owned();
                self.aside.push_back(other);
            }
            if self.is_full() && self.protocol.has_message() {
                return Err(Error::TooManyOthers);
            }
            // Before the look: a connection may end by that, and without one nothing would end the wait.
            self.send_first();
            if self.protocol.room(to).is_err() {
                return Err(Error::Lost);
            }
            if is_over(deadline) {
                return Err(Error::TimedOut { timeout });
            }
            self.take_due(Patience::Until(deadline), false)?;
        }
    }

    /// Whether only the last window is free, which those have in turns whose messages are read: a response
    /// might never be kept.
    fn is_full(&self) -> bool {
        self.carrier.free_to_receive() <= self.window_packets
    }

    /// Sends a request as soon as there is room.
    fn request_by(
        &mut self,
        mut request: Payload,
        to: Peer,
        deadline: Option<Instant>,
    ) -> Result<u32, Error> {
        loop {
            match self.request(request, to) {
                Ok(call) => return Ok(call),
                Err(Rejected { item, reason: Reason::Full }) if !is_over(deadline) => request = item,
                Err(Rejected { reason, .. }) => return Err(Error::NotSent(reason)),
            }
            self.work(Patience::Until(deadline))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use nocopy_lab::patience::{PATIENCE, wait_until};

    use super::*;
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
        let addresses = servers.each_ref().map(Endpoint::local_addr);
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
