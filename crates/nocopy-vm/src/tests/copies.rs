use std::net::UdpSocket;
use std::time::Duration;

use nocopy::{Mode, Port};
use nocopy_lab::End;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, eth, recv, socket_with, sockopt};
use serde_json::json;

use crate::guest::meter::{CopyCounts, CopyMeter, Direction};
use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "of a zero-copy port's packets no function of the kernel's packet path copies one byte, counted inside the kernel \
             by an instrument that reads 1.00 copies per byte, each way, for sockets and for AF_XDP in native copy mode",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

/// Packets of each method. Every packet counts for a thousandth, so one miscount is visible.
const PACKETS: u32 = 1000;
const PAYLOAD_BYTES: usize = 1400;
/// Ethernet, IPv4 and UDP.
const HEADER_BYTES: usize = 14 + 20 + 8;

/// How far the instrument's figure may be off where the true one is known.
const TOLERANCE: f64 = 0.01;

/// What generic mode may lack of two: the driver copies headers into a buffer of their own by itself, which
/// the instrument does not see (virtio_net: 1.98 to 1.99).
const GENERIC_HEADERS_MAX: f64 = 0.03;

/// How much a socket may show above one copy: headers that the stack moves are copied once more.
const HEADERS_MAX: f64 = 0.02;

fn run(guest: &Guest) -> Result<(), Failure> {
    let meter = CopyMeter::start()?;
    let sockets = meter.measure_copies(|| send_through_sockets(guest))?;
    let sent = record_copies(guest, "udp socket", Direction::Sent, &sockets, PAYLOAD_BYTES);
    let received =
        record_copies(guest, "packet socket", Direction::Received, &sockets, PAYLOAD_BYTES + HEADER_BYTES);
    assert!([sent, received].iter().all(|copies| (1.0..1.0 + HEADERS_MAX).contains(copies)), "{sockets:?}");
    for mode in [Mode::XdpCopyGeneric, Mode::XdpCopyNative, Mode::XdpZeroCopy] {
        let copies = measure_port_copies(guest, &meter, mode)?;
        let measured = [Direction::Sent, Direction::Received]
            .map(|direction| record_copies(guest, &mode.to_string(), direction, &copies, PAYLOAD_BYTES));
        let as_known = match mode {
            Mode::XdpZeroCopy => measured == [0.0, 0.0],
            Mode::XdpCopyNative => measured.iter().all(|copies| (copies - 1.0).abs() <= TOLERANCE),
            // The drivers' buffers have too little headroom for generic XDP, so received packets are copied
            // once before.
            _ => {
                (measured[0] - 1.0).abs() <= TOLERANCE
                    && (2.0 - GENERIC_HEADERS_MAX..=2.0 + TOLERANCE).contains(&measured[1])
            }
        };
        assert!(as_known, "{mode}: copies per byte sent and received {measured:?}: {copies:?}");
    }
    Ok(())
}

fn measure_port_copies(guest: &Guest, meter: &CopyMeter, mode: Mode) -> Result<CopyCounts, Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let open = |end: &End| end.namespace().run(|| Port::builder(end.interface()).mode(mode).open());
    let (mut a, mut b) = (open(left)?, open(right)?);
    assert_eq!((a.mode(), b.mode()), (mode, mode));
    meter.measure_copies(|| traffic::send_and_check(&mut a, &mut b, right, PAYLOAD_BYTES, PACKETS))
}

/// Sent by UDP; received, headers and all, by a packet socket, since of UDP's receive path the instrument
/// sees only a part.
fn send_through_sockets(guest: &Guest) -> Result<(), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let sender = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)))?;
    sender.connect((right.ipv4(), 7000))?;
    let receiver = right.namespace().run(|| {
        let (family, kind) = (AddressFamily::PACKET, SocketType::RAW);
        socket_with(family, kind, SocketFlags::CLOEXEC, Some(eth::IP))
    })?;
    sockopt::set_socket_timeout(&receiver, sockopt::Timeout::Recv, Some(Duration::from_secs(60)))?;
    // Keeps the host from answering that the port is closed.
    let _listening = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 7000)))?;
    let (sent, mut received) = ([7; PAYLOAD_BYTES], [0; HEADER_BYTES + PAYLOAD_BYTES + 1]);
    for _ in 0..PACKETS {
        sender.send(&sent)?;
        let (_, bytes) = recv(&receiver, &mut received, RecvFlags::empty())?;
        assert!(bytes == HEADER_BYTES + PAYLOAD_BYTES && received[HEADER_BYTES..bytes] == sent);
    }
    Ok(())
}

/// Adds a row to the report, and returns the copies per byte.
fn record_copies(
    guest: &Guest,
    mode: &str,
    direction: Direction,
    copies: &CopyCounts,
    packet_bytes: usize,
) -> f64 {
    let copies_per_byte = copies.copied_bytes(direction) as f64 / (f64::from(PACKETS) * packet_bytes as f64);
    guest.record_measurement(&json!({
        "mode": mode,
        "way": direction,
        "packets": PACKETS,
        "packet_bytes": packet_bytes,
        "copies_per_byte": copies_per_byte,
        "copied_by": copies.of_direction(direction),
    }));
    copies_per_byte
}
