//! How a sender ends: drained, closed by force, or dropped.

use std::io;
use std::time::{Duration, Instant};

use super::Sender;
use crate::engine::reaper::{self, CloseTimeouts};
use crate::engine::wait::{Look, look_until_done};

/// How long the kernel may need for a dropped socket: longer than resolving a neighbour takes (3 s, arp(7)), or a queue stalls.
const TIMEOUTS: CloseTimeouts = CloseTimeouts { patience: Duration::from_secs(10), cut_off: None };

impl Sender {
    /// Hands over everything queued, and waits for at most `timeout` until the kernel no longer reads any memory. Returns whether that is
    /// so.
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0".parse()?)?;
    /// use std::time::Duration;
    /// let (to, pool) = (client.local_addr()?, nocopy::Pool::new(4, 4096)?);
    /// let mut socket = Socket::builder().send_pool(&pool).bind("127.0.0.1:0".parse()?)?;
    /// let mut buffer = socket.sender().buffer().expect("a fresh pool has buffers");
    /// buffer.fill(b"hello").expect("it fits");
    /// socket.sender().send(buffer, to)?;
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
        self.outcome.flushes += 1;
        let refused = self.flush_all(Some(timeout)).err();
        let look = |sender: &mut Self| {
            let left = timeout.saturating_sub(start.elapsed());
            Ok::<_, io::Error>(match sender.reap() {
                _ if sender.queue.in_flight() == 0 && sender.port_is_drained(left)? => Look::Done(()),
                0 => Look::Nothing,
                _ => Look::Moved,
            })
        };
        let wait = |sender: &mut Self, timeout| {
            // If waiting fails, looking again finds the reason.
            if sender.queue.wait(timeout).is_ok() {
                // An error without a notice would end every wait at once; it concerns an earlier datagram, and is reported only here.
                let _ = rustix::net::sockopt::socket_error(sender.queue.socket());
            }
            Ok(())
        };
        let is_drained =
            look_until_done(self, timeout.saturating_sub(start.elapsed()), look, wait)?.is_some();
        let late = self.outcome.late.take().map(io::Error::from);
        refused.or(late).map_or(Ok(is_drained), Err)
    }

    /// Drains for at most `timeout`, and refuses to send from then on. Returns `false` if something was given up, which
    /// [`stats`](Self::stats) counts. Memory that the kernel still reads is then given up for good: pages of a pool are replaced, while the
    /// kernel keeps the old ones; other memory is leaked. (Dropping the sender instead keeps all memory, for up to 10 s.)
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0".parse()?)?;
    /// use nocopy::Reason;
    /// let to = client.local_addr()?;
    /// socket.sender().send(b"the last one".to_vec(), to)?;
    /// assert!(socket.sender().close(std::time::Duration::from_secs(5))?); // nothing was given up
    /// assert!(matches!(socket.sender().send_copy(b"one more", to), Err(Reason::Finished)));
    /// assert_eq!(socket.sender().stats()?["given_up"], 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn close(&mut self, timeout: Duration) -> io::Result<bool> {
        let drained = self.drain(timeout);
        self.queue_max = 0;
        self.outcome.counters.given_up += self.queued() as u64;
        drop(self.queue.take_unsent());
        let given_up = self.queue.detach();
        let abandoned_calls = given_up.in_flight();
        let leaked_bytes = given_up.abandon();
        self.outcome.counters.abandoned_calls += abandoned_calls as u64;
        self.outcome.counters.leaked_bytes += leaked_bytes as u64;
        reaper::leaked(leaked_bytes);
        drained
    }
}

impl Drop for Sender {
    /// Queued messages are not sent. Memory is kept while the kernel still reads it.
    fn drop(&mut self) {
        reaper::leave(&mut self.queue, TIMEOUTS);
    }
}
