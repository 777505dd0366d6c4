//! Explicit congestion notification: sent datagrams can be marked, and exactly the marked ones are reported.

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use crate::common::{PATIENCE, lab};
use nocopy::udp::{Message, Method, Socket};
use nocopy::{Buffer, Frame, Mode, Port};
use nocopy_lab::{End, without_missing_ipv6};
use socket2::SockRef;

/// The values of the two bits: not capable, capable (two values), marked.
const CODEPOINTS: [u32; 4] = [0b00, 0b01, 0b10, 0b11];

/// Sets the two ECN bits of the socket's datagrams, in addition to a traffic class.
fn set_codepoint(socket: SockRef<'_>, to: SocketAddr, codepoint: u32) {
    let class = 0b1010_0000 | codepoint;
    match to {
        SocketAddr::V4(_) => socket.set_tos_v4(class).unwrap(),
        SocketAddr::V6(_) => socket.set_tclass_v6(class).unwrap(),
    }
}

#[test]
fn an_ordinary_socket_reports_congestion_marks() {
    // The last: an IPv6 socket that receives over IPv4.
    let sockets =
        [("127.0.0.1", "127.0.0.1", "127.0.0.1"), ("::1", "::1", "::1"), ("::", "127.0.0.1", "127.0.0.1")];
    for (ip, from, to) in without_missing_ipv6(sockets, |(ip, ..)| ip.contains(':')) {
        let bind = SocketAddr::new(ip.parse().unwrap(), 0);
        for asked in [true, false] {
            let mut socket = Socket::builder().congestion_marks(asked).bind(bind).unwrap();
            let to = SocketAddr::new(to.parse().unwrap(), socket.local_addr().unwrap().port());
            let sender = UdpSocket::bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
            for round in 0..3 {
                for codepoint in CODEPOINTS {
                    set_codepoint(SockRef::from(&sender), to, codepoint);
                    sender.send_to(&[codepoint as u8, round], to).unwrap();
                }
            }
            let mut marks = Vec::new();
            while marks.len() < 12 {
                let batch = socket.receiver().receive_timeout(PATIENCE).unwrap();
                let before = marks.len();
                marks.extend(batch.map(|datagram| (datagram[0], datagram.is_congested())));
                assert!(marks.len() > before, "{ip}: only {} came", marks.len());
            }
            assert!(
                marks.iter().all(|(codepoint, told)| *told == (asked && *codepoint == 0b11)),
                "{ip}: {marks:?}"
            );
        }
    }
}

#[test]
fn each_run_has_one_mark_and_sends_are_ecn_capable() {
    for ip in without_missing_ipv6(["127.0.0.1", "::1"], |ip| ip.contains(':')) {
        let bind = SocketAddr::new(ip.parse().unwrap(), 0);
        let mut receiver = Socket::builder().congestion_marks(true).bind(bind).unwrap();
        let to = receiver.local_addr().unwrap();
        let mut sender = Socket::builder().congestion_marks(true).method(Method::Gso).bind(bind).unwrap();
        let class = match to {
            SocketAddr::V4(_) => SockRef::from(&sender.sender().kernel_socket().unwrap()).tos_v4().unwrap(),
            SocketAddr::V6(_) => {
                SockRef::from(&sender.sender().kernel_socket().unwrap()).tclass_v6().unwrap()
            }
        };
        assert_eq!(class, 0b10, "capable");
        sender.connect(to).unwrap();
        for codepoint in [0b10, 0b11, 0b10] {
            set_codepoint(SockRef::from(&sender.sender().kernel_socket().unwrap()), to, codepoint);
            let mut buffer = sender.sender().buffer().unwrap();
            buffer.fill(&[codepoint as u8; 1000]).unwrap();
            sender.sender().send(Message::segments(buffer, 100)).unwrap();
            assert!(sender.sender().drain(PATIENCE).unwrap());
        }
        let mut count = 0;
        let mut longest = 0;
        while count < 30 {
            let runs = receiver.receiver().receive_timeout(PATIENCE).unwrap().into_runs();
            assert!(!runs.is_empty(), "{ip}: only {count} came");
            for run in runs {
                assert!(
                    run.bytes().iter().all(|byte| (*byte == 0b11) == run.is_congested()),
                    "{ip}: marks were mixed"
                );
                (count, longest) = (count + run.len(), longest.max(run.len()));
            }
        }
        assert_eq!(longest, 10, "{ip}: no run was kept together, so this says nothing of runs");
    }
}

fn open_socket_over_port(end: &End, mode: Mode, local: SocketAddr, marks: bool) -> Socket {
    let builder = Socket::builder().method(Method::Xdp).congestion_marks(marks);
    let port = Port::builder(end.interface()).mode(mode);
    end.namespace().run(|| builder.port(port).bind(local)).expect("opened")
}

fn receive_marks(socket: &mut Socket, count: usize) -> Vec<(u8, bool, bool)> {
    let mut marks = Vec::new();
    let give_up = Instant::now() + PATIENCE;
    while marks.len() < count {
        assert!(Instant::now() < give_up, "only {} of {count} came", marks.len());
        for datagram in socket.receiver().receive_timeout(PATIENCE).unwrap() {
            let (first, is_congested) = (datagram[0], datagram.is_congested());
            marks.push((first, is_congested, Frame::try_from(Buffer::from(datagram.take())).is_err()));
        }
    }
    marks
}

#[test]
fn a_port_socket_reports_marks_from_port_and_kernel() {
    for mode in [Mode::XdpCopyNative, Mode::XdpCopyGeneric, Mode::PacketRing] {
        let lab = lab!();
        let local = SocketAddr::new(lab.left().ipv4().into(), 7700);
        let mut socket = open_socket_over_port(lab.left(), mode, local, true);
        let remote = SocketAddr::new(lab.right().ipv4().into(), 7701);
        let peer = lab.right().namespace().run(|| UdpSocket::bind(remote).unwrap());
        for codepoint in CODEPOINTS {
            set_codepoint(SockRef::from(&peer), local, codepoint);
            peer.send_to(&[codepoint as u8; 100], local).unwrap();
        }
        for (codepoint, told, copied) in receive_marks(&mut socket, 4) {
            assert_eq!((told, copied), (codepoint == 0b11, false), "{mode}: {codepoint:02b}");
        }
        // Longer than the MTU: in fragments, which the kernel joins.
        for codepoint in CODEPOINTS {
            set_codepoint(SockRef::from(&peer), local, codepoint);
            peer.send_to(&[codepoint as u8; 3000], local).unwrap();
        }
        for (codepoint, told, copied) in receive_marks(&mut socket, 4) {
            assert_eq!(
                (told, copied),
                (codepoint == 0b11, true),
                "{mode}, through the kernel: {codepoint:02b}"
            );
        }
    }
}

/// The codepoints of the next UDP packets that the port receives, or of their fragments.
fn receive_codepoints(port: &mut Port, count: usize) -> Vec<u8> {
    let mut seen = Vec::new();
    let give_up = Instant::now() + PATIENCE;
    while seen.len() < count {
        assert!(Instant::now() < give_up, "only {} of {count} came", seen.len());
        for packet in port.receiver().receive_timeout(PATIENCE).unwrap() {
            if packet[12..14] == [0x08, 0x00] && packet[23] == 17 {
                seen.push(packet[15] & 0b11);
            }
        }
    }
    seen
}

#[test]
fn ecn_is_set_on_request_by_port_and_kernel_sockets() {
    let lab = lab!();
    let right = lab.right();
    let mut raw =
        right.namespace().run(|| Port::builder(right.interface()).mode(Mode::XdpCopyNative).open()).unwrap();
    for (ecn, expected) in [(false, 0b00), (true, 0b10)] {
        let local = SocketAddr::new(lab.left().ipv4().into(), 7710 + u16::from(ecn));
        let remote = SocketAddr::new(right.ipv4().into(), 7719);
        let mut socket = open_socket_over_port(lab.left(), Mode::XdpCopyNative, local, ecn);
        let sender = socket.sender();
        sender.send_copy_to(b"over the port", remote).unwrap();
        sender.flush().unwrap();
        assert_eq!(receive_codepoints(&mut raw, 1), [expected]);
        sender.send_copy_to(&[7; 2000], remote).unwrap(); // the kernel makes fragments of it
        assert_eq!(receive_codepoints(&mut raw, 2), [expected; 2]);
        let stats = sender.stats();
        assert_eq!((stats.get("over_port").unwrap(), stats.get("through_kernel").unwrap()), (1, 1));
    }
}
