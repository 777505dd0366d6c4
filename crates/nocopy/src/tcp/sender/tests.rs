use std::net::TcpListener;

use nocopy_lab::patience::wait_until;

use super::ends::reset;
use crate::memory::pool::Pool;
use crate::tcp::Method;
use crate::tcp::Stream;

/// The peer does not read, so most of the data stays in the kernel.
#[test]
fn a_reset_brings_back_what_a_silent_peer_does_not_acknowledge() {
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
        reset(sender.queue.socket());
        wait_until("all of it is free", || {
            sender.reap();
            sender.in_flight() == 0 && sender.queue.cache().available() == pool.total()
        });
    }
}
