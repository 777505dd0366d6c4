//! Datagrams to addresses that may be forged. The kernel keeps one whose next hop does not answer (ARP, neighbour discovery) for some seconds,
//! in the socket's send buffer: a stranger that names hosts that do not exist could fill it, and no other peer would be answered.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use super::Sender;
use crate::engine::route::{Kind, Routes};
use crate::facts::rejected::Reason;
use crate::sys::udp_send::{send_buffer_bytes, unsent_bytes};

/// The part of the send buffer that is open to any address.
const SHARE: usize = 8;

/// After how many bytes the buffer is looked at again: less than the share of a usual one (208 KiB), and no system call for each datagram.
const LOOK_BYTES: usize = 16 << 10;

/// What a short datagram takes of the buffer.
const OVERHEAD_BYTES: usize = 768;

#[derive(Debug, Default)]
pub(super) struct Strangers {
    /// Bytes sent since the last look, at most.
    unseen_bytes: usize,
    is_crowded: bool,
    /// Opened when they are first needed.
    routes: Option<Box<Routes>>,
}

impl Strangers {
    /// Whether the buffer has room for a datagram to that address, which is not proven: beyond the share, only if its next hop is known.
    fn may_send(&mut self, socket: BorrowedFd<'_>, bytes: usize, to: SocketAddr) -> bool {
        self.unseen_bytes += bytes + OVERHEAD_BYTES;
        if self.is_crowded || self.unseen_bytes > LOOK_BYTES {
            self.unseen_bytes = 0;
            let both = unsent_bytes(&socket).and_then(|unsent| Ok((unsent, send_buffer_bytes(&socket)?)));
            self.is_crowded = both.is_ok_and(|(unsent, all)| unsent > all / SHARE);
        }
        !self.is_crowded || self.has_next_hop(to.ip().to_canonical()).unwrap_or(false)
    }

    /// `None`: not known.
    fn has_next_hop(&mut self, to: IpAddr) -> Option<bool> {
        if self.routes.is_none() {
            self.routes = Some(Box::new(Routes::open(None, None).ok()?));
        }
        let routes = self.routes.as_mut()?;
        routes.poll_changes();
        let route = routes.look_up(to).ok()?;
        let waits = route.kind == Kind::Unicast && routes.link(route.interface_index).ok()?.mac.is_some();
        let next = route.gateway.unwrap_or(to);
        Some(!waits || routes.neighbour(route.interface_index, next).ok()?.mac.is_some())
    }
}

impl Sender {
    /// Sends a copy of the bytes as [`send_copy`](Self::send_copy) does, but never waits: for answers to addresses that may be forged. The
    /// kernel keeps datagrams to a host that does not exist for some seconds; they take at most about a quarter of the socket's send
    /// buffer, so that other peers are still answered.
    ///
    /// ```
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = nocopy::udp::Socket::bind("127.0.0.1:0".parse()?)?;
    /// socket.sender().try_send_copy(b"hello", client.local_addr()?)?;
    /// assert_eq!(client.recv(&mut [0; 10])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Reason::Full`]: it would have to wait, or messages are queued before it (flush them). Otherwise as `send_copy`.
    pub fn try_send_copy(&mut self, bytes: &[u8], to: SocketAddr) -> Result<(), Reason> {
        if self.queued() > 0 {
            return Err(Reason::Full);
        }
        self.copy(bytes, Some(to), libc::MSG_DONTWAIT)
    }

    /// Whether the kernel's socket has room for a datagram of that many bytes to an address that may be forged.
    #[doc(hidden)]
    pub fn has_room_for(&mut self, to: SocketAddr, bytes: usize) -> bool {
        self.strangers.may_send(self.outbox.sending.socket(), bytes, to)
    }
}
