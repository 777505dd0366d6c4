//! Datagrams to addresses that may be forged. The kernel keeps one whose next hop does not answer (ARP, neighbour discovery) for some seconds,
//! in the socket's send buffer: a stranger that names hosts that do not exist could fill it, and no other peer would be answered.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use crate::engine::route::{Kind, Routes};
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
    pub(super) fn may_send(&mut self, socket: BorrowedFd<'_>, bytes: usize, to: SocketAddr) -> bool {
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
