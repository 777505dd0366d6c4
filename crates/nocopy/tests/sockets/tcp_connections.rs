//! Ten thousand connections at a time, which use most of a process's descriptors: `cargo xtask test` runs
//! each test in a process of its own.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;

use nocopy::Pool;
use nocopy::tcp::Stream;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common::PATIENCE;
use crate::common::stream::read_some;

const CONNECTIONS: usize = 10_000;
/// Descriptors that each end may use for other things, such as rings.
const OTHER_DESCRIPTORS: u64 = 150;
const ROUNDS: usize = 3;
const MESSAGE_BYTES: usize = 12_000;

fn numbered_message(number: usize, round: usize) -> Vec<u8> {
    (0..MESSAGE_BYTES).map(|place| (number * 31 + round * 7 + place) as u8).collect()
}

/// Opens all connections, and then reads the message of each, in every round.
fn run_clients(to: SocketAddr, connections: usize) {
    // SAFETY: descriptors of its own from here on, so the limit holds for each end apart; none is shared with
    // other threads.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }.unwrap();
    let mut streams: Vec<TcpStream> =
        (0..connections).map(|_| TcpStream::connect(to).expect("connected")).collect();
    let mut bytes = vec![0; MESSAGE_BYTES];
    for round in 0..ROUNDS {
        for (number, stream) in streams.iter_mut().enumerate() {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.read_exact(&mut bytes).unwrap();
            assert!(bytes == numbered_message(number, round), "connection {number}, round {round}");
            stream.write_all(&(number as u32).to_be_bytes()).unwrap();
        }
    }
    for stream in &mut streams {
        assert_eq!(read_some(stream, &mut bytes).unwrap(), 0, "the end");
    }
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn count_io_uring_descriptors() -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("[io_uring]")).count()
}

#[test]
fn ten_thousand_streams_share_a_pool_without_starvation() {
    let limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.map_or(u64::MAX, |maximum| maximum.saturating_sub(OTHER_DESCRIPTORS));
    let connections = CONNECTIONS.min(allowed as usize);
    let is_all = connections == CONNECTIONS;
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let pool = Pool::new(64, 16 << 10).unwrap();
    let listener = Stream::builder().send_pool(&pool).listen("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let (tell, told) = mpsc::channel();
    let clients = thread::spawn(move || {
        run_clients(to, connections);
        tell.send(()).unwrap();
    });
    let before = resident_bytes();
    // In the order in which they were opened.
    let mut sockets: Vec<Stream> = (0..connections).map(|_| listener.accept().unwrap().0).collect();
    for round in 0..ROUNDS {
        for (number, socket) in sockets.iter_mut().enumerate() {
            let mut buffer =
                socket.sender().buffer().unwrap_or_else(|| panic!("no buffer for {number}, round {round}"));
            buffer.fill(&numbered_message(number, round)).unwrap();
            socket.sender().send(buffer).unwrap();
            assert!(socket.sender().try_flush().unwrap(), "a message fits the send buffer");
            socket.sender().reap();
        }
        for socket in &mut sockets {
            let mut answer = [0; 4];
            std::io::Read::read_exact(socket.receiver(), &mut answer).unwrap();
        }
        assert!(count_io_uring_descriptors() <= 64, "{} rings", count_io_uring_descriptors());
    }
    let grown = resident_bytes().saturating_sub(before);
    // The address sanitizer puts room around all that is allocated.
    let most = if cfg!(nocopy_sanitizer) { 64 << 10 } else { 32 << 10 };
    // Of fewer connections, the memory that all of them share would be the larger part.
    assert!(!is_all || grown / CONNECTIONS < most, "{} bytes for each connection", grown / CONNECTIONS);
    for socket in &mut sockets {
        socket.sender().finish().unwrap();
    }
    told.recv_timeout(PATIENCE).expect("all of them have seen everything");
    clients.join().unwrap();
    drop(sockets);
    assert_eq!(pool.available(), pool.total());
    if !is_all {
        nocopy_lab::skip(&nocopy_lab::Missing::Capability("10,150 descriptors"));
    }
}
