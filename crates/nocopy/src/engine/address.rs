//! The addresses of a socket's two ends, as the kernel tells them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use socket2::{SockAddr, SockRef};

/// Of this end.
///
/// # Errors
/// The kernel's; `InvalidData` where it is of no internet protocol.
pub(crate) fn local(socket: &impl AsFd) -> io::Result<SocketAddr> {
    of_internet(&SockRef::from(socket).local_addr()?)
}

/// Of the other end.
///
/// # Errors
/// The kernel's: there is no other end; `InvalidData` where it is of no internet protocol.
pub(crate) fn peer(socket: &impl AsFd) -> io::Result<SocketAddr> {
    of_internet(&SockRef::from(socket).peer_addr()?)
}

fn of_internet(address: &SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::ErrorKind::InvalidData.into())
}
