//! Ports over AF_XDP on real traffic: veth pairs in private namespaces.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::common::waiting::ObservedThread;
use crate::common::{
    PATIENCE, area_with_frames_of, assert_all_frames_returned, is_promiscuous, lab, numbered_packet,
    open_port, open_port_with, packets_of_many_lengths, receive_packets, send_packets,
};

use nocopy::Reason;
use nocopy::integration::statistics::Snapshot;
use nocopy::integration::xdp::{self, Attach, Generator, Program};
use nocopy::integration::{PortTuning, probe};
use nocopy::port::{OpenError, PortBuilder};
use nocopy::{Cause, Evidence, Frame, Mode, Port, Wait};
use nocopy_lab::patience::{uninterrupted, wait_until};
use nocopy_lab::{End, Lab};

/// Whether a program is attached, by the error of attaching another one.
fn is_program_attached(end: &End, at: Attach) -> bool {
    let attempt = end.namespace().run(|| Program::pass().unwrap().attach(end.interface(), at).map(drop));
    match attempt {
        Ok(()) => false,
        Err(xdp::Error::Occupied { .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn packets_cross_a_veth_pair_across_many_ring_wraps() {
    let lab = lab!();
    let (mut left, mut right) = (open_port(lab.left()), open_port(lab.right()));
    assert_eq!(left.mode(), Mode::XdpCopyNative);
    assert_eq!(left.explain().evidence, Evidence::Copied(Cause::XdpCopyMode));
    let refusals: Vec<Mode> = left.explain().refusals.iter().map(|refusal| refusal.mode).collect();
    assert_eq!(refusals, [Mode::XdpZeroCopy]);
    let report = left.explain().to_string();
    for said in
        ["xdp copy native", "refused  xdp zero-copy", "the driver veth has no AF_XDP zero-copy", "2048 B"]
    {
        assert!(report.contains(said), "{report}");
    }
    for round in 0..200 {
        let packets = packets_of_many_lengths(lab.right(), round);
        send_packets(&mut left, &packets);
        assert_eq!(receive_packets(&mut right, 100), packets);
    }
    assert_all_frames_returned(&mut left);
    assert_all_frames_returned(&mut right);
    assert_eq!(right.receiver().stats().dropped, 0);
}

#[test]
fn received_frames_are_echoed_in_place() {
    let lab = lab!();
    let (mut left, mut right) = (open_port(lab.left()), open_port(lab.right()));
    for number in 0..300 {
        send_packets(&mut left, &[numbered_packet(lab.right(), number, 64)]);
        let (receiver, sender) = right.halves();
        for mut packet in receiver.receive_timeout(PATIENCE).unwrap() {
            let (to, from) = packet[..12].split_at_mut(6);
            to.swap_with_slice(from);
            sender.send(packet.take()).unwrap();
        }
        sender.flush().unwrap();
        assert_eq!(receive_packets(&mut left, 1)[0][14..18], number.to_be_bytes());
    }
    assert_all_frames_returned(&mut right);
}

#[test]
fn ordinary_sockets_exchange_packets_with_a_port() {
    let lab = lab!();
    let (left, right) = (lab.left(), lab.right());
    // The kernel's UDP stack sends; the port receives the datagram with correct headers.
    let mut port = open_port(right);
    let socket = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
    socket.send_to(b"from a socket", (right.ipv4(), 9000)).unwrap();
    let bytes = receive_packets(&mut port, 1).remove(0);
    let ethernet = nocopy_proto::wire::ethernet::Frame::parse(&bytes).unwrap();
    let ipv4 = nocopy_proto::wire::ipv4::Packet::parse(ethernet.payload()).unwrap();
    let udp = nocopy_proto::wire::udp::Datagram::parse(ipv4.payload()).unwrap();
    assert_eq!((udp.destination_port(), udp.payload()), (9000, &b"from a socket"[..]));
    assert!(ipv4.checksum_is_valid());
    drop(port);
    // And in the other direction: the port builds a datagram that a kernel socket receives.
    let mut port = open_port(left);
    let receiver = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 9001)).unwrap());
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let headers = nocopy_proto::UdpFrame {
        source_mac: nocopy_proto::MacAddress(left.mac()),
        destination_mac: nocopy_proto::MacAddress(right.mac()),
        vlan: None,
        addresses: nocopy_proto::IpAddresses::V4 { source: left.ipv4(), destination: right.ipv4() },
        traffic_class: 0,
        hop_limit: 64,
        source_port: 9002,
        destination_port: 9001,
        checksum: nocopy_proto::UdpChecksum::Computed,
    };
    let mut frame = port.sender().buffer().unwrap();
    frame.append(11).unwrap().copy_from_slice(b"from a port");
    let payload = frame.to_vec();
    headers.emit_headers(frame.prepend(headers.header_bytes()).unwrap(), &payload).unwrap();
    port.sender().send(frame).unwrap();
    port.sender().flush().unwrap();
    let mut buffer = [0; 64];
    let (bytes, from) = uninterrupted(|| receiver.recv_from(&mut buffer)).unwrap();
    assert_eq!((&buffer[..bytes], from.port()), (&b"from a port"[..], 9002));
}

#[test]
fn generic_mode_works_on_request_and_on_loopback() {
    let lab = lab!();
    let generic = |builder: PortBuilder| builder.mode(Mode::XdpCopyGeneric);
    let mut left = open_port(lab.left());
    let mut right = open_port_with(lab.right(), generic).unwrap();
    assert_eq!(right.mode(), Mode::XdpCopyGeneric);
    assert!(right.explain().refusals.is_empty());
    let packets: Vec<_> = (0..50).map(|number| numbered_packet(lab.right(), number, 500)).collect();
    send_packets(&mut left, &packets);
    assert_eq!(receive_packets(&mut right, 50), packets);
    assert_all_frames_returned(&mut right);
    let loopback = lab.left().namespace().run(|| Port::open("lo")).unwrap();
    assert_eq!(loopback.mode(), Mode::XdpCopyGeneric);
    assert_eq!(loopback.explain().refusals.len(), 2);
}

#[test]
fn the_probe_predicts_the_mode_and_names_obstacles() {
    let lab = lab!();
    let end = lab.left();
    let probed = |name: &str| end.namespace().run(|| probe::interface(name).unwrap());
    let gate = |name: &str| probed(end.interface()).gates.into_iter().find(|gate| gate.name == name).unwrap();
    for name in [end.interface(), "lo"] {
        let port = end.namespace().run(|| Port::open(name)).unwrap();
        assert_eq!(probed(name).first_possible_mode(), Some(port.mode().to_string().as_str()), "{name}");
    }
    assert_eq!(gate("XDP program").state, probe::GateState::Open);
    let port = open_port(end);
    assert_eq!(gate("XDP program").state, probe::GateState::Closed);
    drop(port);
    lab.right().set_down().unwrap();
    assert_eq!((gate("up").state, gate("carrier").state), (probe::GateState::Open, probe::GateState::Closed));
    end.set_down().unwrap();
    assert_eq!(gate("up").fix, Some(format!("'ip link set dev {} up'", end.interface())));
    end.set_mtu(9000).unwrap();
    assert_eq!(gate("MTU").state, probe::GateState::Closed);
}

#[test]
fn an_mtu_too_large_for_native_uses_generic_mode() {
    let Some(lab) = Lab::builder().mtu(3600).build_or_skip() else { return };
    let (mut left, mut right) = (open_port(lab.left()), open_port(lab.right()));
    assert_eq!(right.mode(), Mode::XdpCopyGeneric);
    let report = right.explain().to_string();
    assert!(
        report.matches("the MTU is larger than the driver veth supports with XDP").count() == 2,
        "{report}"
    );
    let packets: Vec<_> = (0..50).map(|number| numbered_packet(lab.right(), number, 3614)).collect();
    send_packets(&mut left, &packets);
    assert_eq!(receive_packets(&mut right, 50), packets);
    assert_all_frames_returned(&mut right);
}

#[test]
fn every_wait_receives_and_times_out() {
    let lab = lab!();
    let (mut left, mut right) = (open_port(lab.left()), open_port(lab.right()));
    let coalesced = Wait::Coalesced { packets: 32, delay: Duration::from_millis(2) };
    let adaptive = Wait::Adaptive { spin: Duration::from_micros(100) };
    for (number, wait) in (0..).zip([Wait::Spin, Wait::Interrupt, adaptive, coalesced, Wait::Spin]) {
        right.receiver().set_wait(wait);
        assert!(right.receiver().receive_timeout(Duration::from_millis(5)).unwrap().is_empty(), "{wait:?}");
        let packets = [numbered_packet(lab.right(), number, 200)];
        let waiter = ObservedThread::this_thread();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                waiter.wait_until_asleep_or_spinning();
                send_packets(&mut left, &packets);
            });
            assert_eq!(receive_packets(&mut right, 1), packets, "{wait:?}");
        });
    }
}

fn driver_counter(end: &End, name: &str) -> u64 {
    let snapshot = end.namespace().run(|| Snapshot::of_interface(end.interface())).unwrap();
    let counter = snapshot.driver.iter().find(|counter| counter.name == name);
    counter.unwrap_or_else(|| panic!("no counter {name}: {:?}", snapshot.driver)).value
}

/// Frames redirected out of this end of a veth pair: those that the other end's ring accepted, and those it
/// had no room for.
fn redirect_counts(end: &End) -> [u64; 2] {
    ["tx_queue_0_xdp_xmit", "tx_queue_0_xdp_xmit_errors"].map(|name| driver_counter(end, name))
}

/// Sends that many frames, in several calls, and returns how many calls a signal ended early: those are
/// repeated.
fn generate_frames(interface: &str, frame: &[u8], count: u32) -> u32 {
    const CALLS: u32 = 20;
    let generator = Generator::new(interface).unwrap();
    let (mut whole, mut interrupted) = (0, 0);
    while whole < CALLS {
        match generator.send(frame, count / CALLS) {
            Ok(()) => whole += 1,
            Err(error) if error.kind() == ErrorKind::Interrupted => interrupted += 1,
            Err(error) => panic!("{error}"),
        }
    }
    interrupted
}

#[test]
fn every_packet_sent_is_received_or_counted_at_full_rate() {
    const PACKETS: u32 = 400_000;
    let lab = lab!();
    let (left, right) = (lab.left(), lab.right());
    for wait in [Wait::Interrupt, Wait::Coalesced { packets: 1024, delay: Duration::from_millis(1) }] {
        let port = open_port_with(right, |builder| builder.wait(wait)).unwrap();
        let area = port.area().clone();
        let (mut receiver, sender) = port.split();
        let before = redirect_counts(left);
        let frame = numbered_packet(right, 7, 64);
        let source = left.namespace().spawn({
            let interface = left.interface();
            let frame = frame.clone();
            move || generate_frames(interface, &frame, PACKETS)
        });
        let (mut received, mut last_came) = (0, Instant::now());
        loop {
            let is_last = source.is_finished();
            let batch = receiver.receive_timeout(Duration::from_millis(20)).unwrap();
            let count = batch.map(|packet| assert_eq!(&*packet, &frame[..])).count() as u64;
            received += count;
            if count > 0 || !is_last {
                last_came = Instant::now();
                continue;
            }
            // Counted by the socket; or, if veth's own ring was full before XDP saw the packet, by the
            // driver.
            let lost = receiver.stats().dropped;
            let now = redirect_counts(left);
            let [taken, overflows] = [0, 1].map(|place| now[place] - before[place]);
            let account = format!("{received} received, {lost} lost of {taken}; no room for {overflows}");
            assert!(received + lost <= taken, "more than were sent: {account}");
            if received + lost == taken {
                // Only the driver's counters show what calls sent that a signal ended.
                let (sent, interrupted) = (taken + overflows, source.join().unwrap());
                let packets = u64::from(PACKETS);
                assert!(sent == packets || sent > packets && interrupted > 0, "{account}");
                assert!(received > 0, "{account}");
                break;
            }
            // The kernel may still have some in veth's ring.
            assert!(last_came.elapsed() < PATIENCE, "fewer than were sent: {account}");
        }
        assert_eq!(receiver.stats().faults, 0);
        drop((receiver, sender));
        let balance = area.balance();
        assert!(balance.is_balanced() && balance.free == u64::from(balance.total), "{balance}");
    }
}

#[test]
fn a_queue_has_one_port_at_a_time() {
    let lab = lab!(Lab::builder().queues(2));
    let first = open_port(lab.left());
    let second = open_port_with(lab.left(), |builder| builder.queue(1)).unwrap();
    let taken = open_port_with(lab.left(), |builder| builder.queue(1)).unwrap_err();
    assert!(matches!(taken, OpenError::QueueTaken { queue: 1, .. }), "{taken}");
    assert!(taken.to_string().contains("another AF_XDP socket is bound to it"), "{taken}");
    let beyond = open_port_with(lab.left(), |builder| builder.queue(2)).unwrap_err();
    assert!(matches!(beyond, OpenError::QueueOutOfRange { queue: 2, queues: 2, .. }), "{beyond}");
    drop(first);
    drop(second);
    assert!(!is_program_attached(lab.left(), Attach::Native), "the program goes with its last port");
}

#[test]
fn ports_of_one_area_forward_between_interfaces() {
    let (one, two) = (lab!(), lab!());
    let area =
        nocopy::Area::new(nocopy::area::AreaConfig { frame_count: 1024, ..Default::default() }).unwrap();
    let shared = |builder: PortBuilder| builder.area(&area).frame_count(256, 256).ring_sizes(256, 256);
    let mut inside = open_port_with(one.right(), shared).unwrap();
    let mut outside = open_port_with(two.left(), shared).unwrap();
    let (mut source, mut sink) = (open_port(one.left()), open_port(two.right()));
    for round in 0..50 {
        let packets: Vec<_> = (0..30).map(|i| numbered_packet(two.right(), round * 30 + i, 300)).collect();
        send_packets(&mut source, &packets);
        let mut forwarded = 0;
        while forwarded < 30 {
            let frames: Vec<Frame> =
                inside.receiver().receive_timeout(PATIENCE).unwrap().map(|packet| packet.take()).collect();
            assert!(!frames.is_empty(), "packets missing");
            forwarded += frames.len();
            frames.into_iter().for_each(|frame| outside.sender().send(frame).unwrap());
            outside.sender().flush().unwrap();
        }
        assert_eq!(receive_packets(&mut sink, 30), packets);
    }
    inside.balance();
    assert_all_frames_returned(&mut outside);
    drop((inside, outside));
    assert_eq!(area.balance().free + u64::from(area.balance().retired), 1024);
}

#[test]
fn another_attached_program_stays_and_is_named() {
    let lab = lab!();
    let end = lab.left();
    let held =
        end.namespace().run(|| Program::pass().unwrap().attach(end.interface(), Attach::Native).unwrap());
    let error = open_port_with(end, |builder| builder).unwrap_err();
    let there = end.xdp_program().unwrap().expect("a program");
    assert_eq!(
        error.to_string(),
        format!(
            "nc0: not attached; XDP program {there} is there already; detach it with 'ip link set dev nc0 xdp off', or end the process that attached it ('bpftool link' shows it)"
        )
    );
    drop(held);
    assert!(open_port_with(end, |builder| builder).is_ok());
}

#[test]
fn promiscuous_mode_is_on_while_the_port_is_open() {
    let lab = lab!();
    let right = lab.right();
    let port = open_port_with(right, |builder| builder.promiscuous(true)).unwrap();
    assert!(is_promiscuous(right));
    drop(port);
    assert!(!is_promiscuous(right));
}

#[test]
fn unusable_interfaces_are_errors_with_cause_and_action() {
    let lab = lab!();
    let end = lab.left();
    let text = |name: &str| end.namespace().run(|| Port::open(name)).unwrap_err().to_string();
    assert!(text("nope0").contains("no such interface"));
    assert!(text("a-name-longer-than-fifteen").contains("no such interface"));
    assert!(text("").contains("no such interface"));
    end.set_mtu(9000).unwrap();
    let error = text(end.interface());
    assert!(error.contains("MTU of 9000") && error.contains("lower the MTU"), "{error}");
    end.set_mtu(2500).unwrap();
    let error = open_port_with(end, |builder| builder.area(&area_with_frames_of(2048))).unwrap_err();
    assert!(error.to_string().contains("use a frame size of 4096"), "{error}");
    assert_eq!(open_port(end).area().config().frame_bytes, 4096);
    end.set_mtu(1500).unwrap();
    lab.right().set_down().unwrap();
    let error = open_port_with(end, |builder| {
        builder.tuning(PortTuning { carrier_timeout: Duration::from_millis(50), ..PortTuning::default() })
    })
    .unwrap_err();
    assert!(error.to_string().contains("no carrier"), "{error}");
    let (about_to_open, opener) = std::sync::mpsc::channel();
    let back = std::thread::spawn({
        let namespace = end.namespace().clone();
        move || {
            namespace.run(|| {
                about_to_open.send(ObservedThread::this_thread()).unwrap();
                Port::builder("nc0")
                    .tuning(PortTuning { carrier_timeout: PATIENCE, ..PortTuning::default() })
                    .open()
                    .map(drop)
            })
        }
    });
    opener.recv().unwrap().wait_until_asleep_or_spinning();
    lab.right().bring_interface_up().unwrap();
    back.join().unwrap().expect("the carrier came back in time");
    lab.right().set_down().unwrap();
    end.set_down().unwrap();
    assert!(text(end.interface()).contains("the interface is down"));
    let area = nocopy::Area::new(nocopy::area::AreaConfig {
        frame_bytes: 8192,
        frame_count: 64,
        ..Default::default()
    });
    lab.right().bring_interface_up().unwrap();
    end.bring_interface_up().unwrap();
    lab.wait_for_carrier().unwrap();
    let error = open_port_with(end, |builder| builder.area(area.as_ref().unwrap())).unwrap_err();
    assert!(error.to_string().contains("at most a page"), "{error}");
    let error = end.namespace().run(|| Port::builder(end.interface()).mode(Mode::Memory).open()).unwrap_err();
    assert!(matches!(error, OpenError::MemoryMode), "{error}");
    let error = open_port_with(end, |builder| builder.mode(Mode::XdpZeroCopy)).unwrap_err();
    assert!(error.to_string().contains("xdp zero-copy"), "{error}");
    assert!(!is_program_attached(end, Attach::Native), "a failed opening leaves nothing attached");
}

#[test]
fn frames_over_the_mtu_are_refused_not_lost() {
    let lab = lab!();
    let mut left = open_port(lab.left());
    let mut frame = left.sender().buffer().unwrap();
    frame.fill(&numbered_packet(lab.right(), 1, 1519)).unwrap();
    let rejected = left.sender().send(frame).unwrap_err();
    assert!(matches!(rejected.reason, Reason::TooLong { bytes_max: 1518 }));
}

#[test]
fn a_port_reopens_at_once_after_closing() {
    let lab = lab!();
    let mut right = open_port(lab.right());
    for number in 0..50 {
        let mut left = open_port(lab.left());
        send_packets(&mut left, &[numbered_packet(lab.right(), number, 64)]);
        assert_eq!(receive_packets(&mut right, 1).len(), 1);
    }
    assert_all_frames_returned(&mut right);
}

#[test]
fn a_duplicated_descriptor_does_not_keep_the_port_open() {
    let lab = lab!(Lab::builder().queues(2));
    let area = nocopy::Area::new(nocopy::area::AreaConfig { frame_count: 64, ..Default::default() }).unwrap();
    let other = open_port_with(lab.right(), |builder| builder.queue(1)).unwrap(); // keeps the program
    let set = |builder: PortBuilder| builder.area(&area).frame_count(32, 32).ring_sizes(32, 32);
    let (receiver, sender) = open_port_with(lab.right(), set).unwrap().split();
    let duplicate = receiver.as_fd().try_clone_to_owned().unwrap();
    drop((receiver, sender));
    assert_eq!(area.balance().free, 64);
    let mut left = open_port(lab.left());
    send_packets(&mut left, &[numbered_packet(lab.right(), 1, 64)]);
    assert!(left.sender().drain(PATIENCE).unwrap());
    let seen = || driver_counter(lab.right(), "rx_queue_0_xdp_packets");
    wait_until("seen by the program", || seen() == 1);
    let readable = rustix::event::PollFd::new(&duplicate, rustix::event::PollFlags::IN);
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut [readable], Some(&now)).unwrap(), 0, "a closed port received");
    drop(other);
}

#[test]
fn the_descriptor_is_readable_when_packets_wait() {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let lab = lab!();
    let (mut left, right) = (open_port(lab.left()), open_port(lab.right()));
    let (mut receiver, _sender) = right.split();
    assert!(!receiver.arm().unwrap());
    let ready = |receiver: &nocopy::Receiver, ms: i64| {
        let fd = receiver.as_fd();
        let timeout = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
        rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)).unwrap() > 0
    };
    assert!(!ready(&receiver, 1));
    send_packets(&mut left, &[numbered_packet(lab.right(), 1, 64)]);
    assert!(ready(&receiver, 60_000));
    assert!(receiver.arm().unwrap());
}

#[test]
fn busy_polling_and_no_wakeup_are_accepted() {
    let lab = lab!();
    let set = |builder: PortBuilder| {
        builder
            .busy_poll(Duration::from_micros(20), 64)
            .tuning(PortTuning { need_wakeup: false, ..PortTuning::default() })
    };
    let (mut left, mut right) = (open_port(lab.left()), open_port_with(lab.right(), set).unwrap());
    send_packets(&mut left, &[numbered_packet(lab.right(), 1, 64)]);
    assert_eq!(receive_packets(&mut right, 1).len(), 1);
    send_packets(&mut right, &[numbered_packet(lab.left(), 2, 64)]);
    assert_eq!(receive_packets(&mut left, 1).len(), 1, "a port without need-wakeup sends too");
}
