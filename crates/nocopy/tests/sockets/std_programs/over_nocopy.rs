//! With changed `use` lines and constructors.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use nocopy::tcp::{Listener as TcpListener, Stream as TcpStream};

#[path = "programs.rs"]
mod programs;

fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
