//! A borrowed packet stays on its thread: its way back is not synchronised. A taken one may go.
fn main() {
    let (mut port, _peer) = nocopy::Port::memory_pair().unwrap();
    let packet = port.receiver().receive().unwrap().next().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || println!("{}", packet.len()));
    });
}
