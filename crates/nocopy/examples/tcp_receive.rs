//! Receives a stream, the way that is fastest on this machine, and says what was copied and why: `tcp_receive ADDRESS`

use std::error::Error;
use std::net::SocketAddr;
use std::time::Instant;

use nocopy::tcp::Listener;

fn main() -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = std::env::args().nth(1).ok_or("usage: tcp_receive ADDRESS")?.parse()?;

    let listener = Listener::bind(address)?;
    println!("{}: receiving", listener.local_address()?);
    let (mut stream, _) = listener.accept()?;
    let receiver = stream.receiver();
    let started = Instant::now();
    let (mut bytes, mut zeros) = (0, 0);
    while let Some(chunk) = receiver.receive()? {
        // Copies of what lies on mapped pages, which a sender on this host could still change, then the bytes that the kernel copied.
        chunk.for_each_part(|part| zeros += part.iter().filter(|&&byte| byte == 0).count());
        bytes += chunk.len();
        // Its memory is used again for the next: dropping it does so, too.
        receiver.recycle(chunk);
    }
    let gbit = bytes as f64 * 8.0 / started.elapsed().as_secs_f64() / 1e9;
    println!("{bytes} bytes, of them {zeros} zero, {gbit:.1} Gbit/s: {}", receiver.ledger());
    println!("{}", receiver.explain());
    Ok(())
}
