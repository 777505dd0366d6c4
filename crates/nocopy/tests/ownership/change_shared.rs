//! A shared frame is read-only.
fn main() {
    let (mut port, _peer) = nocopy::Port::memory_pair().unwrap();
    let shared = port.sender().buffer().unwrap().share();
    shared[0] = 1; //~ E0594
}
