use std::net::UdpSocket;

use nocopy_lab::patience::PATIENCE;

use crate::memory::pool::Pool;
use crate::memory::send_queue::Position;
use crate::udp::{Message, Method, Socket};

/// Neither a position behind the fourth GiB nor a number of more than 2^32 datagrams is cut to 32 bits. What
/// is before counts as handed over.
#[test]
fn the_last_datagrams_of_a_buffer_of_5_gib_are_sent() {
    const BYTES: usize = 5 << 30;
    let Ok(pool) = Pool::new(1, BYTES) else { return }; // the machine counts pages that are not touched
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    for method in [Method::Socket, Method::SendMmsg, Method::Gso, Method::ZeroCopyGso] {
        for (datagram_bytes, lengths) in [(1000, &[1000, 1000, 1000, BYTES % 1000][..]), (1, &[1; 5])] {
            let rest: usize = lengths.iter().sum();
            let builder = Socket::builder().method(method);
            let mut socket = builder.bind("127.0.0.1:0").unwrap();
            let sender = socket.sender();
            let mut buffer = pool.take().expect("it has returned");
            buffer.resize(BYTES);
            buffer[BYTES - rest..].fill(7);
            let message = Message::segments(buffer, datagram_bytes);
            assert_eq!(message.datagrams, BYTES.div_ceil(datagram_bytes));
            let ticket = sender.send_to(message, peer.local_addr().unwrap()).unwrap();
            sender.queue.advance(Position { ticket: ticket.0, bytes: BYTES - rest }, None);
            sender.flush().unwrap();
            let mut bytes = [0; 1001];
            for &expected in lengths {
                assert_eq!(peer.recv(&mut bytes).unwrap(), expected, "{method}");
                assert!(bytes[..expected].iter().all(|&byte| byte == 7));
            }
            assert_eq!(sender.stats().moved, lengths.len() as u64);
            assert!(sender.drain(PATIENCE).unwrap() && pool.available() == 1);
        }
    }
}
