//! Bytes staged in place cannot be written once they were flushed.
fn main() {
    let (mut port, _peer) = nocopy::Port::memory_pair().unwrap();
    let sender = port.sender();
    let packet = sender.stage(5).unwrap();
    sender.flush().unwrap();
    packet.fill(0);
}
