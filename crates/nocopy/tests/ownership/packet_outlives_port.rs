//! A borrowed packet cannot outlive its port; a taken one can.
fn main() {
    let (mut port, peer) = nocopy::Port::memory_pair().unwrap();
    let packet = port.receiver().receive().unwrap().next().unwrap();
    drop(port); //~ E0505
    println!("{}", packet.len());
    drop(peer);
}
