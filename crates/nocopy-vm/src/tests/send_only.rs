use std::net::UdpSocket;
use std::time::{Duration, Instant};

use nocopy::{Mode, Port};
use serde_json::json;

use crate::guest::patience::ARRIVAL_MAX;
use crate::guest::{Guest, sockets, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "a zero-copy port that only sends does so, lends the card frames all the same, and the host goes on hearing what \
             arrives on its queue, for longer than the card's ring holds",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const PACKETS: u32 = 1000;

/// After this time a datagram is sent again.
const SEND_AGAIN: Duration = Duration::from_secs(2);

/// More than the receive ring of either card (256).
const DATAGRAMS: u32 = 600;

fn run(guest: &Guest) -> Result<(), Failure> {
    let lab = guest.lab();
    let (left, right) = (lab.left(), lab.right());
    if guest.topology() == Topology::Igb {
        // So that whatever arrives does so on the port's queue.
        left.set_queues(1)?;
        lab.wait_for_carrier()?;
    }
    let builder = Port::builder(left.interface()).mode(Mode::XdpZeroCopy);
    let mut port = left.namespace().run(|| builder.frame_count(0, 128).ring_sizes(512, 256).open())?;
    let lent = port.balance().lent_rx;
    assert!(lent >= 256 && port.balance().is_balanced(), "{}", port.balance());
    let mut peer = traffic::open_port(right)?;
    for bytes in [64, 1514] {
        traffic::send_and_check(&mut port, &mut peer, right, bytes, PACKETS)?;
    }
    traffic::close_and_check_frames(peer);
    lab.wait_for_carrier()?;
    let host = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 9000)))?;
    host.set_read_timeout(Some(SEND_AGAIN))?;
    let sender = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 0)))?;
    for number in 0..DATAGRAMS {
        send_until_arrived(&sender, &host, number)?;
    }
    sockets::check_udp_both_ways(lab)?;
    assert_eq!(port.balance().lent_rx, lent, "none of them came to the port");
    traffic::assert_all_frames_accounted(&mut port)?;
    guest.record_measurement(&json!({ "lent": lent, "datagrams": DATAGRAMS }));
    traffic::close_and_check_frames(port);
    Ok(())
}

/// Sends a datagram until it arrives: an emulated network that is stalled may lose one, while a queue without
/// frames loses all.
fn send_until_arrived(sender: &UdpSocket, host: &UdpSocket, number: u32) -> Result<(), Failure> {
    let deadline = Instant::now() + ARRIVAL_MAX;
    let mut lost = None;
    while Instant::now() < deadline {
        sender.send_to(&number.to_be_bytes(), host.local_addr()?)?;
        loop {
            let mut bytes = [0; 4];
            match host.recv(&mut bytes) {
                Ok(4) if bytes == number.to_be_bytes() => return Ok(()),
                Ok(4) if u32::from_be_bytes(bytes) < number => {} // one that was sent again, and late
                Ok(length) => return Err(Failure(format!("{length} bytes {bytes:02x?} reached the host"))),
                Err(error) => {
                    lost = Some(error);
                    break;
                }
            }
        }
    }
    let lost = lost.map(|error| error.to_string()).unwrap_or_default();
    Err(Failure(format!("datagram {number} did not reach the host beside the port: {lost}")))
}
