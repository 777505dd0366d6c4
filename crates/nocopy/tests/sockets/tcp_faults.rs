//! Streams under faults: the right error, memory returned, nothing stuck, and every byte accounted for.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nocopy::tcp::{Builder, Method, OpenError, Sender, Stream};
use nocopy::{Cause, Evidence, Pool};
use nocopy_lab::patience::wait_until;
use nocopy_lab::{End, Lab};
use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_thread_res_uid};

use crate::common;
use crate::common::calls::{POLL, SEND, SyscallCounter, this_thread_id, wait_until_thread_is_in_call};
use crate::common::errors::Refused;
use crate::common::lab;
use crate::common::methods::available_methods;
use crate::common::stream::{
    PATIENCE, assert_same, close_sender, connected_over_lab, count_free_buffers, drop_all_packets, read_all,
    read_all_in_thread, stream_pattern,
};
use crate::common::{SECOND, overwrite_free_buffers};

/// A kernel counter at the left end: a file of /proc/net, group and name.
fn kernel_counter(lab: &Lab, file: &str, group: &str, name: &str) -> u64 {
    let read = || std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let text = lab.left().namespace().run(read);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut counters = names.split_whitespace().zip(values.split_whitespace());
    counters.find(|&(found, _)| found == name).unwrap_or_else(|| panic!("no {name}")).1.parse().unwrap()
}

/// How often the left end failed to send new data (no route), or sent again after a time-out.
fn failed_transmissions(lab: &Lab) -> u64 {
    kernel_counter(lab, "snmp", "Ip:", "OutNoRoutes")
        + kernel_counter(lab, "netstat", "TcpExt:", "TCPTimeouts")
}

/// Each method, and the choice among them.
const METHODS: [Option<Method>; 4] =
    [None, Some(Method::Plain), Some(Method::ZeroCopy), Some(Method::UringZeroCopy)];

fn builder_for_method(method: Option<Method>) -> Builder {
    match method {
        Some(method) => Stream::builder().method(method),
        None => Stream::builder(),
    }
}

fn method_name(method: Option<Method>) -> String {
    method.map_or_else(|| "auto".into(), |method| method.to_string())
}

/// Queues and hands over that much of the stream, from buffers of the pool.
fn send_pattern(sender: &mut Sender, first: usize, bytes: usize) -> io::Result<()> {
    let end = first + bytes;
    for first in (first..end).step_by(60_000) {
        let mut buffer = sender.wait_buffer(Duration::MAX)?.expect("no limit");
        buffer.fill(&stream_pattern(first, 60_000.min(end - first))).expect("it fits");
        sender.send(buffer).expect("queued");
        sender.flush()?;
    }
    Ok(())
}

#[test]
fn a_reset_during_a_send_is_an_error_and_returns_all_memory() {
    for method in available_methods(METHODS) {
        let (lab, pool) = (lab!(), Pool::new(16, 64 << 10).unwrap());
        let (mut socket, mut peer) = connected_over_lab(&lab, builder_for_method(method).send_pool(&pool));
        let resets = thread::spawn(move || {
            peer.read_exact(&mut vec![0; 3 << 20]).unwrap();
            socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
        });
        let sender = socket.sender();
        let error = send_pattern(sender, 0, 1 << 30).unwrap_err();
        resets.join().unwrap();
        let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(kinds.contains(&error.kind()), "{}: {error}", method_name(method));
        let said = error.to_string();
        let number = said.strip_prefix("send: ").and_then(|said| said.split_once(" bytes were not sent"));
        let (unsent_bytes, _) = number.expect("it says how many");
        let unsent_bytes: u64 = unsent_bytes.parse().unwrap();
        // The error persists.
        assert!(sender.send_copy(b"more").is_err() && sender.finish().is_err());
        let unsent: usize = sender.take_unsent().iter().map(|buffer| buffer.len()).sum();
        assert!(unsent as u64 >= unsent_bytes, "{}: {unsent} of {error}", method_name(method));
        assert!(sender.drain(PATIENCE).unwrap(), "{}: {} in flight", method_name(method), sender.in_flight());
        assert_eq!(count_free_buffers(sender), 16, "{}", method_name(method));
        assert_eq!(sender.stats().faults, 0, "{}", method_name(method));
        assert_eq!(sender.ledger().bytes(), sender.stats().bytes, "{}", method_name(method));
        // Nothing is left to wait for: this returns although it has no time limit.
        let mut sender = socket.split().1;
        assert!(sender.close(Duration::MAX).unwrap(), "{}: {}", method_name(method), sender.stats());
        drop(sender);
        assert_eq!(pool.available(), 16);
    }
}

#[test]
fn a_stream_dropped_after_a_reset_leaks_nothing() {
    for method in available_methods(METHODS) {
        let (lab, pool) = (lab!(), Pool::new(16, 64 << 10).unwrap());
        let (mut socket, peer) =
            connected_over_lab(&lab, builder_for_method(method).send_pool(&pool).send_buffer(64 << 10));
        for _ in 0..8 {
            let mut buffer = socket.sender().buffer().unwrap();
            buffer.resize(60_000);
            socket.sender().send(buffer).unwrap();
        }
        assert!(!socket.sender().try_flush().unwrap());
        drop(peer); // with unread bytes
        drop(socket);
        wait_until("home", || pool.available() == 16);
    }
}

#[test]
fn a_peer_stalled_for_seconds_receives_everything() {
    const BYTES: usize = 16 << 20;
    for method in available_methods(METHODS) {
        let (lab, pool) = (lab!(), Pool::new(16, 64 << 10).unwrap());
        let (mut socket, peer) = connected_over_lab(&lab, builder_for_method(method).send_pool(&pool));
        let calls = SyscallCounter::new();
        let (counting, (tell, told)) = (calls.clone(), mpsc::channel());
        let sends = thread::spawn(move || {
            tell.send(this_thread_id()).unwrap();
            counting.count_this_thread();
            let sender = socket.sender();
            send_pattern(sender, 0, BYTES).unwrap();
            sender.finish().unwrap();
            assert!(sender.drain(PATIENCE).unwrap());
            assert_eq!(sender.ledger().bytes(), BYTES as u64);
            assert_eq!((sender.stats().faults, count_free_buffers(sender)), (0, 16));
        });
        // The window closes within milliseconds, and stays closed.
        assert!(
            wait_until_thread_is_in_call(told.recv().unwrap(), &[POLL, SEND].concat()),
            "{}: it waits",
            method_name(method)
        );
        thread::sleep(2 * SECOND);
        // It looks ten times a second, with a few calls each time. A loop without a pause would make far
        // more.
        wait_until("waiting without spinning", || {
            let before = calls.total();
            thread::sleep(SECOND);
            calls.total() - before <= 200
        });
        assert!(!sends.is_finished(), "{}: it waits", method_name(method));
        assert_same(&read_all(&peer), &stream_pattern(0, BYTES), method_name(method));
        sends.join().unwrap();
    }
}

#[test]
fn a_stream_closed_while_its_peer_stalls_still_arrives() {
    const BYTES: usize = 20 * 8000;
    for method in available_methods(METHODS) {
        let (lab, pool) = (lab!(), Pool::new(32, 8192).unwrap());
        let builder = builder_for_method(method).send_pool(&pool).send_buffer(4 << 20);
        let (mut socket, peer) = connected_over_lab(&lab, builder);
        socket2::SockRef::from(&peer).set_recv_buffer_size(4096).unwrap();
        for first in (0..BYTES).step_by(8000) {
            let mut buffer = socket.sender().buffer().unwrap();
            buffer.fill(&stream_pattern(first, 8000)).unwrap();
            socket.sender().send(buffer).unwrap();
        }
        // The peer reads only after this, so the call must return by itself.
        let (is_all, stats) = close_sender(socket, SECOND);
        assert_eq!(
            (stats.dropped, stats.get("kept_bytes").unwrap()),
            (0, 0),
            "{}: {stats}",
            method_name(method)
        );
        assert_eq!(is_all, stats.get("abandoned_calls").unwrap() == 0);
        if method.is_some_and(|method| method != Method::Plain) {
            assert!(!is_all, "{}: {stats}", method_name(method));
        }
        assert_eq!(overwrite_free_buffers(&pool), 32, "{}", method_name(method));
        thread::sleep(SECOND);
        assert_same(&read_all(&peer), &stream_pattern(0, BYTES), method_name(method));
    }
}

/// Sets how much memory a socket of that end may use to record sends.
fn limit_option_memory(end: &End, bytes: u32) {
    let write = || std::fs::write("/proc/sys/net/core/optmem_max", bytes.to_string());
    end.namespace().run(write).expect("each network namespace has its own since Linux 6.7");
}

#[test]
fn without_memory_for_completions_tcp_sends_are_copied() {
    const PIECE_BYTES: usize = 500;
    let lab = lab!();
    // For about three calls. Data waiting in the send buffer is recorded as one, so each must leave at once,
    // and be lost.
    limit_option_memory(lab.left(), 2000);
    // Repeated if it took so long that the kernel began to retransmit, and kept the rest.
    let give_up = Instant::now() + PATIENCE;
    let (mut socket, peer, loss) = loop {
        assert!(Instant::now() < give_up, "it takes so long each time");
        let pool = Pool::new(64, 4096).unwrap();
        let builder = builder_for_method(Some(Method::ZeroCopy)).send_pool(&pool).send_buffer(4 << 20);
        let (mut socket, peer) = connected_over_lab(&lab, builder);
        let Some(loss) = drop_all_packets(&lab) else { return };
        let start = Instant::now();
        for number in 0..64 {
            let mut buffer = socket.sender().buffer().expect("as many as needed");
            buffer.fill(&stream_pattern(number * PIECE_BYTES, PIECE_BYTES)).unwrap();
            socket.sender().send(buffer).unwrap();
            assert!(socket.sender().try_flush().unwrap(), "never stuck");
        }
        if start.elapsed() < SECOND / 6 {
            break (socket, peer, loss);
        }
    };
    let sender = socket.sender();
    assert!(sender.in_flight() > 0 && count_free_buffers(sender) > 48, "copies come back at once");
    let reader = read_all_in_thread(peer);
    drop(loss);
    sender.finish().unwrap();
    assert!(sender.drain(PATIENCE).unwrap());
    assert_same(&reader.join().unwrap(), &stream_pattern(0, 64 * PIECE_BYTES), "the stream");
    let (ledger, stats) = (sender.ledger(), sender.stats());
    assert_eq!((ledger.bytes(), stats.faults), (64 * PIECE_BYTES as u64, 0), "{ledger}");
    assert!(stats.get("no_buffers_bytes").unwrap() > 0, "{ledger}");
    assert_eq!(
        ledger.bytes_of(Evidence::Copied(Cause::NoBuffers)),
        stats.get("no_buffers_bytes").unwrap(),
        "{ledger}"
    );
    let why = sender.explain().to_string();
    assert!(why.contains("optmem_max"), "{why}");
}

/// Failed calls have no number: otherwise the kernel's ranges would name other calls, and some would never
/// complete.
#[test]
fn failed_and_partial_calls_shift_no_completion() {
    for method in available_methods([Method::ZeroCopy, Method::UringZeroCopy]) {
        let lab = lab!();
        limit_option_memory(lab.left(), 5000);
        let (mut socket, mut peer) =
            connected_over_lab(&lab, builder_for_method(Some(method)).send_buffer(10_000));
        let (sender, mut sent, mut received) = (socket.sender(), Vec::new(), Vec::new());
        peer.set_read_timeout(Some(SECOND / 50)).unwrap();
        let mut was_full = 0;
        for round in 0.. {
            // How often the buffer is full depends on how quickly the other end acknowledges.
            if round >= 60 && was_full > 3 {
                break;
            }
            assert!(round < 2000, "{method}: full only {was_full} times");
            // A part, or nothing, because the send buffer has less room.
            let bytes = stream_pattern(sent.len(), 3001 + 1777 * (round % 30));
            sent.extend_from_slice(&bytes);
            sender.send(bytes).unwrap();
            for _ in 0..3 {
                was_full += usize::from(!sender.try_flush().unwrap());
            }
            if round % 7 == 6 {
                let mut part = vec![0; 100_000];
                while let Ok(length @ 1..) = peer.read(&mut part) {
                    received.extend_from_slice(&part[..length]);
                }
            }
        }
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let reader = read_all_in_thread(peer);
        sender.finish().unwrap();
        assert!(sender.drain(PATIENCE).unwrap(), "{method}: {} in flight", sender.in_flight());
        received.extend(reader.join().unwrap());
        assert_same(&received, &sent, method);
        assert_eq!(sender.stats().faults, 0, "{method}");
        assert_eq!(sender.ledger().bytes(), sent.len() as u64, "{method}: {}", sender.ledger());
    }
}

/// Limits this thread's locked memory. (Capabilities belong to a thread; the limit belongs to the process,
/// but applies only to threads without this capability.) What counts is locked by all processes of the real
/// user, so this thread is one of its own.
fn limit_locked_memory(bytes: u64) {
    let own = Uid::from_raw(60_000 + std::process::id() % 5_000);
    set_thread_res_uid(own, Uid::ROOT, Uid::ROOT).unwrap();
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    let limit = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: Some(bytes), ..limit }).unwrap();
}

#[test]
fn without_locked_memory_sends_are_copied_and_counted() {
    const BYTES: usize = 30 * 100_000;
    let lab = lab!();
    let methods = available_methods([None, Some(Method::ZeroCopy), Some(Method::UringZeroCopy)]);
    let has_io_uring = nocopy_lab::has_io_uring();
    limit_locked_memory(64 << 10);
    if has_io_uring {
        let refused = connect_in_lab(&lab, builder_for_method(Some(Method::UringZeroCopy))).unwrap_err();
        let text = refused.to_string();
        assert!(matches!(refused, OpenError::Method { .. }) && text.contains("ulimit -l"), "{text}");
        // Whoever has another descriptor of a stream may try again.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        builder_for_method(Some(Method::UringZeroCopy)).wrap(stream.try_clone().unwrap()).unwrap_err();
        stream.write_all(b"not ended").unwrap();
    }
    // The ring's pool can be locked; the program's own memory cannot, nor any without a ring.
    let small = Pool::new(4, 4096).unwrap();
    for method in methods {
        let (mut socket, peer) = connected_over_lab(&lab, builder_for_method(method).send_pool(&small));
        let reader = read_all_in_thread(peer);
        let sender = socket.sender();
        for first in (0..BYTES).step_by(100_000) {
            sender.send(stream_pattern(first, 100_000)).unwrap();
            sender.flush().unwrap();
        }
        sender.finish().unwrap();
        assert!(sender.drain(PATIENCE).unwrap(), "{}", method_name(method));
        assert_same(&reader.join().unwrap(), &stream_pattern(0, BYTES), method_name(method));
        let (ledger, stats) = (sender.ledger(), sender.stats());
        assert_eq!(ledger.bytes(), BYTES as u64, "{}: {ledger}", method_name(method));
        assert_eq!(
            ledger.bytes_of(Evidence::Copied(Cause::NoBuffers)),
            stats.get("no_buffers_bytes").unwrap(),
            "{ledger}"
        );
        if method.is_some() {
            assert!(stats.get("no_buffers_bytes").unwrap() > 0, "{}: {ledger}", method_name(method));
            let why = sender.explain().to_string();
            assert!(why.contains("ulimit -l"), "{}: {why}", method_name(method));
        }
    }
}

fn connect_in_lab(lab: &Lab, builder: Builder) -> Result<Stream, OpenError> {
    let listener = common::stream::listener_in_lab(lab);
    let to = listener.local_addr().unwrap();
    lab.left().namespace().run(|| builder.connect(to))
}

#[test]
fn streams_work_without_io_uring() {
    let lab = lab!();
    Refused::always(libc::SYS_io_uring_setup, libc::EPERM).install_filter();
    let error = connect_in_lab(&lab, builder_for_method(Some(Method::UringZeroCopy))).unwrap_err();
    assert!(error.to_string().contains("io_uring"), "{error}");
    let (mut socket, peer) = connected_over_lab(&lab, builder_for_method(None));
    let reader = thread::spawn(move || std::io::copy(&mut &peer, &mut std::io::sink()).unwrap());
    let (sender, mut sent) = (socket.sender(), 0);
    // The policy takes time, because exploring gets a small share.
    while !sender.explain().to_string().contains("io_uring refused") {
        assert!(sent < 4 << 30, "{}", sender.explain());
        send_pattern(sender, sent, 16 << 20).unwrap();
        sent += 16 << 20;
    }
    sender.finish().unwrap();
    assert!(sender.drain(PATIENCE).unwrap());
    assert_eq!(reader.join().unwrap(), sent as u64);
}

/// Changes the lab in the middle of a stream: the peer reads the rest only after the change.
fn assert_stream_survives(lab: &Lab, method: Option<Method>, change: impl FnOnce(&Lab)) {
    const BYTES: usize = 24 << 20;
    let (mut socket, mut peer) = connected_over_lab(lab, builder_for_method(method));
    // Far less than the stream, even if the kernel lets it grow (32 MiB since Linux 6.16).
    socket2::SockRef::from(&peer).set_recv_buffer_size(256 << 10).unwrap();
    let sends = thread::spawn(move || {
        let sender = socket.sender();
        send_pattern(sender, 0, BYTES).unwrap();
        sender.finish().unwrap();
        assert!(sender.drain(PATIENCE).unwrap());
        assert_eq!((sender.ledger().bytes(), sender.stats().faults), (BYTES as u64, 0));
        assert_eq!(count_free_buffers(sender), 64);
    });
    let mut received = vec![0; 4 << 20];
    peer.read_exact(&mut received).unwrap();
    change(lab);
    assert!(!sends.is_finished(), "{}: the stream was done before the change", method_name(method));
    peer.read_to_end(&mut received).unwrap();
    assert_same(&received, &stream_pattern(0, BYTES), method_name(method));
    sends.join().unwrap();
}

#[test]
fn mtu_changes_during_a_stream_change_no_byte() {
    for method in available_methods(METHODS) {
        for mtu in [1000, 1500, 600] {
            assert_stream_survives(&lab!(), method, |lab| lab.left().set_mtu(mtu).unwrap());
        }
    }
}

#[test]
fn an_interface_set_down_only_delays_a_stream() {
    for method in available_methods(METHODS) {
        assert_stream_survives(&lab!(), method, |lab| {
            let before = failed_transmissions(lab);
            lab.left().set_down().unwrap();
            wait_until("sent in vain", || failed_transmissions(lab) > before);
            lab.left().bring_interface_up().unwrap();
            lab.wait_for_carrier().unwrap();
        });
    }
}

#[test]
fn a_stream_continues_when_its_route_returns() {
    for method in available_methods(METHODS) {
        assert_stream_survives(&lab!(), method, |lab| {
            let route = |what: &str| {
                let to = format!("{}/32", lab.right().ipv4());
                let arguments = ["route", what, "blackhole", &to];
                let done = || Command::new("ip").args(arguments).status().expect("ip is there");
                assert!(lab.left().namespace().run(done).success(), "{what} a route to nowhere");
            };
            let before = failed_transmissions(lab);
            route("add");
            wait_until("sent in vain", || failed_transmissions(lab) > before);
            route("del");
        });
    }
}
