//! The endpoint with the methods that wait, around the one whose methods never do.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use nocopy_proto::message::{Kind, Peer};

use super::endpoint::{LOOK_INTERVAL, Patience, is_over};
use super::{Error, Message, NonblockingEndpoint, Payload};
use crate::engine::address;
use crate::engine::half::blocking_half;
use crate::engine::wait::{LOOK_AGAIN, Wait};
use crate::facts::rejected::{Reason, Rejected};

/// One end of any number of connections: it receives and sends; see the [module](super).
///
/// ```
/// use nocopy::message::{Endpoint, Event};
/// use std::time::Duration;
/// let mut left = Endpoint::bind("127.0.0.1:0")?;
/// let mut right = Endpoint::bind("127.0.0.1:0")?;
/// let peer = left.start_connect(right.local_addr())?;
/// // Two endpoints in one thread take turns; each works only while it is called.
/// while !matches!(left.poll_event(), Some(Event::Connected(..))) {
///     left.wait(Duration::from_millis(1))?;
///     right.wait(Duration::from_millis(1))?;
/// }
/// left.send_copy_to(b"hello", peer)?;
/// left.flush()?;
/// assert_eq!(left.in_flight(), 1); // kept until it is acknowledged
/// let text = loop {
///     if let Some(message) = right.receive()? { // `None`: an event, here that a peer has connected
///         break message.to_vec();
///     }
/// };
/// assert_eq!(text, b"hello");
/// while left.in_flight() > 0 {
///     right.wait(Duration::from_millis(1))?; // acknowledges
///     left.wait(Duration::from_millis(1))?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Endpoint(pub(super) NonblockingEndpoint);

blocking_half!(Endpoint, NonblockingEndpoint);

impl Endpoint {
    /// Changes how to wait, from the next wait on.
    pub fn set_wait(&mut self, wait: Wait) {
        self.0.wait = wait;
    }

    /// Waits for the next message, in the way that was [set](super::Builder::wait). `None` if an event ended
    /// the wait ([`poll_event`](NonblockingEndpoint::poll_event)); a signal does not.
    ///
    /// # Errors
    /// The interface is down or was removed.
    #[inline]
    pub fn receive(&mut self) -> io::Result<Option<Message<'_>>> {
        self.0.receive_within(Patience::Until(None))
    }

    /// Waits for the next message for `timeout` at most. `None` if none came, or an event ended the wait.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_timeout(&mut self, timeout: Duration) -> io::Result<Option<Message<'_>>> {
        self.0.receive_within(Patience::For(timeout))
    }

    /// Waits until there is a message or an event, but not longer than `timeout`; returns whether there is
    /// one. What a sender without room waits with: [`Event::Writable`](super::Event::Writable) ends it.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        self.look_and_keep()?;
        if self.has_message() {
            return Ok(true);
        }
        let by_event = self.wait_for_message(Patience::For(timeout), false)?;
        Ok(by_event || self.has_message())
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
        self.response_by(wanted, deadline)?.ok_or(Error::TimedOut { timeout })
    }

    /// Waits for the response to a request: `wanted` is its peer, and its kind. `None` if none has come by
    /// then.
    pub(super) fn response_by(
        &mut self,
        wanted: (Peer, Kind),
        deadline: Option<Instant>,
    ) -> Result<Option<Message<'_>>, Error> {
        loop {
            if let Some(next) = self.find_response(wanted)? {
                return Ok(Some(self.0.read(next)));
            }
            // Before the look: a connection may end by that, and without one nothing would end the wait.
            self.send_first();
            if self.is_gone(wanted.0) {
                return Err(Error::Lost);
            }
            if is_over(deadline) {
                return Ok(None);
            }
            self.take_due(Patience::Until(deadline), false)?;
        }
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

    /// Hands everything that was put into packets to the kernel, and waits for room there. What the window of
    /// a peer has no room for follows when the peer has acknowledged more, whenever the endpoint works.
    ///
    /// # Errors
    /// The interface is down or was removed; nothing is lost by that.
    pub fn flush(&mut self) -> io::Result<()> {
        match self.hand_over() {
            true => Ok(()),
            false => self.flush_until(None).map(drop),
        }
    }

    /// As [`flush`](Self::flush), and waits for `timeout` at most. `false`: the kernel did not take
    /// everything.
    ///
    /// ```
    /// # use nocopy::message::{Endpoint, Event};
    /// # use std::time::Duration;
    /// # let mut left = Endpoint::bind("127.0.0.1:0")?;
    /// # let mut right = Endpoint::bind("127.0.0.1:0")?;
    /// # let peer = left.start_connect(right.local_addr())?;
    /// # while !matches!(left.poll_event(), Some(Event::Connected(..))) {
    /// #     left.wait(Duration::from_millis(1))?;
    /// #     right.wait(Duration::from_millis(1))?;
    /// # }
    /// left.send_copy_to(b"hello", peer)?;
    /// let mut is_all = left.try_flush()?;
    /// if !is_all {
    ///     is_all = left.flush_timeout(Duration::from_secs(5))?; // waits for room in the kernel
    /// }
    /// assert!(is_all);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn flush_timeout(&mut self, timeout: Duration) -> io::Result<bool> {
        Ok(self.hand_over() || self.flush_until(Instant::now().checked_add(timeout))?)
    }

    #[cold]
    fn flush_until(&mut self, deadline: Option<Instant>) -> io::Result<bool> {
        loop {
            self.work_within(deadline, LOOK_INTERVAL)?;
            if self.hand_over() {
                return Ok(true);
            }
            if is_over(deadline) {
                return Ok(false);
            }
        }
    }

    /// Sends everything, and waits for `timeout` at most until the peers have acknowledged it. `false`:
    /// something is in flight.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn drain(&mut self, timeout: Duration) -> io::Result<bool> {
        let deadline = Instant::now().checked_add(timeout);
        while self.take_back_all() > 0 {
            if is_over(deadline) {
                return Ok(false);
            }
            self.work_within(deadline, LOOK_AGAIN)?;
        }
        Ok(true)
    }

    /// [Finishes](NonblockingEndpoint::finish) all connections, and waits for `timeout` at most until the
    /// peers have acknowledged everything; then all connections are over. `false`: some peer has not, and
    /// what is left for it is given up.
    ///
    /// ```
    /// # use nocopy::{Reason, message::{Endpoint, Event}};
    /// # use std::time::Duration;
    /// # let mut right = Endpoint::bind("127.0.0.1:0")?;
    /// # let to = right.local_addr();
    /// # let left = std::thread::spawn(move || {
    /// #     let mut left = Endpoint::bind("127.0.0.1:0").unwrap();
    /// #     let peer = left.connect(to, Duration::from_secs(60)).unwrap();
    /// left.send_copy_to(b"the last one", peer)?;
    /// assert!(left.close(Duration::from_secs(60))?); // it has arrived
    /// assert!(matches!(left.send_copy_to(b"one more", peer), Err(Reason::Gone)));
    /// #     Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// # });
    /// # while !left.is_finished() {
    /// #     right.receive_timeout(Duration::from_millis(1))?;
    /// #     while right.poll_event().is_some() {}
    /// # }
    /// # left.join().unwrap().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn close(&mut self, timeout: Duration) -> io::Result<bool> {
        let finished = self.finish_all(Instant::now().checked_add(timeout));
        self.leave_all();
        finished
    }

    fn finish_all(&mut self, deadline: Option<Instant>) -> io::Result<bool> {
        loop {
            let all = self.finish_each();
            if all || is_over(deadline) {
                return Ok(all);
            }
            self.work(Patience::Until(deadline))?;
        }
    }

    /// Works until something arrives or until the deadline, and not longer than `interval`: not everything
    /// ends a wait.
    fn work_within(&mut self, deadline: Option<Instant>, interval: Duration) -> io::Result<()> {
        let look = Instant::now() + interval;
        self.work(Patience::Until(Some(deadline.map_or(look, |deadline| look.min(deadline)))))
    }
}
