//! What is set for single datagrams: ECN and the source address, by every method and over a port.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use nocopy::udp::{Ancillary, Ecn, Message, Method, Socket};
use nocopy::{Buffer, Mode, Pool, Port, Reason};
use nocopy_lab::{ipv6_or_skip, without_missing_ipv6};

use crate::common::calls::count_calls;
use crate::common::methods::available_methods;
use crate::common::{PATIENCE, lab};

/// All methods except ports.
const METHODS: [Method; 7] = [
    Method::Socket,
    Method::SendMmsg,
    Method::Gso,
    Method::ZeroCopy,
    Method::ZeroCopyGso,
    Method::UringZeroCopy,
    Method::UringZeroCopyGso,
];

const ALL_ECN: [Ecn; 4] = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];

fn with_ecn(ecn: Ecn) -> Ancillary {
    Ancillary { ecn: Some(ecn), ..Ancillary::default() }
}

fn with_source(source: impl Into<IpAddr>) -> Ancillary {
    Ancillary { source: Some(source.into()), ..Ancillary::default() }
}

/// A receiver that reports metadata: with buffers for runs, or for one datagram each.
fn receiver_at(bind: SocketAddr, coalesces: bool) -> Socket {
    let pool = Pool::new(64, if coalesces { 1 << 16 } else { 4096 }).unwrap();
    let builder = Socket::builder().receive_pool(&pool).receive_buffer(4 << 20);
    builder.receive_metadata(true).bind(bind).unwrap()
}

/// The first byte of each datagram, its length, its ECN and its source.
fn receive_all(receiver: &mut Socket, count: usize) -> Vec<(u8, usize, Option<Ecn>, IpAddr)> {
    let mut received = Vec::new();
    let give_up = Instant::now() + PATIENCE;
    while received.len() < count {
        assert!(Instant::now() < give_up, "only {} of {count} came", received.len());
        for datagram in receiver.receiver().receive_timeout(PATIENCE).unwrap() {
            let source = datagram.source().ip().to_canonical();
            received.push((datagram[0], datagram.len(), datagram.metadata().ecn, source));
        }
    }
    received
}

/// Proves that each datagram of a burst has the value of its message, also if the next message differs.
#[test]
fn each_datagram_has_the_ecn_of_its_message() {
    // The last: an IPv6 socket that sends over IPv4.
    let addresses = [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::ffff:127.0.0.1", "127.0.0.1")];
    for (from, to) in without_missing_ipv6(addresses, |(from, _)| from.contains(':')) {
        for (method, coalesces) in
            available_methods(METHODS).flat_map(|method| [(method, true), (method, false)])
        {
            let mut receiver = receiver_at(SocketAddr::new(to.parse().unwrap(), 0), coalesces);
            let mut to = receiver.local_addr().unwrap();
            let from: IpAddr = from.parse().unwrap();
            if let (IpAddr::V4(ip), IpAddr::V6(_)) = (to.ip(), from) {
                to.set_ip(ip.to_ipv6_mapped().into());
            }
            let mut socket = Socket::builder().method(method).bind((from, 0)).unwrap();
            for ecn in [ALL_ECN, ALL_ECN].concat() {
                let message = Message::segments(vec![ecn.bits(); 3050], 1000);
                socket.sender().send_with(message, to, with_ecn(ecn)).unwrap();
                socket.sender().send_with(vec![ecn.bits(); 10], to, with_ecn(ecn)).unwrap();
            }
            socket.sender().send_to(vec![0; 20], to).unwrap(); // is not one of them
            assert!(socket.sender().drain(PATIENCE).unwrap());
            socket.sender().send_copy_with(&[1; 30], to, with_ecn(Ecn::Ect1)).unwrap();
            let received = receive_all(&mut receiver, 8 * 5 + 2);
            let lengths: Vec<usize> = received.iter().map(|(_, bytes, ..)| *bytes).collect();
            let expected = [[1000, 1000, 1000, 50, 10].repeat(8), vec![20, 30]].concat();
            assert_eq!(lengths, expected, "{from} {method}");
            for (bits, bytes, ecn, _) in received {
                assert_eq!(ecn.map(Ecn::bits), Some(bits), "{from} {method}: of {bytes} bytes");
            }
        }
    }
}

#[test]
fn datagrams_come_from_the_given_source() {
    let mut sockets = vec![("0.0.0.0", vec!["127.0.0.1", "127.0.0.2"])];
    if ipv6_or_skip() {
        sockets.push(("::", vec!["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.3"]));
    }
    for (bind, sources) in sockets {
        for method in available_methods(METHODS) {
            for (source, is_connected) in sources.iter().flat_map(|source| [(source, false), (source, true)])
            {
                let source: IpAddr = source.parse().unwrap();
                let at: IpAddr = if source.to_canonical().is_ipv4() { [127, 0, 0, 1].into() } else { source };
                let mut receiver = receiver_at(SocketAddr::new(at, 0), true);
                let mut to = receiver.local_addr().unwrap();
                if let (IpAddr::V4(ip), "::") = (to.ip(), bind) {
                    to.set_ip(ip.to_ipv6_mapped().into());
                }
                let mut socket = Socket::builder().method(method).bind((bind, 0)).unwrap();
                if is_connected {
                    socket.connect(to).unwrap();
                }
                let ancillary = Ancillary { ecn: Some(Ecn::Ect0), ..with_source(source) };
                let message = Message::segments(vec![7; 3000], 1000);
                socket.sender().send_with(message, to, ancillary).unwrap();
                socket.sender().send_with(vec![7; 10], to, with_source(source)).unwrap();
                assert!(socket.sender().drain(PATIENCE).unwrap());
                socket.sender().send_copy_with(&[7; 20], to, ancillary).unwrap();
                for (_, bytes, ecn, from) in receive_all(&mut receiver, 5) {
                    assert_eq!(from, source.to_canonical(), "{bind} {method}: of {bytes} bytes");
                    let expected = if bytes == 10 { Ecn::NotEct } else { Ecn::Ect0 };
                    assert_eq!(ecn, Some(expected), "{bind} {method}: of {bytes} bytes");
                }
            }
        }
    }
}

#[test]
fn a_source_that_is_not_the_hosts_is_refused_by_name() {
    let mut sockets = vec![("0.0.0.0", "127.0.0.1")];
    if ipv6_or_skip() {
        sockets.extend([("::", "::ffff:127.0.0.1"), ("::", "::1")]);
    }
    let foreign = [
        "192.0.2.1",
        "0.0.0.0",
        "255.255.255.255",
        "127.255.255.255",
        "224.0.0.1",
        "::",
        "2001:db8::1",
        "fe80::1",
        "ff02::1",
    ];
    for (bind, to) in sockets {
        let receiver = UdpSocket::bind((to, 0)).unwrap();
        let to = receiver.local_addr().unwrap();
        let mut socket = Socket::bind((bind, 0)).unwrap();
        for source in foreign.map(|source| source.parse::<IpAddr>().unwrap()) {
            let rejected = socket.sender().send_with(vec![7; 9], to, with_source(source)).unwrap_err();
            assert_eq!(&*rejected.item.pieces()[0], [7; 9], "it comes back");
            let text = rejected.reason.to_string();
            assert!(
                matches!(rejected.reason, Reason::ForeignSource { address } if address == source),
                "{text}"
            );
            assert!(text.contains(&format!("from {source}; ")), "{text}");
            let reason = socket.sender().send_copy_with(&[7; 9], to, with_source(source)).unwrap_err();
            assert!(matches!(reason, Reason::ForeignSource { .. }), "{reason}");
        }
        // An address of the host, but of the other IP version.
        let other: IpAddr =
            if to.ip().to_canonical().is_ipv4() { "::1".parse().unwrap() } else { [127, 0, 0, 1].into() };
        let rejected = socket.sender().send_with(vec![7; 9], to, with_source(other)).unwrap_err();
        assert!(matches!(rejected.reason, Reason::ForeignSource { .. }), "{rejected}");
        // The probes sent nothing, and left the socket as it was.
        socket.sender().send_to(b"the first".to_vec(), to).unwrap();
        socket.sender().flush().unwrap();
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = [0; 20];
        let length = receiver.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"the first");
        assert_eq!(socket.sender().stats().get("refused"), Some(0));
    }
}

#[test]
fn a_change_within_a_queue_costs_one_call() {
    const CALLS: &[libc::c_long] = &[libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_sendmmsg];
    let to = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = to.local_addr().unwrap();
    for method in [Method::Gso, Method::SendMmsg] {
        let calls_of = |kinds: &[Ancillary]| {
            let mut socket = Socket::builder().method(method).bind("0.0.0.0:0").unwrap();
            let sender = socket.sender();
            // Known before, so that no source is checked below.
            for ancillary in kinds {
                sender.send_with(vec![0; 100], to, *ancillary).unwrap();
            }
            sender.flush().unwrap();
            let ((), calls) = count_calls(|| {
                for ancillary in kinds {
                    for _ in 0..20 {
                        sender.send_with(vec![0; 100], to, *ancillary).unwrap();
                    }
                }
                sender.flush().unwrap();
            });
            calls.count_of(CALLS)
        };
        let source = with_source(Ipv4Addr::new(127, 0, 0, 2));
        let without_change = calls_of(&[with_ecn(Ecn::Ect0)]);
        assert_eq!(without_change, 1, "{method}");
        let kinds = [with_ecn(Ecn::Ect0), with_ecn(Ecn::Ce), source, Ancillary::default()];
        assert_eq!(calls_of(&kinds), without_change + 3, "{method}");
    }
}

/// The class, the source and the length of the next UDP packets that the port receives, or of their
/// fragments.
fn receive_headers(port: &mut Port, count: usize) -> Vec<(u8, Ipv4Addr)> {
    let mut seen = Vec::new();
    let give_up = Instant::now() + PATIENCE;
    while seen.len() < count {
        assert!(Instant::now() < give_up, "only {} of {count} came", seen.len());
        for packet in port.receiver().receive_timeout(PATIENCE).unwrap() {
            if packet[12..14] == [0x08, 0x00] && packet[23] == 17 {
                let source: [u8; 4] = packet[26..30].try_into().unwrap();
                seen.push((packet[15], source.into()));
            }
        }
    }
    seen
}

#[test]
fn ecn_and_source_are_in_the_headers_of_a_port() {
    let lab = lab!();
    let (left, right) = (lab.left(), lab.right());
    let second = Ipv4Addr::from_bits(left.ipv4().to_bits() | 0x80);
    let add = ["address", "add", &format!("{second}/32"), "dev", left.interface()];
    let done = left.namespace().run(|| std::process::Command::new("ip").args(add).status().unwrap());
    assert!(done.success(), "ip {add:?}");
    let mut raw =
        right.namespace().run(|| Port::builder(right.interface()).mode(Mode::XdpCopyNative).open()).unwrap();
    let local = SocketAddr::new(left.ipv4().into(), 7720);
    let remote = SocketAddr::new(right.ipv4().into(), 7729);
    let builder = Socket::builder().method(Method::Xdp);
    let port = Port::builder(left.interface()).mode(Mode::XdpCopyNative);
    let mut socket = left.namespace().run(|| builder.port(port).bind(local)).expect("opened");
    let sender = socket.sender();
    let (mut over_port, mut through_kernel) = (0, 0);
    for (ancillary, class, source) in [
        (Ancillary::default(), 0, left.ipv4()),
        (with_ecn(Ecn::Ect0), 0b10, left.ipv4()),
        (with_ecn(Ecn::Ce), 0b11, left.ipv4()),
        (Ancillary { ecn: Some(Ecn::Ect1), ..with_source(second) }, 0b01, second),
        (with_source(second), 0, second),
    ] {
        let mut frame = sender.buffer().unwrap();
        frame.fill(b"in a frame").unwrap();
        sender.send_with(frame, remote, ancillary).unwrap();
        sender.send_with(Buffer::from(b"copied".to_vec()), remote, ancillary).unwrap();
        sender.flush().unwrap();
        sender.send_copy_with(b"a slice", remote, ancillary).unwrap();
        sender.flush().unwrap();
        assert_eq!(receive_headers(&mut raw, 3), [(class, source); 3], "{ancillary:?}");
        sender.send_copy_with(&[7; 2000], remote, ancillary).unwrap(); // the kernel makes fragments of it
        assert_eq!(receive_headers(&mut raw, 2), [(class, source); 2], "{ancillary:?}");
        (over_port, through_kernel) = (over_port + 3, through_kernel + 1);
        let stats = sender.stats();
        assert_eq!(
            (stats.get("over_port").unwrap(), stats.get("through_kernel").unwrap()),
            (over_port, through_kernel)
        );
    }
    let rejected = sender.send_with(vec![7; 9], remote, with_source(right.ipv4())).unwrap_err();
    let expected = IpAddr::from(right.ipv4());
    assert!(
        matches!(rejected.reason, Reason::ForeignSource { address } if address == expected),
        "{rejected}"
    );
}
