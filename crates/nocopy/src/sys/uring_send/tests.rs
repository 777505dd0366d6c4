use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nocopy_lab::patience::PATIENCE;

use super::super::poll::wait_readable;
use super::*;
use crate::memory::pool::{BufferMut, Pool};

#[derive(Debug)]
struct SendResult {
    result: io::Result<usize>,
    copied: bool,
}

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn uring_sender(socket: &UdpSocket, pool: Option<&Pool>, sends: u32) -> UringSender {
    // SAFETY: the tests drop pools last.
    unsafe { UringSender::new(socket.as_fd(), pool.map(Pool::memory_range), sends) }
        .expect("Linux 6.2, with io_uring")
}

/// Two sockets, the first connected to the second.
fn connected_sockets(at: SocketAddr) -> (UdpSocket, UdpSocket) {
    let (from, to) = (UdpSocket::bind(at).unwrap(), UdpSocket::bind(at).unwrap());
    from.connect(to.local_addr().unwrap()).unwrap();
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    (from, to)
}

fn receive_datagram(socket: &UdpSocket) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    let count = socket.recv(&mut bytes).expect("a datagram");
    bytes.truncate(count);
    bytes
}

fn pattern_bytes(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (number * 31 + i + (i >> 8)) as u8).collect()
}

fn filled_buffer(pool: &Pool, bytes: &[u8]) -> BufferMut {
    let mut buffer = pool.take().expect("one at home");
    buffer.fill(bytes).expect("fits");
    buffer
}

/// Submits and waits until nothing is in flight; returns the result of each, which is reported once.
fn submit_and_reap_all(ring: &mut UringSender) -> HashMap<u64, SendResult> {
    let mut all = HashMap::new();
    let deadline = Instant::now() + PATIENCE;
    ring.submit().unwrap();
    while ring.in_flight() > 0 {
        let count = ring.reap(|user_data, result, copied| {
            assert!(all.insert(user_data, SendResult { result, copied }).is_none(), "{user_data} twice");
        });
        if count == 0 {
            assert!(Instant::now() < deadline, "stuck: {ring:?}");
            wait_readable(ring.as_fd(), Duration::from_millis(100)).unwrap();
        }
    }
    assert_eq!((ring.reap(|_, _, _| panic!("nothing is left")), ring.faults()), (0, 0));
    all
}

fn errno_of_result(result: &io::Result<usize>) -> Option<i32> {
    result.as_ref().err().and_then(io::Error::raw_os_error)
}

#[test]
fn registered_and_foreign_pieces_arrive_and_complete_once() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let pool = Pool::new(8, 1 << 16).unwrap();
    for at in [LOOPBACK, (Ipv6Addr::LOCALHOST, 0).into()] {
        let (socket, sink) = connected_sockets(at);
        let mut ring = uring_sender(&socket, Some(&pool), 8);
        let to = KernelAddress::from(sink.local_addr().unwrap());
        let (head, body) =
            (filled_buffer(&pool, &pattern_bytes(1, 42)), filled_buffer(&pool, &pattern_bytes(2, 1400)));
        let foreign = pattern_bytes(3, 30_001);
        let sends: [(&[&[u8]], Option<&KernelAddress>); 8] = [
            (&[&body], None),
            (&[&body[3..77]], Some(&to)),
            (&[&foreign[1..]], None),
            (&[&foreign], Some(&to)),
            (&[&head, &body], None),
            (&[&head, &body], Some(&to)),
            (&[&head, &foreign, &body[1..]], Some(&to)),
            (&[&[]], None),
        ];
        for (number, (pieces, to)) in sends.into_iter().enumerate() {
            // SAFETY: the memory outlives the ring's sends, which are finished below.
            unsafe {
                ring.queue_send(
                    number as u64 + 100,
                    pieces.iter().copied(),
                    KernelDestination { address: to, controls: None },
                    None,
                )
            }
            .unwrap();
        }
        assert_eq!(ring.in_flight(), 8);
        let done = submit_and_reap_all(&mut ring);
        for (number, (pieces, _)) in sends.into_iter().enumerate() {
            let sent = pieces.concat();
            assert_eq!(*done[&(number as u64 + 100)].result.as_ref().unwrap(), sent.len(), "send {number}");
            assert!(done[&(number as u64 + 100)].copied, "delivered on this host");
            assert!(receive_datagram(&sink) == sent, "send {number}: other bytes");
        }
    }
}

#[test]
fn one_send_is_segmented_into_many_datagrams() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let pool = Pool::new(4, 1 << 16).unwrap();
    let (socket, sink) = connected_sockets(LOOPBACK);
    let mut ring = uring_sender(&socket, Some(&pool), 4);
    let (bytes, foreign) = (filled_buffer(&pool, &pattern_bytes(1, 40 * 1400 + 9)), pattern_bytes(2, 3000));
    // SAFETY: as above.
    unsafe {
        ring.queue_send(1, [&bytes[..]], KernelDestination::CONNECTED, Some(1400)).unwrap();
        ring.queue_send(2, [&bytes[..2000], &foreign[..]], KernelDestination::CONNECTED, Some(1000)).unwrap();
        ring.queue_send(3, [&bytes[..100]], KernelDestination::CONNECTED, None).unwrap();
    }
    let done = submit_and_reap_all(&mut ring);
    assert!(done.values().all(|done| done.result.is_ok()), "{done:?}");
    for expected in bytes.chunks(1400) {
        assert!(receive_datagram(&sink) == expected);
    }
    for expected in [&bytes[..2000], &foreign[..]].concat().chunks(1000) {
        assert!(receive_datagram(&sink) == expected);
    }
    assert!(receive_datagram(&sink) == bytes[..100], "the next one is not cut");
}

#[test]
fn memory_may_change_after_its_completion() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let pool = Pool::new(4, 1 << 16).unwrap();
    let lab = nocopy_lab::lab_or_skip();
    let Some(lab) = lab else { return };
    let sink = lab.right().namespace().run(|| UdpSocket::bind((lab.right().ipv4(), 0)).unwrap());
    sink.set_read_timeout(Some(PATIENCE)).unwrap();
    let socket = lab.left().namespace().run(|| UdpSocket::bind((lab.left().ipv4(), 0)).unwrap());
    socket.connect(sink.local_addr().unwrap()).unwrap();
    let mut ring = uring_sender(&socket, Some(&pool), 16);
    let mut memory = filled_buffer(&pool, &[]);
    for round in 0..50 {
        let sent = pattern_bytes(round, 1400 * 20);
        memory.fill(&sent).unwrap();
        for (number, piece) in memory.chunks(1400).enumerate().take(10) {
            // SAFETY: the memory is changed after all sends were reaped.
            unsafe { ring.queue_send(number as u64, [piece], KernelDestination::CONNECTED, None) }.unwrap();
        }
        // SAFETY: as above.
        unsafe { ring.queue_send(10, [&memory[14_000..]], KernelDestination::CONNECTED, Some(1400)) }
            .unwrap();
        assert!(submit_and_reap_all(&mut ring).values().all(|done| done.result.is_ok()));
        memory[..].fill(0xee);
        assert!(sent.chunks(1400).all(|expected| receive_datagram(&sink) == expected), "round {round}");
    }
}

#[test]
fn errors_are_reported_and_sending_continues() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let pool = Pool::new(4, 1 << 17).unwrap();
    let (socket, sink) = connected_sockets(LOOPBACK);
    let mut ring = uring_sender(&socket, Some(&pool), 8);
    let bytes = filled_buffer(&pool, &pattern_bytes(1, 70_000));
    // SAFETY: finished below.
    unsafe {
        ring.queue_send(1, [&bytes[..65_508]], KernelDestination::CONNECTED, None).unwrap();
        ring.queue_send(2, [&bytes[..]], KernelDestination::CONNECTED, Some(1400)).unwrap();
        ring.queue_send(3, [&bytes[..30_000]], KernelDestination::CONNECTED, Some(0)).unwrap();
        ring.queue_send(4, [&bytes[..30_000]], KernelDestination::CONNECTED, Some(100)).unwrap();
        ring.queue_send(5, [&bytes[..100]], KernelDestination::CONNECTED, None).unwrap();
    }
    let done = submit_and_reap_all(&mut ring);
    assert_eq!(errno_of_result(&done[&1].result), Some(libc::EMSGSIZE), "longer than a datagram");
    assert_eq!(errno_of_result(&done[&2].result), Some(libc::EMSGSIZE), "longer than a packet");
    assert_eq!(errno_of_result(&done[&4].result), Some(libc::EINVAL), "more than 128 datagrams");
    assert!(done[&3].result.is_ok(), "0 does not cut");
    assert_eq!(receive_datagram(&sink).len(), 30_000);
    assert_eq!(*done[&5].result.as_ref().unwrap(), 100);
    assert!(receive_datagram(&sink) == bytes[..100]);

    // It keeps its port, which another program could take, and hears nobody else from here on.
    sink.connect("127.0.0.1:1").unwrap();
    // The first is sent, and ICMP answers; the next one fails.
    for user_data in [6, 7] {
        // SAFETY: as above.
        unsafe { ring.queue_send(user_data, [&bytes[..100]], KernelDestination::CONNECTED, None) }.unwrap();
        let done = submit_and_reap_all(&mut ring);
        assert_eq!(errno_of_result(&done[&user_data].result), (user_data == 7).then_some(libc::ECONNREFUSED));
    }
}

#[test]
fn a_full_ring_refuses_sends_and_reuses_reaped_slots() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let (socket, sink) = connected_sockets(LOOPBACK);
    let mut ring = uring_sender(&socket, None, 3);
    assert_eq!(ring.capacity(), 4);
    let bytes = [7; 10];
    for round in 0..300 {
        for number in 0..4 {
            // SAFETY: finished below.
            unsafe { ring.queue_send(round * 4 + number, [&bytes[..]], KernelDestination::CONNECTED, None) }
                .unwrap();
        }
        // SAFETY: not queued.
        let refused = unsafe { ring.queue_send(0, [&bytes[..]], KernelDestination::CONNECTED, None) };
        assert_eq!(refused, Err(RingFull));
        let done = submit_and_reap_all(&mut ring);
        assert!((0..4).all(|number| done[&(round * 4 + number)].result.is_ok()));
        (0..4).for_each(|_| assert_eq!(receive_datagram(&sink), bytes));
    }
}

#[test]
fn sends_without_room_or_neighbour_complete() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let socket = lab.left().namespace().run(|| {
        // A neighbour is given up after 50 ms, not 3 s.
        for (setting, value) in [("mcast_solicit", "1"), ("retrans_time_ms", "50")] {
            std::fs::write(format!("/proc/sys/net/ipv4/neigh/{}/{setting}", lab.left().interface()), value)
                .unwrap();
        }
        UdpSocket::bind((lab.left().ipv4(), 0)).unwrap()
    });
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, 8192).unwrap();
    let mut ring = uring_sender(&socket, None, 32);
    let to = KernelAddress::from(SocketAddr::from((Ipv4Addr::new(10, 77, 0, 99), 9)));
    let bytes = pattern_bytes(1, 1400);
    for number in 0..32 {
        // SAFETY: finished below.
        unsafe {
            ring.queue_send(
                number,
                [&bytes[..]],
                KernelDestination { address: Some(&to), controls: None },
                None,
            )
        }
        .unwrap();
    }
    // Most find no room in the send buffer at first, and are tried again.
    assert_eq!(submit_and_reap_all(&mut ring).len(), 32);
}

#[test]
fn a_udp_port_is_free_after_its_socket_and_ring_close() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let (socket, _sink) = connected_sockets(LOOPBACK);
    let address = socket.local_addr().unwrap();
    let mut ring = uring_sender(&socket, None, 4);
    // SAFETY: finished below.
    unsafe { ring.queue_send(1, [&b"bytes"[..]], KernelDestination::CONNECTED, None) }.unwrap();
    submit_and_reap_all(&mut ring);
    drop((socket, ring));
    UdpSocket::bind(address).expect("free again");
}

#[test]
fn sends_in_flight_arrive_after_their_ring_is_dropped() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let pool = Pool::new(2, 4096).unwrap();
    let (socket, sink) = connected_sockets(LOOPBACK);
    let bytes = filled_buffer(&pool, b"on its way");
    for submitted in [false, true] {
        let mut ring = uring_sender(&socket, Some(&pool), 4);
        // SAFETY: never changed again.
        unsafe { ring.queue_send(1, [&bytes[..], &bytes[..]], KernelDestination::CONNECTED, None) }.unwrap();
        if submitted {
            ring.submit().unwrap();
        }
        drop(ring);
    }
    assert_eq!(receive_datagram(&sink), b"on its wayon its way");
}

#[test]
fn sends_on_a_broken_ring_fail_and_are_reaped() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let listener = std::net::TcpListener::bind(LOOPBACK).unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // SAFETY: no memory.
    let mut ring = unsafe { UringSender::new(stream.as_fd(), None, 4) }.unwrap();
    ring.is_broken = true; // as if the kernel had taken nothing for long
    let mut count = 0;
    while !ring.is_full() && count < 3 {
        // SAFETY: static.
        let error = unsafe { ring.send_at_once(count, [&b"bytes"[..]]) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        count += 1;
    }
    let mut over = Vec::new();
    ring.reap(|number, result, _| over.push((number, errno_of_result(&result))));
    assert_eq!(over, [(0, Some(libc::EIO)), (1, Some(libc::EIO)), (2, Some(libc::EIO))]);
    assert_eq!((ring.in_flight(), ring.has_waiting_sends(), ring.is_broken()), (0, false, true));
}

#[test]
fn io_uring_setup_errors_name_their_cause() {
    let refused = |errno| io::Error::from_raw_os_error(errno);
    let text = UringError::with_setting(refused(libc::EPERM), 2).to_string();
    assert!(text.contains("kernel.io_uring_disabled is 2"), "{text}");
    assert!(matches!(UringError::with_setting(refused(libc::EPERM), 0), UringError::Kernel(_)));
    assert!(UringError::with_setting(refused(libc::ENOMEM), 0).to_string().contains("ulimit -l"));
    let too_old = UringError::with_setting(refused(libc::EINVAL), 0);
    assert!(matches!(too_old, UringError::TooOld(_)));
    let needed = format!("Linux {} or newer", features::URING_SEND.kernel);
    assert!(too_old.why().contains(&needed) && too_old.to_string().contains(&needed), "{too_old}");
}
