//! Copies sent by a task.

use std::net::SocketAddr;

use tokio::task::coop::consume_budget;

use super::NonblockingSender;
use crate::engine::address;
use crate::engine::asynchronous::AsyncSender;
use crate::facts::rejected::Reason;
use crate::udp::Ancillary;

impl AsyncSender<NonblockingSender> {
    /// Sends a copy of the bytes as one datagram, after queued messages, to the peer to which the socket is
    /// [connected](crate::udp::Socket::connect). Resolves when a kernel socket has taken the datagram; a port
    /// sends it at the next [`flush`](Self::flush), together with others. If the future is dropped before it
    /// has resolved, the datagram is not sent.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// use nocopy::{Cause, Evidence, udp::Socket};
    /// let mut socket = Socket::bind("127.0.0.1:0")?;
    /// socket.connect(client.local_addr()?)?;
    /// let mut sender = socket.split().1.into_async()?;
    /// sender.send_copy(b"hello").await?;
    /// assert_eq!(client.recv(&mut [0; 10])?, 5);
    /// assert_eq!(sender.ledger().bytes_of(Evidence::Copied(Cause::Slice)), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// The socket is not connected, the bytes are too many, or the kernel refused the datagram; also errors
    /// of messages queued before, as returned by [`flush`](Self::flush). On an error the datagram was not
    /// sent.
    pub async fn send_copy(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        let destination = self.destinations.connected().ok_or(Reason::NotConnected)?;
        self.copy_to(bytes, destination).await
    }

    /// As [`send_copy`](Self::send_copy), to an address; of a name that has several, to the first.
    ///
    /// # Errors
    /// As [`send_copy`](Self::send_copy); or the name has no address.
    pub async fn send_copy_to(
        &mut self,
        bytes: &[u8],
        to: impl tokio::net::ToSocketAddrs,
    ) -> Result<(), Reason> {
        let to: SocketAddr = address::first_found(to).await.map_err(Reason::System)?;
        let destination = self.destination(to);
        self.copy_to(bytes, destination).await
    }

    /// As [`send_copy_to`](Self::send_copy_to), and sets more for the datagram, as
    /// [`send_with`](NonblockingSender::send_with) does.
    ///
    /// # Errors
    /// As [`send_copy_to`](Self::send_copy_to); or the socket cannot send from that source
    /// ([`Reason::ForeignSource`]).
    pub async fn send_copy_with(
        &mut self,
        bytes: &[u8],
        to: impl tokio::net::ToSocketAddrs,
        ancillary: Ancillary,
    ) -> Result<(), Reason> {
        let to: SocketAddr = address::first_found(to).await.map_err(Reason::System)?;
        let destination = self.destination_with(to, ancillary)?;
        self.copy_to(bytes, destination).await
    }

    async fn copy_to(&mut self, bytes: &[u8], destination: u32) -> Result<(), Reason> {
        consume_budget().await;
        loop {
            match self.try_copy_to(bytes, destination) {
                Err(Reason::Full) => {}
                sent => return sent,
            }
            let waited = match self.queue.wants_room() {
                true => self.wait_for_event().await,
                false => self.wait_for_memory().await,
            };
            waited.map_err(Reason::System)?;
        }
    }
}

impl NonblockingSender {
    /// Sends a copy of the bytes after the queue, without waiting. `Full`: something is still queued, or
    /// there is no room for the bytes; nothing of them was sent.
    fn try_copy_to(&mut self, bytes: &[u8], destination: u32) -> Result<(), Reason> {
        self.check_copy(bytes.len())?;
        if self.queued() > 0 && !self.try_flush().map_err(Reason::System)? {
            return Err(Reason::Full);
        }
        self.queue.set_wants_room(false); // what an earlier copy has waited for
        match self.copy_now(bytes, destination, libc::MSG_DONTWAIT) {
            Err(Reason::Full) if self.copies_over_port => {
                // The port has sent none of what was queued since the last flush.
                self.try_flush().map_err(Reason::System)?;
                self.reap();
                self.copy_now(bytes, destination, libc::MSG_DONTWAIT)
            }
            sent => sent,
        }
    }
}
