//! An endpoint of a tokio program has no methods that block the runtime's thread.
use std::time::Duration;

use nocopy::Wait;
use nocopy::message::{AsyncEndpoint, Peer};

fn main() {}

#[expect(dead_code)]
fn block(endpoint: &mut AsyncEndpoint, peer: Peer, time: Duration) {
    let _ = endpoint.receive_timeout(time); //~ E0599
    let _ = endpoint.flush_timeout(time); //~ E0599
    let _ = endpoint.connect("127.0.0.1:9", time); //~ E0061
    let _ = endpoint.call(b"request".to_vec(), peer, time); //~ E0061
    let _ = endpoint.wait(time); //~ E0061
    let _ = endpoint.drain(time); //~ E0061
    endpoint.set_wait(Wait::Spin); //~ E0599
}
