use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use nocopy_lab::patience::{PATIENCE, wait_until};

use super::ends::reset_connection;
use super::flush::HEAD_BYTES_MAX;
use crate::memory::pool::Pool;
use crate::memory::send_queue::Position;
use crate::sys::tcp_receive::tcp_info;
use crate::tcp::Method;
use crate::tcp::{Published, Stream};

/// The peer does not read, so most of the data stays in the kernel.
#[test]
fn a_reset_returns_memory_unacknowledged_by_a_silent_peer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let by_ring = nocopy_lab::io_uring_or_skip().then_some(Method::UringZeroCopy);
    for method in [Method::ZeroCopy].into_iter().chain(by_ring) {
        let pool = Pool::new(64, 64 << 10).unwrap();
        let builder = Stream::builder().send_pool(&pool).method(method);
        let mut stream = builder.connect(listener.local_addr().unwrap()).unwrap();
        let _peer = listener.accept().unwrap().0;
        let sender = stream.sender();
        // More than the peer's kernel buffers.
        while let Some(mut buffer) = pool.take() {
            buffer.resize(buffer.capacity());
            sender.send(buffer).unwrap();
        }
        assert!(!sender.try_flush().unwrap() && sender.in_flight() > 0);
        drop(sender.take_unsent());
        reset_connection(sender.queue.socket());
        wait_until("all of it is free", || {
            sender.reap();
            sender.in_flight() == 0 && sender.queue.cache().available() == pool.total()
        });
    }
}

#[test]
fn a_short_head_shares_a_segment_with_referenced_bytes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let body = Published::written(1000, |memory| memory.fill(7)).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; 1000]).unwrap();
    let file = Arc::new(file);
    for (head, behind, segments) in [(132, 1000, 1), (HEAD_BYTES_MAX + 1, 1000, 2), (132, 0, 1)] {
        for is_file in [false, true] {
            let mut stream = Stream::connect(listener.local_addr().unwrap()).unwrap();
            let mut peer = listener.accept().unwrap().0;
            let sender = stream.sender();
            sender.send(vec![1; head]).unwrap();
            let queued = match is_file {
                false => sender.send_published(&body, 0..behind),
                true => sender.send_file(Arc::clone(&file), 0..behind),
            };
            queued.unwrap();
            sender.flush().unwrap();
            let sent = tcp_info(&sender.queue.socket()).unwrap().tcpi_data_segs_out;
            assert_eq!(sent, segments, "{head} B in front of {behind} B");
            let mut received = vec![0; head + behind as usize];
            peer.read_exact(&mut received).unwrap();
            assert!(
                received[..head].iter().all(|&byte| byte == 1)
                    && received[head..].iter().all(|&byte| byte == 7)
            );
        }
    }
}

/// A position behind the fourth GiB is not cut to 32 bits. What is before counts as handed over.
#[test]
fn the_end_of_a_buffer_of_5_gib_is_sent() {
    const BYTES: usize = 5 << 30;
    const REST: usize = 300_000;
    let Ok(pool) = Pool::new(1, BYTES) else { return }; // the machine counts pages that are not touched
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for method in [Method::Plain, Method::ZeroCopy] {
        let mut stream = Stream::builder().method(method).connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        let sender = stream.sender();
        let mut buffer = pool.take().expect("it has returned");
        buffer.resize(BYTES);
        buffer[BYTES - REST..].fill(7);
        let ticket = sender.send(buffer).unwrap();
        assert_eq!(sender.queued_bytes.total(), BYTES as u64);
        sender.queue.advance(Position { ticket: ticket.0, bytes: BYTES - REST }, None);
        sender.queued_bytes.buffered -= (BYTES - REST) as u64;
        let reading = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            peer.read_to_end(&mut bytes).unwrap();
            bytes
        });
        sender.finish().unwrap();
        let bytes = reading.join().unwrap();
        assert!(bytes.len() == REST && bytes.iter().all(|&byte| byte == 7), "{method}: {}", bytes.len());
        assert!(sender.drain(PATIENCE).unwrap() && pool.available() == 1);
    }
}
