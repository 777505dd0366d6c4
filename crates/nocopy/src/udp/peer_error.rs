//! What the network says of datagrams that it could not bring to their destination.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::sys::error_queue::Refusal;

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

/// Whether a call on a socket fails because of what the network said of an earlier datagram. Receiving itself ends with none of these.
pub(super) fn is_of_network(error: &io::Error) -> bool {
    // What ICMP's types and codes are turned into: `icmp_err_convert` of net/ipv4/icmp.c, `tab_unreach` and `icmpv6_err_convert` of
    // net/ipv6/icmp.c.
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

impl From<Refusal> for PeerError {
    fn from(Refusal { errno, to, from }: Refusal) -> Self {
        Self { to, from, error: io::Error::from_raw_os_error(errno) }
    }
}
