//! What becomes of packets that were not recorded as Ethernet frames.

use super::*;
use crate::send::replay::framing::UnsendableCause;

const OWN: [u8; 6] = ADDRESSES.own.0;
const ABSENT: [u8; 6] = ADDRESSES.absent.0;
const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 0x33];
const IPV4: [u8; 2] = [8, 0];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// The only frame of a file with one packet, or why there is none.
fn replayed_frame(
    link_type: u32,
    packet: &[u8],
    addresses: MacAddresses,
) -> Result<Vec<u8>, UnsendableCause> {
    let packet = Packet::new(SECOND_NS, packet.to_vec());
    let settings =
        PlaybackSettings { rounds: RepeatCount::Times(1), gap_max: GAP_MAX, addresses, fix_checksums: false };
    let file = pcapng(
        false,
        &[Interface { link_type: link_type as u16, ..ETHERNET }, ETHERNET],
        &[packet, Packet { interface: 1, ..test_packets(1).remove(0) }],
    );
    let mut playback = Playback::new(Cursor::new(file), settings, || true).unwrap();
    let PeekResult::Packet(upcoming) = playback.peek().unwrap() else { panic!("no packet") };
    let mut frame = vec![0; upcoming.bytes];
    playback.write(&mut frame);
    match playback.unsendable_by_cause().first_key_value() {
        Some((cause, _)) => Err(*cause),
        None => Ok(frame),
    }
}

fn ethernet_frame(destination: [u8; 6], source: [u8; 6], ether_type: [u8; 2], payload: &[u8]) -> Vec<u8> {
    [&destination[..], &source, &ether_type, payload].concat()
}

fn sll_packet(hardware: u16, address: &[u8], protocol: u16, payload: &[u8]) -> Vec<u8> {
    let mut padded = address.to_vec();
    padded.resize(8, 0xee);
    let words = [4, hardware, address.len() as u16].map(u16::to_be_bytes);
    [words.as_flattened(), &padded, &protocol.to_be_bytes(), payload].concat()
}

fn sll2_packet(hardware: u16, address: &[u8], protocol: u16, payload: &[u8]) -> Vec<u8> {
    let mut padded = address.to_vec();
    padded.resize(8, 0xee);
    let words = [protocol, 0, 0, 7, hardware].map(u16::to_be_bytes);
    [words.as_flattened(), &[4, address.len() as u8], &padded, payload].concat()
}

#[test]
fn ip_packets_get_an_ethernet_header() {
    let (four, six) = ([&[0x45][..], &[9; 40]].concat(), [&[0x60][..], &[9; 40]].concat());
    for (link_type, head, packet, ether_type) in [
        (101, &[][..], &four, IPV4),
        (101, &[], &six, IPV6),
        (12, &[], &four, IPV4),
        (14, &[], &six, IPV6),
        (228, &[], &four, IPV4),
        (229, &[], &six, IPV6),
        (0, &[2, 0, 0, 0], &four, IPV4),
        (0, &[0, 0, 0, 2], &four, IPV4),
        (0, &[10, 0, 0, 0], &six, IPV6),
        (0, &[24, 0, 0, 0], &six, IPV6),
        (0, &[0, 0, 0, 28], &six, IPV6),
        (0, &[30, 0, 0, 0], &six, IPV6),
        (108, &[0, 0, 0, 2], &four, IPV4),
        (108, &[0, 0, 0, 24], &six, IPV6),
    ] {
        let expected = ethernet_frame(ABSENT, OWN, ether_type, packet);
        assert_eq!(
            replayed_frame(link_type, &[head, packet].concat(), ADDRESSES),
            Ok(expected),
            "{link_type} {head:?}"
        );
    }
}

#[test]
fn linux_headers_become_ethernet_headers() {
    type HeaderBuilder = fn(u16, &[u8], u16, &[u8]) -> Vec<u8>;
    for (link_type, cooked) in [(113, sll_packet as HeaderBuilder), (276, sll2_packet)] {
        let payload = [5; 50];
        for (packet, expected) in [
            (cooked(1, &SENDER, 0x0806, &payload), ethernet_frame(ABSENT, SENDER, [8, 6], &payload)),
            (cooked(1, &SENDER, 0x8100, &payload), ethernet_frame(ABSENT, SENDER, [0x81, 0], &payload)),
            // Of an interface without addresses, of lo, of a group.
            (cooked(65_534, &[], 0x0800, &payload), ethernet_frame(ABSENT, OWN, IPV4, &payload)),
            (cooked(772, &[0; 6], 0x86dd, &payload), ethernet_frame(ABSENT, OWN, IPV6, &payload)),
            (
                cooked(1, &[1, 0, 0x5e, 0, 0, 1], 0x0800, &payload),
                ethernet_frame(ABSENT, OWN, IPV4, &payload),
            ),
            (cooked(32, &[3; 8], 0x0800, &payload), ethernet_frame(ABSENT, OWN, IPV4, &payload)),
            // 802.2, with a length.
            (cooked(1, &SENDER, 4, &payload), ethernet_frame(ABSENT, SENDER, [0, 50], &payload)),
            (cooked(1, &SENDER, 0x0800, &[]), ethernet_frame(ABSENT, SENDER, IPV4, &[])),
        ] {
            assert_eq!(replayed_frame(link_type, &packet, ADDRESSES), Ok(expected), "{link_type}");
        }
        for (packet, expected) in [
            (cooked(280, &[], 0x000c, &payload), UnsendableCause::NoEtherType), // CAN
            (cooked(824, &[], 0x0800, &payload), UnsendableCause::NoEtherType), // netlink
            (cooked(1, &SENDER, 4, &[0; 1536]), UnsendableCause::NoEtherType),
            (cooked(1, &SENDER, 0x0800, &[])[..15].to_vec(), UnsendableCause::TooShort),
        ] {
            assert_eq!(replayed_frame(link_type, &packet, ADDRESSES), Err(expected), "{link_type}");
        }
    }
}

#[test]
fn packets_that_cannot_become_frames_are_counted() {
    for (link_type, packet, expected) in [
        (101, &[][..], UnsendableCause::TooShort),
        (101, &[0x15, 0], UnsendableCause::NoEtherType),
        (0, &[2, 0, 0], UnsendableCause::TooShort),
        (0, &[7, 0, 0, 0], UnsendableCause::NoEtherType),
        (105, &[0; 60], UnsendableCause::LinkType(105)),
    ] {
        assert_eq!(replayed_frame(link_type, packet, ADDRESSES), Err(expected), "{link_type}");
    }
}

#[test]
fn given_addresses_replace_the_recorded_ones() {
    let (source, destination) = ([2, 1, 1, 1, 1, 1], [2, 2, 2, 2, 2, 2]);
    let addresses = MacAddresses {
        source: Some(MacAddress(source)),
        destination: Some(MacAddress(destination)),
        ..ADDRESSES
    };
    let payload = [5; 50];
    let ethernet = ethernet_frame([9; 6], [8; 6], IPV4, &payload);
    let expected = ethernet_frame(destination, source, IPV4, &payload);
    assert_eq!(replayed_frame(1, &ethernet, addresses), Ok(expected.clone()));
    assert_eq!(replayed_frame(113, &sll_packet(1, &SENDER, 0x0800, &payload), addresses), Ok(expected));
    let only_source = MacAddresses { destination: None, ..addresses };
    assert_eq!(replayed_frame(1, &ethernet, only_source), Ok(ethernet_frame([9; 6], source, IPV4, &payload)));
    for bytes in 0..14 {
        assert_eq!(
            replayed_frame(1, &ethernet[..bytes], addresses).unwrap().len(),
            bytes,
            "not sent, but not amiss"
        );
    }
}
