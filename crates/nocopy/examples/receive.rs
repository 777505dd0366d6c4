//! Prints a line for each packet: `receive INTERFACE [COUNT]`
//!
//! While it runs, every packet of queue 0 goes to it instead of the host.

use std::error::Error;

use nocopy::Port;
use nocopy_proto::wire::ethernet;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let interface = arguments.next().ok_or("usage: receive INTERFACE [COUNT]")?;
    let mut left: u64 = arguments.next().map_or(Ok(10), |count| count.parse())?;

    let mut port = Port::open(&interface)?;
    println!("{interface}: {}, {}", port.mode(), port.explain().evidence);
    while left > 0 {
        for packet in port.receiver().receive()?.take(usize::try_from(left)?) {
            match ethernet::Frame::parse(&packet) {
                Ok(frame) => {
                    println!(
                        "{} > {} {}, {} B",
                        frame.source(),
                        frame.destination(),
                        frame.ether_type(),
                        packet.len()
                    );
                }
                Err(error) => println!("{} B: {error}", packet.len()),
            }
            left -= 1;
        }
    }
    println!("{}", port.balance());
    Ok(())
}
