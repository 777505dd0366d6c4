//! The addresses of a socket's two ends.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;

use socket2::{SockAddr, SockRef};

/// The first address of those that are given. Errors: the name's lookup failed, or it has none.
#[inline]
pub(crate) fn first_of(addresses: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    addresses.to_socket_addrs()?.next().ok_or_else(no_address)
}

/// As [`first_of`], without waiting on the thread for the lookup of a name.
#[cfg(feature = "tokio")]
pub(crate) async fn first_found(addresses: impl tokio::net::ToSocketAddrs) -> io::Result<SocketAddr> {
    tokio::net::lookup_host(addresses).await?.next().ok_or_else(no_address)
}

/// The first success of a function of each address; otherwise the last error. The lookup's error is made one
/// of the function's.
pub(crate) fn first_success<T, E>(
    addresses: impl ToSocketAddrs,
    lookup_error: impl Fn(io::Error) -> E,
    mut attempt: impl FnMut(SocketAddr) -> Result<T, E>,
) -> Result<T, E> {
    let mut error = None;
    for address in addresses.to_socket_addrs().map_err(&lookup_error)? {
        match attempt(address) {
            Ok(success) => return Ok(success),
            Err(failed) => error = Some(failed),
        }
    }
    Err(error.unwrap_or_else(|| lookup_error(no_address())))
}

/// The error for a name that has no address.
#[cold]
pub(crate) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address; give another, or the address itself")
}

/// The local address. Errors: the kernel's; `InvalidData` if the socket is not of an internet protocol.
pub(crate) fn local_addr(socket: &impl AsFd) -> io::Result<SocketAddr> {
    internet_address(&SockRef::from(socket).local_addr()?)
}

/// The peer's address. Errors: the kernel's, if there is no peer; `InvalidData` if the socket is not of an
/// internet protocol.
#[cfg(feature = "tcp")]
pub(crate) fn peer_addr(socket: &impl AsFd) -> io::Result<SocketAddr> {
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
