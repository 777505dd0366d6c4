//! What the network says of datagrams that it could not bring to their destination.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// The most errors that are kept until they are asked for.
const KEPT_MAX: usize = 64;

/// A datagram that the network, or the host, could not bring to its destination.
#[derive(Debug)]
pub struct PeerError {
    /// Whom it was for, as far as that was told.
    pub to: Option<SocketAddr>,
    /// Who says so: a router, the destination; `None` for this host.
    pub from: Option<IpAddr>,
    /// What: `ConnectionRefused` where nobody listens, `HostUnreachable`, …
    pub error: io::Error,
}

/// The last errors.
#[derive(Debug, Default)]
pub(super) struct PeerErrors(VecDeque<PeerError>);

impl PeerErrors {
    pub(super) fn keep(&mut self, errno: i32, to: Option<SocketAddr>, from: Option<IpAddr>) {
        if self.0.len() == KEPT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(PeerError { to, from, error: io::Error::from_raw_os_error(errno) });
    }

    /// What was kept, oldest first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = PeerError> + '_ {
        self.0.drain(..)
    }
}
