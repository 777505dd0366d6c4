//! A frame has one owner.
fn two<T: Clone>(one: &T) -> (T, T) {
    (one.clone(), one.clone())
}

fn main() {
    let (mut port, _peer) = nocopy::Port::memory_pair().unwrap();
    let frame = port.sender().buffer().unwrap();
    two(&frame); //~ E0277
}
