use std::net::UdpSocket;

use nocopy_lab::patience::PATIENCE;

use crate::memory::pool::Pool;
use crate::memory::send_queue::Position;
use crate::sys::udp_send;
use crate::udp::{Ancillary, Message, Method, Socket};

/// As many as the kernel cuts from one long message, and of the last message of a call all.
#[test]
fn short_messages_of_several_datagrams_share_calls() {
    let most = udp_send::SEGMENTS_MAX;
    let mut peer = Socket::bind("127.0.0.1:0").unwrap();
    let to = peer.local_addr().unwrap();
    let mut socket = Socket::builder().method(Method::Gso).bind("127.0.0.1:0").unwrap();
    let sender = socket.sender();
    for _ in 0..7 {
        sender.send_to(Message::segments(vec![7; 30 * 16], 16), to).unwrap();
    }
    sender.flush().unwrap();
    let (mut bursts, mut left) = (Vec::new(), 7 * 30);
    while left > 0 {
        let mut batch = peer.receiver().receive_timeout(PATIENCE).unwrap();
        bursts.extend(std::iter::from_fn(|| batch.next_burst()).map(|burst| burst.len() / 16));
        left = 7 * 30 - bursts.iter().sum::<usize>();
    }
    assert!(bursts.iter().all(|&count| count <= most && count.is_multiple_of(30)), "{bursts:?}");
    assert_eq!(bursts.iter().max(), Some(&(most / 30 * 30)));
}

/// As many bytes as the kernel cuts, with a short datagram at the end.
#[test]
fn a_full_message_goes_by_one_call() {
    for (bytes, datagram_bytes) in [(65_492, 1472), (65_000, 40_000)] {
        let mut peer = Socket::bind("127.0.0.1:0").unwrap();
        let mut socket = Socket::builder().method(Method::Gso).bind("127.0.0.1:0").unwrap();
        let message = Message::segments(vec![7; bytes], datagram_bytes);
        socket.sender().send_to(message, peer.local_addr().unwrap()).unwrap();
        socket.sender().flush().unwrap();
        let mut batch = peer.receiver().receive_timeout(PATIENCE).unwrap();
        assert_eq!(batch.next_burst().map(|burst| burst.len()), Some(bytes), "{datagram_bytes}");
    }
}

/// They are longer than what the kernel cuts, the last one, too.
#[test]
fn the_longest_datagrams_of_a_message_go_one_by_one() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut socket = Socket::builder().method(Method::Gso).bind("127.0.0.1:0").unwrap();
    let message = Message::segments(vec![7; 65_500 + 65_495], 65_500);
    socket.sender().send_to(message, peer.local_addr().unwrap()).unwrap();
    socket.sender().flush().unwrap();
    let mut received = vec![0; 1 << 16];
    assert_eq!([(); 2].map(|()| peer.recv(&mut received).unwrap()), [65_500, 65_495]);
}

/// By its own call or a shorter way: from its source, in datagrams that are counted, and only those left.
#[test]
fn a_lone_message_of_several_datagrams_is_cut_from_where_it_stopped() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = peer.local_addr().unwrap();
    let mut socket = Socket::builder().method(Method::Gso).bind("0.0.0.0:0").unwrap();
    let sender = socket.sender();
    let source = Some([127, 0, 0, 2].into());
    for round in 0..100 {
        let sent_before = [0, 10, 20][round % 3];
        let ancillary = Ancillary { source, ..Ancillary::default() };
        let ticket = sender.send_with(Message::segments(vec![round as u8; 25], 10), to, ancillary).unwrap();
        if sent_before > 0 {
            sender.queue.advance(Position { ticket: ticket.0, bytes: sent_before }, None);
        }
        sender.flush().unwrap();
        for &expected in &[10, 10, 5][sent_before / 10..] {
            let mut received = [0; 30];
            let (bytes, from) = peer.recv_from(&mut received).unwrap();
            assert_eq!((bytes, Some(from.ip()), received[0]), (expected, source, round as u8));
        }
    }
    assert_eq!(sender.stats().moved, 34 * 3 + 33 * 2 + 33);
    assert_eq!(sender.ledger().bytes(), 34 * 25 + 33 * 15 + 33 * 5);
}

/// A datagram that is shorter than those before it is the last one of its call, wherever messages end.
#[test]
fn datagrams_are_cut_alike_whatever_their_messages_share() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let lengths = [[25, 20, 1], [10, 10, 10], [1290, 30, 5], [7, 0, 40], [2000, 10, 3]];
    for method in [Method::Socket, Method::SendMmsg, Method::Gso, Method::ZeroCopyGso] {
        let mut socket = Socket::builder().method(method).bind("127.0.0.1:0").unwrap();
        for bytes in lengths {
            let each = |bytes: usize| (0..bytes.div_ceil(10).max(1)).map(move |at| (bytes - at * 10).min(10));
            for (number, bytes) in bytes.into_iter().enumerate() {
                let message = Message::segments(vec![number as u8; bytes], 10);
                socket.sender().send_to(message, peer.local_addr().unwrap()).unwrap();
            }
            socket.sender().flush().unwrap();
            for (number, bytes) in bytes.into_iter().enumerate() {
                for expected in each(bytes) {
                    let mut received = [99; 20];
                    assert_eq!(peer.recv(&mut received).unwrap(), expected, "{method}");
                    assert!(received[..expected].iter().all(|&byte| usize::from(byte) == number));
                }
            }
        }
        assert!(socket.sender().drain(PATIENCE).unwrap());
    }
}

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
