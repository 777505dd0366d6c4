//! The addresses of a socket's two ends.

use std::io;
use std::net::SocketAddr;
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

fn of_internet(address: &SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::ErrorKind::InvalidData.into())
}
