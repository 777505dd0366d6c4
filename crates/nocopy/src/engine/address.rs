//! The addresses of a socket's two ends.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use socket2::{SockAddr, SockRef};

/// The local address. Errors: the kernel's; `InvalidData` if the socket is not of an internet protocol.
pub(crate) fn local_address(socket: &impl AsFd) -> io::Result<SocketAddr> {
    internet_address(&SockRef::from(socket).local_addr()?)
}

/// The peer's address. Errors: the kernel's, if there is no peer; `InvalidData` if the socket is not of an
/// internet protocol.
pub(crate) fn peer_address(socket: &impl AsFd) -> io::Result<SocketAddr> {
    internet_address(&SockRef::from(socket).peer_addr()?)
}

/// Binds the socket. At the wildcard of IPv6 it is then one of both families, and at an address of IPv4 in
/// IPv6 it can be used, whatever `net.ipv6.bindv6only` says.
pub(crate) fn bind(socket: &impl AsFd, address: SocketAddr) -> io::Result<()> {
    let socket = SockRef::from(socket);
    if let IpAddr::V6(ip) = address.ip()
        && (ip.is_unspecified() || ip.to_ipv4_mapped().is_some())
    {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())
}

fn internet_address(address: &SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::ErrorKind::InvalidData.into())
}
