//! What is reported about received datagrams: ECN, addresses, interface, time, and the length of segments.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Instant, SystemTime};

use crate::common::{PATIENCE, lab};
use nocopy::metadata::Clock;
use nocopy::udp::{Ecn, Message, Metadata, Method, Socket};
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

fn ecn_of(codepoint: u32) -> Ecn {
    [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce][codepoint as usize]
}

#[test]
fn a_kernel_socket_reports_each_ecn_value() {
    // The last: an IPv6 socket that receives over IPv4.
    let sockets =
        [("127.0.0.1", "127.0.0.1", "127.0.0.1"), ("::1", "::1", "::1"), ("::", "127.0.0.1", "127.0.0.1")];
    for (ip, from, to) in without_missing_ipv6(sockets, |(ip, ..)| ip.contains(':')) {
        let bind = SocketAddr::new(ip.parse().unwrap(), 0);
        for asked in [true, false] {
            let mut socket = Socket::builder().receive_metadata(asked).bind(bind).unwrap();
            let to = SocketAddr::new(to.parse().unwrap(), socket.local_addr().unwrap().port());
            let sender = UdpSocket::bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
            for round in 0..3 {
                for codepoint in CODEPOINTS {
                    set_codepoint(SockRef::from(&sender), to, codepoint);
                    sender.send_to(&[codepoint as u8, round], to).unwrap();
                }
            }
            let mut reported = Vec::new();
            while reported.len() < 12 {
                let batch = socket.receiver().receive_timeout(PATIENCE).unwrap();
                let before = reported.len();
                reported.extend(batch.map(|datagram| (u32::from(datagram[0]), datagram.metadata().ecn)));
                assert!(reported.len() > before, "{ip}: only {} came", reported.len());
            }
            assert!(
                reported.iter().all(|(codepoint, ecn)| *ecn == asked.then(|| ecn_of(*codepoint))),
                "{ip}: {reported:?}"
            );
        }
    }
}

#[test]
fn each_run_has_one_ecn_value_and_segment_length() {
    for ip in without_missing_ipv6(["127.0.0.1", "::1"], |ip| ip.contains(':')) {
        let bind = SocketAddr::new(ip.parse().unwrap(), 0);
        let mut receiver = Socket::builder().receive_metadata(true).bind(bind).unwrap();
        let to = receiver.local_addr().unwrap();
        let mut sender = Socket::builder().method(Method::Gso).bind(bind).unwrap();
        sender.connect(to).unwrap();
        for codepoint in [0b10, 0b11, 0b10] {
            set_codepoint(SockRef::from(&sender.sender().kernel_socket().unwrap()), to, codepoint);
            let mut buffer = sender.sender().buffer().unwrap();
            buffer.fill(&[codepoint as u8; 1050]).unwrap();
            sender.sender().send(Message::segments(buffer, 100)).unwrap();
            assert!(sender.sender().drain(PATIENCE).unwrap());
        }
        let (mut count, mut in_bursts) = (0, 0);
        while count < 33 {
            let batch = receiver.receiver().receive_timeout(PATIENCE).unwrap();
            let before = count;
            for datagram in batch {
                let metadata = datagram.metadata();
                assert_eq!(metadata.ecn, Some(ecn_of(datagram[0].into())), "{ip}");
                let (bytes, owned) = (datagram.len(), datagram.take());
                assert_eq!(owned.metadata(), metadata);
                // The last one of a burst is shorter, and may have come alone.
                in_bursts += usize::from(metadata.segment_bytes == 100 && bytes == 50);
                assert!([bytes, 100].contains(&metadata.segment_bytes), "{ip}: {metadata:?}");
                count += 1;
            }
            assert!(count > before, "{ip}: only {count} came");
        }
        assert_eq!(in_bursts, 3, "{ip}: bursts were not kept together, so this says nothing of them");
    }
}

#[test]
fn arrival_time_and_interface_are_reported_on_request() {
    let realtime_ns = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    for asked in [true, false] {
        let builder = Socket::builder().receive_metadata(asked).receive_times(asked);
        let mut receiver = builder.bind("0.0.0.0:0").unwrap();
        let to = SocketAddr::new([127, 0, 0, 2].into(), receiver.local_addr().unwrap().port());
        let before = realtime_ns();
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"hello", to).unwrap();
        let datagram = receiver.receiver().receive_timeout(PATIENCE).unwrap().next().unwrap().take();
        let after = realtime_ns();
        let metadata = datagram.metadata();
        assert_eq!(metadata.segment_bytes, 5);
        assert_eq!(metadata.interface, asked.then_some(1));
        assert_eq!(metadata.destination, asked.then_some(to.ip()));
        assert_eq!(metadata.reply_from, asked.then_some(to.ip()));
        assert_eq!(metadata.time.map(|time| time.clock), asked.then_some(Clock::Realtime));
        if let Some(time) = metadata.time {
            assert!((before..=after).contains(&time.ns), "{before} <= {} <= {after}", time.ns);
        }
    }
}

fn open_socket_over_port(end: &End, mode: Mode, local: SocketAddr) -> Socket {
    let builder = Socket::builder().method(Method::Xdp).receive_metadata(true).receive_times(true);
    let port = Port::builder(end.interface()).mode(mode);
    end.namespace().run(|| builder.port(port).bind(local)).expect("opened")
}

/// Each datagram's first byte, what is known about it, and whether it was copied.
fn receive_metadata(socket: &mut Socket, count: usize) -> Vec<(u8, Metadata, bool)> {
    let mut received = Vec::new();
    let give_up = Instant::now() + PATIENCE;
    while received.len() < count {
        assert!(Instant::now() < give_up, "only {} of {count} came", received.len());
        for datagram in socket.receiver().receive_timeout(PATIENCE).unwrap() {
            let (first, metadata, owned) = (datagram[0], datagram.metadata(), datagram.take());
            assert_eq!(owned.metadata(), metadata);
            received.push((first, metadata, Frame::try_from(Buffer::from(owned)).is_err()));
        }
    }
    received
}

#[test]
fn a_port_socket_reports_metadata_from_port_and_kernel() {
    for mode in [Mode::XdpCopyNative, Mode::XdpCopyGeneric, Mode::PacketRing] {
        let lab = lab!();
        let local = SocketAddr::new(lab.left().ipv4().into(), 7700);
        let mut socket = open_socket_over_port(lab.left(), mode, local);
        let remote = SocketAddr::new(lab.right().ipv4().into(), 7701);
        let peer = lab.right().namespace().run(|| UdpSocket::bind(remote).unwrap());
        // The second: longer than the MTU, so in fragments, which the kernel joins.
        for (bytes, is_through_kernel) in [(100, false), (3000, true)] {
            for codepoint in CODEPOINTS {
                set_codepoint(SockRef::from(&peer), local, codepoint);
                peer.send_to(&vec![codepoint as u8; bytes], local).unwrap();
            }
            for (codepoint, metadata, copied) in receive_metadata(&mut socket, 4) {
                let at = format!("{mode}, {bytes} bytes: {metadata:?}");
                assert_eq!(metadata.ecn, Some(ecn_of(codepoint.into())), "{at}");
                assert_eq!((metadata.segment_bytes, copied), (bytes, is_through_kernel), "{at}");
                let own = Some(local.ip());
                assert_eq!((metadata.destination, metadata.reply_from), (own, own), "{at}");
                assert_eq!(metadata.interface, Some(lab.left().index()), "{at}");
                // The other modes have times only if the port was opened for them.
                let has_time = is_through_kernel || mode == Mode::PacketRing;
                assert_eq!(metadata.time.map(|time| time.clock), has_time.then_some(Clock::Realtime), "{at}");
            }
        }
    }
}
