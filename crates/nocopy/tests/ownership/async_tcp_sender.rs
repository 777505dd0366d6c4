//! The sending half of a stream in a tokio program has no way to the methods that wait.
use std::io::Write;
use std::time::Duration;

use nocopy::tcp::{AsyncSender, Stream};

fn block(mut sender: AsyncSender) {
    sender.wait_buffer(Duration::MAX).ok(); //~ E0599
    sender.send_copy(b"bytes").ok(); //~ E0599
    sender.flush().ok(); //~ E0599
    sender.flush_timeout(Duration::MAX).ok(); //~ E0599
    let _ = sender.drain(Duration::MAX); //~ E0061
    sender.finish().ok(); //~ E0599
    sender.write(b"bytes").ok(); //~ E0599
    let _ = sender.close(Duration::MAX); //~ E0061
}

fn main() {
    let stream = Stream::connect("127.0.0.1:9").unwrap();
    block(stream.split().1.into_async().unwrap());
}
