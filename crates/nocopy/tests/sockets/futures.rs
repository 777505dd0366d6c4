//! Sockets and ports as streams and sinks.
#![cfg(feature = "futures")]

use futures_util::{SinkExt, StreamExt};
use nocopy::udp::{AsyncReceiver, Message, Method, OwnedDatagram, Socket};
use nocopy::{Port, tcp};

use crate::common::PATIENCE;

async fn within_patience<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

#[tokio::test]
async fn datagrams_of_a_burst_are_items_of_a_stream() {
    let receiver = Socket::builder().receive_buffer(4 << 20).bind("127.0.0.1:0").unwrap();
    let to = receiver.local_addr().unwrap();
    let mut receiver = receiver.split().0.into_async().unwrap();
    let mut sender = Socket::bind("127.0.0.1:0").unwrap().split().1.into_async().unwrap();
    // More than the queue holds.
    for number in 0..1500_u32 {
        within_patience(sender.feed((number.to_be_bytes().to_vec().into(), to))).await.unwrap();
        if number % 100 == 99 {
            within_patience(SinkExt::flush(&mut sender)).await.unwrap();
            for expected in number - 99..=number {
                let datagram = within_patience(receiver.next()).await.expect("no end").unwrap();
                assert_eq!(datagram[..], expected.to_be_bytes());
            }
        }
    }
    within_patience(SinkExt::close(&mut sender)).await.unwrap();
    assert_eq!((sender.in_flight(), sender.stats().moved), (0, 1500));
}

async fn next_of_batch(receiver: &mut AsyncReceiver) -> OwnedDatagram {
    loop {
        if let Some(datagram) = receiver.try_receive().unwrap().next() {
            return datagram.take();
        }
        tokio::task::yield_now().await;
    }
}

/// The kernel coalesces a burst; what one of them leaves is taken by the next.
#[tokio::test]
async fn batch_and_stream_share_the_datagrams_of_a_burst() {
    let receiver = Socket::bind("127.0.0.1:0").unwrap();
    let to = receiver.local_addr().unwrap();
    let mut receiver = receiver.split().0.into_async().unwrap();
    let mut senders = [(); 2].map(|()| Socket::builder().method(Method::Gso).bind("127.0.0.1:0").unwrap());
    // A bit for each of six datagrams: whether it is taken from the stream.
    for from_stream in 0..1_u32 << 6 {
        let mut expected = Vec::new();
        for (number, socket) in (1..).zip(&mut senders) {
            let bytes: Vec<u8> = (0..2500).map(|place| (place / 7 * number + from_stream) as u8).collect();
            let source = socket.local_addr().unwrap();
            expected.extend(bytes.chunks(1000).map(|bytes| (source, bytes.to_vec())));
            socket.sender().send_to(Message::segments(bytes, 1000), to).unwrap();
            socket.sender().flush().unwrap();
        }
        for (number, (source, bytes)) in expected.into_iter().enumerate() {
            let datagram = match from_stream >> number & 1 {
                0 => within_patience(next_of_batch(&mut receiver)).await,
                _ => within_patience(receiver.next()).await.expect("no end").unwrap(),
            };
            assert!(datagram[..] == bytes, "{number} of {from_stream:#b}: {} bytes", datagram.len());
            assert_eq!((datagram.source(), datagram.metadata().segment_bytes), (source, 1000));
        }
    }
    assert!(receiver.try_receive().unwrap().next().is_none(), "six of each burst");
}

#[tokio::test]
async fn a_full_queue_makes_a_sink_wait_and_loses_nothing() {
    let receiver = Socket::builder().receive_buffer(4 << 20).bind("127.0.0.1:0").unwrap();
    let to = receiver.local_addr().unwrap();
    let mut receiver = receiver.split().0.into_async().unwrap();
    let mut sender = Socket::bind("127.0.0.1:0").unwrap().split().1.into_async().unwrap();
    for number in 0..1024_u32 {
        sender.send_to(number.to_be_bytes().to_vec(), to).unwrap();
    }
    assert!(sender.send_to(vec![0], to).is_err(), "the queue is full");
    within_patience(sender.feed((1024_u32.to_be_bytes().to_vec().into(), to))).await.unwrap();
    within_patience(SinkExt::flush(&mut sender)).await.unwrap();
    for expected in 0..=1024_u32 {
        let datagram = within_patience(receiver.next()).await.expect("no end").unwrap();
        assert_eq!(datagram[..], expected.to_be_bytes());
    }
}

#[tokio::test]
async fn a_stream_of_chunks_ends_with_the_peers() {
    let listener = tcp::Listener::bind("127.0.0.1:0").unwrap().into_async().unwrap();
    let client = tcp::AsyncStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut receiver, _sender) = listener.accept().await.unwrap().0.into_split();
    let (_, mut sender) = client.into_split();
    sender.send(vec![7; 100_000]).unwrap();
    within_patience(sender.flush()).await.unwrap();
    within_patience(sender.close()).await.unwrap();
    let mut bytes = 0;
    while let Some(chunk) = within_patience(receiver.next()).await {
        bytes += chunk.unwrap().len();
    }
    assert_eq!(bytes, 100_000);
    assert!(within_patience(receiver.next()).await.is_none(), "the end stays the end");
}

#[tokio::test]
async fn packets_are_frames_of_a_stream() {
    let (mut left, right) = Port::memory_pair().unwrap();
    let mut receiver = right.split().0.into_async().unwrap();
    for round in 0..3_u8 {
        for number in 0..10_u8 {
            left.sender().send_copy(&[round, number]).unwrap();
        }
        left.sender().flush().unwrap();
        for number in 0..10_u8 {
            let frame = within_patience(receiver.next()).await.expect("no end").unwrap();
            assert_eq!(frame[..], [round, number]);
        }
    }
}
