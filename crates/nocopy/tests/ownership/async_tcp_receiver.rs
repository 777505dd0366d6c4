//! The receiving half of a stream in a tokio program has no way to the methods that wait.
use std::io::Read;
use std::time::Duration;

use nocopy::Wait;
use nocopy::tcp::{AsyncReceiver, Stream};

fn block(mut receiver: AsyncReceiver) {
    receiver.receive_timeout(Duration::MAX).ok(); //~ E0599
    receiver.receive().ok(); //~ E0599
    receiver.read(&mut [0]).ok(); //~ E0599
    receiver.set_wait(Wait::Spin); //~ E0599
}

fn main() {
    let stream = Stream::connect("127.0.0.1:9").unwrap();
    block(stream.split().0.into_async().unwrap());
}
