//! Receives inside a tokio runtime, next to other tasks: `tokio INTERFACE [COUNT]`

#![allow(unsafe_code)]

use std::error::Error;

use nocopy::{Port, Receiver};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits until packets are there. Arming before every wait matters: epoll, unlike poll(2), does not make the kernel go on.
async fn readable(receiver: &mut AsyncFd<Receiver>) -> std::io::Result<()> {
    while !receiver.get_mut().arm()? {
        receiver.readable().await?.clear_ready();
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let interface = arguments.next().ok_or("usage: tokio INTERFACE [COUNT]")?;
    let count: usize = arguments.next().map_or(Ok(10), |count| count.parse())?;

    let (receiver, _sender) = Port::open(&interface)?.split();
    // SAFETY: a receiver keeps one descriptor, the same from `as_raw_fd` each time, open until it is dropped.
    let mut receiver = unsafe { AsyncFd::register_with_interest(receiver, Interest::READABLE) }?;
    println!("{interface}: receiving");
    let mut received = 0;
    while received < count {
        readable(&mut receiver).await?;
        for packet in receiver.get_mut().try_receive()? {
            received += 1;
            println!("packet {received}: {} B", packet.len());
        }
    }
    Ok(())
}
