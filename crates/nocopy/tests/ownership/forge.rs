//! A frame cannot be made out of nothing.
fn main() {
    let frame = nocopy::Frame { index: 7, start: 0, len: 64 };
    drop(frame);
}
