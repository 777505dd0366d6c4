//! Sockets that are never used: to ask the kernel something.

#[cfg(feature = "port")]
mod checks;

use std::io;
use std::os::fd::OwnedFd;

#[cfg(feature = "port")]
pub(crate) use checks::{check_packet_socket, check_zero_copy_receive, check_zero_copy_send};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

pub(crate) fn tcp_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}
