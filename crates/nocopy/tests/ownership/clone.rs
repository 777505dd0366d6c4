//! A frame has one owner.
fn main() {
    let (mut port, _peer) = nocopy::Port::memory_pair().unwrap();
    let frame = port.sender().frame().unwrap();
    let second: nocopy::Frame = frame.clone();
    drop(second);
}
