use nocopy::udp::{Message, Socket};

fn main() {
    let mut socket = Socket::bind("127.0.0.1:0").unwrap();
    let mut buffer = socket.sender().buffer().unwrap();
    buffer.resize(1400);
    socket.sender().send(Message::segments(buffer, 700)).unwrap();
    buffer[0] = 1; //~ E0382
}
