//! Receives inside a tokio runtime, next to other tasks: `tokio INTERFACE [COUNT]`

use std::error::Error;

use nocopy::Port;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let interface = arguments.next().ok_or("usage: tokio INTERFACE [COUNT]")?;
    let count: usize = arguments.next().map_or(Ok(10), |count| count.parse())?;

    let (receiver, _sender) = Port::open(&interface)?.split();
    let mut receiver = receiver.into_async()?;
    println!("{interface}: receiving");
    let mut received = 0;
    while received < count {
        for packet in receiver.receive().await? {
            received += 1;
            println!("packet {received}: {} B", packet.len());
        }
    }
    Ok(())
}
