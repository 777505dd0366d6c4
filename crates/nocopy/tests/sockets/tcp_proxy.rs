//! A proxy moves streams between sockets: both ways, to their ends, and never more than the slower side accepts.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nocopy::tcp::{Proxied, ProxyError, proxy};
use nocopy_lab::patience::wait_until;

use crate::common::PATIENCE;
use crate::common::calls::{Calls, POLL};
use crate::common::errors::{Refused, Sentences, where_refused};
use crate::common::stream::read_some;

const MIB: usize = 1 << 20;

/// The most system calls while there is nothing to do: for the last bytes, and for stops of the whole process, which interrupt
/// poll(2). A proxy that spins makes hundreds even if it pauses for a millisecond each time.
const IDLE_CALLS_MAX: u64 = 60;

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let there = listener.accept().unwrap().0;
    for socket in [&here, &there] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (here, there)
}

type Ended = Result<Proxied, ProxyError>;

fn peers() -> (TcpStream, TcpStream, JoinHandle<Ended>) {
    let ((left, first), (second, right)) = (pair(), pair());
    let running = thread::spawn(move || proxy(&first, &second));
    (left, right, running)
}

/// As [`peers`], with the proxy's system calls counted.
fn counted_peers() -> (TcpStream, TcpStream, JoinHandle<Ended>, Calls) {
    let ((left, first), (second, right)) = (pair(), pair());
    let calls = Calls::none();
    let counting = calls.clone();
    let running = thread::spawn(move || {
        counting.count_this_thread();
        proxy(&first, &second)
    });
    (left, right, running, calls)
}

/// Waits until the proxy has made no system call in two consecutive intervals: a stop of the whole process affects only one of them.
/// A proxy that spins never becomes idle.
fn wait_until_idle(calls: &Calls) {
    wait_until("idle", || {
        let before = calls.total();
        let is_as_before = || {
            thread::sleep(Duration::from_millis(50));
            calls.total() == before
        };
        before > 0 && is_as_before() && is_as_before()
    });
}

/// The proxy's calls during a third of a second.
fn calls_of_an_idle_time(calls: &Calls) -> u64 {
    let before = calls.total();
    thread::sleep(Duration::from_millis(300));
    calls.total() - before
}

/// A stream of numbers that depend on their position, and the check of it.
struct Numbers {
    state: u64,
    left: usize,
}

impl Numbers {
    fn new(seed: u64, bytes: usize) -> Self {
        Self { state: seed, left: bytes / 8 }
    }

    fn fill(&mut self, buffer: &mut Vec<u8>) -> bool {
        buffer.clear();
        for _ in 0..self.left.min(8000) {
            self.state = self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            buffer.extend_from_slice(&self.state.to_le_bytes());
        }
        self.left -= buffer.len() / 8;
        !buffer.is_empty()
    }
}

/// Writes all numbers, then ends its half.
fn write(mut socket: &TcpStream, seed: u64, bytes: usize) {
    let (mut numbers, mut buffer) = (Numbers::new(seed, bytes), Vec::new());
    while numbers.fill(&mut buffer) {
        socket.write_all(&buffer).unwrap();
    }
    socket.shutdown(Shutdown::Write).unwrap();
}

/// Reads exactly these numbers and the end of the stream.
fn check(mut socket: &TcpStream, seed: u64, bytes: usize) {
    let (mut numbers, mut expected) = (Numbers::new(seed, bytes), Vec::new());
    let mut received = Vec::new();
    while numbers.fill(&mut expected) {
        received.resize(expected.len(), 0);
        socket.read_exact(&mut received).unwrap();
        assert!(received == expected, "other bytes before the last {}", numbers.left * 8);
    }
    assert_eq!(read_some(socket, &mut [0]).unwrap(), 0, "more than was sent");
}

fn ends(running: JoinHandle<Ended>) -> Ended {
    running.join().unwrap()
}

#[test]
fn both_ways_at_once_arrive_whole() {
    let (left, right, running) = peers();
    thread::scope(|scope| {
        scope.spawn(|| write(&left, 1, 64 * MIB));
        scope.spawn(|| write(&right, 2, 16 * MIB));
        scope.spawn(|| check(&left, 2, 16 * MIB));
        check(&right, 1, 64 * MIB);
    });
    let proxied = ends(running).unwrap();
    assert_eq!(proxied, Proxied { there: 64 * MIB as u64, back: 16 * MIB as u64 });
}

#[test]
fn a_way_that_has_ended_lets_the_other_go_on_without_spinning() {
    let (left, right, running, calls) = counted_peers();
    write(&left, 3, 8000);
    check(&right, 3, 8000);
    // One direction is closed, and the other idle.
    let idle = calls_of_an_idle_time(&calls);
    assert!(idle <= IDLE_CALLS_MAX, "{idle} system calls while nothing came");
    let before = calls.of(POLL);
    for _ in 0..10 {
        (&right).write_all(b"answer").unwrap();
        let mut answer = [0; 6];
        (&left).read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
    }
    drop(right);
    assert_eq!(read_some(&left, &mut [0]).unwrap(), 0);
    assert_eq!(ends(running).unwrap(), Proxied { there: 8000, back: 60 });
    // Each answer ends one wait, and the end of the stream another.
    let polls = calls.of(POLL) - before;
    assert!(polls <= 11 + IDLE_CALLS_MAX, "{polls} waits for ten answers");
}

#[test]
fn a_target_that_reads_nothing_stops_the_source() {
    const OFFERED: usize = 256 * MIB;
    let (left, right, running, calls) = counted_peers();
    left.set_nonblocking(true).unwrap();
    let mut taken = 0;
    let mut fill = || {
        let before = taken;
        while taken < OFFERED {
            match (&left).write(&[7; 65_536]) {
                Ok(bytes) => taken += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        taken > before
    };
    // Both have stopped: the source accepts no more, and the proxy does nothing.
    loop {
        fill();
        wait_until_idle(&calls);
        if !fill() {
            break;
        }
    }
    // Two sockets' buffers on either side, and a pipe.
    assert!(taken < OFFERED / 2, "{taken} bytes went to a peer that reads nothing");
    // After them the source has ended, which poll(2) would report again and again.
    left.shutdown(Shutdown::Write).unwrap();
    let idle = calls_of_an_idle_time(&calls);
    assert!(idle <= IDLE_CALLS_MAX, "{idle} system calls while nothing could go");
    let received = io::copy(&mut &right, &mut io::sink()).unwrap();
    drop((left, right));
    assert_eq!((ends(running).unwrap().there, received), (taken as u64, taken as u64));
}

fn reset(socket: TcpStream) {
    socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
    drop(socket);
}

fn is_reset(socket: &TcpStream) -> bool {
    let mut buffer = vec![0; 65_536];
    loop {
        match read_some(socket, &mut buffer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn a_reset_on_one_side_is_seen_on_the_other() {
    for is_first in [true, false] {
        for after_end in [false, true] {
            let (left, right, running) = peers();
            let (dying, other) = if is_first { (left, right) } else { (right, left) };
            (&dying).write_all(b"hello").unwrap();
            let mut hello = [0; 5];
            (&other).read_exact(&mut hello).unwrap();
            if after_end {
                // Its own direction ends in order; the other is silent when it is reset.
                dying.shutdown(Shutdown::Write).unwrap();
                assert_eq!(read_some(&other, &mut [0]).unwrap(), 0);
            }
            reset(dying);
            let error = ends(running).unwrap_err();
            let (is_first_broken, proxied) = match &error {
                ProxyError::First { proxied, .. } => (true, proxied),
                ProxyError::Second { proxied, .. } => (false, proxied),
                _ => panic!("{error}"),
            };
            assert_eq!((is_first_broken, proxied.there + proxied.back), (is_first, 5), "{error}");
            let side = if is_first { "first" } else { "second" };
            let Proxied { there, back, .. } = proxied;
            let mut sentences = Sentences::default();
            let expected = format!(
                "proxy: the {side} connection failed (…; {there} bytes had gone from the first to the second, and {back} from the second to the first; both were reset; connect again"
            );
            sentences.says(Err::<(), _>(&error), &expected);
            sentences.end();
            if after_end {
                // The end of the stream was read already; writing finds the connection closed.
                wait_until("reset on the other side", || (&other).write_all(b"?").is_err());
            } else {
                assert!(is_reset(&other), "{error}: an orderly end, as if this was all");
            }
        }
    }
}

#[test]
fn a_reset_while_bytes_flow_ends_the_proxy_without_a_signal() {
    use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed};
    let raised = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGPIPE, Arc::clone(&raised)).unwrap();
    let (left, right, running) = peers();
    let writer = thread::spawn(move || while (&left).write_all(&[1; 65_536]).is_ok() {});
    (&right).read_exact(&mut vec![0; MIB]).unwrap();
    reset(right);
    let error = ends(running).unwrap_err();
    assert!(matches!(error, ProxyError::Second { .. }), "{error}");
    writer.join().unwrap();
    // std::net writes without the signal, too.
    assert!(!raised.load(Relaxed), "SIGPIPE");
}

#[test]
fn what_is_not_begun_leaves_both_connections() {
    let ((mut left, first), (second, mut right)) = (pair(), pair());
    let refused = [Refused::always(libc::SYS_pipe2, libc::EMFILE)];
    let (error, mut first, mut second) =
        where_refused(&refused, move || (proxy(&first, &second).unwrap_err(), first, second));
    assert!(matches!(error, ProxyError::NotBegun(_)), "{error}");
    for (socket, peer) in [(&mut first, &mut left), (&mut second, &mut right)] {
        socket.write_all(b"hello").unwrap();
        peer.read_exact(&mut [0; 5]).unwrap();
    }
}

#[test]
fn sockets_are_left_as_they_were() {
    let ((left, first), (second, right)) = (pair(), pair());
    second.set_nonblocking(true).unwrap();
    drop((left, right));
    assert_eq!(proxy(&first, &second).unwrap(), Proxied::default());
    let is_nonblocking =
        |socket: &TcpStream| rustix::fs::fcntl_getfl(socket).unwrap().contains(rustix::fs::OFlags::NONBLOCK);
    assert!(!is_nonblocking(&first) && is_nonblocking(&second));
}
