//! A frame cannot be sent twice.
fn main() {
    let (mut port, _peer) = nocopy::Port::memory_pair().unwrap();
    let frame = port.sender().buffer().unwrap();
    port.sender().send(frame).unwrap();
    port.sender().send(frame).unwrap(); //~ E0382
}
