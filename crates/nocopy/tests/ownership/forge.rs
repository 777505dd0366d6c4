//! A frame cannot be constructed, nor made from another.
fn main() {
    let (mut port, _peer) = nocopy::Port::memory_pair().unwrap();
    let frame = port.sender().buffer().unwrap();
    let forged = nocopy::Frame { index: 7, ..frame }; //~ E0451
    drop(forged);
}
