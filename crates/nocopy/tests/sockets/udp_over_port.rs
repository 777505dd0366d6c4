//! UDP over a port with ordinary sockets as peers, in a private lab.
//!
//! ```text
//!   left: a socket over a port ──── right: an ordinary socket
//! ```

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::waiting::InspectedSocket;
use crate::common::{PATIENCE, area_with_frames_of, lab};
use nocopy::integration::PortTuning;
use nocopy::port::PortBuilder;
use nocopy::udp::{Builder, Message, Method, OpenError, Sender, Socket};
use nocopy::{Buffer, Cause, Evidence, Frame, Mode, Port, Reason};
use nocopy_lab::patience::uninterrupted;
use nocopy_lab::{End, Lab, has_ipv6_sockets, ipv6_sockets_or_skip, without_missing_ipv6_sockets};
use nocopy_proto::UdpChecksum;

/// Every pair of addresses has its own port numbers: a child forked by another test holds descriptors for a
/// moment after they are closed here.
static NEXT_PORT: AtomicU16 = AtomicU16::new(7200);

const LEFT_V6: &str = "fd77::1";
const RIGHT_V6: &str = "fd77::2";

fn run_ip_command(end: &End, arguments: &str) {
    let done = end.namespace().run(|| Command::new("ip").args(arguments.split(' ')).output().unwrap());
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Adds IPv6, with resolved neighbours, if the kernel has it.
fn add_lab_ipv6(lab: &Lab) {
    if !has_ipv6_sockets() {
        return;
    }
    for end in [lab.left(), lab.right()] {
        let setting = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", end.interface());
        end.namespace().run(|| std::fs::write(setting, "0").unwrap());
    }
    add_ipv6_addresses(lab, LEFT_V6, RIGHT_V6);
}

/// Addresses for both ends.
fn add_ipv6_addresses(lab: &Lab, left: &str, right: &str) {
    for (end, own, other, peer) in
        [(lab.left(), left, right, lab.right()), (lab.right(), right, left, lab.left())]
    {
        let name = end.interface();
        run_ip_command(end, &format!("-6 address add {own}/64 dev {name} nodad"));
        let mac: Vec<String> = peer.mac().iter().map(|byte| format!("{byte:02x}")).collect();
        run_ip_command(
            end,
            &format!("-6 neighbour add {other} lladdr {} dev {name} nud permanent", mac.join(":")),
        );
        // The kernel adds the local route later, in a worker (`addrconf_dad_work`).
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
        true => (LEFT_V6.parse().unwrap(), RIGHT_V6.parse().unwrap()),
        false => (lab.left().ipv4().into(), lab.right().ipv4().into()),
    };
    let port = NEXT_PORT.fetch_add(20, Ordering::Relaxed);
    (SocketAddr::new(pair.0, port), SocketAddr::new(pair.1, port + 1))
}

/// A socket that sends by the port if possible.
fn xdp_builder() -> Builder {
    Socket::builder().method(Method::Xdp)
}

fn open_socket(
    end: &End,
    local: SocketAddr,
    builder: Builder,
    set: impl FnOnce(PortBuilder) -> PortBuilder + Send,
) -> Result<Socket, OpenError> {
    end.namespace().run(|| builder.port(set(Port::builder(end.interface()))).bind(local))
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

fn filled_buffer(sender: &mut Sender, payload: &[u8]) -> Buffer {
    let mut frame = Frame::try_from(sender.buffer().expect("a free buffer").freeze()).expect("a frame");
    frame.fill(payload).expect("fits");
    frame.into()
}

fn receive_datagrams(socket: &mut Socket, count: usize) -> Vec<(SocketAddr, IpAddr, Buffer)> {
    let mut received = Vec::new();
    let own = socket.local_addr().unwrap().ip();
    let give_up = Instant::now() + PATIENCE;
    while received.len() < count {
        if Instant::now() >= give_up {
            let receiver = socket.receiver();
            let what = receiver.stats();
            panic!("only {} of {count} came: {what}", received.len());
        }
        for datagram in socket.receiver().receive_timeout(PATIENCE).unwrap() {
            let metadata = datagram.metadata();
            let to = metadata.destination.unwrap();
            if own.is_ipv4() {
                assert_eq!(metadata.reply_from, Some(own), "to {to}");
            }
            received.push((datagram.source(), to, datagram.take().into()));
        }
    }
    received
}

/// Closes the socket, and checks that the kernel has none of its frames and that the interface is unchanged.
fn close_and_check(end: &End, socket: Socket) {
    let (receiver, mut sender) = socket.split();
    assert!(sender.drain(PATIENCE).unwrap(), "frames stuck with the kernel");
    assert_eq!(sender.in_flight(), 0);
    assert_eq!(receiver.stats().faults + sender.stats().faults, 0);
    drop((receiver, sender));
    assert!(wait_until_true(|| end.xdp_program().unwrap().is_none()), "a program stayed on the interface");
}

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

/// Waits so long that the next datagram checks for notified changes: a sender checks at most once in a
/// millisecond. A longer wait does no harm: known routes expire within a second, but [`ChangeCount`] counts
/// only notified changes.
fn sleep_until_changes_are_checked() {
    std::thread::sleep(Duration::from_millis(2));
}

/// Changes notified to a sender so far.
struct ChangeCount(u64);

impl ChangeCount {
    fn of(socket: &mut Socket) -> Self {
        Self(socket.sender().stats().get("announced_changes").unwrap())
    }

    /// One more change was notified since, and used.
    fn assert_increased(&mut self, socket: &mut Socket, what: &str) {
        let Self(now) = Self::of(socket);
        assert!(now > self.0, "{what}: no announced change was noticed");
        self.0 = now;
    }
}

const MODES: [Mode; 3] = [Mode::XdpCopyNative, Mode::XdpCopyGeneric, Mode::PacketRing];

/// Each mode with IPv4 and, where the kernel has it, IPv6.
fn modes_and_ip_versions() -> impl Iterator<Item = (Mode, bool)> {
    let all = MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]);
    without_missing_ipv6_sockets(all, |(_, ipv6)| *ipv6)
}

/// Every method, every length and each checksum setting arrives unchanged at an ordinary socket; and in the
/// other direction.
#[test]
fn datagrams_go_both_ways_with_an_ordinary_socket() {
    let lab = lab!();
    add_lab_ipv6(&lab);
    for (mode, ipv6) in modes_and_ip_versions() {
        for checksum in [UdpChecksum::Computed, UdpChecksum::Omitted, UdpChecksum::Offloaded] {
            if ipv6 && checksum == UdpChecksum::Omitted {
                continue;
            }
            let what = format!("{mode}, ipv6 {ipv6}, {checksum:?}");
            let (local, remote) = lab_addresses(&lab, ipv6);
            let metadata = checksum == UdpChecksum::Offloaded && mode != Mode::PacketRing;
            let mut socket = open_socket(lab.left(), local, xdp_builder().checksum(checksum), |port| {
                port.mode(mode).send_metadata(metadata)
            })
            .expect(&what);
            let peer = kernel_socket_in(lab.right(), remote);
            let longest = if ipv6 { 1452 } else { 1472 };
            let lengths = [0, 1, 17, 18, 19, 512, longest - 1, longest];
            exchange_and_check(&mut socket, &peer, &lengths, &what);
            close_and_check(lab.left(), socket);
        }
    }
}

fn exchange_and_check(socket: &mut Socket, peer: &UdpSocket, lengths: &[usize], what: &str) {
    let (local, remote) = (socket.local_addr().unwrap(), peer.local_addr().unwrap());
    let sender = socket.sender();
    for (number, bytes) in lengths.iter().enumerate() {
        let payload = numbered_payload(number, *bytes);
        let frame = filled_buffer(sender, &payload);
        sender.send_to(frame, remote).expect(what);
        sender.send_copy_to(&payload, remote).expect(what);
    }
    sender.flush().unwrap();
    for (number, bytes) in lengths.iter().enumerate() {
        (0..2).for_each(|_| assert_received(peer, local, &numbered_payload(number, *bytes), what));
    }
    let (count, bytes) = (lengths.len() as u64, lengths.iter().sum::<usize>() as u64);
    let sent = sender.stats();
    assert_eq!(
        (sent.get("over_port").unwrap(), sent.get("over_port_bytes").unwrap()),
        (2 * count, 2 * bytes),
        "{what}"
    );
    assert_eq!(
        (sent.get("through_kernel").unwrap(), sent.get("through_kernel_bytes").unwrap()),
        (0, 0),
        "{what}: {sent:?}"
    );

    let (ledger, evidence) = (sender.ledger(), sender.explain().evidence);
    assert_eq!((ledger.datagrams(), ledger.bytes()), (2 * count, 2 * bytes), "{what}");
    let expected = [(evidence, bytes), (Evidence::Copied(Cause::Slice), bytes)];
    assert!(ledger.into_iter().eq(expected), "{what}: {ledger}");

    for (number, bytes) in lengths.iter().enumerate() {
        peer.send_to(&numbered_payload(number, *bytes), local).unwrap();
    }
    for (number, (from, to, came)) in receive_datagrams(socket, lengths.len()).into_iter().enumerate() {
        assert_eq!((from, to), (remote, local.ip()), "{what}");
        assert!(*came == numbered_payload(number, lengths[number]), "{what}: {} B", came.len());
        assert!(Frame::try_from(came).is_ok(), "{what}");
    }
    let received = socket.receiver().stats();
    assert_eq!(
        (received.get("over_port").unwrap(), received.get("over_port_bytes").unwrap()),
        (count, bytes),
        "{what}"
    );
    assert_eq!(
        (
            received.get("strays").unwrap(),
            received.get("bad_checksums").unwrap(),
            received.get("to_host").unwrap(),
            received.get("lost").unwrap()
        ),
        (0, 0, 0, 0),
        "{what}"
    );
    assert_eq!(received.get("unfinished_checksums").unwrap(), count, "{what}: veth finishes none");
    assert!(socket.receiver().ledger().into_iter().eq([(evidence, bytes)]), "{what}");
    assert_eq!(socket.receiver().explain().evidence, evidence, "{what}");
    let mode_drops = if evidence == Evidence::Copied(Cause::PacketRing) { count } else { 0 };
    assert!(
        wait_until_true(|| socket.receiver().stats().get("sk_drops").unwrap() >= mode_drops),
        "{what}: the host's copies"
    );
    assert_eq!(socket.receiver().stats().get("sk_drops").unwrap(), mode_drops, "{what}: the host's copies");
    assert!(socket.receiver().try_receive().unwrap().next().is_none(), "{what}: something came twice");
}

#[test]
fn a_received_payload_is_forwarded_in_its_frame() {
    let lab = lab!();
    let (local, remote) = lab_addresses(&lab, false);
    let mut socket =
        open_socket(lab.left(), local, xdp_builder(), |port| port.mode(Mode::XdpCopyNative)).unwrap();
    let peer = kernel_socket_in(lab.right(), remote);
    for round in 0..50 {
        let payload = numbered_payload(round, round * 29);
        peer.send_to(&payload, local).unwrap();
        let (from, _, came) = receive_datagrams(&mut socket, 1).remove(0);
        let frame = Frame::try_from(came).expect("not copied");
        assert_eq!(frame.headroom_bytes(), 256 + 42);
        socket.sender().send_to(Buffer::from(frame), from).unwrap();
        socket.sender().flush().unwrap();
        assert_received(&peer, local, &payload, "echo");
    }
    close_and_check(lab.left(), socket);
}

#[test]
fn damaged_datagrams_are_counted_and_lost() {
    let lab = lab!();
    let (local, remote) = lab_addresses(&lab, false);
    let mut socket =
        open_socket(lab.left(), local, xdp_builder(), |port| port.mode(Mode::XdpCopyNative)).unwrap();
    let mut other = common::open_port_with(lab.right(), |port| port.mode(Mode::XdpCopyNative)).unwrap();
    let flow = nocopy_proto::UdpFrame {
        source_mac: nocopy_proto::MacAddress(lab.right().mac()),
        destination_mac: nocopy_proto::MacAddress(lab.left().mac()),
        vlan: None,
        addresses: nocopy_proto::IpAddresses::new(remote.ip(), local.ip()).unwrap(),
        traffic_class: 0,
        hop_limit: 64,
        source_port: remote.port(),
        destination_port: local.port(),
        checksum: UdpChecksum::Computed,
    };
    let whole = |checksum, damage: usize| {
        let mut packet = vec![0; 42 + 100];
        let (headers, payload) = packet.split_at_mut(42);
        nocopy_proto::UdpFrame { checksum, ..flow }.emit_headers(headers, payload).unwrap();
        packet[damage] ^= 0x10;
        packet
    };
    // In the payload, with a checksum and without; in the UDP length; in the IP header.
    let packets = [
        whole(UdpChecksum::Computed, 99),
        whole(UdpChecksum::Omitted, 99),
        whole(UdpChecksum::Computed, 38),
        whole(UdpChecksum::Computed, 22),
    ];
    common::send_packets(&mut other, &packets);
    // Returning packets to the host works in the port's namespace.
    lab.left().namespace().run(|| {
        let received = receive_datagrams(&mut socket, 1);
        assert_eq!(received[0].2[99 - 42], 0x10, "without checksum nobody knows");
        drop(received);
        let give_up = Instant::now() + PATIENCE;
        while socket.receiver().stats().get("to_host").unwrap() < 2 && Instant::now() < give_up {
            let _ = socket.receiver().receive_timeout(Duration::from_millis(20)).unwrap().count();
        }
    });
    let received = socket.receiver().stats();
    assert_eq!(
        (
            received.get("over_port").unwrap(),
            received.get("bad_checksums").unwrap(),
            received.get("to_host").unwrap(),
            received.get("lost").unwrap()
        ),
        (1, 1, 2, 0)
    );
    close_and_check(lab.left(), socket);
}

#[test]
fn multicast_groups_are_sent_to_and_received_from() {
    let lab = lab!();
    add_lab_ipv6(&lab);
    let left = lab.left();
    for (mode, ipv6) in modes_and_ip_versions() {
        let (local, remote) = lab_addresses(&lab, ipv6);
        let (v4, v6): (Ipv4Addr, Ipv6Addr) = ("239.77.1.2".parse().unwrap(), "ff05::77:1".parse().unwrap());
        let group: IpAddr = if ipv6 { v6.into() } else { v4.into() };
        let mut socket =
            open_socket(left, local, xdp_builder().group(group), |port| port.mode(mode)).unwrap();
        let member = kernel_socket_in(lab.right(), SocketAddr::new(group, local.port()));
        let peer = kernel_socket_in(lab.right(), remote);
        let index = lab.right().index();
        lab.right().namespace().run(|| match group {
            IpAddr::V4(_) => {
                member.join_multicast_v4(&v4, &lab.right().ipv4()).unwrap();
                socket2::SockRef::from(&peer).set_multicast_if_v4(&lab.right().ipv4()).unwrap();
            }
            IpAddr::V6(_) => {
                member.join_multicast_v6(&v6, index).unwrap();
                socket2::SockRef::from(&peer).set_multicast_if_v6(index).unwrap();
            }
        });
        let what = format!("{mode}, {group}");
        socket.sender().send_copy_to(b"to all of us", SocketAddr::new(group, local.port())).expect(&what);
        socket.sender().flush().unwrap();
        assert_received(&member, local, b"to all of us", &what);
        assert_eq!(
            (
                socket.sender().stats().get("over_port").unwrap(),
                socket.sender().stats().get("through_kernel").unwrap()
            ),
            (1, 0),
            "{what}"
        );

        let memberships = left.namespace().run(|| {
            let mut command = Command::new("ip");
            String::from_utf8(
                command.args(["maddress", "show", "dev", left.interface()]).output().unwrap().stdout,
            )
        });
        assert!(memberships.unwrap().contains(&group.to_string()), "{what}: the host is not a member");
        peer.send_to(b"to you all", SocketAddr::new(group, local.port())).unwrap();
        peer.send_to(b"to you alone", local).unwrap();
        let received = receive_datagrams(&mut socket, 2);
        assert_eq!(
            (&*received[0].2, received[0].0, received[0].1),
            (&b"to you all"[..], remote, group),
            "{what}"
        );
        assert_eq!((&*received[1].2, received[1].1), (&b"to you alone"[..], local.ip()), "{what}");
        drop(received);
        assert_eq!(
            (
                socket.receiver().stats().get("over_port").unwrap(),
                socket.receiver().stats().get("strays").unwrap()
            ),
            (2, 0),
            "{what}"
        );
        assert!(socket.receiver().try_receive().unwrap().next().is_none(), "{what}: something came twice");
        assert_receives_from_this_host(left, &mut socket, group, &what);
        close_and_check(left, socket);
    }
}

/// A program on the same host sends to the group.
fn assert_receives_from_this_host(end: &End, socket: &mut Socket, group: IpAddr, what: &str) {
    let local = socket.local_addr().unwrap();
    let here = kernel_socket_in(end, SocketAddr::new(local.ip(), local.port() + 7));
    end.namespace().run(|| match group {
        IpAddr::V4(_) => socket2::SockRef::from(&here).set_multicast_if_v4(&end.ipv4()).unwrap(),
        IpAddr::V6(_) => socket2::SockRef::from(&here).set_multicast_if_v6(end.index()).unwrap(),
    });
    let before = socket.receiver().stats().get("strays").unwrap();
    here.send_to(b"to us", SocketAddr::new(group, local.port())).unwrap();
    let (from, to, came) = receive_datagrams(socket, 1).remove(0);
    assert_eq!((from, to, &*came), (here.local_addr().unwrap(), group, &b"to us"[..]), "{what}");
    assert_eq!(socket.receiver().stats().get("strays").unwrap(), before + 1, "{what}");
}

/// Sends numbered datagrams, each with its own flush, until one is sent by the port; returns how many there
/// were.
fn send_until_over_port(socket: &mut Socket, to: SocketAddr, number: &mut u32) -> u32 {
    let first = *number;
    let before = socket.sender().stats().get("over_port").unwrap();
    let give_up = Instant::now() + PATIENCE;
    while socket.sender().stats().get("over_port").unwrap() == before {
        assert!(Instant::now() < give_up, "nothing goes over the port: {:?}", socket.sender().stats());
        socket.sender().send_copy_to(&number.to_be_bytes(), to).unwrap();
        socket.sender().flush().unwrap();
        *number += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    *number - first
}

/// The numbers that arrive until `last` does, each once.
fn receive_numbers_until(peer: &UdpSocket, last: u32) -> BTreeSet<u32> {
    let mut came = BTreeSet::new();
    let mut buffer = [0; 64];
    while !came.contains(&last) {
        let bytes = uninterrupted(|| peer.recv(&mut buffer))
            .unwrap_or_else(|error| panic!("{last} did not come: {error}: {came:?}"));
        let number = u32::from_be_bytes(buffer[..bytes].try_into().unwrap());
        assert!(came.insert(number), "{number} came twice");
    }
    came
}

#[test]
fn the_kernel_resolves_neighbours_and_changes_are_followed() {
    let lab = lab!();
    let (left, right) = (lab.left(), lab.right());
    let (local, remote) = lab_addresses(&lab, false);
    run_ip_command(left, "neighbour flush all nud permanent");
    run_ip_command(left, "neighbour flush all");
    let mut socket = open_socket(left, local, xdp_builder(), |port| port.mode(Mode::XdpCopyNative)).unwrap();
    let peer = kernel_socket_in(right, remote);
    let mut number = 0;
    let count = send_until_over_port(&mut socket, remote, &mut number);
    let sent = socket.sender().stats();
    assert_eq!(
        (sent.get("unresolved").unwrap(), sent.get("over_port").unwrap()),
        (u64::from(count) - 1, 1),
        "{sent:?}"
    );
    assert!(sent.get("unresolved").unwrap() >= 1);
    assert_eq!(
        receive_numbers_until(&peer, number - 1).len(),
        count as usize,
        "the kernel kept what it could not send yet"
    );

    // The peer gets another hardware address without an announcement: datagrams are lost until the host
    // notices.
    run_ip_command(right, "link set nc1 address 02:6e:63:00:00:99");
    run_ip_command(left, "neighbour flush all");
    let (first, mut noticed) = (number, ChangeCount::of(&mut socket));
    let count = send_until_over_port(&mut socket, remote, &mut number);
    noticed.assert_increased(&mut socket, "a flushed neighbour");
    let sent = socket.sender().stats();
    assert_eq!(
        sent.get("unresolved").unwrap() + sent.get("over_port").unwrap(),
        u64::from(number),
        "every datagram went one way: {sent:?}"
    );
    let came = receive_numbers_until(&peer, number - 1);
    let expected: BTreeSet<u32> = (first..first + count).collect();
    assert_eq!(came, expected, "flushed neighbours are forgotten at once");

    // And once more, when the kernel is told by an announcement.
    run_ip_command(right, "link set nc1 address 02:6e:63:00:00:aa");
    run_ip_command(left, "neighbour replace 10.77.0.2 lladdr 02:6e:63:00:00:aa dev nc0 nud reachable");
    sleep_until_changes_are_checked();
    let before = socket.sender().stats();
    socket.sender().send_copy_to(&number.to_be_bytes(), remote).unwrap();
    socket.sender().flush().unwrap();
    noticed.assert_increased(&mut socket, "a replaced neighbour");
    assert_eq!(receive_numbers_until(&peer, number), BTreeSet::from([number]));
    assert_eq!(socket.sender().stats().get("over_port").unwrap(), before.get("over_port").unwrap() + 1);
    close_and_check(left, socket);
}

fn neighbour_state(end: &End) -> String {
    let shown =
        end.namespace().run(|| Command::new("ip").args(["neighbour", "show", "10.77.0.2"]).output().unwrap());
    let shown = String::from_utf8(shown.stdout).unwrap();
    shown.split_whitespace().last().unwrap_or("none").to_owned()
}

/// The kernel does not see the neighbour's use, so the sender reports it.
#[test]
fn a_stale_neighbour_is_confirmed() {
    let lab = lab!();
    let left = lab.left();
    let (local, remote) = lab_addresses(&lab, false);
    run_ip_command(left, "neighbour replace 10.77.0.2 lladdr 02:6e:63:00:00:02 dev nc0 nud stale");
    let mut socket = open_socket(left, local, xdp_builder(), |port| port.mode(Mode::XdpCopyNative)).unwrap();
    let peer = kernel_socket_in(lab.right(), remote);
    assert_eq!(neighbour_state(left), "STALE");
    socket.sender().send_copy_to(b"hello", remote).unwrap();
    socket.sender().flush().unwrap();
    assert_received(&peer, local, b"hello", "to a stale neighbour");
    let state = neighbour_state(left);
    assert!(["DELAY", "PROBE", "REACHABLE"].contains(&&*state), "{state}");
    assert_eq!(
        (
            socket.sender().stats().get("over_port").unwrap(),
            socket.sender().stats().get("through_kernel").unwrap()
        ),
        (1, 0)
    );
    close_and_check(left, socket);
}

/// The kernel fragments what is longer than the MTU, also after a change of the MTU, and joins received
/// fragments.
#[test]
fn fragments_use_the_kernel_in_both_directions() {
    let lab = lab!();
    add_lab_ipv6(&lab);
    let (left, right) = (lab.left(), lab.right());
    for (mode, ipv6) in modes_and_ip_versions() {
        let what = format!("{mode}, ipv6 {ipv6}");
        let (local, remote) = lab_addresses(&lab, ipv6);
        left.set_mtu(1500).unwrap();
        let mut socket = open_socket(left, local, xdp_builder(), |port| port.mode(mode)).unwrap();
        let peer = kernel_socket_in(right, remote);
        let send = |socket: &mut Socket, bytes: usize| {
            sleep_until_changes_are_checked();
            let payload = numbered_payload(bytes, bytes);
            socket.sender().send_copy_to(&payload, remote).expect(&what);
            socket.sender().flush().unwrap();
            assert_received(&peer, local, &payload, &what);
            (
                socket.sender().stats().get("over_port").unwrap(),
                socket.sender().stats().get("too_long").unwrap(),
            )
        };
        assert_eq!(send(&mut socket, 1452), (1, 0), "{what}");
        assert_eq!(send(&mut socket, 4000), (1, 1), "{what}");
        let mut noticed = ChangeCount::of(&mut socket);
        left.set_mtu(1400).unwrap();
        assert_eq!(send(&mut socket, 1452), (1, 2), "{what}");
        noticed.assert_increased(&mut socket, &what);
        assert_eq!(send(&mut socket, 1300), (2, 2), "{what}");
        assert_eq!(socket.sender().stats().get("through_kernel_bytes").unwrap(), 4000 + 1452, "{what}");
        let long = numbered_payload(1, 1450);
        let frame = filled_buffer(socket.sender(), &long);
        socket.sender().send_to(frame, remote).unwrap();
        socket.sender().flush().unwrap();
        assert_received(&peer, local, &long, &what);
        assert_eq!(socket.sender().stats().get("too_long").unwrap(), 3, "{what}");

        left.set_mtu(1500).unwrap(); // a veth takes no more than that
        let long = numbered_payload(2, 4000);
        peer.send_to(&long, local).unwrap();
        let (from, to, came) = receive_datagrams(&mut socket, 1).remove(0);
        assert_eq!((from, to), (remote, local.ip()), "{what}");
        assert!(*came == long && Frame::try_from(came).is_err(), "{what}");
        let received = socket.receiver().stats();
        assert_eq!(
            (
                received.get("over_port").unwrap(),
                received.get("strays").unwrap(),
                received.get("stray_bytes").unwrap()
            ),
            (0, 1, 4000),
            "{what}"
        );
        let by_call = Evidence::Copied(Cause::SocketCall);
        assert!(socket.receiver().ledger().into_iter().eq([(by_call, 4000)]), "{what}");
        let kernel_bytes = socket.sender().stats().get("through_kernel_bytes").unwrap();
        assert_eq!(
            socket.sender().ledger().bytes_of(Evidence::Copied(Cause::SocketCall)),
            kernel_bytes,
            "{what}"
        );
        close_and_check(left, socket);
    }
}

/// Without the privilege to report a use, the kernel sends from time to time.
#[test]
fn without_the_privilege_the_kernel_confirms_by_sending() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let lab = lab!();
    let left = lab.left();
    let (local, remote) = lab_addresses(&lab, false);
    run_ip_command(left, "neighbour replace 10.77.0.2 lladdr 02:6e:63:00:00:02 dev nc0 nud stale");
    let mut socket = open_socket(left, local, xdp_builder(), |port| port.mode(Mode::XdpCopyNative)).unwrap();
    let peer = kernel_socket_in(lab.right(), remote);
    left.namespace().run(|| {
        let mut sets = capabilities(None).unwrap(); // of this thread, which ends with this block
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, sets).unwrap();
        for text in [&b"one"[..], b"two"] {
            socket.sender().send_copy_to(text, remote).unwrap();
            socket.sender().flush().unwrap();
            assert_received(&peer, local, text, "to a stale neighbour");
        }
    });
    assert_ne!(neighbour_state(left), "STALE");
    let sent = socket.sender().stats();
    assert_eq!(
        (
            sent.get("confirming").unwrap(),
            sent.get("over_port").unwrap(),
            sent.get("through_kernel").unwrap()
        ),
        (1, 1, 1)
    );
    close_and_check(left, socket);
}

/// Datagrams on other queues arrive through the kernel, once.
#[test]
fn datagrams_on_other_queues_use_the_kernel() {
    let lab = lab!(Lab::builder().queues(2));
    for mode in MODES {
        let (local, remote) = lab_addresses(&lab, false);
        let mut socket = open_socket(lab.left(), local, xdp_builder(), |port| port.mode(mode)).unwrap();
        // The sender's card spreads flows over its queues, and veth delivers on the same one.
        let mut came = Vec::new();
        let mut peers = Vec::new();
        for flow in 0..32_u16 {
            let peer = kernel_socket_in(lab.right(), SocketAddr::new(remote.ip(), 8000 + flow));
            (0..3_u16).for_each(|_| assert_eq!(peer.send_to(&flow.to_be_bytes(), local).unwrap(), 2));
            came.extend(receive_datagrams(&mut socket, 3));
            peers.push(peer);
        }
        // One more of each follows: a duplicate would arrive before it. One at a time: on a slow machine each
        // takes a block of a packet ring, which has few.
        for (flow, peer) in (0..32_u16).zip(&peers) {
            peer.send_to(&flow.to_be_bytes(), local).unwrap();
            came.extend(receive_datagrams(&mut socket, 1));
        }
        let mut counts = std::collections::BTreeMap::new();
        for (from, _, came) in came {
            assert_eq!(u16::from_be_bytes((&*came).try_into().unwrap()) + 8000, from.port());
            *counts.entry(from.port()).or_insert(0) += 1;
        }
        assert!(counts.len() == 32 && counts.values().all(|count| *count == 4), "{mode}: {counts:?}");
        assert!(!socket.receiver().arm().unwrap(), "{mode}: something came twice");
        let received = socket.receiver().stats();
        // veth records the queue only for the driver's own program: others see all on queue 0.
        let spread = mode == Mode::XdpCopyNative;
        assert!(
            received.get("over_port").unwrap() > 0 && (received.get("strays").unwrap() > 0 || !spread),
            "{mode}: {received:?}"
        );
        assert_eq!(received.get("over_port").unwrap() + received.get("strays").unwrap(), 128, "{mode}");
        close_and_check(lab.left(), socket);
    }
}

/// Over all queues nothing arrives through the kernel, and a socket sends frames that another received.
#[test]
fn sockets_of_all_queues_share_one_address() {
    let lab = lab!(Lab::builder().queues(2));
    for mode in MODES {
        let (local, remote) = lab_addresses(&lab, false);
        let area = area_with_frames_of(4096);
        let mut sockets = lab.left().namespace().run(|| {
            // A packet ring has few blocks: slow packets must not use one each.
            let tuning =
                PortTuning { block_timeout: Some(Duration::from_millis(100)), ..PortTuning::default() };
            let port = Port::builder(lab.left().interface()).mode(mode).tuning(tuning);
            let port = port.area(&area).frame_count(1024, 1024).ring_sizes(1024, 1024);
            xdp_builder().port(port).bind_queues(local).expect("opened")
        });
        assert!(sockets.len() == 2 && sockets.iter().all(|socket| socket.local_addr().unwrap() == local));
        let peers: Vec<UdpSocket> = (0..32)
            .map(|flow| kernel_socket_in(lab.right(), SocketAddr::new(remote.ip(), 8000 + flow)))
            .collect();
        for (flow, peer) in (0..32_u16).zip(&peers) {
            (0..3).for_each(|_| assert_eq!(peer.send_to(&flow.to_be_bytes(), local).unwrap(), 2));
        }
        let mut came = Vec::new();
        let all_came = wait_until_true(|| {
            for (queue, socket) in sockets.iter_mut().enumerate() {
                let batch = socket.receiver().receive_timeout(Duration::from_millis(1)).unwrap();
                came.extend(batch.map(|datagram| (queue, datagram.source(), datagram.take())));
            }
            came.len() >= 96
        });
        assert!(all_came && came.len() == 96, "{mode}: {} came", came.len());
        let counts = sockets.iter_mut().map(|socket| socket.receiver().stats());
        let (over_port, strays): (Vec<u64>, Vec<u64>) = counts
            .map(|received| (received.get("over_port").unwrap(), received.get("strays").unwrap()))
            .unzip();
        assert_eq!((over_port.iter().sum(), strays.iter().sum()), (96_u64, 0_u64), "{mode}");
        // veth records the queue only for the driver's own program: others see all on queue 0.
        assert!(mode != Mode::XdpCopyNative || over_port.iter().all(|count| *count > 0), "{over_port:?}");
        for (queue, from, payload) in came {
            let frame = Frame::try_from(Buffer::from(payload)).unwrap_or_else(|_| panic!("{mode}: copied"));
            let sender = sockets[1 - queue].sender();
            sender.send_to(Buffer::from(frame), from).unwrap();
            sender.flush().unwrap();
        }
        for (flow, peer) in (0..32_u16).zip(&peers) {
            (0..3).for_each(|_| assert_received(peer, local, &flow.to_be_bytes(), "echo"));
        }
        // In fragments: through the kernel, to whichever socket looks first.
        peers[0].send_to(&[7; 3000], local).unwrap();
        let came = wait_until_true(|| {
            sockets.iter_mut().any(|socket| {
                let batch = socket.receiver().receive_timeout(Duration::from_millis(1)).unwrap();
                batch.map(|datagram| assert_eq!(*datagram, [7; 3000])).count() == 1
            })
        });
        assert!(came, "{mode}: fragments were lost");
        assert!(sockets.iter_mut().all(|socket| socket.sender().drain(PATIENCE).unwrap()));
        drop(sockets);
        let balance = area.balance();
        assert!(balance.is_balanced() && balance.free == u64::from(balance.total), "{balance}");
        assert!(
            wait_until_true(|| lab.left().xdp_program().unwrap().is_none()),
            "a program stayed on the interface"
        );
        drop(kernel_socket_in(lab.left(), local)); // the port number is free again
    }
}

/// Sockets over all queues share the kernel's socket: its counts are in the stats of one of them, so that a
/// sum is right.
#[test]
fn sockets_of_all_queues_count_the_kernels_socket_once() {
    let lab = lab!(Lab::builder().queues(2));
    let (local, remote) = lab_addresses(&lab, false);
    let builder = xdp_builder().receive_buffer(4096);
    let mut sockets = lab.left().namespace().run(|| {
        let port = Port::builder(lab.left().interface()).mode(Mode::XdpCopyNative);
        builder.port(port).bind_queues(local).expect("opened")
    });
    let closed = SocketAddr::new(remote.ip(), remote.port() + 1);
    sockets[1].sender().send_copy_to(b"refused", closed).unwrap();
    sockets[1].sender().flush().unwrap();
    assert!(wait_until_true(|| sockets[1].sender().errors().count() > 0), "no error of the network");
    let peer_errors = sockets.iter_mut().map(|socket| socket.sender().stats().get("peer_errors").unwrap());
    assert_eq!(peer_errors.collect::<Vec<_>>(), [1, 0]);

    // In fragments: to the kernel's socket, which has room for few.
    let peer = kernel_socket_in(lab.right(), remote);
    let drops = |sockets: &mut [Socket]| -> Vec<u64> {
        let sk_drops = |socket: &mut Socket| socket.receiver().stats().get("sk_drops").unwrap();
        sockets.iter_mut().map(sk_drops).collect()
    };
    assert!(wait_until_true(|| {
        peer.send_to(&[7; 3000], local).unwrap();
        drops(&mut sockets).iter().any(|count| *count > 0)
    }));
    let counted = drops(&mut sockets);
    assert!(counted[0] > 0 && counted[1] == 0, "{counted:?}");
    let dropped = sockets.iter_mut().map(|socket| socket.receiver().stats().dropped);
    assert_eq!(dropped.sum::<u64>(), drops(&mut sockets)[0]);
}

/// Addresses that are valid on one link only.
#[test]
fn link_local_addresses_are_used_with_their_interface() {
    let lab = lab!();
    if !ipv6_sockets_or_skip() {
        return;
    }
    add_lab_ipv6(&lab);
    let (left, right) = (lab.left(), lab.right());
    add_ipv6_addresses(&lab, "fe80::77:1", "fe80::77:2");
    let port = lab_addresses(&lab, true).0.port();
    let address = |address: &str, port, scope| {
        SocketAddr::V6(std::net::SocketAddrV6::new(address.parse().unwrap(), port, 0, scope))
    };
    let local = address("fe80::77:1", port, left.index());
    let mut socket = open_socket(left, local, xdp_builder(), |port| port.mode(Mode::XdpCopyNative)).unwrap();
    let peer = kernel_socket_in(right, address("fe80::77:2", port + 1, right.index()));
    peer.send_to(b"hello", address("fe80::77:1", port, right.index())).unwrap();
    let (from, _, came) = receive_datagrams(&mut socket, 1).remove(0);
    assert_eq!((from, &*came), (address("fe80::77:2", port + 1, left.index()), &b"hello"[..]));
    socket.sender().send_copy_to(b"hello back", from).unwrap();
    socket.sender().flush().unwrap();
    assert_received(&peer, address("fe80::77:1", port, right.index()), b"hello back", "link-local");
    assert_eq!(
        (
            socket.sender().stats().get("over_port").unwrap(),
            socket.sender().stats().get("through_kernel").unwrap()
        ),
        (1, 0)
    );
    drop(came);
    close_and_check(left, socket);
}

#[test]
fn sockets_halves_and_owned_datagrams_are_send() {
    fn requires_send<T: Send>() {}
    requires_send::<Socket>();
    requires_send::<Sender>();
    requires_send::<nocopy::udp::Receiver>();
    requires_send::<nocopy::udp::OwnedDatagram>();
}

/// A changed route is followed: to another host, removed, to another interface, unreachable.
#[test]
fn changed_routes_are_followed() {
    let lab = lab!();
    let (left, right) = (lab.left(), lab.right());
    let (local, _) = lab_addresses(&lab, false);
    run_ip_command(right, "address add 10.9.0.1/32 dev lo");
    run_ip_command(left, "route add 10.9.0.0/16 via 10.77.0.2");
    let far: SocketAddr = "10.9.0.1:7201".parse().unwrap();
    let mut socket = open_socket(left, local, xdp_builder(), |port| port.mode(Mode::XdpCopyNative)).unwrap();
    let peer = kernel_socket_in(right, far);
    let send = |socket: &mut Socket, text: &[u8]| {
        sleep_until_changes_are_checked();
        let sent = socket.sender().send_copy_to(text, far);
        socket.sender().flush().unwrap();
        sent
    };
    send(&mut socket, b"by a router").unwrap();
    assert_received(&peer, local, b"by a router", "routed");
    let mut noticed = ChangeCount::of(&mut socket);
    run_ip_command(left, "route change 10.9.0.0/16 dev lo");
    send(&mut socket, b"by lo, which leads nowhere").unwrap();
    noticed.assert_increased(&mut socket, "a route onto another interface");
    run_ip_command(left, "route change blackhole 10.9.0.0/16");
    let refused = send(&mut socket, b"nowhere").unwrap_err();
    noticed.assert_increased(&mut socket, "a route to nowhere");
    assert!(matches!(refused, Reason::System(_)), "{refused}");
    run_ip_command(left, "route delete blackhole 10.9.0.0/16");
    assert!(matches!(send(&mut socket, b"nowhere").unwrap_err(), Reason::System(_)));
    run_ip_command(left, "route add 10.9.0.0/16 via 10.77.0.2 mtu 600");
    send(&mut socket, b"back again").unwrap();
    assert_received(&peer, local, b"back again", "routed again");
    let long = numbered_payload(1, 1000);
    send(&mut socket, &long).unwrap();
    assert_received(&peer, local, &long, "the route's MTU");
    let sent = socket.sender().stats();
    assert_eq!(
        (
            sent.get("over_port").unwrap(),
            sent.get("other_interface").unwrap(),
            sent.get("too_long").unwrap(),
            sent.get("through_kernel").unwrap()
        ),
        (2, 1, 1, 2),
        "{sent:?}"
    );
    close_and_check(left, socket);
}

/// Local and broadcast datagrams go through the kernel; datagrams from this host arrive through the kernel.
#[test]
fn this_host_is_reached_through_the_kernel() {
    let lab = lab!();
    for mode in MODES {
        let left = lab.left();
        let (local, _) = lab_addresses(&lab, false);
        let mut socket = open_socket(left, local, xdp_builder(), |port| port.mode(mode)).unwrap();
        let here = kernel_socket_in(left, SocketAddr::new(local.ip(), local.port() + 1));
        socket.sender().send_copy_to(b"hello, self", here.local_addr().unwrap()).unwrap();
        assert_received(&here, local, b"hello, self", "to this host");
        here.send_to(b"hello back", local).unwrap();
        let (from, _, came) = receive_datagrams(&mut socket, 1).remove(0);
        assert_eq!((from, &*came), (here.local_addr().unwrap(), &b"hello back"[..]));
        let refused =
            socket.sender().send_copy_to(b"all", SocketAddr::from(([10, 77, 0, 255], 9))).unwrap_err();
        let Reason::System(error) = refused else { panic!("{refused}") };
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "the kernel wants SO_BROADCAST");
        let (sent, received) = (socket.sender().stats(), socket.receiver().stats());
        assert_eq!(
            (
                sent.get("local").unwrap(),
                sent.get("broadcast").unwrap(),
                sent.get("over_port").unwrap(),
                sent.get("through_kernel_bytes").unwrap()
            ),
            (1, 0, 0, 11)
        );
        assert_eq!((received.get("strays").unwrap(), received.get("over_port").unwrap()), (1, 0), "{mode}");
        let ipv6 = socket
            .sender()
            .send_copy_to(b"other family", SocketAddr::from((Ipv6Addr::LOCALHOST, 9)))
            .unwrap_err();
        assert!(matches!(ipv6, Reason::System(_)), "{ipv6}");
        close_and_check(left, socket);
    }
}

#[test]
fn long_datagrams_use_several_frames() {
    let lab = lab!(Lab::builder().mtu(9000));
    for checksum in [UdpChecksum::Computed, UdpChecksum::Offloaded] {
        let (local, remote) = lab_addresses(&lab, false);
        let opened = open_socket(lab.left(), local, xdp_builder().checksum(checksum), |port| {
            port.mode(Mode::XdpCopyNative)
                .multi_buffer(true)
                .send_metadata(checksum == UdpChecksum::Offloaded)
        });
        let mut socket = opened.unwrap();
        let peer = kernel_socket_in(lab.right(), remote);
        for (number, bytes) in [100, 4096, 8192, 8972].into_iter().enumerate() {
            let payload = numbered_payload(number, bytes);
            socket.sender().send_copy_to(&payload, remote).unwrap();
            let frames: Vec<Buffer> =
                payload.chunks(3000).map(|piece| filled_buffer(socket.sender(), piece)).collect();
            socket.sender().send_to(Message::from_iter(frames), remote).unwrap();
            socket.sender().flush().unwrap();
            (0..2).for_each(|_| assert_received(&peer, local, &payload, "in several frames"));
            peer.send_to(&payload, local).unwrap();
            let received = receive_datagrams(&mut socket, 1);
            assert!(*received[0].2 == payload, "{bytes} B");
        }
        let (sent, received) = (socket.sender().stats(), socket.receiver().stats());
        assert_eq!((sent.get("over_port").unwrap(), sent.get("through_kernel").unwrap()), (8, 0));
        assert_eq!(
            (
                received.get("over_port").unwrap(),
                received.get("gathered").unwrap(),
                received.get("gathered_bytes").unwrap()
            ),
            (4, 3, 4096 + 8192 + 8972)
        );
        assert_eq!(
            socket.receiver().ledger().bytes_of(Evidence::Copied(Cause::Gathered)),
            received.get("gathered_bytes").unwrap()
        );
        close_and_check(lab.left(), socket);
    }
}

#[test]
fn the_port_number_is_reserved_while_the_socket_is_open() {
    let lab = lab!();
    let left = lab.left();
    let (local, _) = lab_addresses(&lab, false);
    let any = SocketAddr::new(local.ip(), 0);
    let socket = open_socket(left, any, xdp_builder(), |port| port.mode(Mode::XdpCopyNative)).unwrap();
    let local = socket.local_addr().unwrap();
    assert_ne!(local.port(), 0);
    let taken = left.namespace().run(|| UdpSocket::bind(local)).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    let again = open_socket(left, local, xdp_builder(), |port| port.mode(Mode::PacketRing)).unwrap_err();
    assert!(matches!(again, OpenError::Bind { .. }), "{again}");
    close_and_check(left, socket);
    assert!(
        wait_until_true(|| left.namespace().run(|| UdpSocket::bind(local)).is_ok()),
        "it is not free again"
    );
}

#[test]
fn invalid_settings_are_refused_before_opening() {
    let refused = |local: &str, builder: Builder| {
        builder.port(Port::builder("no such interface")).bind(local).unwrap_err()
    };
    for unspecified in ["0.0.0.0:1", "[::]:1", "239.1.1.1:1"] {
        assert!(matches!(refused(unspecified, xdp_builder()), OpenError::Unspecified { .. }));
    }
    let omitted = xdp_builder().checksum(UdpChecksum::Omitted);
    assert!(matches!(refused("[::1]:1", omitted), OpenError::ChecksumOmitted { .. }));
    for group in ["10.0.0.1", "ff02::1"] {
        let group = group.parse().unwrap();
        assert!(
            matches!(refused("127.0.0.1:1", xdp_builder().group(group)), OpenError::Group { .. }),
            "{group}"
        );
    }
    let many = (0..101).fold(xdp_builder(), |builder, _| builder.group("239.1.1.1".parse().unwrap()));
    assert!(matches!(refused("127.0.0.1:1", many), OpenError::Groups { count: 101, .. }));
    assert!(matches!(refused("127.0.0.1:0", xdp_builder()), OpenError::Port(_)));
    assert!(matches!(refused("192.0.2.1:0", xdp_builder()), OpenError::Bind { .. }));
}

#[test]
fn a_connected_socket_receives_from_its_peer_only() {
    let lab = lab!();
    let (local, remote) = lab_addresses(&lab, false);
    let mut socket =
        open_socket(lab.left(), local, xdp_builder(), |port| port.mode(Mode::XdpCopyNative)).unwrap();
    socket.connect(remote).unwrap();
    let peer = kernel_socket_in(lab.right(), remote);
    let other = kernel_socket_in(lab.right(), SocketAddr::new(remote.ip(), remote.port() + 1));
    for bytes in [100, 3000] {
        other.send_to(&numbered_payload(1, bytes), local).unwrap();
        peer.send_to(&numbered_payload(2, bytes), local).unwrap();
        let (from, _, came) = receive_datagrams(&mut socket, 1).remove(0);
        assert!(from == remote && *came == numbered_payload(2, bytes));
    }
    assert_eq!(socket.receiver().stats().get("of_others").unwrap(), 2);
    let frame = filled_buffer(socket.sender(), b"to the peer");
    socket.sender().send(frame).unwrap();
    socket.sender().send_copy(b"and again").unwrap();
    socket.sender().flush().unwrap();
    assert_received(&peer, local, b"to the peer", "in a frame");
    assert_received(&peer, local, b"and again", "copied");
    close_and_check(lab.left(), socket);
}

/// Datagrams to a group on an interface where another program joined it are not received.
#[test]
fn multicast_is_received_only_on_the_ports_interface() {
    let lab = lab!();
    let left = lab.left();
    let (local, _) = lab_addresses(&lab, false);
    let group = Ipv4Addr::new(239, 77, 1, 8);
    let to = SocketAddr::new(group.into(), local.port());
    let mut socket =
        open_socket(left, local, xdp_builder().group(group.into()), |port| port.mode(Mode::XdpCopyNative))
            .unwrap();
    // Another program, bound to the same group, joins it on lo, and a third sends there.
    let (other, third) = left.namespace().run(|| {
        let raw =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).expect("a UDP socket");
        raw.set_reuse_address(true).unwrap();
        raw.bind(&to.into()).unwrap();
        let other = UdpSocket::from(raw);
        other.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).unwrap();
        let third = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket2::SockRef::from(&third).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
        (other, third)
    });
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    // When the second has arrived, the kernel has delivered the first to every receiver.
    for text in [b"on lo 1", b"on lo 2"] {
        third.send_to(text, to).unwrap();
        assert_received(&other, third.local_addr().unwrap(), text, "the other program");
    }
    assert!(!socket.receiver().arm().unwrap(), "it came by another interface");
    let heard = socket.receiver().try_receive().unwrap().count();
    assert_eq!(
        (heard, socket.receiver().stats().get("strays").unwrap()),
        (0, 0),
        "it came by another interface"
    );
    close_and_check(left, socket);
}

#[test]
fn network_errors_are_reported_and_sending_continues() {
    let lab = lab!();
    add_lab_ipv6(&lab);
    for (limit, ipv6) in [("ipv4/icmp_ratelimit", false), ("ipv6/icmp/ratelimit", true)] {
        if ipv6 && !has_ipv6_sockets() {
            continue;
        }
        lab.right().namespace().run(|| std::fs::write(format!("/proc/sys/net/{limit}"), "0").unwrap());
    }
    for (mode, ipv6) in modes_and_ip_versions() {
        let what = format!("{mode}, ipv6 {ipv6}");
        let (local, remote) = lab_addresses(&lab, ipv6);
        let nobody = SocketAddr::new(remote.ip(), remote.port() + 1);
        let mut socket = open_socket(lab.left(), local, xdp_builder(), |port| port.mode(mode)).unwrap();
        let at_the_socket = InspectedSocket::udp_socket(lab.left(), local);
        let peer = kernel_socket_in(lab.right(), remote);
        let call_nobody = |sender: &mut Sender| {
            sender.send_copy_to(b"anybody?", nobody).expect(&what);
            sender.flush().unwrap();
        };
        call_nobody(socket.sender());
        let mut told = Vec::new();
        assert!(wait_until_true(|| {
            told.extend(socket.sender().errors());
            !told.is_empty()
        }));
        assert_eq!((told.len(), told[0].to, told[0].from), (1, Some(nobody), Some(remote.ip())), "{what}");
        assert_eq!(told[0].error.kind(), std::io::ErrorKind::ConnectionRefused, "{what}");
        assert_eq!(socket.sender().stats().get("over_port").unwrap(), 1, "{what}");

        // One error waits at the socket, and a call does not return what it did not cause.
        let long = numbered_payload(3, 4000);
        call_nobody(socket.sender());
        assert!(wait_until_true(|| at_the_socket.has_error()), "{what}: no error waits at the socket");
        socket.sender().send_copy_to(&long, remote).expect(&what);
        assert_received(&peer, local, &long, &what);
        call_nobody(socket.sender());
        assert!(wait_until_true(|| at_the_socket.has_error()), "{what}: no error waits at the socket");
        peer.send_to(&long, local).unwrap();
        assert!(*receive_datagrams(&mut socket, 1)[0].2 == long, "{what}");
        call_nobody(socket.sender());
        assert!(wait_until_true(|| at_the_socket.has_error()), "{what}: no error waits at the socket");
        // The wait does not fail, and clears the socket's error, which would end every wait.
        assert!(socket.receiver().receive_timeout(Duration::from_millis(50)).unwrap().next().is_none());
        assert!(!at_the_socket.has_error(), "{what}: it would end every wait");
        drop(at_the_socket);
        told.clear();
        assert!(wait_until_true(|| {
            told.extend(socket.sender().errors());
            told.len() >= 3
        }));
        assert!(!socket.receiver().arm().unwrap());
        assert_eq!((socket.sender().stats().get("peer_errors").unwrap(), told.len()), (4, 3), "{what}");
        close_and_check(lab.left(), socket);
    }
}

/// An answer to such a sender would be a broadcast, or return here: the host drops its packets.
#[test]
fn invalid_source_addresses_are_left_to_the_host() {
    let lab = lab!();
    let (local, remote) = lab_addresses(&lab, false);
    let mut socket =
        open_socket(lab.left(), local, xdp_builder(), |port| port.mode(Mode::XdpCopyNative)).unwrap();
    let mut other = common::open_port_with(lab.right(), |port| port.mode(Mode::XdpCopyNative)).unwrap();
    let froms = ["0.0.0.0", "127.0.0.1", "239.1.1.1", "255.255.255.255", "10.77.0.1", "10.77.0.2"];
    let packets = froms.map(|from| {
        let flow = nocopy_proto::UdpFrame {
            source_mac: nocopy_proto::MacAddress(lab.right().mac()),
            destination_mac: nocopy_proto::MacAddress(lab.left().mac()),
            vlan: None,
            addresses: nocopy_proto::IpAddresses::new(from.parse().unwrap(), local.ip()).unwrap(),
            traffic_class: 0,
            hop_limit: 64,
            source_port: remote.port(),
            destination_port: local.port(),
            checksum: UdpChecksum::Computed,
        };
        let mut packet = vec![0; 60];
        let (headers, payload) = packet.split_at_mut(42);
        flow.emit_headers(headers, payload).unwrap();
        packet
    });
    common::send_packets(&mut other, &packets);
    // Returning packets to the host works in the port's namespace.
    lab.left().namespace().run(|| {
        let received = receive_datagrams(&mut socket, 1);
        assert_eq!(received[0].0, remote);
        drop(received);
        // After them a datagram that arrives through the host, because it is in fragments.
        let peer = kernel_socket_in(lab.right(), remote);
        peer.send_to(&numbered_payload(1, 3000), local).unwrap();
        let received = receive_datagrams(&mut socket, 1);
        assert!(*received[0].2 == numbered_payload(1, 3000), "the host drops them");
        assert!(!socket.receiver().arm().unwrap(), "the host drops them");
    });
    let received = socket.receiver().stats();
    assert_eq!(
        (
            received.get("over_port").unwrap(),
            received.get("to_host").unwrap(),
            received.get("strays").unwrap(),
            received.get("lost").unwrap()
        ),
        (1, 5, 1, 0)
    );
    close_and_check(lab.left(), socket);
}

/// A hop limit of 0 means this host only, and port number 0 none: the kernel handles both.
#[test]
fn datagrams_forbidden_by_the_host_are_not_sent() {
    let lab = lab!();
    let (local, remote) = lab_addresses(&lab, false);
    let group = SocketAddr::new(Ipv4Addr::new(239, 77, 1, 9).into(), remote.port());
    let mut socket =
        open_socket(lab.left(), local, xdp_builder().multicast(0, 0), |port| port.mode(Mode::XdpCopyNative))
            .unwrap();
    let [here, there] = [lab.left(), lab.right()].map(|end| {
        let member = kernel_socket_in(end, group);
        let group = Ipv4Addr::new(239, 77, 1, 9);
        end.namespace().run(|| member.join_multicast_v4(&group, &end.ipv4()).unwrap());
        member
    });
    socket.sender().send_copy_to(b"to us here", group).unwrap();
    socket.sender().flush().unwrap();
    assert_received(&here, local, b"to us here", "on this host");
    // The first to arrive is one that was sent later.
    let behind = kernel_socket_in(lab.left(), SocketAddr::new(local.ip(), local.port() + 5));
    socket2::SockRef::from(&behind).set_multicast_if_v4(&lab.left().ipv4()).unwrap();
    behind.send_to(b"to all of you", group).unwrap();
    assert_received(&there, behind.local_addr().unwrap(), b"to all of you", "only what may leave the host");
    let refused = socket.sender().send_copy_to(b"to nobody", SocketAddr::new(remote.ip(), 0)).unwrap_err();
    assert!(matches!(refused, Reason::System(_)), "{refused}");
    let sent = socket.sender().stats();
    assert_eq!(
        (sent.get("local").unwrap(), sent.get("over_port").unwrap(), sent.get("through_kernel").unwrap()),
        (1, 0, 1)
    );
    close_and_check(lab.left(), socket);
}

/// Other drivers than veth, too, deliver packets whose checksum sockets of the same machine left to a card.
#[test]
fn checksums_left_to_a_missing_device_are_accepted() {
    let lab = lab!();
    let (left, right) = (lab.left(), lab.right());
    run_ip_command(left, "link add link nc0 name mv0 address 02:6e:63:00:00:51 type macvlan mode bridge");
    run_ip_command(left, "link set mv0 up");
    run_ip_command(left, "address add 10.77.0.51/24 dev mv0");
    run_ip_command(left, "neighbour replace 10.77.0.2 lladdr 02:6e:63:00:00:02 dev mv0 nud permanent");
    run_ip_command(right, "neighbour replace 10.77.0.51 lladdr 02:6e:63:00:00:51 dev nc1 nud permanent");
    for mode in [Mode::XdpCopyGeneric, Mode::PacketRing] {
        let (local, remote) = lab_addresses(&lab, false);
        let local = SocketAddr::new([10, 77, 0, 51].into(), local.port());
        let mut socket =
            left.namespace().run(|| xdp_builder().port(Port::builder("mv0").mode(mode)).bind(local).unwrap());
        let peer = kernel_socket_in(right, remote);
        peer.send_to(b"unfinished", local).unwrap();
        assert_eq!(&*receive_datagrams(&mut socket, 1)[0].2, b"unfinished");
        let received = socket.receiver().stats();
        assert_eq!(
            (
                received.get("over_port").unwrap(),
                received.get("unfinished_checksums").unwrap(),
                received.get("bad_checksums").unwrap()
            ),
            (1, 1, 0)
        );
        close_and_check(left, socket);
    }
}

#[test]
fn datagrams_lost_by_a_lowered_mtu_are_counted() {
    let lab = lab!();
    let left = lab.left();
    for mode in MODES {
        left.set_mtu(1500).unwrap();
        let (local, remote) = lab_addresses(&lab, false);
        let mut socket = open_socket(left, local, xdp_builder(), |port| port.mode(mode)).unwrap();
        let peer = kernel_socket_in(lab.right(), remote);
        let sender = socket.sender();
        for bytes in [1472, 100].repeat(10) {
            sender.send_copy_to(&numbered_payload(bytes, bytes), remote).unwrap();
        }
        let noticed_before = sender.stats().get("announced_changes").unwrap();
        left.set_mtu(1300).unwrap();
        assert!(sender.drain(PATIENCE).unwrap(), "{mode}");
        sleep_until_changes_are_checked();
        sender.send_copy_to(&numbered_payload(9, 1400), remote).unwrap();
        assert!(
            sender.stats().get("announced_changes").unwrap() > noticed_before,
            "{mode}: the change was not noticed"
        );
        assert_eq!(
            (sender.stats().get("over_port").unwrap(), sender.stats().get("too_long").unwrap()),
            (20, 1),
            "{mode}"
        );
        let (mut came, mut buffer) = (0, [0; 2000]);
        while uninterrupted(|| peer.recv(&mut buffer)).unwrap() != 1400 {
            came += 1;
        }
        let invalid = sender.stats().get("tx_invalid_descs").unwrap();
        let expected = if mode == Mode::PacketRing { (10, 10) } else { (20, 0) };
        assert_eq!((came, invalid), expected, "{mode}: arrived, counted");
        close_and_check(left, socket);
    }
}

#[test]
fn coalesced_datagrams_are_not_received_as_one() {
    let lab = lab!();
    for mode in MODES {
        let (local, remote) = lab_addresses(&lab, false);
        let set = |port: PortBuilder| port.mode(mode).multi_buffer(true);
        let mut socket = open_socket(lab.left(), local, xdp_builder(), set).unwrap();
        let mut peer = lab
            .right()
            .namespace()
            .run(|| nocopy::udp::Socket::builder().method(Method::Gso).bind(remote).unwrap());
        let all = numbered_payload(1, 10_000);
        peer.sender().send_to(Message::segments(all.clone(), 1000), local).unwrap();
        peer.sender().flush().unwrap();
        // A veth with its own program makes its peer segment them.
        if mode == Mode::XdpCopyNative {
            let received = receive_datagrams(&mut socket, 10);
            assert!(received.iter().zip(all.chunks(1000)).all(|((_, _, came), sent)| **came == *sent));
        } else {
            assert!(wait_until_true(|| {
                let mut batch = socket.receiver().receive_timeout(Duration::from_millis(20)).unwrap();
                assert!(batch.next().is_none(), "{mode}");
                drop(batch);
                socket.receiver().stats().get("several_in_one").unwrap() > 0
            }));
        }
        let expected = if mode == Mode::XdpCopyNative { (10, 0) } else { (0, 1) };
        let received = socket.receiver().stats();
        assert_eq!(
            (received.get("over_port").unwrap(), received.get("several_in_one").unwrap()),
            expected,
            "{mode}: {received:?}"
        );
        close_and_check(lab.left(), socket);
    }
}
