//! Sends every packet back to its sender, without moving its bytes: `echo INTERFACE [COUNT]`

use std::error::Error;
use std::time::Duration;

use nocopy::{Port, Wait};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let interface = arguments.next().ok_or("usage: echo INTERFACE [COUNT]")?;
    let mut left: u64 = arguments.next().map_or(Ok(u64::MAX), |count| count.parse())?;

    let wait = Wait::Adaptive { spin: Duration::from_micros(100) };
    let (mut receiver, mut sender) = Port::builder(&interface).wait(wait).open()?.split();
    println!("{interface}: echoing");
    while left > 0 {
        for mut packet in receiver.receive()? {
            if packet.len() < 14 {
                continue; // dropped: its frame goes back by itself
            }
            let (destination, source) = packet[..12].split_at_mut(6);
            destination.swap_with_slice(source);
            if let Err(rejected) = sender.send(packet.take()) {
                eprintln!("{rejected}");
            }
            left = left.saturating_sub(1);
        }
        sender.flush()?;
    }
    Ok(())
}
