//! Datagrams to hosts that may not exist, since their address may be forged, or that are gone. The kernel
//! keeps one whose next hop does not answer (ARP, neighbour discovery) for some seconds, in the socket's send
//! buffer: they could fill it, and no other peer would be answered.

#[cfg(feature = "message")]
mod silent;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use crate::engine::route::{RouteKind, Routes};
use crate::sys::option;
use crate::sys::udp_send::{send_buffer_bytes, unsent_bytes};

/// The eighths of the send buffer that are open to any address.
const STRANGERS: usize = 1;

/// After how many bytes the buffer is looked at again: less than the share of a usual one (208 KiB), and no
/// system call for each datagram.
const CHECK_BYTES: usize = 16 << 10;

/// What a short datagram takes of the buffer.
const OVERHEAD_BYTES: usize = 768;

#[derive(Debug, Default)]
pub(crate) struct UnverifiedPeerLimit {
    /// Bytes sent since the last look, at most.
    unseen_bytes: usize,
    /// Whole eighths of the buffer that were in use then.
    eighths: usize,
    /// Opened when they are first needed.
    routes: Option<Box<Routes>>,
}

impl UnverifiedPeerLimit {
    /// Whether the buffer has room for a datagram to that address, which is not proven: beyond the share,
    /// only if its next hop is known.
    pub(crate) fn may_send_to_unverified(
        &mut self,
        socket: BorrowedFd<'_>,
        bytes: usize,
        to: SocketAddr,
    ) -> bool {
        self.used_buffer_eighths(socket, bytes, 0, STRANGERS) < STRANGERS
            || self
                .current_routes(socket)
                .and_then(|routes| is_next_hop_resolved(routes, None, to))
                .unwrap_or(false)
    }

    fn used_buffer_eighths(
        &mut self,
        socket: BorrowedFd<'_>,
        bytes: usize,
        waiting: usize,
        share: usize,
    ) -> usize {
        self.unseen_bytes += bytes + OVERHEAD_BYTES;
        if self.eighths >= share || self.unseen_bytes > CHECK_BYTES {
            self.unseen_bytes = 0;
            let waiting_bytes = waiting * (bytes + OVERHEAD_BYTES);
            let both = unsent_bytes(&socket).and_then(|unsent| Ok((unsent, send_buffer_bytes(&socket)?)));
            self.eighths = both.map_or(0, |(unsent, all)| 8 * (unsent + waiting_bytes) / all.max(1));
        }
        self.eighths
    }

    /// The routes as they are now.
    fn current_routes(&mut self, socket: BorrowedFd<'_>) -> Option<&mut Routes> {
        if self.routes.is_none() {
            self.routes =
                Some(Box::new(Routes::open_for_device(None, option::bound_interface(&socket)).ok()?));
        }
        let routes = self.routes.as_mut()?;
        routes.poll_changes();
        Some(routes)
    }
}

/// `None`: not known.
fn is_next_hop_resolved(routes: &mut Routes, from: Option<IpAddr>, to: SocketAddr) -> Option<bool> {
    let ip = to.ip().to_canonical();
    let (interface, next) = match to {
        // It names its interface, and there is no router on the way.
        SocketAddr::V6(to) if to.scope_id() > 0 => (to.scope_id(), ip),
        _ => {
            routes.set_source(from.map(|from| from.to_canonical()));
            let route = routes.look_up(ip).ok()?;
            if route.kind != RouteKind::Unicast {
                return Some(true);
            }
            (route.interface_index, route.gateway.unwrap_or(ip))
        }
    };
    let waits = routes.link(interface).ok()?.mac.is_some();
    Some(!waits || routes.neighbour(interface, next).ok()?.mac.is_some())
}
