//! Counts packets that match: `filter INTERFACE EXPRESSION [COUNT]`, an expression of pcap-filter(7) such as
//! `udp port 9000`
//!
//! The program receives only matching packets; all others go to the host as usual.

use std::error::Error;

use nocopy::{Port, filter};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: filter INTERFACE EXPRESSION [COUNT]";
    let (interface, expression) = (arguments.next().ok_or(usage)?, arguments.next().ok_or(usage)?);
    let count: u64 = arguments.next().map_or(Ok(10), |count| count.parse())?;

    let wanted = filter::compile(&expression)?;
    let mut port = Port::builder(&interface).filter(&wanted).open()?;
    println!("{}", port.explain()); // says where the filter runs
    let (mut packets, mut bytes) = (0, 0);
    while packets < count {
        for packet in port.receiver().receive()? {
            packets += 1;
            bytes += packet.len();
        }
    }
    println!("{packets} packets, {bytes} bytes");
    Ok(())
}
