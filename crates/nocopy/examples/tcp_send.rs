//! Sends a pattern by TCP, by the fastest method on this machine: `tcp_send ADDRESS [MEBIBYTES]`

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nocopy::tcp::Stream;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let to: SocketAddr = arguments.next().ok_or("usage: tcp_send ADDRESS [MEBIBYTES]")?.parse()?;
    let bytes: usize = arguments.next().map_or(Ok(1024), |count| count.parse())? << 20;

    let mut stream = Stream::connect(to)?;
    let sender = stream.sender();
    let started = Instant::now();
    let mut sent = 0;
    while sent < bytes {
        // Waits while all buffers are in flight: one returns when the peer has acknowledged it.
        let mut buffer = sender.wait_buffer(Duration::MAX)?.ok_or("a wait without a limit ended")?;
        buffer.resize(buffer.capacity().min(bytes - sent));
        for (number, word) in buffer.chunks_mut(8).enumerate() {
            word.copy_from_slice(&((sent / 8 + number) as u64).to_be_bytes()[..word.len()]);
        }
        sent += buffer.len();
        // Moved: touching the buffer from here on does not compile.
        sender.send(buffer)?;
        sender.flush()?;
    }
    sender.finish()?;
    sender.drain(Duration::from_secs(10))?;
    let gbit = sent as f64 * 8.0 / started.elapsed().as_secs_f64() / 1e9;
    println!("{sent} bytes, {gbit:.1} Gbit/s: {}\n{}", sender.ledger(), sender.explain());
    Ok(())
}
