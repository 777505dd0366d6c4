//! With changed `use` lines and constructors.

use std::io;
use std::net::SocketAddr;

use nocopy::tcp::{AsyncListener as TcpListener, AsyncStream as TcpStream, Listener};

#[path = "programs.rs"]
mod programs;

async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = Listener::bind("127.0.0.1:0")?.into_async()?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
