use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Instant;

use nocopy::port::Queues;
use nocopy::{Mode, Port};
use nocopy_lab::End;
use nocopy_proto::{IpAddresses, MacAddress, UdpChecksum, UdpFrame};

use crate::guest::patience::ARRIVAL_MAX;
use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "flows spread over the queues of a card come to the ports of all its queues, each packet once, in zero-copy and in the \
             packet ring",
    // The hub gives a virtio device one queue, and that is all it can have.
    on: &[Topology::Igb],
    kernels: &[Kernel::Newest],
    run,
};

/// Flows that differ in their addresses, because the card hashes nothing else of a datagram.
const FLOWS: u8 = 64;

/// Spreads the numbers of flows over 24 bits of the source address, so that each of these bits differs
/// between some flows. The card chooses one of two queues by one bit of its hash (Toeplitz): the parity of
/// those address bits that the kernel's random key selects. If the flows differed in 6 bits only, one key in
/// 64 would select none of these, and all flows would go to one queue.
const ADDRESS_SPREAD: u32 = 0x9E37_79B1;

/// Behind the headers of Ethernet, IPv4 and UDP.
const PAYLOAD_OFFSET: usize = 14 + 20 + 8;

fn run(guest: &Guest) -> Result<(), Failure> {
    let lab = guest.lab();
    lab.right().set_queues(2)?;
    lab.wait_for_carrier()?;
    for mode in [Mode::XdpZeroCopy, Mode::PacketRing] {
        let end = lab.right();
        let open = || Port::builder(end.interface()).mode(mode).open_queues(..);
        let mut queues = end.namespace().run(open)?;
        lab.wait_for_carrier()?;
        let mut sender = traffic::open_port(lab.left())?;
        for flow in 0..FLOWS {
            let mut frame = sender.sender().buffer().expect("a free frame");
            frame.fill(&flow_datagram(lab.left(), end, flow)).expect("a packet fits a frame");
            sender.sender().send(frame)?;
        }
        assert!(sender.sender().drain(ARRIVAL_MAX)?, "{}", sender.balance());
        let seen = receive_flows_by_queue(&mut queues)?;
        let counts: Vec<usize> = seen.iter().map(BTreeSet::len).collect();
        guest.record_measurement(&serde_json::json!({
            "mode": mode.to_string(),
            "flows on each queue": format!("{counts:?}"),
        }));
        assert!(counts.iter().all(|count| *count > 0), "{mode}: all on one queue: {counts:?}");
        assert_eq!(seen.iter().flatten().count(), usize::from(FLOWS), "{mode}: {counts:?}");
        drop(queues);
        drop(sender);
        lab.wait_for_carrier()?;
    }
    Ok(())
}

fn receive_flows_by_queue(queues: &mut Queues) -> Result<Vec<BTreeSet<u8>>, Failure> {
    let mut seen = vec![BTreeSet::new(); queues.ports().len()];
    let started = Instant::now();
    while seen.iter().map(BTreeSet::len).sum::<usize>() < FLOWS.into() && started.elapsed() < ARRIVAL_MAX {
        let batch = queues.receive_timeout(ARRIVAL_MAX / 10)?;
        let queue = batch.queue();
        for packet in batch {
            assert!(seen[queue as usize].insert(packet[PAYLOAD_OFFSET]), "a packet came twice");
        }
    }
    Ok(seen)
}

/// A datagram of a flow, whose first byte of payload is the flow's number.
fn flow_datagram(from: &End, to: &End, flow: u8) -> Vec<u8> {
    let [_, address @ ..] = (u32::from(flow).wrapping_mul(ADDRESS_SPREAD) >> 8).to_be_bytes();
    let source = Ipv4Addr::new(10, address[0], address[1], address[2]);
    let headers = UdpFrame {
        source_mac: MacAddress(from.mac()),
        destination_mac: MacAddress(to.mac()),
        vlan: None,
        addresses: IpAddresses::V4 { source, destination: to.ipv4() },
        traffic_class: 0,
        hop_limit: 64,
        source_port: 7000,
        destination_port: 7001,
        checksum: UdpChecksum::Computed,
    };
    let mut packet = vec![0; PAYLOAD_OFFSET + 100];
    assert_eq!(headers.header_bytes(), PAYLOAD_OFFSET);
    let (head, payload) = packet.split_at_mut(PAYLOAD_OFFSET);
    payload[0] = flow;
    headers.emit_headers(head, payload).expect("there is room for headers");
    packet
}
