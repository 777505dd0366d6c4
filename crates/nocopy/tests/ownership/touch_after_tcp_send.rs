use nocopy::tcp::Stream;

fn main() {
    let mut socket = Stream::connect("127.0.0.1:9").unwrap();
    let mut buffer = socket.sender().wait_buffer(std::time::Duration::MAX).unwrap().unwrap();
    buffer.resize(1400);
    socket.sender().send(buffer).unwrap();
    buffer[0] = 1; //~ E0382
}
