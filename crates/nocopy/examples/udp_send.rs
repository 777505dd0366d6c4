//! Sends numbered datagrams to an address, by the fastest method on this machine: `udp_send ADDRESS [COUNT]`

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use nocopy::udp::{Message, Socket};

/// Datagrams in one buffer, contiguous.
const DATAGRAMS: usize = 44;
const BYTES: usize = 1400;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let to: SocketAddr = arguments.next().ok_or("usage: udp_send ADDRESS [COUNT]")?.parse()?;
    let count: u64 = arguments.next().map_or(Ok(1_000_000), |count| count.parse())?;

    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let mut socket = Socket::bind(any)?;
    socket.connect(to)?;
    let sender = socket.sender();
    let mut next = 0;
    while next < count {
        let Some(mut buffer) = sender.buffer() else {
            // All are in flight: wait until the kernel no longer reads them.
            sender.drain(Duration::from_secs(1))?;
            continue;
        };
        let datagrams = DATAGRAMS.min((count - next) as usize);
        buffer.resize(datagrams * BYTES);
        for datagram in buffer.chunks_mut(BYTES) {
            datagram[..8].copy_from_slice(&next.to_be_bytes());
            next += 1;
        }
        // Moved: touching the buffer from here on does not compile.
        sender.send(Message::segments(buffer, BYTES))?;
        sender.flush()?;
    }
    sender.drain(Duration::from_secs(1))?;
    println!("{} datagrams: {}\n{}", sender.stats().moved, sender.ledger(), sender.explain());
    for error in sender.errors() {
        println!("{}: {}", to, error.error);
    }
    Ok(())
}
