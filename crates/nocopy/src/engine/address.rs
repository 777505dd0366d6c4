//! The addresses of a socket's two ends.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use socket2::{SockAddr, SockRef};

/// The local address. Errors: the kernel's; `InvalidData` if the socket is not of an internet protocol.
pub(crate) fn local(socket: &impl AsFd) -> io::Result<SocketAddr> {
    of_internet(&SockRef::from(socket).local_addr()?)
}

/// The peer's address. Errors: the kernel's, if there is no peer; `InvalidData` if the socket is not of an internet protocol.
pub(crate) fn peer(socket: &impl AsFd) -> io::Result<SocketAddr> {
    of_internet(&SockRef::from(socket).peer_addr()?)
}

/// Binds the socket. At the wildcard of IPv6 it is then one of both families, whatever `net.ipv6.bindv6only` says.
pub(crate) fn bind(socket: &impl AsFd, address: SocketAddr) -> io::Result<()> {
    let socket = SockRef::from(socket);
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())
}

fn of_internet(address: &SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::ErrorKind::InvalidData.into())
}
