//! The receiving half of a socket in a tokio program has no way to the methods that wait.
use std::time::Duration;

use nocopy::Wait;
use nocopy::udp::{AsyncReceiver, Socket};

fn block(mut receiver: AsyncReceiver) {
    receiver.receive_timeout(Duration::MAX).ok(); //~ E0599
    receiver.receive().ok(); //~ E0599
    receiver.set_wait(Wait::Spin); //~ E0599
}

fn main() {
    let socket = Socket::bind("127.0.0.1:0").unwrap();
    block(socket.split().0.into_async().unwrap());
}
