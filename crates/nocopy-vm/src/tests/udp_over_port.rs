use std::net::UdpSocket;

use nocopy::udp::{Method, Socket};
use nocopy::{Buffer, Cause, Evidence, Frame, Ledger, Mode};
use serde_json::json;

use crate::guest::Guest;
use crate::guest::datagrams::{self, BYTES, DATAGRAM_BYTES, DATAGRAMS, datagram_windows};
use crate::guest::meter::{CopyCounts, CopyMeter, Direction};
use crate::guest::patience::ARRIVAL_MAX;
use crate::guest::traffic::small_port_builder;
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "UDP over a zero-copy port exchanges datagrams with an ordinary socket, and neither what it sends nor what it receives is \
             copied once, by the ledger and by the instrument inside the kernel, which reads 1.00 for native copy mode",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

/// Ethernet, IPv4 and UDP: a port copies headers with their payload, if it copies.
const HEADER_BYTES: usize = 14 + 20 + 8;
const PACKETS_BYTES: u64 = BYTES + DATAGRAMS as u64 * HEADER_BYTES as u64;

fn run(guest: &Guest) -> Result<(), Failure> {
    let meter = CopyMeter::start()?;
    if guest.topology() == Topology::Igb {
        // With two queues, the packets of the other queue would go to the host.
        guest.lab().left().set_queues(1)?;
    }
    for (mode, evidence) in
        [(Mode::XdpCopyNative, Evidence::Copied(Cause::XdpCopyMode)), (Mode::XdpZeroCopy, Evidence::ZeroCopy)]
    {
        let (mut socket, peer) = open_sockets(guest, mode)?;
        assert_eq!(socket.sender().explain().evidence, evidence);
        let sent = meter.measure_copies(|| send_and_check(&mut socket, &peer))?;
        check_copies(guest, mode, Direction::Sent, socket.sender().ledger(), &sent);
        let received = meter.measure_copies(|| receive_and_check(&mut socket, &peer))?;
        check_copies(guest, mode, Direction::Received, socket.receiver().ledger(), &received);
    }
    Ok(())
}

fn open_sockets(guest: &Guest, mode: Mode) -> Result<(Socket, UdpSocket), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let local = (left.ipv4(), 7001);
    let builder = Socket::builder().port(small_port_builder(left.interface()).mode(mode)).method(Method::Xdp);
    let socket = left.namespace().run(|| builder.bind(local))?;
    // Attaching resets the link of an igb.
    guest.lab().wait_for_carrier()?;
    let peer = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 7002)))?;
    peer.connect(local)?;
    peer.set_read_timeout(Some(ARRIVAL_MAX))?;
    Ok((socket, peer))
}

fn send_and_check(socket: &mut Socket, peer: &UdpSocket) -> Result<(), Failure> {
    let (sender, to) = (socket.sender(), peer.local_addr()?);
    for window in datagram_windows() {
        for datagram in &window {
            let buffer = sender.buffer().expect("more frames than a window");
            let mut frame = Frame::try_from(buffer.freeze()).expect("more frames than a window");
            frame.fill(datagram).expect("a datagram fits a frame");
            sender.send_to(Buffer::from(frame), to)?;
        }
        if !sender.drain(ARRIVAL_MAX)? {
            return Err(Failure(format!("{} frames stay with the kernel", sender.in_flight())));
        }
        for datagram in &window {
            assert!(datagrams::receive_datagram(peer)? == *datagram, "not what was sent");
        }
    }
    let sent = sender.stats();
    assert_eq!(
        (sent.get("over_port").unwrap(), sent.get("through_kernel").unwrap()),
        (DATAGRAMS.into(), 0),
        "{sent}"
    );
    Ok(())
}

fn receive_and_check(socket: &mut Socket, peer: &UdpSocket) -> Result<(), Failure> {
    let receiver = socket.receiver();
    for window in datagram_windows() {
        for datagram in &window {
            peer.send(datagram)?;
        }
        let mut rest = window.iter();
        while !rest.as_slice().is_empty() {
            let batch = receiver.receive_timeout(ARRIVAL_MAX)?;
            let left_before = rest.len();
            for datagram in batch {
                let wanted = rest.next().expect("no more than were sent");
                assert!(*datagram == **wanted, "{} B, not what was sent", datagram.len());
            }
            if rest.len() == left_before {
                return Err(Failure(format!("{left_before} datagrams did not arrive: {}", receiver.stats())));
            }
        }
    }
    Ok(())
}

/// Adds a row to the report, and holds the ledger against the instrument.
fn check_copies(guest: &Guest, mode: Mode, direction: Direction, ledger: Ledger, copies: &CopyCounts) {
    let copied_bytes = copies.copied_bytes(direction);
    guest.record_measurement(&json!({
        "mode": mode.to_string(),
        "way": direction,
        "datagrams": DATAGRAMS,
        "packet_bytes": HEADER_BYTES + DATAGRAM_BYTES,
        "ledger": ledger.to_string(),
        "copies_per_byte": copied_bytes as f64 / PACKETS_BYTES as f64,
        "copied_by": copies.of_direction(direction),
    }));
    assert_eq!((ledger.datagrams(), ledger.bytes()), (DATAGRAMS.into(), BYTES), "{ledger}");
    if mode == Mode::XdpZeroCopy {
        assert_eq!(
            (ledger.bytes_of(Evidence::ZeroCopy), copied_bytes),
            (BYTES, 0),
            "{direction:?}: {ledger}; {copies:?}"
        );
    } else {
        let reported_and_copied_bytes = (ledger.bytes_of(Evidence::Copied(Cause::XdpCopyMode)), copied_bytes);
        assert_eq!(reported_and_copied_bytes, (BYTES, PACKETS_BYTES), "{direction:?}: {ledger}; {copies:?}");
    }
}
