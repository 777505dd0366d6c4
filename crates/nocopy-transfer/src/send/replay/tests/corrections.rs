//! Checksums, corrected.

use std::net::{Ipv4Addr, Ipv6Addr};

use nocopy_proto::wire::checksum::OnesComplementSum;
use nocopy_proto::{IpAddresses, IpProtocol};

use super::*;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

fn address_pairs() -> [IpAddresses; 2] {
    let [a, b] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(Ipv4Addr::from);
    let [c, d] = [1, 2].map(|host| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host));
    [IpAddresses::V4 { source: a, destination: b }, IpAddresses::V6 { source: c, destination: d }]
}

/// A segment of an odd length, with a wrong checksum.
fn upper_layer_segment(protocol: u8) -> Vec<u8> {
    let mut segment: Vec<u8> =
        (0..61).map(|number: u8| number.wrapping_mul(7).wrapping_add(protocol)).collect();
    if protocol == UDP {
        segment[4..6].copy_from_slice(&[0, 61]);
    }
    segment
}

fn checksum_offset(protocol: u8) -> usize {
    match protocol {
        TCP => 16,
        UDP => 6,
        _ => 2,
    }
}

fn ipv4_packet(options: &[u8], fragment: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header_bytes = 20 + options.len();
    let total = ((header_bytes + payload.len()) as u16).to_be_bytes();
    let first = [0x40 | (header_bytes as u8 / 4), 0, total[0], total[1], 1, 2];
    [
        &first[..],
        &fragment.to_be_bytes(),
        &[64, protocol, 0xab, 0xcd, 192, 0, 2, 1, 192, 0, 2, 2],
        options,
        payload,
    ]
    .concat()
}

fn ipv6_packet(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let bytes = (payload.len() as u16).to_be_bytes();
    let IpAddresses::V6 { source, destination } = address_pairs()[1] else { unreachable!() };
    let first = [0x60, 0, 0, 0, bytes[0], bytes[1], protocol, 64];
    [&first[..], &source.octets(), &destination.octets(), payload].concat()
}

fn ethernet_frame(head: &[u8], packet: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], head, packet, &[0; 5]].concat()
}

/// The frame with right checksums: that of IPv4 at `header`, and that of the upper protocol from `begin` to
/// `end`.
fn with_right_checksums(
    mut frame: Vec<u8>,
    header: Option<std::ops::Range<usize>>,
    upper: Option<(std::ops::Range<usize>, u8, IpAddresses)>,
) -> Vec<u8> {
    let mut write = |place: std::ops::Range<usize>, at: usize, sum: OnesComplementSum| {
        let bytes = &mut frame[place];
        bytes[at..at + 2].fill(0);
        let checksum = sum.with(bytes).checksum();
        bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    };
    if let Some(header) = header {
        write(header, 10, OnesComplementSum::new());
    }
    if let Some((place, protocol, addresses)) = upper {
        let sum = match protocol {
            ICMP => OnesComplementSum::new(),
            _ => addresses.pseudo_header_sum(IpProtocol(protocol), place.len() as u32),
        };
        write(place, checksum_offset(protocol), sum);
    }
    frame
}

fn correct_frame(mut frame: Vec<u8>) -> (Vec<u8>, ChecksumCorrection) {
    let correction = checksums::correct_checksums(&mut frame);
    (frame, correction)
}

#[test]
fn every_checksum_is_corrected_behind_every_header() {
    let [v4, v6] = address_pairs();
    let heads: [(&[u8], &[u8]); 4] = [
        (&[], &[]),
        (&[0x81, 0, 0, 5], &[0x81, 0, 0, 5]),
        (&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]),
        (&[0x88, 0x64, 0x11, 0, 0, 9, 0, 99, 0, 0x21], &[0x88, 0x64, 0x11, 0, 0, 9, 0, 99, 0, 0x57]),
    ];
    for (head4, head6) in heads {
        let with_type = |head: &[u8], ether_type: [u8; 2]| {
            if head.starts_with(&[0x88, 0x64]) { head.to_vec() } else { [head, &ether_type].concat() }
        };
        let (head4, head6) = (with_type(head4, [8, 0]), with_type(head6, [0x86, 0xdd]));
        for protocol in [TCP, UDP, ICMP] {
            for options in [&[][..], &[1; 8]] {
                let ip_at = 12 + head4.len();
                let upper_at = ip_at + 20 + options.len();
                let frame = ethernet_frame(
                    &head4,
                    &ipv4_packet(options, 0x4000, protocol, &upper_layer_segment(protocol)),
                );
                let upper = Some((upper_at..upper_at + 61, protocol, v4));
                let right = with_right_checksums(frame.clone(), Some(ip_at..upper_at), upper);
                assert_eq!(
                    correct_frame(frame),
                    (right.clone(), ChecksumCorrection::Made),
                    "{head4:?} {protocol}"
                );
                assert_eq!(correct_frame(right.clone()), (right, ChecksumCorrection::None));
            }
        }
        for protocol in [TCP, UDP, ICMPV6] {
            // Hop-by-hop options, and a fragment header of a whole packet.
            let extended = [
                &[44, 0, 1, 4, 0, 0, 0, 0, protocol, 0, 0, 0, 0, 0, 0, 9],
                &upper_layer_segment(protocol)[..],
            ];
            for (next, payload) in [(protocol, upper_layer_segment(protocol)), (0, extended.concat())] {
                let end = 12 + head6.len() + 40 + payload.len();
                let frame = ethernet_frame(&head6, &ipv6_packet(next, &payload));
                let right = with_right_checksums(frame.clone(), None, Some((end - 61..end, protocol, v6)));
                assert_eq!(
                    correct_frame(frame),
                    (right.clone(), ChecksumCorrection::Made),
                    "{head6:?} {protocol}"
                );
                assert_eq!(correct_frame(right.clone()), (right, ChecksumCorrection::None));
            }
        }
    }
}

#[test]
fn the_checksum_covers_the_final_destination() {
    let last = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
    let IpAddresses::V6 { source, destination } = address_pairs()[1] else { unreachable!() };
    for (kind, left, addresses, end) in [
        (0, 2, vec![source, last], last),
        (0, 0, vec![source, last], destination),
        (2, 1, vec![last], last),
        (4, 1, vec![last, source], last),
    ] {
        let routing = [UDP, 2 * addresses.len() as u8, kind, left, 0, 0, 0, 0];
        let octets: Vec<u8> = addresses.iter().flat_map(|address| address.octets()).collect();
        let payload = [&routing[..], &octets, &upper_layer_segment(UDP)].concat();
        let place = 54 + payload.len() - 61..54 + payload.len();
        let frame = ethernet_frame(&[0x86, 0xdd], &ipv6_packet(43, &payload));
        let addresses = IpAddresses::V6 { source, destination: end };
        let right = with_right_checksums(frame.clone(), None, Some((place, UDP, addresses)));
        assert_eq!(correct_frame(frame), (right, ChecksumCorrection::Made), "{kind} {left}");
    }
}

/// Of TCP and UDP; ICMP has no pseudo header.
#[test]
fn the_checksum_covers_the_last_address_of_a_source_route() {
    let IpAddresses::V4 { source, destination } = address_pairs()[0] else { unreachable!() };
    let last = Ipv4Addr::new(198, 51, 100, 9);
    for (options, end) in [
        ([131, 7, 4, 198, 51, 100, 9, 0], Some(last)),
        ([137, 7, 4, 198, 51, 100, 9, 0], Some(last)),
        ([131, 7, 8, 198, 51, 100, 9, 0], Some(destination)),
        ([131, 9, 4, 198, 51, 100, 9, 0], None),
    ] {
        for protocol in [TCP, UDP, ICMP] {
            let frame =
                ethernet_frame(&[8, 0], &ipv4_packet(&options, 0, protocol, &upper_layer_segment(protocol)));
            let end = if protocol == ICMP { Some(destination) } else { end };
            let upper =
                end.map(|destination| (42..42 + 61, protocol, IpAddresses::V4 { source, destination }));
            let correction =
                if upper.is_some() { ChecksumCorrection::Made } else { ChecksumCorrection::Impossible };
            let right = with_right_checksums(frame.clone(), Some(14..42), upper);
            assert_eq!(correct_frame(frame), (right, correction), "{options:?} {protocol}");
        }
    }
}

#[test]
fn an_invalid_routing_header_is_not_changed() {
    for (kind, units, left) in [(0, 0, 1), (0, 1, 1), (2, 0, 1), (4, 0, 1), (3, 2, 1), (253, 2, 1)] {
        let routing = [UDP, units, kind, left, 0, 0, 0, 0];
        let payload = [&routing[..], &[0; 16][..8 * usize::from(units)], &upper_layer_segment(UDP)].concat();
        let frame = ethernet_frame(&[0x86, 0xdd], &ipv6_packet(43, &payload));
        assert_eq!(correct_frame(frame.clone()), (frame, ChecksumCorrection::Impossible), "{kind} {units}");
    }
}

#[test]
fn a_zero_udp_checksum_stays_and_is_never_produced() {
    let [v4, _] = address_pairs();
    let mut without = upper_layer_segment(UDP);
    without[6..8].fill(0);
    let unchanged = ethernet_frame(&[8, 0], &ipv4_packet(&[], 0, UDP, &without));
    let right = with_right_checksums(unchanged.clone(), Some(14..34), None);
    assert_eq!(correct_frame(unchanged), (right, ChecksumCorrection::Made));
    // Data that make the sum zero: the checksum of the rest, in place of two bytes.
    let mut datagram = upper_layer_segment(UDP);
    datagram[6..10].copy_from_slice(&[0; 4]);
    let sum = v4.pseudo_header_sum(IpProtocol(UDP), 61).with(&datagram).checksum();
    datagram[6..10].copy_from_slice(&[1, 1, sum.to_be_bytes()[0], sum.to_be_bytes()[1]]);
    let (found, _) = correct_frame(ethernet_frame(&[8, 0], &ipv4_packet(&[], 0, UDP, &datagram)));
    assert_eq!(found[40..42], [0xff, 0xff]);
}

#[test]
fn only_ip_headers_of_fragments_and_truncated_packets_are_corrected() {
    for fragment in [0x2000, 0x0003, 0x2003] {
        let part = ethernet_frame(&[8, 0], &ipv4_packet(&[], fragment, UDP, &upper_layer_segment(UDP)));
        let right = with_right_checksums(part.clone(), Some(14..34), None);
        assert_eq!(correct_frame(part), (right, ChecksumCorrection::Made), "the header's alone");
    }
    let part = [&[UDP, 0, 0, 8, 0, 0, 0, 9], &upper_layer_segment(UDP)[..]].concat();
    let part = ethernet_frame(&[0x86, 0xdd], &ipv6_packet(44, &part));
    assert_eq!(correct_frame(part.clone()), (part, ChecksumCorrection::None));
    for (head, packet) in [
        ([8, 0], ipv4_packet(&[], 0, TCP, &upper_layer_segment(TCP))),
        ([8, 0], ipv4_packet(&[], 0, UDP, &upper_layer_segment(UDP))),
        ([0x86, 0xdd], ipv6_packet(TCP, &upper_layer_segment(TCP))),
    ] {
        let whole = ethernet_frame(&head, &packet);
        for bytes in 14..whole.len() - 5 {
            let (found, correction) = correct_frame(whole[..bytes].to_vec());
            assert_eq!(correction, ChecksumCorrection::Impossible, "{bytes}");
            let header = if head == [8, 0] && bytes >= 34 { Some(14..34) } else { None };
            assert_eq!(found, with_right_checksums(whole[..bytes].to_vec(), header, None), "{bytes}");
        }
    }
    for (head, mut packet, length_at) in [
        ([8, 0], ipv4_packet(&[], 0, TCP, &upper_layer_segment(TCP)), 2),
        ([0x86, 0xdd], ipv6_packet(TCP, &upper_layer_segment(TCP)), 4),
    ] {
        packet[length_at..length_at + 2].fill(0); // still to be cut into segments
        let whole = ethernet_frame(&head, &packet);
        assert_eq!(correct_frame(whole.clone()), (whole, ChecksumCorrection::Impossible));
    }
    let arp = ethernet_frame(&[8, 6], &[1; 46]);
    assert_eq!(correct_frame(arp.clone()), (arp, ChecksumCorrection::None));
}
