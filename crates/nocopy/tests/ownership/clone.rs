//! A frame has one owner.
fn clone_twice<T: Clone>(one: &T) -> (T, T) {
    (one.clone(), one.clone())
}

fn main() {
    let (mut port, _peer) = nocopy::Port::memory_pair().unwrap();
    let frame = port.sender().buffer().unwrap();
    clone_twice(&frame); //~ E0277
}
