//! Sends numbered datagrams: `sender ADDRESS COUNT`

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use nocopy::udp::Socket;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let to: SocketAddr = arguments.next().ok_or("which address?")?.parse()?;
    let count: u32 = arguments.next().ok_or("how many?")?.parse()?;

    let (mut receiver, mut sender) = Socket::bind("0.0.0.0:0")?.split();
    let mut answers = 0;
    for number in 0..count {
        let mut buffer = loop {
            match sender.buffer() {
                Some(buffer) => break buffer,
                None => drop(sender.drain(Duration::from_secs(1))?),
            }
        };
        buffer.fill(format!("datagram {number}").as_bytes())?;
        sender.send_to(buffer, to)?;
        sender.flush()?;
        for datagram in receiver.receive_timeout(Duration::from_secs(60))? {
            assert_eq!(datagram.source(), to);
            println!("{}", String::from_utf8_lossy(&datagram));
            answers += 1;
        }
    }
    sender.drain(Duration::from_secs(1))?;
    println!("sent {count}, answered {answers}, {}", sender.ledger());
    Ok(())
}
