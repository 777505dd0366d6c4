//! Sockets that listen, at one address or at all of both families.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

/// Connections that may wait to be accepted; the kernel's limit may be lower.
const BACKLOG: i32 = 1024;

/// The address that stands for all addresses of both families, or of the only one that the kernel has.
pub fn wildcard_address(port: u16) -> SocketAddr {
    let ipv6 = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    match UdpSocket::bind((ipv6, 0)) {
        Ok(_) => (ipv6, port).into(),
        Err(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
    }
}

/// Whether an address cannot be bound because this host does not have it, or has no addresses of its family:
/// of a name's addresses it is left out.
pub fn is_address_not_local(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// A TCP socket bound to that address, which does not listen yet. At the wildcard of IPv6 it is of both
/// families, whatever `net.ipv6.bindv6only` says.
///
/// # Errors
/// The kernel's.
pub fn bind_tcp(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A port whose last connections are in TIME_WAIT can be used.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    bind(&socket, &address)?;
    Ok(socket)
}

/// As [`bind_tcp`], and listens.
///
/// # Errors
/// The kernel's.
pub fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = bind_tcp(address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
