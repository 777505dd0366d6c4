//! Functions of a socket over a port that only the carrier of messages uses, and states that cannot be
//! produced from outside.

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use nocopy_lab::patience::{PATIENCE, uninterrupted};
use nocopy_lab::{End, Lab};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::{Builder, Method};
use super::*;
use crate::facts::rejected::Reason;
use crate::memory::area::Frame;
use crate::port::Mode;

fn run_ip_command(end: &End, arguments: &str) {
    let done = end.namespace().run(|| Command::new("ip").args(arguments.split(' ')).output().unwrap());
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// IPv6, which the lab leaves off, with neighbours that know each other.
fn add_ipv6_addresses(lab: &Lab) {
    for (end, own, other, peer) in
        [(lab.left(), "fd77::1", "fd77::2", lab.right()), (lab.right(), "fd77::2", "fd77::1", lab.left())]
    {
        let name = end.interface();
        let setting = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
        end.namespace().run(|| std::fs::write(setting, "0").unwrap());
        run_ip_command(end, &format!("-6 address add {own}/64 dev {name} nodad"));
        let mac: Vec<String> = peer.mac().iter().map(|byte| format!("{byte:02x}")).collect();
        run_ip_command(
            end,
            &format!("-6 neighbour add {other} lladdr {} dev {name} nud permanent", mac.join(":")),
        );
        let is_local = || {
            let show = ["-6", "route", "show", "table", "local"];
            let shown = end.namespace().run(|| Command::new("ip").args(show).output().unwrap());
            String::from_utf8(shown.stdout).unwrap().contains(&format!("local {own} "))
        };
        assert!(wait_until_true(is_local), "{own} does not become an address of {name}");
    }
}

fn lab_addresses(lab: &Lab, ipv6: bool) -> (SocketAddr, SocketAddr) {
    let pair: (IpAddr, IpAddr) = match ipv6 {
        true => ("fd77::1".parse().unwrap(), "fd77::2".parse().unwrap()),
        false => (lab.left().ipv4().into(), lab.right().ipv4().into()),
    };
    (SocketAddr::new(pair.0, 7200), SocketAddr::new(pair.1, 7201))
}

fn open_port_socket(
    end: &End,
    local: SocketAddr,
    settings: &SocketSettings,
    set: impl FnOnce(PortBuilder) -> PortBuilder + Send,
) -> Result<Socket, OpenError> {
    end.namespace().run(|| Socket::open(set(Port::builder(end.interface())), local, settings))
}

fn kernel_socket_in(end: &End, address: SocketAddr) -> UdpSocket {
    let socket = end.namespace().run(|| UdpSocket::bind(address).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn numbered_payload(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (number * 7 + i) as u8).collect()
}

fn assert_received(socket: &UdpSocket, from: SocketAddr, expected: &[u8], what: &str) {
    let mut buffer = vec![0; 65_536];
    let (bytes, sender) =
        uninterrupted(|| socket.recv_from(&mut buffer)).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(sender, from, "{what}");
    assert!(buffer[..bytes] == *expected, "{what}: {bytes} B came for {}", expected.len());
}

fn filled_frame(sender: &mut Sender, payload: &[u8]) -> Frame {
    let mut frame = sender.frame().expect("a free frame");
    frame.fill(payload).expect("fits");
    frame
}

/// Closes the socket, and checks frames and interface.
fn drain_and_check_balance(end: &End, socket: Socket) {
    let (receiver, mut sender) = socket.split();
    assert!(sender.drain(PATIENCE).unwrap(), "frames stuck with the kernel");
    receiver.port().balance();
    let balance = sender.port().balance();
    assert!(balance.is_balanced() && balance.in_use == 0 && balance.lent_tx == 0, "{balance}");
    drop((receiver, sender));
    assert!(wait_until_true(|| end.xdp_program().unwrap().is_none()), "a program stayed on the interface");
}

/// Waits until a condition holds; returns whether it does.
fn wait_until_true(mut is_so: impl FnMut() -> bool) -> bool {
    let give_up = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() >= give_up {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The numbers that arrive until `last` does, each once.
fn receive_numbers_until(peer: &UdpSocket, last: u32) -> BTreeSet<u32> {
    let mut numbers = BTreeSet::new();
    let mut buffer = [0; 64];
    while !numbers.contains(&last) {
        let bytes = uninterrupted(|| peer.recv(&mut buffer))
            .unwrap_or_else(|error| panic!("{last} did not come: {error}: {numbers:?}"));
        let number = u32::from_be_bytes(buffer[..bytes].try_into().unwrap());
        assert!(numbers.insert(number), "{number} came twice");
    }
    numbers
}

/// Sends numbered datagrams, one a flush, until one goes over the port.
fn send_until_over_port(socket: &mut Socket, to: SocketAddr, number: &mut u32) {
    let before = socket.sender.sent_counters().over_port;
    assert!(wait_until_true(|| {
        socket.sender.send_copied(to, None, &[&number.to_be_bytes()]).unwrap();
        socket.sender.flush().unwrap();
        *number += 1;
        socket.sender.sent_counters().over_port > before
    }));
}

/// The kernel numbers the zero-copy calls of all senders of a socket together, so only one sender may make
/// them.
#[test]
fn only_one_sender_of_a_shared_socket_sends_zero_copy() {
    let Some(lab) = Lab::builder().queues(3).build_or_skip() else { return };
    let left = lab.left();
    let local = SocketAddr::new(left.ipv4().into(), 0);
    let builder = || Builder::new().method(Method::ZeroCopy);
    let refused = left.namespace().run(|| builder().port(Port::builder(left.interface())).bind_queues(local));
    let refused = refused.expect_err("two would count from the same number");
    assert!(matches!(refused, OpenError::Method { method: Method::ZeroCopy, .. }), "{refused}");
    assert!(refused.to_string().contains("another sender"), "{refused}");

    let mut sockets = left.namespace().run(|| {
        Socket::open_queues(Port::builder(left.interface()), local, &SocketSettings::default()).unwrap()
    });
    let pool = crate::memory::pool::Pool::new(64, 4096).unwrap();
    let peer = kernel_socket_in(lab.right(), SocketAddr::new(lab.right().ipv4().into(), 0));
    for round in 0..2_u32 {
        let (socket, next) = (sockets.pop().unwrap(), sockets.pop());
        let (_receiver, mut sender) =
            left.namespace().run(|| builder().socket_over_port(socket, &pool)).unwrap().split();
        if let Some(next) = next {
            let refused = left.namespace().run(|| builder().socket_over_port(next, &pool)).unwrap_err();
            assert!(refused.to_string().contains("another sender"), "{refused}");
        }
        for number in 0..20_u32 {
            let mut buffer = pool.take().unwrap();
            buffer.fill(&number.to_be_bytes()).unwrap();
            sender.send_to(buffer, peer.local_addr().unwrap()).unwrap();
        }
        assert!(sender.drain(PATIENCE).unwrap(), "round {round}: {} calls stay", sender.in_flight());
        assert_eq!(receive_numbers_until(&peer, 19).len(), 20);
        assert_eq!(sender.stats().faults, 0);
    }
}

#[test]
fn a_port_without_a_filter_returns_the_hosts_packets() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let left = lab.left();
    let (local, remote) = lab_addresses(&lab, false);
    let mut socket = left.namespace().run(|| {
        let port = Port::builder(left.interface()).mode(Mode::XdpCopyNative).open().unwrap();
        let kernel = KernelSockets::bind_address(local, &SocketSettings::default()).unwrap();
        Socket::from_ports(vec![port], kernel, &SocketSettings::default()).unwrap().remove(0)
    });
    lab.right().set_tx_checksum(false).unwrap(); // the host checks them
    let another = kernel_socket_in(left, SocketAddr::new(local.ip(), local.port() + 5));
    let peer = kernel_socket_in(lab.right(), remote);
    peer.send_to(b"for another", another.local_addr().unwrap()).unwrap();
    peer.send_to(b"for the socket", local).unwrap();
    left.namespace().run(|| {
        let received = wait_until_true(|| {
            let mut batch = socket.receiver.receive_within(Some(PATIENCE)).unwrap();
            batch.any(|it| *it == *b"for the socket")
        });
        assert!(received);
    });
    assert_received(&another, remote, b"for another", "handed to the host");
    let received = socket.receiver.stats();
    assert_eq!(
        (received.get("over_port").unwrap(), received.get("to_host").unwrap(), received.get("lost").unwrap()),
        (1, 1, 0)
    );
    drain_and_check_balance(left, socket);
}

/// Answers to hosts that do not exist leave more than half of the kernel socket to datagrams that have to go
/// through it.
#[test]
fn answers_to_absent_hosts_leave_room_in_the_send_buffer() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (local, remote) = lab_addresses(&lab, false);
    let mut socket = open_port_socket(lab.left(), local, &SocketSettings::default(), |port| port).unwrap();
    let peer = kernel_socket_in(lab.right(), remote);
    lab.left().namespace().run(|| {
        let sender = &mut socket.sender;
        for host in (100..200).cycle().take(1000) {
            let forged = SocketAddr::from(([10, 77, 0, host], 9));
            let sent = sender.send_to_unverified(forged, b"answer");
            assert!(matches!(sent, Ok(()) | Err(Reason::Full)), "{sent:?}");
        }
        let mut half = [PollFd::from_borrowed_fd(sender.kernel_socket().as_fd(), PollFlags::OUT)];
        assert_eq!(poll(&mut half, Some(&Timespec::default())), Ok(1), "less than half is free");
        sender.send_to_unverified(remote, b"answer").unwrap();
    });
    assert_received(&peer, local, b"answer", "to a host that exists");
    drain_and_check_balance(lab.left(), socket);
}

#[test]
fn a_full_ring_returns_the_payload_unchanged() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (local, remote) = lab_addresses(&lab, false);
    let mut socket = open_port_socket(lab.left(), local, &SocketSettings::default(), |port| {
        port.mode(Mode::XdpCopyNative).ring_sizes(64, 16).frame_count(64, 64)
    })
    .unwrap();
    let peer = kernel_socket_in(lab.right(), remote);
    let mut refusals = 0;
    for number in 0..100_u32 {
        let mut frame = filled_frame(&mut socket.sender, &number.to_be_bytes());
        while let Err(rejected) = socket.sender.send_to(frame, remote, None) {
            assert!(matches!(rejected.reason, Reason::Full), "{rejected}");
            assert_eq!(*rejected.item, number.to_be_bytes(), "as it was");
            refusals += 1;
            frame = rejected.item;
            socket.sender.flush().unwrap();
        }
    }
    socket.sender.flush().unwrap();
    assert!(refusals >= 5);
    assert_eq!(receive_numbers_until(&peer, 99).len(), 100);
    let mut bare = filled_frame(&mut socket.sender, &[7; 300]);
    bare.prepend(250).unwrap();
    let rejected = socket.sender.send_to(bare, remote, None).unwrap_err();
    assert!(matches!(rejected.reason, Reason::NoHeadroom { needed_bytes: 42, free_bytes: 6 }), "{rejected}");
    assert_eq!(rejected.item.len(), 550);
    drop(rejected);
    assert_eq!(socket.sender.sent_counters().over_port, 100);
    drain_and_check_balance(lab.left(), socket);
}

/// Takes kept frames back until there are `count`.
fn take_kept_frames(sender: &mut Sender, count: usize, what: &str) -> Vec<Frame> {
    let mut back = Vec::new();
    let all_back = wait_until_true(|| {
        sender.flush().unwrap();
        sender.reap_into(&mut back);
        back.len() >= count
    });
    assert!(all_back && back.len() == count, "{what}: {} of {count} frames came back", back.len());
    back.sort_unstable_by_key(Frame::index);
    back
}

#[test]
fn kept_payloads_return_and_can_be_sent_again() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    for (mode, ipv6) in [
        (Mode::XdpCopyNative, false),
        (Mode::XdpCopyNative, true),
        (Mode::XdpCopyGeneric, false),
        (Mode::PacketRing, false),
    ] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        if ipv6 {
            add_ipv6_addresses(&lab);
        }
        let what = format!("{mode}, ipv6 {ipv6}");
        let (local, remote) = lab_addresses(&lab, ipv6);
        let set = |port: PortBuilder| port.mode(mode).ring_sizes(64, 16).frame_count(64, 64);
        let mut socket = open_port_socket(lab.left(), local, &SocketSettings::default(), set).unwrap();
        let peer = kernel_socket_in(lab.right(), remote);
        let mut window: Vec<Frame> = (0..30)
            .map(|number| filled_frame(&mut socket.sender, &numbered_payload(number, 40 + number)))
            .collect();
        window.sort_unstable_by_key(Frame::index);
        let contents: Vec<Vec<u8>> = window.iter().map(|frame| frame.to_vec()).collect();
        let places: Vec<*const u8> = window.iter().map(|frame| frame.as_ptr()).collect();
        let mut refusals = 0;
        for _ in 0..10 {
            for mut frame in window.drain(..) {
                while let Err(rejected) = socket.sender.send_kept(frame, remote) {
                    assert!(matches!(rejected.reason, Reason::Full), "{what}: {rejected}");
                    refusals += 1;
                    frame = rejected.item;
                    socket.sender.flush().unwrap();
                }
            }
            window = take_kept_frames(&mut socket.sender, 30, &what);
            assert!(window.iter().map(|frame| frame.to_vec()).eq(contents.iter().cloned()), "{what}");
            assert!(window.iter().map(|frame| frame.as_ptr()).eq(places.iter().copied()), "{what}");
            contents.iter().for_each(|payload| assert_received(&peer, local, payload, &what));
        }
        assert!(refusals > 0, "{what}: the ring was never full");
        assert_eq!(
            socket.sender.sent_counters().over_port,
            300,
            "{what}: {:?}",
            socket.sender.sent_counters()
        );
        // A frame that is refused for good, and then sent without being kept, does not return.
        let mut bare = filled_frame(&mut socket.sender, &[7; 300]);
        bare.prepend(250).unwrap();
        let mut frame = socket.sender.send_kept(bare, remote).unwrap_err().item;
        frame.trim_front(250);
        socket.sender.send_to(frame, remote, None).unwrap();
        assert!(socket.sender.drain(PATIENCE).unwrap());
        assert_eq!(socket.sender.reap_into(&mut window), 0, "{what}");
        window.drain(..).for_each(|frame| socket.sender.recycle(frame));
        drain_and_check_balance(lab.left(), socket);
    }
}

#[test]
fn kept_payloads_sent_by_the_kernel_return_at_once() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (local, remote) = lab_addresses(&lab, false);
    run_ip_command(lab.left(), "neighbour flush all nud permanent");
    run_ip_command(lab.left(), "neighbour flush all");
    let mut socket = open_port_socket(lab.left(), local, &SocketSettings::default(), |port| {
        port.mode(Mode::XdpCopyNative)
    })
    .unwrap();
    let peer = kernel_socket_in(lab.right(), remote);
    let frame = filled_frame(&mut socket.sender, b"unresolved");
    let place = frame.as_ptr();
    socket.sender.send_kept(frame, remote).unwrap();
    let mut back = Vec::new();
    assert_eq!(socket.sender.reap_into(&mut back), 1);
    let frame = back.remove(0);
    assert_eq!((&*frame, frame.as_ptr()), (&b"unresolved"[..], place));
    assert_received(&peer, local, b"unresolved", "through the kernel");
    assert_eq!(socket.sender.sent_counters().unresolved, 1);
    // Once more, and this time over the port; then as a frame that is not kept.
    let mut number = 0;
    send_until_over_port(&mut socket, remote, &mut number);
    receive_numbers_until(&peer, number - 1);
    socket.sender.send_kept(frame, remote).unwrap();
    let frame = take_kept_frames(&mut socket.sender, 1, "over the port").remove(0);
    assert_eq!((&*frame, frame.as_ptr()), (&b"unresolved"[..], place));
    assert_received(&peer, local, b"unresolved", "over the port");
    socket.sender.send_to(frame, remote, None).unwrap();
    assert!(socket.sender.drain(PATIENCE).unwrap());
    assert_eq!(socket.sender.reap_into(&mut back), 0, "it was not kept this time");
    // A frame that the kernel refuses belongs to the caller again, and is no longer kept.
    let unreachable = "203.0.113.1:9".parse().unwrap();
    let frame = filled_frame(&mut socket.sender, b"x");
    let rejected = socket.sender.send_kept(frame, unreachable).unwrap_err();
    assert!(matches!(rejected.reason, Reason::System(_)), "{rejected}");
    socket.sender.send_to(rejected.item, remote, None).unwrap();
    assert!(socket.sender.drain(PATIENCE).unwrap());
    assert_eq!(socket.sender.reap_into(&mut back), 0);
    drain_and_check_balance(lab.left(), socket);
}

#[test]
fn kept_payloads_outlive_the_socket() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (local, remote) = lab_addresses(&lab, false);
    let mut socket = open_port_socket(lab.left(), local, &SocketSettings::default(), |port| {
        port.mode(Mode::XdpCopyNative)
    })
    .unwrap();
    let area = socket.area().clone();
    for number in 0..20 {
        let frame = filled_frame(&mut socket.sender, &numbered_payload(number, 100));
        socket.sender.send_kept(frame, remote).unwrap();
    }
    let mut window = take_kept_frames(&mut socket.sender, 20, "sent");
    for frame in window.drain(..10) {
        socket.sender.send_kept(frame, remote).unwrap(); // on their way when the socket closes
    }
    drop(socket);
    let balance = area.balance();
    assert!(balance.is_balanced() && balance.in_use == 10 && balance.lent_tx == 0, "{balance}");
    assert!(window.iter().all(|frame| frame.len() == 100));
    drop(window);
    let balance = area.balance();
    assert!(balance.is_balanced() && balance.free == u64::from(balance.total), "{balance}");
}
