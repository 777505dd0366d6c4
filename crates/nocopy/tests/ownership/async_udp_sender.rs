//! The sending half of a socket in a tokio program has no way to the methods that wait.
use std::time::Duration;

use nocopy::udp::{AsyncSender, Socket};

fn block(mut sender: AsyncSender) {
    sender.send_copy(b"bytes").ok(); //~ E0599
    sender.send_copy_to(b"bytes", "127.0.0.1:9").ok(); //~ E0599
    sender.flush().ok(); //~ E0599
    sender.flush_timeout(Duration::MAX).ok(); //~ E0599
    let _ = sender.drain(Duration::MAX); //~ E0061
    let _ = sender.close(Duration::MAX); //~ E0061
}

fn main() {
    let socket = Socket::bind("127.0.0.1:0").unwrap();
    block(socket.split().1.into_async().unwrap());
}
