//! An asynchronous half has no way to the methods that wait.
use std::time::Duration;

use nocopy::AsyncSender;
use nocopy::port::NonblockingSender;

fn block(mut sender: AsyncSender<NonblockingSender>) {
    sender.flush_timeout(Duration::MAX).ok(); //~ E0599
    sender.flush().ok(); //~ E0599
    let _ = sender.drain(Duration::MAX); //~ E0061
    let _ = sender.close(Duration::MAX); //~ E0061
}

fn main() {
    let (port, _peer) = nocopy::Port::memory_pair().unwrap();
    block(port.split().1.into_async().unwrap());
}
