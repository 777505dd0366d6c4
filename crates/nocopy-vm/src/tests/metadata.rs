use nocopy::metadata::{Clock, Request, Unsupported};
use nocopy::port::OpenError;
use nocopy::{Mode, Port};
use nocopy_lab::End;
use nocopy_proto::wire::udp::{ChecksumStatus, Datagram};
use nocopy_proto::wire::{ethernet, ipv4};
use nocopy_proto::{IpAddresses, MacAddress, UdpChecksum, UdpFrame};
use serde_json::json;

use crate::guest::patience::ARRIVAL_MAX;
use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "what a card does for a packet is offered, the rest typed as unsupported; with requests allowed every packet still \
             arrives, and one whose checksum is left to whoever can has the right one, in zero-copy and in copy mode",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const PACKETS: u32 = 600;
const PAYLOADS_BYTES: [usize; 6] = [0, 1, 18, 19, 1000, 1472];

fn run(guest: &Guest) -> Result<(), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    if guest.topology() == Topology::Igb {
        // Otherwise it would send the flow's packets to either of two queues.
        for end in guest.ends() {
            end.set_queues(1)?;
        }
    }
    for mode in [Mode::XdpZeroCopy, Mode::XdpCopyNative] {
        let (mut a, mut b) = (open_port(left, mode)?, open_port(right, mode)?);
        let explanation = a.explain();
        let (checksum, clock) = (explanation.checksum, explanation.departure_clock);
        assert_plausible(guest.topology(), mode, checksum, clock);
        traffic::send_and_check(&mut a, &mut b, right, 64, PACKETS)?;
        traffic::send_and_check(&mut b, &mut a, left, 1514, PACKETS)?;
        send_checksummed(guest, &mut a, &mut b)?;
        let arrivals = check_arrival_times(guest, &mut a, &mut b)?;
        traffic::assert_all_frames_accounted(&mut a)?;
        traffic::assert_all_frames_accounted(&mut b)?;
        guest.record_measurement(&json!({
            "mode": mode.to_string(), "checksum": format!("{checksum:?}"), "departures": format!("{clock:?}"), "arrival": arrivals,
        }));
    }
    Ok(())
}

fn open_port(end: &End, mode: Mode) -> Result<Port, OpenError> {
    let settings =
        traffic::small_port_builder(end.interface()).mode(mode).receive_metadata(true).send_metadata(true);
    end.namespace().run(|| settings.open())
}

/// In copy mode the kernel does everything; in zero-copy mode the driver, if it can.
fn assert_plausible(
    topology: Topology,
    mode: Mode,
    checksum: Result<(), Unsupported>,
    timestamp: Result<Clock, Unsupported>,
) {
    match mode {
        Mode::XdpZeroCopy => {
            assert!(matches!(checksum, Ok(()) | Err(Unsupported::Driver)), "{checksum:?}");
            assert!(matches!(timestamp, Ok(Clock::Device) | Err(Unsupported::Driver)), "{timestamp:?}");
        }
        // virtio_net's packets are sent from the area itself (`IFF_TX_SKB_NO_LINEAR`): the kernel cannot sum
        // them up.
        _ if topology == Topology::Virtio => assert_eq!(checksum, Err(Unsupported::Driver)),
        _ => assert_eq!((checksum, timestamp), (Ok(()), Ok(Clock::Tai))),
    }
}

/// A flow between both ends, with the checksum left to be computed.
fn udp_headers(guest: &Guest) -> UdpFrame {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    UdpFrame {
        source_mac: MacAddress(left.mac()),
        destination_mac: MacAddress(right.mac()),
        vlan: None,
        addresses: IpAddresses::V4 { source: left.ipv4(), destination: right.ipv4() },
        traffic_class: 0,
        hop_limit: 64,
        source_port: 7,
        destination_port: 4660,
        checksum: UdpChecksum::Offloaded,
    }
}

/// Sends a datagram of each length, and checks its checksum on arrival.
fn send_checksummed(guest: &Guest, from: &mut Port, to: &mut Port) -> Result<(), Failure> {
    let flow = udp_headers(guest);
    for bytes in PAYLOADS_BYTES {
        let mut packet = vec![bytes as u8; flow.header_bytes() + bytes];
        let (headers, payload) = packet.split_at_mut(flow.header_bytes());
        flow.emit_headers(headers, payload)?;
        let mut frame = from.sender().buffer().expect("more frames than packets");
        frame.fill(&packet).expect("a packet fits a frame");
        from.sender().send_with(frame, Request::default().checksum(flow.checksum_field()))?;
        from.sender().flush()?;
        let arrived = next_datagram(to)?;
        let ip = ethernet::Frame::parse(&arrived).expect("Ethernet").payload().to_vec();
        let ip = ipv4::Packet::parse(&ip).expect("IPv4");
        let datagram = Datagram::parse(ip.payload()).expect("UDP");
        assert_eq!(datagram.payload().len(), bytes);
        assert_eq!(datagram.verify_checksum(&flow.addresses), Ok(ChecksumStatus::Verified), "{bytes} B");
        // What is not offered is refused, and nothing leaves.
        if from.explain().departure_clock.is_err() {
            let frame = from.sender().buffer().expect("more frames than packets");
            assert!(from.sender().send_with(frame, Request::default().timestamp(1)).is_err());
        }
    }
    Ok(())
}

fn next_datagram(port: &mut Port) -> Result<Vec<u8>, Failure> {
    let mut batch = port.receiver().receive_timeout(ARRIVAL_MAX)?;
    let packet = batch.next().ok_or_else(|| Failure("a datagram did not arrive".to_owned()))?;
    Ok(packet.to_vec())
}

/// Metadata of arriving packets: present, or absent with the reason that matches the driver.
fn check_arrival_times(guest: &Guest, from: &mut Port, to: &mut Port) -> Result<String, Failure> {
    let mut frame = from.sender().buffer().expect("more frames than packets");
    frame.fill(&traffic::numbered_packet(guest.lab().right(), 1, 64)).expect("fits");
    from.sender().send(frame)?;
    from.sender().flush()?;
    let mut batch = to.receiver().receive_timeout(ARRIVAL_MAX)?;
    let arrival = batch.next().ok_or_else(|| Failure("a packet did not arrive".to_owned()))?.arrival();
    let reasons = [arrival.timestamp.err(), arrival.hash.err(), arrival.vlan.err()];
    for reason in reasons.into_iter().flatten() {
        assert!(matches!(reason, Unsupported::Driver | Unsupported::Absent), "{reason:?}");
    }
    Ok(format!("{arrival:?}"))
}
