//! A frame cannot be made out of nothing, nor out of another.
fn main() {
    let (mut port, _peer) = nocopy::Port::memory_pair().unwrap();
    let frame = port.sender().buffer().unwrap();
    let forged = nocopy::Frame { index: 7, ..frame }; //~ E0451
    drop(forged);
}
