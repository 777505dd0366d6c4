//! The original.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};

#[path = "programs.rs"]
mod programs;

async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
