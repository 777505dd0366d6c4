//! Receives a stream by the fastest method on this machine, and prints what was copied and why:
//! `tcp_receive ADDRESS`

use std::error::Error;
use std::net::SocketAddr;
use std::time::Instant;

use nocopy::tcp::Listener;

fn main() -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = std::env::args().nth(1).ok_or("usage: tcp_receive ADDRESS")?.parse()?;

    let listener = Listener::bind(address)?;
    println!("{}: receiving", listener.local_addr()?);
    let (mut stream, _) = listener.accept()?;
    let receiver = stream.receiver();
    let started = Instant::now();
    let (mut bytes, mut zeros) = (0, 0);
    while let Some(chunk) = receiver.receive()? {
        // Copies of bytes on mapped pages, which a sender on this host could still change, then the bytes
        // that the kernel copied.
        chunk.for_each_part(|part| zeros += part.iter().filter(|&&byte| byte == 0).count());
        bytes += chunk.len();
        // Its memory is used for the next chunk; dropping has the same effect.
        receiver.recycle(chunk);
    }
    let gbit = bytes as f64 * 8.0 / started.elapsed().as_secs_f64() / 1e9;
    println!("{bytes} bytes, of them {zeros} zero, {gbit:.1} Gbit/s: {}", receiver.ledger());
    println!("{}", receiver.explain());
    Ok(())
}
