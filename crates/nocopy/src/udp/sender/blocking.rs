//! What waits of the sending half.

use std::io;
use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use super::NonblockingSender;
use crate::engine::address;
use crate::engine::half::blocking_half;
use crate::engine::reaper;
use crate::engine::wait::{PollOutcome, poll_until_done};
use crate::facts::rejected::Reason;
use crate::udp::Ancillary;

/// The sending half of a socket.
///
/// [`send`](NonblockingSender::send) queues; [`flush`](Self::flush) hands the queue to the kernel, in as few
/// calls as the method allows. When the sender is dropped, queued messages are not sent, and memory is kept
/// while the kernel still reads it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use nocopy::udp::{Message, Socket};
/// let peer = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// let mut socket = Socket::bind("127.0.0.1:0")?;
/// let sender = socket.sender();
/// let mut buffer = sender.buffer().ok_or("all buffers are on their way")?;
/// buffer.fill(b"hello")?;
/// sender.send_to(buffer, peer.local_addr()?)?; // moved: touching it now does not compile
/// sender.send_copy_to(b"world", peer.local_addr()?)?; // copied, and the ledger says so
/// sender.flush()?;
/// assert_eq!(sender.stats().moved, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sender(pub(in crate::udp) NonblockingSender);

impl Sender {
    /// Sends a copy of the bytes as one datagram, after queued messages, to the peer to which the socket is
    /// [connected](crate::udp::Socket::connect). The caller may reuse the bytes at once. A kernel socket
    /// sends the datagram now; a port sends it at the next [`flush`](Self::flush), together with others.
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0")?;
    /// use nocopy::Reason;
    /// assert!(matches!(socket.sender().send_copy(b"hello"), Err(Reason::NotConnected)));
    /// socket.connect(client.local_addr()?)?;
    /// socket.sender().send_copy(b"hello")?;
    /// assert_eq!(client.recv(&mut [0; 10])?, 5);
    /// assert!(matches!(socket.sender().send_copy(&[0; 65_508]), Err(Reason::TooLong { bytes_max: 65_507 })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket is not connected, or there is no room (over a port: flush it), or the kernel refused the
    /// datagram; also errors of messages queued before, as returned by [`flush`](Self::flush). On an error
    /// the datagram was not sent.
    pub fn send_copy(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        let destination = self.0.destinations.connected().ok_or(Reason::NotConnected)?;
        self.copy_to(bytes, destination)
    }

    /// As [`send_copy`](Self::send_copy), to an address, which is found as by
    /// [`send_to`](NonblockingSender::send_to).
    ///
    /// # Errors
    /// As [`send_copy`](Self::send_copy); or the name has no address.
    pub fn send_copy_to(&mut self, bytes: &[u8], to: impl ToSocketAddrs) -> Result<(), Reason> {
        let destination = self.0.destination(address::first_of(to).map_err(Reason::System)?);
        self.copy_to(bytes, destination)
    }

    /// As [`send_copy_to`](Self::send_copy_to), and sets more for the datagram, as
    /// [`send_with`](NonblockingSender::send_with) does.
    ///
    /// # Errors
    /// As [`send_copy_to`](Self::send_copy_to); or the socket cannot send from that source
    /// ([`Reason::ForeignSource`]).
    pub fn send_copy_with(
        &mut self,
        bytes: &[u8],
        to: impl ToSocketAddrs,
        ancillary: Ancillary,
    ) -> Result<(), Reason> {
        let to = address::first_of(to).map_err(Reason::System)?;
        let destination = self.0.destination_with(to, ancillary)?;
        self.copy_to(bytes, destination)
    }

    fn copy_to(&mut self, bytes: &[u8], destination: u32) -> Result<(), Reason> {
        self.0.check_copy(bytes.len())?;
        if self.queued() > 0 {
            self.flush().map_err(Reason::System)?;
        }
        self.0.copy_now(bytes, destination, 0)
    }

    /// Hands over everything queued; waits while the socket's send buffer or the port's ring is full.
    ///
    /// # Errors
    /// Some datagrams were refused for good: they are counted, and the others were handed over. The inner
    /// error is a [`SendError`](crate::udp::SendError).
    #[inline]
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.outcome.flushes += 1;
        if self.0.send_only_message() { Ok(()) } else { self.0.flush_all(None).map(drop) }
    }

    /// Hands over as much as there is room for within `timeout`. Returns `false` if something is left.
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0")?;
    /// use std::time::Duration;
    /// socket.sender().send_to(b"hello".to_vec(), client.local_addr()?)?;
    /// let mut is_all = socket.sender().try_flush()?;
    /// if !is_all {
    ///     is_all = socket.sender().flush_timeout(Duration::from_secs(5))?; // waits for room
    /// }
    /// assert!(is_all);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn flush_timeout(&mut self, timeout: Duration) -> io::Result<bool> {
        self.0.outcome.flushes += 1;
        self.0.flush_all(Some(timeout))
    }

    /// Hands over everything queued, and waits for at most `timeout` until the kernel no longer reads any
    /// memory. Returns whether that is so.
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0")?;
    /// use std::time::Duration;
    /// let (to, pool) = (client.local_addr()?, nocopy::Pool::new(4, 4096)?);
    /// let mut socket = Socket::builder().send_pool(&pool).bind("127.0.0.1:0")?;
    /// let mut buffer = socket.sender().buffer().expect("a fresh pool has buffers");
    /// buffer.fill(b"hello").expect("it fits");
    /// socket.sender().send_to(buffer, to)?;
    /// assert!(socket.sender().drain(Duration::from_secs(5))?);
    /// assert_eq!(socket.sender().in_flight(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn drain(&mut self, timeout: Duration) -> io::Result<bool> {
        let start = Instant::now();
        // Refusals are returned at the end: the wait for sends in flight continues.
        self.0.outcome.flushes += 1;
        let refused = self.0.flush_all(Some(timeout)).err();
        let look = |sender: &mut NonblockingSender| {
            let left = timeout.saturating_sub(start.elapsed());
            Ok::<_, io::Error>(match sender.reap() {
                _ if sender.queue.in_flight() == 0 && sender.port_is_drained(left)? => PollOutcome::Done(()),
                0 => PollOutcome::Nothing,
                _ => PollOutcome::Moved,
            })
        };
        let wait = |sender: &mut NonblockingSender, timeout| {
            // If waiting fails, looking again finds the reason.
            if sender.queue.wait(timeout).is_ok() {
                // An error without a notice would end every wait at once; it concerns an earlier datagram,
                // and is reported only here.
                let _ = rustix::net::sockopt::socket_error(sender.queue.socket());
            }
            Ok(())
        };
        let is_drained =
            poll_until_done(&mut self.0, timeout.saturating_sub(start.elapsed()), look, wait)?.is_some();
        let late = self.0.outcome.late.take().map(io::Error::from);
        refused.or(late).map_or(Ok(is_drained), Err)
    }

    /// Drains for at most `timeout`, and refuses to send from then on. Returns `false` if something was given
    /// up, which [`stats`](NonblockingSender::stats) counts. Memory that the kernel still reads is then given
    /// up for good: pages of a pool are replaced, while the kernel keeps the old ones; other memory is
    /// leaked. (Dropping the sender instead keeps all memory, for up to 10 s.)
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0")?;
    /// use nocopy::Reason;
    /// let to = client.local_addr()?;
    /// socket.sender().send_to(b"the last one".to_vec(), to)?;
    /// assert!(socket.sender().close(std::time::Duration::from_secs(5))?); // nothing was given up
    /// assert!(matches!(socket.sender().send_copy_to(b"one more", to), Err(Reason::Finished)));
    /// assert_eq!(socket.sender().stats().get("given_up").unwrap(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn close(&mut self, timeout: Duration) -> io::Result<bool> {
        let drained = self.drain(timeout);
        self.0.queue_max = 0;
        self.0.outcome.counters.given_up += self.0.queued() as u64;
        drop(self.0.queue.take_unsent());
        let given_up = self.0.queue.detach();
        let abandoned_calls = given_up.in_flight();
        let leaked_bytes = given_up.abandon();
        self.0.outcome.counters.abandoned_calls += abandoned_calls as u64;
        self.0.outcome.counters.leaked_bytes += leaked_bytes as u64;
        reaper::count_leaked(leaked_bytes);
        drained
    }

    /// The half for a tokio program, whose waits are futures. Over a port, dropping it does not wait for the
    /// frames that the kernel has: `close` it.
    ///
    /// # Errors
    /// No descriptor is left.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn into_async(mut self) -> io::Result<crate::udp::AsyncSender> {
        self.0.queue.open_descriptor()?;
        if let Some(port) = &mut self.0.port {
            port.drop_without_waiting();
        }
        crate::udp::AsyncSender::new(self.0)
    }
}

blocking_half!(Sender, NonblockingSender);
