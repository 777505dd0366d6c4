use std::net::Ipv6Addr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::wire::udp_frame::tests::any_flow;
use crate::wire::{IpAddresses, UdpChecksum, UdpFrame, UdpPacket, captured};

const V4: IpAddresses = IpAddresses::V4 {
    source: std::net::Ipv4Addr::new(10, 0, 0, 1),
    destination: std::net::Ipv4Addr::new(10, 0, 0, 2),
};

fn ipv6_addresses_to(destination: u128) -> IpAddresses {
    IpAddresses::V6 { source: Ipv6Addr::LOCALHOST, destination: Ipv6Addr::from_bits(destination) }
}

/// A transport header and payload whose checksum is that of the pseudo-header.
fn unfinished_transport(addresses: &IpAddresses, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let (header_bytes, offset) = if protocol == IpProtocol::TCP { (20, 16) } else { (8, 6) };
    let mut bytes = vec![0x11; header_bytes];
    bytes.extend_from_slice(payload);
    let sum = !addresses.pseudo_header_sum(protocol, bytes.len() as u32).checksum();
    bytes[offset..offset + 2].copy_from_slice(&sum.to_be_bytes());
    if protocol == IpProtocol::TCP {
        bytes[12] = 5 << 4;
    } else {
        let length = bytes.len() as u16;
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
    }
    bytes
}

fn tagged_frame(tags: &[u16], ether_type: EtherType, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for tag in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend([0, 5]);
    }
    frame.extend(ether_type.0.to_be_bytes());
    frame.extend_from_slice(packet);
    frame
}

/// An IPv4 packet with `words` of header.
fn ipv4_packet(words: u8, total_is_known: bool, fragment: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header_bytes = usize::from(words) * 4;
    let mut packet = vec![1; header_bytes];
    let total = if total_is_known { (header_bytes + payload.len()) as u16 } else { 0 };
    packet[0] = 0x40 | words;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[6..8].copy_from_slice(&fragment.to_be_bytes());
    packet[9] = protocol;
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend_from_slice(payload);
    packet
}

fn ipv6_packet(destination: u128, next_header: u8, payload_bytes: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(payload_bytes.to_be_bytes());
    packet.extend([next_header, 64]);
    packet.extend(Ipv6Addr::LOCALHOST.octets());
    packet.extend(destination.to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

/// Finishes the checksum of a frame, in one piece and in several, and checks it over the bytes of `upper` in
/// it.
fn assert_checksum_is_finished(
    frame: &[u8],
    addresses: &IpAddresses,
    protocol: IpProtocol,
    upper: std::ops::Range<usize>,
) {
    let unfinished = UnfinishedChecksum::find_in_frame(frame).expect("an unfinished checksum");
    let place = unfinished.field_for_device().unwrap();
    assert_eq!((usize::from(place.start), unfinished.end_bytes()), (upper.start, upper.end));
    let mut finished = frame.to_vec();
    unfinished.finish(&mut finished);
    let sum = addresses.pseudo_header_sum(protocol, upper.len() as u32);
    assert!(sum.with(&finished[upper.clone()]).is_valid());
    assert_eq!(finished[..upper.start], frame[..upper.start]);
    assert_eq!(finished[upper.end..], frame[upper.end..]);
    assert_eq!(UnfinishedChecksum::find_in_frame(&finished), None);

    let cut = upper.start + 20;
    assert_eq!(UnfinishedChecksum::find_in_first_piece(&frame[..cut], frame.len()), Some(unfinished));
    for piece_bytes in [cut, cut + 1] {
        let computed = unfinished.compute(frame.chunks(piece_bytes));
        let end = computed.offset() + computed.bytes().len();
        assert_eq!(computed.bytes(), &finished[computed.offset()..end]);
    }

    // As a device does it, which knows no padding.
    let mut by_device = frame[..unfinished.end_bytes()].to_vec();
    place.complete(&mut by_device).unwrap();
    assert_eq!(by_device, finished[..upper.end]);
}

#[test]
fn checksums_are_found_after_tags_and_extensions() {
    for protocol in [IpProtocol::TCP, IpProtocol::UDP] {
        let payload = unfinished_transport(&V4, protocol, b"unfinished, and odd");
        for tags in [&[][..], &[0x8100], &[0x88a8, 0x8100], &[0x9100, 0x8100, 0x8100]] {
            for words in [5, 6, 15] {
                let packet = ipv4_packet(words, true, 0x4000, protocol.0, &payload);
                let start = 14 + 4 * tags.len() + usize::from(words) * 4;
                let mut frame = tagged_frame(tags, EtherType::IPV4, &packet);
                assert_checksum_is_finished(&frame, &V4, protocol, start..start + payload.len());
                frame.extend([0xee; 7]); // padding
                assert_checksum_is_finished(&frame, &V4, protocol, start..start + payload.len());
            }
            let addresses = ipv6_addresses_to(77);
            let payload = unfinished_transport(&addresses, protocol, b"unfinished, and odd");
            let destination_options = [protocol.0, 0, 1, 4, 0, 0, 0, 0];
            let hop_by_hop = [60, 0, 1, 4, 0, 0, 0, 0];
            let chains: [(u8, Vec<u8>); 3] = [
                (protocol.0, vec![]),
                (60, destination_options.to_vec()),
                (0, [hop_by_hop, destination_options].concat()),
            ];
            for (next_header, headers) in chains {
                let all = [&headers[..], &payload].concat();
                let packet = ipv6_packet(77, next_header, all.len() as u16, &all);
                let start = 14 + 4 * tags.len() + 40 + headers.len();
                assert_checksum_is_finished(
                    &tagged_frame(tags, EtherType::IPV6, &packet),
                    &addresses,
                    protocol,
                    start..start + payload.len(),
                );
            }
        }
    }
}

#[test]
fn checksums_are_found_in_jumbograms() {
    let addresses = ipv6_addresses_to(77);
    let payload = unfinished_transport(&addresses, IpProtocol::TCP, &[7; 100_000]);
    let jumbo = [&[6, 0, 0xc2, 4][..], &(payload.len() as u32 + 8).to_be_bytes(), &payload].concat();
    let whole = tagged_frame(&[], EtherType::IPV6, &ipv6_packet(77, 0, 0, &jumbo));
    assert_checksum_is_finished(&whole, &addresses, IpProtocol::TCP, 62..62 + payload.len());
    let whole = tagged_frame(&[], EtherType::IPV6, &ipv6_packet(77, 6, 0, &payload));
    assert_eq!(UnfinishedChecksum::find_in_frame(&whole), None);
    let payload = unfinished_transport(&V4, IpProtocol::TCP, &[7; 1000]);
    let whole = tagged_frame(&[], EtherType::IPV4, &ipv4_packet(5, false, 0x4000, 6, &payload));
    assert_eq!(UnfinishedChecksum::find_in_frame(&whole), None);
}

#[test]
fn a_routing_header_decides_the_destination() {
    let (next_stop, end) = (0x22, 0x77_u128);
    // Type, stops left, addresses, and the destination that the checksum covers.
    let cases: [(u8, u8, [u128; 2], Option<u128>); 6] = [
        (0, 1, [0x11, end], Some(end)),
        (2, 1, [0x11, end], Some(end)),
        (4, 1, [end, 0x11], Some(end)),
        (4, 0, [end, 0x11], Some(next_stop)),
        (3, 0, [end, 0x11], Some(next_stop)),
        (3, 1, [end, 0x11], None),
    ];
    for (kind, left, addresses, covered) in cases {
        let covers = ipv6_addresses_to(covered.unwrap_or(end));
        let payload = unfinished_transport(&covers, IpProtocol::TCP, b"to the end");
        let list = addresses.map(u128::to_be_bytes).concat();
        let all = [&[6, 4, kind, left, 0, 0, 0, 0], &list[..], &payload].concat();
        let packet = tagged_frame(&[], EtherType::IPV6, &ipv6_packet(next_stop, 43, all.len() as u16, &all));
        match covered {
            Some(_) => assert_checksum_is_finished(&packet, &covers, IpProtocol::TCP, 94..94 + payload.len()),
            None => assert_eq!(UnfinishedChecksum::find_in_frame(&packet), None),
        }
    }
}

#[test]
fn an_sctp_checksum_of_zero_is_finished() {
    // RFC 9260 appendix A: CRC32C, the lowest byte first.
    let mut payload = vec![0x12, 0x34, 0, 7, 0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0, 0, 11, 0, 0, 4];
    let packet = |payload: &[u8]| tagged_frame(&[], EtherType::IPV4, &ipv4_packet(5, true, 0, 132, payload));
    let mut whole = packet(&payload);
    let unfinished = UnfinishedChecksum::find_in_frame(&whole).unwrap();
    assert_eq!((unfinished.field_for_device(), unfinished.end_bytes()), (None, whole.len()));
    let crc = crc32c::crc32c(&payload).to_le_bytes();
    unfinished.finish(&mut whole);
    payload[8..12].copy_from_slice(&crc);
    assert_eq!((&whole, UnfinishedChecksum::find_in_frame(&whole)), (&packet(&payload), None));
}

#[test]
fn fragments_tunnels_and_finished_packets_are_left_alone() {
    let payload = unfinished_transport(&V4, IpProtocol::UDP, b"unfinished");
    let left = |packet: &[u8]| {
        assert_eq!(UnfinishedChecksum::find_in_frame(&tagged_frame(&[], EtherType::IPV4, packet)), None)
    };
    left(&ipv4_packet(5, true, 0x2000, 17, &payload)); // the first fragment
    left(&ipv4_packet(5, true, 1, 17, &payload));
    left(&ipv4_packet(5, true, 0, 4, &ipv4_packet(5, true, 0, 17, &payload))); // IP in IP
    left(&ipv4_packet(5, true, 0, 1, &payload)); // ICMP
    let addresses = ipv6_addresses_to(77);
    let payload = unfinished_transport(&addresses, IpProtocol::UDP, b"unfinished");
    let all = [&[17, 0, 0, 1, 0, 0, 0, 9][..], &payload].concat();
    assert_eq!(
        UnfinishedChecksum::find_in_frame(&tagged_frame(
            &[],
            EtherType::IPV6,
            &ipv6_packet(77, 44, all.len() as u16, &all)
        )),
        None
    );
    for whole in [&captured::TCP_SYN[..], &captured::UDP_V4, &captured::UDP_V4_NO_CHECKSUM, &captured::UDP_V6]
    {
        assert_eq!(UnfinishedChecksum::find_in_frame(whole), None);
    }
    for whole in [&captured::ARP_REQUEST[..], &captured::MLD_REPORT, &captured::PORT_UNREACHABLE] {
        assert_eq!(UnfinishedChecksum::find_in_frame(whole), None);
    }
}

/// The word that makes a checksum both valid and equal to the pseudo-header's sum.
#[test]
fn a_valid_checksum_is_not_finished_again() {
    for protocol in [IpProtocol::TCP, IpProtocol::UDP] {
        let mut payload = unfinished_transport(&V4, protocol, &[0; 2]);
        let end = payload.len();
        let sum = V4.pseudo_header_sum(protocol, end as u32).with(&payload);
        payload[end - 2..].copy_from_slice(&sum.checksum().to_be_bytes());
        let valid = V4.pseudo_header_sum(protocol, end as u32).with(&payload).is_valid();
        assert!(valid, "the last word makes it so");
        let whole = tagged_frame(&[], EtherType::IPV4, &ipv4_packet(5, true, 0, protocol.0, &payload));
        let mut finished = whole.clone();
        UnfinishedChecksum::find_in_frame(&whole).expect("it looks unfinished").finish(&mut finished);
        assert_eq!(finished, whole);
    }
}

/// A packet of TCP or UDP without tags, options or extension headers, whose checksum is unfinished, and where
/// that is.
fn any_usual_packet() -> impl Strategy<Value = (Vec<u8>, usize)> {
    let flow = any_flow().prop_map(|flow| UdpFrame { vlan: None, ..flow });
    (flow, any::<bool>(), vec(any::<u8>(), 12..100)).prop_map(|(flow, is_tcp, payload)| {
        let (protocol, offset) = if is_tcp { (IpProtocol::TCP, 16) } else { (IpProtocol::UDP, 6) };
        let upper = unfinished_transport(&flow.addresses, protocol, &payload);
        let mut frame = vec![0; flow.header_bytes()];
        flow.emit_headers(&mut frame, &upper[8..]).unwrap(); // as long as a datagram with that payload
        let start = frame.len() - 8;
        frame[if start == 34 { 23 } else { 20 }] = protocol.0;
        frame.truncate(start);
        frame.extend_from_slice(&upper);
        (frame, start + offset)
    })
}

proptest! {
    #[test]
    fn any_offloaded_datagram_is_finished(
        flow in any_flow(), payload in vec(any::<u8>(), 0..300), padding in 0..20_usize, cut in any::<prop::sample::Index>(),
    ) {
        let flow = UdpFrame { checksum: UdpChecksum::Offloaded, ..flow };
        let mut frame = vec![0; flow.header_bytes()];
        flow.emit_headers(&mut frame, &payload).unwrap();
        frame.extend_from_slice(&payload);
        let bytes = frame.len();
        frame.resize(bytes + padding, 0xee);
        prop_assert_eq!(UnfinishedChecksum::find_in_frame(&frame[..cut.index(bytes)]), None, "cut");
        let unfinished = UnfinishedChecksum::find_in_frame(&frame).unwrap();
        prop_assert_eq!((unfinished.field_for_device(), unfinished.end_bytes()), (Some(flow.checksum_field()), bytes));
        unfinished.finish(&mut frame);
        if flow.vlan.is_none() {
            prop_assert!(UdpPacket::parse(&frame).unwrap().verify_checksum().is_ok());
        }
    }

    #[test]
    fn the_quick_check_keeps_every_unfinished_checksum(
        usual in any_usual_packet(), changes in vec((12..74_usize, any::<u8>()), 0..3), bytes in 14..400_usize,
    ) {
        let (mut frame, _) = usual;
        prop_assert!(!UnfinishedChecksum::is_ruled_out(&frame));
        for (at, byte) in changes {
            frame.get_mut(at).into_iter().for_each(|place| *place = byte);
        }
        frame.truncate(bytes);
        if UnfinishedChecksum::is_ruled_out(&frame) {
            prop_assert_eq!(find_in_headers(&frame, frame.len()), None);
        }
    }

    #[test]
    fn the_quick_check_rules_out_finished_usual_packets(usual in any_usual_packet(), checksum: u16) {
        let (mut frame, at) = usual;
        let sum = u16::from_be_bytes([frame[at], frame[at + 1]]);
        prop_assume!(checksum % 0xffff != sum % 0xffff);
        frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        prop_assert!(UnfinishedChecksum::is_ruled_out(&frame));
    }

    #[test]
    fn arbitrary_bytes_are_safe(bytes in vec(any::<u8>(), 0..200), ether_type in prop::sample::select(vec![0x800_u16, 0x86dd, 0x8100])) {
        let mut frame = tagged_frame(&[], EtherType(ether_type), &bytes);
        if let Some(unfinished) = UnfinishedChecksum::find_in_frame(&frame) {
            unfinished.finish(&mut frame);
        }
    }
}
