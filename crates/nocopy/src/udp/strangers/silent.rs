//! Datagrams to peers that have answered nothing.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use super::{UnverifiedPeerLimit, is_next_hop_resolved};

/// The eighths of the send buffer that are open to peers that have answered nothing, or not what they were
/// sent before.
const SILENT_PEERS: usize = 4;

impl UnverifiedPeerLimit {
    /// As [`may_send_to_unverified`](Self::may_send_to_unverified) for a peer that has answered nothing, or
    /// not what it was sent before, from one of this host's addresses. `waiting` datagrams as long as this
    /// one go before it.
    pub(crate) fn may_send_to_silent(
        &mut self,
        socket: BorrowedFd<'_>,
        bytes: usize,
        waiting: usize,
        way: (Option<IpAddr>, SocketAddr),
    ) -> bool {
        self.used_buffer_eighths(socket, bytes, waiting, SILENT_PEERS) < SILENT_PEERS
            || self
                .next_hops_unresolved(socket, std::iter::once(way))
                .next()
                .is_none_or(|is_absent| !is_absent)
    }

    /// For which peers the kernel would keep what is sent to them from these addresses of the host, because
    /// their next hops do not answer: none if that cannot be looked up.
    pub(crate) fn next_hops_unresolved(
        &mut self,
        socket: BorrowedFd<'_>,
        ways: impl Iterator<Item = (Option<IpAddr>, SocketAddr)>,
    ) -> impl Iterator<Item = bool> {
        let mut routes = self.current_routes(socket);
        ways.map(move |(from, to)| {
            let routes = routes.as_deref_mut();
            routes.and_then(|routes| is_next_hop_resolved(routes, from, to)) == Some(false)
        })
    }
}
