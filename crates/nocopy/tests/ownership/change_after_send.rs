//! A sent frame cannot be changed.
fn main() {
    let (mut port, _peer) = nocopy::Port::memory_pair().unwrap();
    let mut frame = port.sender().buffer().unwrap();
    port.sender().send(frame).unwrap();
    frame[0] = 1; //~ E0382
}
