//! A buffer that others may read cannot be written.
use nocopy::Buffer;

fn main() {
    let mut buffer = Buffer::from(vec![0; 1400]);
    buffer[0] = 1; //~ E0594
}
