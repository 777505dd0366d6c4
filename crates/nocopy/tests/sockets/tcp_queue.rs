//! A stream's queue holds several kinds of data, one after the other: none blocks another, and waiting costs
//! nothing.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nocopy::integration::PublishedMethod;
use nocopy::tcp::{Builder, Published, Sender, Stream};
use nocopy_lab::patience::wait_until;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::common::PATIENCE;
use crate::common::calls::{POLL, SEND, this_thread_id, wait_until_thread_is_in_call};

fn connected_pair(builder: Builder) -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = builder.connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (socket, peer)
}

/// Bytes that the kernel holds and has never sent (`SIOCOUTQNSD`).
#[allow(unsafe_code)]
fn unsent_bytes(sender: &mut Sender) -> i32 {
    const SIOCOUTQNSD: libc::c_ulong = 0x894b; // linux/sockios.h
    let mut bytes = -1;
    // SAFETY: the kernel writes one integer to `bytes`, which outlives the call.
    let result =
        unsafe { libc::ioctl(sender.kernel_socket().unwrap().as_raw_fd(), SIOCOUTQNSD, &raw mut bytes) };
    assert_eq!(result, 0);
    bytes
}

/// The least time for which the kernel holds back bytes after `MSG_MORE` (`TCP_RTO_MIN`).
const HELD_AT_LEAST: Duration = Duration::from_millis(200);

/// Whether published bytes are sent sooner than the kernel would send held-back ones.
fn is_sent_at_once(method: PublishedMethod, data: &Published, behind: &str) -> bool {
    let (mut socket, _peer) = connected_pair(Stream::builder().published_method(method));
    let sender = socket.sender();
    let started = Instant::now();
    sender.send_published(data, 0..20_000).unwrap();
    if behind.contains("buffer") {
        sender.send(Vec::new()).unwrap();
    }
    if behind.contains("range") {
        sender.send_published(data, 5..5).unwrap();
    }
    assert!(sender.try_flush().unwrap());
    wait_until("gone", || unsent_bytes(sender) == 0);
    started.elapsed() < HELD_AT_LEAST
}

#[test]
fn empty_items_do_not_delay_the_bytes_before_them() {
    let data = Published::written(20_000, |memory| memory.fill(7)).unwrap();
    for method in PublishedMethod::ALL {
        for behind in ["an empty buffer", "an empty range", "an empty buffer and range"] {
            // A stall of the machine delays bytes, too: so there are several attempts. Held-back bytes are
            // never sent sooner.
            let leaves = (0..5).any(|_| is_sent_at_once(method, &data, behind));
            assert!(leaves, "{method}: held until the kernel loses patience, for {behind}");
        }
    }
}

#[test]
fn a_buffer_can_be_queued_after_a_file_of_any_length() {
    let (mut socket, _peer) = connected_pair(Stream::builder());
    let sender = socket.sender();
    let file = File::from(memfd_create("sparse", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(3 << 30).unwrap();
    sender.send_file(Arc::new(file), 0..3 << 30).unwrap();
    sender.send(b"the end of it".to_vec()).unwrap();
    // A device has any number of bytes.
    let device = Arc::new(File::open("/dev/zero").unwrap());
    for _ in 0..2 {
        sender.send_file(Arc::clone(&device), 0..u64::MAX).unwrap();
        sender.send(b"more".to_vec()).unwrap();
    }
    assert_eq!(sender.take_unsent().len(), 3);
    assert!(sender.try_flush().unwrap() && sender.stats().bytes == 0, "nothing is left to hand over");
}

#[test]
fn writing_after_published_data_waits_for_a_slow_peer() {
    let (mut socket, mut peer) = connected_pair(Stream::builder());
    let data = Published::written(20_000, |memory| memory.fill(7)).unwrap();
    let writing = this_thread_id();
    let reading = thread::spawn(move || {
        assert!(wait_until_thread_is_in_call(writing, &[POLL, SEND].concat()), "it waits for room");
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        all
    });
    let sender = socket.sender();
    sender.send_published(&data, 0..20_000).unwrap();
    sender.write_all(&vec![8; 64 << 20]).unwrap();
    sender.finish().unwrap();
    let received = reading.join().unwrap();
    assert_eq!(received.len(), 20_000 + (64 << 20));
    assert!(
        received[..20_000].iter().all(|&byte| byte == 7) && received[20_000..].iter().all(|&byte| byte == 8)
    );
}

#[test]
fn infinite_timeouts_do_not_expire() {
    let (mut socket, _peer) = connected_pair(Stream::builder());
    socket.sender().send(b"bytes".to_vec()).unwrap();
    assert!(socket.sender().flush_timeout(Duration::MAX).unwrap());
    assert!(socket.sender().drain(Duration::MAX).unwrap());
    assert!(socket.sender().close(Duration::MAX).unwrap());
}
