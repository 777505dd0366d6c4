//! Packets taken by a port and returned to the host, in a private lab.
//!
//! ```text
//!   left: a port in place of a host ──── right: a port that takes everything, and the host behind it
//! ```

use std::net::{Ipv4Addr, UdpSocket};

use nocopy::integration::PortTuning;
use nocopy::port::ToHostError;
use nocopy::{Chain, Evidence, Mode, Port};
use nocopy_lab::patience::{PATIENCE, uninterrupted};
use nocopy_lab::{End, Lab};
use nocopy_proto::wire::vlan::TagControl;
use nocopy_proto::wire::{EtherType, MacAddress, arp, ethernet};
use nocopy_proto::{IpAddresses, UdpChecksum, UdpFrame};

const UDP_PORT: u16 = 7100;

fn open_in_mode(end: &End, mode: Mode) -> Port {
    end.namespace().run(|| Port::builder(end.interface()).mode(mode).open()).unwrap()
}

fn send_packet(port: &mut Port, packet: &[u8]) {
    let mut frame = port.sender().buffer().unwrap();
    frame.fill(packet).unwrap();
    port.sender().send(frame).unwrap();
    port.sender().flush().unwrap();
}

/// Takes one packet and returns it to the host; also returns a copy of it.
fn hand_over_one_packet(port: &mut Port, end: &End) -> Vec<u8> {
    let mut host = port.receiver().to_host().unwrap();
    let mut batch = port.receiver().receive_timeout(PATIENCE).unwrap();
    let frame = batch.next().expect("a packet").take();
    drop(batch);
    end.namespace().run(|| host.hand_over(&frame)).unwrap();
    assert_eq!((host.stats().moved, host.stats().get("refused").unwrap()), (1, 0));
    let packet = frame.to_vec();
    port.receiver().recycle(frame);
    packet
}

fn assert_nothing_left(port: &mut Port) {
    assert!(port.receiver().try_receive().unwrap().is_empty(), "the port sees what it handed to the host");
    assert!(port.sender().drain(PATIENCE).unwrap());
    let balance = port.balance();
    assert!(balance.is_balanced() && balance.in_use == 0, "{balance}");
}

fn udp_packet(lab: &Lab, vlan: Option<TagControl>, payload: &[u8]) -> Vec<u8> {
    let headers = UdpFrame {
        source_mac: MacAddress(lab.left().mac()),
        destination_mac: MacAddress(lab.right().mac()),
        vlan,
        addresses: IpAddresses::V4 { source: lab.left().ipv4(), destination: lab.right().ipv4() },
        traffic_class: 0,
        hop_limit: 64,
        source_port: 7000,
        destination_port: UDP_PORT,
        checksum: UdpChecksum::Computed,
    };
    let mut packet = vec![0; headers.header_bytes()];
    headers.emit_headers(&mut packet, payload).unwrap();
    packet.extend_from_slice(payload);
    packet
}

fn arp_request(lab: &Lab, sender_ip: Ipv4Addr) -> Vec<u8> {
    let (sender_mac, target_ip) = (MacAddress(lab.left().mac()), lab.right().ipv4());
    let mut packet = vec![0; 14 + 28];
    let header =
        ethernet::Repr { destination: MacAddress([0xff; 6]), source: sender_mac, ether_type: EtherType::ARP };
    header.emit(&mut packet).unwrap();
    let (operation, target_mac) = (arp::Operation::REQUEST, MacAddress([0; 6]));
    let request = arp::Repr { operation, sender_mac, sender_ip, target_mac, target_ip };
    request.emit(&mut packet[14..]).unwrap();
    packet
}

/// Captures every packet of an interface, as tcpdump does.
fn open_tap_socket(end: &End) -> rustix::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, sockopt};
    let all = rustix::net::Protocol::from_raw(std::num::NonZero::new(3_u32.swap_bytes() >> 16).unwrap());
    end.namespace().run(|| {
        let socket =
            rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, Some(all));
        let socket = socket.unwrap();
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
        assert_eq!(netdevice::name_to_index(&socket, end.interface()).unwrap(), end.index());
        socket
    })
}

/// In both places of a port's program: in the driver, and in the stack, where it sees returned packets again
/// and must let them pass.
#[test]
fn the_host_answers_packets_that_a_port_hands_over() {
    for mode in [Mode::XdpCopyNative, Mode::XdpCopyGeneric] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let (mut left, mut right) =
            (open_in_mode(lab.left(), Mode::XdpCopyNative), open_in_mode(lab.right(), mode));
        assert_eq!(right.mode(), mode);
        let address = (lab.right().ipv4(), UDP_PORT);
        let socket = lab.right().namespace().run(|| UdpSocket::bind(address).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let tap = open_tap_socket(lab.right());
        let mut buffer = [0; 2048];
        for payload in [&b"a datagram for the host"[..], &[7; 1400]] {
            let sent = udp_packet(&lab, None, payload);
            send_packet(&mut left, &sent);
            assert!(hand_over_one_packet(&mut right, lab.right()) == sent);
            let (bytes, from) = uninterrupted(|| socket.recv_from(&mut buffer)).unwrap();
            assert_eq!((&buffer[..bytes], from), (payload, (lab.left().ipv4(), 7000).into()), "{mode}");
            let (bytes, _) = uninterrupted(|| {
                Ok(rustix::net::recv(&tap, &mut buffer[..], rustix::net::RecvFlags::empty())?)
            })
            .unwrap();
            assert!(buffer[..bytes] == sent, "{mode}: the host sees other bytes than the port did");
            assert_nothing_left(&mut right);
        }
        let asker = Ipv4Addr::new(10, 77, 0, 99);
        send_packet(&mut left, &arp_request(&lab, asker));
        hand_over_one_packet(&mut right, lab.right());
        let answer = left.receiver().receive_timeout(PATIENCE).unwrap().next().expect("an answer").to_vec();
        let answer = arp::Packet::parse(&answer[14..]).unwrap();
        assert_eq!((answer.operation(), answer.target_ip()), (arp::Operation::REPLY, asker));
        assert_eq!(answer.sender_mac(), MacAddress(lab.right().mac()));
        assert_nothing_left(&mut right);
    }
}

/// A host verifies what arrives on its interface, and here the checksum was left to a card.
#[test]
fn an_unfinished_checksum_is_finished_for_the_host() {
    for mode in [Mode::XdpCopyNative, Mode::XdpCopyGeneric] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let mut right = open_in_mode(lab.right(), mode);
        let sockets = [lab.left(), lab.right()].map(|end| {
            let socket = end.namespace().run(|| UdpSocket::bind((end.ipv4(), UDP_PORT)).unwrap());
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        });
        lab.left().set_tx_checksum(true).unwrap();
        let mut buffer = [0; 2048];
        for payload in [&b"left to a card"[..], &[7; 1400]] {
            sockets[0].send_to(payload, (lab.right().ipv4(), UDP_PORT)).unwrap();
            hand_over_one_packet(&mut right, lab.right());
            let bytes = uninterrupted(|| sockets[1].recv(&mut buffer)).unwrap();
            assert_eq!(&buffer[..bytes], payload, "{mode}");
        }
        assert_nothing_left(&mut right);
    }
}

#[test]
fn a_tagged_packet_reaches_the_host_with_its_tag() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (mut left, mut right) =
        (open_in_mode(lab.left(), Mode::XdpCopyNative), open_in_mode(lab.right(), Mode::XdpCopyNative));
    let address = (lab.right().ipv4(), UDP_PORT);
    let socket = lab.right().namespace().run(|| UdpSocket::bind(address).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // VLAN 0 is only a priority, so the interface receives it; no interface has VLAN 5.
    for (vlan, arrives) in [(5_u16, false), (0, true)] {
        let sent = udp_packet(&lab, Some(TagControl(3 << 13 | vlan)), &vlan.to_be_bytes());
        send_packet(&mut left, &sent);
        assert!(hand_over_one_packet(&mut right, lab.right()) == sent);
        if arrives {
            let mut buffer = [0; 16];
            let bytes = uninterrupted(|| socket.recv(&mut buffer)).unwrap();
            assert_eq!(buffer[..bytes], vlan.to_be_bytes(), "VLAN 5 must not have come before");
        }
    }
    assert_nothing_left(&mut right);
}

/// Both ends of a lab have the same index in their namespaces: without the check, the packet would go to the
/// other host.
#[test]
fn handing_over_from_another_namespace_is_refused() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    assert_eq!(lab.left().index(), lab.right().index());
    let mut right = open_in_mode(lab.right(), Mode::XdpCopyNative);
    let tap = open_tap_socket(lab.left());
    let mut host = right.receiver().to_host().unwrap(); // which namespace it is made in does not matter
    let packet = udp_packet(&lab, None, b"lost");
    let error = lab.left().namespace().run(|| host.hand_over(&packet)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nc1: not handed to the host; this thread is in another network namespace than the port, and the kernel would look for the interface there; call from a thread in the namespace the port was opened in"
    );
    assert_eq!((host.stats().moved, host.stats().get("refused").unwrap()), (0, 1));
    let now = rustix::net::recv(&tap, &mut [0_u8; 64][..], rustix::net::RecvFlags::DONTWAIT);
    assert_eq!(now.unwrap_err(), rustix::io::Errno::AGAIN, "the other host received it");
}

#[test]
fn refused_packets_for_the_host_name_the_cause() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (mut memory, _peer) = Port::memory_pair().unwrap();
    assert!(matches!(memory.receiver().to_host().unwrap_err(), ToHostError::MemoryPort));
    let mut ring = open_in_mode(lab.left(), Mode::PacketRing);
    assert!(matches!(ring.receiver().to_host().unwrap_err(), ToHostError::HostHasThem { .. }));
    drop(ring);
    let mut right = open_in_mode(lab.right(), Mode::XdpCopyNative);
    let mut host = right.receiver().to_host().unwrap();
    assert_eq!(host.ledger().bytes_of(Evidence::ZeroCopy), 0);
    let mut hand_over = |packet: &[u8]| lab.right().namespace().run(|| host.hand_over(packet));
    assert!(matches!(hand_over(&[0; 13]).unwrap_err(), ToHostError::TooShort { bytes: 13, .. }));
    hand_over(&[0; 14]).unwrap();
    hand_over(&[0; 3072]).unwrap();
    let error = hand_over(&[0; 4096]).unwrap_err();
    assert!(matches!(error, ToHostError::TooLong { bytes: 4096, .. }), "{error}");
    lab.delete_pair().unwrap();
    let error = hand_over(&[0; 64]).unwrap_err();
    assert!(matches!(error, ToHostError::Gone { .. }), "{error}");
    assert_eq!((host.stats().moved, host.stats().get("refused").unwrap()), (2, 3));
    assert!(matches!(right.receiver().to_host().unwrap_err(), ToHostError::Gone { .. }));
}

/// In the mode that needs a program on the interface for this, none is left.
#[test]
fn the_host_path_outlives_its_port_and_leaves_no_program() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let mut right = open_in_mode(lab.right(), Mode::XdpCopyGeneric);
    let mut host = right.receiver().to_host().unwrap();
    drop(right);
    assert_eq!(lab.right().xdp_program().unwrap(), None);
    let address = (lab.right().ipv4(), UDP_PORT);
    let socket = lab.right().namespace().run(|| UdpSocket::bind(address).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let packet = udp_packet(&lab, None, b"late");
    lab.right().namespace().run(|| host.hand_over(&packet)).unwrap();
    assert_eq!(uninterrupted(|| socket.recv(&mut [0; 16])).unwrap(), 4);
    assert_eq!(lab.right().xdp_program().unwrap(), None);
}

#[test]
fn a_chain_reaches_the_host_as_one_packet() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    for mode in [Mode::XdpCopyNative, Mode::XdpCopyGeneric] {
        let mut right = open_in_mode(lab.right(), mode);
        let mut host = right.receiver().to_host().unwrap();
        let address = (lab.right().ipv4(), UDP_PORT);
        let socket = lab.right().namespace().run(|| UdpSocket::bind(address).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let payload: Vec<u8> = (0..1400).map(|at| at as u8).collect();
        let packet = udp_packet(&lab, None, &payload);
        // Cut at any place, also inside a header.
        let chain: Chain<Vec<u8>> =
            [&packet[..20], &packet[20..700], &packet[700..]].map(<[u8]>::to_vec).into_iter().collect();
        for _ in 0..2 {
            lab.right().namespace().run(|| host.hand_over(&chain.to_vec())).unwrap();
            let mut buffer = [0; 2048];
            let bytes = uninterrupted(|| socket.recv(&mut buffer)).unwrap();
            assert!(buffer[..bytes] == payload, "{mode}: {bytes} B");
        }
        assert_eq!(host.stats().moved, 2);
    }
}

/// A thread without capabilities uses what was prepared with them, and cannot prepare it itself.
#[test]
fn a_host_path_prepared_at_open_works_after_dropping_privileges() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    for mode in [Mode::XdpCopyNative, Mode::XdpCopyGeneric] {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let end = lab.right();
        let open = |way| {
            end.namespace().run(|| {
                Port::builder(end.interface())
                    .mode(mode)
                    .tuning(PortTuning { prepare_host_path: way, ..PortTuning::default() })
                    .open()
                    .unwrap()
            })
        };
        let address = (end.ipv4(), UDP_PORT);
        let socket = end.namespace().run(|| UdpSocket::bind(address).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let packet = udp_packet(&lab, None, b"without");
        // On a thread of its own, which cannot regain capabilities.
        let unprivileged = |mut port: Port| {
            let packet = &packet;
            let to_host = move || {
                set_capabilities(None, none).unwrap();
                let done = port.receiver().to_host().and_then(|mut host| host.hand_over(packet));
                (port, done)
            };
            let (_port, done) =
                end.namespace().run(|| std::thread::scope(|scope| scope.spawn(to_host).join().unwrap()));
            done
        };
        let error = unprivileged(open(false)).unwrap_err();
        assert!(matches!(error, ToHostError::Program(_) | ToHostError::System { .. }), "{mode}: {error}");
        unprivileged(open(true)).unwrap();
        assert_eq!(uninterrupted(|| socket.recv(&mut [0; 16])).unwrap(), 7, "{mode}");
    }
}
