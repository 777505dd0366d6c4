//! Connecting a socket, if requested from a reserved port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use rustix::rand::{GetRandomFlags, getrandom};

/// Source ports that need privileges; a server with the option `secure` accepts no others.
const RESERVED_PORTS: std::ops::Range<u16> = 600..1024;

pub(super) fn connect_with_timeout(
    address: SocketAddr,
    is_reserved: bool,
    within: Duration,
) -> io::Result<TcpStream> {
    let mut word = [0; 2];
    // A random start, so that clients rarely try the same ports.
    let _ = getrandom(&mut word, GetRandomFlags::empty());
    let count = RESERVED_PORTS.len();
    let first = usize::from(u16::from_ne_bytes(word)) % count;
    let mut ports = RESERVED_PORTS.cycle().skip(first).take(if is_reserved { count } else { 0 });
    loop {
        let port = ports.next();
        match connect_from_port(address, port, within) {
            // The port is in use, or was in use for this server until recently.
            Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) if port.is_some() => {}
            done => return done.map_err(io::Error::from),
        }
    }
}

fn connect_from_port(address: SocketAddr, port: Option<u16>, within: Duration) -> Result<TcpStream, Errno> {
    let (family, any): (_, IpAddr) = match address {
        SocketAddr::V4(_) => (AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
        SocketAddr::V6(_) => (AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if let Some(port) = port {
        // Allows a port that was in use until recently, except for the same server.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddr::new(any, port))?;
    }
    match connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            wait_for_connection(&socket, within)?;
            sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error),
    }
    Ok(TcpStream::from(socket))
}

fn wait_for_connection(socket: &impl std::os::fd::AsFd, within: Duration) -> Result<(), Errno> {
    let end = Instant::now() + within;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = left.try_into().map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&timeout)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}
