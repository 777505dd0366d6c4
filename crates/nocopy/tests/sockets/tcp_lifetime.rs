//! Memory of streams that the kernel still reads when a stream is closed or dropped: its packets are lost,
//! and retransmitted from that memory.

use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::net::Shutdown;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use nocopy::tcp::{Builder, Method, Sender, Stream};
use nocopy::{Buffer, Pool, Port};
use nocopy_lab::patience::wait_until;

use crate::common::calls::{POLL, SLEEP, count_calls};
use crate::common::forks::ForkedChild;
use crate::common::lab;
use crate::common::methods::available_methods;
use crate::common::stream::{
    PATIENCE, assert_same, close_sender, connected_over_lab, drop_all_packets, read_all, read_all_in_thread,
    stream_pattern, wait_for_retransmission,
};
use crate::common::{SECOND, overwrite_free_buffers};

const ZERO_COPY: [Method; 2] = [Method::ZeroCopy, Method::UringZeroCopy];

const PIECES: usize = 24;
const PIECE_BYTES: usize = 5000;

/// As [`common::stream::drop_all_packets`], or leaves the test.
macro_rules! lose {
    ($lab:expr) => {
        match drop_all_packets(&$lab) {
            Some(loss) => loss,
            None => return,
        }
    };
}

/// The send buffer holds all pieces at once.
fn builder_with_pool(method: Method, pool: &Pool) -> Builder {
    Stream::builder().method(method).send_pool(pool).send_buffer(4 << 20)
}

fn small_pool() -> Pool {
    Pool::new(32, 8192).unwrap()
}

/// Memory of the program whose drop is noticed.
struct TrackedMemory {
    bytes: Vec<u8>,
    gone: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for TrackedMemory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for TrackedMemory {
    fn drop(&mut self) {
        self.bytes.fill(0xdd); // what is sent after this is seen, too
        self.gone.fetch_add(1, Relaxed);
    }
}

/// Hands over all pieces, one in three from memory of the program, and returns the stream.
fn send_all_pieces(sender: &mut Sender, gone: &Arc<AtomicUsize>) -> Vec<u8> {
    for number in 0..PIECES {
        let bytes = stream_pattern(number * PIECE_BYTES, PIECE_BYTES);
        let buffer = match number % 3 {
            0 => Buffer::from_owner(TrackedMemory { bytes, gone: Arc::clone(gone) }),
            _ => {
                let mut buffer = sender.buffer().expect("a free buffer");
                buffer.fill(&bytes).unwrap();
                buffer.freeze()
            }
        };
        sender.send(buffer).unwrap();
        if number % 4 == 3 {
            assert!(sender.try_flush().unwrap(), "the send buffer takes all");
        }
    }
    stream_pattern(0, PIECES * PIECE_BYTES)
}

/// Hands over all pieces from the stream's pool.
fn send_pieces_from_pool(sender: &mut Sender) -> Vec<u8> {
    for number in 0..PIECES {
        let mut buffer = sender.buffer().expect("a free buffer");
        buffer.fill(&stream_pattern(number * PIECE_BYTES, PIECE_BYTES)).unwrap();
        sender.send(buffer).unwrap();
    }
    assert!(sender.try_flush().unwrap(), "the send buffer takes all");
    stream_pattern(0, PIECES * PIECE_BYTES)
}

#[test]
fn forced_close_returns_buffers_and_sent_data_arrives() {
    for method in available_methods(ZERO_COPY) {
        let (lab, pool) = (lab!(), small_pool());
        let (mut socket, peer) = connected_over_lab(&lab, builder_with_pool(method, &pool));
        let loss = lose!(lab);
        let sent = send_pieces_from_pool(socket.sender());
        let (is_all, stats) = close_sender(socket, Duration::ZERO);
        assert!(!is_all && stats.get("abandoned_calls").unwrap() > 0, "{method}: {stats}");
        assert_eq!((stats.dropped, stats.get("kept_bytes").unwrap()), (0, 0), "{method}: {stats}");
        assert_eq!(overwrite_free_buffers(&pool), pool.total(), "{method}: every buffer of the pool is home");
        wait_for_retransmission(&loss);
        wait_for_retransmission(&loss);
        drop(loss);
        assert_same(&read_all(&peer), &sent, method);
    }
}

#[test]
fn irreplaceable_memory_returns_after_a_forced_close() {
    for method in available_methods(ZERO_COPY) {
        // Because some memory is the program's, or because the ring of another stream reads the pool.
        let has_rings = [false, true].into_iter().filter(|has_ring| !has_ring || nocopy_lab::has_io_uring());
        for has_ring in has_rings {
            // So many buffers that all pieces are less than a stream's share of them, with two streams.
            let (lab, pool, gone) = (lab!(), Pool::new(64, 8192).unwrap(), Arc::default());
            let (mut socket, peer) = connected_over_lab(&lab, builder_with_pool(method, &pool));
            let other =
                has_ring.then(|| connected_over_lab(&lab, builder_with_pool(Method::UringZeroCopy, &pool)));
            let loss = lose!(lab);
            let sent = if has_ring {
                send_pieces_from_pool(socket.sender())
            } else {
                send_all_pieces(socket.sender(), &gone)
            };
            let away = pool.total() - pool.available();
            let (is_all, stats) = close_sender(socket, Duration::ZERO);
            assert!(!is_all && stats.get("abandoned_calls").unwrap() > 0, "{method}: {stats}");
            assert_eq!(stats.get("kept_bytes").unwrap(), sent.len() as u64, "{method}: {stats}");
            assert_eq!(overwrite_free_buffers(&pool), pool.total() - away, "{method}: they are still read");
            assert_eq!(gone.load(Relaxed), 0, "{method}: as is the program's own memory");
            wait_for_retransmission(&loss);
            drop(loss);
            assert_same(&read_all(&peer), &sent, method);
            let owned = if has_ring { 0 } else { PIECES / 3 };
            wait_until("home", || pool.available() == pool.total() && gone.load(Relaxed) == owned);
            let Some((mut other, other_peer)) = other else { continue };
            let mut buffer = other.sender().buffer().unwrap();
            buffer.fill(&stream_pattern(7, 8000)).unwrap();
            other.sender().send(buffer).unwrap();
            other.sender().finish().unwrap();
            assert_same(&read_all(&other_peer), &stream_pattern(7, 8000), "the other stream");
        }
    }
}

#[test]
fn a_dropped_stream_keeps_its_memory_until_it_is_acknowledged() {
    for method in available_methods(ZERO_COPY) {
        let (lab, pool, gone) = (lab!(), small_pool(), Arc::default());
        let (mut socket, peer) = connected_over_lab(&lab, builder_with_pool(method, &pool));
        let loss = lose!(lab);
        let sent = send_all_pieces(socket.sender(), &gone);
        drop(socket);
        wait_for_retransmission(&loss);
        wait_for_retransmission(&loss);
        assert_eq!(
            overwrite_free_buffers(&pool),
            pool.total() - PIECES * 2 / 3,
            "{method}: all of them are still read"
        );
        assert_eq!(gone.load(Relaxed), 0, "{method}: as is the program's own memory");
        drop(loss);
        assert_same(&read_all(&peer), &sent, method);
        wait_until("home", || pool.available() == pool.total() && gone.load(Relaxed) == PIECES / 3);
    }
}

#[test]
fn a_buffer_returns_only_when_it_is_acknowledged() {
    for method in available_methods(ZERO_COPY) {
        let (lab, pool, gone) = (lab!(), small_pool(), Arc::default());
        let (mut socket, peer) =
            connected_over_lab(&lab, builder_with_pool(method, &pool).return_buffers(true));
        let sender = socket.sender();
        let loss = lose!(lab);
        let sent = send_all_pieces(sender, &gone);
        wait_for_retransmission(&loss);
        assert_eq!(sender.reap(), 0, "{method}");
        assert!(!sender.drain(SECOND / 2).unwrap(), "{method}: nothing was acknowledged");
        assert!(sender.in_flight() > 0 && sender.completed().is_none(), "{method}");
        let handed_over = sender.stats().bytes;
        assert_eq!((sender.ledger().bytes(), handed_over), (0, sent.len() as u64), "{method}");
        drop(loss);
        sender.finish().unwrap();
        assert!(sender.drain(PATIENCE).unwrap(), "{method}");
        let mut back: Vec<_> = std::iter::from_fn(|| sender.completed()).collect();
        back.sort_by_key(|completed| completed.ticket);
        let bytes: Vec<u8> = back.iter().flat_map(|completed| completed.item.iter().copied()).collect();
        assert_same(&bytes, &sent, "what came back");
        drop(back);
        assert_eq!((sender.in_flight(), gone.load(Relaxed)), (0, PIECES / 3), "{method}");
        assert_eq!(
            (sender.ledger().bytes(), pool.available()),
            (sent.len() as u64, pool.total()),
            "{method}"
        );
        assert_same(&read_all(&peer), &sent, method);
    }
}

#[test]
fn frames_are_held_until_acknowledged() {
    for method in available_methods(ZERO_COPY) {
        for by_force in [false, true] {
            let (lab, pool) = (lab!(), small_pool());
            let (mut port, _other) = Port::memory_pair().unwrap();
            let (mut socket, peer) = connected_over_lab(&lab, builder_with_pool(method, &pool));
            let loss = lose!(lab);
            let sent = stream_pattern(0, 10 * 1500);
            for bytes in sent.chunks(1500) {
                let mut frame = port.sender().buffer().expect("a free frame");
                frame.fill(bytes).unwrap();
                socket.sender().send(frame).unwrap();
            }
            assert!(socket.sender().try_flush().unwrap());
            if by_force {
                let kept_bytes = close_sender(socket, Duration::ZERO).1.get("kept_bytes").unwrap();
                assert_eq!(kept_bytes, sent.len() as u64, "{method}: frames have no others in their place");
            } else {
                drop(socket);
            }
            wait_for_retransmission(&loss);
            // A frame's owner may write into it: none of these may be free.
            let mut free: Vec<_> = std::iter::from_fn(|| port.sender().buffer()).collect();
            for frame in &mut free {
                frame.fill(&[0xee; 1500]).unwrap();
            }
            drop(free);
            assert_eq!(port.balance().in_use, 10, "{method}: {}", port.balance());
            drop(loss);
            assert_same(&read_all(&peer), &sent, method);
            wait_until("home", || port.balance().in_use == 0);
            assert!(port.balance().is_balanced(), "{}", port.balance());
        }
    }
}

#[test]
fn closing_with_unsent_data_resets_the_connection() {
    for method in available_methods(Method::ALL) {
        let (lab, pool) = (lab!(), small_pool());
        let (mut socket, mut peer) =
            connected_over_lab(&lab, Stream::builder().method(method).send_pool(&pool).send_buffer(32 << 10));
        let bytes = stream_pattern(0, 8 << 20);
        socket.sender().send(bytes.clone()).unwrap();
        // The peer reads only after this, so the call must return by itself.
        let (is_all, stats) = close_sender(socket, SECOND / 5);
        assert!(!is_all && stats.dropped == 1, "{method}: {stats}");
        let mut part = Vec::new();
        let error = peer.read_to_end(&mut part).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{method}");
        assert!(bytes.starts_with(&part), "{method}: as far as it came, it is what was sent");
    }
}

#[test]
fn each_side_ends_its_own_direction_while_packets_are_lost() {
    for method in available_methods(Method::ALL) {
        for ours_first in [true, false] {
            let (lab, pool, gone) = (lab!(), small_pool(), Arc::default());
            let (socket, mut peer) = connected_over_lab(&lab, builder_with_pool(method, &pool));
            let (mut there, mut sender) = socket.split();
            let loss = lose!(lab);
            let sent = send_all_pieces(&mut sender, &gone);
            if ours_first {
                sender.finish().unwrap();
            }
            peer.write_all(b"from the other side").unwrap();
            peer.shutdown(Shutdown::Write).unwrap();
            let mut received = Vec::new();
            there.read_to_end(&mut received).unwrap();
            assert_eq!(received, b"from the other side");
            sender.finish().unwrap();
            wait_for_retransmission(&loss);
            // Both have ended, so every poll returns at once: that must not become a loop without a pause.
            let (drained, calls) = count_calls(|| sender.drain(SECOND / 2).unwrap());
            assert_eq!(drained, method == Method::Plain, "{method}");
            let (polls, pauses) = (calls.count_of(POLL), calls.count_of(SLEEP));
            assert!(polls <= pauses + 40, "{method}: {polls} waits, and {pauses} pauses");
            assert!(drained || polls == 0 || pauses > 0, "{method}: it waited in another way");
            // Each pause lasts a millisecond, followed by six calls: some 2500.
            assert!(calls.total() <= 5000, "{method}: {} system calls", calls.total());
            let reader = read_all_in_thread(peer);
            drop(loss);
            assert!(sender.drain(PATIENCE).unwrap(), "{method}");
            assert_same(&reader.join().unwrap(), &sent, method);
            drop((sender, there));
            assert_eq!((pool.available(), gone.load(Relaxed)), (pool.total(), PIECES / 3), "{method}");
        }
    }
}

#[test]
fn a_full_ring_neither_blocks_nor_spins() {
    const PIECES: usize = 1000;
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let (lab, pool) = (lab!(), Pool::new(4, 4096).unwrap());
    let (mut socket, peer) = connected_over_lab(&lab, builder_with_pool(Method::UringZeroCopy, &pool));
    let sender = socket.sender();
    let loss = lose!(lab);
    let sent = stream_pattern(0, PIECES * 64);
    let (_, calls) = count_calls(|| {
        for bytes in sent.chunks(64) {
            sender.send(bytes.to_vec()).unwrap();
            let is_flushed = sender.try_flush().unwrap();
            assert!(is_flushed, "the send buffer has room: {} in flight", sender.in_flight());
        }
    });
    assert_eq!(calls.count_of(POLL) + calls.count_of(SLEEP), 0, "it waits for places");
    assert!(calls.total() <= 6 * PIECES as u64, "{} system calls", calls.total());
    let (drained, calls) = count_calls(|| sender.drain(SECOND / 2).unwrap());
    assert!(!drained);
    // Five waits with their calls, and more after a stop of the process.
    assert!(calls.total() <= 200, "{} system calls, {} of them waits", calls.total(), calls.count_of(POLL));
    let reader = read_all_in_thread(peer);
    drop(loss);
    sender.finish().unwrap();
    assert!(sender.drain(PATIENCE).unwrap());
    assert_same(&reader.join().unwrap(), &sent, "the stream");
    let (ledger, stats) = (sender.ledger(), sender.stats());
    assert_eq!(ledger.bytes(), sent.len() as u64, "{ledger}");
    assert!(stats.get("no_buffers_bytes").unwrap() > 0, "{stats}");
    assert_eq!(
        ledger.bytes_of(nocopy::Evidence::Copied(nocopy::Cause::NoBuffers)),
        stats.get("no_buffers_bytes").unwrap(),
        "{ledger}"
    );
}

/// The longest time a child may live.
const LONGEST: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 120, tv_nsec: 0 };

/// A child between fork and exec, with everything that a fork copies.
#[test]
#[allow(unsafe_code)]
fn a_forked_child_does_not_share_memory_that_is_sent() {
    for method in available_methods(ZERO_COPY) {
        let (lab, pool, gone) = (lab!(), small_pool(), Arc::default());
        let (mut socket, peer) = connected_over_lab(&lab, builder_with_pool(method, &pool));
        // Some data is in flight as long as no one reads. (Losing packets would not end: the child has that
        // descriptor, too.)
        socket2::SockRef::from(&peer).set_recv_buffer_size(4096).unwrap();
        let sender = socket.sender();
        let sent = send_all_pieces(sender, &gone);
        let ((told, tell), (gate, open)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let mut child = Command::new("true");
        let forked = move || {
            rustix::io::write(&tell, &std::process::id().to_ne_bytes())?;
            // Not for ever, in case the test fails: the child itself has the other end of the gate.
            let mut opened = [rustix::event::PollFd::new(&gate, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut opened, Some(&LONGEST))?;
            Ok(())
        };
        // SAFETY: only system calls.
        unsafe { child.pre_exec(forked) };
        let child = thread::spawn(move || child.status().unwrap());
        let mut id = [0; 4];
        rustix::io::read(&told, &mut id).unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", u32::from_ne_bytes(id))).unwrap();
        let free = pool.take().unwrap();
        let is_mapped = |line: &str| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let place = |text| usize::from_str_radix(text, 16).unwrap();
            (place(start)..place(end)).contains(&(free.as_ptr() as usize))
        };
        assert!(!maps.lines().any(is_mapped), "the child has no such memory");
        drop(free);
        assert!(sender.in_flight() > 0, "{method}");
        let reader = read_all_in_thread(peer);
        assert!(sender.drain(PATIENCE).unwrap());
        // The same buffers again, while the child exists.
        let again = stream_pattern(11, 20 * 8000);
        for bytes in again.chunks(8000) {
            let mut buffer = sender.wait_buffer(PATIENCE).unwrap().expect("a buffer");
            buffer.fill(bytes).unwrap();
            sender.send(buffer).unwrap();
        }
        sender.finish().unwrap();
        assert_same(&reader.join().unwrap(), &[sent, again].concat(), method);
        rustix::io::write(&open, &[1]).unwrap();
        assert!(child.join().unwrap().success());
    }
}

/// Memory that the program continues to write, beside the bytes it sends.
struct SharedPages {
    pages: *mut [u8],
    sent_bytes: usize,
}

// SAFETY: the bytes that it gives out are not written to.
#[allow(unsafe_code)]
unsafe impl Send for SharedPages {}

impl AsRef<[u8]> for SharedPages {
    #[allow(unsafe_code)]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: leaked, so valid for good; only bytes behind these are written to by this process.
        unsafe { std::slice::from_raw_parts(self.pages.cast::<u8>(), self.sent_bytes) }
    }
}

/// Also if the child drops the stream, or writes to its copy of the memory.
#[test]
#[allow(unsafe_code)]
fn a_forked_child_changes_nothing_for_its_parents_stream() {
    for method in available_methods(ZERO_COPY) {
        let (lab, pool, gone) = (lab!(), small_pool(), Arc::default());
        let (mut socket, peer) = connected_over_lab(&lab, builder_with_pool(method, &pool));
        let loss = lose!(lab);
        let mut sent = send_all_pieces(socket.sender(), &gone);
        let pages = Box::into_raw(stream_pattern(sent.len(), 4 * 4096).into_boxed_slice());
        let sent_bytes = 4 * 4096 - 64;
        sent.extend(stream_pattern(sent.len(), sent_bytes));
        socket.sender().send(Buffer::from_owner(SharedPages { pages, sent_bytes })).unwrap();
        assert!(socket.sender().try_flush().unwrap(), "{method}");
        wait_for_retransmission(&loss);
        let (mut parents, (mut gate, open)) = (ManuallyDrop::new(socket), std::io::pipe().unwrap());
        let child = ForkedChild::start(|| {
            gate.read_exact(&mut [0]).unwrap();
            // SAFETY: the child's copy, which nothing in it reads any more.
            unsafe { pages.cast::<u8>().write_bytes(0xee, 4 * 4096) };
            // SAFETY: the child ends without looking at it again.
            unsafe { ManuallyDrop::drop(&mut parents) };
        });
        // First the parent gets a copy of that page, and then the child may write.
        // SAFETY: leaked memory, behind the bytes that are sent.
        unsafe { pages.cast::<u8>().add(sent_bytes).write_bytes(0x11, 64) };
        rustix::io::write(&open, &[1]).unwrap();
        child.join();
        assert_eq!(gone.load(Relaxed), 0, "{method}: in the parent nothing was dropped");
        wait_for_retransmission(&loss);
        let mut socket = ManuallyDrop::into_inner(parents);
        let reader = read_all_in_thread(peer);
        drop(loss);
        let more = stream_pattern(sent.len(), 5000);
        socket.sender().send(more.clone()).unwrap();
        socket.sender().finish().unwrap();
        assert_same(&reader.join().unwrap(), &[sent, more].concat(), method);
        assert!(socket.sender().drain(PATIENCE).unwrap(), "{method}");
        assert_eq!(socket.sender().stats().faults, 0, "{method}");
        drop(socket);
        assert_eq!((pool.available(), gone.load(Relaxed)), (pool.total(), PIECES / 3), "{method}");
    }
}
