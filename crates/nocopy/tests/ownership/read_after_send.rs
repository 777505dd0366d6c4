//! A sent frame cannot be read.
fn main() {
    let (mut port, _peer) = nocopy::Port::memory_pair().unwrap();
    let frame = port.sender().buffer().unwrap();
    port.sender().send(frame).unwrap();
    println!("{}", frame.len()); //~ E0382
}
