//! The original.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

#[path = "programs.rs"]
mod programs;

fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
