//! The operations of the other programs, in the right order and once.
use nocopy::Pool;
use nocopy::{tcp, udp};

fn main() {
    let (mut port, mut peer) = nocopy::Port::memory_pair().unwrap();
    let mut frame = port.sender().buffer().unwrap();
    frame.fill(b"read, changed, sent").unwrap();
    println!("{}", frame.len());
    frame[0] = 1;
    port.sender().send(frame).unwrap();
    let shared = port.sender().buffer().unwrap().share();
    let (one, another) = (shared.clone(), shared);
    println!("{} {}", one.len(), another.len());

    let sender = port.sender();
    let mut drafts = sender.drafts(2, 5).unwrap();
    let mut first = drafts.next_draft().unwrap();
    first.fill(0);
    first.queue();
    let mut second = drafts.next_draft().unwrap();
    second.fill(0);
    second.queue();
    drop(drafts);
    sender.flush().unwrap();

    let taken = peer.receiver().receive().unwrap().next().unwrap().take();
    drop(peer);
    println!("{}", taken.len());

    let mut buffer = Pool::new(1, 1400).unwrap().take().unwrap();
    buffer.resize(1400);
    buffer[0] = 1;
    let mut socket = udp::Socket::bind("127.0.0.1:0").unwrap();
    let to: std::net::SocketAddr = "127.0.0.1:9".parse().unwrap();
    socket.sender().send_to(udp::Message::segments(buffer, 700), to).unwrap();
    let mut socket = tcp::Stream::connect("127.0.0.1:9").unwrap();
    let mut buffer = socket.sender().wait_buffer(std::time::Duration::MAX).unwrap().unwrap();
    buffer.resize(1400);
    buffer[0] = 1;
    socket.sender().send(buffer).unwrap();
    let chunk = socket.receiver().receive().unwrap().unwrap();
    let mapped = chunk.mapped();
    println!("{:?} {:?} {:?}", mapped.copy_to(&mut [0; 9]), chunk.to_vec().first(), chunk.copied().first());
    drop(chunk);
}
