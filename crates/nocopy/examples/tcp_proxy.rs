//! Forwards connections, without their bytes entering the program: `tcp_proxy LISTEN ONWARDS [CONNECTIONS]`

use std::error::Error;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use nocopy::tcp::PagePool;

const PIECE_BYTES: usize = 256 << 10;

/// Moves bytes until the stream ends, and passes its end on; returns how many. If that fails, both
/// connections are reset: no peer shall take a part for the whole.
fn forward_until_end(pool: &PagePool, from: &TcpStream, to: &TcpStream) -> io::Result<u64> {
    let moved = || {
        let mut pages = pool.take(PIECE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut bytes = 0;
        while pages.fill(from, None, PIECE_BYTES)? > 0 {
            while pages.buffered() > 0 {
                bytes += pages.empty(to, None, false)? as u64; // waits while the peer does not read
            }
        }
        to.shutdown(Shutdown::Write)?;
        Ok(bytes)
    };
    moved().inspect_err(|_| {
        let _ = (rustix::net::connect_unspec(from), rustix::net::connect_unspec(to));
    })
}

fn proxy_connection(pool: &PagePool, client: &TcpStream, onwards: SocketAddr) -> io::Result<(u64, u64)> {
    let server = TcpStream::connect(onwards)?;
    client.set_nodelay(true)?; // what was sent at once is passed on at once
    server.set_nodelay(true)?;
    thread::scope(|scope| {
        let back = scope.spawn(|| forward_until_end(pool, &server, client));
        let there = forward_until_end(pool, client, &server);
        back.join().expect("it does not panic").and_then(|back| Ok((there?, back)))
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut address = || arguments.next().ok_or("usage: tcp_proxy LISTEN ONWARDS [CONNECTIONS]");
    let (listen, onwards): (SocketAddr, SocketAddr) = (address()?.parse()?, address()?.parse()?);
    let connections = arguments.next().map_or(Ok(usize::MAX), |count| count.parse())?;
    let (listener, pool) = (TcpListener::bind(listen)?, PagePool::new(1024));
    println!("{}: passing on to {onwards}", listener.local_addr()?);
    thread::scope(|scope| {
        for _ in 0..connections {
            let ((client, from), pool) = (listener.accept()?, &pool);
            scope.spawn(move || match proxy_connection(pool, &client, onwards) {
                Ok((there, back)) => println!("{from}: {there} bytes there, {back} back"),
                Err(error) => println!("{from}: {error}"),
            });
        }
        Ok(())
    })
}
