//! Sends every datagram back to where it came from: `echo ADDRESS COUNT`

use std::error::Error;

use nocopy::udp::Socket;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("which address?")?;
    let count: u64 = arguments.next().ok_or("how many?")?.parse()?;

    let socket = Socket::bind(address)?;
    println!("echoing at {}", socket.local_addr()?);
    let (mut receiver, mut sender) = socket.split();
    let mut answered = 0;
    while answered < count {
        for datagram in receiver.receive()? {
            let from = datagram.source();
            sender.send_to(datagram.take(), from)?;
            answered += 1;
        }
        sender.flush()?;
    }
    println!("{}", sender.stats());
    Ok(())
}
