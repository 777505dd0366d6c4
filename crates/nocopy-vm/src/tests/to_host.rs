use std::net::Ipv4Addr;
use std::time::Instant;

use nocopy::{Evidence, Mode, Port};
use nocopy_lab::Lab;
use nocopy_proto::MacAddress;
use nocopy_proto::wire::{EtherType, arp, ethernet};
use serde_json::json;

use crate::guest::patience::ARRIVAL_MAX;
use crate::guest::traffic;
use crate::guest::{Guest, sockets};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "ARP requests that a zero-copy port takes and hands to the host are answered by the host, and the port does not see \
             them again",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const REQUESTS: u8 = 100;

fn run(guest: &Guest) -> Result<(), Failure> {
    let lab = guest.lab();
    let (mut left, mut right) = traffic::open_both_ports(lab)?;
    assert_eq!(right.mode(), Mode::XdpZeroCopy);
    let handed_over = hand_over_requests(lab, &mut left, &mut right)?;
    guest.record_measurement(&json!({ "mode": right.mode().to_string(), "handed_over": handed_over }));
    for mut port in [left, right] {
        traffic::assert_all_frames_accounted(&mut port)?;
        traffic::close_and_check_frames(port);
    }
    sockets::check_udp_both_ways(lab)
}

/// Sends ARP requests from the left port to the right one, which hands them to its host, and checks the
/// host's answers; returns how many.
pub(crate) fn hand_over_requests(lab: &Lab, left: &mut Port, right: &mut Port) -> Result<u64, Failure> {
    let mut host = right.receiver().to_host()?;
    assert_eq!(host.ledger().bytes_of(Evidence::ZeroCopy), 0);
    for number in 0..REQUESTS {
        let asker = Ipv4Addr::new(10, 77, 0, 100 + number);
        let request = arp_request(lab, asker)?;
        let mut frame = left.sender().buffer().expect("one at a time");
        frame.fill(&request).expect("a request is short");
        left.sender().send(frame)?;
        left.sender().flush()?;
        // A card pads short packets, so the length may differ.
        let taken = receive_arp(right)?;
        assert!(taken.starts_with(&request), "{taken:02x?}");
        lab.right().namespace().run(|| host.hand_over(&taken))?;
        let answer = receive_arp(left)?;
        let answer = arp::Packet::parse(&answer[14..])?;
        assert_eq!((answer.operation(), answer.target_ip()), (arp::Operation::REPLY, asker));
        assert_eq!(answer.sender_mac(), MacAddress(lab.right().mac()));
    }
    assert_eq!((host.stats().moved, host.stats().get("refused").unwrap()), (REQUESTS.into(), 0));
    assert!(right.receiver().try_receive()?.is_empty(), "the port sees what it handed over");
    Ok(host.stats().moved)
}

fn arp_request(lab: &Lab, sender_ip: Ipv4Addr) -> Result<Vec<u8>, Failure> {
    let (sender_mac, target_ip) = (MacAddress(lab.left().mac()), lab.right().ipv4());
    let mut packet = vec![0; 14 + 28];
    let (destination, ether_type) = (MacAddress([0xff; 6]), EtherType::ARP);
    ethernet::Repr { destination, source: sender_mac, ether_type }.emit(&mut packet)?;
    let (operation, target_mac) = (arp::Operation::REQUEST, MacAddress([0; 6]));
    arp::Repr { operation, sender_mac, sender_ip, target_mac, target_ip }.emit(&mut packet[14..])?;
    Ok(packet)
}

fn receive_arp(port: &mut Port) -> Result<Vec<u8>, Failure> {
    let started = Instant::now();
    while started.elapsed() < ARRIVAL_MAX {
        let mut batch = port.receiver().receive_timeout(ARRIVAL_MAX)?;
        if let Some(packet) = batch.find(|packet| packet[12..14] == EtherType::ARP.0.to_be_bytes()) {
            return Ok(packet.to_vec());
        }
    }
    Err(Failure("no ARP packet came".into()))
}
