//! Counts datagrams in place, several per call: `udp_receive ADDRESS [COUNT]`

use std::error::Error;

use nocopy::udp::Socket;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: udp_receive ADDRESS [COUNT]")?;
    let count: u64 = arguments.next().map_or(Ok(u64::MAX), |count| count.parse())?;

    let mut socket = Socket::builder().receive_buffer(4 << 20).bind(address)?;
    println!("{}: receiving", socket.local_addr()?);
    let receiver = socket.receiver();
    let (mut datagrams, mut bytes) = (0, 0);
    while datagrams < count {
        for datagram in receiver.receive()? {
            datagrams += 1;
            bytes += datagram.len();
        }
    }
    println!("{datagrams} datagrams, {bytes} bytes: {}; {}", receiver.ledger(), receiver.stats());
    Ok(())
}
