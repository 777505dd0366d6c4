//! An asynchronous half has no way to the methods that wait.
use std::time::Duration;

use nocopy::AsyncReceiver;
use nocopy::port::NonblockingReceiver;

fn block(mut receiver: AsyncReceiver<NonblockingReceiver>) {
    receiver.receive_timeout(Duration::MAX).ok(); //~ E0599
    receiver.receive().ok(); //~ E0599
    receiver.set_wait(nocopy::Wait::Spin); //~ E0599
}

fn main() {
    let (port, _peer) = nocopy::Port::memory_pair().unwrap();
    block(port.split().0.into_async().unwrap());
}
