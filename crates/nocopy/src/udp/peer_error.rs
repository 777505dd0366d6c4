//! Errors that the network reports for datagrams that it could not deliver.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::sys::error_queue::NetworkError;

/// A datagram that the network, or the host, could not deliver.
#[derive(Debug)]
pub struct PeerError {
    /// Its destination, if the report names it.
    pub to: Option<SocketAddr>,
    /// The sender of the report: a router, the destination; `None` for this host.
    pub from: Option<IpAddr>,
    /// The cause: `ConnectionRefused` if no socket has the port, `HostUnreachable`, …
    pub error: io::Error,
}

/// How many errors that earlier datagrams left at a socket a call may return before it gives up.
pub(super) const PENDING_ERRORS_MAX: usize = 16;

/// Whether a call failed because the network reported an error for an earlier datagram. Receiving never ends
/// with such an error.
pub(super) fn is_network_error(error: &io::Error) -> bool {
    // The results of ICMP's types and codes: `icmp_err_convert` of net/ipv4/icmp.c, `tab_unreach` and
    // `icmpv6_err_convert` of net/ipv6/icmp.c.
    const BY_ICMP: [i32; 11] = [
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::ENOPROTOOPT,
        libc::EOPNOTSUPP,
        libc::EMSGSIZE,
        libc::EACCES,
        libc::EPROTO,
        libc::EPERM,
    ];
    error.raw_os_error().is_some_and(|errno| BY_ICMP.contains(&errno))
}

impl From<NetworkError> for PeerError {
    fn from(NetworkError { errno, to, from }: NetworkError) -> Self {
        Self { to, from, error: io::Error::from_raw_os_error(errno) }
    }
}
